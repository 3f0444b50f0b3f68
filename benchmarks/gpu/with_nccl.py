# SPDX-License-Identifier: BSD-3-Clause
"""One process group for CPU tensors by shmcoll and CUDA tensors by NCCL, as it comes with torch.

    python benchmarks/gpu/with_nccl.py [--limit SECONDS] [--device cuda:0]

First a world of one; then two ranks on one GPU, with NCCL_MULTI_RANK_GPU_ENABLE=1, which NCCL knows
from 2.30 on: what an older one says is a row, and no failure. Each step is a row.

exit code: 0; 1 if the world of one does not do it
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.distributed as dist

import baselines

NAMES = {1: "world of one", 2: "2 ranks on one GPU"}
TWO_S = 20  # for two ranks, from the moment that all processes are there
START_S = 25  # for processes that load torch
FOR_TWO = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN"}

Row = dict[str, object]


def tell(world: int, step: str, outcome: str, detail: str = "") -> None:
    row: Row = {"with_nccl": NAMES[world], "step": step, "outcome": outcome, "detail": detail}
    print(json.dumps(row), flush=True)


def total(world: int, device: torch.device) -> str:
    """ "" if a sum on this device is right."""
    t = torch.arange(1000, dtype=torch.float32, device=device) % 7
    want = t * world
    dist.all_reduce(t)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return "" if bool((t == want).all()) else "wrong sums"


def member(rank: int, world: int, folder: str, device_name: str, backend: str) -> None:
    import shmcoll  # noqa: F401

    faulthandler.register(signal.SIGUSR2, all_threads=True)
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)

    def begin() -> str:
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=TWO_S),
        )
        return ""

    steps: list[tuple[str, Callable[[], str]]] = [(f"init {backend}", begin)]
    steps += [("all_reduce cpu", lambda: total(world, torch.device("cpu")))]
    steps += [(f"all_reduce {device.type}", lambda: total(world, device))]
    for name, step in steps:
        if rank == 0:
            new = Path(folder, "step.new")
            new.write_text(json.dumps([name, 0]))
            new.replace(Path(folder, "step"))
        try:
            why = step()
        except Exception as error:
            why = baselines.told(error)
        if why:
            Path(folder, f"failed.{rank}").write_text(why)
            os._exit(baselines.FAILED)  # leaving a group that has failed may not end
        if rank == 0:
            tell(world, name, "ok")
    dist.destroy_process_group()


def run_world(world: int, device: str, backend: str, limit_s: float) -> bool:
    if limit_s < 5:
        tell(world, "", "not run", "the time was over")
        return False
    why, step, _ = baselines.run_ranks(world, limit_s, member, device, backend)
    if why:
        hung = why.startswith(baselines.LATE)
        tell(world, step, "no end" if hung else "refused", why)
    return not why


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=float, default=90, metavar="SECONDS")
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args(argv)
    end = time.monotonic() + args.limit
    on_gpu = torch.device(args.device).type == "cuda"
    backend = "cpu:shmcoll,cuda:nccl" if on_gpu else "cpu:shmcoll"
    if on_gpu:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        print(json.dumps({"nccl": version, "torch": torch.__version__}), flush=True)
    good = run_world(1, args.device, backend, min(args.limit / 2, 45))
    os.environ.update(FOR_TWO)
    left_s = end - time.monotonic()
    run_world(2, args.device, backend, min(left_s - baselines.END_S, TWO_S + START_S))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
