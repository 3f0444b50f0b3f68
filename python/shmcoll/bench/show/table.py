# SPDX-License-Identifier: BSD-3-Clause
"""Rows as text: one line each, printed as soon as they have all their rounds.

The columns have nccl-tests' names. On a terminal with rich installed there are colours. Unfinished rows and
a progress bar stand below the finished rows. Everywhere else the lines are plain text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from shmcoll.bench import plan
from shmcoll.bench.judge import noise
from shmcoll.bench.show import colours
from shmcoll.bench.ops import OPS
from shmcoll.bench.results import Headline, Report, Row
from shmcoll.bench.show.units import count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress
    from rich.text import Text

    from shmcoll.bench.plan import Point

Cells = Sequence[tuple[str, str]]  # (text, style)

_POINT_COLUMNS = (
    ("size", "(B)", 10),
    ("count", "(elements)", 10),
    ("type", "", 8),
    ("redop", "", 5),
    ("place", "", 5),
)
_SPARED = ("count", "redop")  # on a narrow terminal: what size, type and operation tell, too
_OP_WIDTH = max(map(len, OPS))
_TIME_WIDTH = 9
_BUSBW_WIDTH = 7
_WRONG_WIDTH = 6
_SHARES = ("cv", "hidden", "roof")  # the other columns are times
LOUD = (
    "busy machine",
    "cut short",
    "withheld",
    "WARNING",
    "interrupted",
    "cannot be used",
)  # in a note
_NAMED = 4  # rows in a note
_NOTABLE = 1.05  # a ratio beyond this, either way, gets a colour


class Table:
    """Turns rows into lines of fixed columns for these backends."""

    def __init__(
        self, labels: tuple[str, ...], columns: tuple[str, ...] = (), narrow: bool = False
    ) -> None:
        self._labels = labels
        self._spared = _SPARED if narrow else ()
        self._columns = columns
        # Wide enough for the backend's name above its columns.
        times = (_TIME_WIDTH + 1) * (1 + len(columns)) - 1
        self._busbw_widths = {label: max(_BUSBW_WIDTH, len(label) + 3 - times) for label in labels}
        self._ratio_widths = {label: max(8, len(f"vs {label}")) for label in labels[1:]}
        self.colours = colours.of(labels)

    def fitted(self, width: int) -> Table:
        """Returns the table without its optional columns if it is wider than ``width``."""
        wide = any(len(line) > width for line in self.header())
        return Table(self._labels, self._columns, narrow=True) if wide else self

    def header(self) -> list[str]:
        names, units, groups = ["# op".ljust(_OP_WIDTH)], ["#".ljust(_OP_WIDTH)], []
        for name, unit, width in _POINT_COLUMNS:
            if name in self._spared:
                continue
            names.append(name.rjust(width))
            units.append(unit.rjust(width))
        groups.append("#".ljust(len(" ".join(names))))
        for label in self._labels:
            width = self._busbw_widths[label]
            group = [name.rjust(_TIME_WIDTH) for name in ("time", *self._columns)]
            names.append(" " + " ".join([*group, "busbw".rjust(width)]))
            group = [_unit(name).rjust(_TIME_WIDTH) for name in ("time", *self._columns)]
            units.append(" " + " ".join([*group, "(GB/s)".rjust(width)]))
            groups.append(" " + f" {label} ".center(len(names[-1]) - 1, "-"))
        for label, width in self._ratio_widths.items():
            names.append(f"vs {label}".rjust(width))
        names.append("#wrong".rjust(_WRONG_WIDTH))
        return [" ".join(cells).rstrip() for cells in (groups, names, units)]

    def cells(self, row: Row) -> list[tuple[str, str]]:
        """(text, style) of each column."""
        point = row.point
        out = [(point.name.ljust(_OP_WIDTH), "bold")]
        values = (
            str(point.size_bytes),
            str(point.count),
            point.dtype or "-",
            OPS[point.op].redop or "-",
            point.place,
        )
        for (name, _, width), value in zip(_POINT_COLUMNS, values):
            if name not in self._spared:
                out.append((value.rjust(width), ""))
        for label in self._labels:
            time_us, busbw = row.cells[label].p50_us, row.busbw_gbs(label)
            mark = noise.MARK if row.cells[label].noisy else ""
            colour = self.colours[label]
            out.append((" " + f"{mark}{_time(time_us)}".rjust(_TIME_WIDTH), colour))
            more = {**row.cells[label].spread(), **row.cells[label].overlap()}
            more |= {plan.ROOF: roof} if (roof := row.roof(label)) is not None else {}
            for name in self._columns:
                out.append((_format(name, more.get(name)).rjust(_TIME_WIDTH), ""))
            shown = "-" if busbw is None or not OPS[point.op].moves_data else f"{busbw:.2f}"
            out.append((shown.rjust(self._busbw_widths[label]), ""))
        for label, width in self._ratio_widths.items():
            ratio = row.ratio(label)
            noisy = ratio is not None and row.noisy_ratio(label)
            shown = f"({format_ratio(ratio)})" if noisy else format_ratio(ratio)
            out.append((shown.rjust(width), "" if noisy else _ratio_style(ratio)))
        out.append((str(row.wrong).rjust(_WRONG_WIDTH), "bold red" if row.wrong else ""))
        return out

    def line(self, row: Row) -> str:
        return " ".join(text for text, _ in self.cells(row))


def summary(report: Report) -> list[str]:
    """Returns the lines below the rows."""
    lines = [f"# {_headline_text(report, one)}" for one in report.headlines()]
    lines += _trust(report)
    lines += [f"# {label}: {op}: {error}" for label, op, error in report.errors()]
    lines += [f"# {label}: cannot be used: {why}" for label, why in report.unusable.items()]
    if report.first_is_unusable:
        first = report.settings.labels[0]
        lines.append(f"# NOTHING IS COMPARED: {first}, the first backend, cannot be used")
    for (label, op), (wrong, rows) in report.wrong_by_op().items():
        where = f"{count(wrong, 'element')} in {count(rows, 'row')}"
        lines.append(f"# WRONG: {label}: {op}: {where}")
    if report.interrupted:
        short = len(report.rows) - report.complete
        rest = f", {short} {'has' if short == 1 else 'have'} fewer rounds" if short else ""
        done = f"{report.complete} of {count(report.points, 'row')}"
        lines.append(
            f"# interrupted: {done} {'is' if report.complete == 1 else 'are'} complete{rest}"
        )
        lines += _cut_short(report)
    if report.rows:
        lines.append(f"# wrong values: {report.wrong} {'FAILED' if report.wrong else 'OK'}")
    return lines


def _cut_short(report: Report) -> list[str]:
    """The rows that an interruption has left with fewer rounds, by name."""
    wanted = report.settings.rounds
    names = [
        f"{row.point.name} {row.point.size_bytes} ({min(rounds)} of {count(wanted, 'round')})"
        for row in report.rows
        if not row.whole(wanted)
        and (rounds := [len(cell.rounds) for cell in row.cells.values() if not cell.error])
    ]
    more = ", ..." if len(names) > _NAMED else ""
    return [f"# cut short: {', '.join(names[:_NAMED])}{more}"] if names else []


def _headline_text(report: Report, one: Headline) -> str:
    """Returns the mean ratio of an operation and a backend, and which rows it does not count."""
    reasons = [
        f"{number} {why}"
        for number, why in (
            (one.noisy, "varied too much"),
            (one.busy, "on a busy machine"),
            (one.cut, "cut short"),
            (one.absent, "without a ratio"),
        )
        if number
    ]
    what = f"{one.op}: time of {one.label} / {report.settings.labels[0]}"
    left_out = f" ({', '.join(reasons)})" if reasons else ""
    rests = f"{one.used} of {count(one.rows, 'row')}{left_out}"
    if one.mean is None:
        return f"{what}: withheld, only {rests} left"
    mean = (
        f"({format_ratio(one.mean)} on a busy machine)" if report.busy else format_ratio(one.mean)
    )
    return f"{what}: {mean}, geometric mean of {rests}"


def _trust(report: Report) -> list[str]:
    """Returns lines that say what the machine did, and which rows cannot be trusted."""
    if not report.rows:
        return []
    lines = [f"# {noise.words(report.activity)}"]
    rows = count(len(report.rows), "row")
    if varied := sum(row.varied for row in report.rows):
        limit = f"more than {noise.DISAGREE:g}x between rounds"
        lines.append(f"# {noise.MARK} and brackets: {varied} of {rows} varied by {limit}")
    if busy := sum(row.busy for row in report.rows):
        lines.append(f"# brackets: {busy} of {rows} were measured on a busy machine")
    if report.settings.rounds == 1:
        lines.append("# one round: nothing tells whether rounds agree")
    return lines


def format_ratio(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    decimals = 3 if ratio < 0.1 else 2 if ratio < 10 else 1 if ratio < 100 else 0
    return f"{ratio:.{decimals}f}x"


def _unit(column: str) -> str:
    return "(%)" if column in _SHARES else "(us)"


def _format(column: str, value: float | None) -> str:
    if column not in _SHARES:
        return _time(value)
    return "-" if value is None else f"{100 * value:.1f}"


def _time(time_us: float | None) -> str:
    if time_us is None:
        return "-"
    decimals = 2 if time_us < 100 else 1 if time_us < 10_000 else 0
    return f"{time_us:.{decimals}f}"


def _ratio_style(ratio: float | None) -> str:
    if ratio is None or 1 / _NOTABLE < ratio < _NOTABLE:
        return ""
    return "green" if ratio > 1 else "red"


def note_style(line: str) -> str:
    """The style of a line that is no row, on a terminal and in the page."""
    if any(word in line for word in ("FAILED", "WRONG", "NOTHING IS COMPARED")):
        return "bold red"
    return "bold yellow" if any(word in line for word in LOUD) else "dim"


class Screen(Protocol):
    """A place for lines of output."""

    def note(self, line: str) -> None: ...

    def begin(self, points: int, sweeps: int) -> None: ...

    def preview(self, row: Row) -> None:
        """A row that has more rounds to come."""

    def row(self, row: Row) -> None: ...

    def end(self) -> None: ...

    def styled(self, cells: Cells) -> None:
        """A line of another table."""


class PlainScreen:
    """Lines on standard output."""

    def __init__(self, table: Table, rows: bool = True) -> None:
        self._table = table
        self._rows = rows  # are they to be seen?

    def note(self, line: str) -> None:
        print(line, flush=True)

    def begin(self, points: int, sweeps: int) -> None:
        if sweeps > 1:
            then = ", which are printed in the last" if self._rows else ""
            print(f"# {sweeps} sweeps over {count(points, 'row')}{then}", flush=True)
        if self._rows:
            print("\n".join(self._table.header()), flush=True)

    def preview(self, row: Row) -> None:
        pass

    def row(self, row: Row) -> None:
        if self._rows:
            print(self._table.line(row), flush=True)

    def end(self) -> None:
        pass

    def styled(self, cells: Cells) -> None:
        self.note("".join(text for text, _ in cells).rstrip())


class RowsScreen(PlainScreen):
    """The rows alone, for another program."""

    def note(self, line: str) -> None:
        pass

    def begin(self, points: int, sweeps: int) -> None:
        pass


class RichScreen:
    """Prints lines in colour, above the current rows and a progress bar."""

    def __init__(self, table: Table, console: Console, rows: bool = True) -> None:
        self._table = table
        self._console = console
        self._rows = rows
        self._previews: dict[Point, Text] = {}
        self._progress: Progress | None = None
        self._live: Live | None = None

    def note(self, line: str) -> None:
        self._print(line, note_style(line))

    def begin(self, points: int, sweeps: int) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        from rich.text import Text

        for line in self._table.header() if self._rows else []:
            text = Text(line, "cyan")
            for label, colour in self._table.colours.items():
                text.highlight_regex(rf"-+ {re.escape(label)} -+", f"bold {colour}")
            self._print(text)
        columns = (BarColumn(), MofNCompleteColumn(), "rounds", TimeRemainingColumn())
        self._progress = Progress(*columns, console=self._console)
        self._progress.add_task("rounds", total=points * sweeps)
        # Redrawn only here: a thread that does it by itself would disturb what is measured.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def preview(self, row: Row) -> None:
        self._previews[row.point] = self._text(row)
        self._advance(list(self._previews).index(row.point))

    def row(self, row: Row) -> None:
        self._previews.pop(row.point, None)
        self._advance(0)
        if self._rows:
            self._print(self._text(row))

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()

    def styled(self, cells: Cells) -> None:
        from rich.text import Text

        self._print(Text.assemble(*cells))

    def _advance(self, index: int) -> None:
        """Shows the rows that fit on the screen, up to this one."""
        from rich.console import Group

        if self._progress is None or self._live is None:
            return
        self._progress.advance(self._progress.task_ids[0])
        room = max(1, self._console.height - 5)
        first = max(0, index + 1 - room)
        shown = list(self._previews.values())[first : first + room]
        self._live.update(Group(*shown, self._progress), refresh=True)

    def _text(self, row: Row) -> Text:
        from rich.text import Text

        cells = [Text(text, style) for text, style in self._table.cells(row)]
        return Text(" ", no_wrap=True, overflow="crop").join(cells)

    def _print(self, line: str | Text, style: str = "") -> None:
        self._console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def make_screen(table: Table, quiet: bool, rows: bool = True) -> Screen:
    """Colours on a terminal if rich is installed, else plain lines. Without rows, only those that
    have more rounds to come are seen; -q prints nothing but rows."""
    if quiet:
        return RowsScreen(table)
    if sys.stdout.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            console = Console()
            return RichScreen(table.fitted(console.width), console, rows)
    return PlainScreen(table, rows)
