# SPDX-License-Identifier: BSD-3-Clause
"""What the threads of a program share inside the library: with the glue in Python.

    PYTHON_GIL=0 SHMCOLL_GLUE=python python tests/free_threaded/races.py

Each part failed on a free-threaded Python before the library guarded what the part uses. With the
interpreter's lock all pass, and show little. A number: so many thousandths of the work. The last line says
what ran.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from threads import in_threads

from shmcoll import _backend, _events, _log
from shmcoll._python_glue import calls, core, work

PART = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ROUNDS = 20 * PART


def ranks_of_a_line() -> None:
    def more() -> None:
        for rank in range(ROUNDS):
            _log.know_rank(rank)

    def lines() -> None:
        for _ in range(ROUNDS):
            _log._line("info", "text")
            _log._ranks.clear()

    in_threads(more, lines)


def sections_of_threads() -> None:
    group = calls.Calls()

    def part() -> None:
        for _ in range(ROUNDS):
            group._start_coalescing()
            group._end_coalescing()

    in_threads(part, part, part)
    assert group._open_sections == 0, group._open_sections


def graves_of_groups() -> None:
    def part() -> None:
        for _ in range(ROUNDS):
            work._graves.append(core.c_void_p())
            work.free_groups()

    in_threads(part, part, part)


def ends_of_futures() -> None:
    """The end of a process settles a future, and so does the end of its operation."""
    for _ in range(PART):
        flight = work.Flight((), (), None)
        flight.make_future()
        in_threads(*[lambda flight=flight: flight.settle(core.OK, "")] * 3)  # type: ignore[misc]


def handlers_of_signals() -> None:
    """A thread makes groups while the main thread sets handlers: what the main thread sets stays."""
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            core.watch_signals()

    threads = [threading.Thread(target=watch) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        until = time.monotonic() + 5 * PART / 1000
        while time.monotonic() < until:
            signal.signal(signal.SIGUSR1, print)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            time.sleep(0.0001)
            lines = Path("/proc/self/status").read_text().splitlines()
            ignored = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
            assert ignored >> (signal.SIGUSR1 - 1) & 1, "a thread has put a handler back"
    finally:
        done.set()
        for thread in threads:
            thread.join()


def what_a_process_has_once() -> None:
    """The hooks of its end, and the thread of on_late(): a forked child makes its own."""
    for _ in range(1 + PART // 5):
        pid = os.fork()
        if pid == 0:
            registered: list[object] = []
            atexit.register = registered.append
            in_threads(*[_backend._say_goodbye_at_exit] * 4)
            in_threads(*[_events._late_waits.start] * 4)
            late = [thread for thread in threading.enumerate() if thread.name == "shmcoll-late"]
            os._exit(0 if (len(registered), len(late)) == (1, 1) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "something is there twice"


if __name__ == "__main__":
    what_a_process_has_once()
    ranks_of_a_line()
    sections_of_threads()
    graves_of_groups()
    ends_of_futures()
    handlers_of_signals()
    has_lock = bool(getattr(sys, "_is_gil_enabled", lambda: True)())
    print(f"no race, {'with' if has_lock else 'without'} the interpreter's lock")
