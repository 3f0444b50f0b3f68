#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How long do small collectives take through torch.distributed, as direct calls, and by operators of others?

    torchrun --standalone --nproc-per-node 2 benchmarks/direct_calls.py [--dtype bf16] [--json FILE]

Each rank is pinned to a CPU. The forms take turns within one run, so a busy machine slows all of them. The
table has medians of the turns in microseconds. `vllm` and `deepspeed` are there if their packages are
installed; DeepSpeed compiles its operator at its first use, and has only the all_reduce.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import shmcoll

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from tp_decode import DTYPES, ThroughTorch, Vllm

SIZES = (8, 4096, 8192, 32768, 131072, 524288, 2 << 20, 8 << 20)  # bytes
OPS = ("all_reduce", "all_gather")
TURN_US = 300.0  # a turn is so long, or some calls

Call = Callable[[], object]


class DeepSpeed:
    """The operator of DeepSpeed's inference_all_reduce, for all ranks. It knows fp32, bf16 and fp16."""

    def __init__(self) -> None:
        builders = importlib.import_module("deepspeed.ops.op_builder.cpu")
        # What torchrun calls LOCAL_WORLD_SIZE.
        os.environ["LOCAL_SIZE"] = str(dist.get_world_size())
        library = builders.ShareMemCommBuilder().load(verbose=False)
        dist.barrier()
        library.initialize(dist.get_world_size(), dist.get_rank())
        self.all_reduce: Callable[[torch.Tensor], object] = (
            torch.ops.deepspeed.inference_all_reduce_
        )


def others() -> dict[str, Any]:
    """The libraries to compare with that are installed."""
    found: dict[str, Any] = {}
    library = Vllm.library()
    if library is not None:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        found["vllm"] = Vllm()
    if importlib.util.find_spec("deepspeed") is not None:
        found["deepspeed"] = DeepSpeed()
    return found


def time_us(call: Call, calls: int) -> float:
    begun = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - begun) / calls / 1000


def calls_of(op: str, size: int, dtype: torch.dtype, rivals: dict[str, Any]) -> dict[str, Call]:
    """What each form does in a turn. All of them have the same tensors."""
    world = dist.get_world_size()
    whole = torch.zeros(size // dtype.itemsize, dtype=dtype)
    part = torch.zeros(whole.numel() // world, dtype=dtype)
    bound = shmcoll.direct()
    if op == "all_reduce":
        forms: dict[str, Call] = {
            "torch": lambda: dist.all_reduce(whole),
            "function": lambda: shmcoll.all_reduce(whole),
            "bound": lambda: bound.all_reduce(whole),
        }
        for name, rival in rivals.items():
            forms[name] = lambda rival=rival: rival.all_reduce(whole)  # type: ignore[misc]
        return forms
    through = ThroughTorch(dist.distributed_c10d._get_default_group())
    forms = {
        "torch": lambda: through.all_gather(whole, part),
        "function": lambda: shmcoll.all_gather_into(whole, part),
        "bound": lambda: bound.all_gather_into(whole, part),
    }
    if "vllm" in rivals:
        forms["vllm"] = lambda: rivals["vllm"].all_gather(whole, part)
    return forms


def measure(forms: dict[str, Call], turns: int) -> dict[str, list[float]]:
    """Microseconds a call, of each turn of each form."""
    counts = {}
    for name, call in forms.items():
        dist.barrier()
        counts[name] = torch.tensor(max(3, round(TURN_US / time_us(call, 20))))
        dist.broadcast(counts[name], 0)
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(turns):
        for name, call in forms.items():
            dist.barrier()
            times[name].append(time_us(call, int(counts[name])))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="the first so many")
    parser.add_argument("--json", type=Path, help="writes every turn to this file")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(os.environ["LOCAL_RANK"]) % len(cpus)]})
    torch.set_num_threads(1)
    dist.init_process_group("shmcoll")
    rivals = others()
    first, rows = dist.get_rank() == 0, []
    with torch.inference_mode():
        for op in OPS:
            for number, size in enumerate(SIZES[: options.sizes]):
                us = measure(calls_of(op, size, DTYPES[options.dtype], rivals), options.turns)
                rows.append({"op": op, "bytes": size, "us": us})
                if first and number == 0:
                    print(f"{op:12} bytes" + "".join(f"{name:>10}" for name in us), flush=True)
                if first:
                    said = "".join(f"{statistics.median(one):10.2f}" for one in us.values())
                    print(f"{size:18}{said}", flush=True)
    if first and options.json:
        ranks = dist.get_world_size()
        data: dict[str, Any] = {"world_size": ranks, "dtype": options.dtype, "rows": rows}
        options.json.write_text(json.dumps(data) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
