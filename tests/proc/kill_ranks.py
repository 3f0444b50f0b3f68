# SPDX-License-Identifier: BSD-3-Clause
"""Kills a rank at a random moment, and checks what the others are told, and when.

A round: 2 to 8 ranks make a group, run a random mix of operations on it and on groups made of it,
destroy everything, and begin again on the same store. At a random moment one of them gets SIGKILL;
in some rounds another one gets SIGSTOP at the same moment and goes on at the end. In every 8th
round the kill waits until the victim destroys a group, and may still come after that short phase.
Every survivor must finish or raise; who raises does so at most PROMISE_MS after the kill, or after
its call began, unless nobody can know: the dead rank had not yet put its join record, which is looked
up in the store.

A SIGKILL is a promise too: the kernel may need long to keep it. So the parent, at real-time
priority, times when the victim became a zombie. And the machine may stand still, or one CPU of it:
a metronome with no other task and the ranks' own priority measures how much longer than asked its
sleeps took, and a client of the store how long that took to answer. What is late, but by no more
than one of these three explains, is reported apart; so is a survivor that waited for a disk, because
the system had thrown its code out of memory.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import re
import signal
import struct
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ranks
from metronome import beats

PROMISE_MS = 100.0
TIMEOUT_S = 1.5  # of the groups: how long a rank waits for one that has not joined
CYCLES = 8
# Words of the board; the second line's are one for each rank.
KILLED_AT, DEAD_AT, OVER, STORE = 0, 1, 2, 3
RAISED_AT, PHASE_OF, BEGUN_AT, QUEUED_OF, READS_OF = 16, 32, 48, 64, 80
PHASES = ("not begun", "making a group", "in a call", "asynchronous", "destroying", "done")
NOT_BEGUN, MAKING, CALLING, ASYNCHRONOUS, DESTROYING, DONE = range(6)
UNHEARD = "the store has no join record of it: "  # begins such a survivor's text


@dataclasses.dataclass
class Round:
    seed: int
    world: int
    victim: int
    stopped: int  # -1: none
    delay_s: float
    destroying: bool  # the victim shall be
    victim_pid: int = 0
    asker: int = 0  # the pid of the rank that asks the store
    board: Any = None
    phase: str = ""  # of the victim, at the kill
    killed: bool = False
    outcomes: list[ranks.Outcome] = dataclasses.field(default_factory=list)
    told_ms: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    stall_ms: float = 0.0  # the metronome's longest sleep too much
    store_ms: float = 0.0  # the store's longest answer
    excused: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    unknowable: int = 0  # ranks that waited for one that had never joined


def plan(seed: int, with_stop: bool) -> Round:
    dice = random.Random(seed)
    world = dice.randint(3 if with_stop else 2, 8)
    victim, other = dice.sample(range(world), 2)
    delay = dice.uniform(0.0, 0.06 + 0.03 * world)
    return Round(seed, world, victim, other if with_stop else -1, delay, seed % 8 == 0)


def enter(rank: ranks.Rank, phase: int) -> None:
    rank.board[PHASE_OF + rank.rank] = phase
    rank.board[BEGUN_AT + rank.rank] = ranks.now_ns()


def one_operation(dice: random.Random, group: Any, rank: ranks.Rank) -> None:
    kind = dice.choice(("reduce", "gather", "flat", "broadcast", "barrier", "async", "async"))
    count = dice.choice((1, 10, 2000, 6000, 40000, 300000))
    root = dice.randrange(rank.world)
    tensor = torch.ones(count)
    enter(rank, ASYNCHRONOUS if kind == "async" else CALLING)
    if kind == "reduce":
        dist.all_reduce(tensor, group=group)
        assert torch.all(tensor == rank.world)
    elif kind == "gather":
        dist.all_gather([torch.empty(count) for _ in range(rank.world)], tensor, group=group)
    elif kind == "flat":
        dist.all_gather_into_tensor(torch.empty(rank.world * count), tensor, group=group)
    elif kind == "broadcast":
        dist.broadcast(tensor, root, group=group)
    elif kind == "barrier":
        dist.barrier(group=group)
    else:
        works = [dist.all_reduce(torch.ones(count), group=group, async_op=True) for _ in range(5)]
        futures = [work.get_future().then(lambda f: f.value()[0].sum()) for work in works[:2]]
        for work in works[dice.randrange(5) :]:
            work.wait()
        for future in futures:
            future.wait()


def program(rank: ranks.Rank, seed: int) -> None:
    dice = random.Random(seed)
    assert rank.store is not None  # to connect takes its time
    for _ in range(CYCLES):
        enter(rank, MAKING)
        rank.init(timeout=ranks.seconds(TIMEOUT_S))
        group = None
        for _ in range(dice.randint(3, 15)):
            one_operation(dice, group, rank)
            if group is None and dice.random() < 0.1:
                enter(rank, MAKING)
                group = dist.new_group(timeout=ranks.seconds(TIMEOUT_S))
            elif group is not None and dice.random() < 0.2:
                enter(rank, DESTROYING)
                dist.destroy_process_group(group)
                group = None
        enter(rank, DESTROYING)
        dist.destroy_process_group()
    enter(rank, DONE)


def had_joined(rank: ranks.Rank, victim: int, told: str) -> bool:
    """Could the ranks know the victim's process when this time-out of the rendezvous began?"""
    found = re.findall(r'rank (\d+) of "([^"]*)": Timed out .*\(generation (\d+)\)', told)
    assert found, told
    finder, group, generation = found[0]
    if group != "default_pg":
        return True  # they are together in the default group
    store = rank._run.clients[rank.rank]

    def has_said(member: int) -> bool:
        key = f"{rank.directory.name}/0//cpu//h/{member}"
        # struct shc_record_head: the generation comes after magic, version, kind and list.
        return store.check([key]) and struct.unpack_from("=q", store.get(key), 24)[0] >= int(
            generation
        )

    assert has_said(int(finder)), f"not even the join record of rank {finder} is there: {told}"
    return has_said(victim)


