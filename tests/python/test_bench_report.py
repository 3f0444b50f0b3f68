# SPDX-License-Identifier: BSD-3-Clause
"""The tool's front, and the files that a run of the benchmark leaves."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import shmcoll.bench
from shmcoll import cli as tool
from shmcoll.bench import cli, machine, options, plan
from shmcoll.bench.show import csv_file, page, plot, table, units
from shmcoll.bench.show.outputs import Outputs
from shmcoll.bench.results import Cell, Report, Row, Unreadable, read

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
PACKAGE_ROOT = Path(shmcoll.bench.__file__).parents[2]


# ---- the front ----


@pytest.fixture(name="front")
def fixture_front(tmp_path: Path) -> Front:
    return Front(tmp_path)


class Front:
    """Runs the tool by its names."""

    def __init__(self, tmp_path: Path) -> None:
        self._env = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
        (target,) = re.findall(
            r'^\[project\.scripts\]\nshmcoll = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M
        )
        module, function = target.split(":")
        self.path = tmp_path / "bin" / "shmcoll"  # as pip writes it
        self.path.parent.mkdir()
        self.path.write_text(
            f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )

    def script(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.python(str(self.path), *args)

    def module(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", name, *args)

    def python(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *args]
        return subprocess.run(
            command, env=self._env, capture_output=True, text=True, timeout=60, check=False
        )


def test_the_tool_has_three_names(front: Front) -> None:
    runs = (
        front.module("shmcoll.bench", "--help"),
        front.module("shmcoll", "bench", "--help"),
        front.script("bench", "--help"),
    )
    assert [run.returncode for run in runs] == [0, 0, 0], runs
    assert len({run.stdout for run in runs}) == 1
    assert "what the numbers mean" in runs[0].stdout


def test_the_tools_help_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_the_benchmarks_help_fits_a_terminal(front: Front) -> None:
    for words in ([], ["compare"], ["tune"]):
        help_text = front.module("shmcoll.bench", *words, "--help").stdout
        assert help_text and max(map(len, help_text.splitlines())) <= 80, help_text


def test_its_help_needs_no_torch(front: Front) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from shmcoll.bench.cli import main; main(['-h'])"
    )
    assert "what the numbers mean" in front.python("-c", code).stdout


def test_the_tool_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["help"]):
        assert tool.main(words) == 0
        said = capsys.readouterr()
        assert "usage: shmcoll COMMAND" in said.out and "  bench          times" in said.out
        assert "  bench compare  compares" in said.out and "  bench tune     finds" in said.out
        assert said.err == ""
    assert tool.main(["--version"]) == 0
    assert re.fullmatch(
        r"shmcoll \d[\w.+]*|shmcoll, not installed.*", capsys.readouterr().out.strip()
    )


COMMANDS = ", ".join(tool.COMMANDS)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("bnech", "shmcoll: no command 'bnech'; did you mean 'bench'? (shmcoll --help)"),
        ("xyz", f"shmcoll: no command 'xyz'; there is: {COMMANDS} (shmcoll --help)"),
        (
            "compar",
            "shmcoll: no command 'compar'; did you mean 'bench compare'? (shmcoll --help)",
        ),
        ("--nproc", f"shmcoll: no option '--nproc'; there is: {COMMANDS} (shmcoll --help)"),
    ],
)
def test_an_unknown_command_is_one_clear_line(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([word]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", said + "\n")


# ---- reports that were never measured ----


def made_up(*args: str, rounds: int = 3) -> Report:
    """A report of these settings with times that follow from the place in it."""
    settings, _ = options.parse(["-g", "2", "--rounds", str(rounds), *args])
    points = plan.points(settings)
    report = Report(settings, machine.gather(), points=len(points))
    for number, point in enumerate(points):
        cells = {
            label: Cell(
                [
                    [3001 * (number + 1) * (place * 7 + 1) + 501 * one, 10**4 + point.size_bytes]
                    for one in range(rounds)
                ]
            )
            for place, label in enumerate(settings.labels)
        }
        report.rows.append(Row(point, settings.world_size, cells))
    return report


def spoiled() -> Report:
    """Wrong values, a refused row, a backend that could not start, one that died, Ctrl-C."""
    report = made_up("--backends", "shmcoll,gloo,mpi,<b>&", "-o", "all_reduce,barrier", "-e", "1K")
    first, second, *_ = report.rows
    first.cells["shmcoll"].wrong = 77
    second.cells["gloo"].error = 'RuntimeError: <script>"no", said gloo</script>'
    for row in report.rows:
        row.cells["mpi"] = Cell(error="no backend of that name")
    report.unusable["mpi"] = "no backend of that name"
    report.failures["<b>&"] = "rank 0 ended by SIGKILL"
    report.interrupted = True
    return report


REPORTS = {
    "plain": lambda: made_up(),
    "all": lambda: made_up("-o", "all", "-d", "half,int8", "--backends", "a,b,c", "-f", "512"),
    "ways": lambda: made_up(
        *("-g", "4", "--groups", "2", "--place", "both", "--columns", "all", "--cache", "cold"),
        *("-o", "all_reduce,all_gather,barrier", "-f", "512"),
    ),
    "alone": lambda: made_up("--backends", "gloo", "-o", "barrier", rounds=1),
    "spoiled": spoiled,
    "empty": lambda: dataclasses.replace(made_up(), rows=[]),
}


@pytest.fixture(name="report", params=REPORTS)
def fixture_report(request: pytest.FixtureRequest) -> Report:
    return REPORTS[request.param]()


# ---- JSON ----


def test_a_report_comes_back_from_its_file_as_it_was(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    report.write_json(path)
    again = read(path)
    assert again == report == read(str(path))
    assert again.settings.labels == report.settings.labels
    assert again.as_json() == report.as_json()
    assert json.loads(path.read_text()) == json.loads(json.dumps(report.as_json()))


def damage(report: Report, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    data = json.loads(json.dumps(report.as_json()))
    change(data)
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema="shmcoll.bench/5"), "schema 5 is newer .* reads 4; use a newer"),
        (
            lambda d: d.update(schema="shmcoll.bench/2"),
            "schema 2 is older than this .* measure again",
        ),
        (lambda d: d.update(schema="other/2"), r"not written by shmcoll.bench --json \(.*other/2"),
        (lambda d: d.pop("schema"), "not written by shmcoll.bench --json"),
        (lambda d: d.pop("results"), r"damaged \('results'\)"),
        (lambda d: d.pop("machine"), "damaged .*Report has no 'machine'"),
        (lambda d: d["settings"].pop("nproc"), "damaged .*Settings has no 'nproc'"),
        (lambda d: d["settings"].update(nproc="2"), "damaged .*'nproc' has a value of another"),
        (lambda d: d["settings"].update(rounds=True), "damaged .*'rounds' has a value of another"),
        (lambda d: d.update(failures=[]), "damaged .*'failures' has a value of another"),
        (lambda d: d["results"][0].update(op="x"), "damaged .*no operation 'x'"),
        (lambda d: d["results"][0]["backends"].pop("gloo"), "damaged .*has the backends shmcoll"),
        (
            lambda d: d["results"][0]["backends"]["gloo"]["rounds"][0].append("1"),
            "damaged .*'rounds' has a value of another type: '1'",
        ),
    ],
)
def test_a_file_that_is_no_report_of_ours_is_one_clear_line(
    change: Callable[[dict[str, Any]], object], said: str, tmp_path: Path
) -> None:
    path = damage(made_up(), tmp_path / "x.json", change)
    with pytest.raises(Unreadable, match=f"^{re.escape(str(path))}: {said}") as error:
        read(path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_not_json_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(Unreadable, match=f"^{re.escape(str(path))}: No such file"):
        read(path)
    for text in (b"", b"size 8", b'{"schema":', b"\xff\xfe", b"[" * 10**5):
        path.write_bytes(text)
        with pytest.raises(Unreadable, match=f"^{re.escape(str(path))}: not JSON"):
            read(path)
    path.write_text("[1]")
    with pytest.raises(Unreadable, match="not written by"):
        read(path)


# ---- CSV ----


def test_csv_has_a_line_per_row_and_backend_with_the_numbers_of_the_json(
    report: Report, tmp_path: Path
) -> None:
    csv_file.write(report, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    results = report.as_json()["results"]
    cells = [(row, label) for row in results for label in report.settings.labels]
    assert len(lines) == len(cells)
    for line, (row, label) in zip(lines, cells):
        cell = row["backends"][label]
        assert line["schema"] == "shmcoll.bench.csv/2"
        assert (line["op"], line["place"], line["backend"]) == (row["op"], row["place"], label)
        assert (line["cache"], line["groups"]) == (
            report.settings.cache,
            str(report.settings.groups),
        )
        assert (line["size_bytes"], line["dtype"]) == (str(row["size_bytes"]), row["dtype"] or "")
        assert (line["wrong"], line["error"]) == (str(cell["wrong"]), cell["error"] or "")
        if cell["error"]:
            assert line["p50_us"] == line["busbw_gbs"] == line["vs_first"] == ""
            continue
        for name, value in cell["time_us"].items():
            assert name == "round_p50" or float(line[f"{name}_us"]) == value
        assert float(line["busbw_gbs"]) == cell["busbw_gbs"]
        ratio = row["ratios"].get(label, {"median": 1.0})["median"]
        assert line["vs_first"] == ("" if ratio is None else str(ratio))


def test_every_csv_column_is_documented() -> None:
    text = (ROOT / "docs/reference/formats.md").read_text()
    section = text.partition("## CSV\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(csv_file.COLUMNS)


# ---- the page ----


class Reader(HTMLParser):
    """Well-formed, or it asserts; collects what stands in table cells and what is referred to."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.wrong: list[str] = []
        self.references: list[str] = []
        self._classes: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        if tag not in self.VOID:
            self.open.append(tag)
            self._classes.append(dict(attrs).get("class") or "")
            if tag == "td":
                self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._classes.pop()

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data
        if any("red" in kind or "wrong" in kind for kind in self._classes):
            self.wrong.append(data)


