# SPDX-License-Identifier: BSD-3-Clause
"""How many CPUs processes other than the running ranks use."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from shmcoll.bench.judge import noise
from shmcoll.watch import machine

SAMPLE_S = 0.15  # the kernel counts in ticks of 10 ms: some on each CPU
_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq; not idle, iowait, steal


def of_others(
    root: Path,
    cpus: Collection[int],
    ranks: Collection[int],
    pause: Callable[[], object] = lambda: time.sleep(SAMPLE_S),
) -> float | None:
    """Of these CPUs, as a sample says. ranks: processes that do not count; None: nobody can tell."""
    before, ranks_before = _cpus(root, cpus), {pid: _process(root, pid) for pid in ranks}
    pause()
    after = _cpus(root, cpus)
    passed = sum(after[cpu][1] - before[cpu][1] for cpu in before.keys() & after.keys())
    if passed <= 0:
        return None
    busy = sum(after[cpu][0] - before[cpu][0] for cpu in before.keys() & after.keys())
    own = sum(max(0, _process(root, pid) - ticks) for pid, ticks in ranks_before.items())
    return min(1.0, max(0.0, (busy - own) / passed)) * len(cpus)


def _cpus(root: Path, cpus: Collection[int]) -> dict[int, tuple[int, int]]:
    """Ticks of each CPU: busy ones, and all."""
    return {
        cpu: (sum(ticks[at] for at in _BUSY), sum(ticks[:8]))
        for cpu, ticks in noise.cpu_ticks(root, cpus).items()
        if len(ticks) >= 8
    }


def _process(root: Path, pid: int) -> int:
    """Ticks that all threads of a process have run; 0: it has ended."""
    words = machine.stat_of(root, pid)
    return int(words[11]) + int(words[12]) if len(words) > 12 else 0
