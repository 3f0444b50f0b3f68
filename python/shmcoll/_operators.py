# SPDX-License-Identifier: BSD-3-Clause
"""Groups by the glue's operators, for a Python that shmcoll._C does not fit."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup, Store

_TorchOptions: Any = Backend.Options
_CPU = torch.device("cpu")
_OPERATORS: Any = torch.ops.shmcoll
_ProcessGroup: Any = ProcessGroup  # its stubs lack one form of the constructor
_DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)


def _milliseconds(timeout: datetime.timedelta) -> int:
    return timeout // datetime.timedelta(milliseconds=1)


class Options(_TorchOptions):  # type: ignore[misc]
    """Options of one group, as shmcoll._C has them (_C.pyi)."""

    def __init__(self, timeout: datetime.timedelta = _DEFAULT_TIMEOUT, tuning: str = "") -> None:
        super().__init__("shmcoll", timeout)
        _OPERATORS.check_options(_milliseconds(timeout), tuning)
        self.tuning = tuning

    def __repr__(self) -> str:
        return f"shmcoll.Options(timeout={self._timeout!r}, tuning={self.tuning!r})"

    def __reduce__(self) -> Any:
        state = (self.tuning, self.group_name, self.global_ranks_in_group)
        return _restored, (self._timeout, *state)

    def __copy__(self) -> Options:
        function, arguments = self.__reduce__()
        made: Options = function(*arguments)
        return made

    def __deepcopy__(self, memo: dict[Any, Any]) -> Options:
        return self.__copy__()


Options.__module__ = "shmcoll"


def _restored(
    timeout: datetime.timedelta, tuning: str, group_name: str, ranks: list[int]
) -> Options:
    made: Any = Options(timeout)
    made.tuning = tuning
    made.group_name = group_name
    made.global_ranks_in_group = ranks
    options: Options = made
    return options


def make(store: Store, rank: int, size: int, options: Any) -> Any:
    """Meets the other ranks through the store; blocks until all are there."""
    group: Any = ProcessGroup(store, rank, size)
    _OPERATORS.attach(
        group.boxed(),
        _milliseconds(options._timeout),
        options.group_name,
        list(options.global_ranks_in_group),
        options.tuning,
    )
    return group._get_backend(_CPU)


def info(backend: Any) -> str:
    """The lines of key=value about a group."""
    group: Any = _ProcessGroup(backend.rank(), backend.size())
    group._register_backend(_CPU, ProcessGroup.BackendType.CUSTOM, backend)
    text: str = _OPERATORS.info(group.boxed())
    return text
