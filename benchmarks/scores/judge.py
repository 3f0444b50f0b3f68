# SPDX-License-Identifier: BSD-3-Clause
"""Is a goal met? Pure functions of rows.

A goal is judged by its worst point. What was not measured never counts as met: a goal of which only
some points were measured is not met if one of these misses it, and else not measured. Nor does what
cannot be trusted: where the rounds of a point disagree (shmcoll.bench.judge.noise) and its quartiles lie on both
sides of the bound, or where the machine was busy, a verdict either way would be luck.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Any, TypeVar

from scores.rows import Row, size_text

from shmcoll.bench.judge import noise

T = TypeVar("T")

MET, NOT_MET, NOT_MEASURED, FAILED = "met", "not met", "not measured", "failed"
NOISY = "noisy"  # measured, but it could be either


@dataclass(frozen=True)
class Goal:
    """A line of the table. Empty tuples of names: whatever there is."""

    name: str
    part: str  # who measures it
    metric: str
    bound: float
    unit: str = "x"
    at_most: bool = False  # else at least
    ops: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()  # all of them must be there; those between them count as well
    ranks: int = 2
    rivals: tuple[str, ...] = ()  # the best of them counts
    kinds: tuple[str, ...] = ()  # patterns
    other_kinds: tuple[str, ...] = ()  # patterns of what belongs to another goal
    reasons: Mapping[str, str] = field(default_factory=dict)  # kind (pattern) -> why it may miss
    limit: str = ""  # metric of rows of the same places: the most that can be had
    limit_of: str = ""  # what was measured there
    over_sizes: str = "every"  # or "median"
    near: bool = False  # only rounds in which the CPUs shared an L3
    rounds: int = 1  # as many at least
    cpus: int = 0  # the machine must have

    def picks(self, row: Row) -> bool:
        return (
            row.metric == self.metric
            and row.ranks == self.ranks
            and (not self.ops or row.op in self.ops)
            and (not self.sizes or self.sizes[0] <= row.size_bytes <= self.sizes[-1])
            and (not self.rivals or row.rival in self.rivals)
            and (not self.kinds or _matches(row.kind, self.kinds))
            and not _matches(row.kind, self.other_kinds)
        )

    def holds(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    def worst(self, points: Iterable[Point]) -> Point:
        return (max if self.at_most else min)(points, key=lambda point: point.value)

    @property
    def demand(self) -> str:
        return f"{'<=' if self.at_most else '>='} {figure(self.bound, self.unit)}"


@dataclass(frozen=True)
class Point:
    """One figure that a goal speaks of: the median over rounds, and their quartiles."""

    row: Row  # without rounds that do not count
    value: float
    low: float
    high: float
    noisy: bool = False  # the rounds disagree

    def text(self, unit: str) -> str:
        spread = ""
        if self.low != self.high:
            spread = f" ({figure(self.low, unit)} to {figure(self.high, unit)})"
        mark = noise.MARK if self.noisy else ""
        return f"{mark}{figure(self.value, unit)}{spread}{where(self.row)}"


@dataclass(frozen=True)
class Judgement:
    goal: Goal
    verdict: str
    why: str = ""  # not measured, or failed
    worst: Point | None = None
    points: int = 0
    missed: tuple[Point, ...] = ()
    excused: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()  # of the missed: what is out of reach, and what the limit is

    @property
    def measured(self) -> str:
        return self.worst.text(self.goal.unit) if self.worst else "-"


def judge(
    goal: Goal, rows: Sequence[Row], cpus: int, absent: Mapping[str, str] | None = None
) -> Judgement:
    """`absent`: part -> why it has no rows."""
    if cpus < goal.cpus:
        why = f"needs a machine of {goal.cpus} CPUs, this one has {cpus}"
        return Judgement(goal, NOT_MEASURED, why)
    chosen = _merged(row for row in rows if goal.picks(row))
    wrong = [f"{row.wrong}{where(row)}" for row in chosen if row.wrong]
    if wrong:
        return Judgement(goal, FAILED, "; ".join(dict.fromkeys(wrong)))
    counting = [cut for row in chosen if (cut := _counting(goal, row)).values]
    enough = [row for row in counting if len(row.values) >= goal.rounds]
    missing = _missing(goal, enough)
    if not enough:
        why = (absent or {}).get(goal.part) or _why_none(goal, chosen, counting, missing)
        return Judgement(goal, NOT_MEASURED, why)
    judgement = _verdict(goal, enough, missing)
    return replace(judgement, beyond=_beyond(goal, judgement.missed, rows))


def _beyond(goal: Goal, missed: Iterable[Point], rows: Sequence[Row]) -> tuple[str, ...]:
    """Returns the missed points at which the limit itself misses the goal too."""
    limiting = replace(goal, metric=goal.limit)
    limits = _merged(row for row in rows if limiting.picks(row))
    kept = [cut for row in limits if (cut := _counting(goal, row)).values]
    if goal.over_sizes == "every":
        at = {row.place[1:]: _point(row) for row in kept}
        pairs = [(point, at.get(point.row.place[1:])) for point in missed]
    else:  # a median of some sizes would be that of other ones
        whole = [] if _missing(goal, kept) else _points(goal, kept)
        of = {point.row.op: point for point in whole}
        pairs = [(point, of.get(point.row.op)) for point in missed]
    return tuple(
        f"{limit.text(goal.unit)} for {goal.limit_of}"
        for _, limit in pairs
        if limit and not goal.holds(limit.value)
    )


def _counting(goal: Goal, row: Row) -> Row:
    """Returns the row without the rounds that the goal does not count."""
    if not goal.near:
        return row
    kept = [value for value, mode in zip(row.values, row.modes) if mode == "near"]
    return replace(row, values=tuple(kept), modes=("near",) * len(kept))


def _verdict(goal: Goal, rows: list[Row], missing: list[str]) -> Judgement:
    excused = {row.place: why for row in rows if (why := _reason(goal, row))}
    points = _points(goal, rows)
    judged = [point for point in points if point.row.place not in excused]
    missed = tuple(point for point in judged if not goal.holds(point.value))
    late = [p for p in points if p.row.place in excused and not goal.holds(p.value)]
    modes = tuple(dict.fromkeys(mode for row in rows for mode in row.modes))
    unsure = [p for p in judged if p.noisy and goal.holds(p.low) != goal.holds(p.high)]
    sure_misses = [point for point in missed if point not in unsure]
    verdict, why = (NOT_MET if missed else MET), ""
    if unsure and not sure_misses:
        verdict, why = NOISY, _unsure(goal, unsure)
    if missing or not judged:
        why = _not_there(missing)
        # What there is may miss the goal already; a median says nothing without all sizes.
        verdict = NOT_MET if sure_misses and goal.over_sizes == "every" else NOT_MEASURED
    return Judgement(
        goal,
        verdict,
        why,
        goal.worst(judged) if judged else None,
        len(judged),
        missed,
        _excused(goal, late, excused),
        modes,
    )


def _unsure(goal: Goal, points: list[Point]) -> str:
    what = f"rounds disagree by more than {noise.DISAGREE:g}x, on both sides of {goal.demand}"
    more = f", and {len(points) - 1} more" if len(points) > 1 else ""
    return f"{what}: {goal.worst(points).text(goal.unit)}{more}"


def doubted(judgement: Judgement, busy: str | None) -> Judgement:
    """Returns the verdict for a busy machine. ``busy``: what else ran, or None if the machine was quiet."""
    if busy is None or judgement.verdict not in (MET, NOT_MET, NOISY):
        return judgement
    return replace(judgement, verdict=NOISY, why=busy)


def _excused(
    goal: Goal, late: list[Point], reasons: Mapping[tuple[Any, ...], str]
) -> tuple[str, ...]:
    """A line for each reason: its worst point, how many others have it, and the best of them."""
    texts = []
    for reason in dict.fromkeys(reasons[point.row.place] for point in late):
        alike = [point for point in late if reasons[point.row.place] == reason]
        alike.sort(key=lambda point: point.value, reverse=goal.at_most)
        more = ""
        if len(alike) > 1:
            more = f", and {len(alike) - 1} more, {figure(alike[-1].value, goal.unit)} at best"
        texts.append(f"{alike[0].text(goal.unit)}{more}: {reason}")
    return tuple(texts)


def _points(goal: Goal, rows: list[Row]) -> list[Point]:
    """The best rival's of each place, and with over_sizes "median" the median one of each op."""
    points = []
    for beside in _groups(rows, lambda row: (row.op, row.size_bytes, row.kind)):
        points.append(goal.worst(map(_point, beside)))
    if goal.over_sizes == "every":
        return points
    return [_middle(one) for one in _groups(points, lambda point: (point.row.op,))]


