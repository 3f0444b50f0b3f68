# SPDX-License-Identifier: BSD-3-Clause
"""The ways in which python -m shmcoll.bench can measure: columns, places, caches, modes, groups."""

from __future__ import annotations


from pathlib import Path

import pytest
import torch
from bench_runs import TINY, rows_of, run_bench

from shmcoll.bench import exercise, options, plan, startline, table
from shmcoll.bench.ops import DTYPES
from shmcoll.bench.plan import Point
from shmcoll.bench.results import Cell, Row
from shmcoll.bench.startline import StartLine

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
    assert names.split()[7:12] == ["time", "max", "cv", "p99", "min"]
    assert units.split().count("(%)") == 2
    # The standard deviation of 1, 2, 2, 3 is the root of 0.5.
    assert line.split()[6:12] == ["2.00", "3.00", "35.4", "3.00", "1.00", "0.00"]
    assert line.split()[12:18] == ["-"] * 6
    assert groups.index("- b -") > names.index("busbw")


def test_columns_must_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert options.parse(["--columns", "all"])[0].columns == ("p99", "min", "max", "cv")
    wrong = refusal(capsys, "--columns", "p99,p98")
    assert "--columns: unknown: 'p98' (all, p99, min, max, cv)" in wrong


# ---- --place ----


def places(*args: str) -> list[tuple[str, str]]:
    settings, _ = options.parse(["-b", "64", "-e", "64", *args])
    return [(point.op, point.place) for point in plan.points(settings)]


def test_the_places_of_an_operation_are_those_that_torch_allows() -> None:
    ops = ("-o", "all_reduce,all_gather,all_to_all,barrier")
    assert places(*ops) == [
        ("all_reduce", "in"),
        ("all_gather", "out"),
        ("all_to_all", "out"),
        ("barrier", "-"),
    ]
    assert places("--place", "in", *ops) == [("all_reduce", "in"), ("all_gather", "in")]
    assert places("--place", "out", *ops) == [("all_gather", "out"), ("all_to_all", "out")]
    assert places("--place", "both", "-o", "reduce_scatter,barrier") == [
        ("reduce_scatter", "out"),
        ("reduce_scatter", "in"),
        ("barrier", "-"),
    ]


def test_a_place_that_no_operation_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no operation of all_to_all has it" in refusal(
        capsys, "--place", "in", "-o", "all_to_all"
    )
    assert "invalid choice: 'here'" in refusal(capsys, "--place", "here")


@pytest.mark.parametrize("place", ["in", "out"])
def test_in_place_the_own_block_lies_in_the_large_tensor(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from shmcoll.bench import calls

    found = []

    def all_gather(everyone: torch.Tensor, mine: torch.Tensor) -> None:
        found.append(mine.data_ptr() == everyone.data_ptr() + 100 * 4)
        for rank, block in enumerate(everyone.chunk(3)):
            block.copy_(calls.pattern(rank, 100, 7, DTYPES["float32"]))

    def reduce_scatter(mine: torch.Tensor, everyone: torch.Tensor) -> None:
        found.append(mine.data_ptr() == everyone.data_ptr() + 100 * 4)
        parts = [calls.pattern(r, 300, 7, DTYPES["float32"], addends=3) for r in range(3)]
        mine.copy_(sum(parts)[100:200])

    monkeypatch.setattr("torch.distributed.all_gather_into_tensor", all_gather)
    monkeypatch.setattr("torch.distributed.reduce_scatter_tensor", reduce_scatter)
    for op in ("all_gather", "reduce_scatter"):
        point = Point(op, "float32", 100, 1200, place)
        context = calls.Context(1, 3, StartLine(startline.create(3), 1, 3))
        call = calls.prepare(point, context)
        task = exercise.Latency([call], context)
        assert task.check(7) == 0
        assert task.check(8) > 80  # the values of 7 are not those of 8
    assert found == [place == "in"] * 4


def test_both_places_are_run_and_right(tmp_path: Path) -> None:
    args = ("--backends", "shmcoll,gloo", "-g", "2", "--place", "both", "--columns", "cv")
    done = run_bench(tmp_path, *args, "-o", "all_gather,reduce_scatter", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[5] for row in rows_of(done.stdout)] == ["out", "in"] * 4
    assert "# wrong values: 0 OK" in done.stdout
    assert all(float(row[7]) >= 0 and float(row[10]) >= 0 for row in rows_of(done.stdout))
