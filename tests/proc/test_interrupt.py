# SPDX-License-Identifier: BSD-3-Clause
"""Ctrl-C ends whatever a rank waits in, and the others are told."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import pytest
import ranks
import torch
import torch.distributed as dist

LIMIT_S = 20.0
ROUNDS = 5
LARGE = torch.ones(1 << 22)  # made here: the signal must not come while it is


def fill_the_ring() -> None:
    """Submits more than the ring holds; only a rank that never comes would empty it."""
    for _ in range(5000):
        dist.all_reduce(torch.ones(1), async_op=True)
    raise AssertionError("5000 operations fit into the ring")


def wait_for_the_second() -> None:
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.all_reduce(torch.ones(4), async_op=True).wait()


FAILS_THE_GROUP = ("all_reduce", "barrier", "large_all_reduce")  # no other thread runs it
WAITS: dict[str, Callable[[], Any]] = {
    "all_reduce": faults.all_reduce,
    "barrier": dist.barrier,
    "large_all_reduce": lambda: dist.all_reduce(LARGE),
    "wait": lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(),
    "wait_for_the_second": wait_for_the_second,
    "sync_call_behind_async_ones": lambda: (wait_less(), dist.barrier()),
    "wait_with_a_timeout": lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(
        ranks.seconds(10)
    ),
    "full_ring": fill_the_ring,
}


def wait_less() -> None:
    dist.all_reduce(torch.ones(4), async_op=True)


def interrupt(rank: ranks.Rank, wait: Callable[[], Any], delay_s: float) -> float:
    """SIGINT to this process `delay_s` into the wait; milliseconds until the exception."""

    def press() -> None:
        time.sleep(delay_s)
        faults.mark(rank)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    try:
        wait()
    except KeyboardInterrupt:
        return faults.since_ms(rank)
    raise AssertionError("the wait ended without KeyboardInterrupt")


@pytest.mark.alone
@pytest.mark.timeout(100)
@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_raises_keyboard_interrupt(wait: str, capsys: Any) -> None:
    def body(rank: ranks.Rank) -> list[float]:
        times = []
        for round_ in range(ROUNDS):
            dist.init_process_group(
                "shmcoll",
                store=dist.PrefixStore(f"round {round_}", rank.store),
                rank=rank.rank,
                world_size=2,
            )
            faults.all_reduce()
            rank.board[faults.FREE] = 0
            rank.sync()
            if rank.rank == 0:
                delay_s = 0.2 if wait == "full_ring" else 0.05 + 0.037 * round_
                times.append(interrupt(rank, WAITS[wait], delay_s))
                rank.board[faults.FREE] = 1
            else:
                faults.wait_for(rank, faults.FREE)
                if wait in FAILS_THE_GROUP:
                    said = faults.told(dist.barrier)
                    assert "rank 0" in said and "interrupted" in said, said
            rank.sync()
            dist.destroy_process_group()
        return times

    times = ranks.run(2, body, limit=40)[0]
    with capsys.disabled():
        print(f"\n{wait}: {', '.join(f'{ms:.1f}' for ms in times)} ms", end="")
    assert len(times) == ROUNDS and max(times) <= faults.INTERRUPTED_MS


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_ctrl_c_at_the_rendezvous_raises_and_tells_the_others(capsys: Any) -> None:
    def body(rank: ranks.Rank) -> float:
        assert rank.store is not None
        if rank.rank == 0:
            ms = interrupt(rank, rank.init, 0.2)
            rank.board[faults.FREE] = 1
            return ms
        faults.wait_for(rank, faults.FREE)
        begun = time.monotonic()
        said = faults.told(rank.init)
        assert "interrupted" in said and "rank 0" in said, said
        assert time.monotonic() - begun < 0.5
        return 0.0

    times = ranks.run(2, body, limit=LIMIT_S)
    with capsys.disabled():
        print(f"\nrendezvous: {times[0]:.1f} ms", end="")
    assert times[0] <= faults.INTERRUPTED_MS


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_a_handler_that_raises_something_else_is_heard_too() -> None:
    class Enough(Exception):
        pass

    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        if rank.rank == 1:
            faults.wait_for(rank, faults.FREE)
            return

        def enough(*_: Any) -> None:
            raise Enough("alarm")

        signal.signal(signal.SIGALRM, enough)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begun = time.monotonic()
        with pytest.raises(Enough):
            dist.barrier()
        assert 0.19 < time.monotonic() - begun < 0.4
        rank.board[faults.FREE] = 1

    ranks.run(2, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_a_handler_that_returns_disturbs_nothing() -> None:
    def body(rank: ranks.Rank) -> int:
        heard = 0

        def hear(*_: Any) -> None:
            nonlocal heard
            heard += 1

        faults.meet(rank)
        signal.signal(signal.SIGALRM, hear)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        until = time.monotonic() + 1.0
        calls = 0
        while dist_any(time.monotonic() < until):
            tensor = torch.ones(20000)
            dist.all_reduce(tensor)
            assert torch.all(tensor == 2)
            dist.all_reduce(tensor, async_op=True).wait()
            assert torch.all(tensor == 4)
            calls += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert calls > 10
        return heard

    def dist_any(mine: bool) -> bool:
        """All ranks go on while one wants to."""
        wish = torch.tensor([int(mine)])
        dist.all_reduce(wish, op=dist.ReduceOp.MAX)
        return bool(wish.item())

    assert min(ranks.run(2, body, limit=LIMIT_S)) > 100


# ---- handlers of C code ----


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("chain") / "chain.so"
    source = Path(__file__).with_name("chain.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


def let_wait(rank: ranks.Rank) -> None:
    """Rank 0 looks for handlers some times."""
    if rank.rank == 1:
        time.sleep(0.3)
    dist.barrier()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("early", [False, True])
def test_a_handler_that_calls_ours_is_called_once(chain: ctypes.CDLL, early: bool) -> None:
    """`early`: it was there before the group, too, and so ours calls it."""

    def body(rank: ranks.Rank) -> tuple[list[int], int]:
        heard: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
        if early:
            chain.chain_take(signal.SIGUSR1, 1)
        faults.meet(rank)
        chain.chain_take(signal.SIGUSR1, 1)
        let_wait(rank)
        if rank.rank == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        else:
            time.sleep(0.6)
        dist.barrier()  # rank 0's Python hears of it in here
        return heard, chain.chain_calls()

    (heard, calls), _ = ranks.run(2, body, limit=LIMIT_S)
    assert heard == [signal.SIGUSR1] and calls == 1


@pytest.mark.timeout(60)
def test_a_handler_that_is_given_back_is_heard_again(chain: ctypes.CDLL) -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        chain.chain_take(signal.SIGINT, 0)
        let_wait(rank)
        chain.chain_give_back(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        let_wait(rank)
        if rank.rank == 0:
            assert interrupt(rank, dist.barrier, 0.2) < LIMIT_S * 1000
        rank.sync()

    ranks.run(2, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_a_python_handler_over_one_of_c_code_is_heard_in_a_wait(chain: ctypes.CDLL) -> None:
    """Nothing counts its signals, because ours stays where it was: each look asks Python."""

    def body(rank: ranks.Rank) -> list[int]:
        heard: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: heard.append(-1))
        chain.chain_take(signal.SIGUSR1, 1)
        faults.meet(rank)
        signal.signal(signal.SIGUSR1, lambda number, _: heard.append(rank.board[faults.FREE]))
        let_wait(rank)
        if rank.rank == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        else:
            time.sleep(1)
            rank.board[faults.FREE] = 1
        dist.barrier()
        return heard

    assert ranks.run(2, body, limit=LIMIT_S)[0] == [0], "while rank 0 waited"
