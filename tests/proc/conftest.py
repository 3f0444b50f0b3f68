# SPDX-License-Identifier: BSD-3-Clause
"""The soak tests run only when somebody names their directory; a metronome beats beside every test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # kill_ranks, for soak/ too


def pytest_ignore_collect(collection_path: Path, config: Any) -> bool | None:
    asked = any("soak" in argument for argument in config.args)
    return True if "soak" in collection_path.parts and not asked else None


@pytest.fixture(autouse=True)
def metronome() -> Iterator[None]:
    """Measures for how long the machine stands still: time that no survivor can be told in."""
    import faults

    faults.beats.start()
    yield
    faults.beats.stop()
