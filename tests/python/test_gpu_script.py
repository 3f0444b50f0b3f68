# SPDX-License-Identifier: BSD-3-Clause
"""`make gpu` without a GPU: its "no", its limits, what it reports; and that the tests of CUDA tensors
can fail."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu"
sys.path[:0] = [str(GPU), str(ROOT / "tests" / "gpu")]

import ranks  # noqa: E402
import shmcoll  # noqa: E402

import about  # noqa: E402
import baselines  # noqa: E402
import built  # noqa: E402
import cases  # noqa: E402
import mps as mps_daemon  # noqa: E402
import parts  # noqa: E402
import queues  # noqa: E402
import report  # noqa: E402
import run as gpu_run  # noqa: E402
import test_cuda_tensors as tensors  # noqa: E402

FACTS = {"date": "2026-01-02", "gpu": "NVIDIA H200 (SXM)"}


@pytest.fixture(autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the place of /dev/shm: what tests at the same time have there is not left over."""
    monkeypatch.setattr(gpu_run, "SHARED", tmp_path_factory.mktemp("shm"))


def lab(folder: Path) -> parts.Lab:
    return parts.Lab(folder, "libcuda.so.1", True, dict(FACTS))


def session(folder: Path, limit_s: float = 30) -> parts.Session:
    return parts.Session(lab(folder), "part", limit_s)


def python(text: str) -> list[str | Path]:
    return [sys.executable, "-c", text]


