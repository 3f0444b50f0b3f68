# SPDX-License-Identifier: BSD-3-Clause
"""Loads the glue for the torch that runs, or says in one sentence why it cannot.

c10d has no stable ABI, so there is one glue for each minor version of torch. A glue for another one
would fail with an undefined symbol, or crash; so the versions are compared first.
"""

import ctypes
import functools
import json
import pathlib
import sys
from typing import Any

_HERE = pathlib.Path(__file__).parent
# In the folder of the sources: there is no package of this name to fetch.
_REBUILD = (
    "in the folder of shmcoll's sources run `make clean build` (for its .venv) or "
    "`pip install --no-build-isolation --force-reinstall --no-deps .`"
)
_GLUE = "libshmcoll_c10d-"


@functools.cache
def build_facts() -> dict[str, str]:
    """The versions this installation was built with (written by setup.py)."""
    path = _HERE / "_build_info.json"
    if not path.exists():
        raise ImportError(
            f"shmcoll is not built here ({_HERE} has no _build_info.json). Build it: {_REBUILD}"
        )
    facts: dict[str, str] = json.loads(path.read_text())
    return facts


def minor(version: str) -> str:
    """Returns "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def find_glue(torch: Any) -> pathlib.Path:
    """The glue's file for that torch; raises ImportError when there is none."""
    if not torch.distributed.is_available():
        raise ImportError("shmcoll needs a torch with torch.distributed; this one has none")
    path = _HERE / "lib" / f"{_GLUE}{minor(torch.__version__)}.so"
    if not path.exists():
        there = sorted(file.stem.removeprefix(_GLUE) for file in path.parent.glob(f"{_GLUE}*.so"))
        raise ImportError(
            f"this shmcoll was built for torch {', '.join(there) or 'of no version'} (exactly: "
            f"{build_facts()['torch']}), but torch {torch.__version__} is installed. Build it again "
            f"for this torch: {_REBUILD}"
        )
    return path


@functools.cache
def load_glue() -> ctypes.PyDLL:
    """The glue, as ctypes sees it."""
    facts = build_facts()
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"shmcoll needs torch, and this Python ({sys.executable}) has none. Install torch "
            f"{minor(facts['torch'])}, for which this shmcoll was built"
        ) from None
    path = find_glue(torch)
    try:
        glue = ctypes.PyDLL(str(path))
    except OSError as error:
        raise not_loaded(error) from error
    glue.shc_build_info.restype = ctypes.c_char_p
    glue.shmcoll_set_main_thread.argtypes = [ctypes.c_ulong]
    glue.shmcoll_leave.argtypes = [ctypes.c_int]
    for name in ("set_main_thread", "after_fork_in_child", "leave"):
        getattr(glue, f"shmcoll_{name}").restype = None
    return glue


def not_loaded(error: Exception) -> ImportError:
    """What is raised when a file that fits does not load."""
    facts = build_facts()
    return ImportError(
        f"shmcoll's compiled part does not load: {error}. It was built for torch "
        f"{facts['torch']} and Python {facts['python']}. Build it again: {_REBUILD}"
    )
