# SPDX-License-Identifier: BSD-3-Clause
"""For `python -m shmcoll.bench --import planted_slowdown`: each of shmcoll's operations takes a fifth
longer, by turning in a loop after it. What benchmarks/verdicts.py wants to see found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch.distributed as dist

from shmcoll.bench.run import calls

SHARE = 0.2
LOOKED_AT = 10  # calls of each round, which warm it up; the fastest counts

_prepare = calls.prepare


def _slower(run: Callable[[int], Any], cost_ns: float) -> Callable[[int], Any]:
    """Makes a call slower by a constant time, of which the function itself takes ``cost_ns``.

    A share of each call would be too much: a call also waits for other ranks, which are slower too.
    """
    seen: list[int] = []
    more = 0.0

    def slower(i: int) -> Any:
        nonlocal more
        begun = time.perf_counter_ns()
        result = run(i)
        ended = time.perf_counter_ns()
        if len(seen) < LOOKED_AT:
            seen.append(ended - begun)
            more = SHARE * min(seen) - cost_ns
            return result
        while time.perf_counter_ns() < ended + more:
            pass
        return result

    return slower


def _cost_ns() -> float:
    """Returns what the wrapper costs around a call that is not made slower."""
    empty = _slower(lambda i: None, cost_ns=1e9)
    times = []
    for i in range(50):
        begun = time.perf_counter_ns()
        empty(i)
        times.append(time.perf_counter_ns() - begun)
    return median(times)


def prepare(point: Any, context: calls.Context) -> calls.Call:
    call = _prepare(point, context)
    return (
        replace(call, run=_slower(call.run, _cost_ns()))
        if dist.get_backend() == "shmcoll"
        else call
    )


calls.prepare = prepare