def _point(row: Row) -> Point:
    low, high = row.values[0], row.values[0]
    if len(row.values) > 1:
        low, _, high = quantiles(row.values, n=4, method="inclusive")
    return Point(row, median(row.values), low, high, noise.disagree(row.values))


def _middle(points: list[Point]) -> Point:
    """The point of the median size; of an even number the mean of the middle two, at the first."""
    ordered = sorted(points, key=lambda point: point.value)
    below, above = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    mean = (below.value + above.value) / 2
    noisy = below.noisy or above.noisy
    return Point(below.row, mean, (below.low + above.low) / 2, (below.high + above.high) / 2, noisy)


def _missing(goal: Goal, rows: list[Row]) -> list[str]:
    """Returns what the goal names and no row has."""
    there = {(row.op, row.size_bytes, row.rival) for row in rows}
    wanted = itertools.product(goal.ops or ("",), goal.sizes or (-1,), goal.rivals or ("",))
    out = []
    for op, size, rival in wanted:
        if not any(
            (not goal.ops or op == row[0])
            and (not goal.sizes or size == row[1])
            and (not goal.rivals or rival == row[2])
            for row in there
        ):
            out.append(where(Row("", op, max(size, 0), rival=rival)).strip())
    kinds = {row.kind for row in rows}
    out += [kind for kind in goal.kinds if not any(_matches(name, (kind,)) for name in kinds)]
    return out


