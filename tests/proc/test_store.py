# SPDX-License-Identifier: BSD-3-Clause
"""A store whose server is stopped, or dies, while ranks make a group over it."""

from __future__ import annotations

import os
import signal
import threading
import time

import faults
import pytest
import torch.distributed as dist

from ranks import Rank, outcomes, run, seconds

DONE = 10  # words of the board: the ranks that are done


def store_of_rank_0(rank: Rank) -> dist.TCPStore:
    """A TCPStore that the process of rank 0 serves."""
    if rank.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        rank.board[0] = store.port
    rank.sync()
    if rank.rank:
        store = dist.TCPStore("127.0.0.1", rank.board[0], wait_for_workers=False)
    return store


def begin(rank: Rank) -> int:
    """The world over that store; the pid of rank 0."""
    rank.init(store=store_of_rank_0(rank))
    if rank.rank == 0:
        rank.board[1] = os.getpid()
    rank.sync()
    return rank.board[1]


def until_stopped(pid: int) -> None:
    while open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.001)


def until_done(rank: Rank, others: tuple[int, ...]) -> None:
    while not all(rank.board[DONE + other] for other in others):
        time.sleep(0.001)


@pytest.mark.alone
@pytest.mark.parametrize("served", [True, False])
def test_a_silent_store_is_left_at_the_time_out_and_named(served: bool) -> None:
    def body(rank: Rank) -> float:
        pid = begin(rank)
        if rank.rank == 0:
            os.kill(pid, signal.SIGSTOP)
            return 0.0
        until_stopped(pid)
        begun_ns = faults.clock_ns()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.new_group(None if served else [1, 2], timeout=seconds(0.5))
        took_ms = (faults.clock_ns() - begun_ns) / 1e6
        rank.board[DONE + rank.rank] = 1
        if rank.rank == 1:
            until_done(rank, (1, 2))
            os.kill(pid, signal.SIGCONT)
        text = str(caught.value)
        assert faults.timed_out_after(text) >= 0.5 and "does not answer" in text
        assert (
            f"TCPStore at 127.0.0.1:{rank.board[0]}, served by rank 0 (pid {pid}, stopped)" in text
        )
        return took_ms

    for took_ms in run(3, body)[1:]:
        assert took_ms <= 500 + faults.told_limit_ms()


@pytest.mark.alone
def test_ctrl_c_ends_the_wait_for_a_silent_store() -> None:
    def body(rank: Rank) -> float:
        pid = begin(rank)
        if rank.rank == 0:
            os.kill(pid, signal.SIGSTOP)
            return 0.0
        until_stopped(pid)
        pressed = []

        def press() -> None:
            time.sleep(0.2)
            pressed.append(faults.clock_ns())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            dist.new_group()
        took_ms = (faults.clock_ns() - pressed[0]) / 1e6
        os.kill(pid, signal.SIGCONT)
        return took_ms

    assert run(2, body)[1] <= faults.INTERRUPTED_MS + faults.beats.stall_ms()


def test_a_store_that_died_is_named_with_its_rank() -> None:
    def body(rank: Rank) -> str:
        begin(rank)
        if rank.rank == 0:
            os._exit(0)
        while True:  # the server may go before the process does
            with pytest.raises((dist.DistError, RuntimeError)) as caught:
                dist.new_group()
            if "died" in str(caught.value):
                break
        return str(caught.value)

    for outcome in outcomes(3, body)[1:]:
        assert outcome.ok, outcome.trace
        assert "of the store (TCPStore at " in outcome.value and "rank 0 (pid " in outcome.value
