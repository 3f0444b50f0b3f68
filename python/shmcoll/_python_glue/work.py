# SPDX-License-Identifier: BSD-3-Clause
"""What the glue in Python gives for an operation: errors, works and futures.

The core's threads run the operations. One of them calls ``_complete`` where a future was asked for; this
module makes no thread.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import datetime
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from shmcoll._python_glue import core

_Future: Any = torch.futures.Future
_DistBackendError: Any = dist.DistBackendError
_left_by = 0  # the thread that has left the groups for good


def make_error(status: int, text: str) -> Exception:
    """The exception of a status."""
    if status == core.INVALID:
        return ValueError(f"shmcoll: {text}")
    if status == core.UNSUPPORTED:
        return TypeError(f"shmcoll: {text}")
    error: Exception = _DistBackendError(f"shmcoll: {text}")
    return error


def last_text() -> str:
    """What this thread's last failing call says."""
    text: bytes = core.error_text()
    return text.decode(errors="replace")


def raise_status(status: int) -> None:
    """Raises what a call of this thread that has just failed says; nothing for OK."""
    if status == core.OK:
        return
    text = last_text()
    if _left_by and _left_by != threading.get_ident():
        while True:  # the interpreter ends: this thread must not return into the program
            time.sleep(3600)
    if status == core.INTERRUPTED:
        core.raise_pending()
    raise make_error(status, text)


class Group:
    """A group of the core; freed with the last backend, work or request that refers to it.

    The collector calls the finalizers of a cycle in any order, so the requests are counted.
    """

    def __init__(self, comm: int) -> None:
        self.comm = ctypes.c_void_p(comm)
        # One for each; who takes the first entry is the last (pop() is atomic).
        self._owners = [True]

    def hold(self) -> None:
        self._owners.append(False)

    def let_go(self, free: Callable[..., None]) -> None:
        if not self._owners.pop():
            return
        if getattr(_callback, "is_running", False):
            _graves.append(self.comm)  # a thread of the library cannot free its own group
        else:
            free(self.comm)

    def __del__(self, free: Callable[..., None] = core.comm_free) -> None:
        self.let_go(free)


_callback = threading.local()
_graves: list[ctypes.c_void_p] = []


def free_groups() -> None:
    """Frees groups that ended on a thread of the library."""
    with contextlib.suppress(IndexError):  # there is none left: another thread may free them, too
        while True:
            core.comm_free(_graves.pop())


