# SPDX-License-Identifier: BSD-3-Clause
"""The tool's front, and the files that a run of the benchmark leaves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shmcoll.bench
from shmcoll import cli as tool

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
PACKAGE_ROOT = Path(shmcoll.bench.__file__).parents[2]


# ---- the front ----


@pytest.fixture(name="front")
def fixture_front(tmp_path: Path) -> Front:
    return Front(tmp_path)


class Front:
    """Runs the tool where torch cannot be imported."""

    def __init__(self, tmp_path: Path) -> None:
        (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
        path = os.pathsep.join((str(tmp_path), str(PACKAGE_ROOT)))
        self._env = {**os.environ, "PYTHONPATH": path}
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


def test_the_tool_has_three_names_and_none_imports_torch(front: Front) -> None:
    runs = (
        front.module("shmcoll.bench", "--help"),
        front.module("shmcoll", "bench", "--help"),
        front.script("bench", "--help"),
    )
    assert [run.returncode for run in runs] == [0, 0, 0], runs
    assert len({run.stdout for run in runs}) == 1
    assert "what the numbers mean" in runs[0].stdout


def test_a_program_that_only_names_shmcoll_gets_all_of_the_package(front: Front) -> None:
    (front.path.parent / "train.py").write_text("import shmcoll\n")
    done = front.python(str(front.path.parent / "train.py"), "-m", "shmcoll", "shmcoll.bench")
    assert done.returncode == 1 and "torch was imported" in done.stderr
    package = front.path.parents[1] / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("import shmcoll\n")
    done = front.module("mine", "--backend", "shmcoll", "-m", "shmcoll")
    assert done.returncode == 1 and "torch was imported" in done.stderr


def test_the_tool_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["help"]):
        assert tool.main(words) == 0
        said = capsys.readouterr()
        assert "usage: shmcoll COMMAND" in said.out and "  bench  times" in said.out
        assert said.err == ""
    assert tool.main(["--version"]) == 0
    assert re.fullmatch(
        r"shmcoll \d[\w.+]*|shmcoll, not installed.*", capsys.readouterr().out.strip()
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("bnech", "shmcoll: no command 'bnech'; did you mean 'bench'? (shmcoll --help)"),
        ("xyz", "shmcoll: no command 'xyz'; there is: bench (shmcoll --help)"),
        ("--nproc", "shmcoll: no option '--nproc'; there is: bench (shmcoll --help)"),
    ],
)
def test_an_unknown_command_is_one_clear_line(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([word]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", said + "\n")
