# SPDX-License-Identifier: BSD-3-Clause
"""The goals. What an operation's bytes are: docs/notebook/performance.md, and benchmarks/peers/peers.h."""

from __future__ import annotations

from scores.judge import Goal
from scores.rows import size_text

KIB, MIB = 1 << 10, 1 << 20
MPIS = ("openmpi", "mpich")
OTHERS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
ONECCL_OTHERS = OTHERS[:-2]  # it has no gather and no scatter
# The reductions that mean nothing else than the float32 they are compared with.
HALVES = ("bfloat16 sum", "float16 sum")


# The same operation with no library around it (benchmarks/peers/bare.c).
BARE = "bare loops"


def powers(first: int, last: int, factor: int = 2) -> tuple[int, ...]:
    out = [first]
    while out[-1] * factor <= last:
        out.append(out[-1] * factor)
    return tuple(out)


def _c_all_reduce(first: int, last: int, bound: float) -> Goal:
    return Goal(
        f"C: all_reduce against the better MPI, {size_text(first)} to {size_text(last)}",
        "c-all_reduce",
        "ratio",
        bound,
        ops=("all_reduce",),
        sizes=powers(first, last),
        rivals=MPIS,
        limit="ratio limit",
        limit_of=BARE,
    )


C_GOALS = (
    _c_all_reduce(8, 16 * KIB, 2.5),
    _c_all_reduce(32 * KIB, 16 * MIB, 1.8),
    _c_all_reduce(32 * MIB, 64 * MIB, 2.2),
    Goal(
        "C: barrier, in ways of a flag",
        "c-all_reduce",
        "hops",
        1.5,
        unit="hops",
        at_most=True,
        ops=("barrier",),
    ),
    Goal(
        "C: all_reduce, part of the roofline, 128 KiB to 64 MiB",
        "c-all_reduce",
        "roof",
        0.80,
        unit="%",
        ops=("all_reduce",),
        sizes=powers(128 * KIB, 64 * MIB),
        limit="roof limit",
        limit_of=BARE,
    ),
    Goal(
        "C: all_reduce, part of scaling in place, 64 MiB, shared L3",
        "c-all_reduce",
        "scale",
        0.85,
        unit="%",
        ops=("all_reduce",),
        sizes=(64 * MIB,),
        near=True,
        rounds=10,
        limit="scale limit",
        limit_of=BARE,
    ),
    Goal(
        "C: bytes/s of bfloat16 and float16 sums, of float32's",
        "c-dtypes",
        "of float32",
        0.90,
        unit="%",
        ops=("all_reduce",),
        kinds=HALVES,
    ),
    Goal(
        "C: bytes/s of every other dtype and reduction, of float32's",
        "c-dtypes",
        "of float32",
        0.75,
        unit="%",
        ops=("all_reduce",),
        other_kinds=(*HALVES, "float32 sum"),
        reasons={  # docs/notebook/kernels.md
            f"float8_* {redop}": "each element passes through 32 bits: 70 to 100 instructions for 64"
            for redop in ("sum", "avg", "product", "premul_sum")
        },
    ),
    Goal(
        "C: other operations against the better MPI, every size to 32 MiB",
        "c-operations",
        "ratio",
        1.0,
        ops=OTHERS,
        sizes=powers(8, 32 * MIB),
        rivals=MPIS,
        limit="ratio limit",
        limit_of=BARE,
    ),
    Goal(
        "C: other operations against the better MPI, the median size",
        "c-operations",
        "ratio",
        1.5,
        ops=OTHERS,
        sizes=powers(8, 32 * MIB),
        rivals=MPIS,
        limit="ratio limit",
        limit_of=BARE,
        over_sizes="median",
    ),
    Goal(
        "C: ping-pong against the better MPI, to 8 KiB",
        "c-messages",
        "ratio",
        1.3,
        ops=("ping",),
        sizes=powers(8, 8 * KIB),
        rivals=MPIS,
        limit="ratio limit",
        limit_of=BARE,
    ),
    Goal(
        "C: stream against the better MPI, from 64 KiB",
        "c-messages",
        "ratio",
        1.3,
        ops=("stream",),
        sizes=powers(64 * KIB, 32 * MIB),
        rivals=MPIS,
        limit="ratio limit",
        limit_of=BARE,
    ),
)


def _intel(what: str, ops: tuple[str, ...], bound: float, over_sizes: str = "every") -> Goal:
    return Goal(
        f"C: {what} against Intel MPI, {'every size' if over_sizes == 'every' else 'the median size'} to 8 MiB",
        "c-intel",
        "ratio",
        bound,
        ops=ops,
        sizes=powers(8, 8 * MIB, 4),
        rivals=("intelmpi",),
        limit="ratio limit",
        limit_of=BARE,
        over_sizes=over_sizes,
    )


