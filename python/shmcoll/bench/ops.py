# SPDX-License-Identifier: BSD-3-Clause
"""Operations and dtypes on paper, in the terms of nccl-tests. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """How big an element is, and which whole numbers it holds exactly.

    Checks use multiples of ``scale`` up to ``scale * max_exact``: every sum is exact, and the
    scale makes all bytes of the wide types take part.
    """

    name: str
    bytes: int
    max_exact: int
    scale: int = 1


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float32", 4, 2**24),
        DType("float64", 8, 2**31 - 1, scale=2**21 + 1),
        DType("float16", 2, 2**11),
        DType("bfloat16", 2, 2**8),
        DType("int8", 1, 2**7 - 1),
        DType("uint8", 1, 2**8 - 1),
        DType("int32", 4, 2**31 - 1),
        DType("int64", 8, 2**31 - 1, scale=2**31 + 1),
    )
}

# What nccl-tests calls them.
DTYPE_ALIASES = {"float": "float32", "double": "float64", "half": "float16"}


@dataclass(frozen=True)
class Op:
    """One collective.

    ``size`` of a point is what nccl-tests calls size: the bytes one rank sends or ends with,
    whichever is more. ``count`` is what one rank contributes, in elements.
    """

    name: str
    redop: str | None
    moves_data: bool
    rooted: bool  # the root is rank 0, 1, ... in turn
    shares: Callable[[int], int]  # of world_size: into how many counts a size is divided
    busbw_factor: Callable[[int], float]  # of world_size: bus bandwidth = size / time * factor

    def count(self, size_bytes: int, elem_bytes: int, world_size: int) -> int:
        """Elements for the wanted size: rounded down, but at least one."""
        if not self.moves_data:
            return 0
        return max(1, size_bytes // (elem_bytes * self.shares(world_size)))

    def size(self, count: int, elem_bytes: int, world_size: int) -> int:
        """The size in bytes that a count really makes."""
        return count * elem_bytes * self.shares(world_size)


OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op(
            "all_reduce",
            redop="sum",
            moves_data=True,
            rooted=False,
            shares=lambda world_size: 1,
            busbw_factor=lambda world_size: 2 * (world_size - 1) / world_size,
        ),
        Op(
            "broadcast",
            redop=None,
            moves_data=True,
            rooted=True,
            shares=lambda world_size: 1,
            busbw_factor=lambda world_size: 1.0,
        ),
        Op(
            "all_gather",
            redop=None,
            moves_data=True,
            rooted=False,
            shares=lambda world_size: world_size,
            busbw_factor=lambda world_size: (world_size - 1) / world_size,
        ),
        Op(
            "barrier",
            redop=None,
            moves_data=False,
            rooted=False,
            shares=lambda world_size: 1,
            busbw_factor=lambda world_size: 0.0,
        ),
    )
}
