# SPDX-License-Identifier: BSD-3-Clause
"""Groups: parts of the world, several at once, one after another, from several threads."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

import ranks
import shmcoll
from features import SPLITS_IN_ORDER, needs_set_timeout, needs_split_group
from ranks import Rank, run, seconds
from threads import in_threads


def total(group: dist.ProcessGroup | None, value: float, count: int = 4) -> float:
    """all_reduce over the group; the one value that all elements have."""
    mine = torch.full((count,), value)
    dist.all_reduce(mine, group=group)
    assert (mine == mine[0]).all()
    return mine[0].item()


def test_a_group_reaches_its_members_and_no_one_else() -> None:
    def body(rank: Rank) -> list[float | None]:
        rank.init()
        found: list[float | None] = []
        for members in ([0, 2], [1], [1, 2, 3], [3, 0]):
            group = dist.new_group(members)
            if rank.rank not in members:
                assert group is dist.GroupMember.NON_GROUP_MEMBER
                found.append(None)
                continue
            assert dist.get_world_size(group) == len(members)
            assert dist.get_rank(group) == sorted(members).index(rank.rank)
            found.append(total(group, 10.0**rank.rank, count=3000))
        return found

    assert run(4, body) == [
        [101.0, None, None, 1001.0],
        [None, 10.0, 1110.0, None],
        [101.0, None, 1110.0, None],
        [None, None, 1110.0, 1001.0],
    ]


@pytest.mark.parametrize("local", [False, True])
def test_each_rank_may_name_its_own_group_alone(local: bool) -> None:
    """torch wants every rank to make every group; many programs do not, and torch names both the same."""

    def body(rank: Rank) -> list[float]:
        rank.init()
        found = []
        for mine in ([0, 2], [1, 3]), ([0, 1], [2, 3]), ([3, 0], [2, 1]):
            members = next(part for part in mine if rank.rank in part)
            group = dist.new_group(members, use_local_synchronization=local)
            found.append(total(group, 10.0**rank.rank))
        return found

    assert run(4, body) == [
        [101.0, 11.0, 1001.0],
        [1010.0, 11.0, 110.0],
        [101.0, 1100.0, 110.0],
        [1010.0, 1100.0, 1001.0],
    ]


def test_lists_of_members_that_differ_are_told_to_all_ranks() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.new_group([0, 1] if rank.rank == 1 else [0, 1, 2])
        rank.sync()
        return str(caught.value)

    for text in run(3, body):
        assert "the ranks differ about the members of the group" in text
        assert "of the ranks 0, 1" in text and "of the ranks 0-2" in text


def test_the_root_of_a_groups_broadcast_is_a_rank_of_the_world() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        group = dist.new_group([1, 2])
        mine = torch.full((3,), float(rank.rank))
        if rank.rank:
            dist.broadcast(mine, src=2, group=group)
            pieces = [torch.zeros(1) for _ in range(2)]
            dist.all_gather(pieces, torch.tensor([float(rank.rank)]), group=group)
            assert [t.item() for t in pieces] == [1.0, 2.0]
        return mine.tolist()

    assert run(3, body) == [[0.0] * 3, [2.0] * 3, [2.0] * 3]


def test_works_of_overlapping_groups_are_in_flight_together() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        rows = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank.rank // 2]
        columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        column = columns[rank.rank % 2]
        for turn in range(30):
            tensors = [torch.full((turn * 500 + 1,), float(rank.rank)) for _ in range(3)]
            order = (rows, None, column)
            if (turn + rank.rank) % 2:  # the order between groups is free
                works = [
                    (i, dist.all_reduce(tensors[i], group=order[i], async_op=True))
                    for i in (2, 0, 1)
                ]
            else:
                works = [
                    (i, dist.all_reduce(tensors[i], group=order[i], async_op=True))
                    for i in (0, 1, 2)
                ]
            for _, work in works:
                work.wait()
            want = (4 * (rank.rank // 2) + 1.0, 6.0, 2 * (rank.rank % 2) + 2.0)
            for i in range(3):
                assert (tensors[i] == want[i]).all(), (turn, i)

    run(4, body)


def test_threads_use_groups_of_their_own_at_the_same_time() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        groups = [dist.new_group() for _ in range(4)]

        def loop(number: int) -> None:
            for turn in range(60):
                count = (1, 700, 40_000)[turn % 3]
                got = total(groups[number], float(number * 1000 + turn + rank.rank), count)
                assert got == 2 * (number * 1000 + turn) + 1

        in_threads(*[lambda n=n: loop(n) for n in range(4)])

    run(2, body)


def test_threads_use_overlapping_groups_at_the_same_time() -> None:
    """Every rank has three threads: one for its row, one for its column, one for the world."""

    def body(rank: Rank) -> None:
        rank.init()
        row = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank.rank // 2]
        column = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank.rank % 2]
        done = []

        def loop(group: dist.ProcessGroup | None, want: float) -> None:
            for turn in range(40):
                count = (1, 900, 30_000)[turn % 3]
                assert total(group, float(rank.rank + turn), count) == (
                    want + turn * dist.get_world_size(group)
                )
                mine = torch.full((count,), rank.rank + 0.5)
                outputs = [torch.zeros(count) for _ in range(dist.get_world_size(group))]
                dist.all_gather(outputs, mine, group=group, async_op=True).wait()
                assert sum(t[-1].item() for t in outputs) == want + len(outputs) / 2
            done.append(want)

        in_threads(
            lambda: loop(row, 4 * (rank.rank // 2) + 1.0),
            lambda: loop(column, 2 * (rank.rank % 2) + 2.0),
            lambda: loop(None, 6.0),
        )
        assert len(done) == 3

    run(4, body)


def test_threads_make_and_destroy_groups_while_others_work() -> None:
    def body(rank: Rank) -> None:
        world = rank.group("world")

        def work() -> None:
            for _ in range(200):
                mine = torch.full((500,), 1.0)
                world.allreduce([mine]).wait()
                assert (mine == rank.world).all()

        def make(name: str) -> None:
            for turn in range(5):
                group = rank.group(f"{name} {turn}")
                mine = torch.full((20_000,), float(rank.rank))
                group.allreduce([mine]).wait()
                assert (mine == 3.0).all()
                group.shutdown()

        in_threads(work, lambda: make("first"), lambda: make("second"))
        rank.sync()
        world.shutdown()

    run(3, body)


def test_threads_that_make_the_same_calls_may_share_one_group() -> None:
    def body(rank: Rank) -> None:
        rank.init()

        def loop(asynchronous: bool) -> None:
            for _ in range(150):
                mine = torch.full((100,), 1.0)
                work = dist.all_reduce(mine, async_op=asynchronous)
                if work is not None:
                    work.wait()
                assert (mine == 2.0).all()

        in_threads(lambda: loop(False), lambda: loop(True), lambda: loop(True))

    run(2, body)


def test_ranks_may_be_threads_of_one_process() -> None:
    def body(rank: Rank) -> list[float]:
        group = rank.group()
        out = []
        for count in (1, 1000, 100_000):
            mine = torch.full((count,), rank.rank + 1.0)
            group.allreduce([mine]).wait()
            assert (mine == mine[0]).all()
            out.append(mine[0].item())
        rank.sync()
        group.shutdown()
        return out

    assert run(3, body, threads=True) == [[6.0] * 3] * 3


def test_groups_may_be_made_and_destroyed_in_any_order() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for turn in range(4):
            groups = [dist.new_group() for _ in range(5)]
            order = torch.randperm(5, generator=torch.Generator().manual_seed(rank.rank + turn))
            for group in groups:
                assert total(group, 1.0) == 3.0
            for i in order.tolist():  # each rank in its own order
                dist.destroy_process_group(groups[i])
            assert total(None, 2.0) == 6.0

    run(3, body)


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_one_store_serves_one_world_after_another(store: str) -> None:
    def body(rank: Rank) -> None:
        for turn in range(5):
            rank.init()
            assert total(None, float(turn + rank.rank)) == 3 * turn + 3
            dist.destroy_process_group()

    run(3, body, store=store)


def test_a_group_made_by_its_members_alone() -> None:
    def body(rank: Rank) -> float:
        rank.init()
        if rank.rank == 0:
            return 0.0
        for _ in range(3):  # the same name each time
            group = dist.new_group([1, 2], use_local_synchronization=True)
            got = total(group, float(rank.rank))
            dist.destroy_process_group(group)
        return got

    assert run(3, body) == [0.0, 3.0, 3.0]


def is_for_others(group: object) -> bool:
    """Is this what new_group returns outside of a group that only its members make? None before torch 2.14."""
    return group in (None, dist.GroupMember.NON_GROUP_MEMBER)


def test_members_alone_may_make_groups_that_overlap() -> None:
    """torch names such a group by how many groups the process has: all must have as many."""

    def body(rank: Rank) -> list[float]:
        rank.init()
        found = []
        for turn in (((0, 1), (2, 3)), ((1, 2), (3, 0)), ((0, 2), (3, 1)), ((3, 2, 1, 0),)):
            for members in turn:
                group = dist.new_group(list(members), use_local_synchronization=True)
                if rank.rank in members:
                    found.append(total(group, 10.0**rank.rank))
                else:
                    assert is_for_others(group)
        return found

    assert run(4, body) == [
        [11.0, 1001.0, 101.0, 1111.0],
        [11.0, 110.0, 1010.0, 1111.0],
        [1100.0, 110.0, 101.0, 1111.0],
        [1100.0, 1001.0, 1010.0, 1111.0],
    ]


def test_no_one_waits_for_a_group_that_does_not_contain_him() -> None:
    def body(rank: Rank) -> float:
        rank.init()
        if rank.rank != 1:
            rank.sync()
        group = dist.new_group([0, 2], use_local_synchronization=True)
        if rank.rank == 1:
            assert is_for_others(group)
            rank.sync()  # only now may the others come
            return 0.0
        return total(group, 7.0)

    assert run(3, body) == [14.0, 0.0, 14.0]


@pytest.mark.filterwarnings("ignore:Running .* on global rank")
def test_calls_on_a_group_without_the_caller_do_nothing() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        group = dist.new_group([1])
        assert dist.get_rank(group) == (0 if rank.rank else -1)
        mine = torch.full((2,), 5.0 + rank.rank)
        outputs = [torch.zeros(2)]
        for asynchronous in (False, True):
            works = [
                dist.all_reduce(mine, group=group, async_op=asynchronous),
                dist.broadcast(mine, 1, group=group, async_op=asynchronous),
                dist.all_gather(outputs, mine, group=group, async_op=asynchronous),
                dist.barrier(group=group, async_op=asynchronous),
            ]
            assert [work is not None for work in works] == [asynchronous and rank.rank == 1] * 4
            for work in works:
                work and work.wait()
        return outputs[0].tolist() + mine.tolist()

    assert run(2, body) == [[0.0, 0.0, 5.0, 5.0], [6.0, 6.0, 6.0, 6.0]]


def test_a_world_in_equal_parts_and_in_chosen_ones() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        pair, pairs = dist.new_subgroups(group_size=2)
        chosen, _ = dist.new_subgroups_by_enumeration([[3, 0], [1, 2]])
        assert len(pairs) == 2
        return [total(pair, 10.0**rank.rank), total(chosen, 10.0**rank.rank)]

    assert run(4, body) == [[11.0, 1001.0], [11.0, 110.0], [1100.0, 110.0], [1100.0, 1001.0]]


def test_two_groups_in_one_store_do_not_mix() -> None:
    def body(rank: Rank) -> tuple[float, float]:
        first, second = rank.group("first"), rank.group("second")
        mine, other = torch.tensor([1.0 + rank.rank]), torch.tensor([10.0 + rank.rank])
        order = (first, second) if rank.rank else (second, first)
        works = [g.allreduce([mine if g is first else other]) for g in order]
        for work in works:
            work.wait()
        return mine.item(), other.item()

    assert run(2, body) == [(3.0, 21.0)] * 2
    assert run(2, body, store="file") == [(3.0, 21.0)] * 2


@needs_split_group
def test_a_split_gives_a_group_to_its_members() -> None:
    """torch before 2.14 sorts the members."""
    members = [3, 1, 0] if SPLITS_IN_ORDER else [0, 1, 3]

    def body(rank: Rank) -> list[float]:
        rank.init()
        for turn in range(3):
            part = dist.group.WORLD.split_group([3, 1, 0], seconds(20), None, f"part {turn}")
            if rank.rank == 2:
                assert part is None
                continue
            pieces = [torch.zeros(1) for _ in range(3)]
            part.allgather([pieces], [torch.tensor([float(rank.rank)])]).wait()
            assert [t.item() for t in pieces] == members
            assert part.rank() == members.index(rank.rank) and part.size() == 3
        return total(None, 1.0)

    assert run(4, body) == [4.0] * 4


def test_torchs_function_splits_a_group_too_which_may_be_bound_to_a_device() -> None:
    """Before torch 2.15 it wanted a GPU, and so did a device_id."""

    def body(rank: Rank) -> list[float]:
        rank.init(device_id=torch.device("cpu:0"))
        groups = [dist.split_group(split_ranks=[[0, 2]]), dist.new_group([0, 2])]
        if rank.rank == 1:
            assert all(map(is_for_others, groups))
            return []
        return [total(group, 1.0) for group in groups]

    if run(1, lambda rank: rank.group().supports_splitting) != [True]:
        pytest.skip("this torch has no split_group for CPU tensors")
    assert run(3, body) == [[2.0, 2.0], [], [2.0, 2.0]]


def test_a_group_of_one_rank_has_every_operation() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for count in (0, 1, 100, 100_000):
            mine = torch.arange(float(count))
            dist.all_reduce(mine)
            dist.all_reduce(mine, dist.ReduceOp.AVG)
            dist.broadcast(mine, 0)
            out = [torch.zeros(count)]
            dist.all_gather(out, mine, async_op=True).wait()
            assert torch.equal(mine, torch.arange(float(count))) and torch.equal(out[0], mine)
        dist.barrier()

    run(1, body)


def test_options_may_be_given_for_each_group() -> None:
    def body(rank: Rank) -> list[float]:
        import shmcoll

        rank.init(timeout=seconds(33))
        timeouts = []
        for options in (
            None,
            {"timeout": seconds(44)},
            shmcoll.Options(seconds(55)),
            dist.ProcessGroupGloo._Options(),  # another backend's: ignored
        ):
            group = dist.new_group(timeout=seconds(66), pg_options=options)
            backend = group._get_backend(torch.device("cpu"))
            timeouts.append(backend.options._timeout.total_seconds())
            assert total(group, 1.0) == 2.0
        with pytest.raises(ValueError, match="unknown pg_options.*speed.*known: timeout"):
            dist.new_group(pg_options={"speed": 11})
        return timeouts

    assert run(2, body) == [[66.0, 44.0, 55.0, 66.0]] * 2


def test_no_time_is_no_limit_and_less_is_an_error() -> None:
    def body(rank: Rank) -> list[float]:
        with pytest.raises(ValueError, match="a time-out of -2000 ms is negative; give a positive"):
            rank.init(timeout=seconds(-2))
        rank.init()
        with pytest.raises(ValueError, match="a time-out of -1500 ms is negative"):
            dist.new_group(pg_options={"timeout": seconds(-1.5)})
        with pytest.raises(ValueError, match="a time-out of -3000 ms is negative"):
            shmcoll.monitored_barrier(timeout=seconds(-3))
        groups = [dist.new_group(timeout=seconds(s)) for s in (0, 7.5, -0.001)]
        alone = [dist.new_group([r], timeout=seconds(0.0005)) for r in range(2)]
        assert shmcoll.describe(alone[rank.rank])["timeout_s"] == 0.001
        limits = [float(shmcoll.describe(group)["timeout_s"]) for group in groups]
        if rank.rank == 0:  # there it is no time, as under gloo
            with pytest.raises(dist.DistBackendError, match=r"Timed out after [0-5]\.\d+ s"):
                shmcoll.monitored_barrier(groups[1], seconds(0))
        rank.sync()
        return limits

    for limits in run(2, body):
        assert limits[0] > 1e9 and limits[1:] == [7.5, 30 * 60]


@needs_set_timeout
def test_a_new_time_out_of_less_than_nothing_changes_nothing() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        with pytest.raises(ValueError, match="a time-out of -2000 ms is negative"):
            dist.group.WORLD.set_timeout(seconds(-2))
        limits = [float(shmcoll.describe()["timeout_s"])]
        dist.group.WORLD.set_timeout(seconds(0))
        return [*limits, float(shmcoll.describe()["timeout_s"])]

    for before, after in run(2, body):
        assert before == 20 and after > 1e9


@needs_set_timeout
def test_a_new_time_out_holds_for_the_calls_that_follow() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        dist.barrier()
        dist.group.WORLD.set_timeout(seconds(0.25))
        text = ""
        if rank.rank == 0:
            with pytest.raises(dist.DistBackendError) as caught:
                dist.barrier()
            text = str(caught.value)
        rank.sync()
        return text

    text = run(2, body)[0]
    waited = re.search(r"barrier #2 .*Timed out after (\d+\.\d+) s waiting for rank 1", text)
    assert waited and 0.25 <= float(waited[1]) < 20, text


def test_torchs_own_way_to_a_new_time_out_works_too() -> None:
    """torch.distributed.distributed_c10d._set_pg_timeout calls it, of the backends that it knows."""

    def body(rank: Rank) -> list[float]:
        rank.init()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        backend._set_default_timeout(seconds(7))
        assert backend.options._timeout == seconds(7)
        backend.options._timeout = seconds(1)  # torch writes there, too: it changes nothing
        assert backend.options._timeout == seconds(7)
        with pytest.raises(ValueError, match="a time-out of -2000 ms is negative"):
            backend._set_default_timeout(seconds(-2))
        with pytest.raises(TypeError):
            backend._set_default_timeout(3)
        return [float(shmcoll.describe()["timeout_s"])]

    assert run(2, body) == [[7.0]] * 2


def test_what_torch_writes_into_a_groups_options_stays_there() -> None:
    def body(rank: Rank) -> tuple[str, list[int]]:
        rank.init()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.options.global_ranks_in_group == [0, 1]
        backend.options.group_name = "renamed"
        backend.options.global_ranks_in_group = [4, 7]
        return backend.options.group_name, backend.options.global_ranks_in_group

    assert run(2, body) == [("renamed", [4, 7])] * 2


def test_nothing_is_left_behind() -> None:
    before = ranks.leftovers()

    def body(rank: Rank) -> None:
        rank.init()
        total(dist.new_group(), 1.0, 100_000)

    run(3, body)
    run(2, body, env={"SHMCOLL_SEGMENT": "named"})
    assert ranks.leftovers() == before
