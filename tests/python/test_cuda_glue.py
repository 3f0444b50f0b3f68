# SPDX-License-Identifier: BSD-3-Clause
"""CUDA tensors through torch.distributed, on the stand-in for a GPU (support/faketorch.py).

The C side is proved in tests/cuda. Here: what torch hands over, streams and their order, Works,
futures, errors. What only a GPU can show is in docs/internals/cuda/testing.md.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import faketorch
import features
import shmcoll
from ranks import Rank, Run, outcomes, run, seconds
from test_status import look_until
from test_watch_tools import check_trace, go_on, tool, trace_until

# Half a minute of compiling where there is no build yet; minutes on a busy machine.
pytestmark = [
    features.needs_stream_handles,
    pytest.mark.usefixtures("standin"),
    pytest.mark.timeout(900),
]
LATE_S = 0.4


@pytest.fixture(scope="module")
def standin() -> Iterator[None]:
    faketorch.build()
    yield


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return ((torch.arange(count) * (rank + 3)) % 17 - rank).to(dtype)


def gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cuda:0")


def on_ranks(world: int, body: Callable[[Rank, Any], Any], knobs: str = "", **more: Any) -> Any:
    """body(rank, faketorch) on ranks with a GPU and a group."""

    def enter(rank: Rank) -> Any:
        cuda = faketorch.enter(knobs)
        rank.init()
        found = body(rank, cuda)
        dist.destroy_process_group()
        return found

    return run(world, enter, **more)


def test_memory_that_is_shared_wrongly_is_refused_and_in_place_is_right() -> None:
    def body(rank: Rank, cuda: Any) -> None:
        me, one = rank.rank, gpu(torch.zeros(8))
        for call in (
            lambda: dist.all_gather([one, one], gpu(torch.ones(8))),
            lambda: dist.all_gather_into_tensor(one, one[2:6]),
            lambda: dist.all_to_all([one[:4], one[2:6]], [gpu(torch.ones(4))] * 2),
        ):
            with pytest.raises(ValueError, match="overlap|share memory"):
                call()
        for size in (3, 30000):
            filled = torch.zeros(2 * size)
            filled[me * size : (me + 1) * size] = 1.0 + me
            flat = gpu(filled)
            dist.all_gather_into_tensor(flat, flat[me * size : (me + 1) * size])
            assert flat.cpu()[::size].tolist() == [1.0, 2.0]
            for block in (0, 1):
                given = gpu(torch.arange(2.0).repeat_interleave(size) + 10 * me)
                dist.reduce_scatter_tensor(given[block * size : (block + 1) * size], given)
                out = given.cpu()[block * size : (block + 1) * size]
                assert set(out.tolist()) == {10.0 + 2 * me}, (size, block)
            parts = [gpu(torch.full((size,), 10.0 * me + k)) for k in range(2)]
            dist.all_to_all(parts, parts)
            assert [set(p.cpu().tolist()) for p in parts] == [{0.0 + me}, {10.0 + me}], size

    on_ranks(2, body)


# ---- every operation gives what it gives on the CPU ----


def all_reduce(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    t = place(values(me, 1000))
    dist.all_reduce(t)
    m = place(values(me, 77, torch.float64))
    dist.all_reduce(m, op=dist.ReduceOp.MAX)
    return [t, m]


def all_reduce_coalesced(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    tensors = [place(values(me, count)) for count in (5, 300, 1)]
    dist.all_reduce_coalesced(tensors)
    return tensors


def broadcast(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    t = place(values(me, 513, torch.int64))
    dist.broadcast(t, src=world - 1)
    return [t]


def reduce(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    t = place(values(me, 99))
    dist.reduce(t, dst=0)
    return [t] if me == 0 else []


def all_gather(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    outputs = [place(torch.empty(31)) for _ in range(world)]
    dist.all_gather(outputs, place(values(me, 31)))
    flat = place(torch.empty(world * 64, dtype=torch.bfloat16))
    dist.all_gather_into_tensor(flat, place(values(me, 64, torch.bfloat16)))
    return [*outputs, flat]


def reduce_scatter(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    one, flat = place(torch.empty(12)), place(torch.empty(40, dtype=torch.float16))
    dist.reduce_scatter(one, [place(values(me + r, 12)) for r in range(world)])
    dist.reduce_scatter_tensor(flat, place(values(me, 40 * world, torch.float16)))
    return [one, flat]


def gather(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    outputs = [place(torch.empty(9)) for _ in range(world)] if me == 1 else None
    dist.gather(place(values(me, 9)), outputs, dst=1)
    return outputs or []


def scatter(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    inputs = [place(values(r, 7)) for r in range(world)] if me == 0 else None
    t = place(torch.empty(7))
    dist.scatter(t, inputs, src=0)
    return [t]


def all_to_all(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    sent = [place(values(10 * me + r, 3 + me + r)) for r in range(world)]
    received = [place(torch.empty(3 + me + r)) for r in range(world)]
    dist.all_to_all(received, sent)
    single = place(torch.empty(4 * world))
    dist.all_to_all_single(single, place(values(me, 4 * world)))
    return [*received, single]


def ring(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    after, before = (me + 1) % world, (me - 1) % world
    outputs = [place(torch.empty(count)) for count in (0, 1, 3000)]
    for tag, out in enumerate(outputs):
        work = dist.isend(place(values(me, out.numel())), after, tag=tag)
        dist.recv(out, before, tag=tag)
        work.wait()
    return outputs


def batched(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    peers = [r for r in range(world) if r != me]
    outputs = [place(torch.empty(50 + r, dtype=torch.int64)) for r in peers]
    calls = []
    for peer, out in zip(peers, outputs, strict=True):
        calls.append(dist.P2POp(dist.irecv, out, peer))
        calls.append(dist.P2POp(dist.isend, place(values(me, 50 + me, torch.int64)), peer))
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return outputs


def one_way(me: int, world: int, place: Callable[..., Any]) -> list[torch.Tensor]:
    dist.all_reduce(place(torch.ones(1)))  # in the first operation all ranks meet
    t = place(values(me, 333, torch.float16))
    if me == 0:
        dist.send(t, world - 1, tag=4)
    elif me == world - 1:
        assert dist.recv(t, 0, tag=4) == 0
    return [t]


OPERATIONS = (
    all_reduce,
    all_reduce_coalesced,
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    gather,
    scatter,
    all_to_all,
    ring,
    batched,
    one_way,
)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_the_result_is_that_of_cpu_tensors(operation: Callable[..., Any], world: int) -> None:
    def body(rank: Rank, cuda: Any) -> None:
        want = operation(rank.rank, world, lambda tensor: tensor)
        got = operation(rank.rank, world, gpu)
        cuda.synchronize(0)
        assert len(got) == len(want)
        for mine, other in zip(got, want, strict=True):
            assert mine.is_cuda and torch.equal(mine.cpu(), other)

    on_ranks(world, body)


# ---- streams ----


def test_the_host_does_not_wait_for_a_late_rank() -> None:
    def body(rank: Rank, cuda: Any) -> tuple[float, bool, list[float]]:
        t = gpu(torch.ones(8))
        dist.all_reduce(t)  # the ranks meet in the first operation
        cuda.synchronize(0)
        rank.sync()
        if rank.rank == 1:
            time.sleep(LATE_S)
        begun = time.monotonic()
        dist.all_reduce(t)
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        took, idle = time.monotonic() - begun, cuda.query(cuda.stream(0))
        cuda.synchronize(0)
        return took, idle, t.cpu().tolist()

    early, late = on_ranks(2, body)
    assert early[0] < LATE_S / 2 and not early[1], "the host waited"
    assert early[2] == late[2] == [8.0] * 8


def test_it_begins_behind_and_ends_before_what_the_current_stream_has() -> None:
    """Slow streams: each step takes 20 ms, so an order that nobody keeps shows."""

    def body(rank: Rank, cuda: Any) -> list[float]:
        t, given = gpu(torch.zeros(1 << 16)), torch.full((1 << 16,), 1.0 + rank.rank)
        t.copy_(given)
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        copy = torch.empty_like(t)
        copy.copy_(t)
        t.copy_(given)  # must not reach what the operation reads
        return copy.cpu().unique().tolist()

    assert on_ranks(2, body, "slow_us=20000") == [[3.0], [3.0]]


def test_a_work_on_another_stream_makes_that_one_wait() -> None:
    def body(rank: Rank, cuda: Any) -> list[float]:
        t = gpu(torch.full((1000,), 2.0))
        if rank.rank == 1:
            time.sleep(LATE_S)
        work = dist.all_reduce(t, async_op=True)
        cuda.set_stream(cuda.new_stream(0), 0)
        work.wait()
        return t.cpu().unique().tolist()

    assert on_ranks(2, body) == [[4.0], [4.0]]


def test_a_dropped_work_keeps_its_memory() -> None:
    """DDP takes the future and drops the Work at once."""

    def body(rank: Rank, cuda: Any) -> list[float]:
        dist.all_reduce(gpu(torch.ones(1)))
        rank.sync()
        if rank.rank == 1:
            time.sleep(LATE_S)
        source = gpu(torch.full((1 << 16,), 5.0))
        target = gpu(torch.zeros(2 << 16))
        dist.all_gather_into_tensor(target, source, async_op=True)
        del source
        for _ in range(8):  # would get the freed memory, and did
            gpu(torch.full((1 << 16,), -1.0))
        dist.barrier()
        cuda.synchronize(0)
        last = dist.all_reduce(gpu(torch.ones(1)), async_op=True)
        last.wait()
        return target.cpu().unique().tolist()

    assert on_ranks(2, body) == [[5.0], [5.0]]


# ---- messages ----


def meet(rank: Rank, cuda: Any) -> None:
    """Whatever is made with the first operation is made."""
    dist.all_reduce(gpu(torch.ones(1)))
    cuda.synchronize(0)
    rank.sync()


def test_messages_larger_than_their_memory_go_both_ways_at_once() -> None:
    count = 3_000_001  # floats: several pieces of 2 MiB

    def body(rank: Rank, cuda: Any) -> bool:
        mine, theirs = gpu(values(rank.rank, count)), gpu(torch.zeros(count))
        sent = dist.isend(mine, 1 - rank.rank)
        dist.recv(theirs, 1 - rank.rank)
        sent.wait()
        return torch.equal(theirs.cpu(), values(1 - rank.rank, count))

    assert on_ranks(2, body) == [True, True]


def test_messages_count_in_no_sequence() -> None:
    def body(rank: Rank, cuda: Any) -> None:
        meet(rank, cuda)
        backend = dist.group.WORLD._get_backend(torch.device("cuda"))
        before = backend._get_sequence_number_for_group()
        t, peer = gpu(torch.ones(2)), 1 - rank.rank
        dist.isend(t, peer)
        dist.recv(t, peer)
        for one in dist.batch_isend_irecv([dist.P2POp(dist.isend, t, peer) for _ in range(2)]):
            one.wait()
        for _ in range(2):
            dist.recv(t, peer)
        assert backend._get_sequence_number_for_group() == before
        dist.all_reduce(t)
        dist.all_reduce(t, async_op=True).wait()
        assert backend._get_sequence_number_for_group() == before + 2

    on_ranks(2, body)


def test_the_debug_wrapper_passes_a_pipeline_whose_middle_sends_more() -> None:
    def body(rank: Rank) -> list[float]:
        cuda = faketorch.enter()
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        rank.init()
        meet(rank, cuda)
        t = gpu(torch.full((4,), 1.0 + rank.rank))
        if rank.rank > 0:
            dist.recv(t, rank.rank - 1)
        if rank.rank < 2:
            dist.send(t, rank.rank + 1)
        dist.all_reduce(t)
        dist.destroy_process_group()
        return t.cpu().tolist()

    assert run(3, body) == [[3.0] * 4] * 3


def test_a_receive_holds_up_neither_the_host_nor_a_collective() -> None:
    def body(rank: Rank, cuda: Any) -> tuple[bool, list[float], list[float]]:
        meet(rank, cuda)
        t, out = gpu(torch.ones(8)), gpu(torch.zeros(8))
        waiting = dist.irecv(out, 1) if rank.rank == 0 else None
        dist.all_reduce(t)
        summed = t.cpu().tolist()
        before = waiting.is_completed() if waiting else False
        rank.sync()
        if rank.rank == 1:
            dist.send(gpu(torch.full((8,), 5.0)), 0)
        if waiting:
            waiting.wait()
        return before, summed, out.cpu().tolist()

    first, second = on_ranks(2, body)
    assert first == (False, [2.0] * 8, [5.0] * 8)
    assert second == (False, [2.0] * 8, [0.0] * 8)


def test_a_message_is_sent_behind_and_received_before_what_the_current_stream_has() -> None:
    """Slow streams: each step takes 20 ms, so an order that nobody keeps shows."""

    def body(rank: Rank, cuda: Any) -> list[float]:
        t, given = gpu(torch.zeros(1 << 16)), torch.full((1 << 16,), 4.0)
        if rank.rank == 0:
            t.copy_(given)
            dist.send(t, 1)
            t.copy_(torch.zeros(1 << 16))  # must not reach what is sent
        else:
            dist.recv(t, 0)
        copy = torch.empty_like(t)
        copy.copy_(t)
        return copy.cpu().unique().tolist()

    assert on_ranks(2, body, "slow_us=20000") == [[0.0], [4.0]]


def test_a_message_whose_work_is_dropped_keeps_its_memory() -> None:
    def body(rank: Rank, cuda: Any) -> list[float]:
        meet(rank, cuda)
        out = gpu(torch.zeros(3 << 20))  # more than finds room
        if rank.rank == 0:
            dist.isend(gpu(torch.full((3 << 20,), 5.0)), 1)
            for _ in range(8):  # would get the freed memory
                gpu(torch.full((3 << 20,), -1.0))
        rank.sync()
        if rank.rank == 1:
            dist.recv(out, 0)
        return out.cpu().unique().tolist()

    assert on_ranks(2, body) == [[0.0], [5.0]]


def test_a_message_from_any_rank_is_refused_and_the_group_goes_on() -> None:
    def body(rank: Rank, cuda: Any) -> list[float]:
        t = gpu(torch.ones(4))
        with pytest.raises(TypeError, match="name the sender"):
            dist.recv(t)
        with pytest.raises(TypeError, match="not contiguous"):
            dist.isend(gpu(torch.ones(4, 4)).t(), 1 - rank.rank)
        dist.all_reduce(t)
        return t.cpu().tolist()

    assert on_ranks(2, body) == [[2.0] * 4] * 2


def test_a_message_before_all_ranks_have_met_says_what_to_do() -> None:
    def body(rank: Rank) -> str:
        faketorch.enter()
        rank.init()
        if rank.rank == 2:
            dist.destroy_process_group()
            return "run a collective first"
        with pytest.raises(dist.DistBackendError) as raised:
            (dist.send if rank.rank == 0 else dist.recv)(gpu(torch.ones(4)), 1 - rank.rank)
        return str(raised.value)

    for outcome in outcomes(3, body):
        assert outcome.ok and "run a collective first" in outcome.value, outcome


def test_ends_that_call_otherwise_both_raise() -> None:
    def body(rank: Rank, cuda: Any) -> tuple[str, list[float]]:
        meet(rank, cuda)
        t = gpu(torch.ones(4))
        call = dist.isend if rank.rank == 0 else dist.irecv
        work = call(t, 1 - rank.rank, tag=rank.rank)
        with pytest.raises(dist.DistBackendError) as raised:
            work.wait(seconds(20))
            for _ in range(2000):  # a message that found room is over for its sender
                time.sleep(0.01)
                dist.all_reduce(gpu(torch.ones(0)))
        return str(raised.value), t.cpu().tolist()

    for text, left in on_ranks(2, body):
        assert "send #1 to rank 1 (float32[4], tag 0)" in text
        assert "recv #1 from rank 0 (float32[4], tag 1)" in text
        assert left == [1.0] * 4, "memory of the user has changed"


# ---- batches ----


def batch_of_all(me: int, world: int, counts: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Two messages from each rank to each other one: calls, and pairs of a received and an expected tensor."""
    calls, found = [], []
    for step in range(1, world):
        to, of = (me + step) % world, (me - step) % world
        for k, count in enumerate(counts):
            sent = gpu(values(10 * me + to + k, count))
            got = gpu(torch.zeros(count))
            calls.append(dist.P2POp(dist.isend, sent, to, tag=k))
            calls.append(dist.P2POp(dist.irecv, got, of, tag=k))
            found.append((got, values(10 * of + me + k, count)))
    return calls, found


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("order", ["receives", "sends", "mixed"])
def test_a_batch_of_all_to_all_is_one_work_on_one_stream(order: str, world: int) -> None:
    """With two hardware queues, messages on a stream each would not go on."""

    def body(rank: Rank, cuda: Any) -> list[str]:
        meet(rank, cuda)
        # Larger than finds room: several pieces of 2 MiB or less.
        calls, found = batch_of_all(rank.rank, world, (7, 2_000_003))
        if order != "mixed":
            calls.sort(key=lambda call: (call.op is dist.isend) == (order == "receives"))
        works = dist.batch_isend_irecv(calls)
        assert len(works) == 1
        works[0].wait()
        for got, want in found:
            assert torch.equal(got.cpu(), want)
        assert len(works[0].result()) == len(found)
        return shmcoll.describe()["cuda:0.messages"]

    assert on_ranks(world, body, "queues=2") == [4 * (world - 1)] * world