def survive(rank: ranks.Rank, seed: int, victim: int) -> str:
    """Runs the program. Returns what it raised, after a look at the group that it leaves."""
    try:
        program(rank, seed)
        return ""
    except dist.DistBackendError as error:
        rank.board[RAISED_AT + rank.rank] = ranks.now_ns()
        rank.board[QUEUED_OF + rank.rank] = queued_ns() - rank.board[QUEUED_OF + rank.rank]
        rank.board[READS_OF + rank.rank] = major_faults() - rank.board[READS_OF + rank.rank]
        told = str(error)
    if "at the rendezvous" in told and "Timed out" in told:
        told = told if had_joined(rank, victim, told) else UNHEARD + told
    begun = time.monotonic()
    if dist.is_initialized():
        if "on group" in told:
            try:
                dist.barrier()
                # Another group has failed, and this one has not been needed since.
            except dist.DistBackendError:
                pass
            assert time.monotonic() - begun < 0.5, "the next call did not fail at once"
        begun = time.monotonic()
        dist.destroy_process_group()
        assert time.monotonic() - begun < 1.5, "leaving needed somebody"
    return told


def queued_ns(pid: int | str = "self") -> int:
    """For how long the main thread was ready to run, and no CPU free."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


def major_faults(pid: int | str = "self") -> int:
    """How often it waited for a page from a disk."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[9])


def time_of_death(pid: int) -> int:
    """When the process became a zombie; 0 if this process could not look as soon as it happened."""
    try:
        priority = os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO))
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, priority)
    except PermissionError:
        return 0
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    dead_ns = ranks.now_ns()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return dead_ns


