# SPDX-License-Identifier: BSD-3-Clause
"""``python -m shmcoll.bench compare old.json new.json``: has the first backend become slower?

Times of two runs cannot be compared: a machine may be three times slower a minute later. The ratio to
another backend of the same run can be compared, round by round, because both had the same machine. So
for each row the ratios reference / first of both runs meet in a rank test (ranktest). All rows share
the level (Holm): a table of a hundred rows of one build is not called changed because it is long.

Noise phases. A machine has phases that last for some rounds of a row. A phase may hit two backends
differently, and then the ratio keeps it. Rounds of one phase are not independent, so PHASE_ROUNDS rounds
count once, by their median. Two runs may also have had different shares of a phase. That moves the median
but not the other quartiles, or moves it by less than the rounds of a run differ. A slower build is
slower in each phase. So a row has changed if all of this holds:

1. The rank test says that chance hardly does this.
2. The medians differ by more than ROW_EFFECT, and by more than SPREAD_SHARE of the middle half of a run's
   rounds.
3. The quartiles next to them differ by half of ROW_EFFECT, in the same direction.

Rules 2 and 3 do not apply to medians that differ by more than MOST_PHASE: no phase does that.

All rows together. A change of all rows shows sooner in their sum: the median over the rows of a round,
each row in units of its own median, has much less noise than one row, and no phase of a few rows. With
ENOUGH_ROWS rows these medians meet in a rank test too, each round for itself. A difference of more than
ALL_EFFECT changes the whole even if no single row is certain. The test cannot tell a change from a phase
that all rows feel and that one run had more of. Of 760 pairs of runs none was called changed for that; of
simulated runs with such phases for a tenth to six tenths of the run, 26 of 300.

One slower row makes the whole slower: gains elsewhere do not make up for it.

Modes. A machine may be in another mode during a whole run: virtual CPUs that share a cache, then two that
do not, or threads of one core. The ratios then differ (by a tenth in all rows, on a Zen 5), and no test on
them can tell that from another build. The speed of reading another rank's lines can tell. A run with
--columns roof measures it in each round. If it differs by more than MODE_EFFECT, there is no verdict.

There is no verdict either if the machine was busy in one of the runs (noise): the other processes may have
been different ones. Rows whose rounds disagree are marked, and left out of the mean of all rows.

No test on one pair of runs can see luck that all rounds of a run share, such as which CPUs its ranks got.
The effects are thresholds for that: the means of two runs of one build were up to 6 % apart. If they are
not enough, compare two runs of the same build first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import exp, log
from pathlib import Path
from statistics import fmean, median, quantiles

from shmcoll.bench.judge import noise
from shmcoll.bench.arguments import Parser
from shmcoll.bench.plan import RULER, Point, Settings
from shmcoll.bench.judge.ranktest import holm, p_value
from shmcoll.bench.results import Report, Row, Unreadable, read
from shmcoll.bench.show.units import count, figure

MIN_ROUNDS = 60  # 50 find a fifth in one of 22 rows in 18 of 20 simulated runs, 60 in 19 of 20
PHASE_ROUNDS = 5  # rounds of a row that are in one noise phase
SPREAD_SHARE = 0.8  # of the middle half of a run's rounds; less is no news on such a machine
MOST_PHASE = 4.0  # a ratio; no phase was seen to change one by more than 3.5
ENOUGH_ROWS = 8  # no phase of two or three rows moves their median
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
verdict of a row: faster or slower if chance does not explain the difference
and the difference is large enough; otherwise equal. Chance: a rank test over
the rounds, in which {PHASE_ROUNDS} adjacent rounds count once (all rows together: {LEVEL:.0%}
risk of calling anything changed). Large enough: the medians differ by more
than {ROW_EFFECT:.0%} and by more than {SPREAD_SHARE:.0%} of a run's middle half of rounds, and the
other quartiles by half of {ROW_EFFECT:.0%}. BROKEN: wrong values or an error where the
old run had none; counts as slower. The whole is slower if any row is, or if
{ENOUGH_ROWS} rows or more together are, by {ALL_EFFECT:.0%}.

no verdict: the machine was in different modes. Runs with --columns roof
measure how fast lines of another rank arrive; if that differs by more than
{MODE_EFFECT:.0%}, measure both again, one after the other. There is no verdict either
if other processes used more than {noise.BUSY_SHARE:.0%} of the CPUs in one of the runs.

{noise.MARK}: the rounds of a run disagree, their upper quartile is more than {noise.DISAGREE:g}x
the lower one. The mean of all rows leaves such rows out, and is withheld if
less than half are left.

reference: measure both runs with --backends shmcoll,gloo,{RULER}. The {RULER}
always does the same work; another backend's time may change for reasons of
its own.

rounds: the runs need --rounds {MIN_ROUNDS} or more; with fewer, this says "too few
rounds". {MIN_ROUNDS} rounds find a row that is 20 % slower where the rounds vary by
10 %, in 19 of 20 runs.

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
    p_values = [p_value(_by_phases(pair.old), _by_phases(pair.new)) for pair in judged]
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


def _by_phases(rounds: Sequence[float]) -> list[float]:
    """Returns the median of each whole phase. Rounds after the last whole phase do not count."""
    ends = range(PHASE_ROUNDS, len(rounds) + 1, PHASE_ROUNDS)
    return [median(rounds[end - PHASE_ROUNDS : end]) for end in ends]


def _verdict(old: Sequence[float], new: Sequence[float]) -> str:
    """Returns the verdict on logarithms that are known to differ: do they differ by enough, and all of them?"""
    before, after = (quantiles(side, n=4, method="inclusive") for side in (old, new))
    low, gain, high = (b - a for a, b in zip(before, after))
    spread = fmean(side[2] - side[0] for side in (before, after))
    wanted = log(1 + ROW_EFFECT)
    along = min(low, high) if gain > 0 else -max(low, high)  # the quartile that moved least
    phased = abs(gain) < SPREAD_SHARE * spread or along < wanted / 2
    if abs(gain) < wanted or (phased and abs(gain) < log(MOST_PHASE)):
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
    """Returns, for each round, the median over the rows of: logarithm minus what is usual for the row."""
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
            f"--reference {reference}: not measured with {first} in both files ({known} is)"
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
        description="Says whether the first backend has become faster or slower between two\n"
        "runs, measured by another backend of the same runs.",
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
            f"# WARNING: no backend besides {comparison.first} in both files: times are compared as "
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
