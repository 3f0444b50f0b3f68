# SPDX-License-Identifier: BSD-3-Clause
"""What a Work promises: waiting, completion, errors, futures, lifetimes."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist

from features import needs_work_exception
from ranks import Rank, run, seconds


def one(rank: Rank, count: int = 4) -> torch.Tensor:
    return torch.full((count,), rank.rank + 1.0)


def late_peer(rank: Rank, call: object) -> None:
    """Rank 0 runs `call` while rank 1 is away; then rank 1 comes to one all_reduce."""
    if rank.rank == 0:
        call()
    else:
        rank.sync()
        dist.all_reduce(one(rank))


def test_a_synchronous_call_is_done_when_it_returns_and_an_asynchronous_one_has_a_work() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = one(rank)
        assert dist.all_reduce(mine) is None
        assert mine.tolist() == [3.0] * 4
        for call in (
            lambda: dist.all_reduce(mine, async_op=True),
            lambda: dist.broadcast(mine, 1, async_op=True),
            lambda: dist.all_gather([mine.clone(), mine.clone()], mine, async_op=True),
            lambda: dist.barrier(async_op=True),
        ):
            work = call()
            assert isinstance(work, dist.Work)
            assert work.wait() is True
            assert work.is_completed()
            assert work.wait() is True, "a second wait"

    run(2, body)


def test_a_work_is_completed_only_when_the_peer_has_come() -> None:
    def body(rank: Rank) -> None:
        rank.init()

        def call() -> None:
            mine = one(rank)
            work = dist.all_reduce(mine, async_op=True)
            time.sleep(0.05)
            assert not work.is_completed()
            assert not work.is_success()
            assert not work.get_future().done()
            assert mine.tolist() == [1.0] * 4, "user memory changed before the peers' call"
            with pytest.raises(RuntimeError, match="has not completed"):
                work.result()
            rank.sync()
            while not work.is_completed():  # nobody waits: it proceeds by itself
                time.sleep(0.001)
            assert work.is_success()
            assert mine.tolist() == [3.0] * 4
            assert [t.data_ptr() for t in work.result()] == [mine.data_ptr()]

        late_peer(rank, call)

    run(2, body)


def test_a_wait_with_a_time_out_names_the_missing_and_leaves_the_operation_in_flight() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        dist.barrier()
        text = ""

        def call() -> None:
            nonlocal text
            mine = one(rank)
            work = dist.all_reduce(mine, async_op=True)
            begin = time.monotonic()
            with pytest.raises(dist.DistBackendError) as caught:
                work.wait(seconds(0.3))
            assert 0.3 <= time.monotonic() - begin < 3
            text = str(caught.value)
            assert not work.is_completed()
            rank.sync()
            assert work.wait()
            assert mine.tolist() == [3.0] * 4

        late_peer(rank, call)
        dist.barrier()  # the group is as good as before
        return text

    text = run(2, body)[0]
    assert "Timed out after 0.300 s" in text
    assert "all_reduce" in text and "float32[4], sum" in text
    assert "rank 1" in text
    assert "earlier operation" not in text


def test_a_work_that_waits_behind_another_names_the_missing_too() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        works = [dist.all_reduce(one(rank), async_op=True) for _ in range(3 * (1 - rank.rank))]
        text = ""
        if rank.rank == 0:
            with pytest.raises(dist.DistBackendError) as caught:
                works[2].wait(seconds(0.2))
            text = str(caught.value)
        rank.sync()
        if rank.rank == 1:
            works = [dist.all_reduce(one(rank), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        return text

    text = run(2, body)[0]
    assert "Timed out after 0.200 s" in text and "rank 1" in text


def test_several_threads_may_wait_for_one_work() -> None:
    def body(rank: Rank) -> None:
        rank.init()

        def call() -> None:
            mine = one(rank)
            work = dist.all_reduce(mine, async_op=True)
            seen = []
            threads = [
                threading.Thread(target=lambda: seen.append((work.wait(), mine.tolist())))
                for _ in range(6)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.05)
            rank.sync()
            for thread in threads:
                thread.join()
            assert seen == [(True, [3.0] * 4)] * 6

        late_peer(rank, call)

    run(2, body)


def test_a_failed_work_says_why_wherever_it_is_asked() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        if rank.rank == 1:
            dist.all_reduce(one(rank, 5), async_op=True)  # another size: a mismatch on both
            rank.sync()
            return []
        work = dist.all_reduce(one(rank), async_op=True)
        future = work.get_future()
        texts = []
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait()
        texts.append(str(caught.value))
        with pytest.raises(RuntimeError) as again:
            work.wait()
        texts.append(str(again.value))
        with pytest.raises(RuntimeError) as from_future:
            future.wait()
        texts.append(str(from_future.value))
        assert work.is_completed() and not work.is_success()
        rank.sync()
        return texts

    for text in run(2, body)[0]:
        assert "different calls" in text and "float32[4]" in text and "float32[5]" in text


@pytest.mark.parametrize("message", [False, True])
def test_an_asynchronous_call_on_a_failed_group_has_failed_when_it_returns(message: bool) -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        dist.all_reduce(one(rank))
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(one(rank, 4 + rank.rank))  # a mismatch
        call = (lambda: dist.irecv(one(rank), 1 - rank.rank)) if message else None
        work = call() if call else dist.all_reduce(one(rank), async_op=True)
        assert work.is_completed() and not work.is_success()
        future = work.get_future()
        assert future.done()
        texts = []
        for wait in (work.wait, future.wait):
            with pytest.raises(RuntimeError) as caught:
                wait()
            texts.append(str(caught.value))
        rank.sync()
        return texts

    for texts in run(2, body):
        assert all("different calls" in text for text in texts), texts


@needs_work_exception
def test_the_exception_of_a_work_is_none_until_it_fails() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        work = dist.all_reduce(one(rank), async_op=True)
        work.wait()
        assert work.exception() is None
        work = dist.all_reduce(one(rank, 4 + rank.rank), async_op=True)
        while not work.is_completed():
            time.sleep(0.001)
        rank.sync()
        return str(work.exception())

    for text in run(2, body):
        assert "different calls" in text


def test_tensors_of_a_dropped_work_live_until_it_is_done_and_not_longer() -> None:
    count = 200_000

    def submit() -> "weakref.ref[np.ndarray]":
        memory = np.full(count, 5.0, dtype=np.float32)
        dist.broadcast(torch.from_numpy(memory), 0, async_op=True)  # the work is dropped
        return weakref.ref(memory)

    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank == 0:
            alive = submit()
            gc.collect()
            others = [torch.full((count,), -1.0) for _ in range(8)]  # would re-use freed memory
            assert alive() is not None
            rank.sync()
            del others
        else:
            rank.sync()
            mine = torch.zeros(count)
            dist.broadcast(mine, 0)
            assert (mine == 5.0).all()
        dist.barrier()
        dist.barrier(async_op=True).wait()  # calls hand back what earlier ones held
        dist.barrier()
        if rank.rank == 0:
            assert alive() is None, "the tensors of an operation that is over are still held"

    run(2, body)


def test_many_works_may_be_in_flight_and_are_done_in_the_order_of_submission() -> None:
    count = 3000  # more than the submission ring holds

    def body(rank: Rank) -> None:
        rank.init()
        tensors = [torch.full((1 + i % 50,), float(rank.rank + i)) for i in range(count)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        works[-1].wait()
        assert all(work.is_completed() for work in works), "a later operation overtook"
        for i, t in enumerate(tensors):
            assert (t == 2 * i + 1).all()

    run(2, body)


def test_works_may_be_waited_for_in_any_order() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        rng = torch.Generator().manual_seed(rank.rank)  # another order on every rank
        for _ in range(5):
            tensors = [torch.full((10 ** (i % 6),), float(rank.rank + i)) for i in range(20)]
            works = [dist.all_reduce(t, async_op=True) for t in tensors]
            for i in torch.randperm(20, generator=rng).tolist():
                works[i].wait()
                assert (tensors[i] == 3 * i + 3).all()

    run(3, body)


def test_synchronous_and_asynchronous_calls_meet_and_keep_their_order() -> None:
    """DDP's join does this: one rank calls with async_op, another without."""

    def body(rank: Rank) -> None:
        rank.init()
        for turn in range(100):
            first, second = one(rank, 3000), torch.tensor([turn + rank.rank])
            work = dist.all_reduce(first, async_op=(turn + rank.rank) % 2 == 0)
            dist.all_reduce(second)  # after the first, never before it
            if work is not None:
                assert work.is_completed()
            assert (first == 3.0).all() and second.item() == 2 * turn + 1

    run(2, body)


def test_every_operation_counts_in_the_sequence_number() -> None:
    def body(rank: Rank) -> list[int]:
        rank.init()
        group = dist.group.WORLD._get_backend(torch.device("cpu"))
        numbers = [group._get_sequence_number_for_group()]
        dist.all_reduce(one(rank))
        numbers.append(group._get_sequence_number_for_group())
        work = dist.broadcast(one(rank), 0, async_op=True)
        work.wait()
        numbers.append(group._get_sequence_number_for_group())
        with pytest.raises(TypeError):
            dist.all_reduce(one(rank), dist.ReduceOp.BAND)  # wrong, so not an operation
        numbers.append(group._get_sequence_number_for_group())
        dist.barrier()
        numbers.append(group._get_sequence_number_for_group())
        return [number - numbers[0] for number in numbers]

    assert run(2, body) == [[0, 1, 2, 2, 3]] * 2