def test_a_batch_meets_single_calls() -> None:
    def body(rank: Rank, cuda: Any) -> None:
        meet(rank, cuda)
        calls, found = batch_of_all(rank.rank, 2, (2_000_003, 5))
        if rank.rank == 0:
            works = dist.batch_isend_irecv(calls)
        else:
            works = [call.op(call.tensor, call.peer, tag=call.tag) for call in calls]
        for work in works:
            work.wait()
        for got, want in found:
            assert torch.equal(got.cpu(), want)

    on_ranks(2, body)


def test_a_batch_that_is_refused_sends_nothing_and_the_group_goes_on() -> None:
    """Collectives, too: torch leaves a section open that an exception leaves."""

    def body(rank: Rank, cuda: Any) -> tuple[int, list[float], list[float]]:
        meet(rank, cuda)
        peer, t, got = 1 - rank.rank, gpu(torch.ones(4)), gpu(torch.zeros(4))
        skewed = gpu(torch.ones(4, 4)).t()
        good = [dist.P2POp(dist.isend, t, peer), dist.P2POp(dist.irecv, got, peer)]
        with pytest.raises(TypeError, match="not contiguous"):
            dist.batch_isend_irecv([*good, dist.P2POp(dist.isend, skewed, peer)])
        with pytest.raises(ValueError, match="tags begin at 0"):
            dist.batch_isend_irecv([*good, dist.P2POp(dist.isend, t, peer, tag=-1)])
        with Capture(cuda), pytest.raises(TypeError, match="send: not offered while"):
            dist.batch_isend_irecv(good)
        sent = shmcoll.describe()["cuda:0.messages"]
        dist.all_reduce(t)
        dist.batch_isend_irecv(good)[0].wait()
        return sent, t.cpu().tolist(), got.cpu().tolist()

    assert on_ranks(2, body) == [(0, [2.0] * 4, [2.0] * 4)] * 2


