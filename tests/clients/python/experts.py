# SPDX-License-Identifier: BSD-3-Clause
"""A mixture of experts: each rank has one, and tokens travel to the expert the router chose."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import nn


class Experts(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, dist.get_world_size())
        torch.manual_seed(10 + dist.get_rank())
        self.expert = nn.Sequential(
            nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(x).softmax(1).max(1)
        order = chosen.argsort(stable=True)
        sent = chosen.bincount(minlength=dist.get_world_size())  # may be 0 for a rank
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sent, received = sent.tolist(), received.tolist()
        there = dnn.all_to_all_single(
            x.new_empty(sum(received), x.size(1)), x[order], received, sent
        )
        back = dnn.all_to_all_single(torch.empty_like(x), self.expert(there), sent, received)
        return x + back[order.argsort()] * weight[:, None]


def train(backend: str, steps: int = 5) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    torch.manual_seed(0)
    first, last = nn.Linear(8, 16), nn.Linear(16, 2)
    experts = Experts(16)
    shared = [*first.parameters(), *experts.router.parameters(), *last.parameters()]
    optimizer = torch.optim.SGD([*shared, *experts.expert.parameters()], 0.1)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(steps):
        x, y = torch.randn(20, 8, generator=data), torch.randn(20, 2, generator=data)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(last(experts(first(x))), y)
        loss.backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()
        losses.append(loss.detach())
    mine = {f"expert.{name}": t for name, t in experts.expert.state_dict().items()}
    return {**mine, **last.state_dict(), "losses": torch.stack(losses)}


if __name__ == "__main__":  # torchrun --nproc-per-node 3 experts.py gloo
    print(train(sys.argv[1])["losses"])
    dist.destroy_process_group()