def test_the_page_is_well_formed_and_has_every_number_of_the_table(report: Report) -> None:
    text = page.render(report)
    reader = Reader(text)
    shown = table.Table(report.settings.labels, report.settings.shown_columns)
    assert reader.cells == [cell.strip() for row in report.rows for cell, _ in shown.cells(row)]
    assert reader.references == []
    assert not re.search(r"https?:|url\(|@import|<script|<link|<img", text)
    curves_drawn = reader.tags.count("circle") + len(re.findall('<path class="wrong"', text))
    measured = [cell for row in report.rows for cell in row.cells.values() if cell.samples]
    ratios = [
        label
        for row in report.rows
        for label in report.settings.labels[1:]
        if row.ratio(label) is not None
    ]
    assert curves_drawn == len(measured) + len(ratios)


def test_the_page_says_what_is_wrong_in_red_and_escapes_it() -> None:
    text = page.render(spoiled())
    red = Reader(text).wrong
    assert "77" in red
    assert "WRONG: shmcoll: all_reduce: 77 elements in 1 row" in red
    assert "FAILED: <b>& failed: rank 0 ended by SIGKILL" in red
    assert "WRONG VALUES" in text and "<b>" not in text
    assert "RuntimeError: &lt;script&gt;&quot;no&quot;, said gloo&lt;/script&gt;" in text
    assert "interrupted: 4 of 4 rows are complete" in text