def is_running(pid: int) -> bool:
    """Not dead, even where nobody has asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- no GPU ----


def test_without_a_gpu_it_says_so_and_does_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(GPU / "run.py"), "--driver", "/no/libcuda.so"]
    command += ["--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("no GPU: no NVIDIA driver (/no/libcuda.so")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_library_that_is_no_driver_is_no_gpu() -> None:
    assert gpu_run.find_gpu("libc.so.6")[0] == ""


def test_a_driver_that_does_not_answer_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "PROBE", "import time; time.sleep(60)")
    assert gpu_run.find_gpu("x", 0.3) == ("", "the driver does not answer within 0.3 s")


FAKE_CUDA = """
#include <string.h>
int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int bytes, int device) { strncpy(name, "A GPU", bytes); return device; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
#ifdef CAPABLE
int cuDeviceGetAttribute(int *value, int which, int device)
{ *value = which == 75 ? 9 : 0; return device; }
#else
int cuDeviceGetAttribute(int *value, int which, int device) { return 1; }
#endif
"""


@pytest.mark.parametrize("capable", [True, False])
def test_a_gpu_is_asked_for_what_it_is(tmp_path: Path, capable: bool) -> None:
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so"
    source.write_text(FAKE_CUDA)
    define = ["-DCAPABLE"] if capable else []
    subprocess.run(["cc", "-shared", "-fPIC", *define, "-o", library, source], check=True)
    gpu, why = gpu_run.find_gpu(str(library))
    assert (gpu, why) == ("A GPU|13000|90" if capable else "A GPU|13000|", "")
    facts = report.gather(ROOT, gpu)
    assert (facts["gpu"], facts["driver_cuda"]) == ("A GPU", "13000")
    told = parts.tools(parts.Lab(tmp_path, "x", True, facts))
    assert told.get("SHMCOLL_CUDA_ARCHS") == ("90" if capable else None)


# ---- what is built with ----


def only_tools(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CMAKE_GENERATOR", raising=False)


def test_ninja_or_make_builds_and_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_tools(tmp_path / "all", monkeypatch, "cmake", "gcc", "g++", "ninja", "make")
    assert parts.tools(lab(tmp_path))["CMAKE_GENERATOR"] == "Ninja"
    only_tools(tmp_path / "some", monkeypatch, "cmake", "cc", "c++", "make")
    assert parts.tools(lab(tmp_path))["CMAKE_GENERATOR"] == "Unix Makefiles"
    only_tools(tmp_path / "few", monkeypatch, "cmake", "cc")
    text = r"not on this machine: c\+\+, ninja \(or make\); needed: cmake"
    for part in (parts.build, parts.package):
        with pytest.raises(parts.Failed, match=text):
            part(session(tmp_path))


def test_headers_that_are_missing_are_named_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.check_headers()
    monkeypatch.setattr(parts.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.delenv("CPATH", raising=False)
    with pytest.raises(parts.Failed, match="no Python.h in"):
        parts.package(session(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "Python.h").touch()
    monkeypatch.setenv("CPATH", f":{tmp_path / 'other'}")
    parts.check_headers()


@pytest.mark.parametrize(
    "foreign",
    [
        "CMAKE_GENERATOR:INTERNAL=Borland Makefiles\n",
        "CMAKE_GENERATOR:INTERNAL=GENERATOR\nCMAKE_HOME_DIRECTORY:INTERNAL=/another/machine\n",
    ],
)
def test_a_build_knows_its_gpu_and_begins_anew_in_a_foreign_folder(
    tmp_path: Path, foreign: str
) -> None:
    """With the real CMake, over a project of one target."""
    text = "cmake_minimum_required(VERSION 3.20)\nproject(x NONE)\n"
    text += 'message(STATUS "GPU kernels: PTX 75, and code for: ${SHMCOLL_CUDA_ARCHS}")\n'
    text += "add_custom_target(gpu_experiments)\nadd_custom_target(scaling)\n"
    text += "add_custom_target(shmcoll)\n"
    (tmp_path / "CMakeLists.txt").write_text(text)
    one = parts.Session(parts.Lab(tmp_path, "x", True, {"capability": "90"}), "build", 60)
    (tmp_path / "build" / "gpu" / "CMakeFiles").mkdir(parents=True)
    cache = tmp_path / "build" / "gpu" / "CMakeCache.txt"
    generator = parts.tools(one.lab).get("CMAKE_GENERATOR", "")
    cache.write_text(foreign.replace("GENERATOR\n", f"{generator}\n"))
    assert parts.build(one) == ("ok", "kernels: PTX 75, and code for: 90")


def test_what_was_built_for_the_same_is_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without tools, which a build that was carried does not need; Python files are copied."""
    commands: list[Any] = []
    monkeypatch.setattr(
        parts.Session, "must", lambda self, command, **more: commands.append(command)
    )
    monkeypatch.setattr(parts, "kernels_of", lambda session: "kernels: code for 90")
    source, module = tmp_path / "src" / "a.c", tmp_path / "python" / "shmcoll" / "a.py"
    library = module.parent / "lib" / "libshmcoll.so.0"
    one = parts.Session(parts.Lab(tmp_path, "x", True, {"torch": "2.11"}), "build", 60)
    for file in (source, module, library, one.lab.program("scaling")):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    assert parts.build(one) == ("ok", "kernels: code for 90")
    assert parts.package(one) == ("ok", "")
    assert len(commands) == 3
    monkeypatch.setenv("PATH", str(tmp_path))
    for file in (module, library):
        file.write_text("2")
    assert parts.build(one) == ("ok", "built before; kernels: code for 90")
    assert parts.package(one) == ("ok", "built before")
    kept = one.lab.package / "shmcoll"
    assert (kept / "a.py").read_text() == "2"
    assert (kept / "lib" / "libshmcoll.so.0").read_text() == "1"
    assert len(commands) == 3
    one.lab.facts["torch"] = "2.12"
    assert parts.build(one)[1].startswith("built before")
    with pytest.raises(parts.Failed, match="not on this machine"):
        parts.package(one)
    source.write_text("2")
    with pytest.raises(parts.Failed, match="not on this machine"):
        parts.build(one)
    assert built.said_before(one.lab.build / "built.json", {}) is None


# ---- which parts ----


def test_parts_are_chosen_by_name_and_bring_what_they_need() -> None:
    assert gpu_run.chosen("") == list(parts.PARTS)
    assert gpu_run.chosen("exp,cpu") == ["cpu", "experiments"]
    assert gpu_run.with_needs(["experiments"]) == ["build", "experiments"]
    assert gpu_run.with_needs(["tensors", "cpu"]) == ["package", "tensors", "build", "cpu"]
    assert gpu_run.with_needs(list(parts.PARTS)) == list(parts.PARTS)
    with pytest.raises(ValueError, match="wrong: no part of build"):
        gpu_run.chosen("cpu,wrong")


def test_what_all_parts_are_due_fits_a_run() -> None:
    """Also where each of them hangs, and takes its time to end."""
    ending = sum(parts.TOLD_S for _ in parts.PARTS)
    assert sum(part.due_s for part in parts.PARTS.values()) + ending < gpu_run.SECONDS


def test_a_part_that_hangs_leaves_the_next_ones_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {}

    def keep(one: parts.Session) -> tuple[str, str]:
        limits[one.log.stem] = one.left_s
        return "ok", ""

    found = {
        "long": parts.Part(keep, 240, "", due_s=60, needs=()),
        "next": parts.Part(keep, 50, "", due_s=40, needs=()),
        "last": parts.Part(keep, 50, "", due_s=30, needs=()),
    }
    monkeypatch.setattr(parts, "PARTS", found)
    gpu_run.run_all(lab(tmp_path), list(found), time.monotonic() + 200, tmp_path)
    assert [round(limits[name], -1) for name in found] == [130, 50, 50]
    gpu_run.run_all(lab(tmp_path), list(found), time.monotonic() + 80, tmp_path)
    assert [round(limits[name], -1) for name in found] == [60, 50, 50]


def test_a_part_without_what_it_needs_is_not_run_and_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(one: parts.Session) -> tuple[str, str]:
        raise parts.Failed("no compiler")

    fine = parts.Part(lambda one: ("ok", ""), 30, "", needs=())
    found = {
        "package": part(fails),
        "experiments": fine,
        "tensors": dataclasses.replace(fine, needs=("package",)),
        "bench": dataclasses.replace(fine, wants=("package",)),
    }
    monkeypatch.setattr(parts, "PARTS", found)
    results = gpu_run.run_all(lab(tmp_path), list(found), time.monotonic() + 99, tmp_path)
    assert [result.status for result in results] == ["failed", "ok", "not run", "ok"]
    assert results[2].why == "it needs package, which is not ok"


def test_a_failing_package_stops_neither_experiments_nor_the_others_figures() -> None:
    for name in ("experiments", "cpu", "bench", "sanitizer"):
        assert "package" not in parts.PARTS[name].needs


def test_every_part_fits_a_run_of_its_own() -> None:
    for name in parts.PARTS:
        needed = sum(parts.PARTS[one].limit_s for one in gpu_run.with_needs([name]))
        assert needed < gpu_run.SECONDS, name


# ---- one command of a part ----


def test_json_lines_become_rows_and_talk_does_not(tmp_path: Path) -> None:
    one = session(tmp_path)
    assert one.run(python('print(\'{"a": 1}\\ntalk\\n{broken}\\n{"b": 2}\')')) == 0
    assert one.rows == [{"a": 1}, {"b": 2}]
    assert "talk" in one.log.read_text()


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(parts.Failed, match="ended with 3"):
        session(tmp_path).must(python("raise SystemExit(3)"))


def test_the_limit_ends_all_processes_and_keeps_the_rows(tmp_path: Path) -> None:
    text = "import subprocess, sys, time; print('{\"a\": 1}', flush=True)\n"
    text += "child = subprocess.Popen(['sleep', '1000']); print('{\"pid\": %d}' % child.pid)\n"
    text += "sys.stdout.flush(); time.sleep(1000)"
    one = session(tmp_path)
    with pytest.raises(parts.TimeIsUp, match="did not end within 1 s"):
        one.run(python(text), 1)
    assert one.rows[0] == {"a": 1}
    assert one.leftovers == []
    assert not is_running(one.rows[1]["pid"])


def test_who_is_ended_has_said_where_it_stood(tmp_path: Path) -> None:
    """A process that registered for it writes a Python stack. For others the log has what the kernel
    knows. All live on until they are told to end."""
    text = "import faulthandler, signal, subprocess, time\n"
    text += "subprocess.Popen(['sleep', '1000'])\n"
    text += "faulthandler.register(signal.SIGUSR2, all_threads=True)\n"
    text += "def stands_here(): time.sleep(1000)\n"
    text += "stands_here()"
    one = session(tmp_path)
    with pytest.raises(parts.TimeIsUp):
        one.run(python(text), 1)
    said = one.log.read_text()
    assert "in stands_here" in said
    assert "sleep 1000" in said
    assert re.search(r"thread \d+ sleep: S", said)


@pytest.mark.long
def test_a_hang_under_the_limit_of_a_part_leaves_what_all_ranks_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks print to files of their own, which go when their parent ends."""
    text = f"""
import sys, time
sys.path.insert(0, {str(ROOT / "tests" / "gpu")!r})
import test_cuda_tensors as tensors
import cases
def waits_for_ever(team):
    print("rank", team.me, "is here")
    open(f"{tmp_path}/{{team.me}}", "w").close()
    time.sleep(1000)
cases.CASES.clear()
cases.CASES["hangs"] = cases.Case(waits_for_ever)
tensors.main(["--device", "cpu", "--worlds", "2", "--limit", "900"])
"""
    one = session(tmp_path, 60)

    def until_all_wait() -> None:
        while one.left_s > 0 and not all((tmp_path / str(r)).exists() for r in range(2)):
            time.sleep(0.05)
        raise subprocess.TimeoutExpired("it", 0)

    class Watched(subprocess.Popen):  # type: ignore[type-arg]
        def wait(self, timeout: float | None = None) -> int:
            return until_all_wait() if timeout and timeout > 20 else super().wait(timeout)

    monkeypatch.setattr(parts.subprocess, "Popen", Watched)
    with pytest.raises(parts.TimeIsUp):
        one.run(python(text))
    said = one.log.read_text()
    assert "rank 0 is here" in said and "rank 1 is here" in said
    assert said.count("in waits_for_ever") == 2
    assert one.leftovers == []


def test_who_has_no_time_left_is_not_begun(tmp_path: Path) -> None:
    one = session(tmp_path, 0.5)
    with pytest.raises(parts.TimeIsUp, match="was not begun"):
        one.run(["touch", tmp_path / "file"])
    assert not (tmp_path / "file").exists()


def test_who_does_not_hear_is_killed(tmp_path: Path) -> None:
    text = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    begun = time.monotonic()
    with pytest.raises(parts.TimeIsUp):
        session(tmp_path).run(python(text), 1, told_s=0.5)
    assert time.monotonic() - begun < 20


def test_processes_that_stay_are_told_and_ended(tmp_path: Path) -> None:
    one = session(tmp_path)
    one.run(
        python("import subprocess; print('{\"pid\": %d}' % subprocess.Popen(['sleep', '99']).pid)")
    )
    assert len(one.leftovers) == 1
    assert not is_running(one.rows[0]["pid"])


# ---- a run ----


def part(run: Any, **options: Any) -> parts.Part:
    return parts.Part(run, 30, "", least_s=0, needs=(), **options)


def test_what_parts_end_with_is_kept_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fine(one: parts.Session) -> tuple[str, str]:
        one.rows.append({"case": "x", "ranks": 2, "outcome": "ok", "detail": ""})
        return "ok", ""

    def absent(one: parts.Session) -> tuple[str, str]:
        raise parts.Absent("no such tool")

    def hung(one: parts.Session) -> tuple[str, str]:
        one.rows.append({"bench": "a", "us": 1.25})
        one.run(python("import time; time.sleep(99)"), 0.2)
        return "ok", ""

    def litters(one: parts.Session) -> tuple[str, str]:
        (gpu_run.SHARED / "shmcoll-test").touch()
        return "ok", ""

    found = {"fine": fine, "absent": absent, "hung": hung, "litters": litters}
    monkeypatch.setattr(parts, "PARTS", {name: part(run) for name, run in found.items()})
    monkeypatch.setitem(parts.PARTS, "late", parts.Part(fine, 30, "", least_s=1e6))
    results = gpu_run.run_all(lab(tmp_path), list(parts.PARTS), time.monotonic() + 60, tmp_path)
    statuses = [result.status for result in results]
    assert statuses == ["ok", "absent", "hung", "failed", "not run"]
    assert [result.good for result in results] == [True, True, False, False, False]
    assert str(gpu_run.SHARED / "shmcoll-test") in results[3].why
    assert not (gpu_run.SHARED / "shmcoll-test").exists()
    text, data = report.paths(tmp_path, FACTS)
    assert text.name == "2026-01-02-nvidia-h200-sxm.md"
    whole = json.loads(data.read_text())
    assert [one["status"] for one in whole["parts"]] == statuses
    assert whole["parts"][2]["rows"] == [{"bench": "a", "us": 1.25}]
    assert "| a | 1.25 |" in text.read_text()


def test_what_fails_leaves_its_log_in_the_report_and_the_next_part_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(one: parts.Session) -> tuple[str, str]:
        one.run(python("print('{\"a\": 1}'); print('what it said')"))
        raise KeyError("a defect of the script")

    def fine(one: parts.Session) -> tuple[str, str]:
        return "ok", ""

    monkeypatch.setattr(parts, "PARTS", {"broken": part(broken), "fine": part(fine)})
    results = gpu_run.run_all(lab(tmp_path), ["broken", "fine"], time.monotonic() + 60, tmp_path)
    assert [result.status for result in results] == ["failed", "ok"]
    text = report.paths(tmp_path, FACTS)[0].read_text()
    assert "    what it said" in text
    assert "    KeyError: 'a defect of the script'" in text
    assert "what it said" in report.log_path(tmp_path, FACTS).read_text()
    assert report.logs([report.Result("p", "ok", log="x" * 5_000_000)]).count("x") <= 2 << 20


def test_a_run_that_is_told_to_end_writes_what_it_has(tmp_path: Path) -> None:
    text = f"""
import sys
sys.path.insert(0, {str(GPU)!r})
import parts, pathlib, report, run, signal
def slow(one):
    row = 'print(\\'{{"a": 1}}\\', flush=True)'
    one.run([sys.executable, "-c", row + "; import time; time.sleep(1000)"])
    return "ok", ""
parts.PARTS = {{name: parts.Part(slow, 99, "", needs=()) for name in ("slow", "next")}}
run.find_gpu = lambda driver: ("A GPU|1|", "")
report.gather = lambda root, gpu: {FACTS!r}
run.ROOT = run.SHARED = pathlib.Path({str(tmp_path)!r})
sys.exit(run.main(["--out", {str(tmp_path)!r}]))
"""
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    log = tmp_path / "build" / "gpu" / "logs" / "slow.log"
    while not log.exists() or "\n{" not in log.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)  # it has begun to wait for the command
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0].count("====") == 2
    assert process.returncode == 1
    whole = json.loads(report.paths(tmp_path, FACTS)[1].read_text())
    assert [(one["status"], one["rows"]) for one in whole["parts"]] == [("stopped", [{"a": 1}])]


def test_what_was_spent_before_the_first_part_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 s of 70, and the part needs 15."""
    monkeypatch.setattr(gpu_run, "BEGUN", time.monotonic() - 60)
    monkeypatch.setattr(gpu_run, "find_gpu", lambda driver: ("A GPU|1|", ""))
    monkeypatch.setattr(report, "gather", lambda root, gpu: dict(FACTS))
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    late = parts.Part(lambda one: ("ok", ""), 30, "", needs=())
    monkeypatch.setattr(parts, "PARTS", {"late": late})
    assert gpu_run.main(["--seconds", "70", "--out", str(tmp_path)]) == 1
    assert "| late | not run | 0 |  |" in report.paths(tmp_path, FACTS)[0].read_text()
    assert gpu_run.main(["--seconds", "90", "--out", str(tmp_path)]) == 0


# ---- several runs, one report ----


def facts_of(started: str, **more: str) -> dict[str, str]:
    return FACTS | {"commit": "abc1234", "started": started} | more


def test_runs_with_some_parts_make_one_report(tmp_path: Path) -> None:
    first = [
        report.Result("build", "ok"),
        report.Result("bench", "failed", "no", 1.0, [{"a": 1}], "what it said", "10:00"),
    ]
    report.write(tmp_path, facts_of("10:00", kernel="6.1"), first)
    second = [
        report.Result("bench", "ok", rows=[{"a": 2}], run="11:00"),
        report.Result("cpu", "hung", log="where it stood", run="11:00"),
    ]
    report.write(tmp_path, facts_of("11:00", kernel="6.2", date="2026-01-03"), second, ["cpu"])
    third = [report.Result("bench", "not run", run="12:00")]
    third += [report.Result("build", "stopped", run="12:00")]
    report.write(tmp_path, facts_of("12:00", kernel="6.2"), third, ["cpu", "bench"])
    [data] = tmp_path.glob("*.json")
    assert data.name == "2026-01-02-nvidia-h200-sxm.json"
    whole = json.loads(data.read_text())
    kept = [(one["part"], one["status"], one["rows"], one["run"]) for one in whole["parts"]]
    assert kept == [
        ("cpu", "hung", [], "11:00"),
        ("bench", "ok", [{"a": 2}], "11:00"),
        ("build", "ok", [], ""),
    ]
    text = data.with_suffix(".md").read_text()
    assert "| 12:00 |" in text and "| 11:00 |" in text
    assert "| run | date | kernel |" not in text and "kernel |" in text
    assert "    where it stood" in text
    assert "where it stood" in data.with_suffix(".log").read_text()
    data.with_suffix(".log").unlink()  # it does not travel with the repository
    report.write(tmp_path, facts_of("13:00"), [])
    assert "    where it stood" in data.with_suffix(".md").read_text()


def test_another_commit_has_another_report(tmp_path: Path) -> None:
    for commit in ("abc1234", "def5678", "abc1234"):
        report.write(tmp_path, facts_of("10:00", commit=commit), [])
    names = sorted(path.name for path in tmp_path.glob("*.json"))
    stem = "2026-01-02-nvidia-h200-sxm"
    assert names == [f"{stem}-def5678.json", f"{stem}.json"]
    (tmp_path / f"{stem}.json").write_text("{broken")
    report.write(tmp_path, facts_of("10:00"), [])
    assert (tmp_path / f"{stem}-abc1234.json").exists()


def test_reports_of_several_calls_are_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for name, commit in (("bench", "abc1234"), ("cpu", "abc1234"), ("mps", "other")):
        folder = tmp_path / name
        folder.mkdir()
        results = [report.Result(name, "hung", run=name, log=f"{name} log\n")]
        report.write(folder, facts_of(name, commit=commit), results)
        files.append(str(next(folder.glob("*.json"))))
    out = ["--out", str(tmp_path / "out")]
    assert gpu_run.main(["--merge", *files[:2], *out]) == 0
    whole = report.load(next((tmp_path / "out").glob("*.json")))
    assert [(one.part, one.log.strip()) for one in whole.results] == [
        ("bench", "bench log"),
        ("cpu", "cpu log"),
    ]
    assert len(whole.runs) == 2
    assert gpu_run.main(["--merge", *files, *out]) == 2
    assert "NVIDIA H200 (SXM) at abc1234; NVIDIA H200 (SXM) at other" in capsys.readouterr().err
    (tmp_path / "old.json").write_text('{"schema": "shmcoll.gpu/1"}')
    assert gpu_run.main(["--merge", str(tmp_path / "old.json"), *out]) == 2
    assert "old.json is no report: its schema is shmcoll.gpu/1" in capsys.readouterr().err


def test_what_is_missing_most_is_run_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: part(lambda one: ("ok", "")) for name in "abcdef"}
    found["e"] = dataclasses.replace(found["e"], due_s=1000)
    monkeypatch.setattr(parts, "PARTS", found)
    old = [
        report.Result("a", "ok", rows=[{"why": "no time"}]),
        report.Result("b", "failed", run="11:00"),
        report.Result("c", "ok"),
        report.Result("d", "not run"),
        report.Result("f", "hung", run="10:00"),
    ]
    assert gpu_run.missing(old) == ["d", "e", "f", "b", "a"]
    monkeypatch.setattr(gpu_run, "find_gpu", lambda driver: ("A GPU|1|", ""))
    monkeypatch.setattr(report, "gather", lambda root, gpu: facts_of("12:00"))
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.setattr(gpu_run, "BEGUN", time.monotonic())
    report.write(tmp_path, facts_of("10:00"), old)
    arguments = ["--next", "--seconds", "60", "--out", str(tmp_path)]
    assert gpu_run.main(arguments) == 0  # what was not reached is left for another run
    left = report.found(tmp_path, facts_of("12:00")).results
    assert gpu_run.missing(left) == ["e"]
    assert [one.status for one in left] == ["ok", "ok", "ok", "ok", "not run", "ok"]


