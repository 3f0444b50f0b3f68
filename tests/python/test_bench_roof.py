# SPDX-License-Identifier: BSD-3-Clause
"""python -m shmcoll.bench --columns roof: how near all_reduce is to what memory allows."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import pytest
from bench_runs import rows_of, run_bench, wait_until_gone
from test_bench_report import made_up

from shmcoll.bench import machine, options, plan
from shmcoll.bench.run import measure
from shmcoll.bench.show import csv_file, table
from shmcoll.bench.run.buffers import Buffers
from shmcoll.bench.run.torch_team import TeamError
from shmcoll.bench.run.measure import Measurement
from shmcoll.bench.plan import Point
from shmcoll.bench.results import Cell, Row, read
from shmcoll.bench.run.startline import BLOCK_BYTES

pytestmark = pytest.mark.timeout(120)


def row(world_size: int = 2) -> Row:
    """A megabyte in 100, 200 and 300 us, with bounds of other phases."""
    rounds = [[100_000], [200_000], [300_000]]
    point = Point("all_reduce", "float32", 250_000, 1_000_000, "in")
    one = Row(point, world_size, {"x": Cell(rounds)})
    one.scale_us, one.exchange_gbs = [20.0, 10.0, 30.0], [50.0, 20.0, 10.0]
    return one


def test_the_roof_is_scaling_and_exchange_over_the_time_of_the_same_round() -> None:
    # 1 MB at 50, 20, 10 GB/s are 20, 50, 100 us: (20 + 20) / 100, (10 + 50) / 200, (30 + 100) / 300
    assert row().roof("x") == pytest.approx(0.4)
    # Four ranks read 2 * 3/4 of it: 50 / 100, 85 / 200, 180 / 300
    assert row(4).roof("x") == pytest.approx(0.5)
    without = row()
    without.scale_us, without.exchange_gbs = [], []
    assert without.roof("x") is None


def test_roof_is_a_column_only_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: 2)
    settings, _ = options.parse(["-g", "2", "--columns", "all"])
    assert settings.columns == plan.COLUMNS and plan.ROOF not in plan.COLUMNS
    settings, _ = options.parse(["-g", "2", "--columns", "cv,roof"])
    shown = table.Table(("x",), settings.columns)
    groups, names, units = shown.header()
    assert names.split()[8:] == ["cv", "roof", "busbw", "#wrong"]
    assert shown.line(row()).split()[8] == "40.0"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("-o barrier", "--columns roof is of all_reduce, which is not in -o barrier"),
        ("--mode skew", "--columns roof has no --mode skew"),
        ("--overlap", "--columns roof has no --overlap"),
        ("--cache cold", "--columns roof has no --cache cold"),
        ("-g 1", "--columns roof: 2 ranks and more, each with a CPU of its own, not -g 1"),
        ("-g 3", "--columns roof: 2 ranks and more, each with a CPU of its own, not -g 3"),
        ("--backends bounds", "--columns roof: no backend may be called bounds"),
        ("--matrix", "--matrix has no --columns roof"),
    ],
)
def test_what_does_not_go_with_the_roof_is_told(
    args: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: 2)
    with pytest.raises(SystemExit) as stop:
        options.parse(["-g", "2", "--columns", "roof", *args.split()])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {said} (--help)\n")


class Ranks:
    """Ranks of a backend or of the bounds. Those of the bounds end in the second round."""

    own_clocks = False

    def __init__(self, label: str) -> None:
        self.label = label
        self.asked: list[int] = []

    def prepare(self, *_: object) -> None:
        pass

    def check(self, salt: int) -> int:
        return 0

    def time(self, iterations: int, budget_ns: int) -> list[dict[str, object]]:
        return [{"phases": [[[0], [1000]]]}] * 2

    def bounds(self, size_bytes: int) -> list[dict[str, list[float]]]:
        self.asked.append(size_bytes)
        if len(self.asked) > 1:
            raise TeamError("rank 0 ended")
        return [
            {"scale": [100, 900, 300], "exchange": [BLOCK_BYTES / 10] * 3},
            {"scale": [200, 100, 400], "exchange": [BLOCK_BYTES / 20] * 3},
        ]

    def stop(self, at_once: bool = False) -> None:
        pass


def test_the_slowest_rank_of_each_turn_counts_and_dead_bounds_cost_no_backend() -> None:
    settings, _ = options.parse(["--backends", "x", "--rounds", "2", "-g", "2"])
    bounds = Ranks("bounds")
    measurement = Measurement([Ranks("x")], settings, Buffers(settings, machine.gather()), bounds)  # type: ignore[list-item, arg-type]
    points = [Point("barrier", None, 0, 0), Point("all_reduce", "float32", 2, 8)]
    barrier, reduce = [one for one, last in measurement.rows(points) if last]
    assert bounds.asked == [8, 8]
    assert (reduce.scale_us, reduce.exchange_gbs) == ([0.4], [pytest.approx(10)])
    assert barrier.scale_us == [] and len(reduce.cells["x"].rounds) == 2
    assert measurement.failures == {"bounds": "rank 0 ended"}
    assert measure.BLOCK_BYTES == BLOCK_BYTES


def test_the_bounds_of_each_round_are_in_the_files(tmp_path: Path) -> None:
    report = made_up("-o", "all_reduce", "-e", "64")
    for one in report.rows:
        one.scale_us, one.exchange_gbs = [1.0, 2.0, 3.0], [10.0, 20.0, 30.0]
    report.write_json(tmp_path / "x.json")
    assert read(tmp_path / "x.json") == report
    csv_file.write(report, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            (same,) = (r for r in report.rows if str(r.point.size_bytes) == line["size_bytes"])
            assert float(line["roof"]) == same.roof(line["backend"])


def test_a_run_measures_its_bounds_in_each_round(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    args = ["-g", "2", "--backends", "gloo", "-o", "all_reduce,barrier", "-b", "1M", "-e", "1M"]
    args += ["-n", "2", "--rounds", "3", "--columns", "roof", "--json", str(out)]
    done = run_bench(tmp_path, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    reduce, barrier = read(out).rows
    assert len(reduce.scale_us) == len(reduce.exchange_gbs) == 3 and not barrier.scale_us
    assert min(reduce.scale_us) > 0 and 0.1 < median(reduce.exchange_gbs) < 1000
    lines = rows_of(done.stdout)
    roof = reduce.roof("gloo")
    assert roof and float(lines[0][7]) == pytest.approx(100 * roof, abs=0.06)
    assert lines[1][7] == "-"
    wait_until_gone(tmp_path)
