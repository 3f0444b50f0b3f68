# SPDX-License-Identifier: BSD-3-Clause
"""The glue's classes: of the module shmcoll._C, made with the glue's operators, or in Python.

shmcoll._C is for one version of Python and one of torch. Where an installation has none that fits, the
operators do what a group needs. Of a backend's methods ``get_error`` is missing then; up to torch 2.14 also
``options``, once torch has put the backend into its group.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import torch

from shmcoll._load import build_facts, is_python, load_glue, minor, not_loaded
from shmcoll._log import say

glue = load_glue()


def _has_module() -> bool:
    if minor(build_facts()["torch"]) != minor(torch.__version__):
        return False
    return importlib.util.find_spec("shmcoll._C") is not None


if TYPE_CHECKING or (not is_python(glue) and _has_module()):
    try:
        _C = importlib.import_module("shmcoll._C")
    except ImportError as error:
        raise not_loaded(error) from error
    from shmcoll._C import (
        Options,
        ProcessGroupShm as make,
        ReconfigurableGroup as make_reconfigurable,
        _direct as direct,
    )

    def info(backend: Any) -> str:
        """The lines of key=value about a group."""
        text: str = backend._info()
        return text

    def keep_options(backend: Any, _options: Any) -> Any:
        """Its C++ object has them."""
        return backend

    NAME = f"{minor(torch.__version__)}, with shmcoll._C"
elif is_python(glue):
    from shmcoll._methods import Methods as direct
    from shmcoll._python_glue import Options, info, make

    make_reconfigurable = None
    NAME = "Python"
else:
    from shmcoll._methods import Methods as direct
    from shmcoll._operators import Options, info, keep_options, make, make_reconfigurable

    NAME = f"{minor(torch.__version__)}, without shmcoll._C"

say("info", f"glue for torch {NAME}")


def core_info() -> list[str]:
    """The lines of key=value about the library."""
    text: bytes = glue.shc_build_info()
    return text.decode().splitlines()


if not TYPE_CHECKING and is_python(glue):
    from shmcoll._python_glue import after_fork_in_child, leave
else:
    after_fork_in_child = glue.shmcoll_after_fork_in_child

    def leave(forget_python: bool = True) -> None:
        """This process says goodbye to its groups. After that the interpreter may end, if it does."""
        glue.shmcoll_leave(forget_python)


__all__ = [
    "NAME",
    "Options",
    "after_fork_in_child",
    "core_info",
    "direct",
    "glue",
    "info",
    "keep_options",
    "leave",
    "make",
    "make_reconfigurable",
]