def test_all_that_a_run_has_goes_to_the_parts_that_are_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def keep(one: parts.Session) -> tuple[str, str]:
        limits.append(round(one.left_s, -1))
        return "ok", ""

    long = parts.Part(keep, 150, "", due_s=60, needs=())
    monkeypatch.setattr(parts, "PARTS", {"long": long, "next": long})
    end = time.monotonic() + 200
    gpu_run.run_all(lab(tmp_path), ["long", "next"], end, tmp_path, sharing=False)
    assert limits == [150, 150]


def test_a_table_compares_the_backends() -> None:
    def row(ranks: int, size: int, backend: str, us: float | None, why: str = "") -> Any:
        return baselines.row_of(ranks, size, backend) | {"us": us, "why": why}

    rows = [
        row(2, 8, "gloo", 400.0),
        row(2, 8, "shmcoll", 50.0),
        row(2, 8, "rounds", None, "it | fell"),
    ]
    rows += [row(2, 4096, "gloo", 12345.0), row(2, 4096, "shmcoll", None, "no time")]
    text = "\n".join(report.of_rows([{"route": "slabs"}, *rows]))
    assert "| ranks | bytes | gloo | shmcoll | rounds | gloo / shmcoll | gloo / rounds |" in text
    assert "| 2 | 8 B | 400 us | 50 us | failed | 8 |  |" in text
    assert "| 2 | 4 KiB | 12.3 ms | no time |  |  |  |" in text
    assert "- 2 ranks, 8 B, rounds: it \\| fell" in text


