# SPDX-License-Identifier: BSD-3-Clause
"""Does benchmarks/hosts/against_mpi.py judge? Measuring needs Open MPI, and is not tested."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "hosts"))
import against_mpi as bench

pytestmark = pytest.mark.no_hosts


def took(tuned: float, han: float, shmcoll: list[float]) -> dict[str, list[float]]:
    return {"tuned": [tuned] * 4, "han": [han] * 4, "shmcoll": shmcoll}


def test_the_better_of_both_counts() -> None:
    for tuned, han in ((3.0, 4.0), (4.0, 3.0)):
        row = bench.row_of(1 << 20, took(tuned, han, [2.0] * 4))
        assert row["ratio"] == 1.5 and not row["noisy"]
        assert bench.judged(row, busy=False) == "met"
        assert bench.line_of(row, "met").endswith("1.50   1.5  met")
        assert bench.line_of(row, "").endswith("1.50 ")


def test_a_goal_is_missed_or_in_doubt() -> None:
    row = bench.row_of(1 << 20, took(2.0, 9.0, [2.0] * 4))
    assert row["ratio"] == 1.0 and bench.judged(row, busy=False) == "missed"
    row = bench.row_of(1 << 20, took(2.0, 9.0, [1.0, 1.0, 3.0, 3.0]))
    assert row["noisy"] and bench.judged(row, busy=False) == "in doubt"


def test_a_busy_machine_meets_no_goal() -> None:
    row = bench.row_of(1 << 20, took(9.0, 9.0, [1.0] * 4))
    assert bench.judged(row, busy=True) == "in doubt"


def test_without_open_mpi_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "apt-get install openmpi-bin" in bench.absent()
