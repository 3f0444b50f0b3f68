# SPDX-License-Identifier: BSD-3-Clause
"""SHMCOLL_THREADS: what it may be, and what a group says that it has become."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shmcoll
from ranks import Rank, outcomes, run


def reduced(rank: Rank) -> tuple[bool, dict[str, Any]]:
    """Returns whether a large sum is right, and what describe() says after it."""
    rank.init()
    count = 300_001
    data = torch.arange(count) % 1000 + rank.rank
    dist.all_reduce(data)
    world = dist.get_world_size()
    right = torch.arange(count) % 1000 * world + world * (world - 1) // 2
    return torch.equal(data, right), dict(shmcoll.describe(internals=True))


def test_there_are_none_unless_they_are_asked_for() -> None:
    for env in ({}, {"SHMCOLL_THREADS": "0"}):
        for right, info in run(2, reduced, env=env):
            assert right
            assert (info["threads"], info["threads_from"]) == (0, "none asked for")


def test_a_number_is_the_number_and_makes_turns_longer() -> None:
    for right, info in run(2, reduced, env={"SHMCOLL_THREADS": "2"}):
        assert right
        assert (info["threads"], info["threads_of_all"], info["threads_from"]) == (2, 2, "set")
        assert info["threads_jobs"] > 0
        assert info["tuning.turn"] == str(3 * 32768)


def test_without_the_variable_there_are_none() -> None:
    for right, info in run(2, reduced):
        assert right
        assert (info["threads"], info["threads_of_all"], info["threads_jobs"]) == (0, 0, 0)
        assert info["tuning.turn"] == "65536"


def test_auto_leaves_a_core_to_each_rank() -> None:
    """More ranks than cores, pinned or not: nothing is left."""
    cpus = sorted(os.sched_getaffinity(0))

    def pinned(rank: Rank) -> tuple[bool, dict[str, Any]]:
        os.sched_setaffinity(0, {cpus[rank.rank % len(cpus)]})
        return reduced(rank)

    for right, info in run(2, pinned, env={"SHMCOLL_THREADS": "auto"}):
        assert right
        assert (info["threads"], info["threads_of_all"]) == (0, 0)
        share, text = info["threads_from"].removeprefix("auto: ").split(" ", 1)
        assert text == "cores for this rank, one for itself"
        assert 0.5 <= float(share) <= 1.0


def test_auto_of_one_rank_takes_what_the_others_leave() -> None:
    """A rank alone has all cores; one is its own, and three is the most that can help."""
    for right, info in run(1, reduced, env={"SHMCOLL_THREADS": "auto"}):
        assert right
        share = float(info["threads_from"].removeprefix("auto: ").split(" ", 1)[0])
        assert share <= len(os.sched_getaffinity(0))
        assert info["threads"] == max(0, min(3, int(share + 1e-6) - 1))


def test_what_a_smaller_group_has_is_what_the_first_one_counted() -> None:
    def body(rank: Rank) -> tuple[dict[str, Any], dict[str, Any] | None]:
        rank.init()
        small = dist.new_group([0])
        return dict(shmcoll.describe()), dict(shmcoll.describe(small)) if rank.rank == 0 else None

    world = len(os.sched_getaffinity(0))
    (first, small), *_ = run(max(2, world), body, env={"SHMCOLL_THREADS": "auto"})
    assert first["threads"] == 0
    assert small is not None and small["threads"] == 0
    assert small["threads_from"] == "auto: counted by another group"


@pytest.mark.parametrize("value", ["-1", "257", "many", "3x"])
def test_another_value_is_ignored_and_said(value: str) -> None:
    def body(rank: Rank) -> str:
        rank.init()
        return str(shmcoll.describe()["threads"])

    for outcome in outcomes(2, body, env={"SHMCOLL_THREADS": value}):
        assert outcome.value == "0"
        assert (
            f"SHMCOLL_THREADS={value} is not one of auto, nor a number from 0 to 256; ignored"
            in (outcome.output)
        )