def test_a_report_has_a_table_for_each_kind_and_names_what_is_not_ok() -> None:
    rows = [
        {"experiment": "release", "word": "host", "us": 1.5},
        {"experiment": "release", "word": "gpu", "reason": "a|b"},
        {"step": "x", "why": "", "us": None},
        {"case": "one", "ranks": 2, "outcome": "ok", "detail": ""},
        {"case": "two", "ranks": 2, "outcome": "not offered yet", "detail": "rank 0: no"},
    ]
    text = report.markdown(report.Report([FACTS], [report.Result("p", "failed", "why", 1.0, rows)]))
    assert "| experiment | word | us | reason |" in text
    assert "| release | gpu |  | a\\|b |" in text
    assert "| step |\n" in text  # columns without anything are left out
    assert "| 2 | not offered yet | 1 |" in text
    assert "- 2 ranks, two: rank 0: no" in text


# ---- compute-sanitizer ----

FAKE_SANITIZER = """#!/bin/sh
while [ "$1" != "--error-exitcode" ]; do shift; done
found=$2; shift 2
case "$*" in
*gpu_experiments*share*) echo "========= ERROR SUMMARY: 0 errors"; exit 1;;
*gpu_experiments*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)";;
*) echo "========= Invalid __global__ read of size 4 bytes"; echo "========= ERROR SUMMARY: 2 errors"
   exit $found;;
esac
"""


