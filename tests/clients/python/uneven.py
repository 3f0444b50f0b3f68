# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that have different numbers of batches: who is done first helps the others along."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def train(backend: str, zero: bool = False, **options: Any) -> dict[str, torch.Tensor]:
    """options: those of DistributedDataParallel.join()."""
    dist.init_process_group(backend)
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 3))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.001)
    if zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        joined = Join([model, optimizer], **options)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        joined = model.join(**options)
    data = torch.Generator().manual_seed(100 + rank)
    losses = []
    with joined:
        for _ in range(3 + 2 * rank):
            x, y = torch.randn(4, 8, generator=data), torch.randint(3, (4,), generator=data)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return {**layers.state_dict(), "losses": torch.stack(losses)}


if __name__ == "__main__":  # torchrun --nproc-per-node 3 uneven.py gloo
    print(train(sys.argv[1])["losses"])
    dist.destroy_process_group()
