# SPDX-License-Identifier: BSD-3-Clause
"""A lane of ctest with tests that must fail (tests/run.py): what it complains of."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
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
    longer = {lane.name: lane for lane in runner.LONG_LANES["sanitizers"]}
    for lane in left:
        longest = longer[lane.name]
        assert longest.build.environment.pop("SHMCOLL_TEST_FULL") == "1"
        for folder in ("unit", "conformance", "cuda"):  # what the default lane builds, and the rest
            assert re.search(longest.labels, folder) and re.search(
                longest.labels, f"{folder}-slice"
            )
        assert lane.build == longest.build and not longest.without