def test_what_the_sanitizer_finds_is_told_from_a_program_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(FAKE_SANITIZER)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    one = session(tmp_path)
    status, why = parts.sanitizer(one)
    assert status == "failed"
    assert why == (
        "memcheck of experiments: clean, but the program failed; memcheck of tensors: errors found"
    )
    assert [row["exit"] for row in one.rows] == [1, parts.SANITIZER_FOUND, 0]
    assert one.rows[1]["errors"] == 2
    assert one.rows[1]["first"] == "Invalid __global__ read of size 4 bytes"
    assert one.rows[2]["verdict"] == "clean"


def test_a_sanitizer_that_does_not_work_is_not_clean() -> None:
    said = "========= Error: Device not supported\n"
    assert parts.judged("memcheck", 0, said)["verdict"] == "it said nothing"
    assert parts.judged("memcheck", None, "")["verdict"] == "hung"
    # A child's errors, where the status is the parent's.
    assert parts.judged("memcheck", 0, "ERROR SUMMARY: 3 errors")["verdict"] == "errors found"


def test_cases_under_the_sanitizer_exist_and_have_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in parts.SLOW_CASES:
        assert name in cases.CASES
    assert tensors.picked(",".join(parts.SLOW_CASES), "cpu")
    with pytest.raises(ValueError, match="nonsense: no case"):
        tensors.picked("float32,nonsense", "cpu")
    for module, name in ((cases, "TIMEOUT_S"), (tensors, "STALL_S"), (tensors, "GRACE_S")):
        monkeypatch.setattr(module, name, getattr(module, name))
    tensors.be_patient(4)
    assert (cases.TIMEOUT_S, tensors.STALL_S, tensors.GRACE_S) == (60, 120, 40)


# ---- what waiting streams hold up ----


