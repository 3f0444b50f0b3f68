# SPDX-License-Identifier: BSD-3-Clause
"""What a synchronous all_reduce costs from Python: shmcoll compared with what it cannot be without, and
with gloo, in one alternating run on two ranks.

    python benchmarks/python_floor.py [--pin] [--json out.json]

The floor is what a backend takes that does nothing and returns a null Work, and the time of the C
library from a loop in C. Prints the medians over rounds of each one's median call, and the median
ratios. A call counts until the slower of the two ranks has returned from it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = tuple(8 << shift for shift in range(18))  # bytes
CALLS = {"shmcoll": 6000, "null": 6000, "bare": 6000, "core": 20000, "gloo": 200}
LEAST_CALLS = 50
LONG_FROM = 16384  # bytes; the more there are, the fewer calls


def calls_of(name: str, size: int) -> int:
    return max(LEAST_CALLS, CALLS[name] * LONG_FROM // max(LONG_FROM, size))


def load_floor() -> Any:
    """floor.cpp, compiled where that has not been done."""
    import shmcoll
    from torch.utils.cpp_extension import load

    (library,) = (pathlib.Path(shmcoll.__file__).parent / "lib").glob("libshmcoll.so.*")
    folder = ROOT / "build" / "floor"
    folder.mkdir(parents=True, exist_ok=True)
    return load(
        "shmcoll_floor",
        [str(ROOT / "benchmarks" / "floor.cpp")],
        extra_include_paths=[str(ROOT / "src")],
        extra_ldflags=[str(library), f"-Wl,-rpath,{library.parent}"],
        build_directory=str(folder),
    )


def median_call_us(group: dist.ProcessGroup, tensor: torch.Tensor, calls: int) -> float:
    clock, times = time.perf_counter_ns, []
    for _ in range(calls // 10):
        dist.all_reduce(tensor, group=group)
    for _ in range(calls):
        begun = clock()
        dist.all_reduce(tensor, group=group)
        times.append(clock() - begun)
    return statistics.median(times) / 1e3


class Rank:
    """One rank, with the calls that take turns."""

    def __init__(self, rank: int, folder: str) -> None:
        floor = load_floor()
        dist.Backend.register_backend(
            "null", lambda store, rank, size, timeout: floor.NullBackend(rank, size), devices="cpu"
        )
        dist.Backend.register_backend(
            "bare",
            lambda store, rank, size, timeout: floor.BareBackend(rank, size, f"{folder}/bare"),
            devices="cpu",
        )
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
        )
        names = [name for name in CALLS if name != "core"]
        self.groups = {name: dist.new_group(backend=name) for name in names}
        self.core = floor.Core(rank, 2, f"{folder}/core")

    def median_us(self, name: str, tensor: torch.Tensor) -> float:
        """Returns the median of the slower rank."""
        calls = calls_of(name, tensor.nbytes)
        dist.barrier(group=self.groups["gloo"])
        if name == "core":
            us = self.core.median_us(tensor, calls)
        else:
            us = median_call_us(self.groups[name], tensor, calls)
        mine = torch.tensor([us], dtype=torch.float64)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=self.groups["gloo"])
        return mine.item()


def check(sides: Rank) -> int:
    """How many of the sums are wrong."""
    ones = torch.ones(1000)
    dist.all_reduce(ones, group=sides.groups["shmcoll"])
    return int((ones != 2).sum())


def run_rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    import shmcoll  # noqa: F401

    torch.set_num_threads(1)
    if options.pin:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    sides = Rank(rank, folder)
    rows, wrong = [], check(sides)
    for size in SIZES[:: options.step]:
        tensor = torch.zeros(size // 4)
        us: dict[str, list[float]] = {name: [] for name in CALLS}
        for _ in range(options.rounds):
            for name in CALLS:
                us[name].append(sides.median_us(name, tensor))
        rows.append({"bytes": size, "us": us, "wrong": wrong})
        if rank == 0:
            print_row(size, us)
    if rank == 0 and options.json:
        text = json.dumps({"rows": rows}, indent=1)
        pathlib.Path(options.json).write_text(text + "\n")
    del sides.core
    dist.destroy_process_group()


def print_row(size: int, us: dict[str, list[float]]) -> None:
    medians = "  ".join(f"{name} {statistics.median(values):7.2f}" for name, values in us.items())
    ours = us["shmcoll"]
    floor = [null + core for null, core in zip(us["null"], us["core"])]
    over = statistics.median(a / b for a, b in zip(ours, floor))
    bare, gloo = (
        statistics.median(b / a for a, b in zip(ours, us[name])) for name in ("bare", "gloo")
    )
    print(
        f"{size:7} bytes  us: {medians}  over floor {over:.2f}, over bare {1 / bare:.2f}"
        f"  gloo {gloo:.0f}x",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--step", type=int, default=1, help="only every so-manieth power of two")
    parser.add_argument("--pin", action="store_true", help="each rank stays on one CPU")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    load_floor()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder, options), nprocs=2)


if __name__ == "__main__":
    main()
