# SPDX-License-Identifier: BSD-3-Clause
"""The optimizer's state is split over the ranks (ZeroRedundancyOptimizer)."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def train(
    backend: str, overlap: bool = False, idle: int = 0, steps: int = 6, bucket_view: bool = False
) -> dict[str, torch.Tensor]:
    """overlap: the optimizer steps while gradients are still summed; the first two steps change
    nothing, because it watches how DDP forms its buckets. idle: so many such steps without it."""
    dist.init_process_group(backend)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 48), nn.Linear(48, 4))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        torch.optim.Adam,
        parameters_as_bucket_view=bucket_view,
        overlap_with_ddp=overlap,
        lr=0.01,
    )
    if overlap:
        hook = ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer)
        model.register_comm_hook(None, hook)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(steps):
        x, y = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if step >= idle:
            optimizer.step()
    out = dict(layers.state_dict())
    if not overlap:
        optimizer.consolidate_state_dict(to=0)
        if dist.get_rank() == 0:
            for index, state in optimizer.state_dict()["state"].items():
                out |= {f"adam.{index}.{name}": value for name, value in state.items()}
    return out


if __name__ == "__main__":  # torchrun --nproc-per-node 2 zero.py gloo
    print(train(sys.argv[1])["3.bias"])
    dist.destroy_process_group()
