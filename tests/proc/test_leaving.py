# SPDX-License-Identifier: BSD-3-Clause
"""destroy_process_group and abort need no other rank, and return at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import faults
import pytest
import ranks
import torch
import torch.distributed as dist

LIMIT_S = 30.0
PEER = 1


def destroy() -> None:
    dist.destroy_process_group()


def abort() -> None:
    dist.distributed_c10d._abort_process_group()


def abort_and_destroy() -> None:
    dist.distributed_c10d._get_default_group().abort()
    dist.destroy_process_group()


LEAVES: dict[str, Callable[[], None]] = {
    "destroy": destroy,
    "abort": abort,
    "abort_and_destroy": abort_and_destroy,
}


def peer_stops(rank: ranks.Rank) -> None:
    faults.stop_oneself_until_continued(rank)


def peer_dies(rank: ranks.Rank) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def peer_is_slow(rank: ranks.Rank) -> None:
    time.sleep(1.5)


PEERS: dict[str, Callable[[ranks.Rank], None]] = {
    "stopped": peer_stops,
    "dead": peer_dies,
    "slow": peer_is_slow,
}


def nothing_in_flight() -> None:
    pass


def much_in_flight() -> None:
    for _ in range(40):
        dist.all_reduce(torch.ones(1 << 16), async_op=True)


def continue_peer(run: Any) -> None:
    """Where the peer stops: lets it go on when the others have left."""
    time.sleep(0.2)
    deadline = time.monotonic() + 10
    while run.board[faults.FREE] < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(run.pids[PEER], signal.SIGCONT)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("load", [nothing_in_flight, much_in_flight])
@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("leave", LEAVES)
def test_leaving_needs_no_peer(leave: str, peer: str, load: Callable[[], None]) -> None:
    def body(rank: ranks.Rank) -> float:
        faults.meet(rank)
        if rank.rank == PEER:
            PEERS[peer](rank)
            if dist.is_initialized():
                dist.destroy_process_group()
            return 0.0
        time.sleep(0.05)
        load()
        ms = faults.took_ms(LEAVES[leave])
        rank.board[faults.FREE] += 1  # from two processes, but 10 s end the wait for it too
        assert not dist.is_initialized()
        return ms

    outcomes = ranks.outcomes(
        3, body, limit=LIMIT_S, meanwhile=continue_peer if peer == "stopped" else None
    )
    assert outcomes[PEER].exit == (-signal.SIGKILL if peer == "dead" else 0)
    for outcome in outcomes:
        if outcome.rank != PEER:
            assert outcome.ok, ranks.describe(outcome)
            assert outcome.value <= faults.LEFT_MS
            assert outcome.output == ""
    assert ranks.leftovers() == []


@pytest.mark.timeout(60)
def test_a_group_may_be_left_many_times_over() -> None:
    def body(rank: ranks.Rank) -> None:
        group = rank.group()
        group.barrier().wait()
        for _ in range(3):
            assert faults.took_ms(group.shutdown) < faults.LEFT_MS
            assert faults.took_ms(group.abort) < faults.LEFT_MS
        assert "closed" in faults.told(group.barrier)

    ranks.run(2, body, limit=LIMIT_S)


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("blocked", ["all_reduce", "work"])
def test_an_abort_from_another_thread_ends_blocked_calls_on_all_ranks(blocked: str) -> None:
    def body(rank: ranks.Rank) -> float:
        group = rank.group()
        group.barrier().wait()
        rank.sync()
        ms = 1.0 if rank.rank == 2 else be_aborted(rank, group, blocked == "work")
        rank.sync()  # rank 2 never comes to the operation, and is here to the end
        group.shutdown()
        return ms

    assert max(ranks.run(3, body, limit=LIMIT_S)) <= faults.told_limit_ms()


def be_aborted(rank: ranks.Rank, group: Any, async_op: bool) -> float:
    def end() -> None:
        time.sleep(0.2)
        faults.mark(rank)
        group.abort()

    if rank.rank == 0:
        threading.Thread(target=end).start()
    options = dist.AllreduceOptions()
    options.asyncOp = async_op

    def call() -> None:
        work = group.allreduce([torch.ones(4)], options)
        if work is not None:
            work.wait()

    said = faults.told(call)
    assert rank.board[faults.MOMENT] > 0, f"before the abort: {said}"
    # On rank 0 the call may end by the abort, or by the close that follows it.
    assert "rank 0 aborted" in said or (rank.rank == 0 and "closed" in said), said
    return faults.since_ms(rank)


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_destroy_from_another_thread_ends_a_blocked_call() -> None:
    def body(rank: ranks.Rank) -> float:
        group = rank.group()
        group.barrier().wait()
        rank.sync()
        if rank.rank == 0:

            def end() -> None:
                time.sleep(0.2)
                faults.mark(rank)
                group.shutdown()

            ending = threading.Thread(target=end)
            ending.start()
            said = faults.told(lambda: group.barrier().wait())
            ms = faults.since_ms(rank)
            assert "closed" in said, said
            ending.join()  # this process may end when it has left the group, not before
            rank.sync()
            return ms
        rank.sync()
        group.barrier().wait()  # rank 0 had entered this one before it left
        said = faults.told(lambda: group.barrier().wait())
        assert "rank 0 (pid" in said and "has left the group" in said, said
        return 0.0

    assert 0 < ranks.run(2, body, limit=LIMIT_S)[0] <= faults.told_limit_ms()


@pytest.mark.timeout(60)
def test_a_rank_that_destroyed_its_group_is_named_and_has_poisoned_nobody() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        pair = dist.new_group([0, 1])
        if rank.rank == 2:
            dist.destroy_process_group()
            return
        for _ in range(2):
            said = faults.told(dist.barrier)
            assert "rank 2 (pid" in said and "has left the group" in said, said
            tensor = torch.ones(100)
            dist.all_reduce(tensor, group=pair)
            assert torch.all(tensor == 2)
        faults.re_form(rank, "without 2", [0, 1])

    ranks.run(3, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_the_last_operation_before_leaving_reaches_everybody() -> None:
    def body(rank: ranks.Rank) -> None:
        for round_ in range(15):
            store = dist.PrefixStore(str(round_), rank.store)
            dist.init_process_group("shmcoll", store=store, rank=rank.rank, world_size=3)
            if rank.rank == round_ % 3:
                time.sleep(0.005)
            tensor = torch.ones(100000)
            dist.all_reduce(tensor)
            assert torch.all(tensor == 3)
            dist.destroy_process_group()

    ranks.run(3, body, limit=LIMIT_S)
