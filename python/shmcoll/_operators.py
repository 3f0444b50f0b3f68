# SPDX-License-Identifier: BSD-3-Clause
"""Groups by the glue's operators, for a Python that shmcoll._C does not fit."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Store

from shmcoll import _options
from shmcoll._options import Options

_CPU = torch.device("cpu")
_OPERATORS: Any = torch.ops.shmcoll
_ProcessGroup: Any = ProcessGroup  # its stubs lack one form of the constructor


def _milliseconds(timeout: datetime.timedelta) -> int:
    return timeout // datetime.timedelta(milliseconds=1)


def _check_options(timeout: datetime.timedelta, tuning: str) -> None:
    _OPERATORS.check_options(_milliseconds(timeout), tuning)


_options.check = _check_options


def make(store: Store, rank: int, size: int, options: Any) -> Any:
    """Meets the other ranks through the store; blocks until all are there."""
    group: Any = ProcessGroup(store, rank, size)
    _OPERATORS.attach(
        group.boxed(),
        _milliseconds(options._timeout),
        options.group_name,
        list(options.global_ranks_in_group),
        options.tuning,
        options.backend,
    )
    return group._get_backend(_CPU)


def info(backend: Any) -> str:
    """The lines of key=value about a group."""
    group: Any = _ProcessGroup(backend.rank(), backend.size())
    group._register_backend(_CPU, ProcessGroup.BackendType.CUSTOM, backend)
    text: str = _OPERATORS.info(group.boxed())
    return text


__all__ = ["Options", "info", "make"]
