# SPDX-License-Identifier: BSD-3-Clause
"""The operations as calls of torch.distributed, and how a rank joins a group.

Each function returns what is timed: a call for the i-th iteration, with nothing around the call of torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # a C++ class

if TYPE_CHECKING:
    from shmcoll.bench.run.calls import Context

Run = Callable[[int], Any]


class Works(list[Any]):
    """Several works that are waited for as one."""

    def wait(self) -> None:
        for work in self:
            work.wait()


def join(job: dict[str, Any], groups: list[range], mine: int) -> dict[str, Any]:
    """Joins the group of the backend. Returns torch's ``group`` and ``async_op``."""
    backend: str = job["backend"]
    if "shmcoll" in backend and not dist.is_backend_available("shmcoll"):
        importlib.import_module("shmcoll")
    for name in (part.rpartition(":")[2] for part in backend.split(",")):
        if not dist.is_backend_available(name):
            raise LookupError(f"this torch ({torch.__version__}) has no backend of that name")
    timeout = timedelta(seconds=job["timeout_s"])
    dist.init_process_group(
        backend,
        store=FileStore(job["store"], job["world_size"]),
        rank=job["rank"],
        world_size=job["world_size"],
        timeout=timeout,
    )
    how: dict[str, Any] = {}
    if len(groups) > 1:
        how["group"] = [dist.new_group(list(ranks), timeout=timeout) for ranks in groups][mine]
    if job["mode"] in ("throughput", "overlap"):
        how["async_op"] = True
    return how


def tuned(text: str, job: dict[str, Any]) -> Any:
    """A group of all ranks with these settings of shmcoll."""
    options = importlib.import_module("shmcoll").Options(tuning=text)
    return dist.new_group(pg_options=options, timeout=timedelta(seconds=job["timeout_s"]))


def tuning_of(group: Any) -> dict[str, float]:
    """The values that a group of shmcoll has; infinity: never."""
    pairs = importlib.import_module("shmcoll").describe(group, internals=True).items()
    values = {key[7:]: value for key, value in pairs if key.startswith("tuning.")}
    return {
        key: float("inf") if value == "never" else float(value) for key, value in values.items()
    }


def leave(group: Any = None) -> None:
    """A group, or all."""
    if group is not None or dist.is_initialized():
        dist.destroy_process_group(group)


def all_reduce(context: Context, data: torch.Tensor) -> Run:
    return lambda i: dist.all_reduce(data, **context.how)


def broadcast(context: Context, data: torch.Tensor) -> Run:
    members, how = context.members, context.how
    return lambda i: dist.broadcast(data, members[i % len(members)], **how)


def reduce(context: Context, data: torch.Tensor) -> Run:
    members, how = context.members, context.how
    return lambda i: dist.reduce(data, members[i % len(members)], **how)


# Newer torches warn of the older name in each call, which takes a quarter of an all_gather of 8 bytes.
ALL_GATHER, REDUCE_SCATTER = (
    new if hasattr(dist, new) else old
    for new, old in (
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    )
)


def all_gather(context: Context, mine: torch.Tensor, everyone: torch.Tensor) -> Run:
    call = getattr(dist, ALL_GATHER)
    return lambda i: call(everyone, mine, **context.how)


def reduce_scatter(context: Context, mine: torch.Tensor, everyone: torch.Tensor) -> Run:
    call = getattr(dist, REDUCE_SCATTER)
    return lambda i: call(mine, everyone, **context.how)


def all_to_all(context: Context, got: torch.Tensor, given: torch.Tensor) -> Run:
    return lambda i: dist.all_to_all_single(got, given, **context.how)


def _rooted(context: Context, mine: torch.Tensor, everyone: torch.Tensor, operation: Any) -> Run:
    """Between a rank's own tensor and the list of all, which only the root has."""
    blocks = list(everyone.chunk(context.world_size))

    def run(i: int) -> Any:
        root = i % context.world_size
        blocks_here = blocks if context.rank == root else None
        return operation(mine, blocks_here, context.members[root], **context.how)

    return run


def gather(context: Context, mine: torch.Tensor, everyone: torch.Tensor) -> Run:
    return _rooted(context, mine, everyone, dist.gather)


def scatter(context: Context, mine: torch.Tensor, everyone: torch.Tensor) -> Run:
    return _rooted(context, mine, everyone, dist.scatter)


def sendrecv(
    context: Context, given: torch.Tensor, following: int, got: torch.Tensor, before: int
) -> Run:
    """Sends to one rank of the group, and receives from another one."""
    to, of = context.members[following], context.members[before]
    group = context.how.get("group")

    def run(i: int) -> Any:
        sending = dist.P2POp(dist.isend, given, to, group)
        receiving = dist.P2POp(dist.irecv, got, of, group)
        works = Works(dist.batch_isend_irecv([sending, receiving]))
        return works if context.how.get("async_op") else works.wait()

    return run


def ping_pong(context: Context, given: torch.Tensor, got: torch.Tensor, peer: int) -> Run:
    """The rank of the lower number begins, the other one sends what it got."""
    other, group = context.members[peer], context.how.get("group")

    def begin(i: int) -> None:
        dist.send(given, other, group=group)
        dist.recv(got, other, group=group)

    def answer(i: int) -> None:
        dist.recv(got, other, group=group)
        dist.send(got, other, group=group)

    return begin if context.rank < peer else answer


def barrier(context: Context) -> Run:
    return lambda i: dist.barrier(**context.how)
