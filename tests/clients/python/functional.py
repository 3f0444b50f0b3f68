# SPDX-License-Identifier: BSD-3-Clause
"""Functional collectives: they return new tensors, and wait when the result is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

# The names of torch 2.13, and those of earlier ones.
gather_autograd = getattr(funcol, "all_gather_single_autograd", funcol.all_gather_tensor_autograd)
scatter_autograd = getattr(
    funcol, "reduce_scatter_single_autograd", funcol.reduce_scatter_tensor_autograd
)


def each(x: torch.Tensor, group: dist.ProcessGroup) -> dict[str, torch.Tensor]:
    """Every functional collective once; the rows of x are a multiple of the ranks."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    uneven = [1 + (rank + other) % 2 for other in range(world)]
    out = {
        "sum": funcol.all_reduce(x, "sum", group),
        "avg": funcol.all_reduce(x, "avg", group),
        "max": funcol.all_reduce(x * (-1) ** rank, "max", group),
        "rows": funcol.all_gather_tensor(x, 0, group),
        "columns": funcol.all_gather_tensor(x, 1, group),
        "my rows": funcol.reduce_scatter_tensor(x, "sum", 0, group),
        "my columns": funcol.reduce_scatter_tensor(x.T.contiguous(), "avg", 1, group),
        "from the last": funcol.broadcast(x, world - 1, group),
        "exchanged": funcol.all_to_all_single(x, None, None, group),
        "uneven": funcol.all_to_all_single(x[: sum(uneven)], uneven, uneven, group),
    }
    many = funcol.all_reduce_coalesced([x, x.T.contiguous()], "sum", group)
    many += funcol.all_gather_into_tensor_coalesced([x, 2 * x], group)
    many += funcol.reduce_scatter_tensor_coalesced([x, 3 * x], "sum", [0, 0], group)
    return {**out, **{f"coalesced {i}": t for i, t in enumerate(many)}}


def chain(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Collectives between arithmetic; no one waits by hand."""
    y = funcol.all_reduce(x * 2, "sum", group)
    y = funcol.all_gather_tensor(y.tanh(), 0, group)
    return funcol.reduce_scatter_tensor(y + 1, "avg", 0, group) * x


def loss(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Through the forms that have a gradient."""
    rows = gather_autograd(x.tanh(), 0, group)
    mine = scatter_autograd(rows * rows, "sum", 0, group)
    swapped = funcol.all_to_all_single_autograd(mine, None, None, group)
    return (swapped * x).sum()


def train(backend: str, compiler: str = "") -> dict[str, torch.Tensor]:
    """compiler: a backend of torch.compile."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(call, backend=compiler, fullgraph=True) if compiler else call

    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.randn(2 * world, 3, generator=torch.Generator().manual_seed(rank))
    out = {name: t + 0 for name, t in wrap(each)(x, dist.group.WORLD).items()}
    out["chain"] = wrap(chain)(x, dist.group.WORLD)
    x.requires_grad_()
    out["loss"] = wrap(loss)(x, dist.group.WORLD)
    out["loss"].backward()
    out["gradient"] = x.grad
    return {name: t.detach() for name, t in out.items()}


if __name__ == "__main__":  # torchrun --nproc-per-node 2 functional.py gloo
    print(train(sys.argv[1])["chain"])
    dist.destroy_process_group()
