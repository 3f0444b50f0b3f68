# SPDX-License-Identifier: BSD-3-Clause
"""Groups over several hosts compared with flat gloo, over the same links, in turns.

    python benchmarks/hosts/against_gloo.py [--layout 2x2] [--rate 1gbit] [-o all_reduce,broadcast]
                                            [-b 8] [-e 64m] [-f 8] [--rounds 9] [--json FILE]
    python benchmarks/hosts/against_gloo.py --rows links     # all that the links bound, with goals
    python benchmarks/hosts/against_gloo.py --rows short     # short messages; needs a quiet machine

The hosts are those of tests/hosts/hosts.py, on this machine: needs root. Each rank has a group of both
backends. In every round each of them makes some calls, and which comes first changes. A round takes as long
as its slowest rank. `ratio` is the median of gloo's rounds over the median of ours; results are checked.
Bytes are those of the vector; of a block for all_gather, reduce_scatter and all_to_all.

Goals hold for 2 hosts of 2 or 8 ranks whose links carry 1 Gbit/s: there the links bound long messages of
both. Without a limit the machine's CPUs bound both, and a ratio says little of real hosts. Nor do those of
short messages: all hosts share the CPUs of one machine. On a busy machine a goal that is not met is in doubt.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests/hosts", "tests/support", "python/shmcoll/bench/judge"):
    sys.path.insert(0, str(ROOT / folder))
import noise  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from hosts import Hosts, missing  # noqa: E402
from job import Job, Rank  # noqa: E402

SCHEMA = "shmcoll.hosts/1"
ROUND_S = 0.1  # the calls of one backend in a round, about
LIMIT_S = 600.0
KIB, MIB = 1 << 10, 1 << 20


class Operation(NamedTuple):
    """elements: float32 of the vector, or of a block."""

    make: Callable[[int, int], tuple[torch.Tensor, ...]]  # elements, world
    call: Callable[..., Any]  # these tensors, group
    right: Callable[..., bool]  # after one call in which each tensor held rank + 1


def _vector(elements: int, world: int) -> tuple[torch.Tensor, ...]:
    return (torch.empty(elements),)


def _gathered(elements: int, world: int) -> tuple[torch.Tensor, ...]:
    return torch.empty(elements), torch.empty(world * elements)


def _blocks(elements: int, world: int) -> tuple[torch.Tensor, ...]:
    return torch.empty(world * elements), torch.empty(elements)


def _all_blocks(elements: int, world: int) -> tuple[torch.Tensor, ...]:
    return torch.empty(world * elements), torch.empty(world * elements)


def _in_order(world: int, out: torch.Tensor) -> bool:
    wanted = torch.arange(1.0, world + 1).repeat_interleave(out.numel() // world)
    return torch.equal(out, wanted)


def _is(value: float, out: torch.Tensor) -> bool:
    return bool((out == value).all())


def _total(world: int) -> float:
    return world * (world + 1) / 2


OPERATIONS = {
    "all_reduce": Operation(
        _vector, lambda t, group: dist.all_reduce(t, group=group), lambda w, t: _is(_total(w), t)
    ),
    "broadcast": Operation(
        _vector, lambda t, group: dist.broadcast(t, 0, group=group), lambda w, t: _is(1.0, t)
    ),
    "all_gather": Operation(
        _gathered,
        lambda t, out, group: dist.all_gather_into_tensor(out, t, group=group),
        lambda w, t, out: _in_order(w, out),
    ),
    "reduce_scatter": Operation(
        _blocks,
        lambda t, out, group: dist.reduce_scatter_tensor(out, t, group=group),
        lambda w, t, out: _is(_total(w), out),
    ),
    "all_to_all": Operation(
        _all_blocks,
        lambda t, out, group: dist.all_to_all_single(out, t, group=group),
        lambda w, t, out: _in_order(w, out),
    ),
}


class Goal(NamedTuple):
    operation: str
    least: int  # bytes
    most: int
    ratio: float
    bound: float | None  # by the bytes on the links


GOALS = (  # of hosts of 2 ranks
    Goal("all_reduce", MIB, 64 * MIB, 1.4, 1.5),
    Goal("all_reduce", 8, 4 * KIB, 3.0, None),
    Goal("reduce_scatter", MIB, 16 * MIB, 2.7, 3.0),
    Goal("all_gather", MIB, 16 * MIB, 1.4, 1.5),
    Goal("broadcast", MIB, 64 * MIB, 1.7, 2.0),
    Goal("all_to_all", 64 * KIB, 64 * MIB, 0.95, 1.0),
)
GOALS_OF_8 = (
    Goal("all_reduce", 8, 4 * KIB, 6.0, None),
    Goal("all_to_all", 4 * KIB, 4 * KIB, 1.5, None),
)


ROWS = {
    "links": {
        "all_reduce": [MIB, 4 * MIB, 16 * MIB, 64 * MIB],
        "reduce_scatter": [MIB, 4 * MIB, 16 * MIB],
        "all_gather": [MIB, 4 * MIB, 16 * MIB],
        "broadcast": [MIB, 4 * MIB, 16 * MIB, 64 * MIB],
        "all_to_all": [64 * KIB, 256 * KIB, MIB, 4 * MIB],
    },
    "short": {name: [8, 64, 512, 4 * KIB] for name in OPERATIONS},
}


def goal_of(operation: str, size: int, ranks: int = 2) -> Goal | None:
    """ranks: of each of two hosts."""
    goals = {2: GOALS, 8: GOALS_OF_8}.get(ranks, ())
    return next((g for g in goals if g.operation == operation and g.least <= size <= g.most), None)


# ---- in a rank ----


def measure(rank: Rank, sizes: dict[str, list[int]], rounds: int) -> dict[str, Any]:
    """sizes: of each operation."""
    rank.init("gloo", timeout_s=LIMIT_S)
    groups = {"gloo": dist.group.WORLD, "shmcoll": dist.new_group(backend="shmcoll")}
    rows = []
    for name, of_name in sizes.items():
        for size in of_name:
            rows.append({"op": name, "bytes": size, **_row(rank, name, size, rounds, groups)})
            if "absent" in rows[-1]:
                break
    return {"rows": rows, "cpu_s": time.process_time()}


def _row(rank: Rank, name: str, size: int, rounds: int, groups: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a call, by backend and round; or why there are none."""
    operation = OPERATIONS[name]
    tensors = operation.make(max(size // 4, 1), rank.world)
    wrong = []
    counts = {}
    for backend, group in groups.items():
        for tensor in tensors:
            tensor.fill_(rank.rank + 1)
        try:
            operation.call(*tensors, group=group)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            return {"absent": str(error)}
        if not operation.right(rank.world, *tensors):
            wrong.append(backend)
        for tensor in tensors:
            tensor.fill_(0.0)  # sums of sums would become infinite
        counts[backend] = _calls_in_a_round(operation, tensors, group)
    took: dict[str, list[float]] = {backend: [] for backend in groups}
    for number in range(rounds):
        for backend in sorted(groups, reverse=number % 2 == 1):
            count = counts[backend]
            dist.barrier()
            begun = time.monotonic()
            for _ in range(count):
                operation.call(*tensors, group=groups[backend])
            took[backend].append((time.monotonic() - begun) / count)
    return {"wrong": wrong, **took}


def _calls_in_a_round(operation: Operation, tensors: tuple[torch.Tensor, ...], group: Any) -> int:
    """The same on all ranks."""
    dist.barrier()
    begun = time.monotonic()
    for _ in range(2):
        operation.call(*tensors, group=group)
    longest = torch.tensor([time.monotonic() - begun])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return max(1, min(1000, int(ROUND_S / (longest.item() / 2))))


# ---- in the parent ----


def slowest(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of all ranks: of each round the time of the slowest rank."""
    row = dict(parts[0])
    row["wrong"] = sorted({one for part in parts for one in part.get("wrong", [])})
    if "absent" not in row:
        for backend in ("gloo", "shmcoll"):
            row[backend] = [max(times) for times in zip(*(part[backend] for part in parts))]
        pairs = zip(row["gloo"], row["shmcoll"])
        row["noisy"] = noise.disagree([theirs / ours for theirs, ours in pairs])
        row["ratio"] = median(row["gloo"]) / median(row["shmcoll"])
    return row


def judged(row: dict[str, Any], busy: bool, ranks: int = 2) -> str:
    """Is the row's goal met?"""
    goal = goal_of(row["op"], row["bytes"], ranks)
    if goal is None:
        return ""
    met = "met" if row["ratio"] >= goal.ratio else "in doubt" if busy or row["noisy"] else "missed"
    return f"  {goal.ratio:<5g} {goal.bound or '-':<6} {met}"


def line_of(row: dict[str, Any], verdict: str) -> str:
    head = f"{row['op']:>14} {row['bytes']:>9}"
    if "absent" in row:
        return f"{head}   not there: {row['absent'].splitlines()[0][:110]}"
    theirs, ours = (median(row[backend]) * 1e6 for backend in ("gloo", "shmcoll"))
    mark = noise.MARK if row["noisy"] else " "
    text = f"{head} {theirs:>10.0f} {ours:>10.0f} {row['ratio']:>7.2f}{mark}{verdict}"
    return text + (f"  WRONG: {', '.join(row['wrong'])}" if row["wrong"] else "")


def bytes_of(text: str) -> int:
    factor = {"k": KIB, "m": MIB}.get(text[-1].lower(), 1)
    return int(text.rstrip("kKmM")) * factor


def sizes_of(name: str, args: argparse.Namespace) -> list[int]:
    if args.rows:
        return ROWS[args.rows][name]
    sizes = [args.min]
    while sizes[-1] * args.factor <= args.max:
        sizes.append(sizes[-1] * args.factor)
    return sizes


def layout_of(text: str) -> list[int]:
    """2x3: two hosts of three ranks; 3+1: hosts of three and of one."""
    if "x" in text:
        hosts, ranks_of_each = (int(part) for part in text.split("x"))
        counts = [ranks_of_each] * hosts
    else:
        counts = [int(part) for part in text.split("+")]
    return [host for host, count in enumerate(counts) for _ in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layout", type=layout_of, default="2x2", help="2x2, 3+1, ...")
    parser.add_argument(
        "--rate", default="1gbit", help="of each link, as tc has it; none: no limit"
    )
    parser.add_argument("-o", "--ops", default=",".join(OPERATIONS))
    parser.add_argument("--rows", choices=ROWS, help="instead of -b, -e and -f")
    parser.add_argument("-b", "--min", type=bytes_of, default="8")
    parser.add_argument("-e", "--max", type=bytes_of, default="16m")
    parser.add_argument("-f", "--factor", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="every round of every row")
    args = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    names = args.ops.split(",")
    if unknown := set(names) - set(OPERATIONS):
        parser.error(
            f"no operation {', '.join(sorted(unknown))}; there are {', '.join(OPERATIONS)}"
        )
    if args.min < 1 or args.factor < 2 or args.rounds < 1:
        parser.error("--min and --rounds are at least 1, --factor 2")
    sizes = {name: sizes_of(name, args) for name in names}
    rate = None if args.rate == "none" else args.rate
    ranks = args.layout.count(0)
    goals_hold = args.layout == [0] * ranks + [1] * ranks and rate == "1gbit"
    own_s = [0.0]
    seen: list[noise.Activity] = []
    cpus = os.sched_getaffinity(0)
    with Hosts(max(args.layout) + 1, rate=rate, shm_mb=1024) as hosts:
        with noise.Watch(lambda: own_s[0], cpus).over(seen.append):
            job = Job(hosts, args.layout)
            said = job.run(measure, sizes, args.rounds, limit_s=LIMIT_S)
            own_s[0] = sum(one["cpu_s"] for one in said)
    rows = [slowest(list(parts)) for parts in zip(*(one["rows"] for one in said))]
    print(
        f"{'operation':>14} {'bytes':>9} {'gloo us':>10} {'shmcoll us':>10} {'ratio':>7}   goal  bound"
    )
    for row in rows:
        known = goals_hold and "absent" not in row
        print(line_of(row, judged(row, seen[0].busy, ranks) if known else ""))
    print(f"# {noise.words(seen[0])}")
    noisy = [row for row in rows if row.get("noisy")]
    if noisy:
        print(f"# {noise.MARK} {len(noisy)} of {len(rows)} rows {noise.DOUBT}")
    if args.json:
        head = {"schema": SCHEMA, "layout": args.layout, "rate": args.rate}
        activity = {"said": noise.words(seen[0]), "activity": asdict(seen[0])}
        head["date"] = time.strftime("%Y-%m-%d", time.gmtime())
        args.json.write_text(json.dumps({**head, **activity, "rows": rows}, indent=1) + "\n")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
