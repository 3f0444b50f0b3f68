# SPDX-License-Identifier: BSD-3-Clause
"""The time of an iteration: until the last rank has its result.

The ranks run an operation in a tight loop and note, on the machine's one monotonic clock, when
each call began and returned. Durations of one rank would be too short: a root, or a late rank, returns
early.

1. Every rank needs data of every other rank (all_reduce, all_gather, barrier). No call can
return before all ranks have called. An iteration then lasts from the end of the one before it, or
from the first call where the loop was restarted, until the last return: the times of a loop add up
to the time of the loop.

2. The root receives (reduce, gather), or each rank receives from one other (sendrecv). Some ranks may run
ahead of the rest, as far as there are buffers. Iterations are cut as in case 1: a rank that ran ahead
has shortened the next iteration, not the loop. The root moves to the next rank with every iteration.

Pairs of ranks that play ping-pong run ahead of other pairs in that way. Half of an iteration is one way.

3. The root sends (broadcast, scatter). It could run ahead of all others, so the root moves here too: a
rank cannot send what it has not received. An iteration lasts from the call of its root
until the last return.

``--mode throughput`` has windows of operations instead. A window has several roots, so windows are cut as
in case 1.

``--mode skew`` starts every iteration anew, and rank 0, 1, ... in turn comes late. The time counts
that the others could not use before: an iteration lasts from the late call until the last return.

Ranks on several hosts have no clock in common. Each one's begins with its first call, which all make at about the same
time, and iterations are cut as in case 1 for all operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shmcoll.bench.ops import Op

Readings = Sequence[Sequence[int]]  # [rank][iteration], in ns


def evaluation(mode: str, op: Op) -> Callable[[Readings, Readings], list[int]]:
    """Returns the function that turns clock readings (called, returned) into durations."""
    if mode == "skew" or (mode == "latency" and op.root == "gives"):
        return of_rooted
    return of_symmetric


def of_started(called: Readings, returned: Readings) -> list[int]:
    """Iterations that have a start of their own."""
    return [max(ends) - min(begins) for begins, ends in zip(zip(*called), zip(*returned))]


def of_symmetric(called: Readings, returned: Readings) -> list[int]:
    """Iterations that begin where the one before has ended."""
    last_return = [max(times) for times in zip(*returned)]
    first_call = [min(times) for times in zip(*called)]
    begin = map(max, first_call, [first_call[0], *last_return])
    return [end - start for start, end in zip(begin, last_return)]


def of_rooted(called: Readings, returned: Readings) -> list[int]:
    """Iterations that begin with the call of the root (or late rank), rank 0, 1, ... in turn."""
    last_return = [max(times) for times in zip(*returned)]
    return [end - called[i % len(called)][i] for i, end in enumerate(last_return)]


def of_own_clocks(called: Readings, returned: Readings) -> list[int]:
    """Iterations of ranks whose clocks began at different times."""
    begins = [times[0] for times in called]
    since = [
        [[ns - begin for ns in times] for begin, times in zip(begins, readings)]
        for readings in (called, returned)
    ]
    return of_symmetric(*since)
