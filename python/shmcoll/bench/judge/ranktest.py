# SPDX-License-Identifier: BSD-3-Clause
"""Is one sample larger than another one? Ranks decide, so a wild value counts as one value.

The Mann-Whitney test: of all pairs of a value of each side, in how many is the second one larger?
If only chance is at work it is half of them. The spread of that count is known for every distribution
of the values, so heavy tails and a few wild rounds neither hide a difference nor make one. Logarithms
and units change nothing. A t-test would need a scale of the noise, which one
stalled round ruins.

For up to EXACT values without ties all outcomes are counted. For more values the count is taken as
normal, corrected for ties and for being a whole number. From about ten values a side this is good to a
few percent of p, and below p = 0.001 too large by half (tests/python/test_bench_compare.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from math import comb, erfc, sqrt

EXACT = 40  # both sides together


def p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the probability that chance alone makes a difference of this size, in either direction."""
    n1, n2 = len(first), len(second)
    if not n1 or not n2:
        return 1.0
    values = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    rank_sum = ties = 0.0
    below = 0
    for _, equal in groupby(values, key=lambda pair: pair[0]):
        sides = [side for _, side in equal]
        rank_sum += sum(sides) * (below + (len(sides) + 1) / 2)
        ties += len(sides) ** 3 - len(sides)
        below += len(sides)
    n = n1 + n2
    wins = rank_sum - n2 * (n2 + 1) / 2
    if n <= EXACT and not ties:
        fewer = round(min(wins, n1 * n2 - wins))
        return min(1.0, 2 * sum(_ways(n1, n2)[: fewer + 1]) / comb(n, n1))
    variance = n1 * n2 / 12 * (n + 1 - ties / (n * (n - 1)))
    distance = max(0.0, abs(wins - n1 * n2 / 2) - 0.5)
    return 1.0 if variance <= 0 else erfc(distance / sqrt(2 * variance))


@lru_cache(maxsize=64)
def _ways(n1: int, n2: int) -> list[int]:
    """Returns, for each number of won pairs, in how many orders of n1 and n2 values it occurs: the
    coefficients of (1 - x^(n2+1)) ... (1 - x^(n2+n1)) / ((1 - x) ... (1 - x^n1))."""
    ways = [1] + [0] * (n1 * n2)
    for i in range(1, n1 + 1):
        for k in range(len(ways) - 1, n2 + i - 1, -1):
            ways[k] -= ways[k - n2 - i]
        for k in range(i, len(ways)):
            ways[k] += ways[k - i]
    return ways


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of many tests say something, if all of them together may err with this probability.

    Holm's rule: the smallest p must be below level / tests, the next one below level / (tests - 1)
    and so on; after the first that is not, none counts.
    """
    out = [False] * len(p_values)
    for done, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > level / (len(p_values) - done):
            break
        out[index] = True
    return out