class Streams:
    """Stands in for a GPU: work after eight waiting streams is held up."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.made, self.ends = 0, True
        self.words = self.driver = self

    def set(self, word: int, value: int) -> None:
        if value and self.ends:
            self.waiting.clear()

    def enter(self) -> None:
        pass

    def stream(self, priority: int = 0) -> int:
        self.made += 1
        return self.made

    def wait(self, stream: int) -> None:
        self.waiting.add(stream)

    def write(self, stream: int, value: int) -> None:
        pass

    def is_idle(self, stream: int) -> bool:
        return len(self.waiting) < 8 and stream not in self.waiting

    def idle(self, streams: list[int], limit_s: float) -> float | None:
        return 1e-6 if all(map(self.is_idle, streams)) else None

    def release(self, streams: list[int]) -> bool:
        self.set(0, 1)
        return self.idle(streams, 1) is not None


def test_streams_beside_waiting_ones_are_looked_at_until_one_is_held_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    assert queues.beside(Streams(), 64)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    free = [(count, 0, "goes on") for count in (1, 2, 4, 6, 7)]
    found = [(row["waiting"], row["held_up"], row["caller"]) for row in rows]
    assert found == [*free, (8, 4, "goes on")]
    assert {row["connections"] for row in rows} == {"32"}
    stuck = Streams()
    stuck.ends = False
    assert not queues.beside(stuck, 64)  # type: ignore[arg-type]


def test_a_caller_that_the_driver_keeps_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Streams):
        def write(self, stream: int, value: int) -> None:
            while value >= 100 and self.waiting:
                time.sleep(0.01)

    assert queues.behind(Full(), 200)  # type: ignore[arg-type]
    assert queues.behind(Full(), 50)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["enqueued"], row["caller"]) for row in rows] == [(100, "held"), (50, "goes on")]


def test_a_caller_that_is_kept_beside_waiting_streams_is_told_and_released(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keeps(Streams):
        def write(self, stream: int, value: int) -> None:
            while len(self.waiting) == 2 and value == 3:
                time.sleep(0.01)

    monkeypatch.setattr(queues, "HELD_UP_S", 0.1)
    assert queues.beside(Keeps(), 64, -5)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["queues"] for row in rows} == {"four streams next to waiting ones, of priority -5"}
    found = [(row["waiting"], row["held_up"], row["caller"]) for row in rows]
    assert found == [(1, 0, "goes on"), (2, 4, "held after write 2")]
    stuck = Keeps()
    stuck.ends = False
    monkeypatch.setattr(queues, "END_S", 0.1)
    assert not queues.beside(stuck, 64)  # type: ignore[arg-type]
    stuck.waiting.clear()


def test_experiments_go_on_behind_one_that_fails_and_kill_is_last(tmp_path: Path) -> None:
    one = session(tmp_path, 60)
    program = one.lab.program("gpu/gpu_experiments")
    program.parent.mkdir(parents=True)
    program.write_text(
        '#!/bin/sh\nfor name; do :; done; echo "{\\"ran\\": \\"$name\\"}"\ntest $name != share\n'
    )
    program.chmod(0o755)
    script = tmp_path / "benchmarks" / "gpu" / "queues.py"
    script.parent.mkdir(parents=True)
    script.write_text(
        "import os; c = os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS', 'default')\n"
        'print(\'{"ran": "%s"}\' % c)'
    )
    assert parts.experiments(one) == ("failed", "share ended with 1")
    ran = [row["ran"] for row in one.rows]
    assert ran == [*parts.EXPERIMENTS[:8], "default", "32", "kill"]


# ---- the benchmark ----

# Read again by every rank that is spawned. `PLANTED` is what shmcoll does at 512 bytes. Without a GPU
# ranks may be forked: torch is there, and nobody waits for it.
BENCH = """
import multiprocessing, os, sys, time
sys.path.insert(0, GPU)
import baselines
import torch.distributed as dist
honest = dist.all_reduce
def all_reduce(t, *args, group=None, **more):
    if group is not None and t.numel() == 128 and dist.get_backend(group) == "shmcoll":
        if dist.get_rank() == 1:
            PLANTED
    return honest(t, *args, group=group, **more)
dist.all_reduce = all_reduce
how = multiprocessing.get_context("HOW")
multiprocessing.get_context = lambda _: how
baselines.STALL_S = 6.0 if "HOW" == "fork" else 45.0
baselines.END_S = 2
if __name__ == "__main__":
    sys.exit(baselines.main("--device cpu --worlds 2 --max 4K --backends gloo,shmcoll".split()))
"""


@pytest.mark.parametrize(
    ("how", "planted", "said"),
    [
        pytest.param(
            "spawn",
            'raise RuntimeError("planted")',
            "rank 1: RuntimeError: planted",
            marks=pytest.mark.long,
        ),
        ("fork", "time.sleep(1000)", "no step ended in 6 s"),
    ],
)
def test_a_backend_that_fails_at_a_size_is_a_row_and_the_other_goes_on(
    tmp_path: Path, how: str, planted: str, said: str
) -> None:
    script = tmp_path / "bench.py"
    text = BENCH.replace("GPU)", f"{str(GPU)!r})").replace("PLANTED", planted)
    script.write_text(text.replace("HOW", how))
    one = session(tmp_path, 120)
    assert one.run([sys.executable, script]) == 1
    rows = [row for row in one.rows if row["bench"] == "all_reduce"]
    good = [(row["backend"], row["bytes"]) for row in rows if row["us"]]
    assert sorted(good) == sorted(
        [("shmcoll", size) for size in (8, 64)] + [("gloo", size) for size in (8, 64, 512, 4096)]
    )
    [bad] = [row for row in rows if not row["us"]]
    assert (bad["backend"], bad["bytes"], bad["wrong"]) == ("shmcoll", 512, False)
    assert said in bad["why"]
    if "sleep" in planted:
        assert 'bench.py", line 10 in all_reduce' in one.log.read_text()  # where it stood


# Without a GPU ranks may be forked. `rounds` is a backend that one rank cannot begin with.
OFFERED = """
import multiprocessing, os, sys
sys.path.insert(0, GPU)
import baselines
honest = baselines.Rank.group
def group(rank, backend):
    print("side", backend, os.environ.get("SHMCOLL_RELAY"), flush=True)
    if backend == "nccl":
        raise RuntimeError("a Duplicate GPU" if rank.rank else "a heading")
    return honest(rank, backend)
baselines.Rank.group = group
how = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda _: how
sys.exit(baselines.main(["--device", "cpu", "--worlds", "2", "--max", "8", "--backends",
                         "gloo,nccl,shmcoll,shmcoll rounds"]))
