# SPDX-License-Identifier: BSD-3-Clause
"""Where the ranks of a team wait for a common start.

The start must not depend on the backend that is being timed: one whose barrier lets the ranks go
one by one would pay for that in its other numbers. So rank 0 waits until all have arrived and
announces an instant of the machine's monotonic clock, some microseconds ahead; every rank leaves
when the clock has reached it. Ranks that have a CPU each start within 0.1 us of one another. With
the instant, rank 0 says how many operations to run until the next start, 0 to stop.

A rank that waits for the others gives up its CPU at every look: a rank that only spins would take
the CPU from the helper threads of a backend that is still finishing.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from time import monotonic_ns

_LINE_WORDS = 16  # 128 bytes: one writer each
_LEAD_NS = 5_000
MAX_COUNT = 0xFF  # the low bits of the start word
_PATIENCE_NS = 600_000_000_000


def create(world_size: int) -> int:
    """The memory the ranks share: a file descriptor to hand on to them."""
    fd = os.memfd_create("shmcoll-bench")
    os.ftruncate(fd, 8 * _LINE_WORDS * (2 * world_size + 1))
    return fd


class StartLine:
    """One rank's view. Words are 64 bits; each has one writer."""

    def __init__(self, fd: int, rank: int, world_size: int) -> None:
        self._words = memoryview(mmap.mmap(fd, 0)).cast("q")
        self._rank = rank
        self._arrived = [_LINE_WORDS * r for r in range(world_size)]
        self._entered = [_LINE_WORDS * (world_size + r) for r in range(world_size)]
        self._start = _LINE_WORDS * 2 * world_size
        self._turn = 0
        self._visit = 0

    def wait(self, count: int = 1) -> int:
        """Returns on all ranks at the same instant, with rank 0's count (0 to MAX_COUNT)."""
        words = self._words
        self._turn += 1
        if self._rank == 0:
            for word in self._arrived[1:]:
                self._until_not(word, self._turn - 1)
            start = (monotonic_ns() + _LEAD_NS) & ~MAX_COUNT
            words[self._start] = start | count
        else:
            last = words[self._start]
            words[self._arrived[self._rank]] = self._turn
            self._until_not(self._start, last)
            count = words[self._start] & MAX_COUNT
            start = words[self._start] & ~MAX_COUNT
        while monotonic_ns() < start:
            pass
        return count

    def enter(self) -> None:
        """Notes that this rank is about to call a barrier."""
        self._visit += 1
        self._words[self._entered[self._rank]] = self._visit

    def missing(self, members: Sequence[int]) -> int:
        """How many of them have not entered the barrier that this rank has left."""
        return sum(self._words[self._entered[rank]] < self._visit for rank in members)

    def _until_not(self, word: int, old: int) -> None:
        """Returns when the word is no longer what it was."""
        words = self._words
        deadline = monotonic_ns() + _PATIENCE_NS
        while words[word] == old:
            os.sched_yield()
            if monotonic_ns() > deadline:
                raise TimeoutError("the other ranks did not come to the start")
