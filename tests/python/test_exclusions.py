# SPDX-License-Identifier: BSD-3-Clause
"""A lane of ctest with tests that must fail (tests/run.py): what it complains of."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import pathlib
import re
import sys
import threading
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def runner() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("lanes", ROOT / "tests" / "run.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["lanes"] = importlib.util.module_from_spec(spec)  # for its dataclasses
    spec.loader.exec_module(module)
    return module


def complaints(
    runner: types.ModuleType,
    tmp_path: pathlib.Path,
    states: dict[str, str],
    exclusions: str = "unit/Bad  # a reason\n",
    partly: bool = False,
) -> list[str]:
    (tmp_path / "excluded.txt").write_text(exclusions)
    cases = "".join(f'<testcase name="{name}" status="{states[name]}"/>' for name in states)
    (tmp_path / "report.xml").write_text(f"<testsuite>{cases}</testsuite>")
    lane = runner.Lane("lane", exclusions=tmp_path / "excluded.txt", at_least=2)
    found, _ = runner.judge(lane, tmp_path / "report.xml", partly)
    return list(found)


def test_only_what_is_excluded_fails(runner, tmp_path):
    assert complaints(runner, tmp_path, {"unit/Good": "run", "unit/Bad": "fail"}) == []


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"unit/Good": "fail", "unit/Bad": "fail"}, "fails: unit/Good"),
        ({"unit/Good": "run", "unit/Bad": "run"}, "excluded, but does not fail: unit/Bad"),
        ({"unit/Good": "run", "unit/Bad": "notrun"}, "excluded, but does not fail: unit/Bad"),
        ({"unit/Good": "run", "unit/Fine": "run"}, "excluded, but there is no such test: unit/Bad"),
        ({"unit/Bad": "fail"}, "1 tests, where there were 2"),
    ],
)
def test_whatever_is_not_as_listed_is_said(runner, tmp_path, states, said):
    assert complaints(runner, tmp_path, states) == [said]


def test_a_run_without_a_report_is_no_success(runner, tmp_path):
    (tmp_path / "excluded.txt").write_text("")
    lane = runner.Lane("lane", exclusions=tmp_path / "excluded.txt", at_least=2)
    assert runner.judge(lane, tmp_path / "missing.xml", False)[0] == ["0 tests, where there were 2"]


def test_a_part_of_the_tests_need_not_have_all(runner, tmp_path):
    assert complaints(runner, tmp_path, {"unit/Good": "run"}, partly=True) == []


def test_a_longer_lane_runs_what_a_default_lane_leaves_out(runner):
    left = [lane for lane in runner.DEFAULT_LANES if lane.without]
    assert left
    groups = (runner.LONG_LANES[name] for name in ("sanitizers", "long"))
    longer = {lane.name: lane for lanes in groups for lane in lanes}
    for lane in left:
        longest = longer[lane.name]
        assert longest.build.environment.pop("SHMCOLL_TEST_FULL") == "1"
        # What the default lane builds, and the rest. That of programs has no test that is left out.
        for folder in (
            ("unit", "conformance", "cuda") if "slice" in lane.labels else ("conformance",)
        ):
            for label in (folder, f"{folder}-slice", f"{folder}-sanitized"):
                assert re.search(longest.labels, label)
        assert lane.build.environment == longest.build.environment and not longest.without
        # The longer one may compile more.
        assert set(lane.build.options) - set(longest.build.options) <= {"-DSHMCOLL_ISAS=OFF"}
        assert set(longest.build.options) <= set(lane.build.options)


def test_what_runs_under_sanitizers_alone_runs_under_one():
    lists = (ROOT / "tests" / "CMakeLists.txt").read_text()

    def programs(name):
        [found] = re.findall(rf"^set\({name}\s([^)]*)\)", lists, re.M)
        return set(re.sub("#.*", "", found).split())

    under = programs("shmcoll_slice_address") | programs("shmcoll_slice_thread")
    assert programs("shmcoll_sanitized") <= under


def test_a_longer_lane_runs_the_marked_tests_that_a_default_lane_leaves_out(runner):
    longer = [lane for lanes in runner.LONG_LANES.values() for lane in lanes]
    left = [lane for lane in runner.DEFAULT_LANES if any("not long" in one for one in lane.options)]
    assert left
    both = {("-m=long and alone",), ("-m=long and not alone",)}
    marked = {
        folder
        for lane in left
        for folder in lane.files
        if any("mark.long" in file.read_text() for file in (ROOT / folder).rglob("test_*.py"))
    }
    assert marked >= {"tests/python", "tests/proc"}
    for folder in marked:
        takes = {lane.options for lane in longer if lane.files == (folder,)}
        assert takes & {(), ("-m=long",)} or both <= takes, folder


def test_a_part_of_a_lane_has_its_name(runner):
    [both] = [lane for lane in runner.DEFAULT_LANES if "hosts+" in lane.name]
    [part] = runner.lanes_named(runner.DEFAULT_LANES, "hosts")
    assert (part.name, part.files, part.options) == ("hosts", ("tests/hosts",), both.options)
    assert runner.lanes_named(runner.DEFAULT_LANES, both.name) == [both]
    assert runner.lanes_named(runner.DEFAULT_LANES, "no such lane") == []


def order_of(runner, monkeypatch, lanes):
    """What run_lanes() begins and ends, in order. The background is slow: it ends when it has seen the lane
    that waits end."""
    said, waited = [], threading.Event()

    def run_lane(lane, jobs, only):
        said.append(f"{lane.name} begins{' in the background' * lane.background}")
        if lane.background:
            assert waited.wait(10)
        said.append(f"{lane.name} ends")
        if lane.name == "waits":
            waited.set()
        return runner.Result(lane.name, True, 1.0, "", [])

    monkeypatch.setattr(runner, "run_lane", run_lane)
    results = runner.run_lanes(lanes, 2, "")
    assert sorted(result.lane for result in results) == sorted(lane.name for lane in lanes)
    return said


@pytest.mark.parametrize("how", ["waits", "calm"])
def test_a_lane_that_computes_runs_while_others_wait_and_never_beside_one_that_is_alone(
    runner, monkeypatch, how
):
    models, waits = runner.Lane("models", computes=True), runner.Lane("waits", **{how: True})
    first, alone = runner.Lane("first"), runner.Lane("alone", alone=True)
    said = order_of(runner, monkeypatch, [models, first, waits, alone])
    assert said[:2] == ["first begins", "first ends"]
    assert said.index("models begins in the background") < said.index("waits ends")
    assert said.index("waits ends") < said.index("models ends") < said.index("alone begins")


def test_a_lane_that_computes_runs_by_itself_where_none_waits(runner, monkeypatch):
    lanes = [runner.Lane("models", computes=True), runner.Lane("alone", alone=True)]
    said = order_of(runner, monkeypatch, lanes)
    assert said == ["models begins", "models ends", "alone begins", "alone ends"]


def test_a_lane_in_the_background_needs_no_build_and_no_other_lane_of_its_folder(runner):
    lanes = runner.DEFAULT_LANES
    computing = [lane for lane in lanes if lane.computes]
    assert computing and any(lane.waits for lane in lanes)
    first = [lane.waits for lane in lanes].index(True)
    for lane in computing:
        built = [one for one in lanes[:first] if one.build is lane.build and not one.targets]
        assert any(not one.computes for one in built), lane.name
        assert lane.folder and all(one.folder != lane.folder for one in lanes if one is not lane)


def test_a_command_in_the_background_is_shown_at_once_when_it_has_ended(runner, capsys):
    before = runner.spent.seconds
    busy = "import time; print(1, flush=True); end = time.process_time() + 0.2\n"
    busy += "while time.process_time() < end: pass\nprint(2); raise SystemExit(3)"
    for background in (False, True):
        status, output = runner.run([sys.executable, "-c", busy], background=background)
        assert (status, output) == (3, "1\n2\n")
        shown = capsys.readouterr().out
        assert shown.startswith(f"+ {sys.executable} -c ") and shown.endswith("\n1\n2\n")
    assert 0.4 <= runner.spent.seconds - before < 5

    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # another lane's are not counted
        elsewhere = runner.spent.seconds
        assert pool.submit(runner.run, [sys.executable, "-c", busy]).result()[0] == 3
        assert pool.submit(lambda: runner.spent.seconds).result() >= 0.2
    assert runner.spent.seconds == elsewhere
