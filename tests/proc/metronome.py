# SPDX-License-Identifier: BSD-3-Clause
"""For how long a CPU of this machine stands still: in that time no process on it can be told anything.

A virtual CPU stops alone when its host has other work for it: with it stop the rank that runs there
and the ranks whose timers it keeps, while the other CPUs go on. So a thread beats on each of them.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time

BEAT_NS = 2_000_000
PRESSURES = ("/proc/pressure/cpu", "/proc/pressure/io")
WORD = struct.Struct("=q")


def clock_ns() -> int:
    """A clock that stands still while threads of this machine wait for a CPU or a disk: what a call
    would have taken without the others. All processes share it. Without the kernel's count it is a
    plain clock."""
    waited_us = 0
    for name in PRESSURES:
        try:
            with open(name) as file:  # some avg10=0.00 avg60=0.00 avg300=0.00 total=1234
                waited_us += int(file.readline().rsplit("=", 1)[1])
        except OSError:
            pass
    return time.monotonic_ns() - 1000 * waited_us


class Metronome:
    """A process that only sleeps, on every CPU, and notes how much longer than asked."""

    def __init__(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._longest = mmap.mmap(-1, WORD.size * len(self._cpus))  # nanoseconds; shared
        self._pid = 0

    def start(self) -> None:
        self.forget()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                for place in range(1, len(self._cpus)):
                    beat = threading.Thread(target=self._beat, args=(place, parent), daemon=True)
                    beat.start()
                self._beat(0, parent)
            finally:
                os._exit(0)

    def stop(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def forget(self) -> None:
        """What has been measured so far."""
        self._longest[:] = bytes(len(self._longest))

    def stall_ms(self) -> float:
        """The longest stall of any CPU since the start, or since what was forgotten."""
        assert self._pid, "a test that measures milliseconds needs @pytest.mark.alone"
        return float(max(word for (word,) in WORD.iter_unpack(self._longest[:])) / 1e6)

    def _beat(self, place: int, parent: int) -> None:
        os.sched_setaffinity(0, {self._cpus[place]})  # of this thread
        word = WORD.size * place
        while os.getppid() == parent:
            begun_ns = time.monotonic_ns()
            time.sleep(BEAT_NS / 1e9)
            stall_ns = time.monotonic_ns() - begun_ns - BEAT_NS
            if stall_ns > WORD.unpack_from(self._longest, word)[0]:
                WORD.pack_into(self._longest, word, stall_ns)


beats = Metronome()  # during every test that has the mark "alone"
