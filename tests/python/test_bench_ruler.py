# SPDX-License-Identifier: BSD-3-Clause
"""The backend ruler of the bench: always the same work, which is really done."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from bench_runs import run_bench
from threads import in_threads

from shmcoll.bench import options, plan
from shmcoll.bench.run import startline
from shmcoll.bench.run.calls import Call, Context
from shmcoll.bench.run.ruler import Ruler
from shmcoll.bench.run.startline import BLOCK_BYTES, StartLine

pytestmark = pytest.mark.timeout(120)


def calls_of(world_size: int, size: str) -> list[Call]:
    """Returns the calls of one operation, for each rank."""
    settings, _ = options.parse(["-g", str(world_size), "-o", "broadcast", "-b", size, "-e", size])
    (point,) = plan.points(settings)
    fd = startline.create(world_size)
    return [
        Ruler(fd, rank, world_size).prepare(
            point, Context(rank, range(world_size), StartLine(fd, rank, world_size))
        )
        for rank in range(world_size)
    ]


def run_all(calls: list[Call], times: int = 1) -> None:
    def be(call: Call) -> None:
        for i in range(times):
            call.run(i)

    in_threads(*(partial(be, call) for call in calls))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("size", ["8", f"{BLOCK_BYTES // 2 - 128}", f"{3 * BLOCK_BYTES + 4}"])
def test_the_bytes_of_the_next_rank_are_there(world_size: int, size: str) -> None:
    calls = calls_of(world_size, size)
    for salt in (1, 2):
        for call in calls:
            call.give(salt)
        run_all(calls, times=5)
        assert [call.take(salt) for call in calls] == [0] * world_size


def test_bytes_that_did_not_come_are_wrong() -> None:
    calls = calls_of(2, "1M")
    for call in calls:
        call.give(1)
    assert [call.take(1) for call in calls] == [1 << 20] * 2


@pytest.mark.long
def test_it_stands_beside_others_in_every_mode(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    for mode in ("latency", "throughput", "skew"):
        args = ("--backends", "shmcoll,ruler", "-o", "all_reduce,scatter,sendrecv,barrier")
        args += ("-b", "4K", "-e", "4K", "-g", "2", "--mode", mode, "--cache", "cold")
        done = run_bench(tmp_path, *args, "-n", "3", "--rounds", "2", "--json", str(out))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "vs ruler" in done.stdout and "# wrong values: 0 OK" in done.stdout
        for result in json.loads(out.read_text())["results"]:
            cell = result["backends"]["ruler"]
            assert cell["time_us"]["p50"] > 0 and len(result["ratios"]["ruler"]["rounds"]) == 2
