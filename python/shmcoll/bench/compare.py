# SPDX-License-Identifier: BSD-3-Clause
"""``python -m shmcoll.bench compare old.json new.json``: has the first backend become slower?

Times of two runs cannot be compared: a machine is three times slower a minute later. What can be
compared is how much faster than another backend of the same run it was, round by round, because
both had the machine as it was then. So for each row the ratios reference / first of the rounds of
both runs meet in a rank test (ranktest). The level is shared by all rows (Holm), so that a table of a
hundred rows of the same build is not called changed because of its number of rows.

A mood of the machine that hits the two backends differently is not taken out by their ratio, and lasts
for some rounds of a row: these are not as many witnesses. So MOOD_ROUNDS in a row count once, by
their median. And two runs may have had more or less of a mood: that moves the median and not the
other quartiles, or moves it by less than the rounds of a run differ among themselves. A build that is
slower is so in each mood. So a row has changed if chance hardly does this, AND the medians are further
apart than ROW_EFFECT and than SPREAD_SHARE of the middle half of a run's rounds, AND the quartiles beside
them are half of ROW_EFFECT apart, the same way. Medians further apart than MOST_MOOD are no mood.

What is the same in all rows shows sooner in all of them together: a round's median over the rows, each
in units of its own median, has much less noise than one of them, and no mood of some rows. So these
meet in a rank test as well, each round for itself, where there are ENOUGH_ROWS, and what differs by more
than ALL_EFFECT is a change of the whole even if no row alone is sure. A mood that all rows feel, and that
one run had more of, is not told from a change there: of 760 pairs of runs none was called changed for
that, of simulated ones with such moods for a tenth to six tenths of a run 26 of 300.

One slower row makes the whole slower: gains elsewhere do not pay for it.

A machine may also have another mode for the whole of a run: virtual CPUs that share a cache, then two that
do not, or threads of one core. The ratios are other ones there (by a tenth in all rows, on a Zen 5), and
no test on them can tell that from another build. What tells is how fast lines of another rank are read,
which a run with --columns roof measures in each round: where that differs by more than MODE_EFFECT between
the runs, there is no verdict.

Nor is there one where the machine was busy in either run (noise): what the other processes did is not known
to have been the same. Rows whose rounds disagree are marked, and are left out of the mean of all rows.

What no test on one pair of runs can see is luck that a whole run has and each of its rounds shares:
which CPUs its ranks got, say. The effects are there for that: the means of two runs of one build were up
to 6 % apart. Where they are not enough, compare two runs of the same build first, and see.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import exp, log
from pathlib import Path
from statistics import fmean, median, quantiles

from shmcoll.bench import noise
from shmcoll.bench.arguments import Parser
from shmcoll.bench.plan import RULER, Point, Settings
from shmcoll.bench.ranktest import holm, p_value
from shmcoll.bench.results import Report, Row, Unreadable, read
from shmcoll.bench.units import count, figure

MIN_ROUNDS = 60  # 50 find a fifth in one of 22 rows in 18 of 20 simulated runs, 60 in 19 of 20
MOOD_ROUNDS = 5  # of a row, in which a machine has one mood
SPREAD_SHARE = 0.8  # of the middle half of a run's rounds; less is no news on such a machine
MOST_MOOD = 4.0  # times as fast; none was seen to change a ratio by more than 3.5
ENOUGH_ROWS = 8  # whose median no mood of two or three rows moves
ROW_EFFECT = 0.10  # a smaller change of a row's median is no news
ALL_EFFECT = 0.08  # nor of all rows together
MODE_EFFECT = 0.20  # runs of one mode were 0 to 8 % apart, modes 30 % and more
LEVEL = 0.01  # of calling anything changed when nothing has, all rows together

FASTER, SLOWER, EQUAL, BROKEN = "faster", "slower", "equal", "BROKEN"
TOO_FEW, UNKNOWN, MOVED = "too few rounds", "-", "no verdict"

EXIT_GOOD, EXIT_SLOWER, EXIT_NO_VERDICT = 0, 1, 2

# These say which rows there are and how long each is looked at; any other setting must be equal.
_FREE_SETTINGS = frozenset(
    "preset columns place backends imports ops dtypes min_bytes max_bytes factor rounds iterations "
    "point_time_s timeout_s".split()
)


_EPILOG = f"""\
verdict of a row: faster or slower if a rank test over the rounds, {MOOD_ROUNDS} in a row counted once, says that
chance does not do this (all rows together: {LEVEL:.0%} risk of calling anything changed) and the medians differ
by more than {ROW_EFFECT:.0%} and than {SPREAD_SHARE:.0%} of a run's middle half of rounds, the other quartiles by half of
{ROW_EFFECT:.0%}; else equal. BROKEN: wrong values or an error where the old run had none; counts as slower.
The whole is slower if any row is, or if {ENOUGH_ROWS} rows and more together are and differ by {ALL_EFFECT:.0%}.