def _not_there(missing: list[str]) -> str:
    named = [what for what in missing if what] or ["anything of it"]
    return f"not there: {', '.join(named[:3])}" + (", ..." if len(named) > 3 else "")


def _why_none(goal: Goal, chosen: list[Row], counting: list[Row], missing: list[str]) -> str:
    if not chosen:
        return _not_there(missing)
    modes = {mode for row in chosen for mode in row.modes}
    if goal.near and not counting:
        return f"the CPUs shared no L3 ({' and '.join(sorted(modes))})"
    most = max(len(row.values) for row in counting or chosen)
    return f"{most} rounds that count, {goal.rounds} needed"


def _merged(rows: Iterable[Row]) -> list[Row]:
    """Rounds of several runs are rounds of one row."""
    out = []
    for runs in _groups(rows, lambda row: row.place):
        values = tuple(value for row in runs for value in row.values)
        modes = tuple(mode for row in runs for mode in _modes(row))
        wrong = "; ".join(dict.fromkeys(row.wrong for row in runs if row.wrong))
        out.append(replace(runs[0], values=values, modes=modes, wrong=wrong))
    return out


def _modes(row: Row) -> tuple[str, ...]:
    return row.modes or ("unknown",) * len(row.values)


def _groups(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Returns lists of items with equal keys, in the order of their first items."""
    out: dict[object, list[T]] = {}
    for item in items:
        out.setdefault(key(item), []).append(item)
    return list(out.values())


def _reason(goal: Goal, row: Row) -> str:
    return next((why for kind, why in goal.reasons.items() if _matches(row.kind, (kind,))), "")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def where(row: Row) -> str:
    size = f" at {size_text(row.size_bytes)}" if row.size_bytes else ""
    rival = f" compared with {row.rival}" if row.rival else ""
    return "".join(f" {name}" for name in (row.op, row.kind) if name) + size + rival


def figure(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.0f} %" if value >= 0.01 else f"{100 * value:.2g} %"
    text = f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text}{unit if unit == 'x' else ' ' + unit}".strip()
