# SPDX-License-Identifier: BSD-3-Clause
"""Does benchmarks/hosts/against_gloo.py measure and judge?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts
from job import Job

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "hosts"))
import against_gloo as bench  # noqa: E402


def test_each_operation_of_both_backends_is_timed_and_checked() -> None:
    with Hosts(2) as hosts:
        job = Job(hosts, [0, 0, 1, 1])
        said = job.run(bench.measure, {name: [8, 4096] for name in bench.OPERATIONS}, 2)
    rows = [bench.slowest(list(parts)) for parts in zip(*(one["rows"] for one in said))]
    assert {row["op"] for row in rows} == set(bench.OPERATIONS)
    for row in rows:
        assert row["wrong"] == [], row
        if "absent" not in row:
            assert len(row["gloo"]) == len(row["shmcoll"]) == 2 and row["ratio"] > 0, row
            assert f"{row['ratio']:.2f}" in bench.line_of(row, ""), row
    assert not any("absent" in row for row in rows if row["op"] in ("all_reduce", "broadcast"))


def row_of(ratio: float, **more: Any) -> dict[str, Any]:
    part = {"op": "broadcast", "bytes": 1 << 20, "gloo": [ratio] * 3, "shmcoll": [1.0] * 3}
    return bench.slowest([{**part, "wrong": []}, {**part, "wrong": [], **more}])


def test_a_goal_is_met_or_missed_or_in_doubt() -> None:
    assert bench.judged(row_of(1.8), busy=True).endswith("met")
    assert bench.judged(row_of(1.6), busy=False).endswith("missed")
    assert bench.judged(row_of(1.6), busy=True).endswith("in doubt")
    assert bench.judged({**row_of(1.6), "noisy": True}, busy=False).endswith("in doubt")
    assert bench.judged({**row_of(1.0), "bytes": 8}, busy=False) == ""
    of_8 = {**row_of(4.0), "op": "all_reduce", "bytes": 512}
    assert bench.judged(of_8, busy=False).endswith("met")
    assert bench.judged(of_8, busy=False, ranks=8).endswith("missed")
    assert bench.judged(of_8, busy=False, ranks=4) == ""


def test_a_round_is_as_long_as_its_slowest_rank_and_a_wrong_result_is_shown() -> None:
    row = row_of(4.0, shmcoll=[2.0, 2.0, 0.5], wrong=["shmcoll"])
    assert row["shmcoll"] == [2.0, 2.0, 1.0] and row["ratio"] == 2.0
    assert bench.line_of(row, "").endswith("WRONG: shmcoll")


def test_layouts_and_sizes_are_read() -> None:
    assert bench.layout_of("2x3") == [0, 0, 0, 1, 1, 1] and bench.layout_of("3+1") == [0, 0, 0, 1]
    assert [bench.bytes_of(text) for text in ("8", "64k", "2M")] == [8, 65536, 2 << 20]
    with pytest.raises(ValueError):
        bench.layout_of("two")