def test_a_batch_has_cpu_tensors_and_collectives_beside_its_messages() -> None:
    def body(rank: Rank, cuda: Any) -> None:
        meet(rank, cuda)
        peer, group = 1 - rank.rank, dist.group.WORLD
        mine, got = gpu(torch.full((9,), 1.0 + rank.rank)), gpu(torch.zeros(9))
        cpu, cpu_got = torch.full((50_000,), 5.0 + rank.rank), torch.zeros(50_000)
        summed, shared = gpu(torch.ones(3)), torch.full((3,), float(rank.rank))
        manager = dist.distributed_c10d._coalescing_manager(group, mine.device, async_ops=True)
        with manager as section:
            dist.irecv(got, peer)
            dist.irecv(cpu_got, peer)
            dist.isend(cpu, peer)
            dist.isend(mine, peer)
            dist.broadcast(shared, src=1, async_op=True)
            dist.all_reduce(summed)  # torch keeps it for the end, and one kind only
        (work,) = section.works
        assert work.wait(seconds(30)) and work.is_completed() and work.is_success()
        section.wait()
        assert got.cpu().tolist() == [2.0 - rank.rank] * 9
        assert torch.all(cpu_got == 6 - rank.rank)
        assert shared.tolist() == [1.0] * 3
        assert summed.cpu().tolist() == [2.0] * 3
        assert len(work.get_future().wait()) == len(work.result()) == 4

    on_ranks(2, body)