no verdict: the machine was in different modes. Runs with --columns roof measure how fast lines of another
rank come; if that differs by more than {MODE_EFFECT:.0%}, measure both again, one after the other.
Nor where other processes used more than {noise.BUSY_SHARE:.0%} of the CPUs in either run, while rounds were timed.

{noise.MARK}: the rounds of a run disagree, their upper quartile is more than {noise.DISAGREE:g}x the lower one. The mean of
all rows leaves such rows out, and is withheld if less than half are left.

reference: measure both runs with --backends shmcoll,gloo,{RULER}. The {RULER} always does the same work;
another backend's time may change for reasons of its own.

rounds: the runs need --rounds {MIN_ROUNDS} or more; with fewer, this says "too few rounds".
{MIN_ROUNDS} rounds find a row that is 20 % slower where the rounds vary by 10 %, in 19 of 20 runs.

exit code: 0 equal or faster; 1 slower; 2 bad usage, or no verdict
"""


class Incomparable(Exception):
    """The text says why, in one line."""


@dataclass(frozen=True)
class Change:
    """One row of both runs. The figures are ratios reference / first, or 1 / us without one."""

    point: Point
    old: float | None
    new: float | None
    verdict: str
    noisy: bool = False  # the rounds of a run disagree

    @property
    def time(self) -> float | None:
        """The new time in units of the old one, as far as the reference tells."""
        return self.old / self.new if self.old and self.new else None


@dataclass(frozen=True)
class Comparison:
    """Two runs."""

    first: str
    reference: str | None  # None: times were compared as they are
    changes: list[Change]
    together: str  # the verdict of all rows that have one; UNKNOWN: they are too few
    modes: tuple[float, float] | None = None  # GB/s of each run's exchange; None: not measured
    busy: tuple[str, ...] = ()  # the runs, "old" and "new", whose machine did something else

    @property
    def verdict(self) -> str:
        found = {change.verdict for change in self.changes} | {self.together}
        for verdict in (BROKEN, MOVED, SLOWER, TOO_FEW, FASTER, EQUAL):
            if verdict in found:
                return SLOWER if verdict == BROKEN else verdict
        return UNKNOWN

    @property
    def time(self) -> float | None:
        """The geometric mean of the rows' changes; None if the rounds of most of them disagree."""
        logs = [log(one.time) for one in self.changes if one.time and not one.noisy]
        return exp(sum(logs) / len(logs)) if 2 * len(logs) >= max(1, self.timed) else None

    @property
    def timed(self) -> int:
        """Rows with a time in both runs."""
        return sum(change.time is not None for change in self.changes)

    @property
    def noisy(self) -> int:
        return sum(change.noisy for change in self.changes)


def compare(old: Report, new: Report, reference: str | None = None) -> Comparison:
    """Raises Incomparable."""
    first, reference = _labels(old, new, reference)
    _check_settings(old.settings, new.settings)
    before = {row.point: row for row in old.rows}
    pairs = [
        _Pair.of(before[row.point], row, first, reference)
        for row in new.rows
        if row.point in before
    ]
    if not pairs:
        raise Incomparable("the two files have no row (operation, size, dtype) in common")
    modes = _modes(old, new)
    moved = modes is not None and max(modes) > (1 + MODE_EFFECT) * min(modes)
    busy = tuple(name for name, run in (("old", old), ("new", new)) if run.busy)
    mute = moved or bool(busy)
    # A row that gets no verdict must not cost the others their share of the level.
    judged = [pair for pair in pairs if pair.settled is None and not mute]
    p_values = [p_value(_by_moods(pair.old), _by_moods(pair.new)) for pair in judged]
    verdicts = {
        pair.point: _verdict(_logs(pair.old), _logs(pair.new)) if strong else EQUAL
        for pair, strong in zip(judged, holm(p_values, LEVEL))
    }
    return Comparison(
        first,
        reference,
        [
            Change(
                pair.point,
                median(pair.old) if pair.old else None,
                median(pair.new) if pair.new else None,
                pair.settled or (UNKNOWN if mute else verdicts[pair.point]),
                noise.disagree(pair.old) or noise.disagree(pair.new),
            )
            for pair in pairs
        ],
        MOVED if mute else _together(judged),
        modes,
        busy,
    )


