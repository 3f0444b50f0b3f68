# SPDX-License-Identifier: BSD-3-Clause
"""A long wait reports which rank is late; a time-out reports where every rank is."""

from __future__ import annotations

import glob
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import faults
import pytest
import ranks
import system_calls
import torch
import torch.distributed as dist
from metronome import clock_ns

LIMIT_S = 20.0
LATE_MS = "200"
TOLD_OF = 24  # words of the board: that rank has been told


def continue_after(seconds: float) -> Any:
    """Sends SIGCONT to rank 1, that long after it has stopped."""

    def beside(run: Any) -> None:
        faults.wait_for(run, faults.READY)
        time.sleep(0.05)
        state = open(f"/proc/{run.pids[1]}/stat").read().rsplit(")", 1)[1].split()[0]
        assert state == "T", "it was to be stopped"
        time.sleep(seconds)
        os.kill(run.pids[1], signal.SIGCONT)

    return beside


@pytest.mark.timeout(40)
@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_stopped_rank_is_named_as_stopped_and_may_go_on(form: str) -> None:
    def body(rank: ranks.Rank) -> tuple[list[float], int]:
        faults.meet(rank)
        if rank.rank == 1:
            faults.stop_oneself_until_continued(rank)
        tensor = torch.arange(1000.0) * (rank.rank + 1)
        work = dist.all_reduce(tensor, async_op=form == "async")
        if work is not None:
            work.wait()
        return tensor.tolist(), rank.board[faults.PID_OF + 1]

    outcomes = ranks.outcomes(
        3, body, limit=LIMIT_S, env={"SHMCOLL_LATE_MS": LATE_MS}, meanwhile=continue_after(1.1)
    )
    # A busy machine may delay a rank that makes the group, too.
    said = [
        [line for line in outcome.output.splitlines() if "at the rendezvous" not in line]
        for outcome in outcomes
    ]
    assert sum(map(len, said)) >= 2, "after 200 ms, then after 400, by one of the two that wait"
    for outcome, lines in zip(outcomes, said):
        assert outcome.ok, ranks.describe(outcome)
        values, pid = outcome.value
        assert values == (torch.arange(1000.0) * 6).tolist()
        if outcome.rank == 1:
            continue
        for line in lines:
            assert f"rank {outcome.rank}: all_reduce #2 (float32[1000], sum)" in line, line
            assert f"rank 1 (pid {pid}, stopped" in line or (
                f"rank 1 (pid {pid}" in line and "stopped" in line
            ), line
            assert "last call: all_reduce #1" in line, line
            assert "rank 2 (pid" not in line and "rank 0 (pid" not in line, line


@pytest.mark.alone
@pytest.mark.timeout(40)
def test_the_time_between_late_lines_doubles() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        if rank.rank == 1:
            time.sleep(2.2)
        dist.barrier()

    outcomes = ranks.outcomes(2, body, limit=LIMIT_S, env={"SHMCOLL_LATE_MS": "100"})
    assert outcomes[0].ok, ranks.describe(outcomes[0])
    waited = [float(text) for text in re.findall(r"waited ([\d.]+) s", outcomes[0].output)]
    late_s = 0.01 + faults.told_limit_ms() / 1000  # a busy machine makes a line so much later
    assert waited == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6], abs=late_s), outcomes[0].output


@pytest.mark.timeout(40)
def test_who_waits_briefly_says_nothing() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        time.sleep(0.3 * rank.rank)
        dist.barrier()

    for outcome in ranks.outcomes(3, body, limit=LIMIT_S):
        assert outcome.ok and outcome.output == "", ranks.describe(outcome)