def test_a_batch_is_behind_the_streams_that_its_messages_were_called_on() -> None:
    """Slow streams: each step takes 20 ms, so an order that nobody keeps shows."""

    def body(rank: Rank, cuda: Any) -> list[list[float]]:
        meet(rank, cuda)
        group, peer = dist.group.WORLD, 1 - rank.rank
        sent = [gpu(torch.zeros(1 << 16)) for _ in range(2)]
        got = [gpu(torch.zeros(1 << 16)) for _ in range(2)]
        streams = [cuda.new_stream(0) for _ in range(2)]
        manager = dist.distributed_c10d._coalescing_manager(
            group, torch.device("cuda:0"), async_ops=True
        )
        with manager as section:
            for k, stream in enumerate(streams):
                cuda.set_stream(stream, 0)
                sent[k].copy_(torch.full((1 << 16,), 3.0 + k))
                dist.isend(sent[k], peer)
                dist.irecv(got[k], peer)
            cuda.set_stream(streams[1], 0)
        section.wait()
        return [one.cpu().unique().tolist() for one in got]

    assert on_ranks(2, body, "slow_us=20000") == [[[3.0], [4.0]]] * 2


def test_a_batch_whose_peer_dies_ends_and_names_it() -> None:
    def body(rank: Rank) -> str:
        cuda = faketorch.enter()
        rank.init()
        meet(rank, cuda)
        if rank.rank == 1:
            os._exit(3)
        calls, _ = batch_of_all(rank.rank, rank.world, (2_000_003,))
        with pytest.raises(dist.DistBackendError) as raised:
            for work in dist.batch_isend_irecv(calls):
                work.wait(seconds(20))
        cuda.synchronize(0)  # no stream waits for ever
        return str(raised.value)

    *survivors, _ = sorted(outcomes(3, body), key=lambda outcome: not outcome.ok)
    for survivor in survivors:
        assert survivor.ok and "rank 1" in survivor.value, survivor


# ---- Work ----


def test_a_work_tells_what_it_is() -> None:
    def body(rank: Rank, cuda: Any) -> tuple[bool, bool, bool]:
        t = gpu(torch.ones(4))
        dist.all_reduce(t)
        rank.sync()
        if rank.rank == 1:
            time.sleep(LATE_S)
        work = dist.all_reduce(t, async_op=True)
        before = work.is_completed()
        work.wait(seconds(20))  # with a time-out the host waits
        assert torch.equal(work.result()[0].cpu(), t.cpu())
        return before, work.is_completed(), work.is_success()

    early, late = on_ranks(2, body)
    assert early[0] is False
    assert early[1:] == late[1:] == (True, True)


