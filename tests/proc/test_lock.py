# SPDX-License-Identifier: BSD-3-Clause
"""A thread that keeps the interpreter's lock delays neither the other ranks, nor a deadline, nor the
report about a late rank; and a signal is answered when it releases the lock."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
import ranks
import torch
import torch.distributed as dist

import shmcoll

LIMIT_S = 30.0
KEPT_S = 30.0  # longer than any promise, shorter than the limit
DONE, KEPT = 3, 4  # words of the board
COUNT = 1 << 20  # elements: several steps of a large operation


class Holder:
    """A thread that takes the interpreter's lock, and keeps it until a process writes to a pipe."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def keep_when(self, ready: Callable[[], bool], rank: ranks.Rank) -> None:
        """From then on other threads of Python stand still, until let_go(). The board says so."""

        def keep() -> None:
            while not ready():
                time.sleep(0.002)
            libc, byte = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
            rank.board[KEPT] = 1
            libc.read(self.reader, byte, 1)

        threading.Thread(target=keep, daemon=True).start()

    def let_go(self) -> None:
        """From any process that has the pipe."""
        os.write(self.writer, b"x")


def main_thread_sleeps() -> Callable[[], bool]:
    """Is the main thread inside a call of C, and goes to sleep there again and again?

    While this thread has the lock, the other may wait for it: however often it sleeps then counts once.
    """
    main = threading.main_thread()
    status = Path(
        f"/proc/self/task/{os.getpid()}/status"
    )  # (after a fork native_id is the parent's)
    where: tuple[int, int] = (0, 0)
    last = seen = 0

    def look() -> bool:
        nonlocal where, last, seen
        frame = sys._current_frames()[main.ident or 0]
        now = (id(frame), frame.f_lasti)
        sleeps = int(status.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0])
        seen = seen + int(sleeps > last) if now == where else 0
        where, last = now, sleeps
        return seen >= 6

    return look


@pytest.fixture
def holder() -> Iterator[Holder]:
    holder = Holder()
    yield holder
    os.close(holder.reader)
    os.close(holder.writer)


def ones() -> torch.Tensor:
    return torch.ones(COUNT)


def all_reduce() -> None:
    tensor = ones()
    dist.all_reduce(tensor)
    assert torch.all(tensor == 2)


def wait() -> None:
    tensor = ones()
    dist.all_reduce(tensor, async_op=True).wait()
    assert torch.all(tensor == 2)


def timed_wait() -> None:
    dist.all_reduce(ones(), async_op=True).wait(ranks.seconds(60))


def message() -> None:
    tensor = torch.full((COUNT,), float(dist.get_rank()))
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)
        assert torch.all(tensor == 1)
    else:
        dist.send(tensor, 0)


def dropped_work() -> None:
    """Only the library has the Work and its tensor when the operation ends."""
    dist.all_reduce(ones(), async_op=True)
    dist.barrier()


def future() -> None:
    """Its callback wants the lock, and the next operation does not wait for it."""
    called = dist.all_reduce(ones(), async_op=True).get_future().then(lambda _: None)
    dist.barrier()
    if dist.get_rank() == 1:
        called.wait()


def forget(call: Callable[[], Any]) -> Callable[[ranks.Rank], Any]:
    return lambda _: call()


