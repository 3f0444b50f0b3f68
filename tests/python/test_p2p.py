# SPDX-License-Identifier: BSD-3-Clause
"""Point-to-point as torch.distributed offers it."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import features
import oracle
from ranks import Rank, run, seconds

# Around every way a message can travel: in a line (88 bytes), in a window (16 KiB), announced.
COUNTS = (0, 1, 22, 23, 4096, 4097, 300_001)


def values(sender: int, tag: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) * 3 + sender * 1000 + tag


def test_send_and_recv_of_every_size_return_the_sender() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for tag, count in enumerate(COUNTS):
            if rank.rank == 0:
                assert dist.send(values(0, tag, count), 1, tag=tag) is None
            else:
                got = torch.full((count,), -1.0)
                assert dist.recv(got, 0, tag=tag) == 0
                assert torch.equal(got, values(0, tag, count)), count

    run(2, body)


def test_isend_and_irecv_return_at_once_and_find_their_tags() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        peer = 1 - rank.rank
        got = {tag: torch.full((count,), -1.0) for tag, count in enumerate(COUNTS)}
        begun = time.monotonic()
        if rank.rank == 0:
            rank.sync()  # the peer has nothing posted yet
        works = []
        for tag, count in enumerate(COUNTS):
            works.append(dist.isend(values(rank.rank, tag, count), peer, tag=tag))
        for tag in reversed(range(len(COUNTS))):
            works.append(dist.irecv(got[tag], peer, tag=tag))
        if rank.rank == 1:
            rank.sync()
        for work in reversed(works):
            assert work.wait() is True
            assert work.is_completed()
        assert time.monotonic() - begun < 20
        for tag, count in enumerate(COUNTS):
            assert torch.equal(got[tag], values(peer, tag, count)), tag

    run(2, body)


def test_any_source_says_who_it_was() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank != 2:
            dist.send(torch.tensor([rank.rank, 7]), 2)
            dist.send(torch.tensor([rank.rank, 8]), 2, tag=1)
            return
        for tag in (1, 0):
            seen = set()
            for _ in range(3):
                got = torch.zeros(2, dtype=torch.int64)
                source = dist.recv(got, tag=tag)
                assert got.tolist() == [source, 7 + tag]
                seen.add(source)
            assert seen == {0, 1, 3}

    run(4, body)


def test_ranks_of_a_sub_group_are_translated() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        group = dist.new_group([2, 0])
        if rank.rank == 2:
            dist.send(torch.tensor([5.0]), 0, group=group)
            dist.send(torch.tensor([6.0]), 0, group=group)
        if rank.rank == 0:
            got = torch.zeros(1)
            assert dist.recv(got, 2, group=group) == 2 and got.item() == 5
            assert dist.recv(got, group=group) == 2 and got.item() == 6

    run(3, body)


def test_batches_lists_of_objects_and_messages_to_oneself() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        right, left = (rank.rank + 1) % rank.world, (rank.rank - 1) % rank.world
        got = torch.zeros(100_000)
        mine = torch.full((100_000,), float(rank.rank))
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)]
        )
        assert len(works) == 2
        for work in works:
            work.wait()
        assert torch.all(got == left)
        if rank.rank == 0:
            dist.send_object_list([{"a": 1}, "x" * 100_000], dst=1)
        if rank.rank == 1:
            objects: list[object] = [None, None]
            assert dist.recv_object_list(objects, src=0) == 0
            assert objects == [{"a": 1}, "x" * 100_000]
        own = torch.zeros(50_000)
        receive = dist.irecv(own, rank.rank)
        dist.isend(mine[:50_000] + 1, rank.rank).wait()
        receive.wait()
        assert torch.all(own == rank.rank + 1)

    run(3, body)


def test_messages_pass_beside_a_collective_that_waits() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        many = torch.full((4 << 20,), 3.0)
        one = torch.ones(1000)
        if rank.rank == 0:
            reduce = dist.all_reduce(one, async_op=True)
            got = torch.zeros(4 << 20)
            receive = dist.irecv(got, 1)
            reduce.wait()
            receive.wait()
            assert torch.equal(got, many)
        else:
            dist.send(many, 0)
            dist.all_reduce(one)
        assert torch.all(one == 2)

    run(2, body)


def test_every_dtype_and_layout_arrives() -> None:
    dtypes = (torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float64)
    dtypes += (torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16)

    def body(rank: Rank) -> None:
        rank.init()
        for dtype in dtypes:
            for count in (3, 5000):
                sent = oracle.plain(dtype, count, seed=1)
                if rank.rank == 0:
                    dist.send(sent, 1)
                else:
                    got = oracle.plain(dtype, count, seed=2)
                    dist.recv(got, 0)
                    assert not oracle.differ(got, sent), dtype
        square = torch.arange(90_000.0).reshape(300, 300)
        if rank.rank == 0:
            dist.send(square.t(), 1)
            dist.send(torch.tensor(4.5), 1)
            dist.send(square[::2, 1::3], 1)
        else:
            wide = torch.zeros(300, 600)
            dist.recv(wide[:, ::2], 0)
            assert torch.equal(wide[:, ::2], square.t()) and torch.all(wide[:, 1::2] == 0)
            scalar = torch.zeros(())
            dist.recv(scalar, 0)
            assert scalar.item() == 4.5
            part = torch.zeros(150, 100)
            dist.recv(part, 0)
            assert torch.equal(part, square[::2, 1::3])

    run(2, body)


def test_futures_callbacks_and_dropped_works() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        peer = 1 - rank.rank
        got = torch.zeros(50_000)
        work = dist.irecv(got, peer)
        done = threading.Event()
        sums = []

        def then(future: torch.futures.Future[list[torch.Tensor]]) -> None:
            sums.append(future.value()[0].sum().item())
            reply = torch.zeros(1)
            dist.irecv(reply, peer, tag=9).wait()  # a callback may wait for its own group
            sums.append(reply.item())
            done.set()

        work.get_future().then(then)
        del work
        rank.sync()
        dist.isend(torch.ones(50_000), peer)  # dropped at once: the bytes must stay
        dist.isend(torch.tensor([7.0]), peer, tag=9)
        assert done.wait(20)
        assert sums == [50_000.0, 7.0]
        dist.barrier()

    run(2, body)


def test_a_wait_with_a_time_out_leaves_the_receive_and_names_the_peer() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        if rank.rank == 1:
            dist.send(torch.zeros(1), 0, tag=8)  # not what is waited for
            rank.sync()
            dist.send(torch.full((3,), 2.0), 0)
            return ""
        got = torch.zeros(3)
        work = dist.irecv(got, 1)
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait(seconds(0.2))
        assert not work.is_completed()
        rank.sync()
        work.wait()
        assert got.tolist() == [2.0] * 3
        dist.recv(got[:1], 1, tag=8)
        return str(caught.value)

    said = run(2, body)[0]
    assert "recv (float32[3]) from rank 1, tag 0" in said and "Timed out after 0.2" in said, said
    assert "the matching send of rank 1 (pid" in said, said
    assert "no recv here takes, with tags 8" in said, said


@pytest.mark.parametrize("spin_us", ["5", pytest.param("100000", marks=pytest.mark.long)])
def test_a_wait_ends_in_time_while_its_message_moves(spin_us: str) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        data = torch.full((512 << 20,), 7 * rank.rank, dtype=torch.uint8)
        for _ in range(20):  # a busy machine may stop a rank until nothing or all of it has come
            rank.sync()
            if rank.board[0]:
                return
            if rank.rank == 1:
                dist.send(data, 0)
                continue
            data.zero_()
            work = dist.irecv(data, 1)
            with pytest.raises(dist.DistBackendError, match="Timed out after 0.01"):
                # Found with the next look, every 8 ms; all of it takes 20 or more.
                work.wait(seconds(0.01))
            rank.board[0] = data[0] == 7 and data[-1] == 0
            work.wait()
            assert torch.all(data == 7)
        raise AssertionError("it never timed out in the middle")

    run(2, body, env={"SHMCOLL_SPIN_US": spin_us})


def test_what_does_not_fit_raises_on_both_sides_and_the_group_works_on() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        with pytest.raises(dist.DistBackendError) as caught:
            if rank.rank == 0:
                dist.send(torch.zeros(500_000), 1)
            else:
                dist.recv(torch.zeros(500_000, dtype=torch.int32), 0)
        with pytest.raises(dist.DistBackendError) if rank.rank == 1 else contextlib.nullcontext():
            if rank.rank == 0:
                dist.send(torch.zeros(5), 1)  # it finds room, and is over
            else:
                dist.recv(torch.zeros(4), 0)
        mine = torch.ones(2)
        dist.all_reduce(mine)
        assert mine.tolist() == [2.0, 2.0]
        return str(caught.value)

    sender, receiver = run(2, body)
    assert "send (float32[500000]) to rank 1" in sender and "int32[500000]" in sender, sender
    assert "recv (int32[500000]) from rank 0" in receiver and "float32[500000]" in receiver, (
        receiver
    )


def test_point_to_point_counts_in_no_sequence_and_shows_in_the_profile() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        before = backend._get_sequence_number_for_group()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            if rank.rank == 0:
                dist.send(torch.zeros(2), 1)
                dist.recv(torch.zeros(2))
            else:
                dist.recv(torch.zeros(2), 0)
                dist.send(torch.zeros(2), 0)
            dist.barrier()
        names = {event.name for event in seen.events()}
        assert {"shmcoll:send"} <= names, names
        assert ("shmcoll:recvAnySource" if rank.rank == 0 else "shmcoll:recv") in names, names
        assert backend._get_sequence_number_for_group() == before + 1

    run(2, body)


def test_the_debug_wrapper_passes_messages_on() -> None:
    def body(rank: Rank) -> None:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        rank.init()
        if rank.rank == 0:
            dist.send(torch.ones(4), 1, tag=2)
        else:
            got = torch.zeros(4)
            assert dist.recv(got, tag=2) == 0
            assert got.tolist() == [1.0] * 4
        dist.barrier()

    run(2, body)


def test_many_messages_in_flight_are_waited_for_in_any_order_by_several_threads() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        peer = 1 - rank.rank
        count = 300
        got = [torch.zeros(i * 37 % 6000) for i in range(count)]
        receives = [dist.irecv(t, peer, tag=i % 7) for i, t in enumerate(got)]
        sends = [dist.isend(torch.full_like(t, i), peer, tag=i % 7) for i, t in enumerate(got)]
        errors: list[BaseException] = []

        def wait_for(works: list[dist.Work]) -> None:
            try:
                for work in works:
                    work.wait()
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=wait_for, args=(works,))
            for works in (receives[::-2], sends[::-1], receives[::-1])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        for i, t in enumerate(got):
            assert torch.all(t == i), i

    run(2, body)


# ---- what torch calls coalescing; without a GPU batch_isend_irecv does not ask for it ----


def coalesced(calls: list[dist.P2POp]) -> list[dist.Work]:
    """Makes the calls as batch_isend_irecv does with a GPU."""
    manager = dist.distributed_c10d._coalescing_manager
    with manager(dist.group.WORLD, torch.device("cpu"), async_ops=True) as section:
        for call in calls:
            call.op(call.tensor, call.peer, tag=call.tag)
    works: list[dist.Work] = section.works
    return works


def test_a_section_is_one_work_for_all_its_messages() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        peer = 1 - rank.rank
        got = [torch.zeros(count) for count in COUNTS]
        calls = [dist.P2POp(dist.irecv, t, peer, tag=k) for k, t in enumerate(got)]
        for k, count in enumerate(COUNTS):
            calls.append(dist.P2POp(dist.isend, values(rank.rank, k, count), peer, tag=k))
        (work,) = coalesced(calls)
        future = work.get_future()
        assert work.wait() and work.is_completed() and work.is_success()
        assert not features.WORK_EXCEPTION or work.exception() is None
        for k, count in enumerate(COUNTS):
            assert torch.equal(got[k], values(peer, k, count)), count
        assert len(work.result()) == len(future.wait()) == len(COUNTS)
        (alone,) = coalesced([dist.P2POp(dist.isend, got[1], peer)])
        assert dist.recv(torch.zeros(1), peer) == peer
        alone.wait()

    run(2, body)


def test_a_section_whose_time_is_up_raises_and_its_messages_go_on() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        peer, got = 1 - rank.rank, [torch.zeros(8), torch.zeros(8)]
        calls = [dist.P2POp(dist.irecv, t, peer) for t in got]
        (work,) = coalesced(calls)
        begun = time.monotonic()
        with pytest.raises(dist.DistBackendError):
            work.wait(seconds(0.2))
        assert 0.1 < time.monotonic() - begun < 5
        assert not work.is_completed()
        rank.sync()
        for _ in got:
            dist.send(torch.full((8,), 3.0), peer)
        work.wait()
        assert all(torch.all(t == 3) for t in got)

    run(2, body)


def test_a_section_raises_what_one_of_its_messages_met() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        peer = 1 - rank.rank
        if rank.rank == 0:
            dist.isend(torch.ones(8), peer, tag=1).wait()
            dist.isend(torch.ones(9), peer, tag=2).wait()
        else:
            got = [torch.zeros(8), torch.zeros(8)]
            calls = [dist.P2POp(dist.irecv, t, peer, tag=k + 1) for k, t in enumerate(got)]
            (work,) = coalesced(calls)
            with pytest.raises((ValueError, RuntimeError), match=r"float32\[9\]"):
                work.wait()
            assert torch.all(got[0] == 1)
            assert work.is_completed() and not work.is_success()
            assert not features.WORK_EXCEPTION or work.exception() is not None
            with pytest.raises((ValueError, RuntimeError), match=r"float32\[9\]"):
                work.get_future().wait()
        dist.barrier()

    run(2, body)


def test_a_refused_section_leaves_a_group_that_works() -> None:
    """torch notes a section in Python, and forgets to end it when it is left by an exception: from then
    on its all_reduce does nothing. So what is refused is refused at the end."""

    def body(rank: Rank) -> None:
        rank.init()
        peer, t, got = 1 - rank.rank, torch.ones(4), torch.zeros(4)
        bad = dist.P2POp(dist.isend, t, peer, tag=-1)
        with pytest.raises(ValueError, match="tags begin at 0"):
            coalesced([bad, dist.P2POp(dist.isend, t, peer)])
        dist.all_reduce(t)
        assert t.tolist() == [2.0] * 4
        works = coalesced([dist.P2POp(dist.irecv, got, peer), dist.P2POp(dist.isend, t, peer)])
        works[0].wait()
        assert got.tolist() == [2.0] * 4

    run(2, body)


def test_a_section_ends_with_a_coalesced_collective_that_is_refused() -> None:
    """torch calls these after the last call of a section, and does not come to its end then."""

    def body(rank: Rank) -> None:
        rank.init()
        group, cpu = dist.group.WORLD, torch.device("cpu")
        manager, peer = dist.distributed_c10d._coalescing_manager, 1 - rank.rank
        mixed = [torch.ones(2), torch.ones(2, dtype=torch.int32)]
        with pytest.raises(TypeError):
            with manager(group, cpu):
                for tensor in mixed:
                    dist.all_reduce(tensor)
        with pytest.raises(ValueError, match="tags begin at 0"):
            dist.isend(torch.ones(4), peer, tag=-1)
        got = torch.zeros(4)
        for work in (dist.isend(torch.ones(4), peer), dist.irecv(got, peer)):
            work.wait()
        assert got.tolist() == [1.0] * 4

    run(2, body)


def test_a_section_is_not_that_of_a_later_thread_of_the_same_name() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        peer, got = 1 - rank.rank, torch.zeros(4)

        def leave_open() -> None:
            backend._start_coalescing()
            dist.isend(torch.ones(4), peer, tag=-1)

        works: list[dist.Work | None] = []

        def go_on() -> None:
            works.append(dist.isend(torch.ones(4), peer))
            works.append(dist.irecv(got, peer))

        for action in (leave_open, go_on):  # the second has the first one's identifier, as a rule
            thread = threading.Thread(target=action)
            thread.start()
            thread.join()
        for work in works:
            assert work is not None
            work.wait()
        assert got.tolist() == [1.0] * 4

    run(2, body)


def test_collectives_in_a_section_begin_in_order_and_are_waited_for() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        group, cpu = dist.group.WORLD, torch.device("cpu")
        manager = dist.distributed_c10d._coalescing_manager
        one, two, three = torch.ones(5), torch.full((5,), float(rank.rank)), torch.ones(3)
        with manager(group, cpu, async_ops=True) as section:
            dist.broadcast(two, src=1, async_op=True)
            dist.all_reduce(one)
        section.wait()
        assert one.tolist() == [2.0] * 5 and two.tolist() == [1.0] * 5
        with manager(group, cpu):
            dist.all_reduce(three)
        assert three.tolist() == [2.0] * 3
        with manager(group, cpu, async_ops=True) as section:
            pass
        assert section.works == []

    run(2, body)


def test_a_section_is_its_threads_and_a_second_start_begins_anew() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        peer, got = 1 - rank.rank, torch.zeros(4)
        backend._start_coalescing()
        assert dist.isend(torch.ones(4), peer, tag=-1) is None  # refused at an end that never comes
        works: list[dist.Work] = []
        other = threading.Thread(target=lambda: works.append(dist.irecv(got, peer)))
        other.start()
        other.join()
        backend._start_coalescing()
        sent = dist.isend(torch.full((4,), 7.0), peer)
        assert backend._end_coalescing() == sent
        sent.wait()
        works[0].wait()
        assert got.tolist() == [7.0] * 4
        with pytest.raises(dist.DistBackendError, match="there is no start"):
            backend._end_coalescing()

    run(2, body)
