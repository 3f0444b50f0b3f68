# SPDX-License-Identifier: BSD-3-Clause
"""The ways in which python -m shmcoll.bench can measure: columns, places, caches, modes, groups."""

from __future__ import annotations


import pytest

from shmcoll.bench import options, table
from shmcoll.bench.plan import Point
from shmcoll.bench.results import Cell, Row

pytestmark = pytest.mark.timeout(120)


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that bad usage is told with."""
    with pytest.raises(SystemExit) as stop:
        options.parse(args)
    assert stop.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# ---- --columns ----


def test_the_columns_of_spread_are_those_asked_for() -> None:
    cells = {"a": Cell(rounds=[[1000, 2000], [2000, 3000]]), "b": Cell(error="refused")}
    row = Row(Point("all_reduce", "float32", 2, 8), 2, cells)
    one = table.Table(("a", "b"), ("max", "cv", "p99", "min"))
    groups, names, units = one.header()
    line = one.line(row)
    assert len(line) == len(names)
    assert names.split()[6:11] == ["time", "max", "cv", "p99", "min"]
    assert units.split().count("(%)") == 2
    # The standard deviation of 1, 2, 2, 3 is the root of 0.5.
    assert line.split()[5:11] == ["2.00", "3.00", "35.4", "3.00", "1.00", "0.00"]
    assert line.split()[11:17] == ["-"] * 6
    assert groups.index("- b -") > names.index("busbw")


def test_columns_must_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert options.parse(["--columns", "all"])[0].columns == ("p99", "min", "max", "cv")
    wrong = refusal(capsys, "--columns", "p99,p98")
    assert "--columns: unknown: 'p98' (all, p99, min, max, cv)" in wrong
