# SPDX-License-Identifier: BSD-3-Clause
"""Variables that are not what they should be: each gets a line on stderr, once per process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import _shmcoll_autoload
from ranks import Rank, outcomes

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bSHMCOLL_[A-Z0-9_]+\b")


def said(**env: str) -> list[str]:
    """Returns what a process that makes two groups says about its environment."""

    def body(rank: Rank) -> None:
        rank.init()
        rank.group()

    (done,) = outcomes(1, body, env=env)
    assert done.ok, done
    return [line for line in done.output.splitlines() if line.startswith("shmcoll: ")]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("THREAD", "THREADS"),
        ("SEGMNT", "SEGMENT"),
        ("ARENA_KB", "ARENA_KIB"),
        ("TURNING", "TUNING"),
        ("MVOE", "MOVE"),
        ("CPUS", "CPU"),
        ("LOG_LEVEL", "LOG"),
        ("SPIN", "SPIN_US"),
        ("AUTOLAOD", "AUTOLOAD"),
    ],
)
def test_a_misspelt_name_is_told_with_the_one_that_was_meant(name: str, meant: str) -> None:
    line = f"shmcoll: nothing reads SHMCOLL_{name}; did you mean SHMCOLL_{meant}?"
    assert said(**{f"SHMCOLL_{name}": "2"}) == [line]
    assert said(**{f"SHMCOLL_{name}": "2", "SHMCOLL_LOG": "off"}) == []


def test_a_misspelt_prefix_is_told() -> None:
    for name, meant in (("SHMCOL_LOG", "SHMCOLL_LOG"), ("SHMCOOL_TUNING", "SHMCOLL_TUNING")):
        assert said(**{name: "2"}) == [f"shmcoll: nothing reads {name}; did you mean {meant}?"]
    assert said(SHELL_LOG="2", SHM_COLOR="1", SHMEM_THREADS="2", SHMPOOL_LOG_DIR="/") == []


def test_names_of_others_are_left_alone() -> None:
    """Names of tests, tools and builds in the tree are left alone, and a user's own name."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    names = {
        "SHMCOLL_",
        "SHMCOLL_X",
        "SHMCOLL_LOGDIR",
        "SHMCOLL_VERSION",
        "SHMCOLL_HOME",
        "SHMCOLL_" + "Y" * 99,
    }
    for path in map(Path, listed.stdout.rstrip("\0").split("\0")):
        if path.name != Path(__file__).name and (ROOT / path).is_file():
            text = (ROOT / path).read_text(errors="replace")
            names.update(NAME.findall(text.replace("nothing reads SHMCOLL_", "")))
    config = set(NAME.findall((ROOT / "src/shm/base/config.c").read_text()))
    assert {"SHMCOLL_FUZZ_SEED", "SHMCOLL_SOAK_ROUNDS", "SHMCOLL_CUDA_ARCHS"} <= names - config
    assert said(**dict.fromkeys(names - config, "1")) == []


def test_a_wrong_value_is_told_and_ignored() -> None:
    assert said(SHMCOLL_MOVE="maybe") == [
        "shmcoll: SHMCOLL_MOVE=maybe is not one of off|on; ignored"
    ]
    assert said(SHMCOLL_SPIN_US="-2") == [
        "shmcoll: SHMCOLL_SPIN_US=-2 is not a number from -1 to 1000000; ignored"
    ]


@pytest.mark.parametrize(
    ("value", "told"), [("yes", True), ("1", False), ("", False), ("0", False)]
)
def test_so_is_one_of_the_variable_that_python_reads(
    value: str,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHMCOLL_AUTOLOAD", value)
    _shmcoll_autoload.autoload()
    line = f"shmcoll: SHMCOLL_AUTOLOAD={value} is not one of 0|1; ignored\n"
    assert capsys.readouterr().err == (line if told else "")
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    _shmcoll_autoload.autoload()
    assert capsys.readouterr().out == ""