"""


def test_a_backend_that_refuses_is_a_row_and_no_failure(tmp_path: Path) -> None:
    script = tmp_path / "bench.py"
    script.write_text(OFFERED.replace("GPU)", f"{str(GPU)!r})"))
    one = session(tmp_path, 60)
    assert one.run([sys.executable, script]) == 0
    rows = {row["backend"]: row for row in one.rows if row["bench"] == "offered"}
    works = {name: row["works"] for name, row in rows.items()}
    assert works == {"gloo": True, "nccl": False, "shmcoll": True, "shmcoll rounds": True}
    assert rows["nccl"]["why"] == "RuntimeError: a Duplicate GPU"
    measured = [row["backend"] for row in one.rows if row["bench"] == "all_reduce"]
    assert measured == ["gloo", "shmcoll", "shmcoll rounds"]
    said = [line for line in one.log.read_text().splitlines() if line.startswith("side")]
    assert said.count("side shmcoll None") == said.count("side shmcoll off") == 2


FAKE_MPS = """#!/bin/bash
log=$CUDA_MPS_LOG_DIRECTORY/control.log
if [ "$1" = "-d" ]; then
    DOES_START || { echo "no GPU for you"; exit 1; }
    (exec -a daemon bash "$0" serve) >/dev/null 2>&1 &
    sleep 0.3
elif [ "$1" = "serve" ]; then
    echo started >>$log
    while [ ! -e $CUDA_MPS_PIPE_DIRECTORY/quit ]; do sleep 0.05; done
else
    read word; test QUITS = yes && touch $CUDA_MPS_PIPE_DIRECTORY/$word
fi
"""


@pytest.mark.parametrize(("starts", "quits"), [("true", "yes"), ("true", "no"), ("false", "yes")])
def test_an_mps_server_is_there_for_the_block_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: str, quits: str
) -> None:
    tool = tmp_path / mps_daemon.CONTROL
    tool.write_text(FAKE_MPS.replace("DOES_START", starts).replace("QUITS", quits))
    tool.chmod(0o755)
    monkeypatch.setattr(mps_daemon, "QUIT_S", 1)
    monkeypatch.setattr(mps_daemon, "CONTROL", "bash")  # what the kernel calls a script
    said: list[str] = []
    folder = ""
    if starts == "false":
        with pytest.raises(OSError, match="no GPU for you"):
            with mps_daemon.running(str(tool), said.append):
                raise AssertionError("it has not started")
        return
    with pytest.raises(KeyError):
        with mps_daemon.running(str(tool), said.append) as env:
            folder = env["CUDA_MPS_PIPE_DIRECTORY"]
            assert len(mps_daemon.processes_of(folder)) >= 1
            raise KeyError
    assert mps_daemon.processes_of(folder) == []
    assert not Path(folder).exists()
    assert "started" in "".join(said)
    assert ("MPS was killed: it did not quit" in said[0]) == (quits == "no")


def test_without_mps_its_part_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(parts.Absent, match="no nvidia-cuda-mps-control"):
        parts.mps(session(tmp_path))


def test_no_mpi_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    one = session(tmp_path)
    assert parts.compare_mpi(one, [2]) == "not compared with an MPI: no mpirun and no mpicc"
    assert one.rows == [{"peer": "MPI", "why": "no mpirun and no mpicc"}]


def test_an_mpi_that_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_tools(tmp_path / "bin", monkeypatch, "mpirun", "mpicc")
    script = tmp_path / "benchmarks" / "peers.py"
    script.parent.mkdir()
    script.write_text("print('not one that we know'); raise SystemExit(2)")
    one = session(tmp_path)
    why = "benchmarks/peers.py ended with 2: not one that we know"
    assert parts.compare_mpi(one, [2, 4]) == f"2 ranks of an MPI: {why}"
    assert one.rows == [{"peer": "MPI", "ranks": 2, "why": why}]


def test_figures_of_an_mpi_become_rows(tmp_path: Path) -> None:
    one = session(tmp_path)
    script = tmp_path / "benchmarks" / "peers.py"
    script.parent.mkdir()
    row = {
        "op": "all_reduce",
        "bytes": 8,
        "right": True,
        "ours_us": [1, 2, 9],
        "theirs_us": [4] * 3,
    }
    found = {"runs": [{"other": "openmpi", "rows": [row]}]}
    text = "import sys; file = sys.argv[sys.argv.index('--json') + 1]\n"
    script.write_text(f"{text}open(file, 'w').write({json.dumps(found)!r})")
    assert parts.run_peers(one, 2, ["-b", "8"], tmp_path / "peers.json", 20) == ""
    assert one.rows == [
        {"peer": "openmpi", "ranks": 2, "op": "all_reduce", "bytes": 8, "shmcoll_us": 2}
        | {"peer_us": 4, "ratio": 2.0, "wrong": False}
    ]


@pytest.mark.long
def test_cpu_tensors_by_shmcoll_go_with_another_backend_for_cuda(tmp_path: Path) -> None:
    """Forked ranks, which load no torch. The group has only CPU tensors."""
    text = f"""
