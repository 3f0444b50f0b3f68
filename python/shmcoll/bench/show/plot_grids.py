# SPDX-License-Identifier: BSD-3-Clause
"""The picture of ``--matrix``, with matplotlib: a heat map of times and one of bandwidths for each
backend, stronger colours for worse pairs. This module also has the title of all pictures."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shmcoll.bench.judge import noise
from shmcoll.bench.show import curves, grids
from shmcoll.bench.show.grids import Grid
from shmcoll.bench.results import Report

_SIDE = 3.2  # of a heat map, in inches
_MAX_TEXTS = 12  # more ranks leave no room for values in the squares
_DARK = 0.6  # a tint that wants white letters


def draw(report: Report) -> Figure:
    found = grids.grids(report)
    across = len(found) // 2
    size = (max(6.5, _SIDE * across), 2 * _SIDE + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(2, across, squeeze=False)
    for number, grid in enumerate(found):
        _draw_grid(axes[number % 2][number // 2], grid)
    if engine := figure.get_layout_engine():
        engine.set(h_pad=0.12)  # type: ignore[call-arg]  # the constrained one
    title(figure, report)
    figure.supxlabel(textwrap.fill(grids.LEGEND, int(size[0] * 15)), fontsize=8, color="#444444")
    return figure


def title(figure: Figure, report: Report) -> None:
    what, where = curves.title(report)
    lines = textwrap.wrap(where, int(figure.get_figwidth() * 16))
    colour = "#444444"
    if report.busy:
        lines += textwrap.wrap(noise.words(report.activity), int(figure.get_figwidth() * 16))
        colour = "#a04000"
    figure.suptitle(what + "\n" * len(lines), fontsize=12, fontweight="bold")
    below = 1 - 0.34 / figure.get_figheight()
    figure.text(0.5, below, "\n".join(lines), ha="center", va="top", fontsize=8, color=colour)


def _draw_grid(axes: Axes, grid: Grid) -> None:
    tints = [[float("nan")] * grid.ranks for _ in range(grid.ranks)]
    for pair in grid.values:
        tints[pair[0]][pair[1]] = grid.tint(pair)
    axes.imshow(tints, cmap="YlGnBu", vmin=-0.1, vmax=1.1)
    axes.set_title(f"{grid.label}\n{grid.title}", fontsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=16))
    axes.set_xlim(-0.5, grid.ranks - 0.5)
    axes.set_ylim(grid.ranks - 0.5, -0.5)
    axes.tick_params(labelsize=8)
    for pair in grid.values:
        if grid.ranks <= _MAX_TEXTS or pair in grid.wrong:
            _write_value(axes, grid, pair)


def _write_value(axes: Axes, grid: Grid, pair: tuple[int, int]) -> None:
    colour = "white" if grid.tint(pair) > _DARK else "black"
    weight = "normal"
    if pair in grid.wrong:
        colour, weight = "#d00000", "bold"
    begins, answers = pair
    axes.text(
        answers,
        begins,
        grid.text(pair),
        ha="center",
        va="center",
        fontsize=min(9.0, 60 / grid.ranks),
        color=colour,
        weight=weight,
    )
