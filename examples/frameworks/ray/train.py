# SPDX-License-Identifier: BSD-3-Clause
"""Ray Train on CPU: Ray starts the two workers and makes their process group."""

import ray
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

from compare import backend, report, steps


def train():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in steps(150):
        x = torch.randn(16, 256, generator=data)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    report({**model.module.state_dict(), "loss": loss.detach()}, dist.get_rank())


ray.init(num_cpus=3, include_dashboard=False)
trainer = TorchTrainer(
    train,
    torch_config=TorchConfig(backend=backend),
    scaling_config=ScalingConfig(num_workers=2),
)
trainer.fit()
ray.shutdown()
