# SPDX-License-Identifier: BSD-3-Clause
"""Fully sharded training with the older FullyShardedDataParallel."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def train(
    backend: str, strategy: str = "FULL_SHARD", steps: int = 5, **options: Any
) -> dict[str, torch.Tensor]:
    """options: those of FullyShardedDataParallel."""
    dist.init_process_group(backend)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 25), nn.Tanh(), nn.Linear(25, 33), nn.Linear(33, 4))
    model = FullyShardedDataParallel(
        layers,
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        **options,
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    norms = []
    for _ in range(steps):
        x, y = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        norms.append(model.clip_grad_norm_(0.5).detach())
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        whole = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {**whole, "norms": torch.stack(norms)}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 fsdp1.py gloo
    print(train(sys.argv[1])["norms"])
    dist.destroy_process_group()
