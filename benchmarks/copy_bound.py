# SPDX-License-Identifier: BSD-3-Clause
"""Large operations from Python over a plain copy of the bytes that they must move, in one run.

    python benchmarks/copy_bound.py [--json out.json] [--rounds 9] [--sizes 8,16,32]

Two ranks. What must be moved: of a broadcast, reduce or gather all bytes, by one rank at a time; of
the others all bytes (of a scatter, a rank's share), by both ranks at once. A size is what the bench
calls one: what a rank gives or ends with, whichever is more. An operation's time is that of a loop
over its iterations at the slower rank; roots take turns.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from shmcoll.bench.run import calls
from shmcoll.bench.ops import OPS
from shmcoll.bench.plan import Point

RANKS = 2
ITERATIONS = 6  # of a round; whole turns of the roots


@dataclass(frozen=True)
class Move:
    share: float = 1.0  # of the size
    both: bool = True  # ranks at once


MOVES = {
    "broadcast": Move(both=False),
    "reduce": Move(both=False),
    "all_gather": Move(),
    "reduce_scatter": Move(),
    "all_to_all": Move(),
    "gather": Move(both=False),
    "scatter": Move(share=1 / RANKS),
    "sendrecv": Move(),
}


def slowest_us(once: Callable[[int], Any], idle: bool, gloo: dist.ProcessGroup) -> float:
    """Returns the time of one iteration at the slower rank."""
    dist.barrier(group=gloo)
    begun = time.perf_counter()
    for i in range(0 if idle else ITERATIONS):
        once(i)
    took = torch.tensor([(time.perf_counter() - begun) * 1e6 / ITERATIONS], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX, group=gloo)
    return took.item()


def wrong_elements(call: calls.Call, gloo: dist.ProcessGroup) -> int:
    call.give(1)
    call.run(1)
    wrong = torch.tensor([call.take(1)])
    dist.all_reduce(wrong, group=gloo)
    return int(wrong.item())


def measure(op: str, size: int, rounds: int, rank: int, groups: dict[str, Any]) -> dict[str, Any]:
    count = OPS[op].count(size, 4, RANKS)
    point = Point(op, "float32", count, size, OPS[op].places[0])
    how = {"group": groups["shmcoll"]}
    call = calls.prepare(point, calls.Context(rank, range(RANKS), None, how))  # type: ignore
    move, gloo = MOVES[op], groups["gloo"]
    source = torch.ones(int(size * move.share) // 4)
    target = torch.zeros_like(source)
    row: dict[str, Any] = {"op": op, "bytes": size, "ours_us": [], "copy_us": []}
    row["wrong"] = wrong_elements(call, gloo)
    for _ in range(rounds):
        row["ours_us"].append(slowest_us(call.run, False, gloo))
        idle = rank > 0 and not move.both
        row["copy_us"].append(slowest_us(lambda i: target.copy_(source), idle, gloo))
    return row


def run_rank(rank: int, folder: str, sizes: list[int], rounds: int, path: str | None) -> None:
    import shmcoll  # noqa: F401

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # older torch has no other names
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    groups = {name: dist.new_group(backend=name) for name in ("shmcoll", "gloo")}
    rows = []
    for op in MOVES:
        for size in sizes:
            rows.append(row := measure(op, size, rounds, rank, groups))
            over = statistics.median(a / b for a, b in zip(row["ours_us"], row["copy_us"]))
            if rank == 0:
                times = [statistics.median(row[key]) for key in ("ours_us", "copy_us")]
                text = f"{op:14} {size >> 20:3} MiB  {times[0]:9.0f} us  copy {times[1]:9.0f} us"
                wrong = f"  {row['wrong']} WRONG" if row["wrong"] else ""
                print(f"{text}  {over:5.2f}{wrong}", flush=True)
    if rank == 0 and path:
        pathlib.Path(path).write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", default="8,16,32", help="in MiB (default: 8,16,32)")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    sizes = [int(size) << 20 for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder, sizes, options.rounds, options.json), nprocs=RANKS)


if __name__ == "__main__":
    main()