INTEL_GOALS = (
    _intel("all_reduce", ("all_reduce",), 1.7),
    _intel("other operations and messages", (*OTHERS, "ping", "stream"), 1.0),
    _intel("other operations and messages", (*OTHERS, "ping", "stream"), 1.5, "median"),
)
ONECCL_GOALS = (
    Goal(
        "C: all collectives against oneCCL, every size to 8 MiB",
        "c-oneccl",
        "ratio",
        1.5,
        ops=("all_reduce", *ONECCL_OTHERS),
        sizes=powers(8, 8 * MIB, 4),
        rivals=("oneccl",),
        limit="ratio limit",
        limit_of=BARE,
    ),
)


def _crowd(ranks: int, op: str, sizes: tuple[int, ...], bound: float, what: str) -> Goal:
    return Goal(
        f"C: {ranks} ranks on 2 CPUs, {what} against Open MPI that yields",
        f"c-{ranks}-ranks",
        "ratio",
        bound,
        ops=(op,),
        sizes=sizes,
        ranks=ranks,
        rivals=("openmpi",),
    )


CROWD_GOALS = (
    _crowd(4, "barrier", (), 1.0, "barrier"),
    _crowd(4, "all_reduce", (8,), 1.0, "all_reduce of 8 B"),
    _crowd(4, "all_reduce", powers(64 * KIB, 64 * MIB), 1.5, "all_reduce, 64 KiB to 64 MiB"),
    Goal(
        "C: 4 ranks on 2 CPUs, time of a size over that of the one before it",
        "c-4-ranks",
        "growth",
        3.0,
        at_most=True,
        ops=("all_reduce",),
        sizes=(12, *powers(16, 64 * MIB)),
        ranks=4,
    ),
    _crowd(8, "barrier", (), 1.0, "barrier"),
    _crowd(8, "all_reduce", (8,), 1.0, "all_reduce of 8 B"),
)

MESSAGES_TOO = (*OTHERS, "sendrecv")


def _gloo(first: int, last: int, bound: float, what: str, near: bool = False) -> Goal:
    return Goal(
        f"Python: all_reduce against gloo, {what}",
        "python-all_reduce",
        "gloo ratio",
        bound,
        ops=("all_reduce",),
        sizes=powers(first, last),
        near=near,
        limit="gloo limit",
        limit_of="a backend that does nothing, and the C library",
    )


PYTHON_GOALS = (
    Goal(
        "Python: all_reduce, 8 B to 4 KiB, over do-nothing backend + C time",
        "python-floor",
        "over floor",
        1.10,
        at_most=True,
        ops=("all_reduce",),
        sizes=powers(8, 4 * KIB),
        limit="over floor limit",
        limit_of="a backend that checks nothing and calls the C library",
    ),
    _gloo(8, 8 * KIB, 50, "to 8 KiB"),
    _gloo(16 * KIB, 64 * KIB, 30, "to 64 KiB"),
    _gloo(128 * KIB, MIB, 20, "to 1 MiB"),
    _gloo(32 * MIB, 32 * MIB, 6, "32 MiB"),
    _gloo(32 * MIB, 32 * MIB, 8, "32 MiB, shared L3", near=True),
    Goal(
        "Python: other operations against gloo, to 4 MiB",
        "python-operations",
        "gloo ratio",
        5,
        ops=MESSAGES_TOO,
        sizes=powers(8, 4 * MIB),
        limit="gloo bare limit",
        limit_of=f"{BARE} in C",
    ),
    Goal("Python: barrier against gloo", "python-operations", "gloo ratio", 5, ops=("barrier",)),
    Goal(
        "Python: other operations above 4 MiB, over a copy of their bytes",
        "python-copies",
        "over copy",
        1.5,
        at_most=True,
        ops=MESSAGES_TOO,
        sizes=powers(8 * MIB, 32 * MIB),
        limit="over copy limit",
        limit_of=f"{BARE} in C",
    ),
)


def _vllm(op: str, sizes: tuple[int, ...], bound: float) -> Goal:
    span = " to ".join(dict.fromkeys((size_text(sizes[0]), size_text(sizes[-1]))))
    return Goal(
        f"direct: {op} of bf16 against vLLM's operator, {span}",
        "python-direct",
        "ratio",
        bound,
        ops=(op,),
        sizes=sizes,
        rivals=("vllm",),
        kinds=("bf16",),
    )


