# SPDX-License-Identifier: BSD-3-Clause
"""python -m shmcoll.bench: its arithmetic, its checks, and whole runs on gloo."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench_runs import (
    TINY,
    bench_command,
    bench_environment,
    ranks_of,
    rows_of,
    run_bench,
    start_bench,
    wait_until_gone,
)

ROOT = Path(__file__).parents[2]
if importlib.util.find_spec("shmcoll") is None:  # not installed: use the sources
    sys.path.insert(0, str(ROOT / "python"))

from shmcoll.bench import machine, options, plan  # noqa: E402
from shmcoll.bench.run import latency  # noqa: E402
from shmcoll.bench.show import table  # noqa: E402
from shmcoll.bench.ops import DTYPES, OPS  # noqa: E402
from shmcoll.bench.plan import Point  # noqa: E402
from shmcoll.bench.results import Cell, Row, busbw_gbs, read  # noqa: E402

pytestmark = pytest.mark.timeout(120)


# ---- arithmetic ----


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("64K", 65536), ("64k", 65536), ("1M", 1 << 20), ("2GiB", 2 << 30), ("3 KB", 3072)],
)
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert plan.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-8", "1.5M", "8X"])
def test_nonsense_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        plan.parse_size(text)


def test_names_may_be_those_of_nccl_tests() -> None:
    assert plan.parse_dtypes("float,half,int8") == ("float32", "float16", "int8")
    assert plan.parse_ops("all") == tuple(OPS)
    with pytest.raises(ValueError, match="no operation 'all_to_none'; there is all_reduce, "):
        plan.parse_ops("all_reduce,all_to_none")


@pytest.mark.parametrize(
    ("op", "factors"),
    [
        ("all_reduce", {2: 1.0, 4: 1.5, 8: 1.75}),
        ("all_gather", {2: 0.5, 4: 0.75, 8: 0.875}),
        ("broadcast", {2: 1.0, 4: 1.0, 8: 1.0}),
        ("reduce", {2: 1.0, 4: 1.0, 8: 1.0}),
        ("reduce_scatter", {2: 0.5, 4: 0.75, 8: 0.875}),
        ("all_to_all", {2: 0.5, 4: 0.75, 8: 0.875}),
        ("sendrecv", {2: 1.0, 4: 1.0, 8: 1.0}),
        ("ping_pong", {2: 1.0, 4: 1.0, 8: 1.0}),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, factors: dict[int, float]) -> None:
    for world_size, factor in factors.items():
        point = Point(op, "float32", 1 << 18, 1 << 20)
        assert busbw_gbs(point, 100.0, world_size) == pytest.approx(10.48576 * factor)


def test_size_of_all_gather_is_that_of_the_whole_result() -> None:
    op = OPS["all_gather"]
    assert op.count(1 << 20, 4, 8) == 1 << 15
    assert op.size(1 << 15, 4, 8) == 1 << 20


def test_sizes_that_round_to_the_same_count_are_measured_once() -> None:
    settings, _ = options.parse(["-g", "8", "-o", "all_gather,barrier", "-e", "64", "-f", "2"])
    assert [(p.op, p.size_bytes, p.count) for p in plan.points(settings)] == [
        ("all_gather", 32, 1),
        ("all_gather", 64, 2),
        ("barrier", 0, 0),
    ]


def test_a_backend_may_be_measured_against_itself() -> None:
    settings, _ = options.parse(["--backends", "gloo,mpi,gloo"])
    assert settings.labels == ("gloo", "mpi", "gloo#2")


def test_an_iteration_lasts_until_the_last_rank_returns() -> None:
    called = [[10, 21, 100], [12, 30, 101]]
    returned = [[20, 40, 110], [29, 41, 108]]
    #  10..29; then from 29, where the first has ended on all ranks; then a new start at 100.
    assert latency.of_symmetric(called, returned) == [19, 12, 10]
    #  The roots are ranks 0, 1, 0.
    assert latency.of_rooted(called, returned) == [19, 11, 10]


def test_ratios_are_taken_between_adjacent_rounds() -> None:
    ours = Cell(rounds=[[1000, 1000], [4000, 4000], [2000, 2000]])
    theirs = Cell(rounds=[[3000, 3000], [8000, 8000], [8000, 8000]])
    row = Row(Point("all_reduce", "float32", 2, 8), 2, {"a": ours, "b": theirs})
    assert row.round_ratios("b") == [3.0, 2.0, 4.0]
    assert row.ratio("b") == 3.0
    assert table.format_ratio(row.ratio("b")) == "3.00x"


def test_the_median_is_that_of_the_rounds_medians() -> None:
    cell = Cell(rounds=[[1000] * 9, [5000, 6000, 7000], [3000]])  # most iterations took 1 us
    assert cell.p50_us == 3.0
    assert cell.spread()["min"] == 1.0 and cell.spread()["p99"] == cell.spread()["max"] == 7.0
    cell.error = "it fell"
    assert cell.p50_us is None and cell.spread() == {}


def test_rows_line_up_with_their_header() -> None:
    labels = ("shmcoll", "a_backend_of_a_long_name")
    one = table.Table(labels)
    cells = {label: Cell(rounds=[[10**9]]) for label in labels}
    line = one.line(Row(Point("all_gather", "bfloat16", 1 << 30, 1 << 32), 2, cells))
    groups, names, _ = one.header()
    assert len(line) == len(names)
    assert all(label in groups for label in labels) and len(groups) < len(names)
    for name in ("size", "type", "#wrong"):
        end = names.index(name) + len(name)
        assert line[end - 1] != " " and line[end : end + 1] in ("", " ")


def test_a_narrow_terminal_has_the_columns_that_matter() -> None:
    wide = table.Table(("shmcoll", "gloo"))
    assert max(map(len, wide.header())) > 100 and wide.fitted(120) is wide
    narrow = wide.fitted(100)
    cells = {label: Cell(rounds=[[10**9]]) for label in ("shmcoll", "gloo")}
    line = narrow.line(Row(Point("all_gather", "bfloat16", 1 << 30, 1 << 32), 2, cells))
    assert len(line) == max(map(len, narrow.header())) <= 100
    assert narrow.header()[1].split()[1:5] == ["op", "size", "type", "place"]
    assert line.split()[:4] == ["all_gather", str(1 << 32), "bfloat16", "in"][:3] + ["-"]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            },
            1.5,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        (
            {
                "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
    ],
)
def test_the_tightest_cpu_quota_counts(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.cpu_quota(tmp_path) == quota
    assert machine.usable(8, quota) == (8 if quota is None else int(quota))


# ---- checks ----


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("world_size", [2, 3, 8, 64])
def test_sums_of_patterns_are_exact(name: str, world_size: int) -> None:
    import torch

    from shmcoll.bench.run import calls
    from shmcoll.bench.run.calls import pattern

    def add(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        """Adds as a backend does: types that torch cannot add are added in a wider type and rounded."""
        if one.dtype in (torch.uint16, torch.uint32, torch.uint64):
            return (one.to(torch.int64) + two.to(torch.int64)).to(one.dtype)
        if "float8" in name:
            return (one.to(torch.float32) + two.to(torch.float32)).to(one.dtype)
        return one + two

    def numbers(values: torch.Tensor) -> torch.Tensor:
        parts = torch.view_as_real(values) if values.is_complex() else values
        return parts.to(torch.int64)

    parts = [pattern(r, 1000, 7, DTYPES[name], addends=world_size) for r in range(world_size)]
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    exact = sum(numbers(part) for part in parts)
    assert torch.equal(numbers(total), exact)
    assert exact.bool().any()
    assert torch.equal(calls._sum(1000, 7, DTYPES[name], world_size), total)


@pytest.mark.parametrize("name", DTYPES)
def test_a_planted_wrong_value_is_found(name: str) -> None:
    from shmcoll.bench.run.calls import count_wrong, pattern

    want = pattern(1, 4096, 3, DTYPES[name])
    got = want.clone()
    assert count_wrong(got, want) == 0
    got[1234] = want[1234] == 0  # 1 if it was 0, 0 if it was not
    assert count_wrong(got, want) == 1
    if want.dtype.is_floating_point or want.dtype.is_complex:
        got[77] = float("nan")
        assert count_wrong(got, want) == 2


@pytest.mark.parametrize("name", DTYPES)
def test_values_of_another_place_rank_or_call_are_wrong(name: str) -> None:
    from shmcoll.bench.run.calls import count_wrong, pattern

    dtype = DTYPES[name]
    want = pattern(1, 4096, 3, dtype, addends=2)
    # Of few values two are often the same, and every second place of bool is 0.
    most = 4096 * (0.9 if dtype.max_exact > 16 else 0.6 if dtype.max_exact > 1 else 0.2)
    assert count_wrong(want.roll(1), want) > most
    assert count_wrong(want.roll(64), want) > most
    assert count_wrong(want.roll(1024), want) > most
    assert count_wrong(pattern(0, 4096, 3, dtype, addends=2), want) > most
    for salt in (2, 3 + (1 << 16), 3 + (1 << 25)):  # a copy of the buffers, another group
        assert count_wrong(pattern(1, 4096, salt, dtype, addends=2), want) > most


def test_every_operation_on_paper_has_its_call() -> None:
    from shmcoll.bench.run.calls import CALLS

    assert list(CALLS) == list(OPS)


# ---- whole runs ----


def test_two_backends_share_one_table_and_one_json(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.json"
    done = run_bench(tmp_path, "-g", "2", "--backends", "gloo,gloo", "--json", str(out), *TINY)
    assert done.returncode == 0, done.stderr
    assert "# wrong values: 0 OK" in done.stdout

    rows = rows_of(done.stdout)
    assert [row[:2] for row in rows] == [
        ["all_reduce", "8"],
        ["all_reduce", "4096"],
        ["broadcast", "8"],
        ["broadcast", "4096"],
        ["all_gather", "8"],
        ["all_gather", "4096"],
        ["barrier", "0"],
    ]
    assert all(len(row) == 12 and row[10].strip("()")[-1] == "x" and row[11] == "0" for row in rows)

    report = json.loads(out.read_text())
    assert report["schema"] == "shmcoll.bench/4"
    assert report["machine"]["cpus_usable"] >= 1
    assert report["settings"]["nproc"] == 2
    assert report["provenance"]["argv"][:2] == ["-g", "2"]
    assert report["noise"]["said"].startswith(("quiet machine: ", "busy machine: ", "machine: "))
    assert [len(result["activity"]) for result in report["results"]] == [2] * 7
    assert (report["interrupted"], report["unusable"], report["failures"]) == (False, {}, {})
    assert (report["wrong"], report["points"], len(report["results"])) == (0, 7, 7)
    result = report["results"][1]
    assert {name: result[name] for name in ("op", "size_bytes", "count", "dtype", "redop")} == {
        "op": "all_reduce",
        "size_bytes": 4096,
        "count": 1024,
        "dtype": "float32",
        "redop": "sum",
    }
    assert len(result["ratios"]["gloo#2"]["rounds"]) == 2
    for cell in result["backends"].values():
        times = cell["time_us"]
        assert 0 < times["min"] <= times["p50"] <= times["p99"] <= times["max"]
        assert len(times["round_p50"]) == 2
        assert cell["cv"] > 0
        assert cell["algbw_gbs"] == pytest.approx(4096 / times["p50"] / 1e3)
        assert cell["busbw_gbs"] == pytest.approx(cell["algbw_gbs"])  # 2 (n-1) / n is 1
        assert (cell["wrong"], cell["error"]) == (0, None)


@pytest.mark.long
def test_every_dtype_is_checked_exactly(tmp_path: Path) -> None:
    args = ("--backends", "gloo", "-g", "3", "-d", "all", "-o", "all_reduce,all_gather", *TINY)
    done = run_bench(tmp_path, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row[3] for row in rows_of(done.stdout)} == set(DTYPES)


def test_every_operation_is_timed_and_right(tmp_path: Path) -> None:
    args = ("--backends", "shmcoll,gloo", "-g", "3", "-o", "all", *TINY)
    done = run_bench(tmp_path, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row[0] for row in rows_of(done.stdout)} == set(OPS)
    assert "# wrong values: 0 OK" in done.stdout


def test_one_wrong_element_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "spoil_one_element.py").write_text(
        "import torch.distributed as dist\n"
        "true_all_reduce = dist.all_reduce\n"
        "def all_reduce(tensor):\n"
        "    true_all_reduce(tensor)\n"
        "    if dist.get_rank() == 1:\n"
        "        tensor[5] += 1\n"
        "dist.all_reduce = all_reduce\n"
    )
    args = ("--backends", "gloo", "-g", "2", "-o", "all_reduce", "-b", "4K", *TINY)
    done = run_bench(tmp_path, "--import", "spoil_one_element", *args)
    assert done.returncode == 1
    assert rows_of(done.stdout)[0][-1] == "2"  # once before and once after the timing
    assert "# WRONG: gloo: all_reduce: 2 elements in 1 row\n" in done.stdout
    assert "# wrong values: 2 FAILED" in done.stdout


def test_a_backend_that_does_nothing_fails_every_row(tmp_path: Path) -> None:
    fake = ("--backends", "fake", "--import", "torch.testing._internal.distributed.fake_pg")
    done = run_bench(tmp_path, *fake, "-g", "2", "-o", "all", *TINY)
    assert done.returncode == 1
    assert {row[0] for row in rows_of(done.stdout)} == set(OPS)
    assert all(int(row[-1]) > 0 for row in rows_of(done.stdout))


def test_an_unknown_backend_alone_is_one_clear_line(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "--backends", "nosuch", "-g", "2", *TINY)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "backend 'nosuch' cannot be used: this torch" in done.stderr
    assert "has no backend of that name" in done.stderr
    assert rows_of(done.stdout) == []


def test_an_unknown_backend_leaves_the_others_their_columns(tmp_path: Path) -> None:
    args = ("--backends", "nosuch,gloo", "-g", "2", "-o", "barrier", *TINY)
    done = run_bench(tmp_path, *args)
    assert done.returncode == 2  # the first one: nothing is compared
    assert len(done.stderr.splitlines()) == 1
    (row,) = rows_of(done.stdout)
    assert row[6] == "-" and float(row[8].lstrip("~")) > 0
    assert "# NOTHING IS COMPARED: nosuch, the first backend, cannot be used" in done.stdout
    args = ("--backends", "gloo,nosuch", "-g", "2", "-o", "barrier", *TINY)
    done = run_bench(tmp_path, *args)
    assert done.returncode == 0 and "# nosuch: cannot be used: this torch" in done.stdout


def test_an_import_that_fails_is_one_clear_line(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "--backends", "gloo", "--import", "no_such_module", *TINY)
    assert done.returncode == 2
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr


@pytest.mark.parametrize("args", [["-b", "x"], ["-o", "x"], ["-d", "x"], ["-g", "0"], ["-b", "8M"]])
def test_bad_usage_is_told_by_argparse(
    args: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        options.parse(args)
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_rank_that_hangs_ends_its_backend_with_the_reason_of_another(tmp_path: Path) -> None:
    (tmp_path / "hang_in_rank_1.py").write_text(
        "import time\n"
        "import torch.distributed as dist\n"
        "true_barrier = dist.barrier\n"
        "def barrier():\n"
        "    if dist.get_rank() == 1:\n"
        "        time.sleep(100)\n"
        "    true_barrier()\n"
        "dist.barrier = barrier\n"
    )
    args = ("--backends", "gloo", "-g", "2", "-o", "barrier", "-T", "1", *TINY)
    done = run_bench(tmp_path, "--import", "hang_in_rank_1", *args)
    assert done.returncode == 1
    assert "backend 'gloo' failed: " in done.stderr
    assert "(rank 0)" in done.stderr
    wait_until_gone(tmp_path)


# Two sweeps over four rows, of a quarter of a second each.
SLOW = ("--backends", "gloo", "-g", "2", "-o", "all_reduce", "-f", "64")
SLOW += ("--rounds", "2", "--point-time", "0.5")


def test_ctrl_c_prints_what_there_is(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    names = {"json": "out.json", "csv": "out.csv", "html": "out.html", "plot": "out.svg"}
    files = [word for name, file in names.items() for word in (f"--{name}", str(out / file))]
    bench = start_bench(tmp_path, *SLOW, *files)
    assert bench.stdout is not None
    lines = []
    for line in bench.stdout:
        lines.append(line)
        if line.startswith("all_reduce"):
            break
    bench.send_signal(signal.SIGINT)
    rest, errors = bench.communicate(timeout=20)
    assert bench.returncode == 130, errors
    assert "# interrupted: 1 of 4 rows is complete, 3 have fewer rounds" in rest
    assert len(rows_of("".join(lines) + rest)) == 4
    assert "Traceback" not in errors
    report = read(out / "out.json")
    assert report.interrupted
    assert [len(row.cells["gloo"].rounds) for row in report.rows] == [2, 1, 1, 1]
    assert len((out / "out.csv").read_text().splitlines()) == 5
    assert "interrupted: 1 of 4 rows" in (out / "out.html").read_text()
    assert (out / "out.svg").read_text().rstrip().endswith("</svg>")
    wait_until_gone(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def bench_without_reader(tmp_path: Path, *args: str) -> tuple[int, str]:
    """Returns exit code and standard error of a run whose standard output has lost its reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as nobody:
        done = subprocess.run(
            bench_command(*args),
            env=bench_environment(tmp_path),
            stdout=nobody,
            stderr=subprocess.PIPE,
            timeout=100,
        )
    return done.returncode, done.stderr.decode()


