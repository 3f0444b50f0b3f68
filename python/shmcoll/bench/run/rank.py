# SPDX-License-Identifier: BSD-3-Clause
"""The program of one rank. It answers requests of the parent over a socket, one JSON line each way.

    init                      joins the group of the backend  -> pid
    tune     text             makes the group of shmcoll that is used now -> values of keys
    prepare  point copies sweep_bytes    makes the buffers of a point
    check    salt             runs the operation once  -> wrong: elements
    time     iterations budget_ns                      -> phases: [called, returned] in ns of each
    bounds   size_bytes                                -> scale, exchange: ns of each turn
    (end of file)             leaves

For a point of two ranks the parent asks only these two; the others sleep on their sockets.

An error is also a reply ("error": text, "unsupported": the backend does not offer it), and the rank
waits for the next request.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from shmcoll.bench.run import exercise, rendezvous
from shmcoll.bench.run.mpirun import MPIS
from shmcoll.bench.plan import BOUNDS, RULER, Point, Unsupported
from shmcoll.bench.run.startline import StartLine

Message = dict[str, Any]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_WARMUP = 10  # iterations, in at most a tenth of the budget


class Rank:
    """One rank of a team. Torch is imported by ``init``: its failure is a reply like any other."""

    def __init__(self, job: Message) -> None:
        self._job = job
        self._rank: int = job["rank"]
        self._world_size: int = job["world_size"]
        self._line = StartLine(job["line_fd"], self._rank, self._world_size)
        self._exercise: exercise.Latency | None = None
        self._sweep = b""
        groups: int = job["groups"]
        self._group = self._rank % groups
        self._members = [range(g, self._world_size, groups) for g in range(groups)]
        self._how: Message = {}
        self._bounds: Callable[[int], Message]
        self._ruler: Callable[[Point, Any], Any] | None = None
        self._over: ModuleType | None = None  # over_torch or over_mpi

    def init(self) -> Message:
        import torch

        torch.set_num_threads(1)
        for module in self._job["imports"]:
            importlib.import_module(module)
        if self._job["backend"] == BOUNDS:
            from shmcoll.bench.judge import bounds

            shared = (self._job["line_fd"], self._rank, self._world_size, self._line)
            self._bounds = bounds.Bounds(*shared).measure
            return {"pid": os.getpid()}
        if self._job["backend"] == RULER:
            from shmcoll.bench.run import ruler

            self._ruler = ruler.Ruler(self._job["line_fd"], self._rank, self._world_size).prepare
            return {"pid": os.getpid()}
        name = "over_mpi" if self._job["backend"] in MPIS else "over_torch"
        self._over = importlib.import_module(f"shmcoll.bench.run.{name}")
        try:
            self._how = self._over.join(self._job, self._members, self._group)
        except LookupError as error:
            return {"error": str(error)}
        return {"pid": os.getpid()}

    def tune(self, text: str) -> Message:
        from shmcoll.bench.run import over_torch

        self._exercise = None
        if "group" in self._how:
            over_torch.leave(self._how.pop("group"))
        group = self._how["group"] = over_torch.tuned(text, self._job)
        return {"values": over_torch.tuning_of(group)}

    def prepare(self, point: Message, copies: int, sweep_bytes: int) -> Message:
        from shmcoll.bench.run import calls

        self._exercise = None  # frees the buffers of the last point first
        mode = self._job["mode"]
        pair = point["pair"]
        members = pair or self._members[self._group]
        line = self._line.among(pair) if pair else self._line
        place = members.index(self._rank)
        context = calls.Context(place, members, line, self._how, self._over)
        make = self._ruler or calls.prepare
        prepared = [make(Point(**point), context) for _ in range(copies)]
        # In another order than in memory: a CPU that reads ahead meets nobody's next buffer.
        random.Random(0).shuffle(prepared)
        if mode == "skew":
            self._exercise = exercise.Skew(prepared, context, self._job["skew_ns"])
        elif mode == "overlap":
            self._exercise = exercise.Overlap(prepared, context, calls.make_computation())
        else:
            kind = exercise.Throughput if mode == "throughput" else exercise.Latency
            self._exercise = kind(prepared, context)
        if len(self._sweep) != sweep_bytes:
            self._sweep = b"\1" * sweep_bytes  # not zeros: those may be one and the same page
        return {}

    def check(self, salt: int) -> Message:
        assert self._exercise is not None
        # No group has the values of another, but the roots are the same.
        return {"wrong": self._exercise.check(salt + (self._group << 25))}

    def time(self, iterations: int, budget_ns: int) -> Message:
        assert self._exercise is not None
        gc.disable()
        try:
            self._exercise.time(_WARMUP, budget_ns // 10)
            self._sweep.find(0)  # reads all of it
            return {"phases": self._exercise.time(iterations, budget_ns)}
        finally:
            gc.enable()

    def bounds(self, size_bytes: int) -> Message:
        return self._bounds(size_bytes)

    def leave(self) -> None:
        self._exercise = None
        if self._over is not None:
            self._over.leave()


def answer(rank: Rank, request: Message) -> Message:
    """The reply to one request."""
    handlers: dict[str, Callable[..., Message]] = {
        "init": rank.init,
        "tune": rank.tune,
        "prepare": rank.prepare,
        "check": rank.check,
        "time": rank.time,
        "bounds": rank.bounds,
    }
    try:
        return handlers[request.pop("do")](**request)
    except Unsupported as error:
        return {"error": str(error), "unsupported": True}
    except Exception as error:  # the parent decides what an error means for the run
        return {"error": _one_line(error)}


def serve(rank: Rank, channel: socket.socket) -> None:
    """Answers requests until the parent closes its end."""
    with channel.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            lines.write(json.dumps(answer(rank, json.loads(line))) + "\n")
            lines.flush()


def end_with_parent() -> None:
    """It may be killed while this rank is inside a collective."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(job: Message, channel: socket.socket) -> int:
    """The whole life of a rank that a team has started."""
    end_with_parent()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"bench rank {job['rank']}".encode())  # for ps and top
    if job["cpus"] is not None:  # first of all: threads that come later inherit it
        os.sched_setaffinity(0, job["cpus"])
    rank = Rank(job)
    serve(rank, channel)
    rank.leave()
    return 0


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":  # mpirun has started this one
    end_with_parent()
    sys.exit(run(*rendezvous.come(Path(sys.argv[1]))))
