# SPDX-License-Identifier: BSD-3-Clause
"""Warm ranks: processes forked once that play program after program.

Every program makes its own groups in them, so nothing but the processes is shared: a program fails
alone as it failed here. After a failure the processes are thrown away.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing import connection
from typing import Any

import player
from program import Program
from ranks import Rank, Run, freeze_heap

LIMIT_S = float(os.environ.get("SHMCOLL_FUZZ_LIMIT_S", "60"))  # of one program; then it hangs
GRACE_S = 3.0  # for the other ranks, when one has told of a failure
MOST_POOLS = 12


class Failure(AssertionError):
    """The program went wrong."""


class Pool:
    def __init__(self, world: int, settings: tuple[tuple[str, str], ...]) -> None:
        self.world = world
        self._played = 0
        self._pipes = [multiprocessing.Pipe() for _ in range(world)]
        self._run = Run(world, self._serve, ())
        freeze_heap()
        self._run.serve("tcp")
        for rank in range(world):
            self._run.fork(rank, dict(settings), threads=False)
        for _, theirs in self._pipes:
            theirs.close()

    def _serve(self, rank: Rank) -> None:
        """In the child."""
        pipe = self._pipes[rank.rank][1]
        while True:
            number, program = pipe.recv()
            try:
                told = player.play(program, rank, number)
            except BaseException as error:
                told = player.told(error, rank.rank)
            pipe.send(told)

    def play(self, program: Program, limit: float = LIMIT_S) -> str:
        """What went wrong, or ""."""
        self._played += 1
        self._run.board[: len(self._run.board)] = memoryview(bytes(self._run.board.nbytes)).cast(
            "q"
        )
        for ours, _ in self._pipes:
            ours.send((self._played, program))
        told: dict[int, str] = {}
        deadline = time.monotonic() + limit
        ends = {os.pidfd_open(pid): rank for rank, pid in self._run.pids.items()}
        try:
            while len(told) < self.world and self._gather(told, ends, deadline):
                if any(told.values()):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        finally:
            for end in ends:
                os.close(end)
        return self._complaint(told, limit)

    def _gather(self, told: dict[int, str], ends: dict[int, int], deadline: float) -> bool:
        """Takes what ranks tell, or their deaths; False when the time is over."""
        pipes = {self._pipes[r][0]: r for r in range(self.world) if r not in told}
        waited: list[Any] = [*pipes, *(end for end, r in ends.items() if r not in told)]
        ready = connection.wait(waited, max(0.0, deadline - time.monotonic()))
        for one in ready:
            rank = pipes.get(one, -1) if not isinstance(one, int) else ends[one]
            pipe = self._pipes[rank][0]
            try:
                told[rank] = pipe.recv() if pipe.poll() else f"rank {rank} has ended\n"
            except EOFError:
                told[rank] = f"rank {rank} has ended\n"
        return bool(ready)

    def _complaint(self, told: dict[int, str], limit: float) -> str:
        # The ranks whose group failed come after the one that made it fail.
        wrong = sorted(filter(None, told.values()), key=lambda text: "DistBackendError" in text)
        if not wrong and len(told) == self.world:
            return ""
        silent = sorted(set(range(self.world)) - set(told))
        if silent and not wrong:
            text = f"a hang: ranks {silent} did not end in {limit} s"
            wrong.append(self._run.report_hang(text, native=True))
        else:
            wrong += [f"rank {r} had not ended when others had failed\n" for r in silent]
            wrong += [f"rank {r} printed: {self._run.output(r)}" for r in range(self.world)]
        return "\n".join(wrong)

    def end(self) -> None:
        for ours, _ in self._pipes:
            ours.close()
        self._run.end()


_pools: dict[tuple[int, tuple[tuple[str, str], ...]], Pool] = {}


def check(program: Program, limit: float = LIMIT_S) -> None:
    """Raises Failure."""
    key = (program.world, program.settings)
    pool = _pools.pop(key, None) or Pool(*key)
    _pools[key] = pool  # the last used is the last
    failed = True
    try:
        text = pool.play(program, limit)
        failed = bool(text)
    finally:
        if failed:
            _pools.pop(key).end()
    while len(_pools) > MOST_POOLS:
        _pools.pop(next(iter(_pools))).end()
    if text:
        raise Failure(text)


def end_all() -> None:
    while _pools:
        _pools.popitem()[1].end()