def test_the_page_says_how_it_was_measured() -> None:
    text = page.render(REPORTS["ways"]())
    assert "<h1>shmcoll and gloo, 4 ranks in 2 groups on one host, cache cold</h1>" in text
    for name in ("all_reduce", "all_gather (in place)", "all_gather (out of place)", "barrier"):
        assert f"<h3>{name}</h3>" in text
    assert "<th>p99<br>(us)</th>" in text and "<th>cv<br>(%)</th>" in text


def test_the_page_puts_columns_under_their_backend() -> None:
    text = table.Table(("shmcoll", "a_backend_of_a_long_name"))
    (row,) = made_up("--backends", "shmcoll,a_backend_of_a_long_name", "-o", "barrier").rows
    columns = page._columns(text.header(), [len(cell) for cell, _ in text.cells(row)])
    named = [(column.group, column.name, column.unit) for column in columns]
    assert named[:2] == [("", "op", ""), ("", "size", "(B)")]
    for label in ("shmcoll", "a_backend_of_a_long_name"):
        assert (label, "time", "(us)") in named and (label, "busbw", "(GB/s)") in named
    assert named[-2:] == [("", "vs a_backend_of_a_long_name", ""), ("", "#wrong", "")]


# ---- the picture ----


def test_the_picture_has_every_value_of_every_backend(report: Report) -> None:
    figure = plot.draw(report)
    drawn = sorted(
        float(y)
        for axes in figure.axes
        for line in axes.lines
        if line.get_marker() not in ("x", "None")
        for y in line.get_ydata()
    )
    times = [
        cell.p50_us for row in report.rows for cell in row.cells.values() if cell.p50_us is not None
    ]
    ratios = [row.ratio(label) for row in report.rows for label in report.settings.labels[1:]]
    assert drawn == pytest.approx(sorted(times + [ratio for ratio in ratios if ratio is not None]))
    crosses = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "x"]
    assert len(crosses) == bool(report.wrong)


