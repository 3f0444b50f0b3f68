# SPDX-License-Identifier: BSD-3-Clause
"""Direct calls in a graph of torch.compile.

Dynamo follows these functions to the operators of src/backend/compiled.cpp. With the glue in Python there
are none, and a graph has what it has for the functions of torch.distributed. So does one that is exported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from shmcoll import _glue, _load

_HAS_OPERATORS = not _load.is_python(_glue.glue)
_OPERATORS: Any = torch.ops.shmcoll
_AUTOGRAD: Any = torch.autograd
_COMPILER: Any = torch.compiler
_NO_MEMBER: Any = dist.GroupMember.NON_GROUP_MEMBER
_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

# Newer torches warn in each call of the older name.
TORCHS_ALL_GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
TORCHS_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

# torch.compiler.disable() would load all of Dynamo, which takes seconds, in programs that never compile.
_disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]

with torch.inference_mode(False):
    # Each operator says that it writes to it, so they keep their order.
    _ORDER = torch.zeros(1, dtype=torch.uint8, device="cpu")


def _has_operators() -> bool:
    """False: the graph gets torch's own operators. An exported program may not write to ``_ORDER``."""
    # Dynamo of older torches takes is_exporting() for True in every graph; it reads this variable as it is.
    return _HAS_OPERATORS and not _COMPILER._is_exporting_flag


def _name(group: Any) -> str:
    """The group's name, by which a graph knows it."""
    from torch.distributed._functional_collectives import _resolve_group_name

    world: Any = dist.group.WORLD
    return _resolve_group_name(world if group is None else group)


@_disable  # type: ignore[untyped-decorator]
def _outside(function: Any, *arguments: Any) -> None:
    """Calls it between two graphs; with ``fullgraph=True`` Dynamo says that this cannot be."""
    function(*arguments)


def _by_members(call: Callable[..., None]) -> Callable[..., None]:
    """With a rank that is not in the group, whose argument is the last, the call does nothing."""

    @functools.wraps(call)
    def checked(*arguments: Any) -> None:
        if arguments[-1] is not _NO_MEMBER:
            call(*arguments)

    return checked


def _text(op: Any) -> str:
    """What the operators call a reduction; "" for one that they do not know.

    Dynamo of torch 2.8 can neither hash nor compare a reduction. It can ask ``is``, but up to torch 2.11
    it then runs the graph of one reduction for another. By the name it makes a graph for each.
    """
    name: str = op.name if isinstance(op, dist.ReduceOp.RedOpType) else ""
    return name.lower() if name in _NAMES else ""


def _store(tensor: torch.Tensor, result: torch.Tensor) -> None:
    """Puts what an operator has written where the caller wants it."""
    if tensor.requires_grad:  # autograd knows nothing of the call, as in torch.distributed
        with torch.no_grad(), _AUTOGRAD._unsafe_preserve_version_counter(tensor):
            tensor.copy_(result)
    else:
        tensor.copy_(result)


@_by_members
def all_reduce(tensor: torch.Tensor, op: Any, group: Any) -> None:
    text = _text(op)
    if not text:
        _outside(dist.all_reduce, tensor, op, group)  # a factor, or an error
    elif _has_operators():
        own = torch.empty_like(tensor)
        _OPERATORS.all_reduce_(own, tensor, _ORDER, text, _name(group))
        _store(tensor, own)
    else:
        dist.all_reduce(tensor, op, group)


@_by_members
def broadcast(tensor: torch.Tensor, src: int, group: Any) -> None:
    if _has_operators():
        root = dist.get_process_group_ranks(group).index(src)
        own = torch.empty_like(tensor)
        _OPERATORS.broadcast_(own, tensor, _ORDER, root, _name(group))
        if dist.get_rank() != src:  # the root's tensor may be one that nothing can be stored to
            _store(tensor, own)
    else:
        dist.broadcast(tensor, src, group)


@_by_members
def all_gather_into(output: torch.Tensor, input: torch.Tensor, group: Any) -> None:
    if _has_operators():
        own = torch.empty_like(output)
        _OPERATORS.all_gather_into_(own, input, _ORDER, _name(group))
        _store(output, own)
    else:
        TORCHS_ALL_GATHER(output, input, group)


@_by_members
def reduce_scatter_into(output: torch.Tensor, input: torch.Tensor, op: Any, group: Any) -> None:
    text = _text(op)
    if not text:
        _outside(TORCHS_REDUCE_SCATTER, output, input, op, group)
    elif _has_operators():
        own = torch.empty_like(output)
        _OPERATORS.reduce_scatter_into_(own, input, _ORDER, text, _name(group))
        _store(output, own)
    else:
        TORCHS_REDUCE_SCATTER(output, input, op, group)


@_by_members
def all_to_all(output: torch.Tensor, input: torch.Tensor, group: Any) -> None:
    if _has_operators():
        own = torch.empty_like(output)
        _OPERATORS.all_to_all_(own, input, _ORDER, _name(group))
        _store(output, own)
    else:
        dist.all_to_all_single(output, input, group=group)


@_by_members
def barrier(group: Any) -> None:
    if _has_operators():
        _OPERATORS.barrier_(_ORDER, _name(group))
    else:
        dist.barrier(group)
