# SPDX-License-Identifier: BSD-3-Clause
"""The backend ``ruler``: no collective, but always the same work, as a reference for other backends.

Machine speed drifts (clock, distance of caches, neighbours): an operation may become slower by a factor
of three within minutes. Another backend in the same run is not a good measure of that, because the time
of gloo also changes with its sockets and threads. The ruler replaces every operation by the parts that an
operation over shared memory has: some calls of torch, a flag to every other rank and back, and the bytes
once into shared memory and once out of another rank's. The ruler must never be tuned.
"""

from __future__ import annotations

import mmap
import os

import torch

from shmcoll.bench.run.calls import Call, Context, count_wrong
from shmcoll.bench.plan import Point
from shmcoll.bench.run.startline import BLOCK_BYTES, blocks_at

_FLAG_BYTES = 128  # at a block's beginning
_CHUNK_BYTES = BLOCK_BYTES // 2 - _FLAG_BYTES  # two, so that one is read while the next is written
_TORCH_CALLS = 3
_LOOKS = 1000  # before it gives up its CPU


class Ruler:
    """One rank's part."""

    def __init__(self, fd: int, rank: int, world_size: int) -> None:
        memory = mmap.mmap(fd, world_size * BLOCK_BYTES, offset=blocks_at(world_size))
        self._words = memoryview(memory).cast("q")
        self._mine = rank * BLOCK_BYTES // 8
        self._data = torch.frombuffer(memory, dtype=torch.uint8).view(world_size, BLOCK_BYTES)
        self._turn = 0

    def prepare(self, point: Point, context: Context) -> Call:
        mine, members = context.members[context.rank], context.members
        next_one = members[(context.rank + 1) % len(members)]
        others = [rank * BLOCK_BYTES // 8 for rank in members if rank != mine]
        given = torch.zeros(point.size_bytes, dtype=torch.uint8)
        got, small = torch.zeros_like(given), torch.zeros(8)
        pieces = [
            (begin, min(_CHUNK_BYTES, point.size_bytes - begin))
            for begin in range(0, max(1, point.size_bytes), _CHUNK_BYTES)
        ]

        def run(i: int) -> None:
            for _ in range(_TORCH_CALLS):
                small.neg_()
            for begin, size in pieces:
                self._turn += 1
                place = _FLAG_BYTES + self._turn % 2 * _CHUNK_BYTES
                self._data[mine, place : place + size].copy_(given[begin : begin + size])
                self._meet(others)
                got[begin : begin + size].copy_(self._data[next_one, place : place + size])

        def take(salt: int) -> int:
            wrong = count_wrong(got, torch.full_like(got, _byte(next_one, salt)))
            given.zero_()
            got.zero_()
            return wrong

        return Call(run, lambda salt: given.fill_(_byte(mine, salt)), take)

    def _meet(self, others: list[int]) -> None:
        """Waits until all ranks are in this turn. Then one of the two halves may be written again: a rank
        that has come to a turn has read what the turn before it wrote."""
        words, turn = self._words, self._turn
        words[self._mine] = turn
        for other in others:
            looks = 0
            while words[other] < turn:
                looks += 1
                if looks > _LOOKS:
                    os.sched_yield()


def _byte(rank: int, salt: int) -> int:
    """Returns the byte that a rank gives."""
    return (rank * 31 + salt * 7 + 1) & 0xFF
