# SPDX-License-Identifier: BSD-3-Clause
"""Pipeline parallel training: each rank has some of the layers; microbatches go from rank to rank.

With `replicas` there are several such pipelines, each with its own data (PP x DP).
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, schedules

V_SHAPED = ("ZBVZeroBubble", "DualPipeV")  # the last stage is on the first rank again


def stage(number: int, width: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh())


def batch(step: int, replica: int, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = torch.Generator().manual_seed(100 * step + replica)
    return torch.randn(rows, width, generator=data), torch.randn(rows, width, generator=data)


def train(
    backend: str,
    schedule: str = "1F1B",
    per_rank: int = 1,
    replicas: int = 1,
    microbatches: int = 4,
    width: int = 12,
    steps: int = 4,
) -> dict[str, torch.Tensor]:
    """per_rank: stages of each rank, for the schedules that interleave them."""
    dist.init_process_group(backend)
    world = dist.get_world_size() // replicas
    mesh = init_device_mesh("cpu", (replicas, world), mesh_dim_names=("data", "stage"))
    replica, rank = mesh.get_coordinate()
    count = per_rank * world
    numbers = (rank, count - 1 - rank) if schedule in V_SHAPED else range(rank, count, world)
    mine = {number: stage(number, width) for number in numbers}
    stages = [
        PipelineStage(module, number, count, torch.device("cpu"), group=mesh["stage"].get_group())
        for number, module in mine.items()
    ]
    kind = schedules.get_schedule_class(schedule)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    run = kind(stages if several else stages[0], microbatches, loss_fn=nn.functional.mse_loss)
    parameters = [p for module in mine.values() for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    all_losses = []
    for step in range(steps):
        x, y = batch(step, replica, 2 * microbatches, width)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        inputs = (x,) if rank == 0 else ()
        if count - 1 in mine:
            run.step(*inputs, target=y, losses=losses)
        else:
            run.step(*inputs)
        for parameter in parameters:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=mesh["data"].get_group())
        optimizer.step()
        all_losses += [loss.detach() for loss in losses]
    out = {f"{n}.{name}": t for n, m in mine.items() for name, t in m.state_dict().items()}
    return {**out, f"losses {replica}": torch.stack(all_losses)} if all_losses else out


def alone(
    world: int,
    schedule: str = "",
    per_rank: int = 1,
    replicas: int = 1,
    microbatches: int = 4,
    width: int = 12,
    steps: int = 4,
) -> dict[str, torch.Tensor]:
    """The same training in one process."""
    modules = {number: stage(number, width) for number in range(per_rank * world // replicas)}
    model = nn.Sequential(*modules.values())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses: dict[str, list[torch.Tensor]] = {f"losses {r}": [] for r in range(replicas)}
    for step in range(steps):
        optimizer.zero_grad()
        for replica in range(replicas):
            x, y = batch(step, replica, 2 * microbatches, width)
            for inputs, targets in zip(x.chunk(microbatches), y.chunk(microbatches)):
                loss = nn.functional.mse_loss(model(inputs), targets)
                (loss / microbatches / replicas).backward()
                losses[f"losses {replica}"].append(loss.detach())
        optimizer.step()
    out = {f"{n}.{name}": t for n, m in modules.items() for name, t in m.state_dict().items()}
    return {**out, **{name: torch.stack(found) for name, found in losses.items()}}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 pipeline.py gloo
    print(train(sys.argv[1]))
    dist.destroy_process_group()
