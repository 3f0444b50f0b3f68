# SPDX-License-Identifier: BSD-3-Clause
"""Accelerate on CPU. It takes the process group that exists, so the group is made before the Accelerator."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from compare import backend, report, steps

dist.init_process_group(backend)
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
x = torch.randn(4800, 256)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
batches = iter(loader)
for step in steps(150):
    x, y = next(batches)
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    accelerator.backward(loss)
    optimizer.step()
mean = accelerator.gather(loss.detach()).mean()
weights = accelerator.unwrap_model(model).state_dict()
report({**weights, "loss": mean}, accelerator.process_index)
dist.destroy_process_group()
