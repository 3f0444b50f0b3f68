# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallel training: each layer is split over the ranks of a row of the mesh.

With `replicas` the rows train on different data, and fully_shard joins them (TP x DP).
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

TOKENS = 30


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, 16)
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 48)
        self.down = nn.Linear(48, 16)
        self.out = nn.Linear(16, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        x = x + self.down(self.up(self.norm(x)).relu())
        return self.out(x)


PLAN = {
    "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
    "out": ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
    ),
}


def train(backend: str, replicas: int = 1, steps: int = 4) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    shape = (replicas, dist.get_world_size() // replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = parallelize_module(Net(), mesh["tensor"], PLAN)
    if replicas > 1:
        fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    data = torch.Generator().manual_seed(100 + mesh["data"].get_local_rank())
    losses = []
    for _ in range(steps):
        tokens = torch.randint(TOKENS, (4, 12), generator=data)
        optimizer.zero_grad()
        with loss_parallel():
            scores = model(tokens).flatten(0, 1)
            loss = nn.functional.cross_entropy(scores, tokens.flatten().roll(1))
            loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor().detach())
    whole = {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach()
        for name, p in model.named_parameters()
    }
    return {**whole, "losses": torch.stack(losses)}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 tensor_parallel.py gloo
    print(train(sys.argv[1])["losses"])
    dist.destroy_process_group()
