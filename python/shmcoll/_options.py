# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll.Options`` where shmcoll._C has none."""

from __future__ import annotations

import datetime
import importlib
import re
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Backend

_TorchOptions: Any = Backend.Options
DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)
check: Callable[[datetime.timedelta, str], None]  # the glue's, which sets it


HOSTS = ("", "auto", "one")
MOST_RAILS = 8
ORDERS = ("host", "rank")
PARTIALS = ("narrow", "wide")
_HOSTS_DEFAULTS = {"hosts": "", "engine": "", "rails": 0, "order": "host", "partials": "narrow"}
HOSTS_KEYS = tuple(_HOSTS_DEFAULTS)


def milliseconds(timeout: datetime.timedelta) -> int:
    return timeout // datetime.timedelta(milliseconds=1)


def check_hosts(hosts: str, engine: str, rails: int, order: str, partials: str) -> None:
    """Raises a ValueError for an option of groups over several hosts that has a wrong value."""
    for name, value, known in (
        ("hosts", hosts, HOSTS),
        ("order", order, ORDERS),
        ("partials", partials, PARTIALS),
    ):
        if value not in known:
            words = "|".join(word for word in known if word)
            raise ValueError(f"shmcoll: {name}={value!r} is not one of {words}")
    if not re.fullmatch("[A-Za-z0-9_]{0,31}", engine):
        raise ValueError(
            f"shmcoll: engine={engine!r} is not the name of a backend: at most 31 letters and digits"
        )
    if not 0 <= rails <= MOST_RAILS:
        raise ValueError(f"shmcoll: rails={rails} is not a number from 0 to {MOST_RAILS}")


def hosts_text(options: Any) -> str:
    """The options of groups over several hosts that are not the default, for a repr."""
    values = ((key, getattr(options, key)) for key in HOSTS_KEYS)
    return "".join(f", {key}={value!r}" for key, value in values if value != _HOSTS_DEFAULTS[key])


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
        more = {**_HOSTS_DEFAULTS, **unknown}
        unknown = {
            key: value
            for key, value in unknown.items()
            if type(value) is not type(_HOSTS_DEFAULTS.get(key))
        }
        if unknown or not isinstance(timeout, datetime.timedelta) or not isinstance(tuning, str):
            raise TypeError(
                "shmcoll.Options: incompatible constructor arguments: timeout must be a datetime.timedelta "
                f"and tuning a str, got {timeout!r} and {tuning!r} {unknown or ''}"
            )
        super().__init__(_backend, timeout)
        if not hasattr(self, "group_name"):  # before torch 2.9
            self.group_name = ""
            self.global_ranks_in_group: list[int] = []
        check(timeout, tuning)  # noqa: F821
        self.tuning = tuning
        check_hosts(**more)
        for key, value in more.items():
            setattr(self, key, value)

    def __repr__(self) -> str:
        return (
            f"shmcoll.Options(timeout={self._timeout!r}, tuning={self.tuning!r}{hosts_text(self)})"
        )

    @staticmethod
    def _for_gloo(timeout: datetime.timedelta) -> Options:
        return Options(timeout, _backend="gloo")

    def __reduce__(self) -> Any:
        more = {key: getattr(self, key) for key in HOSTS_KEYS}
        state = (self.backend, self.tuning, self.group_name, self.global_ranks_in_group, more)
        return _restored, (self._timeout, *state)

    def __copy__(self) -> Options:
        function, arguments = self.__reduce__()
        made: Options = function(*arguments)
        return made

    def __deepcopy__(self, memo: dict[Any, Any]) -> Options:
        return self.__copy__()


Options.__module__ = "shmcoll"


def _restored(
    timeout: datetime.timedelta,
    backend: str,
    tuning: str,
    group_name: str,
    ranks: list[int],
    more: dict[str, Any],
) -> Options:
    """In another process, whose shmcoll may not be loaded yet, or have another class."""
    kind: Any = importlib.import_module("shmcoll._glue").Options
    made: Any = kind._for_gloo(timeout) if backend == "gloo" else kind(timeout)
    values = {"tuning": tuning, "group_name": group_name, "global_ranks_in_group": ranks, **more}
    for key, value in values.items():
        setattr(made, key, value)
    options: Options = made
    return options
