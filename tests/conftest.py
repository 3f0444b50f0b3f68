# SPDX-License-Identifier: BSD-3-Clause
"""For all Python tests."""

import os
import signal
from typing import Any

import pytest

# A shell that starts a command in the background has it ignore Ctrl-C, and so would all that the
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# torch's store looks up the name of both ends of each connection, for its messages. Where names come
# from a network, an answer is lost now and then, and a test waits five seconds for it. No test needs
# a name: the resolver asks nobody. torch then says that it knows no name.
os.environ["RES_OPTIONS"] = "attempts:0"


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers", "long: not in the default lane; `make test-long` or `make hosts`"
    )


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """With SHMCOLL_GLUE=python, what the glue in Python does differently is skipped."""
    if os.environ.get("SHMCOLL_GLUE") != "python":
        return
    import glues

    for item in items:
        if item.name in glues.DIFFERENT:
            item.add_marker(pytest.mark.skip(reason=glues.DIFFERENT[item.name]))
