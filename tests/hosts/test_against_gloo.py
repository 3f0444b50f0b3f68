# SPDX-License-Identifier: BSD-3-Clause
"""Does benchmarks/hosts/against_gloo.py measure and judge? Do hosts send what sim.py says?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hosts import Hosts
from job import Job, Rank

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "hosts"))
import against_gloo as bench
import sim


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


def sent(rank: Rank, size: int) -> dict[tuple[str, str], int]:
    """Bytes that leave this host in one call, by backend and operation."""
    rank.init("gloo")
    groups = {"gloo": dist.group.WORLD, "shmcoll": dist.new_group(backend="shmcoll")}
    seen = {}
    for backend, group in groups.items():
        for name, operation in bench.OPERATIONS.items():
            tensors = operation.make(size // 4, rank.world)
            operation.call(*tensors, group=group)  # connects
            counts = []
            for called in range(2):
                if called:
                    operation.call(*tensors, group=group)
                dist.barrier()
                counts.append(bytes_out())
                dist.barrier()
            seen[backend, name] = counts[1] - counts[0]
    return seen


def bytes_out() -> int:
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))


def test_hosts_send_what_the_model_says() -> None:
    """And their headers and acknowledgements."""
    size = 4 << 20
    with Hosts(2, shm_mb=512) as hosts:
        seen = Job(hosts, [0, 0, 1, 1]).run(sent, size)
    machine = sim.machine_of("1gbit", sim.Constants())
    sides = {"gloo": sim.Gloo(machine, 2, 2), "shmcoll": sim.Shmcoll(machine, 2, 2)}
    for backend, name in seen[0]:
        out = sides[backend].cost(name, size).out
        most = max(one[backend, name] for one in seen)
        assert out <= most <= 1.15 * out, (backend, name, most, out)


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
