# SPDX-License-Identifier: BSD-3-Clause
"""A team: the rank processes of one backend, and the requests to them.

Every backend has processes of its own. So it is the default group there, as it is for a user, and a
backend that fails loses only its own column. While one team runs,
the others sleep on their sockets. Ranks meet through a file, never through a port.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import shmcoll.bench
from shmcoll.bench.run import rank as rank_program
from shmcoll.bench import topology
from shmcoll.bench.judge import noise
from shmcoll.bench.run import startline
from shmcoll.bench.run.child import Child
from shmcoll.bench.plan import Point, Settings

Message = dict[str, Any]
Process = Child | subprocess.Popen[bytes]

START_TIMEOUT_S = 120.0
_LEAVE_TIMEOUT_S = 5.0
_GRACE_S = 10.0


class TeamError(Exception):
    """A rank died or did not answer: the team cannot go on."""


class Refused(Exception):
    """The ranks answered a request with an error, and are ready for the next one."""


class CannotDo(Refused):
    """Because the backend has no such thing."""


def judge(answered: Mapping[int, Message], ranks: Sequence[int]) -> list[Message]:
    """The answers of these ranks, in this order. Raises if one of them is an error."""
    errors = {rank: reply["error"] for rank, reply in answered.items() if "error" in reply}
    if len(errors) == len(ranks):
        first = ranks[0]
        raise (CannotDo if answered[first].get("unsupported") else Refused)(errors[first])
    if errors:  # the others went ahead, or wait for ever: the group is no longer in step
        rank = min(errors)
        raise TeamError(f"{errors[rank]} (rank {rank})")
    return [answered[rank] for rank in ranks]


class Team:
    """The ranks of one backend. Not usable after a TeamError; ``stop`` works at any time."""

    own_clocks = False  # of each rank: they do not share the machine's one

    def __init__(self, label: str, backend: str, settings: Settings, scratch: Path) -> None:
        self.label = label
        self.backend = backend
        self._settings = settings
        self._dir = scratch / label.replace(os.sep, "_")
        self._processes: list[Process] = []
        self._channels: list[socket.socket] = []
        self._playing: Sequence[int] = ()  # the ranks of the prepared point; the others sleep
        self._pids: list[int] = []  # of the ranks
        self._cpus = topology.placement(settings.bind, settings.nproc, os.sched_getaffinity(0))

    def start(self) -> None:
        """Starts the processes and asks them to join; ``join`` waits for it."""
        self._dir.mkdir()
        line_fd = startline.create(self._settings.nproc)
        try:
            for rank in range(self._settings.nproc):
                self._start_rank(rank, line_fd)
        finally:
            os.close(line_fd)
        self._send({"do": "init"}, self._all)

    def join(self) -> None:
        """Raises Refused or TeamError if the backend cannot be used."""
        self._pids = [reply["pid"] for reply in self._replies(START_TIMEOUT_S, self._all)]

    def cpu_s(self) -> float:
        """The CPU time of all ranks so far, in seconds."""
        return sum(map(noise.process_s, self._pids))

    def tune(self, text: str) -> dict[str, float]:
        """Makes the group that the next points are measured in, with these settings of shmcoll.
        The values of all its keys."""
        self._playing = self._all
        values: dict[str, float] = self._ask({"do": "tune", "text": text})[0]["values"]
        return values

    def prepare(self, point: Point, copies: int, sweep_bytes: int) -> None:
        """Buffers for the operation, so many times, and memory that sweeps them from the caches."""
        self._playing = point.pair or self._all
        request = {"do": "prepare", "copies": copies, "sweep_bytes": sweep_bytes}
        self._ask({**request, "point": asdict(point)})

    def check(self, salt: int) -> int:
        """Wrong elements, over all ranks that the point is of."""
        return sum(reply["wrong"] for reply in self._ask({"do": "check", "salt": salt}))

    def time(self, iterations: int, budget_ns: int) -> list[Message]:
        """Runs the prepared operation for a while; each rank's clock readings."""
        return self._ask({"do": "time", "iterations": iterations, "budget_ns": budget_ns})

    def bounds(self, size_bytes: int) -> list[Message]:
        """Returns what memory allows, in ns of each turn and rank. Only the ranks of BOUNDS have it."""
        self._playing = self._all
        return self._ask({"do": "bounds", "size_bytes": size_bytes})

    def stop(self, at_once: bool = False) -> None:
        """Ends the processes: kindly, or at once after a failure."""
        for channel in self._channels:
            channel.close()
        deadline = monotonic() + (0.0 if at_once else _LEAVE_TIMEOUT_S)
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - monotonic()))
            except subprocess.TimeoutExpired:
                self._kill(process)
                process.wait()
        self._channels.clear()
        self._processes.clear()
        self._pids.clear()

    def _kill(self, process: Process) -> None:
        process.kill()

    def job(self, rank: int, line_fd: int) -> Message:
        """Returns what a rank must know to begin."""
        return {
            "rank": rank,
            "world_size": self._settings.nproc,
            "backend": self.backend,
            "imports": self._settings.imports,
            "store": str(self._dir / "store"),
            "timeout_s": self._settings.timeout_s,
            "mode": "overlap" if self._settings.overlap else self._settings.mode,
            "groups": self._settings.groups,
            "skew_ns": int(self._settings.skew_us * 1e3),
            "line_fd": line_fd,
            "cpus": None if self._settings.bind == topology.NONE else self._cpus[rank],
        }

    def _start_rank(self, rank: int, line_fd: int) -> None:
        ours, theirs = socket.socketpair()
        self._channels.append(ours)
        program = partial(rank_program.run, self.job(rank, line_fd), theirs)
        with theirs:
            keep = (line_fd, theirs.fileno())
            self._processes.append(Child(program, environment(), self._log(rank), keep))

    @property
    def _all(self) -> Sequence[int]:
        return range(self._settings.nproc)

    def _ask(self, request: Message) -> list[Message]:
        self._send(request, self._playing)
        # Longer than the group's own time-out, whose error is the better explanation.
        return self._replies(self._settings.timeout_s + _GRACE_S, self._playing)

    def _send(self, request: Message, ranks: Sequence[int]) -> None:
        line = json.dumps(request).encode() + b"\n"
        for rank in ranks:
            try:
                self._channels[rank].sendall(line)
            except OSError:
                raise TeamError(self._death_of(rank)) from None

    def _replies(self, timeout_s: float, ranks: Sequence[int]) -> list[Message]:
        """The answers of these ranks to the last request, in this order."""
        lines = self._collect(timeout_s, ranks)
        answered = {rank: json.loads(line) for rank, line in lines.items()}
        silent = [rank for rank in ranks if rank not in answered]
        if silent and not any("error" in reply for reply in answered.values()):
            names = ", ".join(map(str, silent))
            last_words = self._last_words(silent[0])
            raise TeamError(f"no answer within {timeout_s:g} s from rank {names}{last_words}")
        return judge(answered, ranks)

    def _collect(self, timeout_s: float, ranks: Sequence[int]) -> dict[int, bytes]:
        """The line of every one of these ranks that answers in time."""
        deadline = monotonic() + timeout_s
        lines = dict.fromkeys(ranks, b"")
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                selector.register(self._channels[rank], selectors.EVENT_READ, rank)
            while selector.get_map() and monotonic() < deadline:
                for key, _ in selector.select(max(0.0, deadline - monotonic())):
                    part = _receive(self._channels[key.data])
                    if not part:
                        raise TeamError(self._death_of(key.data))
                    lines[key.data] += part
                    if part.endswith(b"\n"):
                        selector.unregister(key.fileobj)
        return {rank: line for rank, line in lines.items() if line.endswith(b"\n")}

    def _death_of(self, rank: int) -> str:
        try:
            code = self._process(rank).wait(2.0)
        except subprocess.TimeoutExpired:
            return f"rank {rank} closed its connection{self._last_words(rank)}"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"rank {rank} ended {how}{self._last_words(rank)}"

    def _process(self, rank: int) -> Process:
        return self._processes[rank]

    def _last_words(self, rank: int) -> str:
        lines = self._log(rank).read_text(errors="replace").splitlines()
        told = [line.strip() for line in lines if line.strip(" -=|\t")]  # no rulers
        return f"; its last line: {told[-1]}" if told else ""

    def _log(self, rank: int) -> Path:
        return self._dir / f"rank{rank}.log"


def _receive(channel: socket.socket) -> bytes:
    """Returns received bytes; none if the other side has ended."""
    try:
        return channel.recv(1 << 20)
    except ConnectionResetError:  # it ended with a request unread
        return b""


def environment() -> dict[str, str]:
    """The ranks find this very package, and start no thread pools of their own."""
    env = dict(os.environ)
    root = Path(shmcoll.bench.__file__).parents[2]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    env.setdefault("OMP_NUM_THREADS", "1")
    return env
