# SPDX-License-Identifier: BSD-3-Clause
"""Data parallel training: buckets, buffers, branches that a step does not use, accumulation."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Has buffers (those of BatchNorm), and a branch that some steps leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.wide = nn.Linear(8 * 36, 64)
        self.branch = nn.Linear(64, 64)
        self.last = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, branch: bool) -> torch.Tensor:
        x = self.wide(self.norm(self.conv(x)).relu().flatten(1)).tanh()
        if branch:
            x = x + self.branch(x).tanh()
        return self.last(x)


def train(
    backend: str,
    steps: int = 6,
    unused: bool = False,
    accumulate: bool = False,
    compiler: str = "",
    **options: Any,
) -> dict[str, torch.Tensor]:
    """compiler: a backend of torch.compile. options: those of DistributedDataParallel."""
    dist.init_process_group(backend)
    torch.manual_seed(dist.get_rank())  # DDP hands out what rank 0 has
    model = DistributedDataParallel(Net(), find_unused_parameters=unused, **options)
    call = torch.compile(model, backend=compiler) if compiler else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for last in (False, True) if accumulate else (True,):
            x, y = torch.randn(6, 1, 8, 8, generator=data), torch.randint(4, (6,), generator=data)
            with nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(call(x, not unused or step % 3 == 1), y)
                loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    gradients = {f"grad.{name}": p.grad for name, p in model.module.named_parameters()}
    used = {name: grad for name, grad in gradients.items() if grad is not None}
    return {**model.module.state_dict(), **used, "losses": torch.stack(losses)}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 ddp.py gloo
    print(train(sys.argv[1])["losses"])
    dist.destroy_process_group()
