# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: the settings of a run, and the points they amount to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from shmcoll.bench.arguments import meant
from shmcoll.bench.ops import DTYPE_ALIASES, DTYPES, OPS, Op
from shmcoll.bench.topology import NONE

OVERLAP_COLUMNS = ("op", "compute", "hidden")
COLUMNS = ("p99", "min", "max", "cv")  # that may stand next to the median
ROOF = "roof"  # a column too, but one that needs ranks of its own
RULER = "ruler"  # a backend that is none (ruler.py)
BOUNDS = "bounds"  # in the place of a backend: these ranks
CACHES = ("hot", "cold")
MODES = ("latency", "throughput", "skew")
WINDOW = 8  # operations under way, with --mode throughput
DEFAULT_SKEW_US = 100.0
MAX_ITERATIONS = 500  # per round: five rounds give 2500 samples, enough for a p99
MATRIX_BYTES = (
    8,
    1 << 20,
)  # of the messages of --matrix: the time of one, the bandwidth of the other
MATRIX_S = 2.4  # seconds for all its points together
PLACES = ("natural", "in", "out", "both")

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SUFFIX = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Unsupported(Exception):
    """A backend cannot do this at all: no fault of it, and none of the run."""


@dataclass(frozen=True)
class Settings:
    """A run, as asked for on the command line."""

    backends: tuple[str, ...]
    imports: list[str]  # modules that every rank imports first
    nproc: int
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    min_bytes: int
    max_bytes: int
    factor: int
    rounds: int
    iterations: int | None  # per round; None: as many as fit into point_time_s
    point_time_s: float  # all backends and rounds of a point together
    timeout_s: float
    preset: str | None = None  # what the defaults of the above were taken from
    columns: tuple[str, ...] = ()  # of COLUMNS
    place: str = "natural"  # of PLACES
    cache: str = "hot"  # of CACHES
    mode: str = "latency"  # of MODES
    overlap: bool = False
    groups: int = 1  # that run the operation at once; rank r is in group r % groups
    skew_us: float = DEFAULT_SKEW_US  # how late a rank comes, with --mode skew
    matrix: bool = False  # each pair of ranks alone, the others asleep
    bind: str = NONE  # of topology.BINDINGS

    @property
    def round_iterations(self) -> int:
        """At most, in a round."""
        return MAX_ITERATIONS if self.iterations is None else self.iterations

    @property
    def world_size(self) -> int:
        """Ranks of one operation: those of a group, or of a pair."""
        return 2 if self.matrix else self.nproc // self.groups

    @property
    def window(self) -> int:
        """How many operations are pending at the same time."""
        return WINDOW if self.mode == "throughput" else 1

    @property
    def iteration_ops(self) -> int:
        """How often one iteration runs the operation."""
        return 2 if self.overlap else self.window

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """The columns of each backend after the median and the bandwidth."""
        return self.columns + (OVERLAP_COLUMNS if self.overlap else ())

    @property
    def ways(self) -> list[str]:
        """Lists the settings that make the numbers differ from those of a plain run."""
        ways = ["one pair at a time"] if self.matrix else []
        if self.mode == "skew":
            ways.append(f"mode skew ({self.skew_us:g} us)")
        elif self.mode != "latency":
            ways.append(f"mode {self.mode}")
        if self.overlap:
            ways.append("overlap")
        if self.cache != "hot":
            ways.append(f"cache {self.cache}")
        if self.bind != NONE:
            ways.append(f"bind {self.bind}")
        return ways

    @property
    def labels(self) -> tuple[str, ...]:
        """The backends' names, made unique: a backend may be measured against itself."""
        labels: list[str] = []
        for name in self.backends:
            again = self.backends[: len(labels)].count(name)
            labels.append(f"{name}#{again + 1}" if again else name)
        return tuple(labels)


@dataclass(frozen=True)
class Point:
    """One row: an operation at one size and dtype."""

    op: str
    dtype: str | None
    count: int
    size_bytes: int
    place: str = "-"  # "in" or "out": where the result is
    pair: tuple[int, int] | None = None  # the ranks that do it, if not all: the first one begins

    @property
    def name(self) -> str:
        return self.op if self.pair is None else f"{self.op}:{self.pair[0]}-{self.pair[1]}"


def parse_size(text: str) -> int:
    """``8``, ``64K``, ``1MiB``: bytes. As in nccl-tests, K is 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a size: {text!r} (8, 64K, 1M, 2G)")
    return int(match[1]) * _SUFFIX[match[2].lower()]


def parse_ops(text: str) -> tuple[str, ...]:
    return _parse_names("operation", text, OPS, {})


def parse_dtypes(text: str) -> tuple[str, ...]:
    return _parse_names("dtype", text, DTYPES, DTYPE_ALIASES)


def parse_columns(text: str) -> tuple[str, ...]:
    return COLUMNS if text == "all" else _parse_names("column", text, (*COLUMNS, ROOF), {})


def split_list(text: str) -> tuple[str, ...]:
    """``a,b`` as a tuple; blanks around the names and empty names are dropped."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def sizes(settings: Settings) -> list[int]:
    """min_bytes, min_bytes * factor, ... up to max_bytes; of a matrix these two alone."""
    if settings.matrix:
        return [settings.min_bytes, settings.max_bytes]
    out = []
    size = settings.min_bytes
    while size <= settings.max_bytes:
        out.append(size)
        if settings.factor < 2 or size == 0:
            break
        size *= settings.factor
    return out


def points(settings: Settings) -> list[Point]:
    """Returns all rows of a run in order. Sizes that round to the same count appear once."""
    out: dict[Point, None] = {}
    for op in (OPS[name] for name in settings.ops):
        places = _places(op, settings.place)
        if not op.moves_data:
            out.update(dict.fromkeys(Point(op.name, None, 0, 0, place) for place in places))
            continue
        for dtype in settings.dtypes:
            for wanted in sizes(settings):
                for place in places:
                    out[point(op, dtype, wanted, settings.world_size, place)] = None
    if not settings.matrix:
        return list(out)
    return [replace(point, pair=pair) for pair in pairs(settings) for point in out]


def pairs(settings: Settings) -> list[tuple[int, int]]:
    """Returns all pairs of ranks, in both orders."""
    return list(permutations(range(settings.nproc), 2))


def matrix_point_s(nproc: int, sizes: int = len(MATRIX_BYTES)) -> float:
    """Seconds for a point of a matrix: the more ranks, the less for each pair."""
    return MATRIX_S / max(1, nproc * (nproc - 1) * sizes)


def _parse_names(
    what: str, text: str, known: Collection[str], aliases: Mapping[str, str]
) -> tuple[str, ...]:
    """A comma-separated list of known names without repetitions, or ``all``."""
    if text == "all":
        return tuple(known)
    names = tuple(dict.fromkeys(aliases.get(name, name) for name in split_list(text)))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None or not names:
        name = text if unknown is None else unknown
        raise ValueError(f"no {what} {name!r}{meant(name, (*known, *aliases))}")
    return names


def _places(op: Op, wanted: str) -> tuple[str, ...]:
    """The places of an operation that are asked for; there may be none."""
    if wanted == "natural":
        return op.places[:1]
    return tuple(place for place in op.places if wanted in ("both", place))


def point(op: Op, dtype: str, wanted_bytes: int, world_size: int, place: str) -> Point:
    """The row of an operation whose size is at most the wanted one."""
    elem_bytes = DTYPES[dtype].bytes
    count = op.count(wanted_bytes, elem_bytes, world_size)
    return Point(op.name, dtype, count, op.size(count, elem_bytes, world_size), place)
