# SPDX-License-Identifier: BSD-3-Clause
"""Every example of a framework under gloo and under shmcoll, each with its framework in an environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FRAMEWORKS = Path(__file__).parents[2] / "examples" / "frameworks"
NAMES = sorted(script.parent.name for script in FRAMEWORKS.glob("*/*.py"))
MANY_S = 1800.0  # a download of some hundred megabytes, and DeepSpeed's compiler


@pytest.mark.timeout(MANY_S)
@pytest.mark.parametrize("name", sorted({*NAMES} - {"common"}))
def test_an_example(name: str) -> None:
    command = [sys.executable, str(FRAMEWORKS / "common" / "compare.py"), name]
    assert subprocess.run(command, check=False).returncode == 0
