# SPDX-License-Identifier: BSD-3-Clause
"""How long an iteration took: until the last rank had its result.

The ranks run an operation in a tight loop and note, on the machine's one monotonic clock, when
each call began and returned. Rank-local durations would flatter: a root, or a rank that another
one has waited for, returns early.

Where every rank needs something of every other one (all_reduce, all_gather, barrier), no call can
return before all ranks have called. An iteration then lasts from the end of the one before it, or
from the first call where the loop was restarted, until the last return: the times of a loop add up
to the time of the loop.

Where the root gets something (reduce, gather) or each rank from one other (sendrecv), some may run
ahead of the rest as far as there are buffers. Iterations are cut the same way: whoever ran ahead has
shortened the next iteration, not the loop. The root moves to the next rank with every iteration.

Ranks that play ping-pong by pairs run ahead of other pairs in the same way; half of an iteration is
one way.

Where the others get it from the root (broadcast, scatter), the root could run ahead of them all. So
it moves too: a rank cannot send on what it has not got. An iteration lasts from the call of its root
until the last return.

``--mode throughput`` has windows of operations instead. Their roots are several ranks, so windows
are cut as the iterations of all_reduce are.

``--mode skew`` starts every iteration anew, and rank 0, 1, ... in turn comes late. What counts is
what the others could not do before it came: an iteration lasts from its call until the last return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shmcoll.bench.ops import Op

Readings = Sequence[Sequence[int]]  # [rank][iteration], in ns


def evaluation(mode: str, op: Op) -> Callable[[Readings, Readings], list[int]]:
    """What makes durations of the clock readings (called, returned)."""
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
