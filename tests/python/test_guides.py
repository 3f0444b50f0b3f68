# SPDX-License-Identifier: BSD-3-Clause
"""The programs on the pages of the user guide run, and all ranks print the same."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import shmcoll

pytestmark = pytest.mark.timeout(120)

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGES = (
    "quick-start.md",
    "frameworks/ddp.md",
    "frameworks/fsdp2.md",
    "frameworks/dtensor.md",
    "inference.md",
    "shared-tensors.md",
)
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
PROGRAMS = [
    pytest.param(
        program,
        id=f"{page.removesuffix('.md')}-{number}",
        marks=[pytest.mark.long] if page.startswith("frameworks/") else [],
    )
    for page in PAGES
    for number, program in enumerate(PROGRAM.findall((GUIDE / page).read_text()))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_on_two_ranks(program: str, tmp_path: Path) -> None:
    assert 'init_process_group("shmcoll")' in program
    script = tmp_path / "script.py"
    script.write_text(program)
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    ranks = [start(script, rank, port) for rank in range(2)]
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    if "print(" in program:
        (first,), (second,) = (re.findall(r"^rank \d: (.*)$", text, re.M) for text in said)
        assert first == second


def start(script: Path, rank: int, port: str) -> subprocess.Popen[str]:
    """As torchrun does it, which would be a third process that imports torch."""
    paths = [str(Path(shmcoll.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    server = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **place, **server},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 7
