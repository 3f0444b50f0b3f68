# SPDX-License-Identifier: BSD-3-Clause
"""Fully sharded training with fully_shard: every rank holds a part of every parameter.

With `replicas` the ranks form a mesh: parameters are sharded within a row, rows are replicas (HSDP).
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


def shard(model: nn.Sequential, replicas: int, bf16: bool, reshard: bool) -> FSDPModule:
    world = dist.get_world_size()
    shape, names = ((world,), ("shard",))
    if replicas > 1:
        shape, names = (replicas, world // replicas), ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        if isinstance(layer, Block):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


def train(
    backend: str,
    replicas: int = 1,
    bf16: bool = False,
    reshard: bool = True,
    accumulate: bool = False,
    divisor: float = 0,
    plain_sums: bool = False,
    groups_memory: bool = False,
    steps: int = 5,
) -> dict[str, torch.Tensor]:
    """divisor: of the gradients' sum; 0 means the number of ranks."""
    dist.init_process_group(backend)
    torch.manual_seed(0)
    # 25 rows are no multiple of any number of ranks here: the last shard is smaller.
    model = nn.Sequential(nn.Linear(16, 25), Block(25), Block(25), nn.Linear(25, 4))
    shard(model, replicas, bf16, reshard)
    if divisor:
        model.set_gradient_divide_factor(divisor)
    if plain_sums:
        model.set_force_sum_reduction_for_comms(True)
    if groups_memory:  # gloo has none to give
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.set_allocate_memory_from_process_group_for_comm(True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    norms = []
    for _ in range(steps):
        optimizer.zero_grad()
        for last in (False, True) if accumulate else (True,):
            model.set_requires_gradient_sync(last)
            x, y = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
            nn.functional.cross_entropy(model(x).float(), y).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(norm.full_tensor().detach())
        optimizer.step()
    shards = {f"shard.{name}": p.to_local().detach() for name, p in model.named_parameters()}
    gradients = {f"grad.{name}": p.grad.to_local() for name, p in model.named_parameters()}
    whole = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    return {**shards, **gradients, **whole, "norms": torch.stack(norms)}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 fsdp2.py gloo
    print(train(sys.argv[1])["norms"])
    dist.destroy_process_group()
