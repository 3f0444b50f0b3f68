# SPDX-License-Identifier: BSD-3-Clause
"""Direct calls: collectives without torch's dispatcher.

A call of torch.distributed passes through options, checks of its arguments, the dispatcher and a Work. For
a small tensor that takes longer than the operation. The calls here ask the backend at once if that is all
that torch would do in the end; otherwise they call the function of torch.distributed.

In a compiled graph each is an operator (docs/internals/adr/0025-direct-calls.md). Dynamo takes
``is_dynamo_compiling()`` for True; in a running program it is a function that returns False.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.compiler import is_dynamo_compiling
from torch.distributed import ProcessGroup, ReduceOp, distributed_c10d as _c10d

from shmcoll import _glue, _graph
from shmcoll._backend import _check_type, _is_ours

_CPU = torch.device("cpu")
_SUM: Any = ReduceOp.SUM
_NO_MEMBER: Any = dist.GroupMember.NON_GROUP_MEMBER


def _cpu_backend(group: Any) -> Any:
    """Our backend of the group for CPU tensors; None: there is none, torch's wrapper checks its calls, or it may
    be reconfigured: a direct call keeps the one that it began with."""
    if group is _NO_MEMBER or _CPU not in group._device_types:
        return None
    backend = group._get_backend(_CPU)
    if not _is_ours(backend) or hasattr(backend, "wrapped_pg"):
        return None
    return None if getattr(backend, "supports_reconfigure", False) else backend


def _is_everywhere(backend: Any, group: Any) -> bool:
    """Is it the backend for all devices of the group? Then a barrier concerns it alone."""
    return all(group._get_backend(device) is backend for device in group._device_types)


class _Never:
    """In the place of the glue's direct calls, for a group that has none: nothing is done here."""

    def _call(self, *_arguments: object) -> bool:
        return False

    all_reduce = broadcast = all_gather_into = reduce_scatter_into = all_to_all = barrier = _call


