# SPDX-License-Identifier: BSD-3-Clause
"""Data parallel training from a DataLoader, whose workers are forked from a rank of a group."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        data = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=data), torch.randint(3, (), generator=data)


def train(backend: str, workers: int = 2, epochs: int = 2) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    torch.manual_seed(0)
    sampler = DistributedSampler(Points(), shuffle=True, seed=1)
    loader = DataLoader(Points(), batch_size=8, sampler=sampler, num_workers=workers)
    layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    gradients = {f"grad.{name}": p.grad for name, p in layers.named_parameters()}
    return {**layers.state_dict(), **gradients, "losses": torch.stack(losses)}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 loader.py gloo
    print(train(sys.argv[1])["losses"])
    dist.destroy_process_group()
