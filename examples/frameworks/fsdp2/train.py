# SPDX-License-Identifier: BSD-3-Clause
"""FSDP2 (fully_shard): each rank has a part of every parameter, gradient and optimizer state."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from compare import backend, report, steps

dist.init_process_group(backend)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)
)
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(1 + dist.get_rank())
for step in steps(150):
    x = torch.randn(16, 256, generator=data)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
weights = {name: weight.to_local() for name, weight in model.state_dict().items()}
report({**weights, "loss": loss.detach()}, dist.get_rank())
dist.destroy_process_group()