class Direct:
    """The collectives of one group, for loops in which the time of each call matters.

    ``shmcoll.direct`` makes it. The methods have the arguments and errors of the functions of the same
    names in ``shmcoll``, without ``group``.
    """

    def __init__(self, group: Any) -> None:
        self._group: Callable[[], Any] = lambda: _NO_MEMBER
        members: list[int] = []
        if group is not _NO_MEMBER:
            self._group = weakref.ref(group)  # a group ends when its other owners let it go
            members = dist.get_process_group_ranks(group)
        backend = _cpu_backend(group)
        at_once: Any = _Never() if backend is None else _glue.direct(backend, members)
        self._all_reduce = at_once.all_reduce
        self._broadcast = at_once.broadcast
        self._all_gather_into = at_once.all_gather_into
        self._reduce_scatter_into = at_once.reduce_scatter_into
        self._all_to_all = at_once.all_to_all
        alone = backend is not None and _is_everywhere(backend, group)
        self._barrier = (at_once if alone else _Never()).barrier

    def all_reduce(self, tensor: torch.Tensor, op: Any = _SUM) -> None:
        """As ``shmcoll.all_reduce``."""
        if is_dynamo_compiling():
            _graph.all_reduce(tensor, op, self._known())
        elif not self._all_reduce(tensor, op):
            dist.all_reduce(tensor, op, self._known())

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """As ``shmcoll.broadcast``."""
        if is_dynamo_compiling():
            _graph.broadcast(tensor, src, self._known())
        elif not self._broadcast(tensor, src):
            dist.broadcast(tensor, src, self._known())

    def all_gather_into(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """As ``shmcoll.all_gather_into``."""
        if is_dynamo_compiling():
            _graph.all_gather_into(output, input, self._known())
        elif not self._all_gather_into(output, input):
            _graph.TORCHS_ALL_GATHER(output, input, self._known())

    def reduce_scatter_into(
        self, output: torch.Tensor, input: torch.Tensor, op: Any = _SUM
    ) -> None:
        """As ``shmcoll.reduce_scatter_into``."""
        if is_dynamo_compiling():
            _graph.reduce_scatter_into(output, input, op, self._known())
        elif not self._reduce_scatter_into(output, input, op):
            _graph.TORCHS_REDUCE_SCATTER(output, input, op, self._known())

    def all_to_all(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """As ``shmcoll.all_to_all``."""
        if is_dynamo_compiling():
            _graph.all_to_all(output, input, self._known())
        elif not self._all_to_all(output, input):
            dist.all_to_all_single(output, input, group=self._known())

    def barrier(self) -> None:
        """As ``shmcoll.barrier``."""
        if is_dynamo_compiling():
            _graph.barrier(self._known())
        elif not self._barrier():
            dist.barrier(self._known())

    def _known(self) -> Any:
        """The group, for a function of torch.distributed."""
        group = self._group()
        if group is None:
            raise ValueError("shmcoll: a direct call of a group that has been destroyed")
        return group


_made: dict[int, Direct] = {}  # by the id of the group, as long as it lives


def direct(group: ProcessGroup | None = None) -> Direct:
    """Returns the collectives of a group as methods: direct calls for a loop.

    Args:
        group: a process group of any backend; the default group if None.

    The methods are ``all_reduce(tensor, op)``, ``broadcast(tensor, src)``,
    ``all_gather_into(output, input)``, ``reduce_scatter_into(output, input, op)``,
    ``all_to_all(output, input)`` and ``barrier()``.

    Raises:
        TypeError: ``group`` is not a process group.
        ValueError: there is no default group.

    Example:
        >>> comm = shmcoll.direct()
        >>> for layer in layers:
        ...     t = layer(t)
        ...     comm.all_reduce(t)
    """
    pg: Any = _c10d._world.default_pg if group is None else group
    found = _made.get(id(pg))
    return _make(pg) if found is None else found


def _make(group: Any) -> Direct:
    if group is None:
        group = _c10d._get_default_group()  # raises: there is none
    if group is _NO_MEMBER:
        return Direct(group)
    _check_type("direct: group", group, ProcessGroup)
    made = Direct(group)
    key = id(group)
    weakref.finalize(group, _made.pop, key, None).atexit = False
    _made[key] = made
    return made


def all_reduce(tensor: torch.Tensor, op: Any = _SUM, group: ProcessGroup | None = None) -> None:
    """Reduces the tensors of all ranks; afterwards each rank's tensor is the result.

    Like ``torch.distributed.all_reduce``, without torch's dispatcher: in place and synchronous. Checks,
    errors, results, and the order of calls on one group are the same. Under ``torch.compile`` it is an
    operator of the graph.

    Args:
        tensor: alike on all ranks. Whatever ``torch.distributed.all_reduce`` takes; a dense CPU tensor
            that needs no gradient is the fast case.
        op: a ``torch.distributed.ReduceOp``.
        group: a process group of any backend; the default group if None.

    Raises:
        TypeError, ValueError: a wrong argument. Nothing has been sent.
        torch.distributed.DistBackendError: another rank has died, is too late or calls something else,
            or the group is closed.

    Example:
        >>> t = torch.ones(4)
        >>> shmcoll.all_reduce(t)
    """
    if is_dynamo_compiling():
        _graph.all_reduce(tensor, op, group)
    elif not direct(group)._all_reduce(tensor, op):
        dist.all_reduce(tensor, op, group)


def broadcast(tensor: torch.Tensor, src: int, group: ProcessGroup | None = None) -> None:
    """Copies the tensor of one rank to all. Like ``torch.distributed.broadcast``; see ``all_reduce``.

    Args:
        tensor: what the rank ``src`` has, or where it goes.
        src: a rank, numbered as in the whole job.
        group: a process group of any backend; the default group if None.

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as ``all_reduce``.
    """
    if is_dynamo_compiling():
        _graph.broadcast(tensor, src, group)
    elif not direct(group)._broadcast(tensor, src):
        dist.broadcast(tensor, src, group)


def all_gather_into(
    output: torch.Tensor, input: torch.Tensor, group: ProcessGroup | None = None
) -> None:
    """Puts the inputs of all ranks one after the other into ``output``.

    Like ``torch.distributed.all_gather_into_tensor``; see ``all_reduce``.

    Args:
        output: with as many elements as all inputs.
        input: alike on all ranks.
        group: a process group of any backend; the default group if None.

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as ``all_reduce``.
    """
    if is_dynamo_compiling():
        _graph.all_gather_into(output, input, group)
    elif not direct(group)._all_gather_into(output, input):
        _graph.TORCHS_ALL_GATHER(output, input, group)


def reduce_scatter_into(
    output: torch.Tensor, input: torch.Tensor, op: Any = _SUM, group: ProcessGroup | None = None
) -> None:
    """Reduces the inputs of all ranks; part i of the result goes to the output of rank i.

    Like ``torch.distributed.reduce_scatter_tensor``; see ``all_reduce``.

    Args:
        output: this rank's part.
        input: with as many elements as all outputs.
        op: a ``torch.distributed.ReduceOp``.
        group: a process group of any backend; the default group if None.

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as ``all_reduce``.
    """
    if is_dynamo_compiling():
        _graph.reduce_scatter_into(output, input, op, group)
    elif not direct(group)._reduce_scatter_into(output, input, op):
        _graph.TORCHS_REDUCE_SCATTER(output, input, op, group)


def all_to_all(
    output: torch.Tensor, input: torch.Tensor, group: ProcessGroup | None = None
) -> None:
    """Sends part i of the input to rank i, whose output has the parts of all ranks in their order.

    Like ``torch.distributed.all_to_all_single`` without split sizes; see ``all_reduce``.

    Args:
        output: as large as the input.
        input: its first dimension is a multiple of the number of ranks.
        group: a process group of any backend; the default group if None.

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as ``all_reduce``.
    """
    if is_dynamo_compiling():
        _graph.all_to_all(output, input, group)
    elif not direct(group)._all_to_all(output, input):
        dist.all_to_all_single(output, input, group=group)


def barrier(group: ProcessGroup | None = None) -> None:
    """Waits until all ranks of the group have called it. Like ``torch.distributed.barrier``.

    Args:
        group: a process group of any backend; the default group if None.

    Raises:
        TypeError: ``group`` is not a process group.
        torch.distributed.DistBackendError: as ``all_reduce``.
    """
    if is_dynamo_compiling():
        _graph.barrier(group)
    elif not direct(group)._barrier():
        dist.barrier(group)
