# SPDX-License-Identifier: BSD-3-Clause
"""Groups that are made with enable_reconfigure, and get their ranks by handles.

Most tests use the bare backend, as every torch has that. Those of torch's own functions need torch 2.15.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import ranks
import shmcoll
from features import needs
from ranks import Rank, run, seconds, survivors, told, wait_until

needs_reconfigure = needs(hasattr(dist, "_reconfigure"), "_reconfigure")
SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src/backend"


class Group:
    """A bare backend with its own store."""

    def __init__(self, rank: Rank, name: str = "test", timeout: float = ranks.TIMEOUT_S) -> None:
        options = shmcoll.Options(seconds(timeout))
        options.group_name = name
        self.rank, self.name = rank, name
        store = dist.PrefixStore(name, rank.store)
        self.backend = shmcoll._backend.make_reconfigurable(store, rank.rank, rank.world, options)

    def handles(self, key: str, of: list[int] | None = None) -> list[str]:
        """Those of these ranks of the test, which all call it."""
        store = dist.PrefixStore(f"handles/{self.name}/{key}", self.rank.store)
        store.set(str(self.rank.rank), self.backend._handle())
        return [store.get(str(one)).decode() for one in of or range(self.rank.world)]

    def change(self, uuid: int, handles: list[str], limit: float | None = None) -> None:
        self.backend._change(uuid, handles, True, None if limit is None else seconds(limit))

    def all_join(self, uuid: int, of: list[int] | None = None) -> None:
        self.change(uuid, self.handles(str(uuid), of))

    def sum(self, value: float, count: int = 300) -> float:
        tensor = torch.full((count,), value)
        self.backend.allreduce([tensor]).wait()
        assert (tensor == tensor[0]).all()
        return tensor[0].item()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_ranks_are_in_the_order_of_their_handles(world: int) -> None:
    def body(rank: Rank) -> Any:
        group = Group(rank)
        handles = group.handles("first")
        group.change(1, handles[::-1])
        mine = torch.tensor([float(rank.rank)])
        all_of_them = [torch.zeros(1) for _ in range(rank.world)]
        group.backend.allgather([all_of_them], [mine]).wait()
        return [int(one.item()) for one in all_of_them], group.sum(1.0 + rank.rank)

    order = list(range(world))[::-1]
    assert run(world, body) == [(order, world * (world + 1) / 2)] * world


def test_a_set_of_handles_has_one_order_on_all_ranks() -> None:
    def body(rank: Rank) -> list[int]:
        group = Group(rank)
        handles = group.handles("first")
        mixed = handles[rank.rank :] + handles[: rank.rank]
        group.backend._change(5, mixed, False, None)
        places = [torch.zeros(1) for _ in range(rank.world)]
        group.backend.allgather([places], [torch.tensor([float(rank.rank)])]).wait()
        return [int(one.item()) for one in places]

    assert run(3, body) == [[0, 1, 2]] * 3


def test_a_call_before_the_first_one_says_what_to_do() -> None:
    def body(rank: Rank) -> list[str]:
        backend = Group(rank).backend
        tensor = torch.ones(3)
        assert backend.get_error() == ErrorType.SUCCESS
        backend.abort()
        backend.shutdown()
        return [
            told(lambda: backend.allreduce([tensor])),
            told(lambda: backend.barrier()),
            told(lambda: backend.send([tensor], 0, 0)),
            told(lambda: backend._current),
        ]

    for texts in run(2, body):
        for what, text in zip(("all_reduce", "barrier", "send", "the group"), texts, strict=True):
            assert text.startswith(f"shmcoll: {what}: "), text
            assert "has not been configured yet" in text
            assert "_get_reconfigure_handle()" in text and "_reconfigure(uuid, handles)" in text


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_survivors_go_on_and_a_new_process_joins(world: int) -> None:
    """Of world + 1 processes the last one joins in the place of the one that is killed."""

    def body(rank: Rank) -> Any:
        group = Group(rank)
        old = list(range(world))
        if rank.rank < world:
            group.all_join(1, old)
            assert group.sum(1.0) == world
            if rank.rank == world - 1:
                rank.board[0] = os.getpid()
                os.kill(os.getpid(), signal.SIGKILL)
            text = told(lambda: group.sum(1.0))
            assert f"pid {rank.board[0]}" in text and "died" in text, text
            assert group.backend.get_error() == ErrorType.REMOTE_ERROR
            group.all_join(2, old[:-1])
            assert group.sum(1.0) == world - 1
            assert group.backend.get_error() == ErrorType.SUCCESS
        now = [*old[:-1], world]
        group.all_join(3, now)
        return group.sum(float(rank.rank))

    assert (
        survivors(world + 1, body, killed=(world - 1,)) == [sum(range(world - 1)) + world] * world
    )


def test_ranks_that_are_left_out_are_told() -> None:
    def body(rank: Rank) -> str:
        group = Group(rank)
        group.all_join(1)
        handles = group.handles("second")
        text = ""
        if rank.rank == 1:
            text = told(lambda: group.sum(1.0))
            text += "\n" + told(lambda: group.change(2, [handles[0], handles[2]]), ValueError)
        else:
            group.change(2, [handles[0], handles[2]])
            assert group.sum(1.0) == 2
        rank.sync()
        group.all_join(3)
        assert group.sum(1.0) == 3
        return text

    text = run(3, body)[1]
    assert re.search(r"rank [02] \(pid \d+\) has left the group", text), text
    assert "the handles do not name this rank, rank 1 (pid" in text


@pytest.mark.parametrize("world", [2, 3])
def test_one_that_never_comes_is_named(world: int) -> None:
    def body(rank: Rank) -> Any:
        group = Group(rank)
        group.all_join(1)
        late = rank.world - 1
        handles = group.handles("second")
        texts = []
        if rank.rank != late:
            began = time.monotonic()
            texts.append(told(lambda: group.change(2, handles, 1.5)))
            assert 1.4 < time.monotonic() - began < 10
            texts.append(told(lambda: group.sum(1.0)))
            assert group.backend.get_error() == ErrorType.COMM_ERROR
        rank.sync()
        if rank.rank == late:  # it is told at once, too
            began = time.monotonic()
            texts = [told(lambda: group.change(2, handles)), told(lambda: group.sum(1.0))]
            assert time.monotonic() - began < 5
        rank.sync()
        assert group.handles("third") == handles  # nothing has become of the second one
        group.change(3, handles)
        assert group.sum(1.0) == rank.world
        return texts

    for first, second in run(world, body):
        assert f"waiting for rank {world - 1} (has not come)" in first, first
        assert "the last reconfigure (uuid=2) has failed" in second, second
        assert f"waiting for rank {world - 1} (has not come)" in second, second


def test_one_that_dies_meanwhile_is_named() -> None:
    def body(rank: Rank) -> Any:
        group = Group(rank)
        group.all_join(1)
        handles = group.handles("second")
        if rank.rank == 1:
            rank.board[0] = os.getpid()
            rank.board[1] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        wait_until(lambda: bool(rank.board[1]))
        return told(lambda: group.change(2, handles, 3.0)), rank.board[0]

    for text, _pid in survivors(3, body, killed=(1,)):
        assert "rank 1" in text, text


def test_wrong_handles_change_nothing() -> None:
    def body(rank: Rank) -> list[str]:
        group = Group(rank)
        stale = group.backend._handle()
        group.all_join(1)
        now = group.handles("second")
        mine = group.backend._handle()
        form, nonce, generation = mine.rsplit(":", 2)
        wrong = [
            [],
            now[1 - rank.rank : 2 - rank.rank],
            [*now, mine],
            [stale],
            [mine, "gloo:0:-1:0:"],
            [mine, "shmcoll:2:0"],
            [mine, "shmcoll:1:0:host:12:34"],
            [mine, f"{form}:{nonce}:x"],
            [mine, f"{form}:{nonce}x:{generation}"],
            [mine, "shmcoll:1:0:ho st:1:0000000000000001:0"],
            [mine, "shmcoll:1:00:host:1:0000000000000001:0"],
            [mine, "x" * 100000],
            [mine, "shmcoll:1:0:" + "h" * 300 + ":1:0000000000000001:0"],
            [mine, ""],
            [mine, "\n\x00\u00fc"],
            [mine] * 257,
        ]
        texts = [told(lambda one=one: group.change(2, one), ValueError) for one in wrong]
        texts.append(told(lambda: group.change(1, now), ValueError))
        texts.append(told(lambda: group.change(2, now, -1.0), ValueError))
        assert group.sum(1.0) == 2
        group.change(2, now)
        assert group.sum(1.0) == 2
        return texts

    words = [
        "no handles",
        "do not name this rank",
        "two handles are of rank",
        "an old one: the group has been reconfigured since",
        "handle 1 is not one of shmcoll's",
        "another version",
        *["handle 1 is damaged"] * 5,
        "handle 1 is not one of shmcoll's",
        "handle 1 is damaged",
        *["handle 1 is not one of shmcoll's"] * 2,
        "257 handles; a group has 256",
        "the uuid 1 was already used",
        "is negative",
    ]
    for texts in run(2, body):
        for text, part in zip(texts, words, strict=True):
            assert part in text and len(text) < 400, (text, part)


def test_ranks_with_other_handles_make_no_group() -> None:
    """The rendezvous knows places alone: of three processes two would meet there."""

    def body(rank: Rank) -> str:
        group = Group(rank)
        handles = group.handles("first")
        mine = handles[:2] if rank.rank == 0 else handles[2:0:-1]
        text = told(lambda: group.change(1, mine, 4.0)) if rank.rank != 1 else ""
        rank.sync()
        group.change(2, handles)
        assert group.sum(1.0) == 3
        return text

    def crossed(rank: Rank) -> str:
        """Rank 0 waits for 1, and 2 for 1 in the place of 0; 1 comes to 0's place 1, and 2 is in nobody's way."""
        group = Group(rank)
        handles = group.handles("first")
        mine = {0: [handles[0], handles[1]], 1: [handles[2], handles[1]]}.get(rank.rank)
        text = told(lambda: group.change(1, mine, 8.0)) if mine else ""
        rank.sync()
        group.change(2, handles)
        assert group.sum(1.0) == 3
        return text

    for text in run(3, body)[::2]:
        assert re.search(r"two processes came as rank 0 .*: pid \d+ and pid \d+", text), text
    texts = run(3, crossed)
    for rank in (0, 1):
        assert "other handles, or another order" in texts[rank], texts
        assert re.search(rf"given by rank {1 - rank} \(pid \d+\)", texts[rank]), texts


def test_a_call_that_is_under_way_ends() -> None:
    def body(rank: Rank) -> Any:
        group = Group(rank)
        group.all_join(1)
        handles = group.handles("second")
        tensor, texts = torch.ones(100000), []
        if rank.rank == 0:
            sequence = group.backend._get_sequence_number_for_group
            before = sequence()
            thread = threading.Thread(target=lambda: texts.append(told(lambda: group.sum(1.0))))
            thread.start()
            wait_until(lambda: sequence() > before)  # it is inside
            works = [group.backend.allreduce([tensor]), group.backend.recv([torch.ones(3)], 1, 7)]
            rank.sync()
            group.change(2, handles)
            thread.join()
            texts += [told(work.wait) for work in works]
            assert all(work.is_completed() and not work.is_success() for work in works)
        else:
            rank.sync()
            group.change(2, handles)
        assert group.sum(1.0) == 2
        return texts

    texts = run(2, body)[0]
    assert len(texts) == 3
    for text in texts:
        assert "closed" in text or "left the group" in text, text


def test_two_groups_change_apart() -> None:
    def body(rank: Rank) -> list[float]:
        one, two = Group(rank, "one"), Group(rank, "two")
        one.all_join(1)
        two.all_join(1)
        sums = [one.sum(1.0), two.sum(2.0)]
        assert one.backend._handle() != two.backend._handle()
        wrong = told(lambda: one.change(2, two.handles("wrong")), ValueError)
        assert "do not name this rank" in wrong
        one.all_join(3)
        return [*sums, one.sum(1.0), two.sum(2.0)]

    assert run(3, body) == [[3, 6, 3, 6]] * 3


def test_two_threads_cannot_change_at_once() -> None:
    def body(rank: Rank) -> list[str]:
        group = Group(rank)
        handles = group.handles("first")
        texts: list[str] = []
        if rank.rank == 0:
            thread = threading.Thread(target=group.change, args=(1, handles))
            thread.start()
            wait_until(lambda: "under way" in told(lambda: group.sum(1.0)))
            texts = [told(lambda: group.change(2, handles)), told(lambda: group.sum(1.0))]
            rank.sync()
            thread.join()
        else:
            rank.sync()
            group.change(1, handles)
        assert group.sum(1.0) == 2
        return texts

    first, second = run(2, body)[0]
    assert "another thread is in it" in first
    assert "reconfigure(uuid=1) is under way in another thread" in second


def test_an_aborted_group_can_be_configured_again() -> None:
    def body(rank: Rank) -> None:
        group = Group(rank)
        group.all_join(1)
        rank.sync()
        group.backend.abort()
        assert group.backend.get_error() == ErrorType.COMM_ERROR
        assert "is closed" in told(lambda: group.sum(1.0))
        group.all_join(2)
        assert group.backend.get_error() == ErrorType.SUCCESS
        assert group.sum(1.0) == 2

    run(2, body)


def test_a_timeout_of_the_change_is_no_timeout_of_calls() -> None:
    def body(rank: Rank) -> str:
        group = Group(rank, timeout=1.5)
        group.change(1, group.handles("first"), 60.0)
        text = ""
        if rank.rank == 0:
            text = told(lambda: group.sum(1.0))
        rank.sync()
        group.all_join(2)
        assert group.sum(1.0) == 2
        return text

    assert "Timed out after 1.5" in run(2, body)[0]


def test_a_forked_child_is_refused() -> None:
    def body(rank: Rank) -> int:
        group = Group(rank)
        group.all_join(1)
        child = os.fork()
        if child == 0:
            texts = [told(group.backend._handle), told(lambda: group.change(2, ["x"]))]
            os._exit(0 if all("belongs to the parent process" in text for text in texts) else 9)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert group.sum(1.0) == 2
        return code

    assert run(2, body) == [0, 0]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return len(pathlib.Path("/proc/self/maps").read_text().splitlines())


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_200_changes_leave_nothing() -> None:
    def body(rank: Rank) -> Any:
        group = Group(rank)

        def change(uuid: int) -> None:
            group.all_join(uuid)
            assert group.sum(1.0, 5000) == 2
            work = group.backend.allreduce([torch.ones(4)])  # with the group's engine
            work.wait()

        for uuid in range(20):
            change(uuid)
        before = open_files(), mappings(), threads()
        for uuid in range(20, 220):
            change(uuid)
        rank.sync()
        return before, (open_files(), mappings(), threads())

    for before, after in run(2, body):
        assert after[0] <= before[0] and after[2] <= before[2], (before, after)
        assert after[1] <= before[1] + 8, (before, after)
    assert ranks.leftovers() == []


def test_each_method_of_a_group_is_handed_on() -> None:
    """What ProcessGroupShm overrides and ReconfigurableGroup does not would be torch's, which refuses."""

    def overridden(header: str) -> set[str]:
        text = (SOURCES / header).read_text()
        return set(re.findall(r"(\w+)\s*\([^()]*\)(?:\s*const)?\s*override", text))

    ours = overridden("process_group_shm.hpp") - {"clone"}  # of the options
    assert {"allreduce", "abort", "split", "allocateTensor"} <= ours
    assert ours - overridden("reconfigurable.hpp") == set()


