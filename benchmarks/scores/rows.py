# SPDX-License-Identifier: BSD-3-Clause
"""What a program measured: one figure per round, and how the machine was in these rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# One way of a flag between two CPUs, in nanoseconds. Below, the two share an L3, or a core: 27 to 90
# were seen then, and 230 to 300 without one. How fast lines are read tells less: with an L3 50 GB/s
# on one machine and 21 on another, which reads 11 without.
NEAR_HOP_NS = 150.0


@dataclass(frozen=True)
class Row:
    """`metric` says what the values are; table.py's goals choose rows by it and the next fields."""

    metric: str
    op: str = ""
    size_bytes: int = 0
    ranks: int = 2
    rival: str = ""
    kind: str = ""  # what else tells it from its neighbours: a dtype and reduction, a model
    values: tuple[float, ...] = ()  # one per round
    modes: tuple[str, ...] = ()  # of the machine, one per round (mode_of); empty: nobody looked
    wrong: str = ""  # what was not as it must be

    @property
    def place(self) -> tuple[Any, ...]:
        """Everything that makes it the row it is."""
        return (self.metric, self.op, self.size_bytes, self.ranks, self.rival, self.kind)


def mode_of(hop_ns: Sequence[float]) -> str:
    """near: the CPUs share an L3; far: they do not; mixed: that changed meanwhile."""
    if not hop_ns:
        return "unknown"
    near = [ns <= NEAR_HOP_NS for ns in hop_ns]
    return "near" if all(near) else "mixed" if any(near) else "far"


def size_text(size_bytes: int) -> str:
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):g} {unit}"
    return f"{size_bytes} B"
