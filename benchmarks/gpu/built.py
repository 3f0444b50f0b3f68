# SPDX-License-Identifier: BSD-3-Clause
"""What was built before, and for what: a build that fits is used again, also one that was carried from
another machine of the same kind. All of it lies in build/gpu: programs, and the package in
build/gpu/package."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import Any

# What compilers read. Python files are no part of a build: they are copied anew each time.
SOURCES = ("CMakeLists.txt", "setup.py", "src/**/*", "benchmarks/**/*.[ch]", "benchmarks/**/*.cc")
SOURCES += ("benchmarks/**/CMakeLists.txt",)
BINARIES = ("*.so", "*.so.*", "lib", "_build_info.json")  # of a package
NO_COPY = ("__pycache__", "*.egg-info")

Key = dict[str, str]


def digest(root: Path) -> str:
    """Returns a digest of the names and contents of all sources. It needs no git."""
    found = sorted({path for pattern in SOURCES for path in root.glob(pattern) if path.is_file()})
    total = hashlib.sha256()
    for path in found:
        if "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(root)} {content}\n".encode())
    return total.hexdigest()


def key_of(root: Path, facts: dict[str, Any], gpus: str, *more: str) -> Key:
    """Returns what a build depends on. `more`: names of facts."""
    key = {"sources": digest(root), "gpus": gpus, "machine": platform.machine()}
    return key | {name: str(facts.get(name, "")) for name in more}


def said_before(stamp: Path, key: Key) -> str | None:
    """Returns the note of the build when it was made; None if there is none for this key."""
    try:
        found = json.loads(stamp.read_text())
        return str(found["said"]) if found["for"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(stamp: Path, key: Key, said: str) -> None:
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(json.dumps({"for": key, "said": said}, indent=1) + "\n")


def collect_package(python: Path, folder: Path, binaries: bool) -> None:
    """The package as it is in `python`; with `binaries` False those that `folder` has stay."""
    if binaries:
        shutil.rmtree(folder, ignore_errors=True)
    left_out = NO_COPY if binaries else (*NO_COPY, *BINARIES)
    ignore = shutil.ignore_patterns(*left_out)
    shutil.copytree(python, folder, ignore=ignore, dirs_exist_ok=True)
