# SPDX-License-Identifier: BSD-3-Clause
"""Runs a function as N ranks.

    def body(rank):
        rank.init()
        t = torch.full((4,), float(rank.rank))
        dist.all_reduce(t)
        return t.tolist()

    assert run(2, body) == [[1.0] * 4] * 2

A rank is a process forked from this one, which has imported torch once: a test costs tenths of a
second, and the body may be a closure. With ``threads=True`` all ranks are threads of one forked
process. Nobody here may start torch's thread pool, make a group or ask shmcoll for its settings
in the parent: a forked child would inherit half of it.

A hang is a failure: at the limit the Python stacks of all ranks are printed, the native ones too
where there is a debugger, and the ranks are killed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import faulthandler
import gc
import mmap
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import shmcoll

_ = shmcoll.create_backend, shmcoll.Options  # loads the library before ranks are forked

LIMIT_S = 60.0  # of one run
TIMEOUT_S = 20.0  # of the groups' operations
BOARD_WORDS = 1024
SYNC_WORDS = 64  # the last ones of the board are rank.sync()'s

torch.set_num_threads(1)

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


class Failed(AssertionError):
    """A rank raised, or ended in a way nobody expected."""


class Hang(Failed):
    """The ranks were not done in time."""


@dataclasses.dataclass
class Outcome:
    """How a rank ended."""

    rank: int
    value: Any = None
    error: str = ""  # the exception's type
    bases: tuple[str, ...] = ()  # the names of its classes, itself included
    text: str = ""  # what it says
    trace: str = ""
    exit: int | None = None  # as subprocess has it: negative for a signal
    output: str = ""  # stdout and stderr

    @property
    def ok(self) -> bool:
        return self.exit == 0 and not self.error


class Rank:
    """What the body of a test gets: its rank, the world, and helpers."""

    def __init__(self, run: "Run", rank: int) -> None:
        self.rank = rank
        self.world = run.world
        self.directory = run.directory
        self.board = run.board  # int64 words that all ranks and the parent share
        self._run = run
        self._store: dist.Store | None = None
        self._syncs = 0

    @property
    def store(self) -> dist.Store:
        if self._store is None:
            self._store = self._run.make_store(self.rank)
        return self._store

    def init(self, backend: str = "shmcoll", **options: Any) -> None:
        """torch.distributed.init_process_group over this run's store."""
        options.setdefault("timeout", seconds(TIMEOUT_S))
        options.setdefault("store", self.store)
        dist.init_process_group(backend, rank=self.rank, world_size=self.world, **options)

    def group(self, name: str = "test", timeout: float = TIMEOUT_S, **more: Any) -> Any:
        """A bare ProcessGroupShm; `rank`, `world`, `store` and `members` may be given."""
        options = shmcoll.Options(seconds(timeout))
        options.group_name = name
        options.global_ranks_in_group = more.get("members", [])
        store = dist.PrefixStore(name, more.get("store") or self.store)
        return shmcoll._glue.make(
            store, more.get("rank", self.rank), more.get("world", self.world), options
        )

    def sync(self, limit: float = LIMIT_S) -> None:
        """Waits until all ranks are here; the library under test has no part in it."""
        self._syncs += 1
        base = BOARD_WORDS - SYNC_WORDS
        self.board[base + self.rank] = self._syncs
        deadline = time.monotonic() + limit
        while any(self.board[base + r] < self._syncs for r in range(self.world)):
            if time.monotonic() > deadline:
                raise Hang(f"rank {self.rank}: not all ranks came to sync {self._syncs}")
            time.sleep(0.0005)


def seconds(value: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=value)


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


_server = (0, 0)  # the process it was made in, its port


def server_port() -> int:
    """The port of a TCPStore in a process of its own: a fork next to its thread could inherit a held lock."""
    global _server
    if _server[0] != os.getpid():
        reader, writer = os.pipe()
        if os.fork() == 0:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(writer, str(store.port).encode())
            while True:
                signal.pause()
        os.close(writer)
        _server = (os.getpid(), int(os.read(reader, 16)))
        os.close(reader)
    return _server[1]


def connect(port: int) -> dist.TCPStore:
    return dist.TCPStore(
        "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=seconds(60)
    )


