# SPDX-License-Identifier: BSD-3-Clause
"""A rank's process, forked from the parent, which has imported torch.

An import in each rank would take longer than a short run. Torch must not have computed in the parent
before, because a forked process has none of its parent's threads. The parent only talks with ranks.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Child:
    """A forked process, with the part of subprocess.Popen that a team needs."""

    def __init__(
        self, program: Callable[[], int], env: Mapping[str, str], log: Path, keep: tuple[int, ...]
    ) -> None:
        """Runs the program with this environment; of open files it has the log and those to keep."""
        self._process = multiprocessing.get_context("fork").Process(
            target=_live, args=(program, env, log, keep), daemon=True
        )
        # A handler of the parent must not run in the child, which stands in the parent's frames.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _live(
    program: Callable[[], int], env: Mapping[str, str], log: Path, keep: tuple[int, ...]
) -> None:
    # A session of its own: Ctrl-C is for the parent, which then ends the ranks.
    os.setsid()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    gc.freeze()  # what was there stays: the collector need not look through all of torch
    os.environ.update(env)
    _only_files(log, keep)
    sys.exit(program())


def _only_files(log: Path, keep: tuple[int, ...]) -> None:
    """Closes the parent's files: a socket that a sister has too tells nobody of its end."""
    with open(os.devnull, "rb") as nothing, open(log, "wb") as file:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in keep:
            with suppress(OSError):  # the one that read the list
                os.close(fd)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
