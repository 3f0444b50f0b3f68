# SPDX-License-Identifier: BSD-3-Clause
"""What the charts show in every output: a panel per operation, curves over the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from shmcoll.bench.ops import OPS
from shmcoll.bench.results import Report, Row
from shmcoll.bench.show.units import count


PLACE_NAMES = {"in": "in place", "out": "out of place", "-": "-"}


@dataclass(frozen=True)
class Spot:
    """One row of one backend. The median over its rounds, and where the middle half of them is."""

    size_bytes: int
    value: float
    low: float
    high: float
    wrong: bool
    noisy: bool  # the rounds disagree


@dataclass(frozen=True)
class Curve:
    """One backend with one dtype, by rising size."""

    label: str
    dtype: str | None
    spots: list[Spot]


@dataclass(frozen=True)
class Panel:
    """One operation, in one place."""

    op: str
    name: str
    times: list[Curve]  # in us
    ratios: list[Curve]  # time of the backend / time of the first one

    @property
    def moves_data(self) -> bool:
        """If not, there is no size: a curve is one spot."""
        return OPS[self.op].moves_data


def panels(report: Report) -> list[Panel]:
    """Operations in the order they were measured; curves that have no spot are left out."""
    out = []
    found = list(dict.fromkeys((row.point.op, row.point.place) for row in report.rows))
    for op, place in found:
        rows = [row for row in report.rows if (row.point.op, row.point.place) == (op, place)]
        alone = [one for one, _ in found].count(op) == 1
        name = op if alone else f"{op} ({PLACE_NAMES[place]})"
        dtypes = dict.fromkeys(row.point.dtype for row in rows)
        times, ratios = [], []
        for label in report.settings.labels:
            for dtype in dtypes:
                mine = sorted(
                    (row for row in rows if row.point.dtype == dtype),
                    key=lambda row: row.point.size_bytes,
                )
                times.append(Curve(label, dtype, _spots(mine, label, of_ratio=False)))
                if label != report.settings.labels[0]:
                    ratios.append(Curve(label, dtype, _spots(mine, label, of_ratio=True)))
        out.append(Panel(op, name, *([c for c in curves if c.spots] for curves in (times, ratios))))
    return out


def span(curves: Sequence[Curve], around: float | None = None) -> tuple[float, float]:
    """The lowest and the highest value with some room; at least so that ``around`` is inside."""
    values = [
        value for c in curves for spot in c.spots for value in (spot.low, spot.value, spot.high)
    ]
    values += [] if around is None else [around]
    low, high = min(values, default=1.0), max(values, default=1.0)
    return low / 1.3, high * 1.3


def dtypes(report: Report) -> list[str]:
    found = dict.fromkeys(row.point.dtype for row in report.rows)
    return [dtype for dtype in found if dtype is not None]


def title(report: Report) -> tuple[str, str]:
    """Returns two lines: what was measured, and where."""
    facts, settings = report.machine, report.settings
    versions = ", ".join(f"{name} {version or '-'}" for name, version in facts.versions.items())
    groups = f" in {settings.groups} groups" if settings.groups > 1 else ""
    ways = "".join(f", {way}" for way in settings.ways)
    what = f"{' and '.join(settings.labels)}, {count(settings.nproc, 'rank')}{groups} on one host{ways}"
    return what, f"{facts.cpu}, {count(facts.cpus_usable, 'CPU')}; linux {facts.kernel}; {versions}"


def _spots(rows: Sequence[Row], label: str, of_ratio: bool) -> list[Spot]:
    out = []
    for row in rows:
        cell = row.cells[label]
        value = row.ratio(label) if of_ratio else cell.p50_us
        if value is not None:
            rounds = row.round_ratios(label) if of_ratio else cell.round_medians_us()
            low, high = _middle_half(rounds)
            noisy = row.noisy_ratio(label) if of_ratio else cell.noisy
            out.append(Spot(row.point.size_bytes, value, low, high, bool(cell.wrong), noisy))
    return out


def _middle_half(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high
