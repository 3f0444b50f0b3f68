# SPDX-License-Identifier: BSD-3-Clause
"""Tensor parallelism with DTensor: each rank has a slice of every weight. One token at a time."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from compare import backend, report, steps

dist.init_process_group(backend)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)) for _ in range(4)]
for block in blocks:
    parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
x = torch.randn(1, 512)
with torch.inference_mode():
    for step in steps(300, warm_up=50):
        for block in blocks:
            x = nn.functional.layer_norm(x + block(x), (512,))
report({"x": x}, dist.get_rank())
dist.destroy_process_group()
