# SPDX-License-Identifier: BSD-3-Clause
"""A program as a Python script that runs alone, and what such a script does."""

from __future__ import annotations

import zlib
from pathlib import Path

import pool
from program import Program

TESTS = Path(__file__).resolve().parents[1]
REGRESSIONS = TESTS / "fuzz" / "regressions"

_SCRIPT = '''# SPDX-License-Identifier: BSD-3-Clause
"""{title}

    python tests/fuzz/regressions/{name}

forks its ranks, compares, and exits with 1 when the results are wrong.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "fuzz"), str(TESTS / "support")]

from program import End, Message, Program, Step  # noqa: E402, F401

PROGRAM = {program}
if __name__ == "__main__":
    from script import run

    sys.exit(run(PROGRAM))
'''


def name_of(program: Program) -> str:
    return f"found_{zlib.crc32(program.text().encode()):08x}.py"


def text_of(program: Program, title: str) -> str:
    return _SCRIPT.format(title=title, name=name_of(program), program=program.text())


def load(path: Path) -> Program:
    names: dict[str, object] = {"__file__": str(path), "__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), names)
    program = names["PROGRAM"]
    assert isinstance(program, Program)
    return program


def run(program: Program) -> int:
    """The exit status."""
    try:
        pool.check(program)
    except pool.Failure as failure:
        print(failure)
        return 1
    finally:
        pool.end_all()
    print("the results are right")
    return 0
