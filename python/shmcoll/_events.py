# SPDX-License-Identifier: BSD-3-Clause
"""What the library tells a program, and what a program's end tells the other ranks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType

import torch
import typing_extensions  # torch needs it

from shmcoll._glue import glue

_MOST_BYTES = 90  # of the text that the other ranks see (struct shc_leaving_shm)

LateCallback = Callable[[str], object]


# ---- late waits ----


class _LateWaits:
    """Calls back with each text about a late wait, on a thread of its own."""

    def __init__(self) -> None:
        self.callback: LateCallback | None = None
        self._lock = threading.Lock()  # guards what follows
        self._pid = 0  # the process that has the thread

    def start(self) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._start()
                self._pid = os.getpid()

    def _start(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        args = reader, os.fstat(reader)
        threading.Thread(target=self._run, args=args, name="shmcoll-late", daemon=True).start()
        glue.shc_late_pipe(writer)

    def forget(self) -> None:
        """In a forked child: the thread and the pipe are the parent's."""
        glue.shc_late_pipe(-1)
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._pid, self.callback = 0, None

    def _run(self, reader: int, pipe: os.stat_result) -> None:
        with open(reader, errors="replace", closefd=False) as lines:
            for line in lines:
                callback = self.callback
                if callback is None:
                    continue
                try:
                    callback(line.rstrip("\n"))
                except Exception:
                    traceback.print_exc()
        # The program may have closed it, and opened a file that has its number.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(reader), pipe):
                os.close(reader)


_late_waits = _LateWaits()
os.register_at_fork(after_in_child=_late_waits.forget)


def on_late(callback: LateCallback | None) -> None:
    """Calls ``callback(text)`` whenever a wait of this process is late (``SHMCOLL_LATE_MS``).

    The text names the call, the group and the ranks that are waited for, as the line of the log does. The
    callback runs on a thread of its own, on each rank that waits, also where another rank logs for all. Each
    wait calls it after the late time, and again after twice, four times, ... as long. An exception of the
    callback is printed. A second call replaces the callback; None ends it. A forked child has none.

    Raises:
        TypeError: ``callback`` is not callable.

    Example:
        >>> shmcoll.on_late(lambda text: metrics.count("late_collective"))
    """
    if callback is not None and not callable(callback):
        raise TypeError(
            f"shmcoll: on_late: callback must be callable or None, got {type(callback).__name__}"
        )
    _late_waits.callback = callback
    if callback is not None:
        _late_waits.start()


# ---- why this process ends ----


def _original(error: BaseException) -> BaseException:
    """The exception that was being handled when a SystemExit was raised."""
    while isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__
    return error


def _place(trace: TracebackType | None) -> str:
    """ "train.py:41": the innermost line outside of libraries, else the innermost one; "" if there is none."""
    frames = traceback.extract_tb(trace)
    libraries = tuple(os.path.dirname(module.__file__ or "") for module in (torch, multiprocessing))
    # The wrapper of torch's @deprecated functions; from Python 3.13 on it is in warnings.py.
    wrappers = tuple(module.__file__ or "" for module in (typing_extensions, warnings))
    skipped = (*libraries, *wrappers, os.path.dirname(__file__), "<frozen")
    own = [frame for frame in frames if not frame.filename.startswith(skipped)]
    last = next(reversed(own or frames), None)
    return f" ({os.path.basename(last.filename)}:{last.lineno})" if last else ""


def _text(error: BaseException) -> str:
    """ "KeyError: 'x' (train.py:41)", short enough for the other ranks' errors."""
    place = _place(error.__traceback__)
    first_line = (str(error).splitlines() or [""])[0]
    what = type(error).__name__ + (f": {first_line}" if first_line else "")
    room = _MOST_BYTES - len(place.encode())
    if len(what.encode()) > room:
        what = what.encode()[: room - 3].decode(errors="ignore") + "..."
    return what + place


_failing_pid = 0  # of the process that ends by an exception


def is_failing() -> bool:
    """Does this process end because of an exception?"""
    return _failing_pid == os.getpid()


def explain_end(error: BaseException | None) -> None:
    """Tells the other ranks that this process ends because of this exception."""
    global _failing_pid
    if error is None:
        return
    error = _original(error)
    if not isinstance(error, SystemExit):
        _failing_pid = os.getpid()
        with contextlib.suppress(Exception):  # whose text may be anything
            glue.shc_process_explain_end(_text(error).encode())


def watch_exceptions() -> None:
    """Makes an exception that nobody catches explain this process's end to the other ranks."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not hasattr(sys, "ps1"):  # an interactive interpreter goes on
            explain_end(error)
        before(kind, error, trace)

    sys.excepthook = hook
