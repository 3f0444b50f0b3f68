# SPDX-License-Identifier: BSD-3-Clause
"""Many kills in jobs on two hosts: SHMCOLL_KILLS says how many, SHMCOLL_KILLS_SEED which.

The default lane has one of most kinds: in test_groups.py.
"""

from __future__ import annotations

import os

import pytest

import kills

COUNT = int(os.environ.get("SHMCOLL_KILLS", "20"))
SEED = int(os.environ.get("SHMCOLL_KILLS_SEED", "1"))


@pytest.mark.long
@pytest.mark.timeout(0)  # each round has limits
def test_survivors_of_all_hosts_name_what_was_killed() -> None:
    rounds = []
    for kind, seed in kills.kinds(COUNT, SEED):
        rounds.append(kills.one(kind, seed))
        if wrong := rounds[-1].wrong:
            print(f"round {len(rounds)} ({kind}, seed {seed}):", *wrong, sep="\n", flush=True)
    print(f"SHMCOLL_KILLS_SEED={SEED}", *kills.summary(rounds), sep="\n")
    assert not [one for one in rounds if one.wrong]
