# SPDX-License-Identifier: BSD-3-Clause
"""Chooses and loads the glue for the torch that runs, or says in one sentence why it cannot.

c10d has no stable ABI, so there is one compiled glue for each minor version of torch. One for another
version would fail with an undefined symbol, or crash; so the versions are compared first. Where there is
none that fits, the glue in Python does the same over ctypes, for CPU tensors.
"""

import ctypes
import functools
import json
import os
import pathlib
import platform
import sys
import warnings
from typing import Any

_HERE = pathlib.Path(__file__).parent
# In the folder of the sources: there is no package of this name to fetch.
_REBUILD = (
    "in the folder of shmcoll's sources run `make clean build` (for its .venv) or "
    "`pip install --no-build-isolation --force-reinstall --no-deps .`"
)
_GLUE = "libshmcoll_c10d-"
_LIBRARY = "libshmcoll_python.so.0"  # of the glue in Python
_CHOICES = ("native", "python", "build")


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


def library(name: str) -> pathlib.Path:
    """The file of one of the C libraries, whose name ends in the major version."""
    return _HERE / "lib" / f"{name}.so.{build_facts()['version'].partition('.')[0]}"


def minor(version: str) -> str:
    """Returns "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def choice() -> str:
    """What SHMCOLL_GLUE asks for; "" if it is not set."""
    said = os.environ.get("SHMCOLL_GLUE", "")
    if said and said not in _CHOICES:
        raise ImportError(f"shmcoll: SHMCOLL_GLUE={said} is not one of {'|'.join(_CHOICES)}")
    return said


def _is_before_release(version: str) -> bool:
    """Of a torch whose c10d may still change: a nightly, or a build from its sources."""
    return any(mark in version.split("+")[0] for mark in ("dev", "a0", "rc"))


def _fits(version: str) -> bool:
    """Was the glue for the minor version of this torch made for it?"""
    return not _is_before_release(version) or build_facts()["torch"] == version


def _compiled_glue(torch: Any) -> "pathlib.Path | None":
    """The compiled glue's file for that torch: of the installation, or built by SHMCOLL_GLUE=build."""
    from shmcoll import _build

    path = _HERE / "lib" / f"{_GLUE}{minor(torch.__version__)}.so"
    if path.exists() and (_fits(torch.__version__) or choice() == "native"):
        return path
    return _build.find(torch)


def _why_none(torch: Any) -> str:
    """Why there is no compiled glue for that torch."""
    there = sorted(file.stem.removeprefix(_GLUE) for file in (_HERE / "lib").glob(f"{_GLUE}*.so"))
    if not there:
        return f"this shmcoll has no compiled glue, and torch {torch.__version__} is installed"
    return (
        f"this shmcoll was built for torch {', '.join(there)} (exactly: {build_facts()['torch']}), but "
        f"torch {torch.__version__} is installed"
    )


def find_glue(torch: Any) -> "pathlib.Path | None":
    """The file of the glue for that torch; None if it must be built first. ImportError: there is none."""
    if not torch.distributed.is_available():
        raise ImportError("shmcoll needs a torch with torch.distributed; this one has none")
    said = choice()
    if said != "python":
        path = _compiled_glue(torch)
        if path is not None or said == "build":
            return path
    if said != "native" and (_HERE / "lib" / _LIBRARY).exists():
        return _HERE / "lib" / _LIBRARY
    raise ImportError(f"{_why_none(torch)}. Build it again for this torch: {_REBUILD}")


def is_python(glue: ctypes.PyDLL) -> bool:
    """Is it the library of the glue in Python?"""
    return pathlib.Path(glue._name).name == _LIBRARY


def _check_machine(facts: dict[str, str]) -> None:
    """A wheel can be unpacked anywhere; the loader's own words would name a file only."""
    built, here = facts.get("machine"), platform.machine()
    if built and built != here:
        raise ImportError(
            f"this shmcoll ({_HERE}) was built for {built}, and this machine is {here}. Build it: {_REBUILD}"
        )


def _warn_of_two() -> None:
    """Another installation may come first on sys.path for one of our two modules."""
    import _shmcoll_autoload

    other = pathlib.Path(_shmcoll_autoload.__file__).parent
    if other != _HERE.parent:
        warnings.warn(
            f"shmcoll: there are two installations: {_HERE.parent} is used, and its name is registered by "
            f"{other}. Uninstall one (python -m pip uninstall shmcoll)",
            RuntimeWarning,
            stacklevel=3,
        )


def _open(path: pathlib.Path) -> ctypes.PyDLL:
    try:
        if path.parent != _HERE / "lib":  # a glue that lies elsewhere is for these libraries
            for name in ("libshmcoll", "libshmcoll_cuda"):
                ctypes.CDLL(str(library(name)))
        return ctypes.PyDLL(str(path))
    except OSError as error:
        raise not_loaded(error) from error


def _open_any(torch: Any) -> ctypes.PyDLL:
    from shmcoll import _build

    path = find_glue(torch) or _build.build(torch)
    try:
        glue = _open(path)
        if is_python(glue) and choice() != "python":
            _warn_of_python(_why_none(torch))
        return glue
    except ImportError as error:
        if choice() or not (_HERE / "lib" / _LIBRARY).exists():
            raise
        glue = _open(_HERE / "lib" / _LIBRARY)  # or neither loads
        _warn_of_python(str(error))
        return glue


def _warn_of_python(why: str) -> None:
    warnings.warn(
        f"shmcoll: {why}. The glue in Python is used: CPU tensors only, small ones take up to twice the "
        "time. SHMCOLL_GLUE=build compiles a glue for this torch; SHMCOLL_GLUE=python says that this one "
        "is wanted",
        RuntimeWarning,
        stacklevel=2,
    )


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
        built = "" if facts["torch"] == "none" else f" {minor(facts['torch'])}"
        raise ImportError(
            f"shmcoll needs torch, and this Python ({sys.executable}) has none. Install torch{built}"
            + (", for which this shmcoll was built" if built else "")
        ) from None
    _check_machine(facts)
    _warn_of_two()
    glue = _open_any(torch)
    glue.shc_build_info.restype = ctypes.c_char_p
    glue.shmcoll_set_main_thread.argtypes = [ctypes.c_ulong]
    glue.shmcoll_leave.argtypes = [ctypes.c_int]
    for name in ("set_main_thread", "after_fork_in_child", "leave"):
        getattr(glue, f"shmcoll_{name}").restype = None
    return glue


def _c_library() -> str:
    """This system's C library, in words."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "not glibc"
    except (AttributeError, OSError, ValueError):  # as with musl
        return "not glibc"


def not_loaded(error: Exception) -> ImportError:
    """What is raised when a file that fits does not load."""
    facts = build_facts()
    text = f"shmcoll's compiled part does not load: {error}. "
    here = _c_library()
    if "GLIBC_" in str(error) or here == "not glibc":
        text += f"The C library here is {here}; a wheel needs glibc 2.28 or later. "
    return ImportError(
        f"{text}It was built for torch {facts['torch']} and Python {facts['python']}. "
        f"Build it again: {_REBUILD}"
    )
