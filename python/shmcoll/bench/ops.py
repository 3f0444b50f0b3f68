# SPDX-License-Identifier: BSD-3-Clause
"""Operations and dtypes on paper, in the terms of nccl-tests. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """How big an element is, and which whole numbers it holds exactly.

    Checks use multiples of ``scale`` up to ``scale * max_exact``: every sum is exact, and the
    scale makes all bytes of the wide types take part. bool, whose sum is "or", holds 0 and 1.
    """

    name: str
    bytes: int
    max_exact: int
    scale: int = 1
    part: str | None = None  # the dtype of the two numbers of a complex one


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
        DType("int16", 2, 2**15 - 1),
        DType("uint16", 2, 2**16 - 1),
        DType("uint32", 4, 2**31 - 1, scale=2),
        DType("uint64", 8, 2**31 - 1, scale=2**32 + 1),
        DType("complex64", 8, 2**24, part="float32"),
        DType("complex128", 16, 2**31 - 1, scale=2**21 + 1, part="float64"),
        DType("bool", 1, 1),
        DType("float8_e4m3fn", 1, 2**4),
        DType("float8_e5m2", 1, 2**3),
        DType("float8_e4m3fnuz", 1, 2**4),
        DType("float8_e5m2fnuz", 1, 2**3),
    )
}

# What nccl-tests calls them.
DTYPE_ALIASES = {"float": "float32", "double": "float64", "half": "float16"}


def _one(world_size: int) -> int:
    return 1


def _each(world_size: int) -> int:
    return world_size


def _all(world_size: int) -> float:
    return 1.0


def _others(world_size: int) -> float:
    return (world_size - 1) / world_size


def _both_ways(world_size: int) -> float:
    return 2 * _others(world_size)


@dataclass(frozen=True)
class Op:
    """One operation.

    ``size`` of a point is what nccl-tests calls size: the bytes one rank sends or ends with,
    whichever is more. ``count`` is how many elements one rank has for another. In place: the rank's
    own block lies in the tensor of all blocks, or there is one tensor only.
    """

    name: str
    shares: Callable[[int], int]  # of world_size: into how many counts a size is divided
    busbw_factor: Callable[[int], float]  # of world_size: bus bandwidth = size / time * factor
    redop: str | None = None
    root: str | None = None  # "gives" or "takes"; it is rank 0, 1, ... in turn
    places: tuple[str, ...] = ("out",)  # where the result may be; the first is the natural one
    moves_data: bool = True
    trips: int = 1  # how often an iteration does it, one after the other

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
        Op("all_reduce", _one, _both_ways, redop="sum", places=("in",)),
        Op("broadcast", _one, _all, root="gives", places=("in",)),
        Op("reduce", _one, _all, redop="sum", root="takes", places=("in",)),
        Op("all_gather", _each, _others, places=("out", "in")),
        Op("reduce_scatter", _each, _others, redop="sum", places=("out", "in")),
        Op("all_to_all", _each, _others),
        Op("gather", _each, _others, root="takes"),
        Op("scatter", _each, _others, root="gives"),
        Op("sendrecv", _one, _all),
        Op("ping_pong", _one, _all, trips=2),
        Op("barrier", _one, lambda world_size: 0.0, places=("-",), moves_data=False),
    )
}

DEFAULT_OPS = ("all_reduce", "broadcast", "all_gather", "barrier")
