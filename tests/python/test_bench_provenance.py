# SPDX-License-Identifier: BSD-3-Clause
"""Where a run's numbers come from, which CPUs its ranks have, and how the command line answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from bench_runs import TINY, run_bench

from shmcoll.bench import cli, machine, options, plan, provenance
from shmcoll.bench.show import colours, page, plot, table
from shmcoll.bench import topology
from shmcoll.bench.judge import tune
from shmcoll.bench.results import Cell, Report, Row, read
from shmcoll.bench.topology import Topology

pytestmark = pytest.mark.timeout(120)


def system(root: Path, nodes: list[list[list[int]]]) -> Path:
    """/sys and /proc of a machine: its NUMA nodes, of cores, of CPUs."""

    def put(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")

    cpu_folder = "sys/devices/system/cpu"
    for node, cores in enumerate(nodes):
        put(f"sys/devices/system/node/node{node}/cpulist", topology.list_text(sum(cores, [])))
        for core in cores:
            for cpu in core:
                folder = f"{cpu_folder}/cpu{cpu}"
                put(f"{folder}/topology/physical_package_id", str(node // 2))
                put(f"{folder}/topology/thread_siblings_list", topology.list_text(core))
                put(f"{folder}/cpufreq/scaling_governor", "powersave" if cpu else "performance")
                for index, (level, kind, size) in enumerate(
                    (("1", "Data", "48K"), ("1", "Instruction", "32K"), ("3", "Unified", "32768K"))
                ):
                    cache = f"{folder}/cache/index{index}"
                    shared = core if level == "1" else sum(cores, [])
                    put(f"{cache}/level", level)
                    put(f"{cache}/type", kind)
                    put(f"{cache}/size", size)
                    put(f"{cache}/shared_cpu_list", topology.list_text(shared))
    put(f"{cpu_folder}/intel_pstate/no_turbo", "1")
    return root


# Two nodes of two cores of two threads, numbered as many machines do.
TWO_NODES = [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]


# ---- CPUs ----


@pytest.mark.parametrize(
    ("how", "ranks", "cpus"),
    [
        ("none", 2, [list(range(8))] * 2),
        ("core", 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("spread", 4, [[0, 4], [2, 6], [1, 5], [3, 7]]),
        ("spread", 6, [[0, 4], [2, 6], [1, 5], [3, 7], [0, 4], [2, 6]]),
        ("node", 3, [[0, 1, 4, 5], [2, 3, 6, 7], [0, 1, 4, 5]]),
    ],
)
def test_ranks_are_bound_as_it_says(
    tmp_path: Path, how: str, ranks: int, cpus: list[list[int]]
) -> None:
    assert topology.placement(how, ranks, range(8), system(tmp_path, TWO_NODES)) == cpus


def test_nobody_is_bound_to_a_cpu_that_this_process_has_not(tmp_path: Path) -> None:
    root = system(tmp_path, [[[0], [1], [2]], [[3]]])
    assert topology.placement("spread", 4, {0, 2, 3}, root) == [[0], [3], [2], [0]]
    nothing_known = tmp_path / "elsewhere"
    assert topology.placement("core", 3, {4, 5}, nothing_known) == [[4], [5], [4]]


def test_a_topology_is_told(tmp_path: Path) -> None:
    root = system(tmp_path, TWO_NODES)
    found = topology.read(root, range(8))
    assert found == Topology(
        "0-7",
        1,
        4,
        2,
        ["0-1,4-5", "2-3,6-7"],
        ["L1d 48 KiB (CPU 0,4)", "L1i 32 KiB (CPU 0,4)", "L3 32 MiB (CPU 0-1,4-5)"],
    )
    assert found.text() == (
        "1 package, 4 cores (2 threads each), 2 NUMA nodes (CPUs 0-1,4-5; 2-3,6-7)"
    )
    assert machine.governor(root, [0, 1]) == "performance, powersave"
    assert machine.boost(root) == "off"
    assert machine.governor(tmp_path / "no", [0]) is machine.boost(tmp_path / "no") is None


def test_bound_ranks_are_where_the_head_says(tmp_path: Path) -> None:
    (tmp_path / "tell_cpus.py").write_text(
        "import os\n"
        f"with open({str(tmp_path / 'cpus')!r}, 'a') as file:\n"
        "    file.write(f'{sorted(os.sched_getaffinity(0))}\\n')\n"
    )
    args = ("-g", "2", "--backends", "gloo", "-o", "barrier", "--bind", "core", *TINY)
    out = tmp_path / "x.json"
    done = run_bench(tmp_path, *args, "--import", "tell_cpus", "--json", str(out))
    assert done.returncode == 0, done.stderr
    places = topology.placement("core", 2, os.sched_getaffinity(0))
    told = (tmp_path / "cpus").read_text().splitlines()
    assert sorted(told) == sorted(map(str, places))
    assert "# bind core: each rank is bound to a core" in done.stdout
    found = read(out).provenance
    assert found is not None and found.bind == "core"
    assert found.placement == [topology.list_text(cpus) for cpus in places]


# ---- provenance ----


def made(*args: str) -> Report:
    argv = ["-g", "2", "-o", "all_reduce,barrier", "-e", "64", *args]
    settings, _ = options.parse(argv)
    report = Report(settings, machine.gather(), provenance=provenance.gather(settings, argv))
    for point in plan.points(settings):
        cells = {label: Cell([[7000], [7100]]) for label in settings.labels}
        report.rows.append(Row(point, 2, cells))
    return report


def test_json_and_page_say_where_the_numbers_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(provenance._PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHMCOLL_TUNING", "turn=64k")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobody's business")
    report = made("--bind", "spread")
    report.write_json(tmp_path / "x.json")
    data = json.loads((tmp_path / "x.json").read_text())["provenance"]
    assert data["argv"] == ["-g", "2", "-o", "all_reduce,barrier", "-e", "64", "--bind", "spread"]
    assert data["environment"] == {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "3",
        "SHMCOLL_TUNING": "turn=64k",
    }
    assert data["build"]["torch"] and data["build"]["compiler"] and data["build"]["isa"]
    assert set(data) == {
        *("argv", "environment", "commit", "build", "topology", "bind", "placement"),
        *("governor", "boost", "virtual", "load", "runnable"),
    }
    assert len(data["placement"]) == 2 and len(data["load"]) == 3
    assert read(tmp_path / "x.json") == report
    text = page.render(report)
    for fact in (
        "<dd>shmcoll bench -g 2 -o all_reduce,barrier -e 64 --bind spread</dd>",
        "<dd>GLOO_SOCKET_IFNAME=lo, OMP_NUM_THREADS=3, SHMCOLL_TUNING=turn=64k</dd>",
        f"<dd>{report.provenance.topology.text()}</dd>" if report.provenance else "",
        "<dt>load at start</dt>",
        "<dd>spread: each rank is bound to a core, NUMA nodes in turn</dd>",
        "nobody's business",
    ):
        assert (fact in text) == (fact != "nobody's business")


def test_the_commit_is_that_of_the_sources_or_nothing(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    clean = provenance.commit(tmp_path)
    assert clean is not None and len(clean) >= 7
    (tmp_path / "file").write_text("2")
    assert provenance.commit(tmp_path) == f"{clean}-dirty"


def test_a_file_of_an_older_shmcoll_has_no_provenance(tmp_path: Path) -> None:
    data = json.loads(json.dumps(made().as_json()))
    for name in ("provenance", "noise", "headlines"):
        del data[name]
    for row in data["results"]:
        del row["activity"], row["noisy"]
    (tmp_path / "x.json").write_text(json.dumps(data))
    report = read(tmp_path / "x.json")
    assert report.provenance is None and report.activity is None and not report.busy
    assert "<dt>topology</dt>" not in page.render(report)


# ---- one colour for a backend ----


def test_a_backend_has_one_colour_wherever_it_stands() -> None:
    assert colours.of(("shmcoll", "gloo")) == colours.of(("gloo", "shmcoll"))
    many = ("x", "gloo", "gloo#2", "shmcoll", "openmpi", "mpich", "ruler", "y")
    assert len(set(colours.of(many).values())) == len(many) == len(colours.PALETTE)
    for order in (("--backends", "shmcoll,gloo"), ("--backends", "gloo,shmcoll")):
        report = made(*order)
        cells = table.Table(report.settings.labels).cells(report.rows[0])
        shown = {style for _, style in cells if style.startswith("#")}
        assert shown == {colours.PALETTE[0], colours.PALETTE[1]}
        text = page.render(report)
        assert f".c1 {{ --c: {colours.PALETTE[1]}; }}" in text
        assert '<th colspan="2" class="group c1">gloo</th>' in text
        (gloo,) = (
            line for line in plot.draw(report).legends[0].get_lines() if line.get_label() == "gloo"
        )
        assert gloo.get_color() == colours.PALETTE[1]


def test_colours_can_be_read_on_black_and_on_white() -> None:
    def light(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for colour in colours.PALETTE:
        for ground in ("#ffffff", "#f6f6f6", "#1d2026", "#000000"):
            dark, bright = sorted((light(colour), light(ground)))
            assert (bright + 0.05) / (dark + 0.05) > 3, (colour, ground)


# ---- the command line ----


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("-o allreduce", "-o/--ops: no operation 'allreduce'; did you mean all_reduce?"),
        ("-o all_reduce,bcast", "-o/--ops: no operation 'bcast'; did you mean broadcast?"),
        ("-d flaot32", "-d/--dtypes: no dtype 'flaot32'; did you mean float32?"),
        ("--mode latncy", "--mode: no mode 'latncy'; did you mean latency?"),
        ("--cache warm", "--cache: no cache 'warm'; there is hot, cold"),
        ("--bind cores", "--bind: no binding 'cores'; did you mean core?"),
        ("--preset papr", "--preset: no preset 'papr'; did you mean paper?"),
        ("--rouns 3", "no option '--rouns'; did you mean --rounds?"),
        ("compar a b", "no command 'compar'; did you mean compare?"),
        ("-g 0", "-g/--nproc: not a whole number above 0: '0'"),
        ("-g 10000000000000000000", "-g/--nproc: more than 1024 ranks: '10000000000000000000'"),
        ("--point-time nan", "--point-time: not seconds from above 0 to 86400: 'nan'"),
        ("--point-time -1", "--point-time: not seconds from above 0 to 86400: '-1'"),
        ("-T inf", "-T/--timeout: not seconds from above 0 to 86400: 'inf'"),
    ],
)
def test_an_error_is_one_line_with_what_was_meant(
    args: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(args.split())
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"python -m shmcoll.bench: error: {said} (--help)\n"


def test_ctrl_c_before_the_first_rank_ends_it_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.provenance, "gather", interrupted)
    assert cli.main(["-g", "2"]) == 130


def test_help_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert (
        "  compare OLD.json NEW.json   has" in out
        and "  tune                        settings" in out
    )
    assert "python -m shmcoll.bench compare OLD.json NEW.json" in out.partition("\n\n")[0]
    with pytest.raises(SystemExit):
        tune._parser().parse_args(["--tme", "3"])
    assert "no option '--tme'; did you mean --time?" in capsys.readouterr().err


def test_a_paper_has_all_sizes_bound_ranks_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    from shmcoll.bench import presets

    monkeypatch.setattr(presets, "usable_backends", lambda: ("shmcoll", "gloo", "openmpi"))
    settings, out = options.parse(["--preset", "paper", "-o", "all_reduce"])
    sizes = [point.size_bytes for point in plan.points(settings)]
    assert sizes == [8 << power for power in range(24)] and sizes[-1] == 64 << 20
    assert (settings.rounds, settings.bind) == (20, "spread")
    assert settings.backends == ("shmcoll", "gloo", "openmpi")
    assert (str(out.json), str(out.html)) == ("shmcoll-paper.json", "shmcoll-paper.html")