@pytest.mark.alone
@pytest.mark.timeout(40)
@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_time_out_names_who_is_missing_and_the_call_of_each(form: str) -> None:
    def body(rank: ranks.Rank) -> str:
        faults.meet(rank, timeout=ranks.seconds(0.6))
        if rank.rank == 1:
            faults.stop_oneself_until_continued(rank)
            return faults.told(dist.barrier)
        if rank.rank == 2:
            time.sleep(1.2)
            return faults.told(dist.barrier)
        begun, begun_ns = time.monotonic(), faults.clock_ns()

        def call() -> None:
            work = dist.all_reduce(torch.ones(4), async_op=form == "async")
            if work is not None:
                work.wait()

        said = faults.told(call)
        assert time.monotonic() - begun >= 0.59
        took_ms = (faults.clock_ns() - begun_ns) / 1e6
        assert took_ms <= 600 + faults.told_limit_ms()
        assert faults.told(dist.barrier) != "", "the group is poisoned"
        return said

    said, stopped, slow = ranks.run(3, body, limit=LIMIT_S, meanwhile=continue_after(1.0))
    assert "all_reduce #2 (float32[4], sum)" in said and faults.timed_out_after(said) >= 0.6, said
    assert re.search(r"rank 1 \(pid \d+.*stopped.*last call: all_reduce #1", said), said
    assert re.search(r"rank 2 \(pid \d+.*last call: all_reduce #1", said), said
    for later in (stopped, slow):
        assert "Timed out" in later and "found by rank 0" in later, later


@pytest.mark.timeout(40)
def test_a_wait_with_a_time_out_of_its_own_names_who_is_missing() -> None:
    def body(rank: ranks.Rank) -> str:
        faults.meet(rank)
        if rank.rank == 1:
            faults.wait_for(rank, faults.FREE)
            faults.all_reduce()
            return ""
        tensor = torch.ones(4)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        said = faults.told(lambda: work.wait(ranks.seconds(0.3)))
        rank.board[faults.FREE] = 1
        work.wait()
        assert torch.all(tensor == 2), "the operation itself went on"
        return said

    said = ranks.run(2, body, limit=LIMIT_S)[0]
    assert "all_reduce #2" in said and "rank 1 (pid" in said and "Timed out" in said, said


@pytest.mark.alone
@pytest.mark.timeout(40)
def test_a_time_out_at_the_rendezvous_names_who_has_not_come() -> None:
    def body(rank: ranks.Rank) -> tuple[str, float, float]:
        if rank.rank == 2:
            faults.wait_for(rank, faults.FREE)
            return faults.told(lambda: rank.group(timeout=60)), 0.0, 0.0
        assert rank.store is not None
        begun, begun_ns = time.monotonic(), faults.clock_ns()
        said = faults.told(lambda: rank.group(timeout=0.5))
        took, counted_ms = time.monotonic() - begun, (faults.clock_ns() - begun_ns) / 1e6
        assert counted_ms <= 500 + faults.told_limit_ms()
        rank.board[faults.FREE] = 1
        return said, took, took * 1000 - counted_ms

    said, took, lost_ms = zip(*ranks.run(3, body, limit=LIMIT_S))
    assert max(took) >= 0.45, "of the ranks that came, the first one waits for all of the time"
    for rank in (0, 1):
        assert faults.timed_out_after(said[rank]) >= 0.5, said
        assert " s at the rendezvous" in said[rank], said
        # The store has 100 ms to say it. Its process may not have got a CPU meanwhile.
        silent = lost_ms[rank] >= 20 and "does not answer" in said[rank]
        assert silent or "rank 2 (has not come)" in said[rank], (said, lost_ms)
    assert "Timed out" in said[2], "who comes later is told of the failed start"


