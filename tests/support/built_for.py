# SPDX-License-Identifier: BSD-3-Clause
"""Exits with 1 where shmcoll is not built in this tree, or not for the torch that is installed.

For the Makefile, at each build: torch itself, whose import takes a second, is not imported."""

import importlib.util
import json
import pathlib
import runpy
import sys

INFO = pathlib.Path(__file__).parents[2] / "python/shmcoll/_build_info.json"


def installed() -> str:
    """torch.__version__"""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("there is no torch: make distclean build")
    return str(
        runpy.run_path(str(pathlib.Path(spec.origin).with_name("version.py")))["__version__"]
    )


if __name__ == "__main__":
    built = json.loads(INFO.read_text())["torch"] if INFO.exists() else "none"
    sys.exit(built != installed())