def expect_right(works: list[dist.Work]) -> None:
    for work in works:
        assert work.is_completed() and work.is_success()
        assert not features.WORK_EXCEPTION or work.exception() is None
        work.wait()
        work.wait(seconds(1))
        assert all(t.is_cuda for t in work.get_future().wait())


def test_a_work_that_was_right_is_so_behind_a_shutdown() -> None:
    def body(rank: Rank) -> None:
        faketorch.enter("slow_us=2000")
        rank.init()
        peer, tensors = 1 - rank.rank, [gpu(torch.ones(4)) for _ in range(7)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors[:3]]
        works += [dist.isend(tensors[3], peer), dist.irecv(tensors[4], peer)]
        calls = [(dist.isend, tensors[5]), (dist.irecv, tensors[6])]
        works += dist.batch_isend_irecv([dist.P2POp(call, t, peer) for call, t in calls])
        dist.destroy_process_group()
        expect_right(works)
        assert [t.cpu()[0].item() for t in tensors] == [2.0] * 3 + [1.0] * 4

    run(2, body)


def test_a_work_has_its_own_end_where_the_group_fails_behind_it() -> None:
    def body(rank: Rank) -> None:
        cuda = faketorch.enter()
        rank.init()
        meet(rank, cuda)
        peer, t = 1 - rank.rank, gpu(torch.ones(4))
        dist.isend(t, peer)
        asked = [dist.all_reduce(gpu(torch.ones(4)), async_op=True), dist.irecv(t, peer)]
        for work in asked:
            work.wait()
        cuda.synchronize(0)
        assert all(work.is_completed() for work in asked)
        timed, passed, last = (dist.all_reduce(gpu(torch.ones(4)), async_op=True) for _ in "123")
        timed.wait(seconds(20))
        passed.wait()
        last.wait()
        cuda.synchronize(0)
        rank.sync()
        if rank.rank == 1:  # after the other rank has seen the end of it
            while rank.board[0] == 0:
                time.sleep(0.01)
            dist.distributed_c10d._get_default_group().abort()
        else:
            # It sees that some have passed.
            poisoned = dist.all_reduce(gpu(torch.ones(4)), async_op=True)
            expect_right([passed])
            rank.board[0] = 1
            with pytest.raises(dist.DistBackendError, match="rank 1 aborted"):
                poisoned.wait(seconds(20))
            cuda.synchronize(0)
            for _ in range(2):  # its stream has passed it
                assert poisoned.is_completed() and not poisoned.is_success()
                if features.WORK_EXCEPTION:
                    assert "rank 1 aborted" in str(poisoned.exception())
                with pytest.raises(dist.DistBackendError, match="rank 1 aborted"):
                    poisoned.wait()
                time.sleep(0.05)
            expect_right([last])
        expect_right([*asked, timed])

    run(2, body)


def test_tools_outside_see_what_a_gpu_does(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        cuda = faketorch.enter()
        rank.init()
        tensor, other = gpu(torch.ones(8)), gpu(torch.ones(3))

        def call() -> None:
            dist.all_reduce(tensor, async_op=True)
            if rank.rank:
                dist.isend(other, 0)
            else:
                dist.irecv(other, 1)

        while go_on(rank):
            call()
            cuda.synchronize(0)
        if rank.rank == 0:
            call()
        rank.sync()
        while not rank.board[1]:
            time.sleep(0.01)
        if rank.rank:
            call()
        cuda.synchronize(0)
        while not rank.board[2]:
            time.sleep(0.01)
        shmcoll.dump(tmp_path / f"{rank.rank}.dump")

    def look(run: Run) -> None:
        pids = list(run.pids.values())
        look_at_gpu_trace(pids, tmp_path / "t.json")
        run.board[0] = 1
        look_at_gpu_waits(run)
        run.board[1] = 1
        look_until(run.pids, nothing_is_under_way)

    def meanwhile(run: Run) -> None:
        try:
            look(run)
        finally:
            run.board[0] = run.board[1] = run.board[2] = 1

    run(2, body, meanwhile=meanwhile)
    text = tool("postmortem", tmp_path)
    calls = r"its \d+ calls on the GPU are over; its \d+ messages on the GPU are over"
    last = r"last on its GPU: (recv|send|all_reduce) #\d+ \(float32\[[38]\].*\).*, ended .* before"
    assert len(re.findall(calls, text)) == 2 and len(re.findall(last, text)) == 2, text
    (group,) = json.loads(tool("postmortem", "--json", tmp_path))["groups"]
    first, second = group["ranks"]
    assert first["device"]["done"] == second["device"]["done"] == first["device"]["called"]
    kinds = {(each["operation"], each["count"], each["peer"]) for each in second["device_calls"]}
    assert kinds == {("all_reduce", 8, None), ("send", 3, 0)}, kinds
    assert all(each["end_ns"] >= each["begin_ns"] for each in first["device_calls"])


def look_at_gpu_trace(pids: list[int], file: Path) -> None:
    said, found = trace_until("gpu_calls", pids, file)
    assert re.search(r"; \d+ calls and messages on GPUs, \d+ lost\n", said), said
    slices = [e for e in check_trace(found["traceEvents"])["X"] if e["cat"] == "gpu"]
    assert len(slices) == found["otherData"]["gpu_calls"]
    assert {(e["name"], e["args"]["bytes"]) for e in slices} == {
        ("all_reduce", 32),
        ("send", 12),
        ("recv", 12),
    }
    assert {e["args"]["reduction"] for e in slices if e["name"] == "all_reduce"} == {"sum"}
    assert {(e["pid"], e["args"]["peer"]) for e in slices if e["name"] == "send"} == {(pids[1], 0)}


def nothing_is_under_way(code: int, said: dict[str, Any]) -> bool:
    first, second = said["groups"][0]["ranks"]
    seen = [rank[part] for rank in (first, second) for part in ("device", "device_messages")]
    same = first["device"]["called"] == second["device"]["called"]
    return same and all(each["done"] == each["called"] for each in seen)


def look_at_gpu_waits(run: Run) -> None:
    def waits(code: int, said: dict[str, Any]) -> bool:
        first = said["groups"][0]["ranks"][0]
        shown = first["device"]["missing"], first["device_messages"]["missing"]
        return code == 2 and shown == ([1], [1])

    code, said = look_until(run.pids, waits)
    (cause,) = said["waited_for"]
    assert (cause["rank"], cause["waited_for_by"]) == (1, 1), said
    first, second = said["groups"][0]["ranks"]
    assert re.fullmatch(r"all_reduce #\d+ \(float32\[8\], sum\)", first["device"]["call"])
    message = first["device_messages"]
    assert re.fullmatch(r"recv #\d+ from rank 1 \(float32\[3\], tag 0\)", message["call"])
    assert re.match(r"rank 1 \(its last send to this rank is #\d+\)", message["waits_for"])
    assert message["called"] == message["done"] + 1 and second["device_messages"]["call"] is None
    table = tool("top", "--once", "-d", "0.2", *run.pids.values(), width=200)
    row = next(line for line in table.splitlines() if str(run.pids[0]) in line)
    assert re.search(r" gpu +all_reduce #\d+ .* (\d+ ms|\d+\.\d s) .* 1 ", row), table


def test_a_future_has_the_tensors() -> None:
    def body(rank: Rank, cuda: Any) -> list[float]:
        t = gpu(torch.full((4,), 3.0))
        future = dist.all_reduce(t, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0].view(2, 2))
        return doubled.wait().cpu().flatten().tolist()

    assert on_ranks(2, body) == [[6.0] * 4] * 2


