# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll.Options`` where shmcoll._C has none."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Backend

_TorchOptions: Any = Backend.Options
DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)
check: Callable[[datetime.timedelta, str], None]  # the glue's, which sets it


class Options(_TorchOptions):  # type: ignore[misc]
    """Options of one group, as shmcoll._C has them (_C.pyi)."""

    def __init__(
        self,
        timeout: datetime.timedelta = DEFAULT_TIMEOUT,
        tuning: str = "",
        *,
        _backend: str = "shmcoll",
        **unknown: Any,
    ) -> None:
        if unknown or not isinstance(timeout, datetime.timedelta) or not isinstance(tuning, str):
            raise TypeError(
                "shmcoll.Options: incompatible constructor arguments: timeout must be a datetime.timedelta "
                f"and tuning a str, got {timeout!r} and {tuning!r} {unknown or ''}"
            )
        super().__init__(_backend, timeout)
        check(timeout, tuning)
        self.tuning = tuning

    def __repr__(self) -> str:
        return f"shmcoll.Options(timeout={self._timeout!r}, tuning={self.tuning!r})"

    @staticmethod
    def _for_gloo(timeout: datetime.timedelta) -> Options:
        return Options(timeout, _backend="gloo")

    def __reduce__(self) -> Any:
        state = (self.backend, self.tuning, self.group_name, self.global_ranks_in_group)
        return _restored, (self._timeout, *state)

    def __copy__(self) -> Options:
        function, arguments = self.__reduce__()
        made: Options = function(*arguments)
        return made

    def __deepcopy__(self, memo: dict[Any, Any]) -> Options:
        return self.__copy__()


Options.__module__ = "shmcoll"


def _restored(
    timeout: datetime.timedelta, backend: str, tuning: str, group_name: str, ranks: list[int]
) -> Options:
    made: Any = Options(timeout, _backend=backend)
    made.tuning = tuning
    made.group_name = group_name
    made.global_ranks_in_group = ranks
    options: Options = made
    return options
