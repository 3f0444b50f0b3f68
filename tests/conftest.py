# SPDX-License-Identifier: BSD-3-Clause
"""For all Python tests."""

import os
import signal
import sys
from typing import Any


# A shell that starts a command in the background has it ignore Ctrl-C, and so would all that the
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# torch's store looks up the name of both ends of each connection, for its messages. Where names come
# from a network, an answer is lost now and then, and a test waits five seconds for it. No test needs
# a name: the resolver asks nobody. torch then says that it knows no name.
os.environ["RES_OPTIONS"] = "attempts:0"


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--without-module",
        action="store_true",
        help="the tests' own processes find no shmcoll._C, as with a wheel that has none for this Python",
    )


def pytest_configure(config: Any) -> None:
    if config.getoption("--without-module"):
        sys.modules["shmcoll._C"] = None  # type: ignore[assignment]
    config.addinivalue_line(
        "markers", "long: not in the default lane; `make test-long` or `make hosts`"
    )


def _names(item: Any) -> set[str]:
    """The test with its parameters; without, then all of them are meant; and its file."""
    return {item.name, item.name.partition("[")[0], item.path.name}


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """With SHMCOLL_GLUE=python, or without the module, what differs there is left out."""
    in_python = os.environ.get("SHMCOLL_GLUE") == "python"
    if not in_python and not config.getoption("--without-module"):
        return
    import glues

    different = glues.DIFFERENT if in_python else glues.WITHOUT_MODULE
    config.hook.pytest_deselected(items=[item for item in items if _names(item) & different.keys()])
    items[:] = [item for item in items if not _names(item) & different.keys()]