CALLS: dict[str, Callable[[ranks.Rank], Any]] = {
    "all_reduce": forget(all_reduce),
    "barrier": forget(dist.barrier),
    "wait": forget(wait),
    "timed_wait": forget(timed_wait),
    "recv": forget(message),
    "dropped_work": forget(dropped_work),
    "future": forget(future),
    "new_group": lambda rank: rank.group("new"),
}
DEADLINES: dict[str, Callable[[ranks.Rank], Any]] = {
    "all_reduce": forget(faults.all_reduce),
    "wait": forget(wait),
    "recv": forget(message),
    "new_group": lambda rank: rank.group("new", timeout=4),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", CALLS)
def test_peers_are_not_delayed(call: str, holder: Holder) -> None:
    """Rank 0 is inside the call when its lock goes, and gets it back when rank 1 is through."""

    def body(rank: ranks.Rank) -> None:
        faults.meet(rank, timeout=ranks.seconds(KEPT_S / 2))
        all_reduce()
        rank.sync()
        if rank.rank == 0:
            # As after signal.signal(): something is to be looked at, which would take the lock.
            signal.signal(signal.SIGALRM, lambda *_: None)
            holder.keep_when(main_thread_sleeps(), rank)
            CALLS[call](rank)
            return
        faults.wait_for(rank, KEPT)
        time.sleep(0.1)
        CALLS[call](rank)
        holder.let_go()

    ranks.run(2, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_what_nobody_waits_for_goes_on(holder: Holder) -> None:
    """Rank 0 is in no call: threads of the library do its part."""

    def body(rank: ranks.Rank) -> None:
        faults.meet(rank, timeout=ranks.seconds(KEPT_S / 2))
        tensor = ones()
        if rank.rank == 0:
            works = [dist.all_reduce(tensor, async_op=True), dist.isend(ones(), 1)]
            holder.keep_when(lambda: True, rank)
            faults.wait_for(rank, DONE)
            begun = time.monotonic()
            # Rank 1 may be through before the library's thread has noted it here.
            while not all(work.is_completed() for work in works):
                assert time.monotonic() - begun < LIMIT_S / 2
                time.sleep(0.001)
            return
        faults.wait_for(rank, KEPT)
        dist.all_reduce(tensor)
        dist.recv(tensor, 0)
        rank.board[DONE] = 1
        holder.let_go()

    ranks.run(2, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_a_signal_that_cannot_be_handled_delays_nobody(holder: Holder) -> None:
    """SIGALRM every 5 ms, for a handler in Python that returns, while the lock is kept."""

    def body(rank: ranks.Rank) -> int:
        heard = 0

        def hear(*_: Any) -> None:
            nonlocal heard
            heard += 1

        faults.meet(rank, timeout=ranks.seconds(KEPT_S / 2))
        rank.sync()
        if rank.rank == 0:
            signal.signal(signal.SIGALRM, hear)
            holder.keep_when(main_thread_sleeps(), rank)
            signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
            all_reduce()
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            faults.wait_for(rank, KEPT)
            time.sleep(0.2)
            all_reduce()
            holder.let_go()
        return heard

    assert ranks.run(2, body, limit=LIMIT_S)[0] > 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", DEADLINES)
def test_the_deadline_and_the_late_line_come_while_the_lock_is_kept(
    call: str, holder: Holder
) -> None:
    """Rank 1 never comes. It looks, without a call, for what rank 0 says and when."""

    def body(rank: ranks.Rank) -> None:
        faults.meet(rank, timeout=ranks.seconds(4))
        rank.sync()
        if rank.rank == 0:
            holder.keep_when(main_thread_sleeps(), rank)
            with pytest.raises(dist.DistBackendError, match="Timed out after 4"):
                DEADLINES[call](rank)
            rank.board[DONE] = 1
            return
        out = rank.directory / "out.0"
        deadline = time.monotonic() + 15
        faults.wait_for(rank, KEPT)
        # A busy machine may come to say so a little later.
        while "has waited 2." not in out.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rank.board[DONE] == 0 and time.monotonic() < deadline, out.read_text()
        if call in ("all_reduce", "wait"):
            backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
            while backend.get_error().name == "SUCCESS":
                time.sleep(0.01)
            told = faults.told(dist.barrier)
            assert "Timed out after 4" in told, told
        else:
            time.sleep(2.5)
        assert rank.board[DONE] == 0  # the lock was kept for as long
        holder.let_go()

    ranks.run(2, body, limit=LIMIT_S, env={"SHMCOLL_LATE_MS": "2000"})


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", [faults.all_reduce, wait, message])
def test_ctrl_c_is_answered_when_the_lock_is_free_again(call: Any, holder: Holder) -> None:
    def body(rank: ranks.Rank) -> float:
        faults.meet(rank)
        rank.board[faults.FREE] = 0
        rank.sync()
        if rank.rank == 1:
            faults.wait_for(rank, KEPT)
            os.kill(rank.board[faults.PID_OF], signal.SIGINT)
            time.sleep(0.5)
            assert rank.board[faults.FREE] == 0
            faults.mark(rank)
            holder.let_go()
            faults.wait_for(rank, faults.FREE)
            return 0.0
        holder.keep_when(main_thread_sleeps(), rank)
        with pytest.raises(KeyboardInterrupt):
            call()
        ms = faults.since_ms(rank)
        rank.board[faults.FREE] = 1
        return ms

    assert ranks.run(2, body, limit=LIMIT_S)[0] <= faults.INTERRUPTED_MS + 100


class Raised(Exception):
    pass


def raise_it(*_: Any) -> None:
    raise Raised


@pytest.mark.timeout(60)
@pytest.mark.parametrize("set_anew", [False, True])
def test_a_signal_that_ends_no_sleep_is_not_lost(set_anew: bool) -> None:
    """It comes while rank 0 is about to wait, spins or yields: at another moment in each round."""

    def body(rank: ranks.Rank) -> None:
        signal.signal(signal.SIGALRM, raise_it)
        faults.meet(rank)
        if rank.rank == 1:
            faults.wait_for(rank, faults.FREE)
            return
        for round_ in range(40):
            if set_anew:
                signal.signal(signal.SIGALRM, raise_it)
            begun = time.monotonic()
            with pytest.raises(Raised):
                signal.setitimer(signal.ITIMER_REAL, 0.0001 * (round_ + 1))
                dist.recv(torch.ones(4), 1)
            assert time.monotonic() - begun < 2
        rank.board[faults.FREE] = 1

    ranks.run(2, body, limit=LIMIT_S)


class Sigaction(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("rest", ctypes.c_char * 248)]


def system_handler(number: int) -> int:
    action = Sigaction()
    assert ctypes.CDLL(None).sigaction(number, None, ctypes.byref(action)) == 0
    return action.handler or 0


@pytest.mark.timeout(60)
def test_handlers_stay_the_users_and_are_given_back() -> None:
    def body(rank: ranks.Rank) -> None:
        heard: list[int] = []
        before = system_handler(signal.SIGINT)
        own = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        rank.init()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert system_handler(signal.SIGINT) != before
        assert system_handler(signal.SIGUSR2) != before  # another's: not Python's
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, own)
        assert heard == [signal.SIGTERM]
        assert system_handler(signal.SIGTERM) == 0
        shmcoll._glue.leave()
        assert system_handler(signal.SIGINT) == before

    ranks.run(1, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_a_forked_child_has_handlers_and_asks_for_the_lock_of_its_own() -> None:
    """The parent has asked: its thread is not in the child."""

    def interrupted_recv(rank: ranks.Rank, group: Any, word: int) -> None:
        if rank.rank == 1:
            faults.wait_for(rank, word)
            return
        with pytest.raises(Raised):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            group.recv([torch.ones(4)], 1, 0).wait()
        rank.board[word] = 1

    def child(rank: ranks.Rank) -> None:
        store = dist.FileStore(str(rank.directory / "child"), 2)
        interrupted_recv(rank, rank.group("child", store=store), DONE)

    def body(rank: ranks.Rank) -> None:
        signal.signal(signal.SIGALRM, raise_it)
        interrupted_recv(rank, rank.group("parent"), faults.FREE)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child(rank)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    ranks.run(2, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_a_subinterpreter_changes_nothing() -> None:
    """Once one was made, PyGILState_Check() says yes to every thread."""
    interpreters = importlib.import_module(
        "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    )

    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        made = interpreters.create()
        interpreters.run_string(made, "import math")
        interpreters.destroy(made)
        for call in (all_reduce, wait, timed_wait, message, dropped_work, future):
            call()
        if rank.rank == 0:
            timer = threading.Timer(0.1, rank.board.__setitem__, (faults.FREE, 1))
            timer.start()
            message()
        else:
            faults.wait_for(rank, faults.FREE)  # the other's thread runs while it waits
            message()
        signal.signal(signal.SIGALRM, raise_it)
        if rank.rank == 0:
            with pytest.raises(Raised):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                dist.recv(torch.ones(4), 1)
        rank.sync()
        dist.destroy_process_group()

    ranks.run(2, body, limit=LIMIT_S)
