# SPDX-License-Identifier: BSD-3-Clause
"""What ``tune`` tries: keys of SHMCOLL_TUNING, values, and the operations that show a difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from shmcoll.bench.ops import OPS
from shmcoll.bench.plan import Point, parse_size, point

Values = Mapping[str, float]  # key -> bytes (or a number), of a group


@dataclass(frozen=True)
class Tunable:
    """A key. The sizes are those of one rank's input, as the library counts them."""

    name: str
    ops: str
    sizes: str
    tried: str
    # "up to" or "from": the value is a size, and others than those between do not care.
    limit: str = ""
    ranks: range = range(2, 1 << 30)  # the worlds in which the key means something

    def values(self, default: float) -> tuple[str, ...]:
        """The values that are tried and compared with the default."""
        return tuple(text for text in self.tried.split() if number(text) != default)

    def points(self, world_size: int, default: float, value: float) -> list[Point]:
        """Returns the points at which the value makes another choice than the default."""
        return [
            _point(op, size, world_size)
            for op in self.ops.split()
            for size in map(parse_size, self.sizes.split())
            if not self.limit or self._reaches(size, default) != self._reaches(size, value)
        ]

    def _reaches(self, size: int, value: float) -> bool:
        return size <= value if self.limit == "up to" else size >= value


_TWO, _FEW, _MANY = range(2, 3), range(2, 5), range(5, 1 << 30)
_NOT_TWO, _FOUR = range(3, 1 << 30), range(4, 1 << 30)
_SMALL = "1k 2k 4k 8k"
_LARGE = "128k 1m 4m"

TUNABLES = (
    Tunable(
        "small_of_two", "all_reduce reduce_scatter all_gather", _SMALL, "512 2k 8k", "up to", _TWO
    ),
    Tunable(
        "all_reduce.direct_exchange",
        "all_reduce",
        "16k 32k 64k 128k",
        "8k 16k 64k 128k",
        "up to",
        _TWO,
    ),
    Tunable("small", "all_reduce all_gather", "512 2k 8k", "256 1k 4k", "up to", _NOT_TWO),
    Tunable("all_reduce.two_phase_from", "all_reduce", "512 2k 8k", "1k 2k 8k never", "", _NOT_TWO),
    Tunable("reduce.two_phase_from", "reduce", "512 2k 8k", "4k 32k never", "", _NOT_TWO),
    Tunable("reduce.scatter_gather_from", "reduce", "16k 64k 256k 1m", "16k 128k never", "", _FOUR),
    Tunable("turn", "all_reduce", _LARGE, "16k 32k 128k", "", _TWO),
    Tunable(
        "all_reduce.unpipelined_from",
        "all_reduce",
        "2m 4m 8m 16m 32m",
        "1m 8m never",
        "from",
        _TWO,
    ),
    Tunable("chunk", "all_reduce", _LARGE, "64k 128k 256k 512k", "", _NOT_TWO),
    Tunable("depth", "all_reduce", _LARGE, "2 4"),
    Tunable("broadcast_slot", "broadcast", _LARGE, "16k 32k 128k"),
    Tunable("broadcast_depth", "broadcast", _LARGE, "4 8 16 32", "", _FEW),
    Tunable("broadcast_depth", "broadcast", _LARGE, "2 8", "", _MANY),
    Tunable("flag_latency", "broadcast", "64k 256k 1m", "512 1k 8k 128k", "", _TWO),
    Tunable(
        "staging.non_temporal_from",
        "broadcast",
        "64k 256k 1m",
        "128k 512k never",
        "from",
        _TWO,
    ),
    Tunable(
        "staging.non_temporal_from",
        "broadcast",
        "16k 32k 64k 256k 1m",
        "16k 128k 512k never",
        "from",
        _NOT_TWO,
    ),
    Tunable(
        "output.non_temporal_from", "all_to_all", "8m 16m 32m", "4m 8m 32m never", "from", _TWO
    ),
    Tunable("prefetch_up_to", "broadcast", "256 2k 16k 64k", "0 512 4k 64k", "up to", _TWO),
)


def of_world(world_size: int) -> tuple[Tunable, ...]:
    return tuple(tunable for tunable in TUNABLES if world_size in tunable.ranks)


def number(text: str) -> float:
    """Returns the number of a value in the notation of SHMCOLL_TUNING; "never" is infinite."""
    return inf if text == "never" else float(parse_size(text))


def text(value: float) -> str:
    """The shortest way to write it."""
    if value == inf:
        return "never"
    for shift, unit in ((30, "g"), (20, "m"), (10, "k")):
        if value and value % (1 << shift) == 0:
            return f"{int(value) >> shift}{unit}"
    return str(int(value))


def _point(op: str, input_bytes: int, world_size: int) -> Point:
    size = input_bytes * world_size if op == "all_gather" else input_bytes
    if op == "reduce_scatter":
        size //= 2  # the limit of reduce_scatter is half of the key
    return point(OPS[op], "float32", size, world_size, OPS[op].places[0])
