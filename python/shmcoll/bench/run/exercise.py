# SPDX-License-Identifier: BSD-3-Clause
"""Runs the prepared calls of a rank: times them, and checks them.

A point has one call, or several that differ only in their buffers: ``--cache cold`` and
``--mode throughput`` take them in turn. Each ``--mode`` has an exercise. Its check runs the calls as
its timing does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from shmcoll.bench.plan import WINDOW
from shmcoll.bench.run.startline import MAX_COUNT, StartLine

if TYPE_CHECKING:
    from shmcoll.bench.run.calls import Call, Context

_CALIBRATIONS = 8
_CALIBRATION = 32  # amount to compute

Readings = tuple[list[int], list[int]]  # called, returned: the clock in ns, of each iteration


class Latency:
    """One operation after the other."""

    at_once = 1  # operations in flight

    def __init__(self, calls: Sequence[Call], context: Context) -> None:
        self._calls = calls
        self._context = context
        self._line = context.line

    def check(self, salt: int) -> int:
        """Wrong elements on this rank, over all calls; each has values of its own."""
        wrong = 0
        salted = [(call, salt + (k << 16)) for k, call in enumerate(self._calls)]
        for first in range(0, len(salted), self.at_once):
            batch = salted[first : first + self.at_once]
            for call, own in batch:
                call.give(own)
            _finish([call.run(own) for call, own in batch])
            wrong += sum(call.take(own) for call, own in batch)
        return wrong

    def time(self, iterations: int, budget_ns: int) -> list[Readings]:
        """At least one iteration, and as many as fit. The readings of each phase of them."""
        run = self._calls[0].run if len(self._calls) == 1 else self._run
        return [_tight(self._line, run, iterations, budget_ns)]

    def _run(self, i: int) -> Any:
        return self._calls[i % len(self._calls)].run(i)


class Throughput(Latency):
    """A window of operations under way; an iteration is a whole window."""

    at_once = WINDOW

    def time(self, iterations: int, budget_ns: int) -> list[Readings]:
        return [_tight(self._line, self._window, iterations, budget_ns)]

    def _window(self, i: int) -> None:
        _finish([self._run(i * WINDOW + k) for k in range(WINDOW)])


class Skew(Latency):
    """Another rank comes late in each iteration."""

    def __init__(self, calls: Sequence[Call], context: Context, skew_ns: int) -> None:
        super().__init__(calls, context)
        self._skew_ns = skew_ns

    def time(self, iterations: int, budget_ns: int) -> list[Readings]:
        return _stepwise(self._line, [self._step], iterations, budget_ns)

    def _step(self, i: int) -> tuple[int, int]:
        late = i % self._context.world_size == self._context.rank
        before = monotonic_ns()
        if late:
            end = before + self._skew_ns
            while (before := monotonic_ns()) < end:
                pass
        # The root stays for a turn of the late ranks: each pair of them occurs.
        self._calls[i % len(self._calls)].run(i // self._context.world_size)
        return before, monotonic_ns()


class Overlap(Latency):
    """The operation during a computation of about its length: both together, then each alone."""

    def __init__(
        self, calls: Sequence[Call], context: Context, compute: Callable[[int], object]
    ) -> None:
        super().__init__(calls, context)
        self._compute = compute  # of the amount
        self._amount = 0  # the same in warming up and in the round

    def time(self, iterations: int, budget_ns: int) -> list[Readings]:
        if not self._amount:
            self._amount = self._calibrated()
        steps = [self._together, self._operation, self._computation]
        return _stepwise(self._line, steps, iterations, budget_ns)

    def _calibrated(self) -> int:
        """Returns how much this rank can compute during one operation."""
        operation, compute = [], []
        for i in range(_CALIBRATIONS):
            self._line.wait()
            before, after = self._operation(i)
            operation.append(after - before)
            before = monotonic_ns()
            self._compute(_CALIBRATION)
            compute.append(monotonic_ns() - before)
        return max(1, round(_CALIBRATION * median(operation) / median(compute)))

    def _together(self, i: int) -> tuple[int, int]:
        before = monotonic_ns()
        work = self._calls[(2 * i) % len(self._calls)].run(i)
        self._compute(self._amount)
        _finish([work])
        return before, monotonic_ns()

    def _operation(self, i: int) -> tuple[int, int]:
        before = monotonic_ns()
        _finish([self._calls[(2 * i + 1) % len(self._calls)].run(i)])
        return before, monotonic_ns()

    def _computation(self, i: int) -> tuple[int, int]:
        before = monotonic_ns()
        self._compute(self._amount)
        return before, monotonic_ns()


def _finish(works: Sequence[Any]) -> None:
    """Waits for asynchronous works. A synchronous call has none."""
    for work in works:
        if work is not None:
            work.wait()


def _tight(
    line: StartLine, run: Callable[[int], object], iterations: int, budget_ns: int
) -> Readings:
    """While rank 0 expects another iteration to fit into the budget."""
    called: list[int] = []
    returned: list[int] = []
    begin = monotonic_ns()
    count = line.wait(1)
    while count > 0:
        for _ in range(count):
            before = monotonic_ns()
            run(len(called))
            after = monotonic_ns()
            called.append(before)
            returned.append(after)
        # At most as many as before: one fast iteration says little about the next hundred.
        done = len(called)
        count = line.wait(min(_fitting(done, iterations, begin, budget_ns), done, MAX_COUNT))
    return called, returned


def _stepwise(
    line: StartLine,
    steps: Sequence[Callable[[int], tuple[int, int]]],
    iterations: int,
    budget_ns: int,
) -> list[Readings]:
    """An iteration is these steps, each from a common start. Readings of each step."""
    readings: list[Readings] = [([], []) for _ in steps]
    begin = monotonic_ns()
    done = 0
    while line.wait(min(1, _fitting(done, iterations, begin, budget_ns)) if done else 1):
        for k, step in enumerate(steps):
            if k > 0:
                line.wait()
            before, after = step(done)
            readings[k][0].append(before)
            readings[k][1].append(after)
        done += 1
    return readings


def _fitting(done: int, iterations: int, begin: int, budget_ns: int) -> int:
    """Returns how many more iterations fit into the time."""
    passed = monotonic_ns() - begin
    return max(0, min((budget_ns - passed) * done // passed, iterations - done))