class Flight:
    """What one asynchronous operation keeps alive: until the library lets go of its memory."""

    def __init__(
        self, tensors: Sequence[Any], outputs: Sequence[torch.Tensor], finish: Any
    ) -> None:
        self.tensors = tensors
        self.outputs = list(outputs)
        self._finish = finish
        self._finishing = threading.Lock()  # guards what follows
        self._finished = False
        self.lock = threading.Lock()  # guards what follows
        self.notified = False  # the library will call back when the operation ends
        self.ended = False  # it has called
        self.future: Any = None  # what the user has; `_source` completes it
        self._source: Any = None
        self._error: BaseException | None = None
        self._unsettled = [True]  # who takes the entry settles it (pop() is atomic)

    def finish_once(self) -> None:
        """The last step of an operation that succeeded."""
        if self._finish is None:
            return
        with self._finishing:
            if not self._finished:
                self._finish()
            self._finished = True

    def make_future(self) -> None:
        """A future that shows an error to C++, too: an exception that is set from Python is a value there."""
        self._source = _Future()
        self.future = self._source.then(self._result)

    def _result(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self.outputs

    def settle(self, status: int, text: str) -> None:
        """Completes the future, once."""
        _open.pop(id(self), None)
        try:
            self._unsettled.pop()
        except IndexError:
            return
        if status == core.OK:
            try:
                self.finish_once()
            except Exception as error:
                self._error = error
        else:
            status = core.ABORTED if status == core.INTERRUPTED else status
            self._error = make_error(status, text)
        self._source.set_result(None)


_numbers = itertools.count(1)
_flights: dict[int, Flight] = {}  # which the library refers to by number
_open: dict[int, Flight] = {}  # whose future waits for `_complete`


def _complete_flight(number: int, status: int, error: bytes | None) -> None:
    """On a thread of the library that holds nothing: callbacks may submit and wait."""
    _callback.is_running = True
    flight = _flights[number]
    with flight.lock:
        flight.ended = True
        has_future = flight.future is not None
    if has_future:
        flight.settle(status, (error or b"").decode(errors="replace"))
    del flight
    _callback.is_running = False


_complete = core.COMPLETE(_complete_flight)
# A function in C, which runs no handler of a signal: it is called inside calls of the program's threads.
_retire = core.HOLD(_flights.pop)


def leave(forget_python: bool = True) -> None:
    """This process says goodbye to its groups."""
    global _left_by
    if forget_python:
        _left_by = threading.get_ident()
    core.library.shmcoll_leave(forget_python)
    for flight in list(_open.values()):
        flight.settle(core.CLOSED, "the process ended before the operation did")


def after_fork_in_child() -> None:
    """The parent's futures are not this process's."""
    global _left_by
    _left_by = 0
    _open.clear()
    _callback.is_running = False
    core.library.shmcoll_after_fork_in_child()


def nanoseconds(timeout: datetime.timedelta | None) -> int:
    """0: no limit."""
    return max(timeout // datetime.timedelta(microseconds=1) * 1000, 0) if timeout else 0


def _ended_of(request: ctypes.c_void_p) -> tuple[int, str] | None:
    """The status of a request and its text; None: it has not ended."""
    status = ctypes.c_int()
    if not core.request_done(request, ctypes.byref(status)):
        return None
    text: bytes = core.request_error(request) if status.value else b""
    return status.value, text.decode(errors="replace")


class _Request:
    """A request of the core."""

    def __init__(self, group: Group) -> None:
        self.group: Group | None = group
        self.pointer = ctypes.c_void_p()  # NULL: there is none, or no longer
        self.ended: tuple[int, str] | None = None  # what is left of it
        group.hold()

    def __del__(
        self,
        release: Callable[..., None] = core.request_release,
        free: Callable[..., None] = core.comm_free,
        ended_of: Callable[..., Any] = _ended_of,
    ) -> None:
        if self.pointer:
            self.ended = ended_of(self.pointer)
            release(self.pointer)
            self.pointer.value = None
        if self.group:
            self.group.let_go(free)
        self.group = None


# C++ code may hold a work whose Python object the program has dropped (DDP's join does). torch would then
# find no wait() but its own, which never returns. So the objects of the last dropped works stay, and their
# results if they are small.
_SMALL = 4096
_dropped: collections.deque[WorkShm] = collections.deque(maxlen=64)


class WorkShm(Work):
    """An operation under way."""

    def __init__(self, group: Group, flight: Flight, operation: Any) -> None:
        super().__init__()
        self._flight: Flight | None = flight
        self._ended: tuple[int, str] | None = None  # the result of a work that has been dropped
        self._holder: _Request | None = _Request(group)
        self._request = request = self._holder.pointer
        number = next(_numbers)
        _flights[number] = flight
        hooks = core.Hooks(number, _complete, _retire)
        status = core.submit(
            group.comm, operation.pointer, ctypes.byref(hooks), ctypes.byref(request)
        )
        if status != core.OK:
            text = last_text()
            _flights.pop(number)
            raise make_error(status, text)
        self._sequence = core.comm_sequence(group.comm)
        if _graves:
            free_groups()

    def __del__(
        self,
        keep: Callable[[Any], None] = _dropped.append,
        ended_of: Callable[..., Any] = _ended_of,
    ) -> None:
        if self._flight and sum(tensor.nbytes for tensor in self._flight.outputs) > _SMALL:
            self._flight = None
        if not self._request:  # it was refused, or the collector has let go of the request first
            self._ended = self._holder.ended if self._holder else None
            if self._ended:
                keep(self)
            return
        self._ended = ended_of(self._request)
        if self._ended:
            self._holder = None
        keep(self)

    def _status(self) -> int | None:
        """None: the operation has not ended."""
        if self._ended:
            return self._ended[0]
        status = ctypes.c_int()
        ended = core.request_done(self._request, ctypes.byref(status))
        return status.value if ended else None

    def _text(self) -> str:
        if self._ended:
            return self._ended[1]
        text: bytes = core.request_error(self._request)
        return text.decode(errors="replace")

    def is_completed(self) -> bool:
        status = self._status()
        if status == core.OK:
            self._finish()
        return status is not None

    def is_success(self) -> bool:
        return self._status() == core.OK

    def exception(self) -> Exception | None:
        status = self._status()
        return make_error(status, self._text()) if status else None

    def result(self) -> list[torch.Tensor]:
        if not self.is_completed():
            raise RuntimeError("shmcoll: result() of an operation that has not completed")
        return self._flight.outputs if self._flight else []

    def source_rank(self) -> int:
        rank: int = core.request_source(self._request) if self._request else -1
        return rank

    _source_rank = source_rank

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        if self._ended is None:
            raise_status(core.request_wait(self._request, nanoseconds(timeout)))
        elif self._ended[0]:
            raise make_error(*self._ended)
        self._finish()
        return True

    def _finish(self) -> None:
        flight = self._flight
        if flight:
            flight.finish_once()

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def abort(self) -> None:
        if self._group:
            core.comm_abort(self._group.comm, b"Work.abort() was called")

    @property
    def _group(self) -> Any:
        return self._holder.group if self._holder else None

    def _get_sequence_number(self) -> int:
        number: int = self._sequence
        return number

    def _wait_unserved(self) -> str:
        """No thread can be made for the callback: a thread that wants the future waits here."""
        why = last_text()
        if core.comm_error(self._group.comm) == core.OK:
            if core.request_wait(self._request, 0) == core.INTERRUPTED:
                core.raise_pending()
        return why

    def get_future(self) -> Any:
        flight, why = self._flight or Flight((), (), None), ""  # that of a dropped work is empty
        if self._ended:
            flight.ended = True
        with flight.lock:
            if flight.future is None and not flight.ended and not flight.notified:
                flight.notified = core.request_notify(self._request)
            served = flight.future is not None or flight.ended or flight.notified
        if not served:
            why = self._wait_unserved()
        with flight.lock:
            if flight.future is not None:
                return flight.future
            flight.make_future()
            if flight.notified and not flight.ended:
                _open[id(flight)] = flight
                return flight.future
        # (No callback can be attached yet: none runs here.)
        status = self._status()
        if status is None:
            status = core.comm_error(self._group.comm)
            flight.settle(status or core.SYSTEM, last_text() if status else why)
        else:
            flight.settle(status, self._text())
        return flight.future


class WorkAll(Work):
    """Several works as one. Its result and its future are those of all of them, in order."""

    def __init__(self, works: list[Any]) -> None:
        super().__init__()
        self._works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        return next(filter(None, (work.exception() for work in self._works)), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        deadline = time.monotonic() + timeout.total_seconds() if timeout else 0.0
        for work in self._works:
            left = max(deadline - time.monotonic(), 0.001)
            work.wait(datetime.timedelta(seconds=left) if timeout else None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def abort(self) -> None:
        self._works[0].abort()

    def get_future(self) -> Any:
        def values(collected: Any) -> list[torch.Tensor]:
            return [tensor for part in collected.value() for tensor in part.value()]

        parts: Any = [work.get_future() for work in self._works]
        return torch.futures.collect_all(parts).then(values)


class Done(Work):
    """A call that has ended already: what C++ gets where Python is given nothing to wait for."""

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        pass

    def block_current_stream(self) -> None:
        pass

    def result(self) -> list[torch.Tensor]:
        return []

    def get_future(self) -> Any:
        future = _Future()
        future.set_result([])
        return future