# ---- units ----


def test_axes_speak_as_readers_do() -> None:
    assert [units.size_text(n) for n in (8, 1023, 1024, 1536, 1 << 21, 1 << 31)] == [
        "8 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "2 MiB",
        "2 GiB",
    ]
    assert [units.time_text(t) for t in (0.5, 3.9, 270, 1500, 2.5e6)] == [
        "0.5 us",
        "3.9 us",
        "270 us",
        "1.5 ms",
        "2.5 s",
    ]
    # No exponents, and no 1000 us that are a millisecond.
    assert [units.ratio_text(r) for r in (0.05, 1, 12.34, 999.6, 1000, 1462, 2.5e6)] == [
        *("0.05x", "1x", "12.3x", "1000x", "1000x", "1462x", "2500000x"),
    ]
    assert [units.time_text(t) for t in (999.4, 999.6, 1e9)] == ["999 us", "1 ms", "1000 s"]
    assert [units.count(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert units.log_ticks(1, 1000) == [1, 10, 100, 1000]
    assert units.log_ticks(0.9, 12) == [1, 3, 10]
    for low, high in ((8, 8), (8, 64), (8, 1 << 21), (4, 1 << 34), (24, 24), (1, 3)):
        ticks = units.size_ticks(low, high)
        assert 1 <= len(ticks) <= 5 and all(low <= tick <= high for tick in ticks)


# ---- the command line ----


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--json", "."], "--json .: is a directory; name a file in it"),
        (["--csv", "/dev/null/a/b.csv"], "--csv /dev/null/a/b.csv: Not a directory (/dev/null/a)"),
        (["--plot", "x.jpeg"], "--plot x.jpeg: the name must end in .png, .svg, .pdf"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        options.parse(args)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"python -m shmcoll.bench: error: {said} (--help)\n"


def test_a_picture_without_matplotlib_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    with pytest.raises(SystemExit) as stop:
        options.parse(["--plot", "x.png"])
    assert stop.value.code == 2
    assert "not installed: pip install shmcoll[bench] (--help)\n" in capsys.readouterr().err


def test_a_file_that_fails_late_keeps_no_other_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("json", "csv", "plot", "html")
    where = {name: tmp_path / f"x.{'png' if name == 'plot' else name}" for name in names}
    where["json"].symlink_to("/dev/full")  # a disk without room
    outputs = Outputs(**where, quiet=False)
    assert outputs.problem() is None
    assert not outputs.write(made_up())
    assert capsys.readouterr().err == (
        f"shmcoll.bench: --json {where['json']}: [Errno 28] No space left on device\n"
    )
    assert all(where[name].stat().st_size > 500 for name in names[1:])


def test_quiet_prints_rows_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = made_up("-o", "all_reduce,barrier", "-e", "64").rows

    def run(report: Report, screen: table.Screen, *_: object) -> None:
        screen.begin(len(rows), 3)
        for row in rows:
            screen.preview(row)
            report.rows.append(row)
            screen.row(row)
        screen.end()

    monkeypatch.setattr(cli, "_run", run)
    assert cli.main(["-g", "2", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["all_reduce", "8"],
        ["all_reduce", "64"],
        ["barrier", "0"],
    ]
    assert {len(line.split()) for line in lines} == {12}
