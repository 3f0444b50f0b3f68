# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll run``: starts the ranks of a job on this machine, and serves their store."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shmcoll._log import tell
from shmcoll.watch.board import printable
from shmcoll.watch.parser import EXIT_USAGE, Parser

EXIT_WELL = 0
EXIT_NOT_STARTED = 127  # the program

__all__ = ["EXIT_NOT_STARTED", "EXIT_USAGE", "EXIT_WELL", "main"]

_MOST_RANKS = 4096
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TO_FAIL_S = 5.0  # what ranks have to say why they fail, after one has ended
_TO_END_S = 10.0  # what they have after SIGTERM
_PAUSE_S = 0.02

_libc = ctypes.CDLL(None)


def _say(text: str) -> None:
    tell(f"shmcoll run: {printable(text)}\n")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="shmcoll run",
        description="Starts a program as the ranks of a job on this machine. The store is served by this process,"
        " so it outlives every rank. RANK, WORLD_SIZE, MASTER_ADDR and the like are set as by torchrun.",
    )
    parser.add_argument(
        "-n", "--nproc", type=int, required=True, metavar="N", help="how many ranks"
    )
    parser.add_argument(
        "--survive",
        action="store_true",
        help="let the other ranks go on when one has failed (shmcoll.shrink_group)",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file, or another program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    options = parser.parse_args(arguments)
    if not 1 <= options.nproc <= _MOST_RANKS:
        parser.error(
            f"argument -n/--nproc: {options.nproc} is not a number from 1 to {_MOST_RANKS}"
        )
    return options


def _command(options: argparse.Namespace) -> list[str]:
    command = [options.program, *options.arguments]
    if options.module:
        return [sys.executable, "-u", "-m", *command]
    return [sys.executable, "-u", *command] if options.program.endswith(".py") else command


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    job = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        # torch then takes rank 0 for a client of the store, too.
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_RUN_ID": "shmcoll",  # by which frameworks know that RANK and the like are set
    }
    given = {"OMP_NUM_THREADS": "1", **os.environ} if size > 1 else dict(os.environ)
    return given | {name: str(value) for name, value in job.items()}


def _is_from_terminal(number: int) -> bool:
    """Has the signal gone to the ranks, too? A terminal sends Ctrl-C to all processes of its foreground."""
    try:
        return number == signal.SIGINT and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _children() -> set[int]:
    """The processes whose parent is this one, also those that have ended and are not reaped."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(
            OSError
        ):  # a thread that has ended, or a kernel that does not tell
            found.update(map(int, path.read_text().split()))
    return found


class _Asked:
    """The first signal that asks this process to end. A second one ends it at once, and so the ranks.

    An exception would not do: one that is raised while torch is loaded may be swallowed there.
    """

    def __init__(self) -> None:
        self.number = 0
        for number in _ENDS:
            signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        self.number = number
        for each in _ENDS:
            signal.signal(each, signal.SIG_DFL)


class _Job:
    def __init__(self, options: argparse.Namespace, asked: _Asked) -> None:
        self.options = options
        self.asked = asked
        self.store: object = None  # served as long as it lives
        self.codes: dict[int, int] = {}  # of ranks that have ended
        self.ranks: list[subprocess.Popen[bytes]] = []

    def start(self, port: int) -> None:
        """Raises OSError. Nothing may have started another thread."""
        for rank in range(self.options.nproc):
            if self.asked.number:
                return
            process = subprocess.Popen(
                _command(self.options),
                env=_environment(rank, self.options.nproc, port),
                stdin=None if rank == 0 else subprocess.DEVNULL,
                preexec_fn=_end_with_parent,
            )
            self.ranks.append(process)

    def serve(self, server: socket.socket) -> None:
        from torch._C._distributed_c10d import TCPStore

        port = server.getsockname()[1]
        self.store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=server.detach(),
        )

    def _left(self) -> list[int]:
        """The processes of ranks that have not ended, as look() has seen them."""
        return [process.pid for rank, process in enumerate(self.ranks) if rank not in self.codes]

    def _orphans(self) -> list[int]:
        """What ranks have started and left to this process. What has ended is reaped."""
        others = _children() - {process.pid for process in self.ranks}
        return [pid for pid in others if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def look(self) -> bool:
        """Notes which ranks have ended. False: none is left."""
        for rank, process in enumerate(self.ranks):
            code = None if rank in self.codes else process.poll()
            if code is None:
                continue
            self.codes[rank] = code
            if code != 0:
                how = (
                    f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                )
                left = len(self._left())
                rest = (
                    f"; {left} go{'es' if left == 1 else ''} on"
                    if self.options.survive and left
                    else ""
                )
                _say(f"rank {rank} (pid {process.pid}) {how}{rest}")
        return len(self.codes) < len(self.ranks)

    def has_failed(self) -> bool:
        return not self.options.survive and any(self.codes.values())

    def wait(self) -> None:
        """Until all ranks have ended, a signal asks for it, or one has failed for all and the others had their time."""
        until = float("inf")
        while self.look() and not self.asked.number and time.monotonic() < until:
            if until == float("inf") and self.has_failed():
                until = time.monotonic() + _TO_FAIL_S
            time.sleep(_PAUSE_S)

    def end(self, number: int) -> None:
        """Ends what is left of the job by the signal, and kills it if that does not help."""
        self.look()
        knows = set(self._left()) if _is_from_terminal(number) else set()
        if not self._end(number, knows):
            self._end(signal.SIGKILL, set())

    def _end(self, number: int, knows: set[int]) -> bool:
        """Sends the signal to all but those. False: some have not ended in time."""
        until = time.monotonic() + _TO_END_S
        while time.monotonic() < until:
            self.look()
            pids = {*self._left(), *self._orphans()}
            if not pids:
                return True
            for pid in pids - knows:
                with contextlib.suppress(PermissionError):  # it runs as another user
                    os.kill(pid, number)
            knows |= pids
            time.sleep(_PAUSE_S)
        return False

    def code(self) -> int:
        failed = [code for code in self.codes.values() if code != 0]
        if not failed or (self.options.survive and len(failed) < len(self.ranks)):
            return EXIT_WELL
        return failed[0] if failed[0] > 0 else 128 - failed[0]


def _run(job: _Job) -> bool:
    """Starts the job and waits for its end, or for a signal. False: it cannot be started."""
    count = job.options.nproc
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=max(128, 2 * count)) as server:
            job.start(server.getsockname()[1])
            if not job.asked.number:
                job.serve(server)
    except OSError as error:
        started = f"after {len(job.ranks)} of {count} ranks: " if job.ranks else ""
        _say(f"{started}{job.options.program}: {error.strerror}")
        return False
    job.wait()
    return True


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    # For what a rank has started and does not end itself, such as the program of a script that was killed.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    job = _Job(options, _Asked())
    ended_well = False
    try:
        started = _run(job)
        ended_well = started and not job.asked.number and job.code() == EXIT_WELL
    finally:
        if not ended_well:
            job.end(job.asked.number or signal.SIGTERM)
    if job.asked.number:
        return 128 + job.asked.number
    return job.code() if started else EXIT_NOT_STARTED
