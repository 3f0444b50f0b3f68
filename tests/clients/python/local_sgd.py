# SPDX-License-Identifier: BSD-3-Clause
"""Post-local SGD: after a while gradients are averaged in pairs only, and parameters now and then."""

from __future__ import annotations

import sys
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

WARMUP = 2


def train(backend: str, hierarchical: bool = False, steps: int = 7) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    pair, _ = dist.new_subgroups(group_size=2)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 4))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.002)
    model.register_comm_hook(PostLocalSGDState(None, pair, WARMUP), post_localSGD_hook)
    if hierarchical:
        periods = OrderedDict([(2, 2), (4, world)])  # pairs every 2 steps, all of them every 4
        averager = hierarchical_model_averager.HierarchicalModelAverager(periods, WARMUP)
    else:
        averager = averagers.PeriodicModelAverager(period=3, warmup_steps=WARMUP)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), averager)
    data = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        x, y = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return dict(layers.state_dict())


if __name__ == "__main__":  # torchrun --nproc-per-node 4 local_sgd.py gloo
    print(train(sys.argv[1])["2.bias"])
    dist.destroy_process_group()
