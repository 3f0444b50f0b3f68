# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed on CPU: ZeRO stages 0 to 3, one after the other in the same process."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from compare import backend, report, steps

deepspeed.init_distributed(dist_backend=backend)


def config(stage):
    return {
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }


results = {}
for stage in range(4):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(stage))
    data = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in steps(40):
        x = torch.randn(16, 256, generator=data)
        loss = (engine(x) - x.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
    results[f"loss of stage {stage}"] = loss.detach()
    engine.destroy()
report(results, dist.get_rank())
dist.destroy_process_group()
