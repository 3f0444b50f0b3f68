# SPDX-License-Identifier: BSD-3-Clause
"""Random programs against the oracle, and all that ever failed.

SHMCOLL_FUZZ_PROGRAMS says how many, SHMCOLL_FUZZ_SEED where they begin. They come in batches, each
with a seed of its own; batch k of a seed is the same however many there are (up to 1000
programs, and above: there batches are longer).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import crew
import script
from hunt import hunt
from strategies import programs

PROGRAMS = int(os.environ.get("SHMCOLL_FUZZ_PROGRAMS", "300"))
SEED = int(os.environ.get("SHMCOLL_FUZZ_SEED", "1"))
# After some ten programs, hypothesis mostly varies earlier ones, which is faster: where there are many
# batches, each may be long.
BATCH = 15 if PROGRAMS <= 1000 else 75
BATCHES = -(-PROGRAMS // BATCH)

pytestmark = pytest.mark.timeout(0)  # every program has a limit, and finding a small one takes long


@pytest.fixture(scope="module", autouse=True)
def _crews() -> Iterator[None]:
    yield
    crew.end_all()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int) -> None:
    count = min(BATCH, PROGRAMS - batch * BATCH)
    print(f"SHMCOLL_FUZZ_SEED={SEED}, batch {batch}")
    assert hunt(programs(), count, seed=SEED * 100_000 + batch) >= count


@pytest.mark.parametrize(
    "path", sorted(script.REGRESSIONS.glob("*.py")), ids=lambda path: path.stem
)
def test_what_has_failed_before(path: Path) -> None:
    crew.check(script.load(path))
