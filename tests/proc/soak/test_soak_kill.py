# SPDX-License-Identifier: BSD-3-Clause
"""Random kills for a long time; every third round also stops a rank.

SHMCOLL_SOAK_MINUTES (10), SHMCOLL_SOAK_ROUNDS (no limit) and SHMCOLL_SOAK_SEED (the clock) say how
long and where to begin. A complaint names the seed of its round: run that one alone with ROUNDS=1.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import kill_ranks
import pytest

MINUTES = float(os.environ.get("SHMCOLL_SOAK_MINUTES", "10"))
ROUNDS = int(os.environ.get("SHMCOLL_SOAK_ROUNDS", str(sys.maxsize)))
SEED = int(os.environ.get("SHMCOLL_SOAK_SEED", str(int(time.time()) * 1000)))
TALK_S = 60.0


@pytest.mark.alone
@pytest.mark.timeout(60 * MINUTES + 60)
def test_random_kills_for_a_long_time(capsys: Any) -> None:
    rounds: list[kill_ranks.Round] = []
    begun = told = time.monotonic()
    while len(rounds) < ROUNDS and time.monotonic() - begun < 60 * MINUTES:
        seed = SEED + len(rounds)
        rounds.append(kill_ranks.one_round(seed, with_stop=seed % 3 == 0))
        if rounds[-1].wrong or time.monotonic() - told > TALK_S:
            told = time.monotonic()
            with capsys.disabled():
                print(f"\n{kill_ranks.report(f'soak from seed {SEED}', rounds)}")
                print(kill_ranks.complaints(rounds[-1:]), flush=True)
    with capsys.disabled():
        print(f"\n{kill_ranks.report(f'soak from seed {SEED}', rounds)}")
    assert any(attempt.killed for attempt in rounds)
    assert kill_ranks.complaints(rounds) == ""