@pytest.mark.timeout(40)
def test_who_stops_at_the_rendezvous_is_named() -> None:
    class Stopping(dist.Store):
        """Stops its rank when it has the offer, and is about to give its verdict."""

        def __init__(self, rank: ranks.Rank) -> None:
            super().__init__()
            self.rank = rank
            self.inner = dist.PrefixStore("test", rank.store)

        def set(self, key: str, value: Any) -> None:
            self.inner.set(key, value)

        def get(self, key: str) -> bytes:
            return self.inner.get(key)

        def add(self, key: str, value: int) -> int:
            return self.inner.add(key, value)

        def check(self, keys: list[str]) -> bool:
            return self.inner.check(keys)

        def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
            now = self.inner.compare_set(key, expected, desired)
            if key.endswith("/o") and bytes(now) != bytes(expected):
                faults.stop_oneself_until_continued(self.rank)
            return now

    def body(rank: ranks.Rank) -> None:
        if rank.rank != 1:
            rank.group().barrier().wait()
            return
        import shmcoll

        options = shmcoll.Options(ranks.seconds(ranks.TIMEOUT_S))
        options.group_name = "test"
        group = shmcoll._glue.make(Stopping(rank), rank.rank, rank.world, options)
        group.barrier().wait()

    outcomes = ranks.outcomes(
        3, body, limit=LIMIT_S, env={"SHMCOLL_LATE_MS": LATE_MS}, meanwhile=continue_after(0.8)
    )
    for outcome in outcomes:
        assert outcome.ok, ranks.describe(outcome)
    for outcome in (outcomes[0], outcomes[2]):
        lines = [line for line in outcome.output.splitlines() if "at the rendezvous" in line]
        # On a busy machine a rank that runs may come late, and rank 1 to its stop.
        stopped = [line for line in lines if "stopped" in line]
        if outcome.rank == 0:
            assert stopped, outcome.output
        for line in stopped:
            assert re.search(r"for rank 1 \(pid \d+, stopped", line), line
        assert lines, outcome.output


@pytest.mark.timeout(40)
@pytest.mark.parametrize("what", ["all_reduce", "recv", "rendezvous"])
def test_the_time_in_which_a_rank_is_stopped_does_not_count(what: str) -> None:
    def wait(rank: ranks.Rank) -> None:
        if what == "all_reduce":
            dist.all_reduce(torch.ones(4))
        elif what == "rendezvous":
            rank.group(timeout=1.5 if rank.rank == 1 else 10).barrier().wait()
        elif rank.rank == 1:
            dist.recv(torch.ones(4), 0)
        else:
            dist.send(torch.ones(4), 1)

    def body(rank: ranks.Rank) -> None:
        def stop() -> None:
            faults.stop_oneself_until_continued(rank)
            rank.board[faults.FREE] = 1

        if what != "rendezvous":
            faults.meet(rank, timeout=ranks.seconds(1.5 if rank.rank == 1 else 10))
        if rank.rank == 1:
            threading.Timer(0.2, stop).start()
        else:
            faults.wait_for(rank, faults.FREE)
            time.sleep(0.1)
        wait(rank)

    ranks.run(2, body, limit=LIMIT_S, meanwhile=continue_after(3.0))


@pytest.mark.timeout(40)
def test_crossed_groups_are_both_named_while_waiting_and_at_the_time_out() -> None:
    def body(rank: ranks.Rank) -> str:
        faults.meet(rank)
        first, second = (dist.new_group([0, 1], timeout=ranks.seconds(0.8)) for _ in range(2))
        call = (
            (lambda: dist.all_reduce(torch.ones(3), group=first))
            if rank.rank == 0
            else (lambda: dist.broadcast(torch.ones(4), 0, group=second))
        )
        said = faults.told(call)
        rank.sync()  # a rank that ends first would have left
        return said

    outcomes = ranks.outcomes(2, body, limit=LIMIT_S, env={"SHMCOLL_LATE_MS": LATE_MS})
    theirs = ("broadcast #1 (float32[4], root 0)", "all_reduce #1 (float32[3], sum)")
    for outcome, other, own_group, other_group in zip(outcomes, theirs, "12", "21"):
        assert outcome.ok, ranks.describe(outcome)
        # A busy machine may delay a rank that makes the groups, too.
        lines = [one for one in outcome.output.splitlines() if "at the rendezvous" not in one]
        late = [one for one in lines if "DEADLOCK: " not in one]  # tests/python/test_deadlock.py
        for said in (outcome.value, *late):
            assert f'on group "{own_group}"' in said, said
            told = re.search(
                f'in group "{other_group}"( it is in|, which has failed, its last call was) (.*), '
                "which this rank has not",
                said,
            )
            assert told and told[2] == other, said
        assert len(lines) >= 2


