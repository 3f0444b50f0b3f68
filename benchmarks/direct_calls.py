#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How long does an all_reduce take through torch.distributed, and as a direct call?

    torchrun --standalone --nproc-per-node 2 benchmarks/direct_calls.py

Each rank is pinned to a CPU. The three forms take turns within one run, so a busy machine slows all of
them. The table has medians of the turns in microseconds, and how many times as long torch's form takes.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import shmcoll

TURNS, CALLS = 100, 300
SIZES = (8, 4096, 8192, 32768, 131072, 524288)  # bytes


def time_us(call: Callable[[Any], object], tensor: torch.Tensor) -> float:
    begun = time.perf_counter_ns()
    for _ in range(CALLS):
        call(tensor)
    return (time.perf_counter_ns() - begun) / CALLS / 1000


def main() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(os.environ["LOCAL_RANK"]) % len(cpus)]})
    torch.set_num_threads(1)
    dist.init_process_group("shmcoll")
    forms: dict[str, Callable[[Any], object]] = {
        "torch": dist.all_reduce,
        "function": shmcoll.all_reduce,
        "bound": shmcoll.direct().all_reduce,
    }
    if dist.get_rank() == 0:
        print(f"{'bytes':>8}" + "".join(f"{name:>10}" for name in forms) + "   torch / bound")
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        times: dict[str, list[float]] = {name: [] for name in forms}
        for _ in range(TURNS):
            for name, form in forms.items():
                dist.barrier()
                times[name].append(time_us(form, tensor))
        medians = [statistics.median(times[name]) for name in forms]
        if dist.get_rank() == 0:
            row = "".join(f"{median:10.2f}" for median in medians)
            print(f"{size:8}{row}{medians[0] / medians[-1]:16.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
