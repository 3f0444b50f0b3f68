# SPDX-License-Identifier: BSD-3-Clause
"""How many copies of its buffers a rank needs, and how they stay out of the caches.

With ``--cache cold`` the rank reads memory of twice the last level cache before each loop. Within
the loop, copies of twice the cache's size lie between two uses of the same buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from shmcoll.bench.machine import Machine
from shmcoll.bench.plan import Point, Settings

_SHARE = 2  # a half of the available memory
_ASSUMED_CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class Buffers:
    """How many buffers the points of a run need on a machine."""

    settings: Settings
    machine: Machine

    @property
    def sweep_bytes(self) -> int:
        """The memory that a rank reads through; as much as may go to the copies."""
        if self.settings.cache == "hot":
            return 0
        return min(self._enough_bytes, self._share_bytes // 2)

    def copies(self, point: Point) -> int:
        """The calls that take turns, each with buffers of its own."""
        fitting = self._share_bytes // 2 // (2 * point.size_bytes) if point.size_bytes else 1
        return max(self._least(point), min(self._wanted(point), fitting))

    def notes(self, points: list[Point]) -> list[str]:
        """Lines about what is not as cold as it should be."""
        if self.settings.cache == "hot":
            return []
        share = f"{self._share_bytes >> 20} MiB, a rank's share of half the free memory"
        lines = []
        if self.machine.cache_bytes is None:
            assumed = f"{_ASSUMED_CACHE_BYTES >> 20} MiB assumed"
            lines.append(f"# NOTE: the last level cache is not in /sys; {assumed}")
        if self.sweep_bytes < self._enough_bytes:
            lines.append(f"# NOTE: not cold: twice the last level cache is too much for {share}")
        short = [p.size_bytes for p in points if self.copies(p) < self._wanted(p)]
        if short:
            lines.append(
                f"# NOTE: not all cold from {min(short)} bytes to {max(short)}: enough copies of "
                f"the buffers are too much for {share}"
            )
        return lines

    def _least(self, point: Point) -> int:
        """Operations that are pending at the same time have their own buffers. A point without bytes needs one."""
        if not point.size_bytes:
            return 1
        return max(self.settings.window, 2 if self.settings.cache == "cold" else 1)

    def _wanted(self, point: Point) -> int:
        if self.settings.cache == "hot" or not point.size_bytes:
            return self._least(point)
        enough = -(-self._enough_bytes // point.size_bytes)
        runs = self.settings.round_iterations * self.settings.iteration_ops
        return max(self._least(point), min(enough, runs))

    @property
    def _enough_bytes(self) -> int:
        """Caches do not always drop what is oldest: twice their size is safe."""
        return 2 * (self.machine.cache_bytes or _ASSUMED_CACHE_BYTES)

    @property
    def _share_bytes(self) -> int:
        """Bytes that one rank may use for one backend: all backends have their buffers at the same time."""
        ranks = self.settings.nproc * len(self.settings.backends)
        return self.machine.memory_available_bytes // _SHARE // ranks
