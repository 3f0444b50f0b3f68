# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed's inference_all_reduce on CPU: what its tensor parallel layers call for each half of a layer."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.comm
import torch
import torch.distributed as dist
from torch import nn

from compare import backend, report, steps

deepspeed.init_distributed(dist_backend=backend)
torch.manual_seed(dist.get_rank())
blocks = [nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(4)]
x = torch.ones(1, 512)
with torch.inference_mode():
    for step in steps(300, warm_up=50):
        for block in blocks:
            part = block(x)
            deepspeed.comm.inference_all_reduce(part)
            x = nn.functional.layer_norm(x + part, (512,))
report({"x": x}, dist.get_rank())
dist.destroy_process_group()
