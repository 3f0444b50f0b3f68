# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that can make no thread: after the group is made all works without, and one line says so; before it
every rank is told."""

from __future__ import annotations

import threading

import no_threads
import pytest
import ranks
import torch
import torch.distributed as dist

COUNT = 1 << 18
WHO = [(0, 1), (1,)]


def ones() -> torch.Tensor:
    return torch.ones(COUNT)


def refuse(rank: ranks.Rank, who: tuple[int, ...]) -> None:
    if rank.rank in who:
        no_threads.refuse_threads()
        with pytest.raises(RuntimeError):
            threading.Thread(target=ones).start()


@pytest.mark.parametrize("who", WHO)
def test_asynchronous_operations_need_no_thread(who: tuple[int, ...]) -> None:
    def body(rank: ranks.Rank) -> None:
        rank.init()
        refuse(rank, who)
        peer = 1 - rank.rank
        tensor = ones()
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(tensor, async_op=True).wait(ranks.seconds(15))
        assert work.is_completed() and torch.all(tensor == 8)

        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        assert torch.all(tensor == 16)

        received = torch.zeros(COUNT)
        work = dist.isend(ones(), peer)
        dist.recv(received, peer)
        work.wait()
        assert torch.all(received == 1)

        future = dist.all_reduce(ones(), async_op=True).get_future()
        assert future.then(lambda done: float(done.value()[0][0])).wait() == 2
        sent = dist.isend(ones(), peer)
        received = dist.irecv(tensor, peer).get_future().wait()[0]
        sent.wait()
        assert torch.all(received == 1)

    ended = ranks.outcomes(2, body)
    for rank, outcome in enumerate(ended):
        assert outcome.ok, ranks.describe(outcome)
        assert outcome.output.count("cannot start another thread") == (rank in who), outcome.output


@pytest.mark.parametrize("who", WHO)
def test_what_nobody_waits_for_is_run_by_the_end_of_the_group(who: tuple[int, ...]) -> None:
    def body(rank: ranks.Rank) -> None:
        rank.init()
        dist.barrier()
        refuse(rank, who)
        if rank.rank == 1:
            tensor = ones()
            work = dist.all_reduce(tensor, async_op=True)
            dist.destroy_process_group()
            assert work.is_completed() and work.is_success() and torch.all(tensor == 2)
        else:
            tensor = ones()
            dist.all_reduce(tensor)
            assert torch.all(tensor == 2)

    ranks.run(2, body)


@pytest.mark.parametrize("who", WHO)
def test_without_a_thread_there_is_no_group_and_every_rank_knows_why(who: tuple[int, ...]) -> None:
    def body(rank: ranks.Rank) -> None:
        refuse(rank, who)
        with pytest.raises(dist.DistBackendError) as raised:
            rank.init()
        text = str(raised.value)
        assert "ulimit -u" in text and f"rank {1 if len(who) == 1 else ''}" in text, text

    ranks.run(2, body)
