# SPDX-License-Identifier: BSD-3-Clause
"""The options of the command line, and what ``--help`` says."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from shmcoll.bench import machine, plan, topology
from shmcoll.bench.judge import compare, noise
from shmcoll.bench.show import outputs
from shmcoll.bench.arguments import Parser, checked, name_of
from shmcoll.bench.ops import DEFAULT_OPS, OPS
from shmcoll.bench.show.outputs import Outputs
from shmcoll.bench.plan import Settings
from shmcoll.bench.presets import PRESETS

_DAY = 86400
_MOST_RANKS = (
    1024  # each is a process: a slip of the finger shall not start more than a machine can hold
)

_EPILOG = """\
commands:
  compare OLD.json NEW.json   has the first backend become slower between two
                              runs? (compare --help)
  tune                        settings of shmcoll that are better here
                              (tune --help)

what the numbers mean:
  time     median over the rounds of the median of each round. A round is a
           tight loop. An iteration lasts until the last rank has its result.
           The root moves from rank to rank, so that no rank can run ahead. The
           Python call is included.
  place    out: the result has a tensor of its own. in: the result replaces the
           input; for all_gather and reduce_scatter the rank's block is then in
           the large tensor. ping_pong is one way of a message there and back,
           between ranks 0 and 1, 2 and 3, ... at the same time.
  p99, min, max, cv   of the iterations of all rounds; cv is standard deviation
           / mean, in percent
  busbw    size / time * factor, as nccl-tests: all_reduce 2(n-1)/n; broadcast,
           reduce, sendrecv and ping_pong 1; the others (n-1)/n. Their size is
           that of all blocks together.
  vs X     time of X / time of the first backend. Above 1 the first backend is
           faster. The backends take turns, A B A B; the ratio is the median
           over the pairs of adjacent rounds.
  roof     for all_reduce, the part of the time that memory needs: (x *= c of
           that size in place + size * 2(n-1)/n / the speed at which all ranks
           read what another rank has just written). Extra ranks, bound to
           CPUs, measure both in the same rounds.
  ~        the rounds disagree: their upper quartile is more than {disagree:g}x
           the lower one
  busy machine   other processes, or the host of this virtual machine, used
           more than {busy:.0%} of the CPUs while rounds were timed
  (45.0x)  a ratio whose rounds disagree, or from a busy machine. No geometric
           mean counts it. Where less than half of an operation's rows are
           left, the mean is withheld.
  #wrong   wrong elements (for a barrier: ranks that left it early), summed
           over all ranks and backends, in a check before and a check after the
           timing.

  --mode throughput   {window} asynchronous operations are pending, each with
           buffers of its own, and are then waited for. time is the time of the
           whole window / {window}.
  --mode skew      one rank calls --skew-us later than the others, another one
           in each iteration. time is from its call until the last rank has its
           result.
  --overlap        time is for both together; op and compute are for each
           alone. hidden is (op + compute - time) / the shorter one, for each
           round. Below 0 the two disturb each other.
  --matrix         one pair of ranks at a time; the others sleep. The rank of
           the line begins, the rank of the column answers, and time is half of
           there and back. Each backend has a table of the time of -b and one
           of the bandwidth of -e, coloured from the best pair to the worst.
           All pairs together take {matrix_s:g} s, so more ranks leave less for
           each pair. --point-time is for one pair and size.
  --groups N       rank r is in group r modulo N. Sizes and busbw are for one
           group; an iteration of each group counts.
  --cache cold     operations take turns over copies of the buffers. Together
           the copies are twice as large as the last level cache, and as much
           other memory is read before. Torch's tensor objects are also cold.
           At most half of the available memory is used; a note says if that is
           too little.

  --bind HOW       none: a rank runs where the kernel puts it, on the CPUs that
           this process has. core: on the CPUs of a core of its own; cores of
           one NUMA node, then of the next one. spread: on the CPUs of a core
           of its own, NUMA nodes in turn. node: on all CPUs of a NUMA node,
           nodes in turn. More ranks than cores or nodes begin again with the
           first one. The threads of a backend are bound with its rank.

presets:
{presets}

under torchrun, mpirun or srun the first process starts all ranks, and the
others end at once; on several hosts, where torchrun must have started them,
each process is a rank

exit code: 0 good; 1 wrong values, or a backend failed during the run; 2 bad
usage, or the first or all backends cannot be used; 130 interrupted (finished
rows are printed and in the files); 141 the reader of standard output has
ended, as head does (finished rows are in the files)

examples:
  python -m shmcoll.bench
  python -m shmcoll.bench -g 4 -o all_reduce -b 1K -e 64M -f 4 -d bfloat16
  python -m shmcoll.bench --backends gloo,gloo      # is a ratio noise?
  python -m shmcoll.bench -g 4 --matrix --html out.html
  python -m shmcoll.bench --csv out.csv --html out.html --plot out.png
  python -m shmcoll.bench --backends shmcoll,ruler --rounds 60 --json new.json
  python -m shmcoll.bench compare old.json new.json
  python -m shmcoll.bench -g 8 --preset paper       # many minutes
