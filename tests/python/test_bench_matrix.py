# SPDX-License-Identifier: BSD-3-Clause
"""python -m shmcoll.bench --matrix: pairs of ranks, one at a time."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench_runs import rows_of, run_bench
from rich.console import Console
from test_bench_report import Reader, made_up

from shmcoll.bench import options, plan
from shmcoll.bench.judge import compare
from shmcoll.bench.run import startline
from shmcoll.bench.show import csv_file, grids, page, plot, table
from shmcoll.bench.run.torch_team import Team, TeamError
from shmcoll.bench.results import Cell, Report, Row, read
from shmcoll.bench.run.startline import StartLine

pytestmark = pytest.mark.timeout(120)

SMALL, LARGE = 8, 1 << 20


def matrix(ranks: int = 3, backends: str = "shmcoll,gloo") -> Report:
    """Between ranks a and b a small message takes a + 2b + 1 us, ten times that with the second
    backend; a large one 100 (a + b) us."""
    report = made_up("-g", str(ranks), "--matrix", "--backends", backends)
    for row in report.rows:
        begins, answers = row.point.pair or (0, 0)
        small = row.point.size_bytes == SMALL
        us = begins + 2 * answers + 1 if small else 100 * (begins + answers)
        for place, label in enumerate(row.cells):
            row.cells[label] = Cell([[us * 1000 * 10**place]] * 3)
    return report


def row_of(report: Report, pair: tuple[int, int], size: int) -> Row:
    (row,) = (r for r in report.rows if (r.point.pair, r.point.size_bytes) == (pair, size))
    return row


# ---- what is measured ----


def test_each_pair_is_measured_in_both_orders_with_two_sizes() -> None:
    settings, _ = options.parse(["-g", "3", "--matrix"])
    found = [(point.op, point.pair, point.size_bytes) for point in plan.points(settings)]
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert found == [("ping_pong", pair, size) for pair in pairs for size in (SMALL, LARGE)]
    settings, _ = options.parse(["-g", "2", "--matrix", "-b", "64", "-e", "4K", "-d", "int8"])
    assert [point.size_bytes for point in plan.points(settings)] == [64, 4096] * 2
    settings, _ = options.parse(["-g", "2", "--matrix", "-b", "64", "-e", "64"])
    assert [point.size_bytes for point in plan.points(settings)] == [64] * 2


def test_all_pairs_together_have_the_same_time_however_many_they_are() -> None:
    for ranks in (2, 4, 16):
        settings, _ = options.parse(["-g", str(ranks), "--matrix"])
        together = settings.point_time_s * len(plan.points(settings))
        assert together == pytest.approx(plan.MATRIX_S)
    settings, _ = options.parse(["-g", "4", "--matrix", "--point-time", "0.7"])
    assert settings.point_time_s == 0.7


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--mode throughput", "--matrix has no --mode throughput"),
        ("--groups 2 -g 4", "--matrix has no --groups 2"),
        ("--cache cold", "--matrix has no --cache cold"),
        ("--place in", "--matrix has no --place in"),
        ("--columns cv,p99", "--matrix has no --columns cv,p99"),
        ("--overlap", "--matrix has no --overlap"),
        ("--preset ddp", "--matrix has no --preset"),
        ("-o all_reduce,barrier", "--matrix is of ping_pong, not of -o all_reduce,barrier"),
        ("-f 2", "--matrix has two sizes, -b and -e, so no -f 2"),
        ("-d int8,float32", "--matrix is of one dtype, not of -d int8,float32"),
        ("-g 1", "--matrix is of pairs: at least 2 ranks, not -g 1"),
        ("-b 2M", "-b, 2097152 bytes, is larger than -e, 1048576"),
    ],
)
def test_what_does_not_go_with_pairs_is_told(
    args: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        options.parse(["--matrix", *args.split()])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {said} (--help)\n")


# ---- who takes part ----


def team_of_sockets(tmp_path: Path, ranks: int) -> tuple[Team, list[socket.socket]]:
    settings, _ = options.parse(["-g", str(ranks), "--matrix", "--backends", "x", "-T", "1"])
    team = Team("x", "x", settings, tmp_path)
    ends = [socket.socketpair() for _ in range(ranks)]
    team._channels = [ours for ours, _ in ends]
    return team, [theirs for _, theirs in ends]


def test_nobody_but_the_pair_is_asked(tmp_path: Path) -> None:
    team, ends = team_of_sockets(tmp_path, 4)
    (point,) = (p for p in plan.points(team._settings) if (p.pair, p.size_bytes) == ((3, 1), SMALL))
    for rank, wrong in ((1, 5), (3, 7)):
        ends[rank].sendall(b"{}\n")
    team.prepare(point, 1, 0)
    for rank, wrong in ((1, 5), (3, 7)):
        ends[rank].sendall(json.dumps({"wrong": wrong}).encode() + b"\n")
    assert team.check(1) == 12
    for rank, phase in ((1, "answered"), (3, "begun")):
        ends[rank].sendall(json.dumps({"phases": [phase]}).encode() + b"\n")
    assert [reply["phases"] for reply in team.time(1, 1)] == [["begun"], ["answered"]]
    for rank, end in enumerate(ends):
        if rank in (1, 3):
            asked = [json.loads(line)["do"] for line in end.recv(1 << 16).splitlines()]
            assert asked == ["prepare", "check", "time"]
        else:
            with pytest.raises(BlockingIOError):
                end.recv(1, socket.MSG_DONTWAIT)
    (tmp_path / "x").mkdir()
    for rank in range(4):
        (tmp_path / "x" / f"rank{rank}.log").touch()
    ends[1].sendall(b'{"error": "gone wrong"}\n')
    ends[3].sendall(b'{"wrong": 0}\n')
    with pytest.raises(TeamError, match=r"gone wrong \(rank 1\)"):
        team.check(2)


def test_the_first_of_a_pair_announces_the_start_of_the_two() -> None:
    fd = startline.create(3)
    lines = [StartLine(fd, rank, 3) for rank in range(3)]
    with ThreadPoolExecutor(2) as pool:
        for first, second in ((2, 1), (1, 0), (0, 2), (2, 1)):
            pair = [lines[rank].among((first, second)) for rank in (first, second)]
            for count in (1, 7, 0):
                told = [pool.submit(line.wait, c) for line, c in zip(pair, (count, 99))]
                assert [one.result(timeout=20) for one in told] == [count, count]


def test_an_mpi_is_told_its_own_numbers_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = SimpleNamespace(**{name: name for name in "Datatype Op Request buffer SUM LOR".split()})
    types = "FLOAT DOUBLE INT8_T UINT8_T INT16_T UINT16_T INT32_T UINT32_T INT64_T UINT64_T"
    vars(mpi).update({name: name for name in (types + " C_FLOAT_COMPLEX C_DOUBLE_COMPLEX").split()})
    mpi.C_BOOL, mpi.buffer = "C_BOOL", SimpleNamespace(fromaddress=lambda address, count: count)
    package = SimpleNamespace(rc=SimpleNamespace(), MPI=mpi)
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", package)
    monkeypatch.delitem(__import__("sys").modules, "shmcoll.bench.run.over_mpi", raising=False)
    from shmcoll.bench.run import over_mpi

    done: list[tuple[str, int]] = []
    comm = SimpleNamespace(
        Send=lambda data, to: done.append(("send", to)),
        Recv=lambda data, of: done.append(("recv", of)),
    )
    how = {"comm": comm, "places": {1: 0, 3: 1, 5: 2}}
    data = torch.zeros(2)
    for place, members in ((0, (5, 1)), (1, (5, 1)), (0, (1, 3, 5))):
        context = SimpleNamespace(rank=place, members=members, how=how)
        over_mpi.ping_pong(context, data, data, place ^ 1)(0)
    monkeypatch.delitem(__import__("sys").modules, "shmcoll.bench.run.over_mpi")
    begun, answered = [("send", 0), ("recv", 0)], [("recv", 2), ("send", 2)]
    assert done == begun + answered + [("send", 1), ("recv", 1)]


# ---- what is shown ----


def test_a_grid_has_the_time_of_the_small_and_the_bandwidth_of_the_large() -> None:
    report = matrix()
    found = grids.grids(report)
    assert [(one.label, one.what, one.size_bytes) for one in found] == [
        ("shmcoll", "time", SMALL),
        ("shmcoll", "bandwidth", LARGE),
        ("gloo", "time", SMALL),
        ("gloo", "bandwidth", LARGE),
    ]
    pairs = list(permutations(range(3), 2))
    assert found[2].values == {(a, b): 10 * (a + 2 * b + 1) for a, b in pairs}
    bandwidths = {(a, b): pytest.approx(LARGE / (1e5 * (a + b))) for a, b in pairs}
    assert found[1].values == bandwidths
    one_size = made_up("-g", "2", "--matrix", "-b", "4K", "-e", "4K", "--backends", "x")
    assert [len(one.values) for one in grids.grids(one_size)] == [2, 2]


def test_a_tint_is_how_far_a_pair_is_from_the_best_one() -> None:
    pairs = list(permutations(range(3), 2))
    time = grids.Grid("x", grids.TIME, 8, 3, dict(zip(pairs, (1, 10, 100, 1, 1, 1))))
    assert [time.tint(pair) for pair in pairs[:3]] == pytest.approx([0, 0.5, 1])
    speed = grids.Grid("x", grids.BANDWIDTH, 8, 3, dict(zip(pairs, (1, 10, 100, 1, 1, 1))))
    assert [speed.tint(pair) for pair in pairs[:3]] == pytest.approx([1, 0.5, 0])
    even = grids.Grid("x", grids.TIME, 8, 3, dict(zip(pairs, (1.0, 1.01, 1.0, 1, 1, 1))))
    assert max(map(even.tint, pairs)) < 0.02
    alone = grids.Grid("x", grids.BANDWIDTH, 8, 2, {(0, 1): 5.0})
    assert alone.tint((0, 1)) == 0


def test_the_tables_are_lines_of_ranks() -> None:
    report = matrix()
    bad = row_of(report, (1, 2), SMALL)
    bad.cells["shmcoll"].wrong = 3
    none = row_of(report, (2, 0), SMALL)
    none.cells["shmcoll"].error = "refused"
    text = ["".join(part for part, _ in cells).rstrip() for cells in grids.lines(report)]
    assert text[:6] == [
        "#",
        "# shmcoll: time of 8 B, us one way (line: begins, column: answers)",
        "#      0     1     2",
        "0         3.00  5.00",
        "1   2.00       6.00!",
        "2      -  5.00",
    ]
    assert text[13] == "# gloo: time of 8 B, us one way (line: begins, column: answers)"
    assert text[15] == "0       30.0 50.0"
    styles = {
        part.strip(): style for cells in list(grids.lines(report))[3:5] for part, style in cells
    }
    assert styles["2.00"] == "green" and styles["6.00!"] == "bold red" and styles["5.00"] == "red"


def test_colours_are_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    shown = table.Table(("x",))
    cells = next(cells for cells in grids.lines(matrix()) if cells[0][0].startswith("0"))
    terminal = io.StringIO()
    screen = table.RichScreen(shown, Console(file=terminal, force_terminal=True), rows=False)
    screen.styled(cells)
    assert "\x1b[" in terminal.getvalue()
    table.PlainScreen(shown, rows=False).styled(cells)
    plain = capsys.readouterr().out
    assert re.sub("\x1b.*?m", "", terminal.getvalue()).rstrip() == plain.rstrip()
    table.RowsScreen(shown, rows=False).styled(cells)
    assert capsys.readouterr().out == ""


# ---- files ----


def test_pairs_come_back_from_json_and_older_files_have_none(tmp_path: Path) -> None:
    path, report = tmp_path / "x.json", matrix()
    report.write_json(path)
    assert read(path) == report
    assert json.loads(path.read_text())["results"][0]["pair"] == [0, 1]
    data = json.loads(json.dumps(made_up().as_json()))
    data["schema"] = "shmcoll.bench/3"
    del data["settings"]["matrix"]
    for result in data["results"]:
        del result["pair"]
    path.write_text(json.dumps(data))
    assert {row.point.pair for row in read(path).rows} == {None}


def test_csv_names_both_ranks(tmp_path: Path) -> None:
    csv_file.write(matrix(), tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6 * 2 * 2
    for line in lines:
        begins, answers = int(line["from_rank"]), int(line["to_rank"])
        if (line["backend"], line["size_bytes"]) == ("gloo", "8"):
            assert float(line["p50_us"]) == 10 * (begins + 2 * answers + 1)
    csv_file.write(made_up(), tmp_path / "y.csv")
    with (tmp_path / "y.csv").open(newline="") as file:
        assert {(line["from_rank"], line["to_rank"]) for line in csv.DictReader(file)} == {("", "")}


def test_the_page_has_a_square_for_each_pair() -> None:
    report = matrix()
    bad = row_of(report, (1, 2), SMALL)
    bad.cells["gloo"].wrong = 3
    none = row_of(report, (2, 0), LARGE)
    none.cells["gloo"].error = "refused"
    text = page.render(report)
    reader = Reader(text)
    assert reader.tags.count("rect") == 2 * 2 * 6 - 1 and reader.tags.count("circle") == 0
    assert reader.tags.count("figure") == 2 and reader.references == []
    squares = re.findall(r'<rect class="heat ([^"]+)".*?fill-opacity="(.*?)"><title>(.*?)<', text)
    found = {said: (kind, float(opacity)) for kind, opacity, said in squares}
    assert found["shmcoll, 1 to 0: 2.00"] == ("c0", 0.06)
    assert found["shmcoll, 1 to 2: 6.00"] == ("c0", 0.6)
    assert found["gloo, 1 to 2: 60.0!, WRONG VALUES"] == ("wrong", 0.6)
    assert not any(said.startswith("gloo, 2 to 0") and "30.0" not in said for said in found)
    shown = table.Table(report.settings.labels)
    assert reader.cells == [cell.strip() for row in report.rows for cell, _ in shown.cells(row)]
    assert "ping_pong:1-2" in reader.cells and "one pair at a time" in text


@pytest.mark.parametrize("ranks", [2, 3, 17])
def test_the_picture_has_a_heat_map_of_each_grid(ranks: int) -> None:
    report = matrix(ranks)
    figure = plot.draw(report)
    found = {axes.get_title(): axes for axes in figure.axes}
    assert len(found) == 4
    for grid in grids.grids(report):
        axes = found[f"{grid.label}\n{grid.title}"]
        (image,) = axes.images
        tints = image.get_array()
        assert all(tints[a, b] == pytest.approx(grid.tint((a, b))) for a, b in grid.values)
        texts = {text.get_position(): text.get_text() for text in axes.texts}
        assert texts == ({(b, a): grid.text((a, b)) for a, b in grid.values} if ranks < 17 else {})


def test_pairs_are_compared_each_with_itself() -> None:
    old, new = matrix(), matrix()
    for report in (old, new):
        for row in report.rows:
            for cell in row.cells.values():
                cell.rounds = [
                    [one[0] + k * 10] for k, one in enumerate(cell.rounds[:1] * compare.MIN_ROUNDS)
                ]
    for row in new.rows:
        if row.point.pair == (2, 1):
            row.cells["shmcoll"].rounds = [[2 * one[0]] for one in row.cells["shmcoll"].rounds]
    found = compare.compare(old, new)
    slower = [change.point.name for change in found.changes if change.verdict == compare.SLOWER]
    assert slower == ["ping_pong:2-1"] * 2 and len(found.changes) == 12
    with pytest.raises(compare.Incomparable, match="matrix differs: True and False"):
        compare.compare(old, replace(new, settings=replace(new.settings, matrix=False)))


# ---- a whole run ----


def test_a_run_has_every_pair_of_every_backend(tmp_path: Path) -> None:
    out = {name: tmp_path / f"x.{name}" for name in ("json", "csv", "html", "png")}
    args = ["-g", "3", "--matrix", "-e", "64K", "--rounds", "2", "-n", "3"]
    args += ["--json", str(out["json"]), "--csv", str(out["csv"])]
    done = run_bench(tmp_path, *args, "--html", str(out["html"]), "--plot", str(out["png"]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# one pair at a time\n# 6 pairs, 200 ms for each and size" in done.stdout
    assert "# wrong values: 0 OK" in done.stdout and "ping_pong:0" not in done.stdout
    lines = rows_of(done.stdout)
    assert [line[0] for line in lines] == ["0", "1", "2"] * 4
    report = read(out["json"])
    pairs = list(permutations(range(3), 2))
    assert [row.point.pair for row in report.rows] == [pair for pair in pairs for _ in range(2)]
    for row in report.rows:
        assert row.world_size == 2 and row.wrong == 0
        assert all(len(one) == 3 for cell in row.cells.values() for one in cell.rounds)
    for number, grid in enumerate(grids.grids(report)):
        for begins in range(3):
            others = [grid.text((begins, rank)) for rank in range(3) if rank != begins]
            assert lines[3 * number + begins][1:] == others
    assert all(path.stat().st_size > 500 for path in out.values())


def test_wrong_values_of_one_pair_are_those_of_that_pair(tmp_path: Path) -> None:
    (tmp_path / "spoiler.py").write_text(
        "import torch.distributed as dist\n"
        "true_recv = dist.recv\n"
        "def recv(tensor, src, **how):\n"
        "    true_recv(tensor, src, **how)\n"
        "    if (dist.get_rank(), src) == (2, 0) and tensor.any():\n"
        "        tensor[0] += 1\n"
        "dist.recv = recv\n"
    )
    args = ("-g", "3", "--matrix", "--backends", "gloo", "-e", "64", "--rounds", "1", "-n", "1")
    done = run_bench(tmp_path, *args, "-q", "--import", "spoiler")
    assert done.returncode == 1, done.stdout + done.stderr
    wrong = {row[0]: row[-1] for row in rows_of(done.stdout) if row[-1] != "0"}
    # In two checks each. Rank 2 sends on what it has got; where it begins, it is the last.
    assert wrong == {"ping_pong:0-2": "4", "ping_pong:2-0": "2"}
    assert len(rows_of(done.stdout)) == 12