def test_wait_with_a_timeout_raises_and_leaves_the_operation() -> None:
    def body(rank: Rank, cuda: Any) -> list[float]:
        t = gpu(torch.ones(4))
        dist.all_reduce(t)
        rank.sync()
        if rank.rank == 1:
            time.sleep(2 * LATE_S)
        work = dist.all_reduce(t, async_op=True)
        if rank.rank == 0:
            with pytest.raises(dist.DistBackendError, match="not ended after 100 ms"):
                work.wait(seconds(0.1))
        work.wait()
        return t.cpu().tolist()

    assert on_ranks(2, body) == [[4.0] * 4] * 2


@pytest.mark.parametrize("known", [False, True], ids=["before", "after"])
def test_set_timeout_reaches_what_is_called_after_it(known: bool) -> None:
    """Before the group's first operation on the GPU, and after it."""

    def body(rank: Rank) -> str:
        cuda = faketorch.enter()
        rank.init()
        if known:
            meet(rank, cuda)
        dist.group.WORLD.set_timeout(seconds(1))
        if not known:
            meet(rank, cuda)
        if rank.rank == 1:
            rank.sync()
            return ""
        with pytest.raises(dist.DistBackendError) as raised:
            dist.all_reduce(gpu(torch.ones(4)), async_op=True).wait(seconds(10))
        rank.sync()
        return str(raised.value)

    assert re.search(r"Timed out after [1-9]\.\d+ s", run(2, body)[0])


def test_a_barrier_waits_for_the_gpu() -> None:
    def body(rank: Rank, cuda: Any) -> bool:
        t = gpu(torch.ones(1 << 16))
        for _ in range(4):
            dist.all_reduce(t)
        dist.barrier()
        return cuda.query(cuda.stream(0))

    assert on_ranks(2, body, "slow_us=10000") == [True, True]


def test_a_barrier_waits_for_operations_that_nobody_has_waited_for() -> None:
    def body(rank: Rank, cuda: Any) -> list[bool]:
        t = gpu(torch.ones(1 << 16))
        works = [dist.all_reduce(t, async_op=True) for _ in range(4)]
        dist.barrier()
        return [work.is_completed() for work in works]

    assert on_ranks(2, body, "slow_us=10000") == [[True] * 4] * 2


# ---- graphs ----


class Capture:
    """Calls inside of `with` become a graph, as with torch.cuda.graph."""

    def __init__(self, cuda: Any) -> None:
        self.driver = ctypes.CDLL(str(faketorch.STANDIN))
        self.stream = ctypes.c_void_p(cuda.stream(0))
        self.executable = ctypes.c_void_p()

    def __enter__(self) -> Capture:
        assert self.driver.cuStreamBeginCapture_v2(self.stream, 0) == 0
        return self

    def __exit__(self, *_: object) -> None:
        graph, flags = ctypes.c_void_p(), ctypes.c_ulonglong(0)
        assert self.driver.cuStreamEndCapture(self.stream, ctypes.byref(graph)) == 0
        made = ctypes.byref(self.executable)
        assert self.driver.cuGraphInstantiateWithFlags(made, graph, flags) == 0

    def replay(self) -> None:
        assert self.driver.cuGraphLaunch(self.executable, self.stream) == 0


def test_captured_operations_run_with_every_replay() -> None:
    def body(rank: Rank, cuda: Any) -> list[list[float]]:
        a, b, other = gpu(torch.ones(4)), gpu(torch.ones(2000)), gpu(torch.ones(2000))
        dist.all_reduce(a)  # makes the communicator
        dist.all_reduce(other, async_op=True)  # nobody asks for its end meanwhile
        with Capture(cuda) as graph:
            work = dist.all_reduce(b, async_op=True)
            dist.all_reduce(a)
            assert work.is_completed() and work.is_success()
            work.wait(seconds(5))
            dist.all_reduce(b, op=dist.ReduceOp.MAX)
        found = []
        for turn in range(4):
            a.copy_(torch.full((4,), float(rank.rank + turn)))
            b.copy_(torch.full((2000,), float(10 * turn + rank.rank)))
            graph.replay()
            found += [[a[0].cpu().item(), *b.cpu().unique().tolist()]]
            eager = gpu(torch.ones(3))
            dist.all_reduce(eager, async_op=True).wait()
            assert eager.cpu().tolist() == [2.0] * 3
        return found

    want = [[2.0 * turn + 1, 20.0 * turn + 1] for turn in range(4)]
    assert on_ranks(2, body) == [want] * 2


