# SPDX-License-Identifier: BSD-3-Clause
"""What try_wheel.py runs under torchrun with two ranks: a sum, a step of DDP, and two calls that differ."""

import os
import sys

import shmcoll

assert "torch" not in sys.modules, "import shmcoll is lazy"

import torch
import torch.distributed as dist

dist.init_process_group("shmcoll")
rank = dist.get_rank()

mine = torch.full((1000,), rank + 1.0)
dist.all_reduce(mine)
assert mine.tolist() == [3.0] * 1000

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
weight = model.weight.detach().clone()
model = torch.nn.parallel.DistributedDataParallel(model)
inputs = torch.arange(8.0).reshape(2, 4) + 1
model(inputs[rank]).sum().backward()
gradient = model.module.weight.grad[0]
assert torch.equal(gradient, inputs.mean(0)), gradient

try:
    dist.all_reduce(torch.ones(2 + rank))
    raise SystemExit("two calls that differ gave no error")
except RuntimeError as error:
    assert "rank 0" in str(error) and "rank 1" in str(error), error

if rank == 0:
    where = os.path.dirname(shmcoll.__file__)
    print(f"right with torch {torch.__version__}: {where}, glue {shmcoll.describe()['glue']}")
os._exit(0)  # the group has failed, as it should
