# SPDX-License-Identifier: BSD-3-Clause
"""all_reduce between computations of torch's threads, compared with gloo's in one run.

    python benchmarks/beside_threads.py [--ranks 2] [--threads 2] [--rounds 7] [--json out.json]

After each computation OpenMP's threads spin for some milliseconds in case there is another one. A
program that starts its ranks itself, and not by torchrun, has as many in each rank as there are CPUs,
so that a rank that waits shares its CPU with a thread that does not give it back. A step is a product
of matrices of 256 x 256 and an all_reduce; its time, and that inside all_reduce, are the medians of
rank 0's means over a round.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BACKENDS = ("shmcoll", "gloo")
SIZES = (8, 64 << 10, 1 << 20, 16 << 20)  # bytes
WIDTH = 256  # of the matrices


def round_us(tensor: torch.Tensor, group: dist.ProcessGroup, steps: int) -> tuple[float, float]:
    """Returns the time of a step, and the part of its all_reduce."""
    matrix = torch.ones(WIDTH, WIDTH)
    inside = 0.0
    dist.barrier(group=group)
    begun = time.perf_counter()
    for _ in range(steps):
        (matrix @ matrix).relu_()
        called = time.perf_counter()
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
        inside += time.perf_counter() - called
    return (time.perf_counter() - begun) / steps * 1e6, inside / steps * 1e6


def measure(size: int, rounds: int, groups: dict[str, Any]) -> dict[str, Any]:
    tensor = torch.ones(size // 4)
    steps = 20 if size < 4 << 20 else 6
    row: dict[str, Any] = {"bytes": size, "step_us": {}, "inside_us": {}}
    for turn in range(rounds):
        for backend in BACKENDS[:: 1 if turn % 2 == 0 else -1]:
            step, inside = round_us(tensor, groups[backend], steps)
            row["step_us"].setdefault(backend, []).append(step)
            row["inside_us"].setdefault(backend, []).append(inside)
    return row


def print_row(row: dict[str, Any]) -> None:
    text = f"{row['bytes']:9}"
    for backend in BACKENDS:
        step, inside = (statistics.median(row[key][backend]) for key in ("step_us", "inside_us"))
        text += f"   {backend} {step:8.0f} us a step, {inside:8.0f} in all_reduce"
    print(text, flush=True)


def run_rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    import shmcoll  # noqa: F401

    torch.set_num_threads(options.threads)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=options.ranks)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    rows = []
    for size in SIZES:
        rows.append(measure(size, options.rounds, groups))
        if rank == 0:
            print_row(rows[-1])
    if rank == 0 and options.json:
        facts = {"ranks": options.ranks, "threads": options.threads}
        pathlib.Path(options.json).write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of torch, in each rank")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder, options), nprocs=options.ranks)


if __name__ == "__main__":
    main()
