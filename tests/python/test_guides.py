# SPDX-License-Identifier: BSD-3-Clause
"""The programs on the pages of the user guide run, and all ranks print the same."""

from __future__ import annotations

import os
import re
import runpy
import socket
from pathlib import Path

import pytest

from ranks import Rank, describe, outcomes

pytestmark = pytest.mark.timeout(120)

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGES = (
    "quick-start.md",
    "frameworks/ddp.md",
    "frameworks/fsdp2.md",
    "frameworks/dtensor.md",
    "inference.md",
    "shared-tensors.md",
    "windows.md",
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
    job = {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    job |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}

    def body(rank: Rank) -> None:
        """As torchrun does it, except that torch is there already."""
        os.environ.update(job, RANK=str(rank.rank), LOCAL_RANK=str(rank.rank))
        runpy.run_path(str(script), run_name="__main__")

    ended = outcomes(2, body, limit=100)
    assert all(rank.ok for rank in ended), "\n".join(map(describe, ended))
    if "print(" in program:
        (first,), (second,) = (re.findall(r"^rank \d: (.*)$", one.output, re.M) for one in ended)
        assert first == second


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 8
