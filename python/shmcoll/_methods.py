# SPDX-License-Identifier: BSD-3-Clause
"""Direct calls where there is no shmcoll._C: by the methods of a backend.

What is plain, what True and False mean, and why, stands in src/backend/direct.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceScatterOptions,
)

_C: Any = torch._C
_KEYS = ("CPU", "AutogradCPU", "ADInplaceOrView", "BackendSelect", "AutocastCPU", "AutocastCUDA")


def _bits(keys: tuple[str, ...]) -> int:
    bits = 0
    for key in keys:
        bits |= _C.DispatchKeySet(getattr(_C.DispatchKey, key)).raw_repr()
    return bits


_PASSED_OVER = _bits(_KEYS)


def _is_plain(tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_complex():
        return False
    if tensor.requires_grad and torch.is_grad_enabled():
        return False
    keys = _C._dispatch_keys(tensor) | _C._dispatch_tls_local_include_set()
    return not keys.raw_repr() & ~_PASSED_OVER


def _synchronous(options: Any, **more: Any) -> Any:
    options.asyncOp = False
    for name, value in more.items():
        setattr(options, name, value)
    return options


def _ended(work: Any) -> bool:
    if work is not None:
        work.wait()
    return True


class Methods:
    """Has the methods of shmcoll._C._Direct."""

    def __init__(self, backend: Any, members: list[int]) -> None:
        self.backend = backend
        self.members = members  # numbered as in the whole job

    def all_reduce(self, tensor: Any, op: Any) -> bool:
        if not _is_plain(tensor) or not isinstance(op, (ReduceOp, ReduceOp.RedOpType)):
            return False
        options = _synchronous(AllreduceOptions(), reduceOp=op)
        return _ended(self.backend.allreduce([tensor], options))

    def broadcast(self, tensor: Any, src: Any) -> bool:
        if not _is_plain(tensor) or type(src) is not int or src not in self.members:
            return False
        options = _synchronous(BroadcastOptions(), rootRank=self.members.index(src))
        return _ended(self.backend.broadcast([tensor], options))

    def all_gather_into(self, output: Any, input: Any) -> bool:
        if not _is_plain(output) or not _is_plain(input):
            return False
        options = _synchronous(AllgatherOptions())
        return _ended(self.backend._allgather_base(output, input, options))

    def reduce_scatter_into(self, output: Any, input: Any, op: Any) -> bool:
        if not _is_plain(output) or not _is_plain(input):
            return False
        if not isinstance(op, (ReduceOp, ReduceOp.RedOpType)):
            return False
        options = _synchronous(ReduceScatterOptions(), reduceOp=op)
        return _ended(self.backend._reduce_scatter_base(output, input, options))

    def all_to_all(self, output: Any, input: Any) -> bool:
        if not _is_plain(output) or not _is_plain(input) or output.dtype != input.dtype:
            return False
        options = _synchronous(AllToAllOptions())
        return _ended(self.backend.alltoall_base(output, input, [], [], options))

    def barrier(self) -> bool:
        return _ended(self.backend.barrier(_synchronous(BarrierOptions())))
