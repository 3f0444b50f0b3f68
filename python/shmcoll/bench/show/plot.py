# SPDX-License-Identifier: BSD-3-Clause
"""A picture of the results, with matplotlib: fit for a paper or an issue.

For each operation a panel with times over sizes and, below it, one with the ratios to the first
backend. A colour is a backend, a line style a dtype, a shade the middle half of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from shmcoll.bench.judge import noise
from shmcoll.bench.show import colours, curves, plot_grids, units
from shmcoll.bench.show.curves import Curve, Panel
from shmcoll.bench.results import Report

_MARKERS = "osD^vPX"
_STYLES: tuple[Any, ...] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (5, 1)),
    (0, (3, 1, 1, 1)),
    (0, (1, 3)),
    (0, (8, 3)),
)
_WRONG: dict[str, Any] = {
    "color": "#d00000",
    "marker": "x",
    "markersize": 9,
    "linestyle": "none",
    "mew": 2.5,
}
_HOLLOW: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "linestyle": "none"}

_PER_LINE = 5  # panels in a row
_MOST_COLUMNS = 6  # of the legend
_WIDTH, _TIME_HEIGHT, _RATIO_HEIGHT = 2.9, 2.5, 1.5  # of a panel, in inches


def write(report: Report, path: Path) -> None:
    draw(report).savefig(path, dpi=150)


def draw(report: Report) -> Figure:
    if report.settings.matrix:
        return plot_grids.draw(report)
    panels = curves.panels(report)
    lines = max(1, -(-len(panels) // _PER_LINE))
    across = max(1, -(-len(panels) // lines))
    heights = (_TIME_HEIGHT, _RATIO_HEIGHT) * lines
    figure = Figure(figsize=(max(6.5, _WIDTH * across), sum(heights) + 1), layout="constrained")
    grid = figure.subplots(2 * lines, across, squeeze=False, height_ratios=heights)
    look = _Look(report, panels)
    for number in range(lines * across):
        line, place = divmod(number, across)
        time_axes, ratio_axes = grid[2 * line][place], grid[2 * line + 1][place]
        if number < len(panels):
            _draw_panel(time_axes, ratio_axes, panels[number], look)
        else:
            time_axes.set_axis_off()
            ratio_axes.set_axis_off()
        if place == 0:
            time_axes.set_ylabel("time")
            ratio_axes.set_ylabel(f"time / time\nof {report.settings.labels[0]}")
    plot_grids.title(figure, report)
    look.legend(figure)
    return figure


class _Look:
    """What all panels share: the ranges, and the colour and line of each backend."""

    def __init__(self, report: Report, panels: Sequence[Panel]) -> None:
        self.labels = report.settings.labels
        self.time_span = curves.span([one for panel in panels for one in panel.times])
        self.ratio_span = curves.span([one for panel in panels for one in panel.ratios], around=1)
        self._dtypes = curves.dtypes(report)
        self._wrong = bool(report.wrong)
        self._noisy = any(row.noisy for row in report.rows)

    def of(self, curve: Curve) -> dict[str, Any]:
        dtype = self._dtypes.index(curve.dtype) if curve.dtype else 0
        return {**self._of_label(curve.label), "linestyle": _STYLES[dtype % len(_STYLES)]}

    def _of_label(self, label: str) -> dict[str, Any]:
        place = colours.places(self.labels)[label]
        return {"color": colours.PALETTE[place], "marker": _MARKERS[place % len(_MARKERS)]}

    def legend(self, figure: Figure) -> None:
        entries = [
            Line2D([], [], label=label, markersize=5, **self._of_label(label))
            for label in self.labels
        ]
        if len(self._dtypes) > 1:
            entries += [
                Line2D([], [], label=dtype, color="#666666", linestyle=_STYLES[i % len(_STYLES)])
                for i, dtype in enumerate(self._dtypes)
            ]
        if self._noisy:
            entries.append(Line2D([], [], label=noise.DOUBT, color="#666666", **_HOLLOW))
        if self._wrong:
            entries.append(Line2D([], [], label="wrong values", **_WRONG))
        for columns in range(_MOST_COLUMNS, 0, -1):  # as many as the width has room for
            legend = figure.legend(
                handles=entries, loc="outside lower center", ncols=columns, frameon=False
            )
            if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                return
            legend.remove()


def _draw_panel(time_axes: Axes, ratio_axes: Axes, panel: Panel, look: _Look) -> None:
    time_axes.set_title(panel.name, fontsize=10)
    for axes, drawn, span, text in (
        (time_axes, panel.times, look.time_span, units.time_text),
        (ratio_axes, panel.ratios, look.ratio_span, units.ratio_text),
    ):
        places = _size_axis(axes, drawn) if panel.moves_data else _label_axis(axes, look.labels)
        for curve in drawn:
            _draw_curve(axes, curve, places(curve), look)
        _value_axis(axes, span, text)
    ratio_axes.axhline(1, color="#888888", linewidth=0.8, zorder=1)
    if panel.moves_data:
        time_axes.tick_params(labelbottom=False)
        ratio_axes.set_xlabel("size", fontsize=9)


def _draw_curve(axes: Axes, curve: Curve, places: list[float], look: _Look) -> None:
    style = look.of(curve)
    spots = curve.spots
    low, high = [spot.low for spot in spots], [spot.high for spot in spots]
    if len(spots) > 1:
        axes.fill_between(places, low, high, color=style["color"], alpha=0.18, linewidth=0)
    else:
        axes.vlines(places, low, high, color=style["color"], alpha=0.4, linewidth=4)
    axes.plot(places, [spot.value for spot in spots], linewidth=1.4, markersize=4, **style)
    noisy = [(place, spot.value) for place, spot in zip(places, spots) if spot.noisy]
    if noisy:
        inside = {"c": "white", "edgecolors": style["color"], "marker": style["marker"]}
        axes.scatter([x for x, _ in noisy], [y for _, y in noisy], s=18, zorder=4, **inside)
    wrong = [(place, spot.value) for place, spot in zip(places, spots) if spot.wrong]
    if wrong:
        axes.plot(*zip(*wrong), zorder=5, **_WRONG)


def _size_axis(axes: Axes, drawn: Sequence[Curve]) -> Callable[[Curve], list[float]]:
    sizes = [spot.size_bytes for curve in drawn for spot in curve.spots] or [1]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) / 1.5, max(sizes) * 1.5)
    ticks = units.size_ticks(min(sizes), max(sizes))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([units.size_text(tick) for tick in ticks], fontsize=8)
    return lambda curve: [spot.size_bytes for spot in curve.spots]


def _label_axis(axes: Axes, labels: Sequence[str]) -> Callable[[Curve], list[float]]:
    """An operation without a size: the backends stand side by side."""
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    return lambda curve: [float(labels.index(curve.label))] * len(curve.spots)


def _value_axis(axes: Axes, span: tuple[float, float], text: Callable[[float], str]) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*span)
    ticks = units.log_ticks(*span)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticklabels([text(tick) for tick in ticks], fontsize=8)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