def test_what_cannot_be_captured_is_refused_and_the_capture_goes_on() -> None:
    def body(rank: Rank, cuda: Any) -> list[float]:
        t = gpu(torch.ones(4))
        with Capture(cuda), pytest.raises(TypeError, match="run one before the capture"):
            dist.all_reduce(t)
        dist.all_reduce(t)
        with Capture(cuda) as graph:
            with pytest.raises(TypeError, match="waits on the host, and cannot be captured"):
                dist.barrier()
            with pytest.raises(TypeError, match="send: not offered while"):
                dist.isend(t, 1 - rank.rank)
            with pytest.raises(TypeError, match="premul_sum is not offered while"):
                dist.all_reduce(t, op=dist._make_nccl_premul_sum(2.0))
            dist.all_reduce(t)
        graph.replay()
        dist.barrier()
        return t.cpu().tolist()

    assert on_ranks(2, body) == [[4.0] * 4] * 2


# ---- bad input ----


def test_a_group_tells_which_way_its_tensors_go() -> None:
    def body(rank: Rank, cuda: Any) -> tuple[Any, Any]:
        before = shmcoll.describe()
        dist.all_reduce(gpu(torch.ones(5)))
        return before, shmcoll.describe()

    for knobs, route in (("", "slabs"), ("export=800 open=205", "host")):
        for before, told in on_ranks(2, body, knobs):
            assert not any(key.startswith("cuda") for key in before), before
            assert told["cuda:0.route"] == route, told
            assert told["cuda:0.operations"] == 1 and told["cuda:0.gpu_ranks"] == "0-1"
            assert (told["cuda:0.reason"] == "") == (route == "slabs"), told


def test_bad_input_is_refused_before_anything_moves() -> None:
    def body(rank: Rank, cuda: Any) -> list[float]:
        t, cpu = gpu(torch.ones(4)), torch.ones(4)
        with pytest.raises(ValueError, match="CPU and CUDA tensors in one call"):
            dist.all_reduce_coalesced([t, cpu])
        with pytest.raises(ValueError, match="on cuda:0 and on cpu"):
            dist.distributed_c10d._get_default_group()._allgather_base(gpu(torch.empty(8)), cpu)
        skewed = gpu(torch.ones(4, 4)).t()
        with pytest.raises(TypeError, match="not contiguous; call contiguous"):
            dist.all_reduce(skewed)
        gather = dist.distributed_c10d._get_default_group().allgather_into_tensor_coalesced
        with pytest.raises(TypeError, match="not contiguous; call contiguous"):
            gather([gpu(torch.zeros(8)), gpu(torch.zeros(32))], [t, skewed])
        with pytest.raises(ValueError, match="on cuda:0 and on cpu"):
            gather([gpu(torch.zeros(8)), gpu(torch.zeros(8))], [t, cpu])
        assert "cuda:0.operations" not in shmcoll.describe()
        dist.all_reduce(t)
        return t.cpu().tolist()

    assert on_ranks(2, body) == [[2.0] * 4] * 2


def test_a_driver_that_is_too_old_is_named_and_the_cpu_goes_on() -> None:
    def body(rank: Rank, cuda: Any) -> tuple[str, list[float]]:
        with pytest.raises(dist.DistBackendError) as raised:
            dist.all_reduce(gpu(torch.ones(4)))
        t = torch.ones(4)
        dist.all_reduce(t)
        return str(raised.value), t.tolist()

    for text, summed in on_ranks(2, body, "version=11080"):
        assert "11.8" in text and "12.0" in text
        assert summed == [2.0] * 4


def test_ranks_that_call_otherwise_all_raise() -> None:
    def body(rank: Rank, cuda: Any) -> tuple[str, list[float]]:
        t = gpu(torch.ones(4 + rank.rank))
        with pytest.raises(dist.DistBackendError) as raised:
            dist.all_reduce(t)
            dist.barrier()
        return str(raised.value), t.cpu().unique().tolist()

    for text, left in on_ranks(2, body):
        assert "float32[4]" in text and "float32[5]" in text
        assert left == [1.0], "memory of the user has changed"


# ---- death ----


def test_a_death_ends_the_stream_and_is_named() -> None:
    def body(rank: Rank) -> str:
        cuda = faketorch.enter()
        rank.init()
        meet(rank, cuda)
        t = gpu(torch.full((4,), 2.0))
        if rank.rank == 1:
            os._exit(3)
        with pytest.raises(dist.DistBackendError) as raised:
            dist.all_reduce(t, async_op=True).wait(seconds(20))
        cuda.synchronize(0)  # no stream waits for ever
        return str(raised.value)

    survivor, dead = outcomes(2, body)
    assert dead.exit == 3
    assert survivor.ok and "rank 1" in survivor.value, survivor


def test_a_death_ends_a_message_and_is_named() -> None:
    def body(rank: Rank) -> str:
        cuda = faketorch.enter()
        rank.init()
        meet(rank, cuda)
        if rank.rank == 1:
            os._exit(3)
        t = gpu(torch.ones(4))
        with pytest.raises(dist.DistBackendError) as raised:
            dist.irecv(t, 1).wait(seconds(20))
        cuda.synchronize(0)  # no stream waits for ever
        assert t.cpu().tolist() == [1.0] * 4
        return str(raised.value)

    survivor, dead = outcomes(2, body)
    assert dead.exit == 3
    assert survivor.ok and "rank 1" in survivor.value, survivor


# ---- shutdown ----


