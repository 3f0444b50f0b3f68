# SPDX-License-Identifier: BSD-3-Clause
"""Do the rounds of a row agree, and was the machine busy with something else?

The bench, ``compare``, benchmarks/goals.py and benchmarks/peers.py all use this judgement.

Rounds agree if their upper quartile is at most DISAGREE times the lower one. A quarter of the rounds may
be far off on either side, as stalls are. Rounds of two kinds disagree.

The machine is busy if other processes, or the host of a virtual machine (steal), use more than
BUSY_SHARE of the CPUs that the ranks may run on, and more than the error of ticks. The use by others is
what /proc/stat counts on these CPUs, less the CPU time of our own processes. Time in interrupts is left
out: some kernels count it apart, and the backends' own sockets would look like another process.

This module imports nothing of the package, so that programs can load it by its path, without torch.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import quantiles

DISAGREE = 1.5  # upper quartile of a row's rounds / lower quartile
BUSY_SHARE = 0.1  # of the CPUs that the ranks may run on
LEAST_S = 0.1  # a shorter period has too few ticks of /proc/stat to be judged
MARK = "~"  # of rounds that disagree
DOUBT = f"varied by more than {DISAGREE:g}x between rounds, or measured on a busy machine"

_BUSY_FIELDS = (0, 1, 2)  # user (guests included), nice, system
_STEAL_FIELD = 7
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LIBC = ctypes.CDLL(None)


def spread(rounds: Sequence[float]) -> float:
    """Upper quartile / lower quartile; 1 if there are fewer than two rounds."""
    if len(rounds) < 2:
        return 1.0
    low, _, high = quantiles(rounds, n=4, method="inclusive")
    return high / low if low > 0 else float("inf")


def disagree(rounds: Sequence[float]) -> bool:
    return spread(rounds) > DISAGREE


@dataclass(frozen=True)
class Activity:
    """What the machine did during a period. Times are CPU seconds on the watched CPUs."""

    seconds: float  # that passed
    cpus: int  # that were watched
    own_s: float  # of our processes
    busy_s: float | None  # of all processes; None: /proc/stat does not tell
    steal_s: float | None
    load: float | None = None  # average of a minute, the higher one of begin and end
    runnable: float | None = None  # processes and threads except this one, mean of begin and end

    @property
    def others(self) -> float | None:
        """How many CPUs other processes used. None if unknown, or if the period was too short.

        The kernel counts in ticks, so only the sum over many rounds is exact."""
        if self.busy_s is None or self.seconds < LEAST_S:
            return None
        return max(0.0, self.busy_s - self.own_s) / self.seconds

    @property
    def steal(self) -> float | None:
        """How many CPUs the host of this virtual machine used for others."""
        if self.steal_s is None or self.seconds < LEAST_S:
            return None
        return self.steal_s / self.seconds

    @property
    def busy(self) -> bool:
        """Was the machine busy with something else? False also if that is unknown.

        /proc/stat counts a tick for the process that runs at that moment. A value within three standard
        deviations of that error, for half of all ticks busy, is no news.
        """
        if self.others is None:
            return False
        taken_s = (self.others + (self.steal or 0.0)) * self.seconds
        all_s = self.cpus * self.seconds
        return taken_s > BUSY_SHARE * all_s + 1.5 * sqrt(all_s / _TICKS_PER_S)


def together(parts: Iterable[Activity]) -> Activity | None:
    """Returns the sum of several periods; None if there is none."""
    all_parts = list(parts)
    if not all_parts:
        return None
    loads = [part.load for part in all_parts if part.load is not None]
    runnable = [part.runnable for part in all_parts if part.runnable is not None]
    return Activity(
        sum(part.seconds for part in all_parts),
        max(part.cpus for part in all_parts),
        sum(part.own_s for part in all_parts),
        _sum(part.busy_s for part in all_parts),
        _sum(part.steal_s for part in all_parts),
        max(loads, default=None),
        sum(runnable) / len(runnable) if runnable else None,
    )


def words(activity: Activity | None) -> str:
    """Returns one line that says what the machine did."""
    if activity is None:
        return "machine: other processes were not watched"
    if activity.others is None:
        short = activity.busy_s is not None
        why = "timed too shortly to tell" if short else "/proc/stat does not tell"
        return f"machine: unknown, {why} what other processes used{_load(activity)}"
    used = f"other processes used {activity.others:.1f} of {_cpus(activity.cpus)}"
    if activity.steal and activity.steal >= 0.05:
        used += f", the host {activity.steal:.1f} (steal)"
    return f"{'busy' if activity.busy else 'quiet'} machine: {used}{_load(activity)}"


class Watch:
    """Looks at the machine at the begin and the end of a while. ``own_s`` tells the CPU seconds of our own
    processes so far; ``cpus`` are those to watch."""

    def __init__(
        self, own_s: Callable[[], float], cpus: Collection[int], root: Path = Path("/")
    ) -> None:
        self._own_s = own_s
        self.cpus = frozenset(cpus)
        self._root = root

    @contextmanager
    def over(self, told: Callable[[Activity], object]) -> Iterator[None]:
        """Tells the activity of the block, also where this raises."""
        begin = self._look()
        try:
            yield
        finally:
            told(self._between(begin, self._look()))

    def _look(self) -> _Look:
        busy_s, steal_s = cpu_seconds(self._root, self.cpus)
        load, runnable = load_of(self._root)
        return _Look(time.monotonic(), self._own_s(), busy_s, steal_s, load, runnable)

    def _between(self, begin: _Look, end: _Look) -> Activity:
        loads = [look.load for look in (begin, end) if look.load is not None]
        runnable = [look.runnable for look in (begin, end) if look.runnable is not None]
        return Activity(
            end.at - begin.at,
            len(self.cpus),
            max(0.0, end.own_s - begin.own_s),  # less if one of ours has ended
            _less(end.busy_s, begin.busy_s),
            _less(end.steal_s, begin.steal_s),
            max(loads, default=None),
            sum(runnable) / len(runnable) if runnable else None,
        )


@dataclass(frozen=True)
class _Look:
    at: float
    own_s: float
    busy_s: float | None
    steal_s: float | None
    load: float | None
    runnable: int | None


def cpu_ticks(root: Path, cpus: Collection[int]) -> dict[int, list[int]]:
    """The fields of /proc/stat for each of these CPUs, in ticks since boot."""
    found = {}
    for line in _read(root / "proc/stat").splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in cpus:
            found[int(name[3:])] = [int(field) for field in fields]
    return found


def cpu_seconds(root: Path, cpus: Collection[int]) -> tuple[float | None, float | None]:
    """Returns the CPU seconds of all processes and of steal on these CPUs since boot.

    None: unknown, or shown as zeros, as some sandboxes do.
    """
    busy = steal = 0
    for ticks in cpu_ticks(root, cpus).values():
        busy += sum(ticks[field] for field in _BUSY_FIELDS)
        steal += ticks[_STEAL_FIELD] if len(ticks) > _STEAL_FIELD else 0
    return (busy / _TICKS_PER_S, steal / _TICKS_PER_S) if busy else (None, None)


def load_of(root: Path) -> tuple[float | None, int | None]:
    """The load average of a minute, and what is runnable now except this process."""
    fields = _read(root / "proc/loadavg").split()
    if len(fields) < 4:
        return None, None
    return float(fields[0]), max(0, int(fields[3].partition("/")[0]) - 1)


def process_s(pid: int) -> float:
    """The CPU time of a process with all its threads, in seconds; 0 if it has gone."""
    clock = ctypes.c_int()
    if _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def children_s() -> float:
    """The CPU time of this process and of all its children that have ended, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _less(end: float | None, begin: float | None) -> float | None:
    return None if end is None or begin is None else end - begin


def _cpus(count: int) -> str:
    return f"{count} CPU{'s' if count != 1 else ''}"


def _load(activity: Activity) -> str:
    parts = []
    if activity.runnable is not None:
        parts.append(f"{activity.runnable:.0f} runnable")
    if activity.load is not None:
        parts.append(f"load average {activity.load:.1f}")
    return f" ({', '.join(parts)})" if parts else ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
