# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll run``: starts the ranks of a job on this machine, and serves their store."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from shmcoll.watch.parser import EXIT_USAGE, Parser

EXIT_WELL = 0
EXIT_NOT_STARTED = 127  # the program

__all__ = ["EXIT_NOT_STARTED", "EXIT_USAGE", "EXIT_WELL", "main"]

_PR_SET_PDEATHSIG = 1
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TO_FAIL_S = 5.0  # what ranks have to say why they fail, after one has ended
_TO_END_S = 10.0  # what they have after SIGTERM
_PAUSE_S = 0.02

_libc = ctypes.CDLL(None)


class _Asked(Exception):
    """A signal asks this process to end."""


def _say(text: str) -> None:
    print(f"shmcoll run: {text}", file=sys.stderr, flush=True)


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
    if options.nproc < 1:
        parser.error(f"argument -n/--nproc: {options.nproc} is not at least 1")
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


class _Job:
    def __init__(self, options: argparse.Namespace, port: int) -> None:
        self.survives = options.survive
        self.store: object = None  # served as long as it lives
        self.codes: dict[int, int] = {}  # of ranks that have ended
        self.ranks: list[subprocess.Popen[bytes]] = []
        for rank in range(options.nproc):
            process = subprocess.Popen(
                _command(options),
                env=_environment(rank, options.nproc, port),
                stdin=None if rank == 0 else subprocess.DEVNULL,
                preexec_fn=_end_with_parent,  # no other thread has been started
            )
            self.ranks.append(process)

    def _left(self) -> list[subprocess.Popen[bytes]]:
        return [process for rank, process in enumerate(self.ranks) if rank not in self.codes]

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
                    f"; {left} go{'es' if left == 1 else ''} on" if self.survives and left else ""
                )
                _say(f"rank {rank} (pid {process.pid}) {how}{rest}")
        return len(self.codes) < len(self.ranks)

    def has_failed(self) -> bool:
        return not self.survives and any(self.codes.values())

    def wait(self, limit_s: float = float("inf")) -> bool:
        """Until all ranks have ended, or one has failed for all. False: some are left."""
        until = time.monotonic() + limit_s
        while self.look() and time.monotonic() < until:
            if limit_s == float("inf") and self.has_failed():
                return False
            time.sleep(_PAUSE_S)
        return not self._left()

    def end(self, number: int) -> None:
        """Sends the signal to the ranks that are left, and kills them if that does not help."""
        for process in self._left():
            if not _is_from_terminal(number):
                process.send_signal(number)
        if not self.wait(_TO_END_S):
            for process in self._left():
                process.kill()
            self.wait(_TO_END_S)

    def code(self) -> int:
        failed = [code for code in self.codes.values() if code != 0]
        if not failed or (self.survives and len(failed) < len(self.ranks)):
            return EXIT_WELL
        return failed[0] if failed[0] > 0 else 128 - failed[0]


def _raise(number: int, _: object) -> None:
    raise _Asked(number)


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    for number in _ENDS:
        signal.signal(number, _raise)
    job = None
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=max(128, 2 * options.nproc)) as server:
            port = server.getsockname()[1]
            job = _Job(options, port)  # before torch has threads
            from torch._C._distributed_c10d import TCPStore

            job.store = TCPStore(
                "127.0.0.1",
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=server.detach(),
            )
        if not job.wait() and not job.wait(_TO_FAIL_S):
            job.end(signal.SIGTERM)
    except OSError as error:
        _say(f"{options.program}: {error.strerror}")
        return EXIT_NOT_STARTED
    except _Asked as asked:
        for number in _ENDS:
            signal.signal(
                number, signal.SIG_DFL
            )  # a second one ends this process, and so the ranks
        if job is not None:
            job.end(asked.args[0])
        return 128 + int(asked.args[0])
    return job.code()
