# SPDX-License-Identifier: BSD-3-Clause
"""shrink_group: the ranks that are left go on in a new group."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ranks
import shmcoll
import shmcoll._shrink
from features import needs
from ranks import Rank, run, seconds, survivors, told

needs_shrink = needs(hasattr(dist, "shrink_group"), "shrink_group")
needs_merge = needs(hasattr(dist.ProcessGroup, "merge_remote_group"), "merge_remote_group")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def total(group: dist.ProcessGroup | None, value: float) -> float:
    mine = torch.full((300,), value)
    dist.all_reduce(mine, group=group)
    assert (mine == mine[0]).all()
    return mine[0].item()


def wait_for(rank: Rank, *words: int) -> None:
    ranks.wait_until(lambda: all(rank.board[word] for word in words))


def first_round() -> dist.Store:
    """What the ranks of the default group tell one another in it."""
    prefix = f"shmcoll/shrink/{shmcoll.describe(internals=True)['id']}/0"
    return dist.PrefixStore(prefix, dist.group.WORLD.get_group_store())


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_the_ranks_that_are_left_go_on_again_and_again(store: str) -> None:
    def body(rank: Rank) -> list[Any]:
        rank.init(pg_options={"tuning": "depth=4"})
        total(None, 1.0)
        if rank.rank == 1:
            die()
        assert "rank 1 (pid" in told(dist.barrier)
        assert shmcoll.describe()["gone"] == "1"
        assert shmcoll.shrink_group() is dist.group.WORLD
        found: list[Any] = [dist.get_rank(), dist.get_world_size(), total(None, 10.0**rank.rank)]
        about = shmcoll.describe()
        assert (about["members"], about["gone"]) == ("0,2,3", "")
        assert about["timeout_s"] == ranks.TIMEOUT_S
        pair = dist.new_group([1, 2])  # ranks of the new default group
        if dist.get_rank() > 0:
            found.append(total(pair, 10.0**rank.rank))
            assert shmcoll.describe(pair)["members"] == "2,3"
        if rank.rank == 3:
            die()
        assert "rank 3 (rank 2 of group" in told(dist.barrier)
        shmcoll.shrink_group()
        return [*found, dist.get_rank(), total(None, 10.0**rank.rank)]

    assert survivors(4, body, [1, 3], store=store) == [
        [0, 3, 1101.0, 0, 101.0],
        [1, 3, 1101.0, 1100.0, 1, 101.0],
    ]


def test_the_last_rank_goes_on_alone() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        if rank.rank == 0:
            die()
        told(dist.barrier)
        shmcoll.shrink_group()
        return [dist.get_world_size(), total(None, 5.0)]

    assert survivors(2, body, [0]) == [[1, 5.0]]


def test_a_part_of_the_ranks_goes_on_and_the_default_group_stays_what_it_is() -> None:
    def body(rank: Rank) -> float | None:
        rank.init()
        group = dist.new_group([1, 2, 3], group_desc="tp")
        if rank.rank == 0:
            wait_for(rank, 1, 3)
            assert "rank 2 (pid" in told(dist.barrier)
            return None
        total(group, 1.0)
        if rank.rank == 2:
            die()
        assert 'group "tp"' in told(lambda: dist.barrier(group))
        new = shmcoll.shrink_group(group)
        rank.board[rank.rank] = 1
        assert dist.get_process_group_ranks(new) == [1, 3]
        assert "is closed" in told(lambda: dist.barrier(group))
        found = total(new, 10.0**rank.rank)
        about = shmcoll.describe(new)
        assert (about["desc"], about["members"]) == ("tp", "1,3")
        return found

    assert survivors(4, body, [2]) == [None, 1010.0, 1010.0]


def test_ranks_that_wait_in_other_groups_come_too() -> None:
    """Rank 2 does not see that rank 3 has died: it waits for rank 1, which knows and shrinks."""

    def body(rank: Rank) -> list[float]:
        rank.init()
        pair, others = dist.new_group([1, 2]), dist.new_group([0, 1, 3])
        if rank.rank == 3:
            die()
        if rank.rank == 2:
            assert "abort" in told(lambda: dist.barrier(pair))
        else:
            assert "rank 3 (rank 2 of" in told(lambda: dist.barrier(others))
        shmcoll.shrink_group()
        return [dist.get_world_size(), total(None, 1.0)]

    assert survivors(4, body, [3]) == [[3, 3.0]] * 3


def test_a_rank_that_is_alive_is_waited_for_and_named() -> None:
    def body(rank: Rank) -> int:
        rank.init()
        if rank.rank == 2:
            die()
        told(dist.barrier)
        if rank.rank == 1:
            wait_for(rank, 0)
        else:
            said = told(lambda: shmcoll.shrink_group(timeout=seconds(0.4)))
            assert "waiting for rank 1: alive, and has not called shrink_group" in said
            assert dist.get_world_size() == 3  # the group is still there
            rank.board[0] = 1
        shmcoll.shrink_group()
        assert total(None, 1.0) == 2.0
        return dist.get_rank()

    ended = ranks.outcomes(3, body, env={"SHMCOLL_LATE_MS": "100"})
    assert [outcome.value for outcome in ended[:2]] == [0, 1], [*map(ranks.describe, ended)]
    assert "in shrink_group for rank 1: alive" in ended[0].output


def test_a_rank_that_has_left_does_not_count() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        if rank.rank == 1:
            dist.destroy_process_group()
            wait_for(rank, 0, 2)
            return []
        assert "rank 1" in told(dist.barrier)
        shmcoll.shrink_group()
        rank.board[rank.rank] = 1
        return [dist.get_rank(), total(None, 1.0)]

    assert run(3, body) == [[0, 2.0], [], [1, 2.0]]


def test_a_group_takes_nothing_from_an_earlier_one_on_its_store() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        if rank.rank == 1:
            dist.destroy_process_group()
            wait_for(rank, 0, 2)
        else:
            told(dist.barrier)
            shmcoll.shrink_group()
            assert total(None, 1.0) == 2.0
            rank.board[rank.rank] = 1
            dist.destroy_process_group()
        rank.init()
        shmcoll.shrink_group()
        return [dist.get_world_size(), total(None, 1.0)]

    assert run(3, body) == [[3, 3.0]] * 3


def test_what_the_store_says_is_checked() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        store = first_round()
        said = []
        if rank.rank == 0:
            for number, lie in enumerate((b"0,x", b"1,0", b"0,0,1", b"0,2", b"", b"1")):
                store.set("left", lie)
                said.append(told(shmcoll.shrink_group))
                assert number >= 4 or "the store holds" in said[-1]
        rank.sync()
        return said

    said = run(2, body)[0]
    assert "rank 1 went on without it" in said[-1]


def test_what_other_hosts_say_is_checked() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        store = first_round()
        for lie in ("2;", ";1,0", "x;", b"\xff"):
            if rank.rank == 0:
                store.set("seen/1", lie)
                assert "the store holds" in told(lambda: shmcoll.shrink_group(timeout=seconds(5)))
        rank.sync()

    run(2, body, env={"SHMCOLL_FAKE_HOSTS": "2x1"})


def test_a_store_that_has_died_is_named() -> None:
    """The default of programs without a launcher: rank 0 serves the store."""

    def body(rank: Rank) -> str:
        path = os.path.join(rank.directory, "port")
        if rank.rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, 3, is_master=True, wait_for_workers=False)
            with open(path + ".new", "w") as file:
                file.write(str(store.port))
            os.rename(path + ".new", path)
        else:
            deadline = time.monotonic() + ranks.LIMIT_S
            while not os.path.exists(path) and time.monotonic() < deadline:
                time.sleep(0.001)
            port = int(open(path).read())
            store = dist.TCPStore("127.0.0.1", port, 3, is_master=False, wait_for_workers=False)
        rank.init(store=store)
        if rank.rank == 0:
            die()
        told(dist.barrier)
        return told(shmcoll.shrink_group)

    for said in survivors(3, body, [0]):
        assert "the store does not answer, and must outlive the ranks" in said, said


@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", ["default", "part"])
def test_ranks_may_die_at_any_moment_of_it(part: str) -> None:
    """All that are left agree; a rank dies that has been counted among them, or not."""
    world = 4
    for turn in range(12):
        moment_s = random.Random(turn).uniform(0, 0.02)

        def body(rank: Rank, moment_s: float = moment_s) -> tuple[str, float]:
            rank.init()
            group = None if part == "default" else dist.new_group(list(range(world)))
            if rank.rank == 1:
                die()
            told(lambda: dist.barrier(group))
            if rank.rank == 2:
                signal.signal(signal.SIGALRM, lambda *_: die())
                signal.setitimer(signal.ITIMER_REAL, moment_s + 1e-6)
            new: Any = shmcoll.shrink_group(group)
            if rank.rank == 2:
                time.sleep(1)
            try:
                value = total(new, 10.0**rank.rank)
            except dist.DistBackendError:  # rank 2 died after that
                new = shmcoll.shrink_group(new)
                value = total(new, 10.0**rank.rank)
            return shmcoll.describe(new)["members"], value

        assert survivors(world, body, [1, 2]) == [("0,3", 1001.0)] * 2, turn


def test_wrong_arguments_change_nothing() -> None:
    def body(rank: Rank) -> float:
        with pytest.raises(ValueError, match="Default process group has not been initialized"):
            shmcoll.shrink_group()
        rank.init()
        with pytest.raises(TypeError, match=r"timeout must be a datetime\.timedelta, got int"):
            shmcoll.shrink_group(timeout=3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="group must be a torch"):
            shmcoll.shrink_group("all")  # type: ignore[arg-type]
        other, alone = dist.new_group(backend="gloo"), dist.new_group([0])
        with pytest.raises(ValueError, match="nothing of shmcoll is in it"):
            shmcoll.shrink_group(other)
        if rank.rank == 1:
            with pytest.raises(ValueError, match="this process is not in that group"):
                shmcoll.shrink_group(alone)
        return total(None, 1.0)

    assert run(2, body) == [2.0] * 2


@pytest.mark.parametrize(
    "victims", [[3], [2], [0], [2, 3], [1, 2]], ids=lambda ranks: "-".join(map(str, ranks))
)
def test_ranks_of_several_hosts_go_on(victims: list[int]) -> None:
    """One that follows, a leader, rank 0, a whole host, one of each host."""

    def body(rank: Rank) -> list[Any]:
        shmcoll._shrink._LOST_HOST_S = 0.5
        rank.init()
        assert shmcoll.describe()["hosts"] == 2
        total(None, 1.0)
        if rank.rank in victims:
            die()
        told(dist.barrier)
        shmcoll.shrink_group()
        found = [total(None, 10.0**rank.rank)]
        about = shmcoll.describe()
        return [*found, about["members"], about["hosts"]]

    left = [rank for rank in range(4) if rank not in victims]
    found = survivors(4, body, victims, env={"SHMCOLL_FAKE_HOSTS": "2x2"})
    hosts = len({rank // 2 for rank in left})
    members = ",".join(map(str, left))
    assert found == [[sum(10.0**rank for rank in left), members, hosts]] * len(left)


def test_a_group_in_gloos_place_shrinks() -> None:
    def body(rank: Rank) -> list[Any]:
        shmcoll.use_for_gloo()
        rank.init("gloo")
        if rank.rank == 1:
            die()
        told(dist.barrier)
        shmcoll.shrink_group()
        return [dist.get_backend(), shmcoll.describe()["members"], total(None, 1.0)]

    assert survivors(3, body, [1]) == [["gloo", "0,2", 2.0]] * 2


def test_the_example_trains_on() -> None:
    example = Path(__file__).parents[2] / "examples" / "survive.py"
    program = [str(example), "--steps", "40", "--kill", "0@9", "2@25"]
    command = [sys.executable, "-m", "shmcoll", "run", "--survive", "-n", "4", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^2 of 4 ranks, 40 steps, loss 0\.\d+$", done.stdout, re.M), done.stdout


@needs_shrink
def test_torchs_own_function_shrinks_too() -> None:
    def body(rank: Rank) -> list[Any]:
        rank.init()
        if rank.rank == 1:
            die()
        told(dist.barrier)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        for wrong in ([1, 1], [rank.rank], [7], [0, 1, 2]):
            with pytest.raises(ValueError, match="not other ranks of the group, each once"):
                backend.shrink(wrong)
        dist.shrink_group([1])
        pair = dist.new_group([0, 1])
        return [dist.get_rank(), total(None, 1.0), shmcoll.describe(pair)["members"]]

    assert survivors(3, body, [1]) == [[0, 2.0, "0,2"], [1, 2.0, "0,2"]]


@needs_merge
def test_two_groups_become_one() -> None:
    def body(rank: Rank) -> float:
        rank.init()
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine: Any = halves[rank.rank // 2]
        store = dist.PrefixStore("merged", rank.store)
        merged = mine.merge_remote_group(store, 4, seconds(20), "merged", "both")
        assert merged.size() == 4
        value = torch.tensor([10.0**rank.rank])
        merged.allreduce([value]).wait()
        return value.item()

    assert run(4, body) == [1111.0] * 4
