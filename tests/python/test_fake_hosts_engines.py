# SPDX-License-Identifier: BSD-3-Clause
"""Groups over several hosts: what becomes of their engines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import shmcoll
from ranks import Rank, run, seconds

FAKE = {"SHMCOLL_FAKE_HOSTS": "2x1", "GLOO_SOCKET_IFNAME": "lo"}
GROUPS = 5


def engine_threads() -> int:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        try:
            names.append(path.read_text())
        except OSError:  # it has ended
            continue
    return sum("gloo" in name for name in names)


def calls(group: Any) -> int:
    about: Any = shmcoll.describe(group, internals=True)
    return int(about["engine_calls"])


def test_an_engine_goes_when_the_call_that_its_group_left_has_ended() -> None:
    def leave_a_call(rank: Rank, key: str) -> None:
        group = dist.new_group(timeout=seconds(20))
        before = calls(group)
        if rank.rank == 0:
            dist.all_reduce(torch.ones(3000), group=group, async_op=True)
            while calls(group) == before:
                time.sleep(0.001)
            rank.store.set(key, "")
        rank.store.wait([key])
        if rank.rank == 0:
            dist.destroy_process_group(group)
            rank.store.set(f"{key} left", "")
        rank.store.wait([f"{key} left"])
        if rank.rank == 1:
            dist.destroy_process_group(group)

    def body(rank: Rank) -> tuple[int, int]:
        rank.init()
        dist.barrier()
        before = engine_threads()
        for number in range(GROUPS):
            leave_a_call(rank, f"call {number}")
        for _ in range(3):  # each lets go of those before it
            time.sleep(0.3)
            dist.destroy_process_group(dist.new_group(timeout=seconds(20)))
        return before, engine_threads()

    for before, after in run(2, body, env=FAKE):
        assert after - before < GROUPS, (before, after)
