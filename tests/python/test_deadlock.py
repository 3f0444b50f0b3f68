# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that wait for one another in a cycle: one of them names every wait of it, and right programs are not
accused."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ranks import Rank, outcomes, seconds

WORLD = 4
LATE_S = 0.5
TIMEOUT_S = 4 * LATE_S
EDGE = re.compile(
    r'rank (\d+) \(pid \d+\) waits in (.+?)(?: #\d+)?(?: \(.*?\))? on group "\w+" for rank (\d+)'
)
ALL = tuple(range(WORLD))

# What a rank does in groups that all ranks have made; it raises when its time is over.
Plot = Callable[[int, dict[str, Any]], None]


def ring(size: int) -> tuple[list[tuple[int, ...]], Plot]:
    """Rank i waits for rank i + 1 in a group of these two."""
    groups = [tuple(sorted((i, (i + 1) % size))) for i in range(size)]

    def plot(rank: int, made: dict[str, Any]) -> None:
        if rank < size:
            dist.barrier(made[f"g{rank}"])

    return groups, plot


def send_ring(size: int) -> tuple[list[tuple[int, ...]], Plot]:
    """The messages are too long to be sent without the receiver's help."""

    def plot(rank: int, made: dict[str, Any]) -> None:
        if rank < size:
            dist.send(torch.ones(1 << 20), (rank + 1) % size, made["g0"], tag=5)

    return [tuple(range(size))], plot


def call_and_message(rank: int, made: dict[str, Any]) -> None:
    if rank == 0:
        dist.recv(torch.ones(1), 1, made["g0"])
    else:
        dist.all_reduce(torch.ones(3), group=made["g0"])


def asynchronous(rank: int, made: dict[str, Any]) -> None:
    """Halves of the ranks call two groups in another order: four cycles."""
    order = ("g0", "g1") if rank < 2 else ("g1", "g0")
    dist.all_reduce(torch.ones(3), group=made[order[0]], async_op=True).wait()
    dist.all_reduce(torch.ones(3), group=made[order[1]])


def straggler(rank: int, made: dict[str, Any]) -> None:
    time.sleep(2 * LATE_S if rank == 3 else 0)
    dist.all_reduce(torch.ones(3), group=made["g0"])


def busy_elsewhere(rank: int, made: dict[str, Any]) -> None:
    """Rank 1's library thread waits for rank 0, which waits for what rank 1 calls a moment later."""
    if rank == 0:
        dist.barrier(made["g0"])
        dist.barrier(made["g1"])
    if rank == 1:
        work = dist.barrier(made["g1"], async_op=True)
        time.sleep(2 * LATE_S)
        dist.barrier(made["g0"])
        work.wait()


def two_threads(rank: int, made: dict[str, Any]) -> None:
    """A group for each thread: rank 1's second thread is late, while its first one waits for rank 0."""

    def second() -> None:
        dist.barrier(made["g1"])
        time.sleep(2 * LATE_S if rank == 1 else 0)
        dist.barrier(made["g1"])

    def first() -> None:
        if rank == 0:
            time.sleep(3 * LATE_S)
        dist.barrier(made["g0"])

    if rank < 2:
        threads = [threading.Thread(target=each) for each in (first, second)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()


PLANTED: dict[str, tuple[list[tuple[int, ...]], Plot]] = {
    "ring of 2": ([(0, 1), (0, 1)], ring(2)[1]),
    "ring of 3": ring(3),
    "ring of 4": ring(4),
    "sends of 2": send_ring(2),
    "sends of 3": send_ring(3),
    "sends of 4": send_ring(4),
    "a call and a message": ([ALL], call_and_message),
    "asynchronous": ([ALL, ALL], asynchronous),
}
RIGHT: dict[str, tuple[list[tuple[int, ...]], Plot]] = {
    "a straggler": ([ALL], straggler),
    "busy elsewhere": ([(0, 1), (0, 1)], busy_elsewhere),
    "two threads": ([(0, 1), (0, 1)], two_threads),
}
EDGES = {
    f"{name} of {size}": {(str(i), call, str((i + 1) % size)) for i in range(size)}
    for name, call in (("ring", "barrier"), ("sends", "send"))
    for size in (2, 3, 4)
}


def play(rank: Rank, name: str, groups: list[tuple[int, ...]], plot: Plot, wait: float) -> str:
    """How it ended. The rank's output has a line with the name before it."""
    made = {
        f"g{i}": dist.new_group(list(members), timeout=seconds(wait))
        for i, members in enumerate(groups)
    }
    dist.barrier()
    print(f"BEGIN {name}", file=sys.stderr, flush=True)
    try:
        plot(rank.rank, made)
        return "ended"
    except RuntimeError as error:
        return str(error)
    finally:
        dist.barrier()


def said_in(outputs: list[str], name: str) -> list[str]:
    """The lines about deadlocks that all ranks have logged in that case."""
    found = []
    for output in outputs:
        part = output.split(f"BEGIN {name}\n", 1)[1].split("BEGIN ", 1)[0]
        found += [line for line in part.splitlines() if "DEADLOCK" in line]
    return found


def test_one_rank_names_every_wait_of_a_cycle_and_no_right_program_is_accused() -> None:
    def body(rank: Rank) -> dict[str, str]:
        rank.init()
        ends = {name: play(rank, name, *each, TIMEOUT_S) for name, each in PLANTED.items()}
        return ends | {name: play(rank, name, *each, 60) for name, each in RIGHT.items()}

    found = outcomes(WORLD, body, env={"SHMCOLL_LATE_MS": str(int(LATE_S * 1000))})
    outputs = [each.output for each in found]
    assert all(each.value for each in found), found
    for name in PLANTED:
        lines = said_in(outputs, name)
        assert len(lines) == 1, (name, lines)
        edges = EDGE.findall(lines[0])
        assert len(edges) == lines[0].count(" waits in ") > 1, lines
        # Each of them waits for the next one, and the last one for the first.
        assert [edge[2] for edge in edges] == [edge[0] for edge in [*edges[1:], edges[0]]], lines
        assert set(edges) == EDGES.get(name, set(edges)), lines
    for name in RIGHT:
        assert said_in(outputs, name) == [], name
        assert all(each.value[name] == "ended" for each in found), found


def test_a_cycle_may_raise() -> None:
    groups, plot = ring(3)

    def body(rank: Rank) -> list[str]:
        """The error of each of two cycles: the second one is for the ranks that are told of the first one's end."""
        rank.init()
        made = {f"g{i}": dist.new_group(list(members)) for i, members in enumerate(groups)}
        made["all"] = dist.new_group([0, 1, 2])
        errors = []
        for each in (
            lambda: send_ring(3)[1](rank.rank, {"g0": made["all"]}),
            lambda: plot(rank.rank, made),
        ):
            try:
                each()
            except RuntimeError as error:
                errors.append(str(error))
        return errors

    env = {"SHMCOLL_LATE_MS": str(int(LATE_S * 1000)), "SHMCOLL_ON_DEADLOCK": "raise"}
    found = outcomes(3, body, env=env)
    assert all(len(each.value) == 2 for each in found), found
    for case, told in enumerate((3, 1)):
        raised = [each.value[case] for each in found if "DEADLOCK: rank " in each.value[case]]
        assert len(raised) == told and "failed: DEADLOCK: rank " in "".join(raised), found
        assert sum(text.count(" waits in ") == 3 for text in raised) >= 1, raised