class Run:
    def __init__(self, world: int, body: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.world = world
        self.body = body
        self.args = args
        self.directory = Path(tempfile.mkdtemp(prefix="shmcoll-ranks-"))
        self._memory = mmap.mmap(-1, 8 * BOARD_WORDS)
        self.board = memoryview(self._memory).cast("q")
        self.pids: dict[int, int] = {}
        self.kind = "tcp"
        self.clients: list[dist.TCPStore] = []

    def serve(self, kind: str) -> None:
        self.kind = kind
        if kind == "tcp":
            # Connected before the fork: a server may take seconds to accept (it looks names up), and
            # answers nobody meanwhile.
            # The last one is for a process that is no rank.
            self.clients = [connect(server_port()) for _ in range(self.world + 1)]

    def make_store(self, rank: int) -> dist.Store:
        if self.kind == "tcp":
            return dist.PrefixStore(self.directory.name, self.clients[rank])
        return dist.FileStore(str(self.directory / "store"), self.world)

    # ---- in the child ----

    def child(self, rank: int, env: dict[str, str], threads: bool) -> None:
        """Never returns."""
        status = 1
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            out = os.open(self.path("out", rank), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.close(out)
            sys.stdout = open(1, "w", buffering=1, closefd=False)
            sys.stderr = open(2, "w", buffering=1, closefd=False)
            faulthandler.cancel_dump_traceback_later()
            faulthandler.enable(file=2)
            faulthandler.register(signal.SIGUSR2, file=2, all_threads=True, chain=False)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(env)
            torch.set_num_threads(
                1
            )  # here too: threads that do so first, together, make torch fail
            if threads:
                self.be_threads()
            else:
                self.save(self.be_rank(rank))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
                shmcoll._glue.leave()
            finally:
                os._exit(status)

    def be_rank(self, rank: int) -> Outcome:
        outcome = Outcome(rank)
        try:
            outcome.value = self.body(Rank(self, rank), *self.args)
            if dist.is_initialized():
                dist.destroy_process_group()
        except BaseException as error:  # KeyboardInterrupt too: the parent judges
            outcome.error = type(error).__name__
            outcome.bases = tuple(kind.__name__ for kind in type(error).__mro__)
            outcome.text = str(error)
            outcome.trace = traceback.format_exc()
        return outcome

    def be_threads(self) -> None:
        store = dist.HashStore()
        self.make_store = lambda _: store  # type: ignore[method-assign]
        outcomes: list[Outcome] = []
        threads = [
            threading.Thread(target=lambda r=r: outcomes.append(self.be_rank(r)))
            for r in range(self.world)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outcome in outcomes:
            self.save(outcome)

    def path(self, what: str, rank: int) -> str:
        return str(self.directory / f"{what}.{rank}")

    def save(self, outcome: Outcome) -> None:
        with open(self.path("new", outcome.rank), "wb") as file:
            pickle.dump(outcome, file)
        os.rename(self.path("new", outcome.rank), self.path("result", outcome.rank))

    # ---- in the parent ----

    def fork(self, rank: int, env: dict[str, str], threads: bool) -> None:
        pid = os.fork()
        if pid == 0:
            self.child(rank, env, threads)
        self.pids[rank] = pid

    def wait(self, limit: float, grace: float | None) -> dict[int, int]:
        """Exit codes by rank; raises Hang."""
        deadline = time.monotonic() + limit
        native, text = True, f"not done after {limit} s"
        left = {os.pidfd_open(pid): rank for rank, pid in self.pids.items()}
        codes: dict[int, int] = {}
        try:
            while left:
                poll = select.poll()
                for fd in left:
                    poll.register(fd, select.POLLIN)
                for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    rank = left.pop(fd)
                    os.close(fd)
                    _, status = os.waitpid(self.pids.pop(rank), 0)
                    codes[rank] = os.waitstatus_to_exitcode(status)
                    if grace is not None and not self.outcome(rank, codes[rank]).ok:
                        if time.monotonic() + grace < deadline:
                            deadline = time.monotonic() + grace
                            native, text = False, f"not done {grace} s after rank {rank} failed"
                if left and time.monotonic() >= deadline:
                    raise Hang(self.report_hang(text, native))
        finally:
            for fd in left:
                os.close(fd)
        return codes

    def report_hang(self, text: str, native: bool) -> str:
        stacks = {}
        for rank, pid in self.pids.items():
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGUSR2)
        time.sleep(0.3)
        for rank, pid in self.pids.items():
            stacks[rank] = native_stacks(pid) if native else ""
        text += f": ranks {sorted(self.pids)}\n"
        for rank in range(self.world):
            ended = self.outcome(rank, None)  # a rank that has raised may be why others wait
            text += f"---- rank {rank}: output, and its stacks ----\n{ended.trace}{ended.output}\n"
            text += stacks.get(rank, "")
        return text

    def output(self, rank: int) -> str:
        path = Path(self.path("out", rank))
        return path.read_text(errors="replace") if path.exists() else ""

    def outcome(self, rank: int, code: int | None) -> Outcome:
        result = Path(self.path("result", rank))
        outcome = Outcome(rank)
        if result.exists():
            outcome = pickle.loads(result.read_bytes())
        outcome.exit = code
        outcome.output = self.output(rank)
        return outcome

    def end(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids = {}
        shutil.rmtree(self.directory, ignore_errors=True)


def native_stacks(pid: int) -> str:
    """Returns the stacks of all threads, or "" without a debugger."""
    if shutil.which("gdb") is None:
        return ""
    command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 14"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "(the debugger hangs)\n"
    keep = [line[:160] for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))]
    return "\n".join(keep) + "\n"


def freeze_heap() -> None:
    """The children's collector leaves the parent's objects alone, and so does the parent's own the
    next time: to look through all of torch takes it a tenth of a second."""
    gc.collect()
    gc.freeze()


def outcomes(
    world: int,
    body: Callable[..., Any],
    *args: Any,
    store: str = "tcp",
    limit: float = LIMIT_S,
    grace: float | None = None,
    env: dict[str, str] | None = None,
    threads: bool = False,
    meanwhile: Callable[[Run], None] | None = None,
    keep_board: list[int] | None = None,
) -> list[Outcome]:
    """Runs the body and says how each rank ended.

    grace: what the other ranks have when one has failed.
    meanwhile: called in the parent while the ranks run, with .pids and .board.
    keep_board: gets the words of the board as they were at the end.
    """
    run = Run(world, body, args)
    freeze_heap()
    try:
        run.serve("hash" if threads else store)
        for rank in range(1 if threads else world):
            run.fork(rank, env or {}, threads)
        if meanwhile:
            meanwhile(run)
        codes = run.wait(limit, grace)
        ended = [run.outcome(rank, codes.get(0 if threads else rank)) for rank in range(world)]
        if keep_board is not None:
            keep_board[:] = run.board
    finally:
        run.end()
    return ended


def run(world: int, body: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Runs the body; every rank must end well. Returns what they returned."""
    ended = outcomes(world, body, *args, **options)
    bad = [outcome for outcome in ended if not outcome.ok]
    if bad:
        raise Failed("\n".join(describe(outcome) for outcome in bad))
    return [outcome.value for outcome in ended]


def survivors(
    world: int, body: Callable[..., Any], killed: Collection[int] = (), **options: Any
) -> list[Any]:
    """What the ranks return that are not killed. Nothing is left over."""
    ended = outcomes(world, body, **options)
    for outcome in ended:
        if outcome.rank in killed:
            assert outcome.exit == -signal.SIGKILL, describe(outcome)
        else:
            assert outcome.ok, describe(outcome)
    assert leftovers() == []
    return [outcome.value for outcome in ended if outcome.rank not in killed]


def told(call: Callable[[], Any], kind: type[Exception] = dist.DistBackendError) -> str:
    """The text of the error that the call must raise."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("the call raised nothing")


def wait_until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def describe(outcome: Outcome) -> str:
    return (
        f"---- rank {outcome.rank}: exit {outcome.exit}, {outcome.error or 'no exception'} ----\n"
        f"{outcome.trace}{outcome.output}"
    )


def leftovers() -> list[str]:
    """Names that the library has left in /dev/shm. A name of a test that runs at the same time is gone in
    a moment: only what stays is left over."""

    def names() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if name.startswith("shmcoll-")}

    left, deadline = names(), time.monotonic() + 10
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left &= names()
    return sorted(left)
