# SPDX-License-Identifier: BSD-3-Clause
"""python -m shmcoll.bench: the rounds of a row are spread over the run, and shown as they come."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from shmcoll.bench import cli, machine, options
from shmcoll.bench.show import stdout, table
from shmcoll.bench.run.buffers import Buffers
from shmcoll.bench.run.torch_team import TeamError
from shmcoll.bench.run.measure import Measurement
from shmcoll.bench.plan import Point, Settings, points
from shmcoll.bench.results import Cell, Report, Row

Done = tuple[str, int | str, str]  # what, with which size or salt, by whom


@dataclass
class Team:
    """Notes what it is asked for; may fail at the so-manieth of its rounds, or be interrupted."""

    own_clocks = False
    label: str
    done: list[Done]
    fails: int = 0
    interrupted: int = 0
    times: int = field(default=0, init=False)

    def prepare(self, point: Point, copies: int, sweep_bytes: int) -> None:
        self.done.append(("prepare", point.size_bytes, self.label))

    def check(self, salt: int) -> int:
        self.done.append(("check", salt, self.label))
        return 0

    def time(self, iterations: int, budget_ns: int) -> list[dict[str, object]]:
        self.times += 1
        self.done.append(("time", "", self.label))
        if self.times == self.interrupted:
            raise KeyboardInterrupt
        if self.times == self.fails:
            raise TeamError("it fell")
        return [{"phases": [[[0], [1000 * self.times]]]}] * 2

    def stop(self, at_once: bool = False) -> None:
        pass


def settings_of(*args: str) -> Settings:
    ends = ("-g", "2", "--backends", "a,b", "-o", "broadcast", "-b", "8", "-e", "64")
    return options.parse([*ends, *args])[0]


def measurement_of(settings: Settings, *teams: Team) -> Measurement:
    return Measurement(list(teams), settings, Buffers(settings, machine.gather()))


def test_a_sweep_is_one_round_of_every_row() -> None:
    done: list[Done] = []
    settings = settings_of("--rounds", "3")
    measurement = measurement_of(settings, Team("a", done), Team("b", done))
    yielded = [
        (row.point.size_bytes, len(row.cells["a"].rounds), complete)
        for row, complete in measurement.rows(points(settings))
    ]
    assert yielded == [
        (8, 1, False),
        (64, 1, False),
        (8, 2, False),
        (64, 2, False),
        (8, 3, True),
        (64, 3, True),
    ]

    def visit(size: int, before: int = 0, after: int = 0) -> list[Done]:
        asked: list[Done] = []
        for label in "ab":
            asked.append(("prepare", size, label))
            asked += [("check", before, label)] * bool(before)
        asked += [("time", "", label) for label in "ab"]
        return asked + [("check", after, label) for label in "ab"] * bool(after)

    # Of two ranks, each is the root of one of a row's two checks.
    first = visit(8, before=1) + visit(64, before=3)
    last = visit(8, after=2) + visit(64, after=4)
    assert done == first + visit(8) + visit(64) + last


def test_a_backend_that_ends_keeps_the_rounds_it_had() -> None:
    settings = settings_of("--rounds", "3")
    measurement = measurement_of(settings, Team("a", []), Team("b", [], fails=4))
    rows = [row for row, complete in measurement.rows(points(settings)) if complete]
    assert [len(row.cells["a"].rounds) for row in rows] == [3, 3]
    assert [len(row.cells["b"].rounds) for row in rows] == [2, 1]
    assert [row.cells["b"].error for row in rows] == [None, "it fell"]
    assert rows[0].round_ratios("b") == [1.0, 1.0]
    assert measurement.failures == {"b": "it fell"}


def test_when_all_have_ended_the_rows_that_there_are_are_shown() -> None:
    settings = settings_of("--backends", "a", "--rounds", "4")
    measurement = measurement_of(settings, Team("a", [], fails=1))
    rows = [row for row, complete in measurement.rows(points(settings)) if complete]
    assert [(row.point.size_bytes, row.cells["a"].error) for row in rows] == [(8, "it fell")]


def test_an_interrupted_run_has_the_rounds_there_were(capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_of("--rounds", "3")
    report = Report(settings, machine.gather(), points=2)
    measurement = measurement_of(settings, Team("a", [], interrupted=6), Team("b", []))
    screen = table.PlainScreen(table.Table(settings.labels))
    with pytest.raises(KeyboardInterrupt):
        cli._measure(report, measurement, screen, points(settings), stdout.Output(sys.stdout))
    report.interrupted = True
    assert [len(row.cells["a"].rounds) for row in report.rows] == [3, 2]
    assert "# interrupted: 1 of 2 rows is complete, 1 has fewer rounds" in table.summary(report)
    assert "# cut short: broadcast 64 (2 of 3 rounds)" in table.summary(report)
    assert [row["complete"] for row in report.as_json()["results"]] == [True, False]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# 3 sweeps over 2 rows, which are printed in the last"
    assert [line.split()[1] for line in lines if line.startswith("broadcast")] == ["8", "64"]


def below_the_rows(height: int) -> list[list[str]]:
    """Returns, for three rows in two sweeps, the sizes below the final rows after each."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=height)
    screen = table.RichScreen(table.Table(("a",)), console)
    screen.begin(3, 2)
    below = []
    for show in (screen.preview, screen.row):
        for size in (8, 16, 24):
            cell = Cell(rounds=[[size * 1000]])
            show(Row(Point("all_reduce", "float32", size // 4, size), 2, {"a": cell}))
            assert screen._live is not None
            paper = Console(file=io.StringIO(), width=120)
            paper.print(screen._live.renderable)
            assert isinstance(paper.file, io.StringIO)
            *rows, bar = paper.file.getvalue().splitlines()
            assert f" {len(below) + 1}/6 rounds" in bar
            below.append([row.split()[1] for row in rows])
    screen.end()
    return below


def test_a_terminal_shows_the_rows_as_they_are_now() -> None:
    below = below_the_rows(height=30)
    assert below == [["8"], ["8", "16"], ["8", "16", "24"], ["16", "24"], ["24"], []]


def test_a_small_terminal_shows_the_rows_that_change() -> None:
    below = below_the_rows(height=7)
    assert below == [["8"], ["8", "16"], ["16", "24"], ["16", "24"], ["24"], []]
