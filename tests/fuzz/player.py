# SPDX-License-Identifier: BSD-3-Clause
"""One rank plays its part of a program, and says what came out wrong."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import threading
import time
import traceback
import warnings
from typing import Any

import torch
import torch.distributed as dist

from calls import CALLS, Here, Later
from expected import expected
from program import KINDS, MAX_WORLD, End, Program
from ranks import Rank
from values import Cell, same_bytes

import shmcoll

TIMEOUT_S = 20.0  # of every operation


@dataclasses.dataclass
class Part:
    """This rank's part of a step that has begun."""

    here: Here
    end: End
    due: int  # the step after which it is ended
    after: list[Cell] = dataclasses.field(default_factory=list)  # the outputs when it had ended


class Player:
    def __init__(self, program: Program, rank: Rank, number: int) -> None:
        self.program = program
        self.rank = rank
        self.number = number  # of the program among those of these processes
        self.groups: dict[int, dist.ProcessGroup] = {}
        self.parts: list[Part] = []  # that have ended
        self.complaints: list[str] = []

    def play(self) -> str:
        """Complaints, or "". Raises what torch.distributed raises."""
        self._make_groups()
        numbers = sorted(set(map(self.program.thread_of, range(len(self.program.groups) + 1))))
        if len(numbers) == 1:
            self._thread(numbers[0])
        else:
            threads = [threading.Thread(target=self._thread, args=(n,)) for n in numbers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if not self.complaints:
            for part in self.parts:
                self._compare(part)
        dist.destroy_process_group()
        return "\n".join(self.complaints)

    def _make_groups(self) -> None:
        timeout = datetime.timedelta(seconds=TIMEOUT_S)
        store = dist.PrefixStore(f"program{self.number}", self.rank.store)
        options = dict(self.program.options)
        own = {"pg_options": shmcoll.Options(timeout, **options)} if options else {}
        self.rank.init(store=store, timeout=timeout, **own)
        assert dist.group.WORLD is not None
        self.groups[0] = dist.group.WORLD
        for i, members in enumerate(self.program.groups):
            own = {"pg_options": shmcoll.Options(timeout, **options)} if options else {}
            made = dist.new_group(list(members), timeout=timeout, **own)
            if self.rank.rank in members:
                self.groups[i + 1] = made

    def _thread(self, number: int) -> None:
        try:
            self._play_thread(number)
        except BaseException as error:
            self.complaints.append(told(error, self.rank.rank))

    def _play_thread(self, number: int) -> None:
        begun: list[Part] = []
        for index, step in enumerate(self.program.steps):
            if self.program.thread_of(step.group) != number:
                continue
            if self.rank.rank in self.program.members(step.group):
                begun.append(self._begin(index))
            begun = self._end_due(begun, index)
        for part in reversed([part for part in begun if part.end.how != "drop"]):
            self._end(part)
        for group, members in enumerate([range(self.program.world), *self.program.groups]):
            mine = self.program.thread_of(group) == number and self.rank.rank in members
            if mine and self.program.drops(group):
                dist.barrier(self.groups[group])
        for part in begun:
            if part.end.how == "drop":
                self._settle(part)

    # ---- one step ----

    def _begin(self, index: int) -> Part:
        step = self.program.steps[index]
        me = self.program.members(step.group).index(self.rank.rank)
        end = step.ends[me % len(step.ends)]
        here = Here(self.program, index, self.rank.rank, self.groups[step.group], end.how == "sync")
        time.sleep(step.delays_ms[me % len(step.delays_ms)] / 1000)
        self._arrive(index)
        CALLS[step.kind](here)
        part = Part(here, end, index + end.lag)
        if end.how == "drop" and not any(isinstance(work, Later) for work in here.works):
            here.works.clear()
        elif end.how == "drop":
            part.end = End("wait", end.lag)
        return part

    def _end_due(self, begun: list[Part], index: int) -> list[Part]:
        """Ends what is due after this step; returns the rest."""
        left = []
        for part in begun:
            if part.end.how == "drop" or part.due > index:
                left.append(part)
            else:
                self._end(part)
        return left

    def _end(self, part: Part) -> None:
        for work in part.here.works:
            _finish(work, part.end.how)
        self._settle(part)

    def _settle(self, part: Part) -> None:
        """The operation is over: its memory is this rank's alone."""
        here = part.here
        here.works.clear()
        if here.step.kind == "barrier":
            self._meet(part)
        for before, cell in zip(here.before, here.inputs):
            if not same_bytes(before.memory, cell.memory):
                self._complain(part, "an input was written to")
            cell.scribble()
        here.keep_sparse()
        part.after = [cell.copy() for cell in here.outputs]
        self.parts.append(part)

    # ---- the meaning of a barrier, by words that all ranks share ----

    def _word(self, group: int, rank: int) -> int:
        return group * MAX_WORLD + rank

    def _arrive(self, index: int) -> None:
        step = self.program.steps[index]
        if step.kind == "barrier":
            self.rank.board[self._word(step.group, self.rank.rank)] = index + 1

    def _meet(self, part: Part) -> None:
        for rank in part.here.members:
            if self.rank.board[self._word(part.here.step.group, rank)] <= part.here.index:
                self._complain(part, f"the barrier ended before rank {rank} came to it")

    # ---- what came out ----

    def _complain(self, part: Part, what: str) -> None:
        here = part.here
        self.complaints.append(
            f"step {here.index}, {here.step!r}: rank {self.rank.rank} (group rank {here.me}): {what}"
        )

    def _compare(self, part: Part) -> None:
        here, kind = part.here, KINDS[part.here.step.kind]
        want = expected(self.program, here.index, here.me)
        exact = not kind.reduces or (here.step.kind == "reduce" and not here.is_root)
        if kind.size == "objects":
            if here.objects != want:
                self._complain(part, "other objects than expected")
            return
        if len(want) != len(part.after):
            self._complain(part, f"{len(part.after)} outputs instead of {len(want)}")
        for i, (cell, values, now) in enumerate(zip(part.after, want, here.outputs)):
            text = cell.complain(values, exact)
            if text:
                self._complain(part, f"output {i}: {text}")
            if not same_bytes(cell.memory, now.memory):
                self._complain(part, f"output {i} was written to after the end")


def _finish(work: Any, how: str) -> None:
    is_future = isinstance(work, torch._C.Future)  # all_reduce_coalesced() gives one
    if isinstance(work, Later) or how in ("wait", "sync") or (is_future and how == "future"):
        work.wait()
    elif how == "future":
        work.get_future().wait()
    elif how == "then":
        future = work if is_future else work.get_future()
        future.then(lambda done: done.value()).wait()
    elif how == "thread":
        thread = threading.Thread(target=work.wait)
        thread.start()
        thread.join()
    elif how == "poll":
        over = work.done if is_future else work.is_completed
        while not over():
            time.sleep(0.0002)
        work.wait()
    else:
        raise ValueError(how)


def told(error: BaseException, rank: int) -> str:
    trace = "".join(traceback.format_exception(error, chain=False))
    return f"rank {rank}: {type(error).__name__}: {error}\n{trace}"


@functools.cache
def _be_quiet() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def play(program: Program, rank: Rank, number: int) -> str:
    _be_quiet()
    return Player(program, rank, number).play()