# ---- torch's own functions ----


def handles_of_all(rank: Rank, key: str, members: list[int]) -> list[str]:
    store = dist.PrefixStore(f"handles/{key}", rank.store)
    store.set(str(rank.rank), dist._get_reconfigure_handle())
    return [store.get(str(one)).decode() for one in members]


def total(value: float) -> float:
    tensor = torch.full((300,), value)
    dist.all_reduce(tensor)
    return tensor[0].item()


@needs_reconfigure
@pytest.mark.parametrize("world", [2, 3, 4])
def test_torchs_functions_shrink_and_grow(world: int) -> None:
    def body(rank: Rank) -> Any:
        rank.init(enable_reconfigure=True)
        assert dist._supports_reconfigure()
        assert (dist.get_rank(), dist.get_world_size()) == (rank.rank, world + 1)
        old = list(range(world))
        seen = []
        if rank.rank < world:
            work = dist._reconfigure(1, handles_of_all(rank, "1", old))
            assert work.wait() and work.is_completed()
            seen.append((dist.get_rank(), dist.get_world_size(), total(1.0)))
            if rank.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            with pytest.raises(dist.DistBackendError):
                total(1.0)
            dist._reconfigure(2, handles_of_all(rank, "2", old[1:]), timeout=seconds(10)).wait()
            seen.append((dist.get_rank(), dist.get_world_size(), total(1.0)))
        now = [*old[1:], world]
        dist._reconfigure(3, set(handles_of_all(rank, "3", now)), hints={"any": "thing"}).wait()
        seen.append((dist.get_world_size(), total(1.0), shmcoll.describe()["world_size"]))
        tensor = torch.full((2,), float(dist.get_rank()))
        shmcoll.all_reduce(tensor)
        assert tensor[0] == world * (world - 1) / 2
        dist.destroy_process_group()
        return seen

    ended = survivors(world + 1, body, killed=(0,))
    last = (world, world, world)
    for rank, seen in enumerate(ended[:-1], 1):
        assert seen == [(rank, world, world), (rank - 1, world - 1, world - 1), last]
    assert ended[-1] == [last]


