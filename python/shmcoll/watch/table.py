# SPDX-License-Identifier: BSD-3-Clause
"""Tables of text that fit a width."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence

Span = tuple[str, str]  # text and its style, in the words of rich
Line = list[Span]


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def wrapped(text: str, width: int, style: str = "", indent: str = "   ") -> list[Line]:
    """A sentence, over as many lines as it needs."""
    lines = textwrap.wrap(text, max(20, width), subsequent_indent=indent, break_on_hyphens=False)
    return [[(line, style)] for line in lines]


@dataclasses.dataclass
class Column:
    title: str
    short_title: str = ""  # where there is little room
    right: bool = False
    least: int | None = None  # characters; None: it is not cut
    # Of columns that do not fit, the one with the highest goes first; 0: it stays. One that is not cut goes
    # before others are cut.
    rank: int = 0


Row = Sequence[Span]  # a cell for each column


@dataclasses.dataclass
class _Fit:
    kept: list[int]
    titles: list[str]
    widths: list[int]
    gap: str


def layout(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[Line]:
    """The head, and a line for each row, none of them wider than width unless that is impossible."""
    fit = _fit(columns, rows, width)
    head = [(text, "bold") for text in fit.titles]
    lines = [_line(columns, fit, head)]
    return lines + [_line(columns, fit, [row[index] for index in fit.kept]) for row in rows]


def _fit(columns: Sequence[Column], rows: Sequence[Row], width: int) -> _Fit:
    kept = list(range(len(columns)))
    while True:
        for gap, short in (("  ", False), (" ", True)):
            fit = _natural(columns, rows, kept, gap, short)
            spare = width - sum(fit.widths) - len(gap) * (len(kept) - 1)
            if spare >= 0:
                return fit
        droppable = [
            index for index in kept if columns[index].rank and columns[index].least is None
        ]
        if not droppable:
            if _shrink(columns, fit, spare):
                return fit
            droppable = [index for index in kept if columns[index].rank]
        if not droppable:
            return fit
        kept.remove(max(droppable, key=lambda index: columns[index].rank))


def _natural(
    columns: Sequence[Column], rows: Sequence[Row], kept: list[int], gap: str, short: bool
) -> _Fit:
    titles = [
        columns[index].short_title if short and columns[index].short_title else columns[index].title
        for index in kept
    ]
    widths = [
        max([len(title), *(len(row[index][0]) for row in rows)])
        for index, title in zip(kept, titles)
    ]
    return _Fit(list(kept), titles, widths, gap)


def _shrink(columns: Sequence[Column], fit: _Fit, spare: int) -> bool:
    """Takes what is missing from the columns that may be cut, the widest first."""
    while spare < 0:
        cuttable = [
            at
            for at, index in enumerate(fit.kept)
            if (least := columns[index].least) is not None and fit.widths[at] > least
        ]
        if not cuttable:
            return False
        fit.widths[max(cuttable, key=lambda at: fit.widths[at])] -= 1
        spare += 1
    return True


def _line(columns: Sequence[Column], fit: _Fit, cells: Sequence[Span]) -> Line:
    line: Line = []
    for at, (index, (text, style)) in enumerate(zip(fit.kept, cells)):
        if at:
            line.append((fit.gap, ""))
        width = fit.widths[at]
        if len(text) > width:
            text = text[: width - 1] + "…"
        line.append((text.rjust(width) if columns[index].right else text.ljust(width), style))
    return line
