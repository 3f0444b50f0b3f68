# SPDX-License-Identifier: BSD-3-Clause
"""CPU quotas of control groups, v2 and v1: how often a process had to stand still."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shmcoll.watch import machine

ROOT = Path("/")
WORTH_SAYING = 0.05  # of the periods


@dataclass(frozen=True)
class Quota:
    cpus: float
    place: str  # the control group's folder, as a user sees it
    used_up: float  # the part of the periods in which its processes had to stand still

    def said(self, whose: str = "") -> str:
        """ "CPU quota of rank 1 (...) was used up in 7% of the periods so far"."""
        return (
            f"CPU quota{' of ' * bool(whose)}{whose} ({self.cpus:g} CPUs, {self.place}) was used up in "
            f"{self.used_up:.0%} of the periods so far"
        )


def of_each(root: Path, pids: Iterable[int]) -> dict[int, Quota]:
    """Of each process that a quota holds back: the one that does so most, of its control group and
    of those around it.

    Reads one small file for each process, and a few for each control group.
    """
    known: dict[str, Quota | None] = {}  # by control groups: most ranks of a job share them
    found = {}
    for pid in pids:
        groups = machine.read(root / f"proc/{pid}/cgroup")
        if groups not in known:
            known[groups] = _worst(root, pid)
        quota = known[groups]
        if quota:
            found[pid] = quota
    return found


def _worst(root: Path, pid: int) -> Quota | None:
    # Late, because what that module imports takes longer than a look at all ranks.
    from shmcoll.bench.machine import quotas

    found = [Quota(cpus, shown(root, place), used_up(place)) for cpus, place in quotas(root, pid)]
    worst = max(found, key=lambda quota: quota.used_up, default=None)
    return worst if worst and worst.used_up > WORTH_SAYING else None


def used_up(group: Path) -> float:
    """The part of the periods in which processes of the control group had to stand still."""
    words = machine.read(group / "cpu.stat").split()
    counts = {name: int(count) for name, count in zip(words[::2], words[1::2]) if count.isdecimal()}
    return counts.get("nr_throttled", 0) / max(1, counts.get("nr_periods", 0))


def shown(root: Path, path: Path) -> str:
    return "/" + str(path.relative_to(root)).lstrip("./")
