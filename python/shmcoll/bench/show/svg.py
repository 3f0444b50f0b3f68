# SPDX-License-Identifier: BSD-3-Clause
"""A chart as inline SVG. Colours are classes, so that the page's style sheet decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import log

from shmcoll.bench.judge import noise
from shmcoll.bench.show import colours, curves, units
from shmcoll.bench.show.curves import Curve, Panel, Spot
from shmcoll.bench.show.grids import Grid

_WIDTH = 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 26  # room around the plot
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 3", "4 6", "1 4", "10 5 1 5")


@dataclass(frozen=True)
class Style:
    """What all charts of a page have in common."""

    labels: Sequence[str]
    dtypes: Sequence[str]

    def colour(self, label: str) -> str:
        """A class of the style sheet."""
        return f"c{colours.places(self.labels)[label]}"

    def dashes(self, dtype: str | None) -> str:
        return _DASHES[self.dtypes.index(dtype) % len(_DASHES)] if dtype else ""


_HEAT_LEFT, _HEAT_TOP = 26, 20
_HEAT_MARKS = 16  # numbers of ranks at an edge
_HEAT_TEXTS = 10  # more ranks leave no room for values in the squares
_HEAT_PALE, _HEAT_FULL = 0.06, 0.6  # text can be read on both


class _Log:
    """A logarithmic axis."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._begin = log(low), begin
        self._scale = (end - begin) / ((log(high) - log(low)) or 1)

    def __call__(self, value: float) -> float:
        return self._begin + (log(value) - self._low) * self._scale


@dataclass(frozen=True)
class Chart:
    """Curves over sizes; or, where there is no size, a spot per backend."""

    panel: Panel
    drawn: Sequence[Curve]  # its times or its ratios
    text: Callable[[float], str]  # a value as a reader wants it
    height: int
    around: float | None = None  # a value with a line of its own

    def svg(self, style: Style) -> str:
        low, high = curves.span(self.drawn, self.around)
        bottom = self.height - _BOTTOM
        y = _Log(low, high, bottom, _TOP)
        x, x_ticks = self._across(style)
        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {self.height}" role="img" aria-label="{escape(self.panel.name)}">'
        ]
        for tick in units.log_ticks(low, high):
            parts.append(_line("grid", _LEFT, y(tick), _WIDTH - _RIGHT, y(tick)))
            parts.append(_text("end", _LEFT - 5, y(tick) + 4, self.text(tick)))
        for place, text in x_ticks:
            parts.append(_line("grid", place, _TOP, place, bottom))
            parts.append(_text("middle", place, bottom + 16, text))
        if self.around is not None:
            parts.append(_line("even", _LEFT, y(self.around), _WIDTH - _RIGHT, y(self.around)))
        for curve in self.drawn:
            places = [(x(curve, spot), y(spot.value)) for spot in curve.spots]
            bands = [(x(curve, spot), y(spot.low), y(spot.high)) for spot in curve.spots]
            parts += _curve(style, curve, places, bands)
            parts += [self._mark(style, curve, spot, at) for spot, at in zip(curve.spots, places)]
        return "\n".join([*parts, "</svg>"])

    def _across(
        self, style: Style
    ) -> tuple[Callable[[Curve, Spot], float], list[tuple[float, str]]]:
        if not self.panel.moves_data:
            step = (_WIDTH - _LEFT - _RIGHT) / len(style.labels)
            middles = {label: _LEFT + step * (i + 0.5) for i, label in enumerate(style.labels)}
            return lambda curve, _: middles[curve.label], [
                (at, label) for label, at in middles.items()
            ]
        sizes = [spot.size_bytes for curve in self.drawn for spot in curve.spots] or [1]
        scale = _Log(min(sizes) / 1.5, max(sizes) * 1.5, _LEFT, _WIDTH - _RIGHT)
        ticks = units.size_ticks(min(sizes), max(sizes))
        return lambda _, spot: scale(spot.size_bytes), [
            (scale(t), units.size_text(t)) for t in ticks
        ]

    def _mark(self, style: Style, curve: Curve, spot: Spot, at: tuple[float, float]) -> str:
        """A dot that says its value when pointed at; a cross in red for wrong values."""
        words = [
            curve.label,
            curve.dtype,
            self.panel.moves_data and units.size_text(spot.size_bytes),
        ]
        words += [self.text(spot.value), spot.wrong and "WRONG VALUES"]
        words.append(spot.noisy and noise.DOUBT)
        said = escape(", ".join(word for word in words if word))
        x, y = at
        if spot.wrong:
            cross = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
            return f'<path class="wrong" d="{cross}"><title>{said}</title></path>'
        colour = style.colour(curve.label) + (" noisy" if spot.noisy else "")
        dot = f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
        return f"{dot}<title>{said}</title></circle>"


@dataclass(frozen=True)
class Heat:
    """A square for each pair of ranks, the fuller the worse."""

    grid: Grid

    def svg(self, style: Style) -> str:
        grid = self.grid
        side = (_WIDTH - _HEAT_LEFT - _RIGHT) / grid.ranks
        height = _HEAT_TOP + side * grid.ranks + _TOP
        name = escape(f"{grid.label}: {grid.title}")
        parts = [f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{name}">']
        marked = range(0, grid.ranks, -(-grid.ranks // _HEAT_MARKS))
        for rank in marked:
            middle = side * (rank + 0.5)
            parts.append(_text("middle", _HEAT_LEFT + middle, _HEAT_TOP - 5, str(rank)))
            parts.append(_text("end", _HEAT_LEFT - 5, _HEAT_TOP + middle + 4, str(rank)))
        for pair in grid.values:
            parts.append(self._square(style, pair, side))
        return "\n".join([*parts, "</svg>"])

    def _square(self, style: Style, pair: tuple[int, int], side: float) -> str:
        grid, (begins, answers) = self.grid, pair
        x, y = _HEAT_LEFT + side * answers, _HEAT_TOP + side * begins
        said = f"{grid.label}, {begins} to {answers}: {grid.text(pair)}"
        wrong = pair in grid.wrong
        kind = "heat wrong" if wrong else f"heat {style.colour(grid.label)}"
        square = (
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" '
            f'fill-opacity="{_HEAT_PALE + (_HEAT_FULL - _HEAT_PALE) * grid.tint(pair):.2f}">'
        )
        title = f"<title>{escape(said + ', WRONG VALUES' * wrong)}</title></rect>"
        if grid.ranks > _HEAT_TEXTS:
            return square + title
        return (
            square
            + title
            + _text("middle", x + side / 2, y + side / 2 + 4, grid.text(pair), "value")
        )


def _curve(
    style: Style,
    curve: Curve,
    places: Sequence[tuple[float, float]],
    bands: Sequence[tuple[float, float, float]],
) -> list[str]:
    """A line, and the shade of the middle half."""
    colour = style.colour(curve.label)
    if len(places) < 2:
        x, low, high = bands[0]
        return [f'<path class="line thick {colour}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>']
    around = [(x, low) for x, low, _ in bands] + [(x, high) for x, _, high in reversed(bands)]
    dashes = style.dashes(curve.dtype)
    return [
        f'<polygon class="band {colour}" points="{_points(around)}"/>',
        f'<polyline class="line {colour}" points="{_points(places)}"'
        + (f' stroke-dasharray="{dashes}"/>' if dashes else "/>"),
    ]


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(anchor: str, x: float, y: float, text: str, kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text{kind} text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
