# SPDX-License-Identifier: BSD-3-Clause
"""Compiles the glue for the torch that runs, into the user's cache: SHMCOLL_GLUE=build asks for it."""

import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings
from typing import Any

from shmcoll import _load


def _folder(torch: Any) -> pathlib.Path:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "shmcoll" / f"{_load.build_facts()['version']}-{torch.__version__}"


def _core_hash() -> str:
    """Which core a glue was built over."""
    return hashlib.sha256(_load.library("libshmcoll").read_bytes()).hexdigest()


def _glue(folder: pathlib.Path) -> pathlib.Path:
    return folder / "libshmcoll_c10d.so"


def find(torch: Any) -> "pathlib.Path | None":
    """What has been built for that torch and this installation. Warns of one for another installation."""
    folder = _folder(torch)
    try:
        built = json.loads((folder / "built.json").read_text())["core"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if _glue(folder).exists() and built == _core_hash():
        return _glue(folder)
    if _load.choice() != "build":
        warnings.warn(
            f"shmcoll: the glue in {folder} was built for another libshmcoll and is not used. "
            "SHMCOLL_GLUE=build builds it again",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


def _sources() -> pathlib.Path:
    root = _load._HERE.resolve().parents[1]
    if not (root / "src/backend/CMakeLists.txt").exists():
        raise ImportError(
            f"shmcoll: SHMCOLL_GLUE=build needs shmcoll's sources, and this installation ({_load._HERE}) "
            "has none: unpack the source archive of version "
            f"{_load.build_facts()['version']}, and there run `pip install --no-build-isolation .`"
        )
    return root


def build(torch: Any) -> pathlib.Path:
    """Builds the glue, in about two minutes of CPU time; the ranks of a machine build it once."""
    root, folder = _sources(), _folder(torch)
    if shutil.which("cmake") is None:
        raise ImportError(
            "shmcoll: SHMCOLL_GLUE=build needs cmake, and compilers for C and C++ "
            "(Debian: cmake, build-essential)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = find(torch)
        if found is None:
            print(
                f"[shmcoll] building the glue for torch {torch.__version__} into {folder}",
                file=sys.stderr,
                flush=True,
            )
            _compile(torch, root, folder)
            found = _glue(folder)
    return found


def _compile(torch: Any, root: pathlib.Path, folder: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(prefix="shmcoll-build-") as temporary:
        configure = ["cmake", "-S", str(root), "-B", temporary, "-DCMAKE_BUILD_TYPE=Release"]
        configure += [
            f"-DSHMCOLL_TORCH={pathlib.Path(torch.__file__).parent}",
            "-DSHMCOLL_PYTHON=ON",
        ]
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        target = f"shmcoll_c10d-{_load.minor(torch.__version__)}"
        make = ["cmake", "--build", temporary, "-j", jobs, "--target", target]
        for command in (configure, make):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                log = folder / "log"
                log.write_text(done.stdout + done.stderr)
                raise ImportError(
                    f"shmcoll: the glue for torch {torch.__version__} does not compile; {log} has what "
                    "the compiler says. Without SHMCOLL_GLUE=build the glue in Python is used"
                )
        built = pathlib.Path(temporary, "src/backend", f"lib{target}.so")
        # Under another name first: a rank may have the old one loaded.
        shutil.copy(built, folder / "new.so")
        os.replace(folder / "new.so", _glue(folder))
    (folder / "built.json").write_text(json.dumps({"core": _core_hash()}))