def left_early(rank: Rank, cuda: Any, act: Callable[[], None], timeout: float = 20) -> str:
    """Rank 0 shuts down while an operation waits for rank 1, which acts: what rank 0 is told."""
    rank.sync()  # the time-out is the rendezvous's, too
    rank.init(timeout=seconds(timeout))
    meet(rank, cuda)
    t = gpu(torch.full((4,), 2.0))
    if rank.rank == 1:
        time.sleep(LATE_S)
        act()
        return ""
    dist.all_reduce(t)
    group, begun = dist.distributed_c10d._get_default_group(), time.monotonic()
    with pytest.raises(dist.DistBackendError) as raised:
        dist.destroy_process_group()
    assert LATE_S / 2 < time.monotonic() - begun < 10
    cuda.synchronize(0)
    assert t.cpu().tolist() == [2.0] * 4, "half an operation has written"
    begun = time.monotonic()
    group.shutdown()  # has been, and says nothing more
    assert time.monotonic() - begun < 1
    return str(raised.value)


def test_a_shutdown_sees_through_what_is_under_way() -> None:
    def body(rank: Rank) -> list[list[float]]:
        cuda = faketorch.enter()
        rank.init()
        meet(rank, cuda)
        t, m = gpu(torch.full((4,), 2.0)), gpu(torch.full((3,), float(rank.rank)))
        if rank.rank == 1:
            time.sleep(2.6)  # longer than close() waits
            dist.send(m, 0)
        else:
            dist.irecv(m, 1)
        dist.all_reduce(t)
        dist.destroy_process_group()
        return [t.cpu().tolist(), m.cpu().tolist()]

    assert run(2, body) == [[[4.0] * 4, [1.0] * 3]] * 2


def test_a_shutdown_ends_with_a_peer_that_dies() -> None:
    def body(rank: Rank) -> str:
        return left_early(rank, faketorch.enter(), lambda: os._exit(3))

    survivor, dead = outcomes(2, body)
    assert dead.exit == 3
    assert survivor.ok and "shutdown: pending operations on cuda:0" in survivor.value, survivor
    assert "rank 1" in survivor.value, survivor


def test_a_shutdown_ends_with_a_peer_that_has_left() -> None:
    def body(rank: Rank) -> str:
        return left_early(rank, faketorch.enter(), dist.destroy_process_group)

    assert "rank 1 has left the group after operation #1" in run(2, body)[0]


def test_a_shutdown_runs_out_of_time_and_says_for_whom_it_waited() -> None:
    def body(rank: Rank) -> str:
        told = left_early(rank, faketorch.enter(), lambda: time.sleep(3), 1)
        dist.destroy_process_group()
        return told

    told = run(2, body)[0]
    assert "waiting for rank 1 (its last call is #1); in rank 0: all_reduce #2" in told, told


def test_a_shutdown_can_be_interrupted_and_called_again() -> None:
    def body(rank: Rank) -> list[float]:
        cuda = faketorch.enter()
        rank.init()
        meet(rank, cuda)
        t = gpu(torch.full((4,), 2.0))
        if rank.rank == 1:
            while rank.board[0] == 0:
                time.sleep(0.01)
        dist.all_reduce(t)
        if rank.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, LATE_S)
            with pytest.raises(KeyboardInterrupt):
                dist.destroy_process_group()

            def let_go() -> None:  # runs only where a shutdown that waits lets other threads run
                time.sleep(LATE_S)
                rank.board[0] = 1

            threading.Thread(target=let_go).start()
        dist.destroy_process_group()
        return t.cpu().tolist()

    assert run(2, body) == [[4.0] * 4] * 2


def test_a_shutdown_of_a_group_that_has_failed_is_quick_and_quiet() -> None:
    def body(rank: Rank) -> float:
        cuda = faketorch.enter()
        rank.init()
        meet(rank, cuda)
        t = gpu(torch.full((4,), 2.0))
        if rank.rank == 1:
            dist.distributed_c10d._get_default_group().abort()
        else:
            with pytest.raises(dist.DistBackendError, match="rank 1 aborted"):
                dist.all_reduce(t, async_op=True).wait(seconds(20))
        begun = time.monotonic()
        dist.destroy_process_group()
        return time.monotonic() - begun

    assert max(run(2, body)) < 1.5


MEMBERS = [7, 3, 5]  # of the job, in the group's order


def test_a_cuda_group_that_is_not_made_names_the_rank_of_the_job_first() -> None:
    def body(mine: Rank) -> str:
        os.environ["SHMCOLL_RELAY"] = "4096" if mine.rank == 1 else "8192"
        faketorch.enter()
        group = mine.group("mixed", members=MEMBERS)
        with pytest.raises(ValueError) as caught:
            group.allreduce([gpu(torch.ones(4))]).wait()
        return str(caught.value)

    for text in run(3, body):
        assert (
            'rank 7 (rank 0 of group "mixed") asks for relay_bytes 8388608, '
            'rank 3 (rank 1 of group "mixed") for 4194304'
        ) in text


def test_one_rank_says_for_all_that_a_rank_of_the_job_is_late() -> None:
    """In a group whose ranks are numbered otherwise, with the form of all lines of the log."""
    members = MEMBERS

    def body(mine: Rank) -> list[str]:
        told: list[str] = []
        shmcoll.on_late(told.append)
        cuda = faketorch.enter()
        group = mine.group("mixed", members=members)
        group.allreduce([gpu(torch.ones(4))]).wait()
        cuda.synchronize(0)
        mine.sync()
        if mine.rank == 1:
            time.sleep(7.0)  # lines about CUDA tensors come after 5 s
        ones = gpu(torch.ones(4))
        group.allreduce([ones]).wait()
        cuda.synchronize(0)
        assert ones.cpu().tolist() == [3.0] * 4
        group.shutdown()
        return told

    found = outcomes(3, body)
    lines = [line for each in found for line in each.output.splitlines() if "has waited" in line]
    assert len(lines) == 1, lines
    assert re.match(
        r"\[shmcoll \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} rank (7|5) pid \d+\] warn: "
        r'rank \1 \(rank [02] of group "mixed"\): all_reduce #2 \(float32\[4\], sum\) on CUDA group '
        r'"mixed" has waited \d\.\d s for rank 3 \(rank 1 of group "mixed"\) \(its last call is #1\)$',
        lines[0],
    ), lines[0]
    assert [len(each.value) for each in found] == [1, 0, 1]
