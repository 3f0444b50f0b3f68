# SPDX-License-Identifier: BSD-3-Clause
"""What memory allows while all ranks use it at once: the two bounds of the column ``roof``.

scale      x *= c in place, in float32, on a buffer of the row's size of each rank's own
exchange   all ranks read at once a block that another rank has just written; a rank writes into
           the block that it has just read, whose lines are its own

benchmarks/peers/bounds.c has the same bounds. Here the cost of the call from Python is measured and
subtracted. Each rank is bound to a CPU of its own: two ranks on one CPU exchange nothing. The ranks are
extra processes, since binding would help the backend whose ranks were bound.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from statistics import median
from time import monotonic_ns

import torch

from shmcoll.bench.run.startline import BLOCK_BYTES, StartLine, blocks_at

_EXCHANGE_TURNS = 41
_SCALE_TURNS = 5
_SCALE_BYTES = 4 << 20  # in a turn, or one pass
_SCALE_PASSES = 100  # at most
_CALLS = 41  # to see what one costs


class Bounds:
    """One rank's part."""

    def __init__(self, fd: int, rank: int, world_size: int, line: StartLine) -> None:
        self._rank, self._world_size, self._line = rank, world_size, line
        begin = blocks_at(world_size)
        self._memory = mmap.mmap(fd, world_size * BLOCK_BYTES, offset=begin)
        self._address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        libc = ctypes.CDLL(None)
        self._fill = libc.memset
        self._fill.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        self._find = libc.memchr  # reads all of it: there is no zero
        self._find.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        self._find.restype = ctypes.c_void_p
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})

    def measure(self, size_bytes: int) -> dict[str, list[float]]:
        """Nanoseconds of each turn."""
        return {"scale": self._scale(size_bytes), "exchange": self._exchange()}

    def _scale(self, size_bytes: int) -> list[float]:
        own = torch.ones(max(1, size_bytes // 4))
        passes = max(1, min(_SCALE_BYTES // size_bytes, _SCALE_PASSES))
        one = torch.ones(1)
        times = []
        for _ in range(1 + _SCALE_TURNS):
            self._line.wait()
            cost = _scaling(one, passes)
            self._line.wait()
            times.append(max(0.0, _scaling(own, passes) - cost))
        return times[1:]

    def _exchange(self) -> list[float]:
        blocks = [self._address + k * BLOCK_BYTES for k in range(self._world_size)]
        find = self._find
        cost = _cost(lambda: find(blocks[0], 0, 0))
        times = []
        for turn in range(_EXCHANGE_TURNS):
            mine = (self._rank + turn) % self._world_size
            theirs = blocks[(mine + 1) % self._world_size]
            self._line.wait()
            self._fill(blocks[mine], 1 + turn, BLOCK_BYTES)
            self._line.wait()
            begin = monotonic_ns()
            found = find(theirs, 0, BLOCK_BYTES)
            times.append(max(1.0, monotonic_ns() - begin - cost))
            assert found is None
        return times


def _scaling(values: torch.Tensor, passes: int) -> float:
    begin = monotonic_ns()
    for _ in range(passes):
        values.mul_(1.0)
    return (monotonic_ns() - begin) / passes


def _cost(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_CALLS):
        begin = monotonic_ns()
        call()
        times.append(monotonic_ns() - begin)
    return median(times)