@dataclass(frozen=True)
class _Pair:
    """One row's rounds in both runs: larger is faster. Empty: not measured, or wrong."""

    point: Point
    old: list[float]
    new: list[float]
    broken: bool  # the new run has wrong values or an error where the old one had none

    @classmethod
    def of(cls, old: Row, new: Row, first: str, reference: str | None) -> _Pair:
        def good(row: Row) -> bool:
            return not row.cells[first].wrong and bool(row.cells[first].samples)

        def rounds(row: Row) -> list[float]:
            if not good(row):
                return []
            if reference is None:
                return [1 / time_us for time_us in row.cells[first].round_medians_us()]
            return row.round_ratios(reference)

        return cls(new.point, rounds(old), rounds(new), good(old) and not good(new))

    @property
    def settled(self) -> str | None:
        """The verdict that needs no test."""
        if self.broken:
            return BROKEN
        if not self.old or not self.new:
            return UNKNOWN
        return TOO_FEW if min(len(self.old), len(self.new)) < MIN_ROUNDS else None


def _modes(old: Report, new: Report) -> tuple[float, float] | None:
    """GB/s at which each run read lines of another rank, in its middle round."""
    found = [[speed for row in report.rows for speed in row.exchange_gbs] for report in (old, new)]
    return (median(found[0]), median(found[1])) if all(found) else None


def _logs(rounds: Sequence[float]) -> list[float]:
    return [log(ratio) for ratio in rounds]


def _by_moods(rounds: Sequence[float]) -> list[float]:
    """What is left behind the last whole mood does not count."""
    ends = range(MOOD_ROUNDS, len(rounds) + 1, MOOD_ROUNDS)
    return [median(rounds[end - MOOD_ROUNDS : end]) for end in ends]


def _verdict(old: Sequence[float], new: Sequence[float]) -> str:
    """Of logarithms, of which it is known that they differ: by enough, and all of them?"""
    before, after = (quantiles(side, n=4, method="inclusive") for side in (old, new))
    low, gain, high = (b - a for a, b in zip(before, after))
    spread = fmean(side[2] - side[0] for side in (before, after))
    wanted = log(1 + ROW_EFFECT)
    along = min(low, high) if gain > 0 else -max(low, high)  # the quartile that moved least
    moody = abs(gain) < SPREAD_SHARE * spread or along < wanted / 2
    if abs(gain) < wanted or (moody and abs(gain) < log(MOST_MOOD)):
        return EQUAL
    return FASTER if gain > 0 else SLOWER


def _together(pairs: Sequence[_Pair]) -> str:
    if len(pairs) < ENOUGH_ROWS:
        return UNKNOWN
    usual = [median(_logs(pair.old + pair.new)) for pair in pairs]
    old, new = _over_rows([p.old for p in pairs], usual), _over_rows([p.new for p in pairs], usual)
    gain = median(new) - median(old)
    if p_value(old, new) > LEVEL or abs(gain) < log(1 + ALL_EFFECT):
        return EQUAL
    return FASTER if gain > 0 else SLOWER


def _over_rows(rows: Sequence[Sequence[float]], usual: Sequence[float]) -> list[float]:
    """Of each round: the median over the rows of their logarithms, beside what is usual for each."""
    return [median(log(r) - u for r, u in zip(ratios, usual)) for ratios in zip(*rows)]


def _labels(old: Report, new: Report, reference: str | None) -> tuple[str, str | None]:
    """The backend that is judged, and the one it is measured by."""
    labels = old.settings.labels, new.settings.labels
    first = labels[0][0]
    if labels[1][0] != first:
        raise Incomparable(f"the first backends differ: {first} and {labels[1][0]}")
    common = [label for label in labels[1][1:] if label in labels[0][1:]]
    if reference is None:
        return first, RULER if RULER in common else common[-1] if common else None
    if reference not in common:
        known = ", ".join(common) or "none"
        raise Incomparable(
            f"--reference {reference}: not beside {first} in both files ({known} is)"
        )
    return first, reference


def _check_settings(old: Settings, new: Settings) -> None:
    for field in fields(Settings):
        values = getattr(old, field.name), getattr(new, field.name)
        if field.name not in _FREE_SETTINGS and values[0] != values[1]:
            raise Incomparable(f"{field.name} differs: {values[0]} and {values[1]}")


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    try:
        old, new = read(args.old), read(args.new)
        comparison = compare(old, new, args.reference)
    except (Unreadable, Incomparable) as error:
        print(f"shmcoll.bench compare: {error}", file=sys.stderr)
        return EXIT_NO_VERDICT
    for line in _header(old, new, comparison) + _table(comparison) + _summary(old, new, comparison):
        print(line)
    if comparison.verdict in (TOO_FEW, UNKNOWN, MOVED):
        return EXIT_NO_VERDICT
    return EXIT_SLOWER if comparison.verdict == SLOWER else EXIT_GOOD


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m shmcoll.bench compare",
        description="Says whether the first backend has become faster or slower between two runs, "
        "measured by another backend of the same runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("old", type=Path, help="written by --json")
    parser.add_argument("new", type=Path, help="written by --json")
    parser.add_argument(
        "--reference",
        metavar="LABEL",
        help=f"the backend to measure by (default: {RULER}, or the last one that both runs have)",
    )
    return parser