def start_asker(run: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            ask(run)
        finally:
            os._exit(0)
    return pid


def ask(run: Any) -> None:
    while not run.board[OVER] and os.getppid() != 1:
        begun_ns = ranks.now_ns()
        run.clients[-1].check(["asker"])
        run.board[STORE] = max(run.board[STORE], ranks.now_ns() - begun_ns)
        time.sleep(0.002)


def await_destroying(board: Any, rank: int) -> None:
    """Until it does, is done, or has made no progress for a second: then it is killed all the same."""
    deadline = time.monotonic() + 1.0
    while board[PHASE_OF + rank] not in (DESTROYING, DONE) and time.monotonic() < deadline:
        time.sleep(0.0001)


def attack(run: Any, attempt: Round) -> None:
    attempt.victim_pid = run.pids[attempt.victim]
    attempt.asker = start_asker(run)
    attempt.board = run.board
    time.sleep(attempt.delay_s)
    if attempt.destroying:
        await_destroying(run.board, attempt.victim)
    for rank, pid in run.pids.items():
        run.board[QUEUED_OF + rank] = queued_ns(pid)
        run.board[READS_OF + rank] = major_faults(pid)
    if attempt.stopped >= 0:
        os.kill(run.pids[attempt.stopped], signal.SIGSTOP)
    run.board[KILLED_AT] = ranks.now_ns()
    os.kill(attempt.victim_pid, signal.SIGKILL)
    attempt.phase = PHASES[run.board[PHASE_OF + attempt.victim]]
    run.board[DEAD_AT] = time_of_death(attempt.victim_pid)
    if attempt.stopped >= 0:
        time.sleep(0.3)
        os.kill(run.pids[attempt.stopped], signal.SIGCONT)


def judge_time(attempt: Round, rank: int, told: str, board: list[int]) -> None:
    since_ns = max(board[KILLED_AT], board[BEGUN_AT + rank])  # its blocked, or its next, call
    told_ms = (board[RAISED_AT + rank] - since_ns) / 1e6
    where = "in a call" if "on group" in told else "at the rendezvous"
    attempt.told_ms.setdefault(where, []).append(told_ms)
    if board[RAISED_AT + rank] < board[KILLED_AT]:
        attempt.wrong.append(f"rank {rank} raised before the kill: {told}")
    if told_ms <= PROMISE_MS:
        return
    late = f"rank {rank} was told {told_ms:.1f} ms after the kill"
    dead_ms = (board[DEAD_AT] - board[KILLED_AT]) / 1e6 if board[DEAD_AT] else 0.0
    if told_ms - dead_ms <= PROMISE_MS:
        attempt.excused.append(f"{late}; the kernel took {dead_ms:.1f} ms to kill")
    elif told_ms - attempt.stall_ms <= PROMISE_MS:
        attempt.excused.append(f"{late}; the machine stood still for {attempt.stall_ms:.1f} ms")
    elif board[READS_OF + rank] > 0:
        attempt.excused.append(f"{late}; it read {board[READS_OF + rank]} pages from a disk")
    elif "on group" not in told and told_ms - attempt.store_ms <= PROMISE_MS:
        attempt.excused.append(f"{late}; the store took {attempt.store_ms:.1f} ms to answer")
    else:
        attempt.wrong.append(
            f"{late} (killed in {dead_ms:.1f} ms, longest stall {attempt.stall_ms:.1f} ms, "
            f"store {attempt.store_ms:.1f} ms, "
            f"without a CPU for {board[QUEUED_OF + rank] / 1e6:.1f} ms): {told}"
        )


def judge_text(attempt: Round, rank: int, told: str) -> None:
    who = f"rank {attempt.victim} (pid {attempt.victim_pid})"
    if who in told:
        return
    if "Timed out" in told and attempt.stall_ms > 500 * TIMEOUT_S:
        attempt.excused.append(f"rank {rank} ran out of time in {attempt.stall_ms:.1f} ms of stall")
    else:
        attempt.wrong.append(f"rank {rank} was not told of {who}: {told}")


def judge(attempt: Round, board: list[int]) -> None:
    attempt.stall_ms = beats.stall_ms()
    attempt.store_ms = board[STORE] / 1e6
    for outcome in attempt.outcomes:
        if outcome.rank == attempt.victim:
            attempt.killed = outcome.exit == -signal.SIGKILL
            if not attempt.killed and not outcome.ok:
                attempt.wrong.append(f"the victim: {ranks.describe(outcome)}")
        elif not outcome.ok:
            attempt.wrong.append(ranks.describe(outcome))
        elif outcome.value.startswith(UNHEARD):
            attempt.unknowable += 1
            if f"rank {attempt.victim} (has not come)" not in outcome.value:
                attempt.wrong.append(f"rank {outcome.rank} does not say who: {outcome.value}")
        elif outcome.value:
            judge_text(attempt, outcome.rank, outcome.value)
            if outcome.rank != attempt.stopped:
                judge_time(attempt, outcome.rank, outcome.value, board)
    attempt.wrong += [f"left in /dev/shm: {name}" for name in ranks.leftovers()]


def one_round(seed: int, with_stop: bool) -> Round:
    attempt = plan(seed, with_stop)
    board: list[int] = []
    beats.forget()
    try:
        attempt.outcomes = ranks.outcomes(
            attempt.world,
            survive,
            seed,
            attempt.victim,
            limit=30,
            meanwhile=lambda run: attack(run, attempt),
            keep_board=board,
        )
        judge(attempt, board)
    except ranks.Hang as hang:
        attempt.wrong.append(str(hang))
    finally:
        if attempt.asker:
            attempt.board[OVER] = 1
            os.waitpid(attempt.asker, 0)
            attempt.board = None
    return attempt


def spread(values: list[float]) -> str:
    values = sorted(values)
    cut = [values[min(len(values) - 1, int(q * len(values)))] for q in (0.5, 0.9, 0.99)]
    return "median {:.2f} ms, p90 {:.2f}, p99 {:.2f}, max {:.2f}".format(*cut, values[-1])


def report(name: str, rounds: list[Round]) -> str:
    killed = [attempt for attempt in rounds if attempt.killed]
    phases = collections.Counter(attempt.phase for attempt in killed)
    lines = [
        f"{name}: {len(rounds)} rounds, {len(killed)} kills, of ranks that were "
        + ", ".join(f"{phase} ({phases[phase]})" for phase in PHASES if phases[phase]),
        f"    {sum(attempt.unknowable for attempt in rounds)} survivors waited for a rank that "
        "had not joined",
    ]
    for where in ("in a call", "at the rendezvous"):
        told = [ms for attempt in rounds for ms in attempt.told_ms.get(where, [])]
        if told:
            lines.append(f"    {len(told)} survivors told {where}: {spread(told)}")
    lines += [f"    not counted: {text}" for attempt in rounds for text in attempt.excused]
    return "\n".join(lines)


def complaints(rounds: list[Round]) -> str:
    """What went wrong, and how to repeat it."""
    return "\n".join(
        f"seed {attempt.seed}: world {attempt.world}, victim {attempt.victim} ({attempt.phase}), "
        f"stopped {attempt.stopped}, after {attempt.delay_s * 1000:.1f} ms: {text}"
        for attempt in rounds
        for text in attempt.wrong
    )
