# SPDX-License-Identifier: BSD-3-Clause
"""What the threads of two ranks do at once, for any Python: `python tests/free_threaded/many_threads.py 100`.

The number is how often each thread does its part. On a free-threaded Python it is an error if the library turns
the interpreter's lock on. PYTHON_GIL=0 keeps it off where triton, which torch loads, would turn it on. The
last line says what ran.
"""

from __future__ import annotations

import functools
import gc
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import ranks
import torch
import torch.distributed as dist
from threads import in_threads

import shmcoll

WORLD = 2
THREADS = 4
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def at_once(part: Callable[[int], None], count: int = THREADS) -> None:
    """Runs part(0) ... part(count - 1), each on a thread."""
    in_threads(*(functools.partial(part, index) for index in range(count)))


def check(tensor: torch.Tensor, value: float) -> None:
    assert torch.all(tensor == value), (tensor, value)


def calls_of_one_group() -> None:
    """All calls are alike, so it does not matter which thread's meets which."""

    def part(_: int) -> None:
        for _ in range(ROUNDS):
            tensor = torch.ones(100)
            dist.all_reduce(tensor)
            check(tensor, WORLD)

    at_once(part)


def direct_calls_of_one_group() -> None:
    def part(_: int) -> None:
        comm = shmcoll.direct()  # the first of all threads makes it
        for _ in range(ROUNDS):
            for reduce in (comm.all_reduce, shmcoll.all_reduce):
                tensor = torch.ones(100)
                reduce(tensor)
                check(tensor, WORLD)

    at_once(part)


def calls_of_many_groups(groups: list[Any]) -> None:
    def part(index: int) -> None:
        group, rank = groups[index], dist.get_rank()
        comm = shmcoll.direct(group)
        for turn in range(ROUNDS):
            tensor = torch.full((turn + 1,), float(index))
            comm.broadcast(tensor, turn % WORLD)
            dist.all_reduce(tensor, group=group)
            check(tensor, WORLD * index)
            sent = dist.isend(tensor, 1 - rank, group=group)
            received = torch.zeros(turn + 1)
            dist.recv(received, 1 - rank, group=group)
            sent.wait()
            check(received, WORLD * index)
            with dist._coalescing_manager(group=group):
                dist.all_reduce(tensor, group=group)
            check(tensor, WORLD * WORLD * index)

    at_once(part)


def works_that_threads_share() -> None:
    """Each thread asks each work everything, and the last of them drops it."""
    for _ in range(ROUNDS):
        tensors = [torch.ones(100) for _ in range(THREADS)]
        works: list[Any] = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        shared = [list(works) for _ in range(THREADS)]
        works.clear()

        def part(index: int, shared: list[list[Any]] = shared) -> None:
            mine = shared[index]
            while mine:
                work = mine.pop()
                work.is_completed()
                future = work.get_future()
                work.wait()
                assert work.is_completed() and work.is_success()
                check(future.wait()[0], WORLD)

        at_once(part)
        for tensor in tensors:
            check(tensor, WORLD)


def works_without_an_owner() -> None:
    """Nobody keeps the works, nor their tensors; a call after them comes after them."""

    def part(_: int) -> None:
        for _ in range(ROUNDS):
            dist.all_reduce(torch.ones(100), async_op=True)

    at_once(part)
    gc.collect()
    dist.barrier()


def callbacks() -> None:
    got: list[float] = []

    def take(future: Any) -> None:
        got.append(float(future.value()[0][0]))

    def part(_: int) -> None:
        for _ in range(ROUNDS):
            work: Any = dist.all_reduce(torch.ones(100), async_op=True)
            work.get_future().then(take).wait()

    at_once(part)
    assert got == [WORLD] * THREADS * ROUNDS, got


def questions_meanwhile() -> None:
    """Threads that make no calls ask and set what a process has, while others call."""

    def part(index: int) -> None:
        for _ in range(ROUNDS):
            if index < 2:
                tensor = torch.ones(100)
                dist.all_reduce(tensor)
                check(tensor, WORLD)
            else:
                assert shmcoll.describe()["world_size"] == WORLD
                shmcoll.on_late(print)
                shmcoll.on_late(None)
                _ = shmcoll.Options(tuning="depth=4").tuning

    at_once(part)


def steps_of_ddp() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(ROUNDS):
        model(torch.full((1, 4), 2.0 * dist.get_rank())).sum().backward()
        check(model.module.weight.grad, 1)
        model.zero_grad()


def has_lock() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def body(rank: ranks.Rank) -> tuple[bool, bool]:
    """Is the lock on: before DDP, and after it?"""
    rank.init()
    calls_of_one_group()
    direct_calls_of_one_group()
    calls_of_many_groups([dist.new_group(list(range(WORLD))) for _ in range(THREADS)])
    works_that_threads_share()
    works_without_an_owner()
    callbacks()
    questions_meanwhile()
    first = has_lock()
    steps_of_ddp()  # DDP loads Dynamo, and that loads triton
    return first, has_lock()


def is_free_threaded() -> bool:
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


if __name__ == "__main__":
    locks = ranks.run(WORLD, body, limit=300)
    assert all(first == (not is_free_threaded()) for first, _ in locks), f"the lock is on: {locks}"
    how = "with" if locks[0][1] else "without"
    print(f"right with glue {shmcoll._glue.NAME}, {how} the interpreter's lock, {ROUNDS} rounds")
