# SPDX-License-Identifier: BSD-3-Clause
"""What a small synchronous all_reduce costs from Python: shmcoll beside a backend that does nothing
and returns a null Work, and beside gloo, in one alternating run on two ranks.

    python benchmarks/python_floor.py [--pin] [--json out.json]

Prints the median over rounds of each backend's median call, and the ratios of the goals. A call
counts until the slower of the two ranks has returned from it.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = pathlib.Path(__file__).parent


def register_null() -> None:
    """Compiles the do-nothing backend (cached by torch) and registers it as "null"."""
    from torch.utils.cpp_extension import load

    module = load("shmcoll_null_backend", [str(HERE / "null_backend.cpp")], verbose=False)
    dist.Backend.register_backend(
        "null", lambda store, rank, size, timeout: module.NullBackend(rank, size), devices=["cpu"]
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


def run_rank(rank: int, folder: str, rounds: int, pin: bool, path: str | None) -> None:
    import shmcoll  # noqa: F401

    torch.set_num_threads(1)
    if pin:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    register_null()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    groups = {name: dist.new_group(backend=name) for name in ("shmcoll", "null", "gloo")}
    calls = {"shmcoll": 20000, "null": 20000, "gloo": 300}
    small = torch.zeros(2)
    medians: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(rounds):
        for name, group in groups.items():
            dist.barrier(group=groups["gloo"])
            mine = torch.tensor([median_call_us(group, small, calls[name])], dtype=torch.float64)
            dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=groups["gloo"])
            medians[name].append(mine.item())
    if rank == 0:
        over_null = [a / b for a, b in zip(medians["shmcoll"], medians["null"])]
        under_gloo = [b / a for a, b in zip(medians["shmcoll"], medians["gloo"])]
        result = {
            "median_us": {name: statistics.median(values) for name, values in medians.items()},
            "shmcoll_over_null": statistics.median(over_null),
            "gloo_over_shmcoll": statistics.median(under_gloo),
            "rounds": medians,
        }
        for name, value in result["median_us"].items():
            print(f"{name:8} {value:8.2f} us")
        print(f"shmcoll / null {result['shmcoll_over_null']:.2f}  (goal: at most 1.25)")
        print(f"gloo / shmcoll {result['gloo_over_shmcoll']:.0f}  (goal: at least 50)")
        if path:
            pathlib.Path(path).write_text(json.dumps(result, indent=2) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pin", action="store_true", help="each rank stays on one CPU")
    parser.add_argument("--json")
    options = parser.parse_args()
    register_null()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder, options.rounds, options.pin, options.json), nprocs=2)


if __name__ == "__main__":
    main()
