# SPDX-License-Identifier: BSD-3-Clause
"""Cases of what torch builds on collectives: functional collectives, DTensor, FSDP2.

What only moves bytes, or sums them in shmcoll, must give the bits that CPU tensors give. What is
multiplied on a GPU gives other bits than on a CPU: there the same steps without sharding, on the
same device, are what is compared with, and how close they must be is said.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import oracle
from cases import Team, Tensors, case

# How far a parameter may be off, as a share of how far it has come. bfloat16 keeps 8 bits.
CLOSE, CLOSE_BF16 = 1e-3, 0.1
STEPS = 3


def beside(team: Team, call: Callable[[torch.device], Tensors]) -> str:
    """The call for the CPU, then for the device: the same bits."""
    want, got = call(torch.device("cpu")), call(team.device)
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        if one.device.type != team.device.type:
            return f"result {number} is on {one.device}"
        difference = oracle.differ(one.cpu(), other)
        if difference:
            return f"result {number}: {difference}"
    return ""


def mesh_of(team: Team, device: torch.device, *shape: int) -> DeviceMesh:
    sizes = shape or (team.world,)
    return init_device_mesh(device.type, sizes, mesh_dim_names=("row", "column")[: len(sizes)])


def sample(count: int, seed: int) -> torch.Tensor:
    return oracle.plain(torch.float32, count, seed=seed)


# ---- functional collectives ----


@case("functional: all_gather, reduce_scatter, all_reduce, broadcast")
def functional_moves(team: Team) -> str:
    def call(device: torch.device) -> Tensors:
        group = dist.group.WORLD
        t = sample(6 * team.world, seed=team.me).reshape(-1, 3).to(device)
        found = [
            functional.all_gather_tensor(t, 0, group),
            functional.all_gather_tensor(t, 1, group),
            functional.reduce_scatter_tensor(t, "sum", 0, group),
            functional.reduce_scatter_tensor(t, "avg", 0, group),
            functional.all_reduce(t, "max", group),
            functional.broadcast(t, team.world - 1, group),
            *functional.all_reduce_coalesced([t, t * 2], "sum", group),
        ]
        return [functional.wait_tensor(one) for one in found]

    return beside(team, call)


@case("functional: all_to_all with and without splits")
def functional_all_to_all(team: Team) -> str:
    def call(device: torch.device) -> Tensors:
        group = dist.group.WORLD
        sent = [(team.me + r) % 3 for r in range(team.world)]
        t = sample(4 * sum(sent), seed=team.me).reshape(-1, 4).to(device)
        even = sample(4 * team.world, seed=team.me).to(device)
        found = [
            functional.all_to_all_single(t, sent, sent, group),
            functional.all_to_all_single(even, None, None, group),
        ]
        return [functional.wait_tensor(one) for one in found]

    return beside(team, call)


# ---- DTensor ----

LAYOUTS = {
    "rows": Shard(0),
    "columns": Shard(1),
    "copies": Replicate(),
}


@case("DTensor: every layout into every other")
def redistribute(team: Team) -> str:
    def call(device: torch.device) -> Tensors:
        mesh = mesh_of(team, device)
        # 11 rows and 10 columns: no multiple of most worlds, and the last shards may be empty.
        whole = sample(110, seed=1).reshape(11, 10).to(device)
        parts = DTensor.from_local(
            sample(110, seed=team.me).reshape(11, 10).to(device), mesh, (Partial(),)
        )
        found = []
        for layout in LAYOUTS.values():
            tensor = distribute_tensor(whole, mesh, (layout,))
            found += [tensor.redistribute(mesh, (to,)).to_local() for to in LAYOUTS.values()]
            found.append(tensor.full_tensor())
            found.append(parts.redistribute(mesh, (layout,)).to_local())
        return [one.contiguous() for one in found]

    return beside(team, call)


@case("DTensor: over a mesh of two dimensions")
def mesh_of_two(team: Team) -> str:
    def call(device: torch.device) -> Tensors:
        mesh = mesh_of(team, device, 2, team.world // 2)
        whole = sample(120, seed=2).reshape(12, 10).to(device)
        tensor = distribute_tensor(whole, mesh, (Shard(0), Shard(1)))
        parts = DTensor.from_local(
            sample(120, seed=team.me).reshape(12, 10).to(device), mesh, (Partial("avg"), Partial())
        )
        found = [
            tensor.full_tensor(),
            tensor.redistribute(mesh, (Shard(1), Replicate())).to_local(),
            tensor.redistribute(mesh, (Replicate(), Shard(0))).to_local(),
            parts.full_tensor(),
            parts.redistribute(mesh, (Shard(0), Shard(1))).to_local(),
        ]
        return [one.contiguous() for one in found]

    return beside(team, call)


def network(hidden: int = 43) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(24, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, 24),
        torch.nn.Linear(24, 8),
    )


def whole(t: torch.Tensor) -> torch.Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach()


def compare(got: torch.nn.Module, want: torch.nn.Module, begun: Tensors, close: float) -> str:
    rows = zip(got.named_parameters(), want.parameters(), begun, strict=True)
    for (name, one), other, first in rows:
        off = (whole(one) - other).abs().max().item()
        moved = (other - first).abs().max().item()
        if not 0 <= off <= close * moved or moved == 0:  # nan is neither
            return f"{name} is {off:.2g} off, and has moved by {moved:.2g}"
    return ""


def copies(model: torch.nn.Module) -> Tensors:
    return [p.detach().clone() for p in model.parameters()]


@case("DTensor: a layer split by columns and by rows")
def tensor_parallel(team: Team) -> str:
    lone = network(hidden=48).to(team.device)
    plan: dict[str, Any] = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    split = parallelize_module(copy.deepcopy(lone), mesh_of(team, team.device), plan)
    begun, inputs = copies(lone), sample(32 * 24, seed=5).reshape(32, 24).to(team.device)
    for model in (lone, split):  # not split as a whole: on a GPU one call would take all parameters
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(inputs / 100).square().mean().backward()
            optimizer.step()
    return compare(split, lone, begun, CLOSE)


# ---- FSDP2 ----


def train_lone(team: Team, model: torch.nn.Module) -> None:
    """What sharded training must come to: gradients are the mean of all ranks'."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(team.world):
            loss = model(batch(team, rank, step)).square().mean() / team.world
            loss.backward()
        optimizer.step()


def batch(team: Team, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 24, generator=generator).to(team.device)


def train_sharded(team: Team, mesh: DeviceMesh, bf16: bool = False, reshard: bool = True) -> str:
    lone = network().to(team.device)
    model, begun = copy.deepcopy(lone), copies(lone)
    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    for (name, one), other in zip(model.named_parameters(), lone.parameters(), strict=True):
        if not torch.equal(whole(one), other):
            return f"{name} is not what was sharded"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(team, team.me, step)).float().square().mean().backward()
        optimizer.step()
    train_lone(team, lone)
    return compare(model, lone, begun, CLOSE_BF16 if bf16 else CLOSE)


@case("FSDP2: steps of a small network")
def sharded(team: Team) -> str:
    return train_sharded(team, mesh_of(team, team.device))


@case("FSDP2: parameters stay whole between forward and backward")
def unsharded(team: Team) -> str:
    return train_sharded(team, mesh_of(team, team.device), reshard=False)


@case("FSDP2: bfloat16 parameters, float32 gradients")
def mixed_precision(team: Team) -> str:
    return train_sharded(team, mesh_of(team, team.device), bf16=True)


@case("FSDP2: replicas of shards")
def replicas(team: Team) -> str:
    return train_sharded(team, mesh_of(team, team.device, 2, team.world // 2))
