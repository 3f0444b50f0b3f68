# SPDX-License-Identifier: BSD-3-Clause
"""Nothing grows, however often groups come and go."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist

WARM = 60
LIMIT_S = 270.0  # a busy machine took more than 100


def threads() -> int:
    """A thread that has been joined may be listed for a moment longer."""
    found = len(os.listdir("/proc/self/task"))
    for _ in range(100):
        time.sleep(0.002)
        found = min(found, len(os.listdir("/proc/self/task")))
    return found


def count() -> dict[str, int]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threads(),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
        "KiB": int(status.split("VmRSS:")[1].split()[0]),
    }


def one_cycle(rank: ranks.Rank, number: int) -> None:
    rank.init()
    tensor = torch.ones(100000)
    dist.all_reduce(tensor)
    group = dist.new_group()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert work is not None
    work.wait()
    assert torch.all(tensor == 4)
    if number % 2:
        dist.destroy_process_group(group)
    dist.destroy_process_group()


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("cycles", [130, pytest.param(300, marks=pytest.mark.long)])
def test_hundreds_of_groups_leave_nothing_behind(cycles: int, capsys: Any) -> None:
    def body(rank: ranks.Rank) -> list[dict[str, int]]:
        counts = []
        for number in range(cycles + 1):
            if number in (WARM, cycles):
                counts.append(count())
            one_cycle(rank, number)
        return counts

    for before, after in ranks.run(2, body, limit=LIMIT_S):
        with capsys.disabled():
            print(f"\n{before} -> {after}", end="")
        assert after["descriptors"] == before["descriptors"]
        assert after["threads"] == before["threads"]
        assert after["maps"] <= before["maps"] + 4  # the allocator's own
        assert after["KiB"] <= before["KiB"] + 2048
    assert ranks.leftovers() == []


@pytest.mark.timeout(60)
def test_failed_groups_leave_nothing_behind_either() -> None:
    def body(rank: ranks.Rank) -> list[dict[str, int]]:
        counts = []
        for number in range(41):
            if number in (10, 40):
                counts.append(count())
            group = rank.group(f"group {number}")
            group.barrier().wait()
            rank.sync()
            if rank.rank == 0:
                group.abort()
            with pytest.raises(dist.DistBackendError):
                group.barrier().wait()
            rank.sync()
            del group
        return counts

    for before, after in ranks.run(2, body, limit=LIMIT_S):
        assert after["descriptors"] == before["descriptors"]
        assert after["threads"] == before["threads"]
        assert after["maps"] <= before["maps"] + 4
    assert ranks.leftovers() == []
