# SPDX-License-Identifier: BSD-3-Clause
"""Where the ranks of a team wait for a common start.

The start must not depend on the backend that is timed: a barrier that releases the ranks one by one
would make the other numbers of its backend worse. So rank 0 waits until all have arrived and
announces an instant of the machine's monotonic clock, some microseconds ahead; every rank leaves
when the clock has reached it. Ranks that have a CPU each start within 0.1 us of one another. With
the instant, rank 0 says how many operations to run until the next start, 0 to stop.

Some ranks may have a start of their own while the others sleep. The first of these ranks announces it.

A waiting rank yields its CPU after every look. A rank that only spins would take the CPU from the
helper threads of a backend that is still finishing.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from copy import copy
from time import monotonic_ns

_LINE_WORDS = 16  # 128 bytes: one writer each
_LEAD_NS = 5_000
MAX_COUNT = 0xFF  # the low bits of the start word
_PATIENCE_NS = 600_000_000_000


BLOCK_BYTES = 256 << 10  # for each rank, after the line; only bounds.py touches them


def create(world_size: int) -> int:
    """The memory the ranks share: a file descriptor to hand on to them."""
    fd = os.memfd_create("shmcoll-bench")
    os.ftruncate(fd, blocks_at(world_size) + world_size * BLOCK_BYTES)
    return fd


def blocks_at(world_size: int) -> int:
    """Returns the offset of the blocks, which begin at a page."""
    line_bytes = 8 * _LINE_WORDS * (2 * world_size + 1)
    return -(-line_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


class StartLine:
    """One rank's view. Words are 64 bits; each has one writer."""

    def __init__(self, fd: int, rank: int, world_size: int) -> None:
        self._words = memoryview(mmap.mmap(fd, 0)).cast("q")
        self._rank = rank
        self._arrived = [_LINE_WORDS * r for r in range(world_size)]
        self._members: Sequence[int] = range(world_size)
        self._seen = [0] * world_size  # of those words, by who announces the start
        self._entered = [_LINE_WORDS * (world_size + r) for r in range(world_size)]
        self._start = _LINE_WORDS * 2 * world_size
        self._visit = 0

    def among(self, members: Sequence[int]) -> StartLine:
        """The line of these ranks alone, made while no rank is on its way to a start. That of all ranks
        has missed something then, and is not to be used again."""
        line = copy(self)
        line._members = members
        line._seen = [self._words[word] for word in self._arrived]
        return line

    def wait(self, count: int = 1) -> int:
        """Returns on all ranks at the same instant, with the first one's count (0 to MAX_COUNT)."""
        words, mine = self._words, self._arrived[self._rank]
        if self._rank == self._members[0]:
            for rank in self._members[1:]:
                self._seen[rank] = self._until_not(self._arrived[rank], self._seen[rank])
            start = (monotonic_ns() + _LEAD_NS) & ~MAX_COUNT
            words[self._start] = start | count
        else:
            last = words[self._start]
            words[mine] += 1
            told = self._until_not(self._start, last)
            count, start = told & MAX_COUNT, told & ~MAX_COUNT
        while monotonic_ns() < start:
            pass
        return count

    def enter(self) -> None:
        """Notes that this rank is about to call a barrier."""
        self._visit += 1
        self._words[self._entered[self._rank]] = self._visit

    def missing(self, members: Sequence[int]) -> int:
        """Returns how many members have not entered the barrier that this rank has left."""
        return sum(self._words[self._entered[rank]] < self._visit for rank in members)

    def _until_not(self, word: int, old: int) -> int:
        """Returns when the word is no longer what it was, with what it is."""
        words = self._words
        deadline = monotonic_ns() + _PATIENCE_NS
        while (new := words[word]) == old:
            os.sched_yield()
            if monotonic_ns() > deadline:
                raise TimeoutError("the other ranks did not come to the start")
        return new