@needs_reconfigure
def test_shrink_group_names_the_other_way() -> None:
    def body(rank: Rank) -> str:
        rank.init(enable_reconfigure=True)
        dist._reconfigure(1, handles_of_all(rank, "1", [0, 1])).wait()
        return told(lambda: shmcoll.shrink_group(), ValueError)

    for text in run(2, body):
        assert "_reconfigure" in text


@needs_reconfigure
def test_a_group_without_it_refuses() -> None:
    def body(rank: Rank) -> bool:
        rank.init()
        for call in (dist._get_reconfigure_handle, lambda: dist._reconfigure(1, ["x"])):
            with pytest.raises(RuntimeError, match="does not support"):
                call()
        return dist._supports_reconfigure()

    assert run(2, body) == [False, False]


@needs_reconfigure
def test_groups_are_made_of_one_that_was_configured() -> None:
    def body(rank: Rank) -> Any:
        rank.init(enable_reconfigure=True)
        with pytest.raises(dist.DistBackendError, match="has not been configured yet"):
            total(1.0)
        dist._reconfigure(1, handles_of_all(rank, "1", [2, 1, 0])).wait()
        pair = dist.new_group([0, 1])
        tensor = torch.full((4,), float(rank.rank))
        if dist.get_rank() in (0, 1):
            dist.all_reduce(tensor, group=pair)
        return tensor[0].item()

    assert run(3, body) == [0, 3, 3]