import multiprocessing, sys
sys.path.insert(0, {str(GPU)!r})
import with_nccl
how = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda _: how
sys.exit(with_nccl.main(["--device", "cpu", "--limit", "40"]))
"""
    one = session(tmp_path, 60)
    assert one.run(python(text)) == 0
    outcomes = [(row["with_nccl"], row["outcome"]) for row in one.rows]
    assert outcomes == [("world of one", "ok")] * 3 + [("2 ranks on one GPU", "ok")] * 3


# ---- the tests of CUDA tensors ----


def test_a_case_is_as_good_as_its_worst_rank() -> None:
    assert tensors.merge([("ok", ""), ("ok", "")]) == ("ok", "")
    assert tensors.merge([("ok", ""), ("error", "x")]) == ("error", "rank 1: x")
    assert tensors.merge([("error", "x"), ("wrong", "y")]) == ("wrong", "rank 1: y")


def test_wrong_cases_and_hanging_ones_are_told_and_the_rest_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(team: cases.Team) -> str:
        time.sleep(1000 if team.me else 0)
        return ""

    def refuse(team: cases.Team) -> str:
        raise TypeError("shmcoll: send: sparse CUDA tensors are not offered")

    calls = itertools.count()
    found = {
        "right": lambda team: team.usable(),
        "wrong": lambda team: "no" if team.me else "",
        "hangs": hang,
        "refused": refuse,
        "killed": lambda team: os.kill(os.getpid(), signal.SIGKILL) if team.me else "",
        "bits": lambda team: cases.both(team, [team.ones(3)], lambda t: [t[0] + next(calls)]),
        "last": lambda team: team.usable(),
    }
    monkeypatch.setattr(tensors, "CASES", {n: cases.Case(run) for n, run in found.items()})
    monkeypatch.setattr(tensors, "STALL_S", 3.0)
    monkeypatch.setattr(tensors, "GRACE_S", 2.0)
    bad = tensors.run_world(list(found), 2, "cpu", time.monotonic() + 60, True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    outcomes = {row["case"]: row["outcome"] for row in rows}
    assert outcomes == {
        "right": "ok",
        "wrong": "wrong",
        "hangs": "hung or died",
        "refused": "not offered yet",
        "killed": "hung or died",
        "bits": "wrong",
        "last": "ok",
    }
    assert bad == 5


def test_a_waiting_case_that_fails_is_tried_with_more_hardware_queues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row says whether that helps. Other cases, and those that are not offered, are not tried."""

    def hangs(team: cases.Team) -> str:
        if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "32" and team.me:
            time.sleep(1000)
        return team.usable()

    def refuse(team: cases.Team) -> str:
        raise TypeError("shmcoll: send: sparse CUDA tensors are not offered")

    found = {
        "hangs": cases.Case(hangs, waits=True),
        "wrong": cases.Case(lambda team: "no", waits=True),
        "right": cases.Case(lambda team: team.usable(), waits=True),
        "refused": cases.Case(refuse, waits=True),
        "wrong, and waits for nobody": cases.Case(lambda team: "no"),
    }
    monkeypatch.setattr(tensors, "CASES", found)
    monkeypatch.setattr(tensors, "STALL_S", 3.0)
    monkeypatch.setattr(tensors, "GRACE_S", 2.0)
    assert tensors.run_world(list(found), 2, "cpu", time.monotonic() + 60, True) == 4
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    again = [(row["again"], row["default"], row["outcome"]) for row in rows if "again" in row]
    assert again == [("hangs", "hung or died", "ok"), ("wrong", "wrong", "wrong")]
    assert sum("case" in row for row in rows) == 5


def test_cases_that_cannot_be_imported_are_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moved_cases.py").write_text("from torch import what_is_gone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(cases, "CASES", {})
    tensors.add_cases("moved_cases")
    [name] = cases.CASES
    assert name == "imports: moved_cases"
    assert "what_is_gone" in cases.CASES[name].run(None)  # type: ignore[arg-type]


def test_what_is_to_be_known_first_is_run_first() -> None:
    names = tensors.picked("", "cuda:0")
    assert sorted(names) == sorted(cases.CASES)
    assert names[0] == "broadcast float32"
    assert names.index("FSDP2: replicas of shards") < names.index("broadcast float64")
    waiting = [name for name in names if cases.CASES[name].waits]
    assert len(waiting) == 6


def test_the_route_of_cuda_tensors_is_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"rank": "0"}
    monkeypatch.setattr(shmcoll, "describe", lambda group: said, raising=False)
    assert about.route_of(None, 2) == {}  # no CUDA tensor yet
    said |= {"cuda:0.route": "slabs", "cuda:0.memory": "fd", "cuda:0.reason": ""}
    said |= {"cuda:0.gpus": "1", "cuda:0.gpu_ranks": "0-1"}
    row = about.route_of(None, 2)
    assert (row["route"], row["memory"], row["gpus"]) == ("slabs", "fd", "1")

    def broken(group: object) -> dict[str, str]:
        raise RuntimeError("it has failed")

    monkeypatch.setattr(shmcoll, "describe", broken)
    assert about.route_of(None, 2)["reason"] == "RuntimeError: it has failed"
    monkeypatch.delattr(shmcoll, "describe")
    assert about.route_of(None, 2)["route"] == "unknown"

    team = cases.Team(ranks.Rank.__new__(ranks.Rank), None)  # type: ignore[arg-type]
    monkeypatch.setattr(cases.Team, "world", 2)
    answers = iter([{"route": "unknown", "ranks": 2, "reason": "it has failed"}, row])
    monkeypatch.setattr(about, "route_of", lambda group, world: next(answers))
    shown: set[str] = set()
    tensors.tell_route(team, tmp_path / "route")
    for _ in range(2):  # it is asked until it is known
        tensors.tell_route(team, tmp_path / "route")
        tensors.show_route(tmp_path, shown)
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["memory"] == "fd"
    one = session(tmp_path)
    one.rows = [row, {"case": "x", "ranks": 2, "outcome": "ok", "detail": ""}]
    assert parts.routes(one) == ["route slabs fd"]
    text = report.markdown(
        report.Report([FACTS], [report.Result("tensors", "ok", "", 1.0, one.rows)])
    )
    assert "| slabs | 2 | cuda:0 | fd | 1 | 0-1 |" in text


def test_the_cases_hold_for_cpu_tensors() -> None:
    """A few: what they ask of a device's tensors is what CPU tensors give."""
    names = [name for name in cases.CASES if "bfloat16" in name and "large" not in name]
    names += [
        name for name in cases.CASES if name.startswith(("bad input: ranks", "DDP", "layouts"))
    ]
    names = [name for name in names if not cases.CASES[name].cuda]
    assert len(names) == 21
    assert tensors.run_world(names, 2, "cpu", time.monotonic() + 60, False) == 0


def test_a_world_in_which_nothing_runs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No device of that name: every new process ends before its first case."""
    monkeypatch.setattr(tensors, "GRACE_S", 2.0)
    found = {f"case {n}": cases.Case(lambda team: "") for n in range(9)}
    monkeypatch.setattr(tensors, "CASES", found)
    assert tensors.run_world(list(found), 2, "nonsense", time.monotonic() + 60, True) == 9
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["outcome"] for row in rows] == ["hung or died"] * 3 + ["not run"] * 6
    assert "RuntimeError" in rows[-1]["detail"]
