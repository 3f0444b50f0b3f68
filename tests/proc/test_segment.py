# SPDX-License-Identifier: BSD-3-Clause
"""Shared memory where it is hard to get: each form is forced, and was really taken."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import time
from collections.abc import Callable

import faults
import places
import pytest
import ranks
import shmcoll
import torch
import torch.distributed as dist

LIMIT_S = 40.0
UNNAMED, NAMED, MEMFD = "unnamed file in /dev/shm", "named file in /dev/shm", "memfd"
LARGE = 1 << 20  # elements: more than the small slots, so the group makes an arena

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, for mounts and namespaces")


def use_group(elements: int = LARGE) -> dict[str, str]:
    """Operations of all sizes; then what the group says of its memory."""
    world, me = dist.get_world_size(), dist.get_rank()
    for count in (1, 3000, elements):
        tensor = torch.full((count,), float(me + 1))
        dist.all_reduce(tensor)
        assert torch.all(tensor == world * (world + 1) / 2)
        flat = torch.empty(world * count)
        dist.all_gather_into_tensor(flat, torch.full((count,), float(me)))
        assert torch.all(flat.view(world, count) == torch.arange(float(world))[:, None])
    dist.broadcast(tensor.fill_(me), world - 1)
    assert torch.all(tensor == world - 1)
    return faults.info()


def work(rank: ranks.Rank) -> dict[str, str]:
    rank.init()
    return use_group()


def forms(outcomes: list[ranks.Outcome]) -> set[tuple[str, str]]:
    for outcome in outcomes:
        assert outcome.ok, ranks.describe(outcome)
    return {(outcome.value["segment"], outcome.value["arena"]) for outcome in outcomes}


@pytest.mark.timeout(60)
def test_the_first_choice_is_an_unnamed_file() -> None:
    assert forms(ranks.outcomes(3, work, limit=LIMIT_S)) == {(UNNAMED, UNNAMED)}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name, form", [("unnamed", UNNAMED), ("named", NAMED), ("memfd", MEMFD)])
def test_a_form_can_be_asked_for(name: str, form: str) -> None:
    outcomes = ranks.outcomes(3, work, limit=LIMIT_S, env={"SHMCOLL_SEGMENT": name})
    assert {segment for segment, _ in forms(outcomes)} == {form}
    assert ranks.leftovers() == []


# ---- another /dev/shm ----


@needs_root
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "prepare, expected",
    [
        pytest.param(places.shm_of("64k"), (MEMFD, MEMFD), id="64_KiB"),
        pytest.param(places.shm_of("1m"), (UNNAMED, MEMFD), id="1_MiB"),
        pytest.param(places.shm_read_only, (MEMFD, MEMFD), id="read_only"),
        pytest.param(places.shm_absent, (MEMFD, MEMFD), id="absent"),
    ],
)
def test_a_dev_shm_that_will_not_do(prepare: Callable[[], None], expected: tuple[str, str]) -> None:
    """Eight ranks use 164 KiB of it for a group, and some MiB for the arena."""
    assert forms(places.inside(prepare, 8, work, LIMIT_S)) == {expected}


@needs_root
@pytest.mark.timeout(100)
def test_16_mebibytes_of_dev_shm_are_enough_for_8_ranks() -> None:
    def body(rank: ranks.Rank) -> dict[str, str]:
        rank.init()
        tensor = torch.full((16 << 20,), float(rank.rank))  # 64 MiB
        dist.all_reduce(tensor)
        assert torch.all(tensor == sum(range(8)))
        return use_group()

    outcomes = places.inside(places.shm_of("16m"), 8, body, limit=80)
    assert {segment for segment, _ in forms(outcomes)} == {UNNAMED}
    assert "none" not in {arena for _, arena in forms(outcomes)}


@needs_root
@pytest.mark.timeout(60)
def test_nothing_stays_in_a_small_dev_shm() -> None:
    def run() -> list[str]:
        places.shm_of("1m")()
        for _ in range(3):
            forms(ranks.outcomes(4, work, limit=LIMIT_S))
        used = os.statvfs("/dev/shm")
        assert used.f_bfree == used.f_blocks, "not all blocks are free again"
        return os.listdir("/dev/shm")

    assert places.forked(run) == []


# ---- namespaces ----


@needs_root
@pytest.mark.timeout(60)
@pytest.mark.parametrize("with_proc", [False, True], ids=["old_proc", "own_proc"])
@pytest.mark.parametrize("movers", [(0,), (1,), (0, 1, 2)], ids=["rank_0", "rank_1", "all"])
def test_ranks_in_pid_namespaces_of_their_own(movers: tuple[int, ...], with_proc: bool) -> None:
    def body(rank: ranks.Rank) -> dict[str, str]:
        if rank.rank not in movers:
            return work(rank)
        places.own_pids(with_proc)

        def first() -> dict[str, str]:
            assert os.getpid() == 1
            if with_proc:
                places.mount("-t", "proc", "proc", "/proc")
            value = work(rank)
            dist.destroy_process_group()
            return value

        return places.forked(first)

    outcomes = ranks.outcomes(3, body, limit=LIMIT_S)
    # The old /proc still shows all processes by the same numbers, so the first choice will do.
    assert {segment for segment, _ in forms(outcomes)} == {NAMED if with_proc else UNNAMED}
    assert ranks.leftovers() == []


@needs_root
@pytest.mark.timeout(60)
def test_ranks_with_a_dev_shm_of_their_own_in_one_pid_namespace() -> None:
    def body(rank: ranks.Rank) -> dict[str, str]:
        places.shm_of("16m")()
        return work(rank)

    assert {segment for segment, _ in forms(ranks.outcomes(3, body, limit=LIMIT_S))} == {UNNAMED}


def dumpable(value: int) -> None:
    PR_SET_DUMPABLE = 4
    assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, value) == 0


def not_dumpable() -> None:
    dumpable(0)


def nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


@needs_root
@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", [not_dumpable, nobody])
def test_a_process_that_can_no_longer_be_looked_into_has_an_arena(
    change: Callable[[], None],
) -> None:
    """Its descriptors are hidden from others of its user from then on; the segment is open already."""

    def body(rank: ranks.Rank) -> dict[str, str]:
        def first() -> dict[str, str]:
            if change is not_dumpable:
                nobody()  # root may look into any process
                dumpable(1)  # the change of user has cleared it
            rank.init()
            change()
            rank.sync()
            return use_group()

        return places.forked(first)

    assert forms(ranks.outcomes(3, body, limit=LIMIT_S)) == {(UNNAMED, NAMED)}
    assert ranks.leftovers() == []


@needs_root
@pytest.mark.timeout(60)
@pytest.mark.skipif(not os.path.exists("/proc/self/ns/time"), reason="needs time namespaces")
@pytest.mark.parametrize("movers", [(0,), (1, 2)], ids=["rank_0", "ranks_1_and_2"])
def test_ranks_in_time_namespaces_of_their_own(movers: tuple[int, ...]) -> None:
    def live(rank: ranks.Rank) -> str:
        rank.init()
        dist.barrier()
        if rank.rank == 0:
            time.sleep(0.4)  # the others look at its process meanwhile
        dist.all_reduce(torch.ones(3))
        if rank.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        said = faults.told(dist.barrier)
        dist.destroy_process_group()
        return said

    def body(rank: ranks.Rank) -> str:
        if rank.rank not in movers:
            return live(rank)
        places.own_time(100000 + rank.rank)
        try:
            return places.forked(lambda: live(rank))
        except ranks.Failed:
            assert rank.rank == 0  # it has died without an answer
            return ""

    outcomes = ranks.outcomes(3, body, limit=LIMIT_S)
    for rank in (1, 2):
        assert outcomes[rank].ok, ranks.describe(outcomes[rank])
        assert "rank 0 (pid" in outcomes[rank].value and "died" in outcomes[rank].value, outcomes


@needs_root
@pytest.mark.timeout(60)
@pytest.mark.parametrize("movers", [(0,), (0, 1, 2)], ids=["rank_0", "all"])
def test_ranks_in_user_namespaces_of_their_own(movers: tuple[int, ...]) -> None:
    def body(rank: ranks.Rank) -> dict[str, str]:
        if rank.rank in movers:
            places.own_user()
        return work(rank)

    outcomes = ranks.outcomes(3, body, limit=LIMIT_S)
    # The root of the machine may open what root of a namespace has made.
    assert {segment for segment, _ in forms(outcomes)} == {UNNAMED if len(movers) == 1 else NAMED}
    assert ranks.leftovers() == []


@pytest.mark.alone
@needs_root
@pytest.mark.timeout(60)
def test_a_death_in_another_pid_namespace_is_told_as_fast() -> None:
    def body(rank: ranks.Rank) -> float:
        if rank.rank != 1:
            rank.init()
            faults.all_reduce()
            said = faults.told(faults.all_reduce)
            assert "rank 1 (pid" in said and "died" in said, said
            return faults.since_ms(rank)
        places.own_pids(True)

        def first() -> None:
            places.mount("-t", "proc", "proc", "/proc")
            rank.init()
            faults.all_reduce()
            assert faults.info()["segment"] == NAMED
            time.sleep(0.1)
            faults.mark(rank)
            os._exit(1)

        with pytest.raises(ranks.Failed, match="without an answer"):
            places.forked(first)
        return 0.0

    assert max(ranks.run(3, body, limit=LIMIT_S)) <= faults.told_limit_ms()


@needs_root
@pytest.mark.timeout(60)
def test_ranks_that_share_no_memory_are_told_why() -> None:
    """Another pid namespace and another /dev/shm: neither file can be opened. A group over several hosts, which
    tests/hosts has, is refused here."""

    def body(rank: ranks.Rank) -> str:
        if rank.rank != 1:
            return faults.told(rank.init)
        places.shm_of("1m")()
        places.own_pids(True)

        def first() -> str:
            places.mount("-t", "proc", "proc", "/proc")
            return faults.told(rank.init)

        return places.forked(first)

    begun = time.monotonic()
    for said in ranks.run(2, body, limit=LIMIT_S, env={"SHMCOLL_HOSTS": "one"}):
        assert "rank 1" in said and "cannot open the segment" in said, said
        assert "must share /dev/shm" in said and "--ipc=" in said and "emptyDir" in said, said
    assert time.monotonic() - begun < 5


@needs_root
@pytest.mark.timeout(60)
def test_with_gloos_place_each_group_gets_what_its_ranks_can_have() -> None:
    """Ranks 0 and 1 share memory, rank 2 shares none with them."""

    def live(rank: ranks.Rank) -> list[tuple[str, list[float]]]:
        shmcoll.use_for_gloo()
        rank.init("gloo")
        found = []
        for members in ([0, 1, 2], [0, 1], [1, 2], [2]):
            group = dist.new_group(members)
            if rank.rank in members:
                t = torch.full((2,), rank.rank + 1.0)
                dist.all_reduce(t, group=group)
                kind = type(group._get_backend(torch.device("cpu"))).__name__
                found.append((kind, t.tolist()))
        by_hand = dist.ProcessGroupGloo(
            dist.PrefixStore("by hand", rank.store), rank.rank, rank.world, ranks.seconds(20)
        )
        by_hand.barrier().wait()
        assert type(by_hand).__name__ == "ProcessGroupGloo"
        dist.destroy_process_group()
        return found

    def body(rank: ranks.Rank) -> list[tuple[str, list[float]]]:
        if rank.rank != 2:
            return live(rank)
        places.shm_of("1m")()
        places.own_pids(True)

        def first() -> list[tuple[str, list[float]]]:
            places.mount("-t", "proc", "proc", "/proc")
            return live(rank)

        return places.forked(first)

    real, ours = "ProcessGroupGloo", "ProcessGroupShm"
    ended = ranks.outcomes(3, body, limit=LIMIT_S)
    assert [one.ok for one in ended] == [True] * 3, [ranks.describe(one) for one in ended]
    assert [one.value for one in ended] == [
        [(real, [6.0] * 2), (ours, [3.0] * 2)],
        [(real, [6.0] * 2), (ours, [3.0] * 2), (real, [5.0] * 2)],
        [(real, [6.0] * 2), (real, [5.0] * 2), (ours, [3.0] * 2)],
    ]
    line = 'group "0" asked for gloo; its 3 ranks get real gloo, because '
    assert line in ended[0].output and "rank 2" in ended[0].output, ended[0].output
    assert ranks.leftovers() == []
    assert ranks.leftovers() == []


# ---- many groups ----


@needs_root
@pytest.mark.timeout(300)
def test_200_groups_keep_what_their_longest_operations_need() -> None:
    """docs/operate/memory.md, "What a group needs"."""
    count, kib = 200, 1024

    def used() -> int:
        shm = os.statvfs("/dev/shm")
        return (shm.f_blocks - shm.f_bfree) * shm.f_frsize // kib

    def body(rank: ranks.Rank) -> list[int]:
        def sums(groups: list[dist.ProcessGroup], elements: int) -> int:
            for group in groups:
                tensor = torch.ones(elements)
                dist.all_reduce(tensor, group=group)
                assert torch.all(tensor == 2)
            rank.sync()
            return used()

        rank.init()
        groups = [dist.new_group() for _ in range(count)]
        kept = [sums([], 0), sums(groups, 4 * kib), sums(groups[::10], 256 * kib)]
        rank.sync()
        for group in groups:
            dist.destroy_process_group(group)
        return [*kept, sums([], 0)]

    for outcome in places.inside(places.shm_of("1g"), 2, body, limit=280):
        assert outcome.ok, ranks.describe(outcome)
        made, short, long, destroyed = outcome.value
        assert 70 * count <= made <= 85 * count, f"{made} KiB: is this what the groups use?"
        assert short <= 50 * kib, f"after 16 KiB in each: {short} KiB"
        assert long <= 65 * kib, f"after 1 MiB in a tenth of them: {long} KiB"
        assert destroyed <= kib, f"after all of them: {destroyed} KiB"


# ---- resource limits ----


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kib, arena", [(1024, UNNAMED), (4, "none")])
def test_a_small_file_size_limit_leaves_the_group_with_a_short_arena_or_none(
    kib: int, arena: str
) -> None:
    """What is made later than the group: long operations find no room for more than 1 MiB."""

    def body(rank: ranks.Rank) -> dict[str, str]:
        rank.init()
        resource.setrlimit(resource.RLIMIT_FSIZE, (kib << 10, resource.RLIM_INFINITY))
        info = use_group()
        again = use_group()
        rank.sync()  # one that has left is gone, as the group would say
        assert again == info, "nobody tries again"
        return info

    outcomes = ranks.outcomes(4, body, limit=LIMIT_S)
    assert forms(outcomes) == {(UNNAMED, arena)}
    assert all(int(outcome.value["arena_bytes"]) < 1 << 20 for outcome in outcomes)


@pytest.mark.timeout(60)
def test_a_limit_that_leaves_no_arena_is_told_once() -> None:
    def body(rank: ranks.Rank) -> dict[str, str]:
        rank.init()
        return use_group()

    outcomes = ranks.outcomes(4, body, limit=LIMIT_S, env={"SHMCOLL_ARENA_KIB": "100"})
    assert forms(outcomes) == {(UNNAMED, "none")}
    said = "".join(outcome.output for outcome in outcomes)
    assert said.count("SHMCOLL_ARENA_KIB is 100, and they need 160 or more") == 1, said


@pytest.mark.timeout(60)
@pytest.mark.parametrize("limited", [(0, 1, 2), (0,)], ids=["all", "rank_0"])
def test_a_tiny_file_size_limit_is_a_clear_error_on_all_ranks(limited: tuple[int, ...]) -> None:
    def body(rank: ranks.Rank) -> str:
        assert rank.store is not None
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, a C program does not
        if rank.rank in limited:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        said = faults.told(lambda: rank.group("first", timeout=10))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        rank.sync()
        rank.group("second").barrier().wait()
        return said

    for said in ranks.run(3, body, limit=LIMIT_S):
        assert "File too large" in said and "rank 0" in said and "ulimit -f" in said, said


@pytest.mark.timeout(60)
def test_a_file_size_limit_that_a_board_exceeds_leaves_the_group_without_one() -> None:
    def body(rank: ranks.Rank) -> dict[str, str]:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, resource.RLIM_INFINITY))
        return work(rank)

    outcomes = ranks.outcomes(3, body, limit=LIMIT_S)
    assert forms(outcomes) == {(UNNAMED, UNNAMED)}
    for outcome in outcomes:
        (line,) = re.findall(r"cannot make a memfd.*", outcome.output)
        assert re.search(r"ulimit -f` must be [0-9]{5} KiB", line), line
        assert "groups work" not in line and "seccomp" not in line and "ulimit -n" not in line


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "limited",
    [
        pytest.param((0, 1, 2), id="all"),
        pytest.param((0,), id="rank_0"),
        pytest.param((1,), id="rank_1"),
    ],
)
def test_too_few_descriptors_are_a_clear_error_on_all_ranks(limited: tuple[int, ...]) -> None:
    def body(rank: ranks.Rank) -> str:
        assert rank.store is not None
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        if rank.rank in limited:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        said = faults.told(lambda: rank.group("first", timeout=2))
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        rank.sync()
        rank.group("second").barrier().wait()
        return said

    for said in ranks.run(3, body, limit=LIMIT_S):
        assert "Too many open files" in said, said


@pytest.mark.timeout(60)
def test_a_rank_that_lacks_descriptors_shares_memory_all_the_same() -> None:
    """All are told of it. No group over several hosts is tried, which needs more descriptors."""

    def body(rank: ranks.Rank) -> str:
        rank.init()
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        if rank.rank == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        said = faults.told(dist.new_group)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        rank.sync()
        return said

    for said in ranks.run(3, body, limit=LIMIT_S):
        assert "rank 1: cannot open and map the segment of pid" in said, said
        assert "Too many open files; `ulimit -n` is the limit" in said, said


# ---- what cannot be ----


@pytest.mark.timeout(60)
def test_a_world_beyond_the_maximum_is_refused_at_once() -> None:
    def body(rank: ranks.Rank) -> str:
        begun = time.monotonic()
        with pytest.raises(ValueError) as error:
            rank.group(world=257)
        assert time.monotonic() - begun < 0.5
        rank.group("after").barrier().wait()
        return str(error.value)

    for said in ranks.run(2, body, limit=LIMIT_S):
        assert "256" in said and "257" in said, said