"""


def parse(argv: Sequence[str] | None, nproc: int | None = None) -> tuple[Settings, Outputs]:
    """The settings, and where results go. ``nproc`` is the default of -g."""
    parser = Parser(
        prog="python -m shmcoll.bench",
        description="Times collectives of torch.distributed backends side by side on this host.",
        epilog=_EPILOG.format(
            window=plan.WINDOW,
            matrix_s=plan.MATRIX_S,
            presets=_presets(),
            disagree=noise.DISAGREE,
            busy=noise.BUSY_SHARE,
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options]\n       %(prog)s compare OLD.json NEW.json\n       %(prog)s tune",
    )
    parser.commands = ("compare", "tune")
    _add_what(parser.add_argument, nproc or max(2, min(machine.usable_cpus(), 8)))
    _add_form(parser.add_argument)
    _add_how(parser.add_argument)
    outputs.add_options(parser)
    args = parser.parse_args(argv)
    if args.preset is not None:
        parser.set_defaults(**PRESETS[args.preset].options())
        args = parser.parse_args(argv)
    if args.matrix:
        if problem := _no_matrix(args, parser.get_default):
            parser.error(problem)
        parser.set_defaults(ops=("ping_pong",), **_matrix_defaults(args.nproc))
        args = parser.parse_args(argv)
    if args.min_bytes > args.max_bytes:
        parser.error(f"-b, {args.min_bytes} bytes, is larger than -e, {args.max_bytes}")
    if args.skew_us is None:
        args.skew_us = plan.DEFAULT_SKEW_US
    elif args.mode != "skew":
        parser.error("--skew-us goes with --mode skew")
    if args.overlap and args.mode != "latency":
        parser.error(f"--overlap has no --mode {args.mode}")
    if args.nproc % args.groups:
        parser.error(f"--groups {args.groups}: -g {args.nproc} is not a multiple of it")
    if args.groups > 1 and args.nproc < 2 * args.groups:
        parser.error(f"--groups {args.groups}: at least 2 ranks each, so -g {2 * args.groups}")
    if plan.ROOF in args.columns and (problem := _no_roof(args)):
        parser.error(problem)
    if not args.backends:
        parser.error("--backends: at least one")
    out = outputs.take(vars(args))
    settings = Settings(**vars(args))
    if not plan.points(settings):
        parser.error(f"--place {settings.place}: no operation of {','.join(settings.ops)} has it")
    if problem := out.problem():
        parser.error(problem)
    return settings, out


def _no_matrix(args: argparse.Namespace, default: Callable[[str], object]) -> str | None:
    """Returns the error if an option does not go together with --matrix."""
    if args.preset is not None:
        return "--matrix has no --preset"
    if args.overlap:
        return "--matrix has no --overlap"
    for option in ("mode", "groups", "cache", "place", "columns"):
        value = getattr(args, option)
        if value != default(option):
            shown = ",".join(value) if isinstance(value, tuple) else value
            return f"--matrix has no --{option} {shown}"
    if args.ops not in (default("ops"), ("ping_pong",)):
        return f"--matrix is of ping_pong, not of -o {','.join(args.ops)}"
    if args.factor != default("factor"):
        return f"--matrix has two sizes, -b and -e, so no -f {args.factor}"
    if len(args.dtypes) > 1:
        return f"--matrix is of one dtype, not of -d {','.join(args.dtypes)}"
    if args.nproc < 2:
        return f"--matrix is of pairs: at least 2 ranks, not -g {args.nproc}"
    return None


def _no_roof(args: argparse.Namespace) -> str | None:
    """Returns the error if an option does not go together with the column roof."""
    if "all_reduce" not in args.ops:
        return f"--columns roof is of all_reduce, which is not in -o {','.join(args.ops)}"
    for option, plain in (("mode", "latency"), ("groups", 1), ("cache", "hot"), ("overlap", False)):
        if getattr(args, option) != plain:
            return f"--columns roof has no --{option} {getattr(args, option)}".removesuffix(" True")
    if not 2 <= args.nproc <= machine.usable_cpus():
        return f"--columns roof: 2 ranks and more, each with a CPU of its own, not -g {args.nproc}"
    if plan.BOUNDS in args.backends:
        return f"--columns roof: no backend may be called {plan.BOUNDS}"
    return None


def _matrix_defaults(nproc: int) -> dict[str, object]:
    small, large = plan.MATRIX_BYTES
    seconds = plan.matrix_point_s(nproc)
    return {"min_bytes": small, "max_bytes": large, "point_time_s": seconds}


def _presets() -> str:
    return "\n".join(
        textwrap.fill(preset.what, 79, initial_indent=f"  {name:15}", subsequent_indent=" " * 17)
        for name, preset in PRESETS.items()
    )


def _add_what(add: Callable[..., object], nproc: int) -> None:
    add(
        "--preset",
        type=name_of("preset", PRESETS),
        metavar="NAME",
        help="values for those of -o, -d, -b, -e and -f that are not given (see below)",
    )
    add(
        "--backends",
        type=plan.split_list,
        default=("shmcoll", "gloo"),
        metavar="A,B",
        help="names of backends, also openmpi, mpich and intelmpi (through mpi4py), and ruler, which always "
        "does the same work, for compare; the first one is compared with the others "
        "(default: shmcoll,gloo)",
    )
    add(
        "-g",
        "--nproc",
        type=_ranks,
        default=nproc,
        metavar="N",
        help=f"ranks to start (default: usable CPUs, 2 to 8, or the launcher's; here {nproc})",
    )
    add(
        "-o",
        "--ops",
        type=checked(plan.parse_ops),
        default=DEFAULT_OPS,
        metavar="OP,OP",
        help=f"all, or some of {', '.join(OPS)} (default: {', '.join(DEFAULT_OPS)})",
    )
    add(
        "-b",
        "--minbytes",
        type=checked(plan.parse_size),
        default=8,
        dest="min_bytes",
        metavar="SIZE",
        help="smallest size; K, M, G are 1024-based (default: 8)",
    )
    add(
        "-e",
        "--maxbytes",
        type=checked(plan.parse_size),
        default=2 << 20,
        dest="max_bytes",
        metavar="SIZE",
        help="largest size (default: 2M)",
    )
    add(
        "-f",
        "--factor",
        type=_positive,
        default=8,
        metavar="N",
        help="factor from one size to the next (default: 8)",
    )
    add(
        "-d",
        "--dtypes",
        type=checked(plan.parse_dtypes),
        default=("float32",),
        metavar="T,T",
        help="torch's names or nccl-tests', or all (default: float32)",
    )


def _add_form(add: Callable[..., object]) -> None:
    add(
        "--place",
        type=name_of("place", plan.PLACES),
        default="natural",
        metavar="PLACE",
        help=f"{', '.join(plan.PLACES)}: where the result is (default: natural, the first place an "
        "operation has)",
    )
    add(
        "--cache",
        type=name_of("cache", plan.CACHES),
        default="hot",
        metavar="CACHE",
        help="hot, or cold: the buffers are in no cache when an operation begins (default: hot)",
    )
    add(
        "--mode",
        type=name_of("mode", plan.MODES),
        default="latency",
        metavar="MODE",
        help=f"{', '.join(plan.MODES)}: one operation after the other, a window of them, or one rank late (default: latency)",
    )
    add(
        "--skew-us",
        type=duration("microseconds", 1_000_000),
        metavar="US",
        help=f"how late the rank is, with --mode skew (default: {plan.DEFAULT_SKEW_US:g})",
    )
    add(
        "--groups",
        type=_positive,
        default=1,
        metavar="N",
        help="split the ranks into N groups that run the operation at the same time (default: 1)",
    )
    add(
        "--matrix",
        action="store_true",
        help="ping_pong of each pair of ranks alone: time of -b (default: 8), bandwidth of -e (1M)",
    )
    add(
        "--bind",
        type=name_of("binding", topology.BINDINGS),
        default=topology.NONE,
        metavar="HOW",
        help=f"{', '.join(topology.BINDINGS)}: on which CPUs a rank may run (default: none; see below)",
    )
    add(
        "--overlap",
        action="store_true",
        help="run the operation during a computation of about its length: how much is hidden?",
    )


def _add_how(add: Callable[..., object]) -> None:
    add(
        "--point-time",
        type=duration("seconds", _DAY),
        dest="point_time_s",
        default=0.4,
        metavar="S",
        help="seconds for a row, all backends and rounds together (default: 0.4; --matrix: see below)",
    )
    add(
        "--rounds",
        type=_positive,
        default=5,
        metavar="N",
        help=f"turns of each backend per row (default: 5; compare needs {compare.MIN_ROUNDS})",
    )
    add(
        "-n",
        "--iters",
        type=_positive,
        default=None,
        dest="iterations",
        metavar="N",
        help="iterations per round (default: as many as fit into the time)",
    )
    add(
        "-T",
        "--timeout",
        type=duration("seconds", _DAY),
        dest="timeout_s",
        default=60.0,
        metavar="S",
        help="give up a backend that does not answer within this time (default: 60)",
    )
    add(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="module that registers a backend; every rank imports it first",
    )
    add(
        "--columns",
        type=checked(plan.parse_columns),
        default=(),
        metavar="C,C",
        help=f"more columns for each backend: all, or some of {', '.join(plan.COLUMNS)}; roof "
        "only by name",
    )


def duration(unit: str, most: int) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"not {unit} from above 0 to {most}: {text!r}")
        return value

    return convert


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a whole number above 0: {text!r}")
    return int(text)


def _ranks(text: str) -> int:
    if _positive(text) > _MOST_RANKS:
        raise argparse.ArgumentTypeError(f"more than {_MOST_RANKS} ranks: {text!r}")
    return int(text)
