# SPDX-License-Identifier: BSD-3-Clause
"""A torch Store as the core's struct shc_store, for the glue in Python (see backend/store_bootstrap.cpp).

The core calls it on a thread of its own, which may outlive the rendezvous.
"""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shmcoll._python_glue import core

_NOTHING = b"shmcoll: nothing"
_alive: dict[int, StoreBootstrap] = {}  # which the core refers to by number


class StoreBootstrap:
    """The store of one rendezvous, and the first exception it has raised."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.error: BaseException | None = None
        self._number = id(self)
        self._lock = threading.Lock()
        self._references = 1
        inner = getattr(store, "_underlying_non_prefix_store", store)
        self.server, self.port = b"", 0
        if isinstance(inner, c10d.TCPStore):
            self.port = inner.port
            self.server = f"TCPStore at {inner.host}:{inner.port}".encode()
        elif isinstance(inner, c10d.FileStore):
            self.server = f"FileStore {getattr(inner, 'path', '')}".encode()

    def view(self) -> core.Store:
        """For the core; the caller must release() this object after the rendezvous."""
        _alive[self._number] = self
        return core.Store(self._number, *_CALLBACKS, self.server or None, self.port)

    def hold(self, count: int) -> None:
        with self._lock:
            self._references += count
            if self._references == 0:
                del _alive[self._number]

    def release(self) -> None:
        self.hold(-1)

    def rethrow(self, text: str) -> None:
        """Raises what the store raised, with the core's text as its context."""
        error = self.error
        if error is None:
            return
        if type(error) is RuntimeError or isinstance(error, dist.DistError):  # torch's own
            raise type(error)(f"{error}\n{text}") from error
        raise error

    def call(self, function: Callable[[Any], int]) -> int:
        try:
            return function(self._store)
        except BaseException as error:  # the caller is C
            self.error = error
            return errno.EIO


def _copy_out(value: bytes, to: int, capacity: int, size: Any) -> int:
    if len(value) > capacity:
        return errno.EMSGSIZE
    ctypes.memmove(to, value, len(value))
    size[0] = len(value)
    return 0


def _text(key: bytes) -> str:
    return key.decode()


def _set(ctx: int, key: bytes, value: int, size: int) -> int:
    def call(store: Any) -> int:
        store.set(_text(key), ctypes.string_at(value, size))
        return 0

    return _alive[ctx].call(call)


def _get(ctx: int, key: bytes, value: int, capacity: int, size: Any) -> int:
    # A get of an absent key would wait. A value that no rank writes is exchanged for itself: that
    # changes nothing, and returns what is there.
    def call(store: Any) -> int:
        now = bytes(store.compare_set(_text(key), _NOTHING, _NOTHING))
        return errno.ENOENT if now == _NOTHING else _copy_out(now, value, capacity, size)

    return _alive[ctx].call(call)


def _check(ctx: int, keys: Any, count: int) -> int:
    names = [_text(keys[index]) for index in range(count)]
    return _alive[ctx].call(lambda store: 0 if store.check(names) else errno.ENOENT)


def _add(ctx: int, key: bytes, delta: int, value: Any) -> int:
    def call(store: Any) -> int:
        value[0] = store.add(_text(key), delta)
        return 0

    return _alive[ctx].call(call)


def _put_first(
    ctx: int, key: bytes, value: int, size: int, now: int, capacity: int, now_size: Any
) -> int:
    def call(store: Any) -> int:
        stored = bytes(store.compare_set(_text(key), b"", ctypes.string_at(value, size)))
        return _copy_out(stored, now, capacity, now_size)

    return _alive[ctx].call(call)


_CALLBACKS = (
    core.SET(_set),
    core.GET(_get),
    core.CHECK(_check),
    core.ADD(_add),
    core.PUT_FIRST(_put_first),
    core.HOLD(lambda ctx: _alive[ctx].hold(1)),
    core.HOLD(lambda ctx: _alive[ctx].hold(-1)),
)
