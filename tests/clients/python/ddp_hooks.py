# SPDX-License-Identifier: BSD-3-Clause
"""Data parallel training with communication hooks: gradients travel smaller, or another way."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def bf16(state, bucket):
    """DDP admits the hook itself, by its name, on GPUs only."""
    return default_hooks.bf16_compress_hook(state, bucket)


def scattered(state, bucket):
    """All-reduce in two halves, each with a future of its own."""
    flat, world = bucket.buffer(), dist.get_world_size()
    rows = nn.functional.pad(flat, (0, -len(flat) % world)).div_(world)
    mine = torch.empty(len(rows) // world)
    dist.reduce_scatter_tensor(mine, rows)
    future = dist.all_gather_into_tensor(rows, mine, async_op=True).get_future()
    return future.then(lambda _: rows[: len(flat)])


def register(model: DistributedDataParallel, name: str) -> None:
    if name.startswith("powersgd"):
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=2,
            start_powerSGD_iter=2,
            min_compression_rate=1,
        )
        hook = powerSGD_hook.powerSGD_hook
        if name == "powersgd of fp16":
            hook = default_hooks.fp16_compress_wrapper(hook)
        model.register_comm_hook(state, hook)
    else:
        hooks = {
            "allreduce": default_hooks.allreduce_hook,
            "fp16": default_hooks.fp16_compress_hook,
            "bf16": bf16,
            "scattered": scattered,
        }
        model.register_comm_hook(None, hooks[name])


def train(
    backend: str, hook: str, steps: int = 6, bucket_cap_mb: float = 25
) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 65), nn.Tanh(), nn.Linear(65, 40), nn.Linear(40, 4))
    model = DistributedDataParallel(layers, bucket_cap_mb=bucket_cap_mb)
    register(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        x, y = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    gradients = {f"grad.{name}": p.grad for name, p in layers.named_parameters()}
    return {**layers.state_dict(), **gradients}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 ddp_hooks.py gloo fp16
    print(train(*sys.argv[1:])["3.bias"])
    dist.destroy_process_group()
