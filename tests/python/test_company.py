# SPDX-License-Identifier: BSD-3-Clause
"""Two ranks that the scheduler has put on one CPU part, and may use the same CPUs as before; a thread that
makes all calls alone has its turn without a locked instruction."""

from __future__ import annotations

import os

import pytest
import shmcoll
import torch
import torch.distributed as dist
from ranks import Rank, run
from shmcoll.bench import machine

ROUNDS = 200  # each puts both on one CPU again
CALLS = 300

needs_two_cpus = pytest.mark.skipif(
    machine.usable_cpus() < 2, reason="ranks without a second CPU cannot part"
)


def moves() -> int:
    """Returns how often all ranks together have moved."""
    count = torch.tensor([shmcoll.describe(internals=True)["migrations"]])
    dist.all_reduce(count)
    return int(count[0])


def put_on_one_cpu_and_call(rank: Rank, rounds: int) -> tuple[int, bool]:
    """How often a rank has moved, and whether this one may use what it could use before."""
    rank.init()
    before = os.sched_getaffinity(0)
    tensor = torch.ones(8)
    moved = 0
    for _ in range(rounds):
        os.sched_setaffinity(0, {min(before)})
        dist.barrier()
        os.sched_setaffinity(0, before)
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        moved = moves()
        if moved:
            break
    return moved, os.sched_getaffinity(0) == before


def call_many_times(rank: Rank) -> bool:
    """Calls until all ranks have a bias, or for a long time."""
    rank.init()
    tensor = torch.ones(8)
    for _ in range(20):
        for _ in range(2000):
            dist.all_reduce(tensor)
        biased = torch.tensor([shmcoll.describe(internals=True)["biased"]], dtype=torch.int32)
        dist.all_reduce(biased, op=dist.ReduceOp.MIN)
        if biased[0]:
            break
    return shmcoll.describe(internals=True)["biased"]


def test_a_thread_that_calls_many_times_has_a_bias() -> None:
    assert run(2, call_many_times) == [True] * 2
    assert run(2, call_many_times, env={"SHMCOLL_BIAS": "off"}) == [False] * 2


@needs_two_cpus
def test_ranks_on_one_cpu_part() -> None:
    outcome = run(2, put_on_one_cpu_and_call, ROUNDS)
    assert all(moved > 0 for moved, _ in outcome), outcome
    assert all(unchanged for _, unchanged in outcome), outcome


@needs_two_cpus
def test_they_stay_where_that_is_asked_for() -> None:
    assert run(2, put_on_one_cpu_and_call, 10, env={"SHMCOLL_MOVE": "off"}) == [(0, True)] * 2


@needs_two_cpus
def test_who_is_pinned_to_one_cpu_stays_there() -> None:
    def body(rank: Rank) -> tuple[int, bool]:
        mine = {min(os.sched_getaffinity(0))}
        rank.init()  # with both CPUs: the group has room
        os.sched_setaffinity(0, mine)
        for _ in range(CALLS):
            dist.barrier()
        return moves(), os.sched_getaffinity(0) == mine

    assert run(2, body) == [(0, True)] * 2


@needs_two_cpus
def test_more_ranks_than_cpus_do_not_move() -> None:
    def body(rank: Rank) -> tuple[int, bool]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
        return put_on_one_cpu_and_call(rank, 10)

    assert run(3, body) == [(0, True)] * 3