def _deepspeed(ranks: int) -> Goal:
    return Goal(
        f"direct: all_reduce of bf16 against DeepSpeed's operator, {ranks} ranks",
        "python-direct",
        "ratio",
        1.5,
        ops=("all_reduce",),
        sizes=(8, 4 * KIB, 8 * KIB, *powers(32 * KIB, 8 * MIB, 4)),
        ranks=ranks,
        rivals=("deepspeed",),
        kinds=("bf16",),
    )


def _direct(size: int, metric: str, bound: float, what: str) -> Goal:
    return Goal(
        f"direct: all_reduce from Python, {size_text(size)}{what}",
        "python-direct",
        metric,
        bound,
        unit="us" if metric == "direct us" else "x",
        at_most=metric == "direct us",
        ops=("all_reduce",),
        sizes=(size,),
        kinds=("fp32",),
    )


DIRECT_GOALS = (
    _direct(8, "direct us", 0.8, ""),
    _direct(4 * KIB, "direct us", 1.1, ""),
    _direct(8, "torch / direct", 3.2, ", torch's call over it"),
    _direct(4 * KIB, "torch / direct", 2.5, ", torch's call over it"),
    _vllm("all_reduce", (4 * KIB, 8 * KIB), 2.5),
    _vllm("all_reduce", (32 * KIB, 32 * KIB), 2.0),
    _vllm("all_reduce", powers(128 * KIB, 8 * MIB, 4), 1.6),
    _vllm("all_gather", (4 * KIB, 8 * KIB, *powers(32 * KIB, 8 * MIB, 4)), 2.5),
    _deepspeed(2),
    _deepspeed(4),
)

HOG_GOALS = tuple(
    Goal(
        f"Python: {ranks} ranks next to as many busy loops as CPUs, each of 100 cells against gloo",
        "hogs",
        "gloo next to hogs",
        1.0,
        ops=("barrier", "broadcast_object_list"),
        ranks=ranks,
    )
    for ranks in (2, 4)
)


def _parked(ranks: int, metric: str, bound: float, unit: str, what: str) -> Goal:
    name = f"a rank that waits in all_reduce or recv, {ranks} ranks: {what}"
    ops = ("all_reduce", "recv")
    return Goal(name, "parked", metric, bound, unit, at_most=True, ops=ops, ranks=ranks)


PARKED_GOALS = tuple(
    _parked(ranks, *goal)
    for ranks in (2, 8)
    for goal in (
        ("wake-ups", 2.0, "a second", "wake-ups"),
        ("parked CPU", 0.0002, "%", "part of a CPU"),
        ("told", 1.0, "ms", "told of a kill, median"),
        ("told p99", 10.0, "ms", "told of a kill, p99"),
    )
)

MODELS = ("digits CNN", "MLP of 20 M")


def _verdicts(kind: str, what: str) -> Goal:
    return Goal(what, "verdicts", "right verdicts", 0.95, unit="%", kinds=(kind,))


PROGRAM_GOALS = (
    Goal(
        "DDP: a step against gloo's, buckets of 1 to 64 MiB",
        "ddp",
        "gloo step",
        1.0,
        ops=("DDP step",),
        sizes=powers(MIB, 64 * MIB, 4),
        kinds=MODELS,
    ),
    Goal(
        "DDP: a step over its computation, with a core to spare",
        "ddp",
        "over compute",
        1.05,
        at_most=True,
        ops=("DDP step",),
        sizes=powers(MIB, 64 * MIB, 4),
        kinds=MODELS,
        cpus=16,
        limit="over compute limit",
        limit_of="a process group that does nothing",
    ),
    Goal(
        "start: init_process_group of 8 ranks, beyond the Store's time",
        "start",
        "init",
        5.0,
        unit="ms",
        at_most=True,
        ranks=8,
    ),
    Goal("start: new_group of 8 ranks", "start", "new_group", 2.0, "ms", at_most=True, ranks=8),
    Goal(
        "start: shared memory of 8 ranks, of 4 MiB + 64 KiB per rank",
        "start",
        "shared memory",
        1.0,
        unit="%",
        at_most=True,
        ranks=8,
    ),
    Goal("bench: the default run", "bench-time", "seconds", 20.0, unit="s", at_most=True),
    _verdicts("one build", "bench: compare calls two runs of one build equal"),
    _verdicts("planted", "bench: compare calls a run that is a fifth slower slower"),
)

GOALS = (
    C_GOALS
    + INTEL_GOALS
    + ONECCL_GOALS
    + CROWD_GOALS
    + PYTHON_GOALS
    + DIRECT_GOALS
    + HOG_GOALS
    + PARKED_GOALS
    + PROGRAM_GOALS
)
