# SPDX-License-Identifier: BSD-3-Clause
"""What a program measured: one figure per round, and how the machine was in these rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# How fast a core reads lines that another one has just stored. Above, the two share an L3: 50 GB/s
# and more were seen then, and 20 to 25 without one.
NEAR_GBS = 40.0


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


def mode_of(exchange_gbs: Sequence[float]) -> str:
    """near: the CPUs share an L3; far: they do not; mixed: that changed meanwhile."""
    if not exchange_gbs:
        return "unknown"
    near = [gbs >= NEAR_GBS for gbs in exchange_gbs]
    return "near" if all(near) else "mixed" if any(near) else "far"


def size_text(size_bytes: int) -> str:
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):g} {unit}"
    return f"{size_bytes} B"