@pytest.mark.long
def test_a_reader_that_goes_ends_the_run_and_leaves_its_files(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert bench_without_reader(tmp_path, *SLOW, "-q", "--json", str(out)) == (141, "")
    report = read(out)
    assert report.interrupted
    assert [len(row.cells["gloo"].rounds) for row in report.rows] == [2, 1, 1, 1]
    wait_until_gone(tmp_path)

    # When all is measured nothing was interrupted.
    one = ("--backends", "gloo", "-g", "2", "-o", "barrier", "--rounds", "1")
    args = (*one, "--point-time", "0.02", "-q", "--json", str(out))
    assert bench_without_reader(tmp_path, *args) == (141, "")
    assert (read(out).interrupted, len(read(out).rows)) == (False, 1)
    assert bench_without_reader(tmp_path, "compare", str(out), str(out)) == (2, "")
    assert bench_without_reader(tmp_path, "--help") == (0, "")


def test_a_rank_that_dies_ends_its_backend_with_a_reason(tmp_path: Path) -> None:
    bench = start_bench(tmp_path, *SLOW)
    assert bench.stdout is not None
    for line in bench.stdout:
        if line.startswith("all_reduce"):
            break
    os.kill(ranks_of(tmp_path)[0], signal.SIGKILL)
    rest, errors = bench.communicate(timeout=60)
    assert bench.returncode == 1, rest + errors
    assert "backend 'gloo' failed: rank" in errors
    assert "ended by SIGKILL" in errors
    wait_until_gone(tmp_path)


@pytest.mark.long
def test_ranks_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    bench = start_bench(tmp_path, *SLOW)
    assert bench.stdout is not None
    for line in bench.stdout:
        if line.startswith("all_reduce"):
            break
    assert len(ranks_of(tmp_path)) == 2
    bench.kill()
    bench.communicate(timeout=20)
    wait_until_gone(tmp_path)
