# SPDX-License-Identifier: BSD-3-Clause
"""A training step under FSDP2 with its buffers in private memory, and in the group's.

    python benchmarks/fsdp2_step.py [--json out.json] [--buffers 4,16,64] [--rounds 15]

Two ranks and the backend shmcoll; four linear layers, each gathered into a buffer of so many MiB. The sides
take turns in one run: `private` is torch's default, `group` has
`set_allocate_memory_from_process_group_for_comm(True)`, `pages` is private with glibc's limits raised so that
it gives no memory back to the kernel, which shows how much of the gain is page faults. (Those limits hold for a
process, so `pages` is a second run, with a side `group` of its own.) A step lasts until the slower rank has
updated its parameters. At the end the parameters of the sides must have the same bits.
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
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shmcoll.bench.run.mpirun import TUNABLES

LAYERS = 4
WARMUP_STEPS = 3


class Side:
    """A sharded model that trains on its own."""

    def __init__(self, mib: int, groups_memory: bool, rank: int) -> None:
        torch.manual_seed(0)
        width = int(((mib << 20) / 4) ** 0.5) // 16 * 16
        self.model: Any = nn.Sequential(
            *(nn.Linear(width, width, bias=False) for _ in range(LAYERS))
        )
        mesh = init_device_mesh("cpu", (2,))
        for part in (*self.model, self.model):
            fully_shard(part, mesh=mesh)
            part.set_allocate_memory_from_process_group_for_comm(groups_memory)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        torch.manual_seed(1 + rank)
        self.inputs: Tensor = torch.randn(4, width)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def step_ms(self) -> float:
        """At the slower rank."""
        dist.barrier()
        begun = time.perf_counter()
        self.step()
        took = torch.tensor([(time.perf_counter() - begun) * 1e3])
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        return took.item()


def measure(mib: int, rounds: int, rank: int, private: str) -> dict[str, Any]:
    sides = {private: Side(mib, False, rank), "group": Side(mib, True, rank)}
    ms: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(WARMUP_STEPS):
        for side in sides.values():
            side.step()
    for turn in range(rounds):
        for name in sorted(sides, reverse=turn % 2 == 1):
            ms[name].append(sides[name].step_ms())
    first, second = ([p.to_local() for p in side.model.parameters()] for side in sides.values())
    wrong = torch.tensor([sum(int((a != b).sum()) for a, b in zip(first, second))])
    dist.all_reduce(wrong)
    return {"buffer_mib": mib, "step_ms": ms, "wrong": int(wrong.item())}


def print_row(row: dict[str, Any]) -> None:
    (name, private), (_, group) = row["step_ms"].items()
    middle, best = statistics.median, min
    print(
        f"buffers of {row['buffer_mib']:3} MiB   {name} {middle(private):8.2f} ms, group {middle(group):8.2f} ms"
        f"   ratio of medians {middle(private) / middle(group):.2f}, of best {best(private) / best(group):.2f}"
        + (f"   {row['wrong']} parameters WRONG" if row["wrong"] else ""),
        flush=True,
    )


def run_rank(rank: int, folder: str, options: argparse.Namespace, private: str) -> None:
    import shmcoll  # noqa: F401

    torch.set_num_threads(1)
    store = f"file://{folder}/{private}"
    dist.init_process_group("shmcoll", init_method=store, rank=rank, world_size=2)
    rows = []
    for mib in options.buffers.split(","):
        rows.append(measure(int(mib), options.rounds, rank, private))
        if rank == 0:
            print_row(rows[-1])
    if rank == 0:
        pathlib.Path(folder, f"{private}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--buffers", default="4,16,64", help="MiB (default: 4,16,64)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder, options, "private"), nprocs=2)
        os.environ.setdefault("GLIBC_TUNABLES", TUNABLES)
        mp.spawn(run_rank, (folder, options, "pages"), nprocs=2)
        if options.json:
            rows = {
                name: json.loads(pathlib.Path(folder, f"{name}.json").read_text())
                for name in ("private", "pages")
            }
            pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
