# SPDX-License-Identifier: BSD-3-Clause
"""Survivors of a kill are told of it at once. make soak does the same for longer."""

from __future__ import annotations

import time
from typing import Any

import kill_ranks
import pytest
import ranks

LIMIT_S = 240.0  # for all kills of a test


def phases(rounds: list[kill_ranks.Round]) -> set[str]:
    return {attempt.phase for attempt in rounds if attempt.killed}


def campaign(
    name: str, seed: int, kills: int, with_stop: bool, capsys: Any, every: tuple[str, ...] = ()
) -> None:
    """Kills until so many kills had a survivor to tell, and one came in every phase that is named.

    A kill can come after the last call that needed the victim: then nobody is told, and it does not
    count.
    """
    begun = time.monotonic()
    rounds: list[kill_ranks.Round] = []
    while sum(len(attempt.told_ms) > 0 for attempt in rounds) < kills or not (
        phases(rounds) >= set(every)
    ):
        rounds.append(kill_ranks.one_round(seed + len(rounds), with_stop))
        assert time.monotonic() - begun < LIMIT_S, kill_ranks.report(name, rounds)
    with capsys.disabled():
        print(f"\n{kill_ranks.report(name, rounds)}\n    {time.monotonic() - begun:.0f} s")
    assert kill_ranks.complaints(rounds) == ""


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [10, pytest.param(40, marks=pytest.mark.long)])
def test_survivors_of_kills_are_told_within_100_milliseconds(kills: int, capsys: Any) -> None:
    every = kill_ranks.PHASES[kill_ranks.MAKING : kill_ranks.DONE]
    campaign("kills", 1, kills, False, capsys, every)


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [4, pytest.param(10, marks=pytest.mark.long)])
def test_a_rank_that_stops_meanwhile_changes_nothing_for_the_others(
    kills: int, capsys: Any
) -> None:
    campaign("kills during a stop", 100000, kills, True, capsys)


@pytest.mark.timeout(180)
def test_nobody_is_told_of_a_death_that_was_none() -> None:
    """The same program without a kill: what the rounds above raise is the kill's doing."""

    def body(rank: ranks.Rank, seed: int) -> int:
        kill_ranks.program(rank, seed)
        return rank.board[kill_ranks.PHASE_OF + rank.rank]

    for seed in range(8):
        assert ranks.run(5, body, seed) == [kill_ranks.DONE] * 5
