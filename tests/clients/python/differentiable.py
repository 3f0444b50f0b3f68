# SPDX-License-Identifier: BSD-3-Clause
"""Collectives with a gradient (torch.distributed.nn): batch statistics of all ranks, and the rest."""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import nn

warnings.filterwarnings("ignore", message=r".*is deprecated, use .*_functional_collectives")


class AllRanksNorm(nn.Module):
    """What SyncBatchNorm, which asks for a GPU, does in training."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = torch.cat([x.sum(0), (x * x).sum(0), x.new_tensor([len(x)])])
        total, squares, count = dnn.all_reduce(sums).split([x.size(1), x.size(1), 1])
        mean = total / count
        variance = squares / count - mean * mean
        return (x - mean) * (variance + 1e-5).rsqrt() * self.weight + self.bias


def each(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """A loss through every collective; the rows of x are one for each rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    scale = torch.arange(1.0, 1 + x.numel()).view_as(x) * (rank + 1)
    rows = [row.clone() for row in x]
    last = world - 1
    exchanged = torch.zeros_like(x)
    gathered = dnn.gather(x, dst=last)
    reduced = dnn.reduce(x.tanh(), dst=last)
    return {
        "all_reduce": (dnn.all_reduce(x.tanh()) * scale).sum(),
        "reduce": (reduced * scale).sum() if rank == last else 0 * reduced.sum(),
        "broadcast": (dnn.broadcast(x.tanh(), src=last) * scale).sum(),
        "all_gather": sum((t.tanh() * scale).sum() for t in dnn.all_gather(x)),
        "gather": sum((t.tanh() * scale * (i + 1)).sum() for i, t in enumerate(gathered)),
        "scatter": (dnn.scatter(rows, src=last).tanh() * scale[0]).sum(),
        "reduce_scatter": (dnn.reduce_scatter(torch.empty_like(x[0]), rows) * scale[0]).sum(),
        "all_to_all": sum(
            (t.tanh() * scale[0]).sum()
            for t in dnn.all_to_all([torch.empty_like(row) for row in rows], rows)
        ),
        "all_to_all_single": (dnn.all_to_all_single(exchanged, x.tanh()) * scale).sum(),
    }


def train(backend: str, steps: int = 4) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    data = torch.Generator().manual_seed(100 + rank)
    out = {}
    for name in each(torch.zeros(world, 5)):
        x = torch.randn(world, 5, generator=data).requires_grad_()
        loss = each(x)[name]
        loss.backward()
        out[name], out[f"{name}.grad"] = loss, x.grad

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), AllRanksNorm(12), nn.Tanh(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        x, y = torch.randn(4 + rank, 8, generator=data), torch.randn(4 + rank, 2, generator=data)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()
    return {name: t.detach() for name, t in {**out, **model.state_dict()}.items()}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 differentiable.py gloo
    print(train(sys.argv[1])["3.bias"])
    dist.destroy_process_group()
