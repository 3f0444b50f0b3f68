# SPDX-License-Identifier: BSD-3-Clause
"""How hypothesis writes programs. What it draws first is what it shrinks to."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st

import oracle
from program import HOWS, KINDS, End, Kind, Message, Program, Step
from values import LAYOUTS

Draw = Any

MOST_BYTES = 2_400_000  # of one rank's side of a step
MOST_ELEMENTS = 300_000
MOST_ENTRIES = 6000
CHUNK_BYTES = 128 << 10  # of all cells of an exchange slot; a cell has 1/n of it, in whole lines
# Where one way of doing things ends and the next begins (coll/select.c, proto/arena.c, layout.h).
EDGES = (
    0,
    6,
    12,
    16,
    40,
    48,
    64,
    88,
    2048,
    4096,
    8192,
    16384,
    32768,
    65536,
    CHUNK_BYTES,
    4 * 65536,
)

REDUCIBLE = tuple(str(dtype).removeprefix("torch.") for dtype in oracle.REDUCIBLE)
OPAQUE = ("complex32", "float8_e8m0fnu", "bits8", "bits16")
# Not for functional calls: torch copies there, and cannot copy these.
OPAQUE_TO_TORCH = ("float4_e2m1fn_x2", "uint4", "int3", "qint8", "qint32")
SETTINGS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("SHMCOLL_ARENA_KIB", "0"),),
    (("SHMCOLL_ARENA_KIB", "200"),),
    (("SHMCOLL_THREADS", "2"),),
    (("SHMCOLL_TUNING", "staging.non_temporal_from=0"),),
    (
        (
            "SHMCOLL_TUNING",
            "chunk=4k,turn=2k,depth=2,broadcast_slot=2k,broadcast_depth=2,flag_latency=1,"
            "prefetch_up_to=never",
        ),
    ),
    (("SHMCOLL_TUNING", "inline=0,small=0,small_of_two=0"),),
    # Each wait of a millisecond looks for a cycle, and a wrong verdict fails its call.
    (("SHMCOLL_LATE_MS", "1"), ("SHMCOLL_ON_DEADLOCK", "raise"), ("SHMCOLL_LOG", "off")),
    # Over several hosts; those of the second kind are of different sizes if there are more than three ranks.
    (("SHMCOLL_FAKE_HOSTS", "2x2"), ("GLOO_SOCKET_IFNAME", "lo"), ("SHMCOLL_LOG", "off")),
    (("SHMCOLL_FAKE_HOSTS", "3x1"), ("GLOO_SOCKET_IFNAME", "lo"), ("SHMCOLL_LOG", "off")),
)
OVER_HOSTS = tuple(setting for setting in SETTINGS if dict(setting).get("SHMCOLL_FAKE_HOSTS"))
# Of groups over several hosts.
OPTIONS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("order", "rank"),),
    (("partials", "wide"),),
    (("order", "rank"), ("partials", "wide")),
)
NAMES = tuple(KINDS)


def _align_up(value: int, step: int) -> int:
    return -(-value // step) * step


@st.composite
def counts(draw: Draw, itemsize: int, world: int, most: int) -> int:
    """Elements: log-uniform, or at an edge, or one element from it."""
    which = draw(st.integers(0, 2))
    if which == 0:
        power = draw(st.integers(0, 18))
        count = draw(st.integers((1 << power) // 2, 1 << power))
    else:
        cell = _align_up(-(-CHUNK_BYTES // world), 64)
        edges = EDGES + tuple(k * cell for k in (1, 2, 3)) + (3 * CHUNK_BYTES,)
        count = draw(st.sampled_from(edges)) // itemsize
        if which == 2:  # of the blocks of all ranks together
            count = -(-count // world)
        count += draw(st.sampled_from((0, 1, -1)))
    return max(0, min(count, most))


@st.composite
def shapes(draw: Draw, itemsize: int, world: int, most: int) -> tuple[int, ...]:
    count = draw(counts(itemsize, world, most))
    form = draw(st.integers(0, 5))
    if count == 1 and form >= 3:
        return ()
    if form <= 2:
        return (count,)
    inner = {3: (2,), 4: (5,), 5: (3, 2)}[form]
    return (count // math.prod(inner), *inner)


@st.composite
def _ends(draw: Draw, kind: Kind) -> tuple[End, ...]:
    if not kind.asynchronous or draw(st.booleans()):
        return (End(),)
    # No barrier tells a rank that a message it dropped has come; and a sparse tensor gets its
    # entries when somebody looks.
    looks = kind.size in ("messages", "entries")
    hows = tuple(how for how in HOWS if how != "drop") if looks else HOWS
    one = st.builds(End, st.sampled_from(hows), st.integers(0, 6)) | st.just(End())
    return tuple(draw(st.lists(one, min_size=1, max_size=3)))


def _most(kind: Kind, itemsize: int, world: int) -> int:
    most = min(MOST_ELEMENTS, MOST_BYTES // itemsize)
    return most // world if kind.blocks else most


def _dtypes(kind: Kind, form: str) -> tuple[str, ...]:
    if kind.reduces:
        return REDUCIBLE
    return REDUCIBLE + OPAQUE + (() if form == "functional" else OPAQUE_TO_TORCH)


def _ops(name: str, form: str, dtype: str) -> list[str]:
    wanted = [op for op in oracle.NAMES if oracle.supported(getattr(torch, dtype), op)]
    if name == "all_reduce_sparse":
        return [op for op in wanted if op in ("sum", "avg")]
    refused = set()
    if form == "functional":  # it names the op by a word
        refused.add("premul_sum")
    if dtype.startswith("complex") and (name.startswith("all_reduce") or form == "functional"):
        refused.add("product")  # by torch itself; or it hands the parts on as if they were reals
    return [op for op in wanted if op not in refused]


@st.composite
def _matrix(draw: Draw, itemsize: int, world: int, sources: int) -> tuple[tuple[int, ...], ...]:
    """Rows from each source to each rank; some are empty, one may be much larger."""
    small = st.integers(0, 6)
    rows = [draw(st.lists(small, min_size=world, max_size=world)) for _ in range(sources)]
    scale = draw(st.sampled_from((1, 1, 7, 150, 1000, 5000)))
    scale = min(scale, MOST_BYTES // (itemsize * 6 * world * 5))
    rows = [[scale * count for count in row] for row in rows]
    if draw(st.booleans()):
        i, j = draw(st.integers(0, sources - 1)), draw(st.integers(0, world - 1))
        rows[i][j] = draw(counts(itemsize, world, MOST_ELEMENTS // world))
    return tuple(map(tuple, rows))


@st.composite
def _entries(draw: Draw, itemsize: int, world: int) -> dict[str, Any]:
    """Of a sparse tensor: few places, of which most come twice, or many."""
    sizes = draw(st.sampled_from(((20,), (300,), (40, 30), (1000, 70), (3, 1, 4))))
    rest = draw(st.sampled_from(((), (3,), (0,), (2, 2))))
    bytes_of_one = 8 + math.prod(rest) * itemsize  # with its place
    some = counts(bytes_of_one, world, MOST_ENTRIES)
    return {
        "shapes": (sizes, rest),
        "counts": (tuple(draw(st.lists(some, min_size=1, max_size=3))),),
    }


@st.composite
def _messages(draw: Draw, form: str, itemsize: int, world: int) -> tuple[Message, ...]:
    most = 1 if form in ("blocking", "any") else 6
    made = []
    for _ in range(draw(st.integers(1, most))):
        src = draw(st.integers(0, world - 1))
        dst = draw(st.integers(0, world - 1))
        if src == dst and form in ("blocking", "any"):  # its receive would come after its send
            dst = (dst + 1) % world
        count = draw(counts(itemsize, world, _most(KINDS["exchange"], itemsize, world)))
        made.append(Message(src, dst, count, draw(st.integers(0, 2))))
    return tuple(made)


@st.composite
def steps(draw: Draw, sizes: tuple[int, ...], names: tuple[str, ...]) -> Step:
    """sizes: of the groups."""
    group = draw(st.integers(0, len(sizes) - 1))
    world = sizes[group]
    name = draw(st.sampled_from(names))
    kind = KINDS[name]
    more: dict[str, Any] = {"form": draw(st.sampled_from(kind.forms))}
    if name == "exchange" and world == 1:
        more["form"] = "posted"
    dtype = draw(st.sampled_from(_dtypes(kind, more["form"])))
    itemsize = getattr(torch, dtype).itemsize
    if kind.reduces:
        more["op"] = draw(st.sampled_from(_ops(name, more["form"], dtype)))
    if kind.rooted:
        more["root"] = draw(st.integers(0, world - 1))
    if kind.size == "shape":
        most = _most(kind, itemsize, world)
        parts = draw(st.integers(1, kind.tensors))
        drawn = [draw(shapes(itemsize, world, most // parts)) for _ in range(parts)]
        if kind.blocks and more["form"] == "functional":
            # torch multiplies the first dimension and does not ask whether there is one.
            drawn = [shape or (1,) for shape in drawn]
        more["shapes"] = tuple(drawn)
    elif kind.size in ("counts", "lengths"):
        more["shapes"] = (draw(st.sampled_from(((), (2,), (3, 1)))),)
        sources = world if kind.size == "counts" else 1  # the others give as much
        more["counts"] = draw(_matrix(itemsize, world, sources))
    elif kind.size == "entries":
        more.update(draw(_entries(itemsize, world)))
    elif kind.size == "objects":
        most = st.integers(0, 40) | st.sampled_from((0, 48, 8192, 70_000))
        more["counts"] = (tuple(draw(st.lists(most, min_size=1, max_size=3))),)
    elif kind.size == "messages":
        more["messages"] = draw(_messages(more["form"], itemsize, world))
    ends = draw(_ends(kind))
    if kind.repeats and more["form"] == "direct" and draw(st.integers(0, 3)) == 3:
        more["repeat"] = draw(st.integers(2, 3))
    delays = draw(st.sampled_from(((0,), (0,), (0,), (0, 0.3), (1, 0, 0), (0, 2, 0.1))))
    layouts = tuple(draw(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3)))
    return Step(name, group, dtype=dtype, ends=ends, delays_ms=delays, layouts=layouts, **more)


@st.composite
def programs(
    draw: Draw,
    names: tuple[str, ...] = NAMES,
    settings_from: tuple[tuple[tuple[str, str], ...], ...] = SETTINGS,
) -> Program:
    """names: of the kinds of steps."""
    world = draw(st.integers(2, 5))
    member = st.integers(0, world - 1)
    some = st.sets(member, min_size=1).map(sorted).map(tuple)
    groups = tuple(draw(st.lists(some, max_size=3)))
    threads = (0,)
    if groups and draw(st.booleans()):
        threads = tuple(draw(st.lists(st.integers(0, 1), min_size=2, max_size=4)))
    settings = draw(st.sampled_from(settings_from))
    options = draw(st.sampled_from(OPTIONS if settings in OVER_HOSTS else ((),)))
    if ("order", "rank") in options:
        names = tuple(name for name in names if name != "all_reduce_sparse")  # has none of floats
    sizes = (world, *map(len, groups))
    length = draw(st.sampled_from((1, 6, 12)))
    made = draw(st.lists(steps(sizes, names), min_size=length, max_size=2 * length))
    seed = draw(st.integers(0, 9999))
    return Program(world, groups, threads, settings, seed, options, tuple(made))
