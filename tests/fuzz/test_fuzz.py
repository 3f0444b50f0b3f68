# SPDX-License-Identifier: BSD-3-Clause
"""Random programs against the oracle, and all that ever failed.

SHMCOLL_FUZZ_PROGRAMS says how many, SHMCOLL_FUZZ_SEED where they begin. They come in batches, each
with a seed of its own; batch k of a seed is the same however many there are (up to 1000
programs, and above: there batches are longer). With SHMCOLL_FUZZ_HOSTS=1 the ranks of all programs are on
several hosts, otherwise those of some.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import pool
import script
from hunt import hunt
from strategies import OVER_HOSTS, SETTINGS, programs

PROGRAMS = int(os.environ.get("SHMCOLL_FUZZ_PROGRAMS", "120"))
SEED = int(os.environ.get("SHMCOLL_FUZZ_SEED", "1"))
WHERE = OVER_HOSTS if os.environ.get("SHMCOLL_FUZZ_HOSTS") == "1" else SETTINGS
# After some ten programs, hypothesis mostly varies earlier ones, which is faster: where there are many
# batches, each may be long.
BATCH = 15 if PROGRAMS <= 1000 else 75
BATCHES = -(-PROGRAMS // BATCH)

pytestmark = pytest.mark.timeout(0)  # every program has a limit, and finding a small one takes long


@pytest.fixture(scope="module", autouse=True)
def _pools() -> Iterator[None]:
    yield
    pool.end_all()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int) -> None:
    count = min(BATCH, PROGRAMS - batch * BATCH)
    print(f"SHMCOLL_FUZZ_SEED={SEED}, batch {batch}")
    assert hunt(programs(settings_from=WHERE), count, seed=SEED * 100_000 + batch) >= count


@pytest.mark.parametrize(
    "path", sorted(script.REGRESSIONS.glob("*.py")), ids=lambda path: path.stem
)
def test_what_has_failed_before(path: Path) -> None:
    pool.check(script.load(path))
