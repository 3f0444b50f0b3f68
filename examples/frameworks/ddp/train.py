# SPDX-License-Identifier: BSD-3-Clause
"""DistributedDataParallel: each rank has the whole model, and a part of each batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compare import backend, report, steps

dist.init_process_group(backend)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)
)
model = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
data = torch.Generator().manual_seed(1 + dist.get_rank())
for step in steps(150):
    x = torch.randn(16, 256, generator=data)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
report({**model.module.state_dict(), "loss": loss.detach()}, dist.get_rank())
dist.destroy_process_group()
