# SPDX-License-Identifier: BSD-3-Clause
"""Variables that are not what they should be: each gets a line on stderr, once per process."""

from __future__ import annotations

import sys

import pytest

import _shmcoll_autoload
from ranks import Rank, outcomes


def said(**env: str) -> list[str]:
    """What a process that makes two groups says of its environment."""

    def body(rank: Rank) -> None:
        rank.init()
        rank.group()

    (done,) = outcomes(1, body, env=env)
    assert done.ok, done
    return [line for line in done.output.splitlines() if line.startswith("shmcoll: ")]


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