def _header(old: Report, new: Report, comparison: Comparison) -> list[str]:
    lines = [
        f"# {name}: {report.started}, {count(report.settings.nproc, 'rank')}, {report.machine.cpu}, "
        f"torch {report.machine.versions.get('torch')}"
        for name, report in (("old", old), ("new", new))
    ]
    if comparison.reference is None:
        lines += [
            f"# WARNING: no backend beside {comparison.first} in both files: times are compared as "
            "they are,",
            "# and the drift of the machine between the runs is NOT taken out. Measure with "
            f"--backends {comparison.first},{RULER}.",
        ]
    elif old.machine.cpu != new.machine.cpu:
        lines.append("# WARNING: the CPUs differ; their ratios may differ for that alone")
    lines += [
        f"# {name}: {noise.words(report.activity)}"
        for name, report in (("old", old), ("new", new))
        if report.activity is not None
    ]
    if comparison.noisy:
        lines.append(
            f"# {noise.MARK}: varied by more than {noise.DISAGREE:g}x between the rounds of a run: "
            f"{comparison.noisy} of {count(len(comparison.changes), 'row')}"
        )
    return lines


def _table(comparison: Comparison) -> list[str]:
    what = f"{comparison.reference} / {comparison.first}" if comparison.reference else "1 / us"
    lines = [
        f"# {'':42}{what:^19}",
        f"# {'op':14} {'place':>5} {'size':>10} {'type':>8} {'old':>10} {'new':>10} {'time':>8}  verdict",
    ]
    for change in comparison.changes:
        point = change.point
        lines.append(
            f"{point.name:16} {point.place:>5} {point.size_bytes:10} {point.dtype or '-':>8} "
            f"{_figure(change.old)} {_figure(change.new)} {_percent(change.time):>8}  "
            f"{noise.MARK if change.noisy else ''}{change.verdict}"
        )
    return lines


def _summary(old: Report, new: Report, comparison: Comparison) -> list[str]:
    counts = [
        f"{found} {verdict}"
        for verdict in (FASTER, EQUAL, SLOWER, BROKEN, TOO_FEW)
        if (found := sum(change.verdict == verdict for change in comparison.changes))
    ]
    alone = len(old.rows) + len(new.rows) - 2 * len(comparison.changes)
    lines = [
        f"# rows: {', '.join(counts) or 'none with a verdict'}; together: {comparison.together}"
    ]
    if alone:
        are = "is" if alone == 1 else "are"
        lines.append(f"# {count(alone, 'row')} {are} in one file only")
    if comparison.verdict == TOO_FEW:
        lines.append(
            f"# a verdict needs {MIN_ROUNDS} rounds: measure both with --rounds {MIN_ROUNDS}"
        )
    if comparison.busy:
        runs = " and ".join(comparison.busy)
        lines.append(f"# busy machine in the {runs} run: nothing is called changed; measure again")
    elif comparison.verdict == MOVED and comparison.modes:
        before, after = comparison.modes
        lines.append(
            f"# the machine was in another mode: ranks read one another's lines at {before:.0f} GB/s, "
            f"then at {after:.0f}; measure both again"
        )
    return [
        *lines,
        f"# time of {comparison.first}, {_mean(comparison)}",
        f"# overall: {comparison.verdict}",
    ]


def _mean(comparison: Comparison) -> str:
    """On what it rests, and in brackets if the machine was busy."""
    rows = count(comparison.timed, "row")
    left = sum(bool(one.time) and not one.noisy for one in comparison.changes)
    if comparison.time is None and comparison.timed:
        return f"mean withheld: {comparison.timed - left} of {rows} vary too much"
    text = _percent(comparison.time)
    shown = f"({text}, on a busy machine)" if comparison.busy else text
    return f"geometric mean of {left} of {rows}: {shown}"


def _figure(value: float | None) -> str:
    return f"{'-' if value is None else figure(value, 4):>10}"


def _percent(time: float | None) -> str:
    return "-" if time is None else f"{100 * (time - 1):+.1f} %"
