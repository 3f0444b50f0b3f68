# SPDX-License-Identifier: BSD-3-Clause
"""Training that is saved, lost, loaded into another layout, and goes on as if nothing had been."""

from __future__ import annotations

import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def build(layout: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Linear(16, 25), nn.Tanh(), nn.Linear(25, 4))
    if layout == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for number in numbers:
        data = torch.Generator().manual_seed(100 * number + dist.get_rank())
        x, y = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "note": {"steps": 3}}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(
    backend: str, asynchronous: bool = False, before: str = "ddp", after: str = "fsdp"
) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    where = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where)
    model, optimizer = build(before, seed=0)
    steps(model, optimizer, range(3))
    if asynchronous:
        apart = dist.new_group()  # the writing thread and the training must not share one
        writing = dcp.async_save(
            state(model, optimizer), checkpoint_id=where[0], process_group=apart
        )
        steps(model, optimizer, range(3, 5))  # training goes on meanwhile
        writing.result()
    else:
        dcp.save(state(model, optimizer), checkpoint_id=where[0])

    model, optimizer = build(after, seed=7)
    found = state(model, optimizer)
    found["note"] = {"steps": 0}
    dcp.load(found, checkpoint_id=where[0])
    set_state_dict(
        model,
        optimizer,
        model_state_dict=found["model"],
        optim_state_dict=found["optimizer"],
    )
    steps(model, optimizer, range(found["note"]["steps"], 6))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(where[0])
    out = dict(get_state_dict(model, optimizer)[0])
    out |= {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    return {name: whole(tensor.detach()) for name, tensor in out.items()}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 checkpoint.py gloo
    print(train(sys.argv[1])["2.bias"])
    dist.destroy_process_group()
