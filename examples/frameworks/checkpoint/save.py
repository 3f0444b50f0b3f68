# SPDX-License-Identifier: BSD-3-Clause
"""torch.distributed.checkpoint of a model sharded by FSDP2: save, async_save while training goes on, load.

An asynchronous save needs a group of its own, because training uses the default group meanwhile.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from compare import backend, report, steps

kind = sys.argv[1]  # sync or async
dist.init_process_group(backend)
for_saving = dist.new_group(backend=backend)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))


def make(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


model = make(seed=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(1 + dist.get_rank())
folder = os.path.join(os.environ.get("EXAMPLE_RESULTS", "."), "checkpoint")


def writer():
    return dcp.FileSystemWriter(folder, sync_files=False)  # the disk is not what is compared


saving = None
for step in steps(25, warm_up=3):
    if saving:
        saving.result()  # the one before is complete
    if kind == "async":
        saving = dcp.async_save(
            get_model_state_dict(model), storage_writer=writer(), process_group=for_saving
        )
    else:
        dcp.save(get_model_state_dict(model), storage_writer=writer())
    x = torch.randn(16, 256, generator=data)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
if saving:
    saving.result()
dcp.save(get_model_state_dict(model), checkpoint_id=folder)
loaded = make(seed=1)
state = get_model_state_dict(loaded)
dcp.load(state, checkpoint_id=folder)
set_model_state_dict(loaded, state)
for (name, mine), other in zip(model.state_dict().items(), loaded.state_dict().values()):
    assert torch.equal(mine.to_local(), other.to_local()), name
report({name: one.to_local() for name, one in loaded.state_dict().items()}, dist.get_rank())
dist.destroy_process_group()
