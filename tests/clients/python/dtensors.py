# SPDX-License-Identifier: BSD-3-Clause
"""DTensor by hand: one tensor over a mesh of ranks, laid out anew, multiplied, differentiated."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def train(backend: str, rows: int = 1) -> dict[str, torch.Tensor]:
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (rows, world // rows), mesh_dim_names=("row", "column"))
    torch.manual_seed(rank)  # distribute_tensor hands out what rank 0 has
    whole = torch.randn(10, 7)
    out = {}
    layouts = {
        "rows": (Shard(0), Shard(0)),
        "columns": (Replicate(), Shard(1)),
        "both": (Shard(0), Shard(1)),
        "copies": (Replicate(), Replicate()),
    }
    for name, layout in layouts.items():
        tensor = distribute_tensor(whole, mesh, layout)
        out[f"{name}.local"] = tensor.to_local()
        for other, target in layouts.items():
            out[f"{name} to {other}"] = tensor.redistribute(mesh, target).to_local()
    parts = DTensor.from_local(torch.randn(10, 7), mesh, (Partial(), Partial("avg")))
    for name, layout in layouts.items():
        out[f"parts to {name}"] = parts.redistribute(mesh, layout).to_local()

    left = distribute_tensor(whole, mesh, layouts["both"]).requires_grad_()
    right = distribute_tensor(whole.T, mesh, layouts["columns"]).requires_grad_()
    product = (left @ right).tanh()
    product.sum().backward()
    out["product"] = product.full_tensor()
    out["gradient left"] = left.grad.full_tensor()
    out["gradient right"] = right.grad.full_tensor()
    out["norm"] = left.norm().full_tensor()
    out["largest"] = right.max().full_tensor()
    out["softmax"] = left.softmax(1).full_tensor()
    return {name: tensor.detach() for name, tensor in out.items()}


if __name__ == "__main__":  # torchrun --nproc-per-node 4 dtensors.py gloo
    print(train(sys.argv[1], rows=2)["product"])
    dist.destroy_process_group()
