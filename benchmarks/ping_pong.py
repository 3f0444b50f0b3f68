# SPDX-License-Identifier: BSD-3-Clause
"""Messages between two ranks: one way of a ping-pong, and an exchange, beside gloo.

The backends take turns within one run. Printed are the medians over the rounds, and that of the
ratios of adjacent rounds.

    python benchmarks/ping_pong.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUNDS = 5
#        elements, iterations
POINTS = ((2, 2000), (1000, 1000), (100_000, 100), (4 << 20, 6))


def ping_pong(rank: int, tensor: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], float]:
    def once() -> float:
        begun = time.perf_counter()
        if rank == 0:
            dist.send(tensor, 1, group=group)
            dist.recv(tensor, 1, group=group)
        else:
            dist.recv(tensor, 0, group=group)
            dist.send(tensor, 0, group=group)
        return (time.perf_counter() - begun) / 2

    return once


def exchange(rank: int, tensor: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], float]:
    got = torch.empty_like(tensor)

    def once() -> float:
        begun = time.perf_counter()
        works = [dist.isend(tensor, 1 - rank, group=group), dist.irecv(got, 1 - rank, group=group)]
        for work in works:
            assert work is not None
            work.wait()
        return time.perf_counter() - begun

    return once


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "shmcoll", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    groups = {name: dist.new_group(backend=name) for name in ("shmcoll", "gloo")}
    for what in (ping_pong, exchange):
        for count, iterations in POINTS:
            us: dict[str, list[float]] = {name: [] for name in groups}
            for _ in range(ROUNDS):
                for name, group in groups.items():
                    once = what(rank, torch.ones(count), group)
                    dist.barrier(group=group)
                    us[name].append(statistics.median(once() for _ in range(iterations)) * 1e6)
            ours, theirs = (statistics.median(us[name]) for name in groups)
            ratio = statistics.median(b / a for a, b in zip(us["shmcoll"], us["gloo"]))
            if rank == 0:
                point = f"{what.__name__:9} {4 * count:9} bytes"
                print(f"{point}  shmcoll {ours:9.1f} us  gloo {theirs:9.1f} us  {ratio:5.1f}x")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder,), nprocs=2)
