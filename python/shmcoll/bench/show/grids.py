# SPDX-License-Identifier: BSD-3-Clause
"""What ``--matrix`` shows in every output: a row is the rank that begins, a column the one that
answers. For each backend the time of the small message and the bandwidth of the large one.

A tint is 0 for the best pair of its grid and 1 for the worst, on a logarithmic scale: grids are
about pairs that differ, and backends differ by far more than pairs do. The scale spans at least a factor
of two, so that noise stays pale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log

from shmcoll.bench.judge import noise
from shmcoll.bench.show import units
from shmcoll.bench.results import Report
from shmcoll.bench.show.table import Cells

TIME, BANDWIDTH = "time", "bandwidth"

LEGEND = (
    "Line: the rank that begins. Column: the one that answers. The stronger the colour, the worse "
    "is a pair than the best one of the same picture."
)

_LEAST_SPAN = 2.0
_STYLES = ("green", "", "yellow", "red")  # of a terminal, by rising tint


@dataclass(frozen=True)
class Grid:
    """One backend."""

    label: str
    what: str  # TIME, in us one way, or BANDWIDTH, in GB/s
    size_bytes: int
    ranks: int
    values: dict[tuple[int, int], float] = field(default_factory=dict)
    wrong: set[tuple[int, int]] = field(default_factory=set)  # pairs with wrong values
    noisy: set[tuple[int, int]] = field(default_factory=set)  # pairs whose rounds disagree

    @property
    def title(self) -> str:
        unit = "us one way" if self.what == TIME else "GB/s"
        return f"{self.what} of {units.size_text(self.size_bytes)}, {unit}"

    @property
    def span(self) -> tuple[float, float]:
        """The values of tint 0 and 1."""
        found = self.values.values() or [1.0]
        if self.what == TIME:
            return min(found), max(max(found), min(found) * _LEAST_SPAN)
        return max(found), min(min(found), max(found) / _LEAST_SPAN)

    def tint(self, pair: tuple[int, int]) -> float:
        best, worst = self.span
        return log(self.values[pair] / best) / log(worst / best)

    def text(self, pair: tuple[int, int]) -> str:
        """Three digits; "-" if there is nothing, "!" if values were wrong, "~" if rounds disagree."""
        value = self.values.get(pair)
        if value is None:
            return "-"
        decimals = max(0, 2 - max(0, len(f"{value:.0f}") - 1))
        mark = noise.MARK if pair in self.noisy else ""
        return f"{mark}{value:.{decimals}f}" + ("!" if pair in self.wrong else "")


def grids(report: Report) -> list[Grid]:
    """Two for each backend, also where there is nothing to show."""
    small, large = _sizes(report)
    ranks = report.settings.nproc
    out = []
    for label in report.settings.labels:
        time, bandwidth = Grid(label, TIME, small, ranks), Grid(label, BANDWIDTH, large, ranks)
        for row in report.rows:
            pair, cell = row.point.pair, row.cells[label]
            if pair is None or cell.p50_us is None:
                continue
            for grid, value in ((time, cell.p50_us), (bandwidth, row.busbw_gbs(label))):
                if grid.size_bytes == row.point.size_bytes and value is not None:
                    grid.values[pair] = value
                    grid.wrong.update([pair] if cell.wrong else [])
                    grid.noisy.update([pair] if cell.noisy else [])
        out += [time, bandwidth]
    return out


def lines(report: Report) -> Iterator[Cells]:
    """Yields the grids as text. A comment starts with #, as in the other table; a line starts with its backend."""
    for grid in grids(report):
        yield [("#", "")]
        yield [(f"# {grid.label}: {grid.title} (line: begins, column: answers)", "bold")]
        texts = [grid.text(pair) for pair in grid.values]
        width = max(5, *(len(text) + 1 for text in texts), 0)
        numbers = [f"{rank:>{width}}" for rank in range(grid.ranks)]
        first = len(str(grid.ranks))
        yield [("#".ljust(first + 1) + "".join(numbers), "cyan")]
        for begins in range(grid.ranks):
            row = [(f"{begins:>{first}} ", "cyan")]
            for answers in range(grid.ranks):
                pair = (begins, answers)
                text = "" if begins == answers else grid.text(pair)
                row.append((text.rjust(width), _style(grid, pair)))
            yield row


def _style(grid: Grid, pair: tuple[int, int]) -> str:
    if pair in grid.wrong:
        return "bold red"
    if pair not in grid.values:
        return ""
    return _STYLES[min(int(grid.tint(pair) * len(_STYLES)), len(_STYLES) - 1)]


def _sizes(report: Report) -> tuple[int, int]:
    """Returns the message sizes of the time and of the bandwidth."""
    found = [row.point.size_bytes for row in report.rows]
    settings = report.settings
    return min(found, default=settings.min_bytes), max(found, default=settings.max_bytes)
