# SPDX-License-Identifier: BSD-3-Clause
"""Free-threaded Python, as far as a usual one can show it; `make free-threaded` has the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/free_threaded"


def test_the_module_says_that_it_needs_no_lock() -> None:
    """Else a free-threaded Python turns its lock on when it loads the module."""
    text = (ROOT / "src/backend/bindings.cpp").read_text()
    modules = re.findall(r"^PYBIND11_MODULE\(.*\)$", text, re.M)
    assert modules == ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m, py::mod_gil_not_used())"]


@pytest.mark.parametrize(
    ("program", "glue", "words"),
    [
        ("many_threads.py", "native", "right with glue"),
        ("many_threads.py", "python", "right with glue Python,"),
        ("races.py", "python", "no race,"),
    ],
)
def test_the_programs_run_with_the_lock(program: str, glue: str, words: str) -> None:
    command = [sys.executable, str(PROGRAMS / program), "5"]
    env = {**os.environ, "SHMCOLL_GLUE": glue}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(f"{words}.* with the interpreter's lock.*\n", done.stdout), done.stdout
