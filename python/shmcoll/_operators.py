# SPDX-License-Identifier: BSD-3-Clause
"""Groups by the glue's operators, for a Python that shmcoll._C does not fit."""

from __future__ import annotations

import datetime
import weakref
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup, Store

from shmcoll import _options
from shmcoll._boxed import boxed
from shmcoll._options import Options, milliseconds

_CPU = torch.device("cpu")
_OPERATORS: Any = torch.ops.shmcoll


def _check_options(timeout: datetime.timedelta, tuning: str) -> None:
    _OPERATORS.check_options(milliseconds(timeout), tuning)


_options.check = _check_options


# ---- what shmcoll._C gives a backend, and torch's class of all backends may lack ----

# torch writes into the options of what it takes for gloo's backend, as soon as that is made. They are those of
# this Python object, which is gone when torch has put the backend into its group.
_written: weakref.WeakKeyDictionary[Any, Options] = weakref.WeakKeyDictionary()


def keep_options(backend: Any, options: Options) -> Any:
    """Returns the backend, which has these options now."""
    _written[backend] = options
    return backend


def _options_of(backend: Any) -> Options:
    try:
        return _written[backend]
    except KeyError:
        name = type(backend).__name__
        raise AttributeError(f"{name!r} object has no attribute 'options'") from None


def _set_default_timeout(backend: Any, timeout: datetime.timedelta) -> None:
    """What torch calls to change the time-out of a backend that is gloo for it."""
    if hasattr(backend, "set_timeout"):
        backend.set_timeout(timeout)
    else:  # before torch 2.9
        _OPERATORS.set_timeout(boxed(backend), milliseconds(timeout))


def _perform_nocolor_split(_backend: Any, _device: torch.device) -> None:
    """torch calls it on the ranks that are not in a new group: nothing is to be done there."""


_class: Any = Backend
for _name, _what in (
    ("options", property(_options_of)),
    ("_set_default_timeout", _set_default_timeout),
    ("perform_nocolor_split", _perform_nocolor_split),
):
    if not hasattr(_class, _name):
        setattr(_class, _name, _what)

# ---- groups ----


def make(store: Store, rank: int, size: int, options: Any) -> Any:
    """Meets the other ranks through the store; blocks until all are there."""
    group: Any = ProcessGroup(store, rank, size)
    _OPERATORS.attach(
        group.boxed(),
        milliseconds(options._timeout),
        options.group_name,
        list(options.global_ranks_in_group),
        options.tuning,
        options.backend,
    )
    return keep_options(group._get_backend(_CPU), options)


def make_reconfigurable(
    store: Store, rank: int, size: int, options: Any, host: str, pid: int
) -> Any:
    """Makes a backend without ranks, which gets them by reconfigure(); waits for nobody."""
    group: Any = ProcessGroup(store, rank, size)
    _OPERATORS.attach_reconfigurable(
        group.boxed(),
        milliseconds(options._timeout),
        options.group_name,
        options.tuning,
        host,
        pid,
    )
    return keep_options(group._get_backend(_CPU), options)


def info(backend: Any) -> str:
    """The lines of key=value about a group."""
    text: str = _OPERATORS.info(boxed(backend))
    return text


__all__ = ["Options", "info", "make", "make_reconfigurable"]
