# SPDX-License-Identifier: BSD-3-Clause
"""The ways to die, the ways to wait for a dead rank, and what comes after."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

import faults
import pytest
import ranks
import torch
import torch.distributed as dist

LIMIT_S = 20.0
VICTIM = 1


def dump_no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def segmentation_fault() -> None:
    faulthandler.disable()
    ctypes.string_at(0)


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_with_work_in_flight() -> None:
    dist.all_reduce(torch.ones(1 << 22), async_op=True)
    os._exit(3)


def become_another_program() -> None:
    os.execv("/bin/sleep", ["sleep", "0.4"])


WAYS_TO_DIE: dict[str, tuple[Callable[[], None], int]] = {
    "SIGKILL": (kill_oneself, -signal.SIGKILL),
    "SIGSEGV": (segmentation_fault, -signal.SIGSEGV),
    "_exit": (lambda: os._exit(3), 3),
    "_exit_in_flight": (exit_with_work_in_flight, 3),
    "exec": (become_another_program, 0),
}


def wait_for_work() -> None:
    dist.all_reduce(torch.ones(4), async_op=True).wait()


def wait_for_future() -> None:
    dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()


def wait_for_callback() -> None:
    heard: list[BaseException] = []

    def hear(future: Any) -> None:
        try:
            future.value()
        except dist.DistBackendError as error:
            heard.append(error)

    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
    works[2].get_future().then(hear).wait()
    for error in heard:
        raise error


def exchange_much() -> None:
    dist.all_reduce(torch.ones(1 << 22))


def fetch_all() -> None:
    dist.all_gather([torch.empty(10) for _ in range(dist.get_world_size())], torch.ones(10))


WAYS_TO_WAIT: dict[str, Callable[[], None]] = {
    "all_reduce": faults.all_reduce,
    "large_all_reduce": exchange_much,
    "all_gather": fetch_all,
    "broadcast": lambda: dist.broadcast(torch.ones(4), VICTIM),
    "barrier": dist.barrier,
    "work": wait_for_work,
    "future": wait_for_future,
    "callback": wait_for_callback,
}


def the_call_of(way: str) -> Callable[[], None]:
    return exchange_much if way == "_exit_in_flight" else faults.all_reduce


def survivors_of(
    die: Callable[[], None], wait: Callable[[], None], pause_s: float, world: int = 3
) -> list[ranks.Outcome]:
    """Rank 1 dies; with a negative pause before the others call, otherwise after."""

    def body(rank: ranks.Rank) -> tuple[float, str]:
        dump_no_core()
        faults.meet(rank)
        if rank.rank == VICTIM:
            time.sleep(max(0.0, pause_s))
            faults.mark(rank)
            die()
            raise AssertionError("it lives")
        time.sleep(max(0.0, -pause_s))
        begun_ns = faults.clock_ns()
        said = faults.told(wait)
        assert rank.board[faults.MOMENT] > 0, "told before the death"
        since = max(begun_ns, rank.board[faults.MOMENT])
        dead_ms = (faults.clock_ns() - since) / 1e6
        next_ms = faults.took_ms(lambda: faults.told(faults.all_reduce))
        assert next_ms < faults.told_limit_ms(), f"the next call failed after {next_ms:.1f} ms"
        assert f"rank {VICTIM} (pid {rank.board[faults.PID_OF + VICTIM]}) died" in said, said
        assert "on group" in said and "#2" in said, f"no operation, sequence or group: {said}"
        return dead_ms, said

    return ranks.outcomes(world, body, limit=LIMIT_S)


def check(outcomes: list[ranks.Outcome], status: int, capsys: Any, name: str) -> None:
    assert outcomes[VICTIM].exit == status, ranks.describe(outcomes[VICTIM])
    others = [outcome for outcome in outcomes if outcome.rank != VICTIM]
    for outcome in others:
        assert outcome.ok, ranks.describe(outcome)
    times = [outcome.value[0] for outcome in others]
    with capsys.disabled():
        print(f"\n{name}: told after {', '.join(f'{ms:.2f}' for ms in times)} ms", end="")
    assert max(times) <= faults.told_limit_ms()
    assert ranks.leftovers() == []


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS_TO_DIE)
def test_a_rank_that_dies_is_named_to_who_is_blocked(way: str, capsys: Any) -> None:
    die, status = WAYS_TO_DIE[way]
    check(survivors_of(die, the_call_of(way), 0.15), status, capsys, way)


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS_TO_DIE)
def test_a_rank_that_died_before_is_named_to_the_next_call(way: str, capsys: Any) -> None:
    die, status = WAYS_TO_DIE[way]
    check(survivors_of(die, the_call_of(way), -0.2), status, capsys, way)


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS_TO_WAIT)
def test_every_way_to_wait_ends_with_the_death(way: str, capsys: Any) -> None:
    outcomes = survivors_of(kill_oneself, WAYS_TO_WAIT[way], 0.15)
    check(outcomes, -signal.SIGKILL, capsys, way)


@pytest.mark.alone
@pytest.mark.timeout(100)
def test_a_rank_that_writes_a_core_of_a_gigabyte_is_dead_from_the_signal_on(capsys: Any) -> None:
    ended: dict[str, Any] = {}

    def body(rank: ranks.Rank) -> float:
        faults.meet(rank)
        if rank.rank == VICTIM:
            ballast = torch.ones(1 << 28)  # 1 GiB
            os.chdir(rank.directory)  # is removed with all that is in it
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
            rank.sync()
            time.sleep(0.1)
            rank.board[faults.FREE] = ranks.now_ns()
            faults.mark(rank)
            segmentation_fault()
            raise AssertionError(f"it lives with {ballast.sum()}")
        rank.sync()
        said = faults.told(
            faults.all_reduce if rank.rank == 0 else lambda: dist.recv(torch.ones(2), VICTIM)
        )
        told_ms = faults.since_ms(rank)
        assert f"rank {VICTIM} (pid {rank.board[faults.PID_OF + VICTIM]}) died" in said, said
        return told_ms

    def see_the_end(run: Any) -> None:
        end = os.waitid(os.P_PID, run.pids[VICTIM], os.WEXITED | os.WNOWAIT)
        ended["ms"] = (ranks.now_ns() - run.board[faults.FREE]) / 1e6  # the other clock may stand
        ended["dumped"] = end is not None and end.si_code == os.CLD_DUMPED

    outcomes = ranks.outcomes(3, body, limit=60, meanwhile=see_the_end)
    if not ended["dumped"]:
        pattern = open("/proc/sys/kernel/core_pattern").read().strip()
        pytest.skip(f"this machine writes no core (core_pattern is {pattern!r})")
    check_core(outcomes, ended["ms"], capsys)


def check_core(outcomes: list[ranks.Outcome], dead_ms: float, capsys: Any) -> None:
    others = [outcome for outcome in outcomes if outcome.rank != VICTIM]
    for outcome in others:
        assert outcome.ok, ranks.describe(outcome)
    times = [outcome.value for outcome in others]
    with capsys.disabled():
        shown = ", ".join(f"{ms:.1f}" for ms in times)
        print(f"\ncore dump: told after {shown} ms, ended after {dead_ms:.0f} ms", end="")
    assert dead_ms > 2 * faults.TOLD_MS, "the dump was too quick to prove anything"
    assert max(times) <= 10 * faults.told_limit_ms(), "a second"


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_two_deaths_at_once_are_told_as_fast() -> None:
    def body(rank: ranks.Rank) -> float:
        faults.meet(rank)
        if rank.rank in (1, 2):
            time.sleep(0.15)
            faults.mark(rank)
            kill_oneself()
        said = faults.told(faults.all_reduce)
        told_ms = faults.since_ms(rank)
        assert "rank 1 (pid" in said or "rank 2 (pid" in said, said
        return told_ms

    outcomes = ranks.outcomes(5, body, limit=LIMIT_S)
    assert [outcome.exit for outcome in outcomes] == [0, -9, -9, 0, 0]
    for outcome in (outcomes[0], outcomes[3], outcomes[4]):
        assert outcome.ok, ranks.describe(outcome)
        assert outcome.value <= faults.told_limit_ms()


# ---- at the rendezvous ----


def end_quietly() -> None:
    dist.destroy_process_group()
    os._exit(0)


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", [kill_oneself, end_quietly])
def test_a_new_group_does_not_wait_for_who_is_gone_from_another(end: Callable[[], None]) -> None:
    def body(rank: ranks.Rank) -> float:
        faults.meet(rank)
        if rank.rank == VICTIM:
            faults.mark(rank)
            end()
        time.sleep(0.1)
        begun_ns = faults.clock_ns()
        said = faults.told(lambda: dist.new_group(timeout=ranks.seconds(10)))
        assert f"rank {VICTIM} (pid {rank.board[faults.PID_OF + VICTIM]})" in said, said
        return (faults.clock_ns() - begun_ns) / 1e6

    outcomes = ranks.outcomes(3, body, limit=LIMIT_S)
    assert outcomes[VICTIM].exit == (0 if end is end_quietly else -signal.SIGKILL)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, ranks.describe(outcome)
        assert outcome.value <= faults.told_limit_ms()


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_who_comes_to_a_start_that_has_failed_is_told_at_once() -> None:
    def body(rank: ranks.Rank) -> float:
        assert rank.store is not None
        if rank.rank == VICTIM:
            faulthandler.disable()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0.3)  # dies inside the rendezvous
        if rank.rank == 2:
            time.sleep(1.0)
        begun_ns = ranks.now_ns()
        said = faults.told(lambda: rank.group(timeout=10))
        assert "rank 1 (pid" in said and "died" in said, said
        return (ranks.now_ns() - begun_ns) / 1e6

    outcomes = ranks.outcomes(3, body, limit=LIMIT_S)
    assert outcomes[VICTIM].exit == -signal.SIGALRM
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, ranks.describe(outcome)
    assert 200 <= outcomes[0].value <= 300 + faults.told_limit_ms()
    assert outcomes[2].value <= faults.told_limit_ms()


# ---- after a death ----


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_a_poisoned_group_stays_poisoned_and_the_survivors_form_a_new_one() -> None:
    """Four ranks, three deaths, one after the other: each time the rest goes on at once."""

    def body(rank: ranks.Rank) -> list[float]:
        faults.meet(rank)
        survivors = list(range(4))
        again_ms = []
        for victim in (2, 0, 3):
            if rank.rank == victim:
                kill_oneself()
            first = faults.told(faults.all_reduce)
            for call in (dist.barrier, wait_for_work, wait_for_future, exchange_much):
                later = faults.told(call)
                assert f"(pid {rank.board[faults.PID_OF + victim]}) died" in later, later
            assert f"(pid {rank.board[faults.PID_OF + victim]}) died" in first, first
            survivors.remove(victim)
            again_ms.append(
                faults.took_ms(lambda: faults.re_form(rank, f"without {victim}", survivors))
            )
        return again_ms

    outcomes = ranks.outcomes(4, body, limit=LIMIT_S)
    assert [outcome.exit for outcome in outcomes] == [-9, 0, -9, -9]
    assert outcomes[1].ok, ranks.describe(outcomes[1])
    assert len(outcomes[1].value) == 3 and max(outcomes[1].value) < 500


@pytest.mark.timeout(60)
def test_a_death_poisons_only_the_groups_of_the_dead() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        pair = dist.new_group([0, 2])
        if rank.rank == VICTIM:
            kill_oneself()
        faults.told(faults.all_reduce)
        for _ in range(20):
            tensor = torch.ones(3000)
            dist.all_reduce(tensor, group=pair)
            assert torch.all(tensor == 2)

    outcomes = ranks.outcomes(3, body, limit=LIMIT_S)
    assert outcomes[VICTIM].exit == -signal.SIGKILL
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, ranks.describe(outcome)