@pytest.mark.timeout(40)
def test_who_has_gone_on_from_a_group_that_failed_is_not_looked_for_there() -> None:
    def body(rank: ranks.Rank) -> str:
        faults.meet(rank, timeout=ranks.seconds(12))  # a busy machine is late to make groups, too
        first = dist.new_group(timeout=ranks.seconds(1))
        second = dist.new_group(timeout=ranks.seconds(3))
        if rank.rank == 1:
            time.sleep(2)
            said = faults.told(lambda: dist.barrier(group=second))
            if rank.world == 2:
                rank.sync()
            return said
        faults.told(lambda: dist.all_reduce(torch.ones(3), group=first))
        if rank.world == 3:  # it goes on to another group
            return faults.told(dist.barrier)
        rank.sync()  # a rank that ends first would have left
        return ""

    for world, where in (
        (2, 'in group "1", which has failed, its last call was all_reduce #1'),
        (3, 'in group "default_pg" it is in barrier #2'),
    ):
        said = ranks.run(world, body, limit=LIMIT_S)[1]
        assert where in said, said


def sleeps() -> int:
    """How often this process's threads have given up their CPUs to wait."""
    lines = [line for task in glob.glob("/proc/self/task/*/status") for line in open(task)]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


@pytest.mark.timeout(60)
@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (5, 16),
    reason="needs futex_waitv",
)
def test_a_rank_that_waits_long_sleeps_without_slices() -> None:
    """In slices of 10 ms it would wake up some 100 times in each wait. So it does where the kernel lacks the call."""

    def body(rank: ranks.Rank) -> list[int]:
        if rank.rank == 2:
            system_calls.refuse(system_calls.FUTEX_WAITV)
        faults.meet(rank)
        if rank.rank == 1:
            time.sleep(0.1)
            dist.barrier()  # wakes whatever sleeps at the beginning
        else:
            dist.barrier()
        return [count(rank, way) for way in WAYS]

    def count(rank: ranks.Rank, way: Callable[[int], Any]) -> int:
        rank.sync()
        if rank.rank == 1:
            time.sleep(1.2)
        before = sleeps()
        way(rank.rank)
        return sleeps() - before

    counts = ranks.run(3, body, limit=40)
    assert max(counts[0]) < 45, counts[0]
    assert min(counts[2]) > 60, counts[2]


def exchange(rank: int, count: int) -> None:
    """Ranks 0 and 2 send that much to rank 1, or receive it from rank 1 if it is negative."""
    if rank == 1:
        for peer in (0, 2):
            if count > 0:
                dist.recv(torch.ones(count), peer)
            else:
                dist.send(torch.ones(-count), peer)
    elif count > 0:
        dist.send(torch.ones(count), 1)
    else:
        dist.recv(torch.ones(-count), 1)


WAYS: tuple[Callable[[int], Any], ...] = (
    lambda rank: dist.all_reduce(torch.ones(2)),
    lambda rank: dist.all_reduce(torch.ones(2), async_op=True).wait(),
    lambda rank: exchange(rank, -2),
    lambda rank: exchange(rank, 1 << 15),  # they wait for CTS
)


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["all_reduce", "recv"])
def test_a_parked_rank_that_is_stopped_keeps_a_death_from_nobody(way: str) -> None:
    """The kernel wakes one thread of those that sleep on a life word. That may not be the one that is stopped."""

    def body(rank: ranks.Rank) -> float:
        faults.meet(rank)
        rank.sync()
        if rank.rank == 1:
            time.sleep(LIMIT_S)
        said = faults.told(
            faults.all_reduce if way == "all_reduce" else lambda: dist.recv(torch.ones(2), 1)
        )
        told_ms = faults.since_ms(rank)
        rank.board[TOLD_OF + rank.rank] = 1
        assert "rank 1 (pid" in said and "died" in said, said
        return told_ms

    def stop_and_kill(run: Any) -> None:
        time.sleep(2)  # they are made by then, or the test shows less
        os.kill(run.pids[2], signal.SIGSTOP)
        time.sleep(0.05)
        run.board[faults.MOMENT] = clock_ns()
        os.kill(run.pids[1], signal.SIGKILL)
        faults.wait_for(run, TOLD_OF)
        os.kill(run.pids[2], signal.SIGCONT)

    outcomes = ranks.outcomes(3, body, limit=LIMIT_S, meanwhile=stop_and_kill)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.ok, ranks.describe(outcome)
    assert outcomes[0].value <= faults.told_limit_ms()
