# SPDX-License-Identifier: BSD-3-Clause
"""Every example of a framework under gloo, under shmcoll, and with shmcoll in gloo's place.

Each has its framework in an environment.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FRAMEWORKS = Path(__file__).parents[2] / "examples" / "frameworks"
NAMES = sorted({script.parent.name for script in FRAMEWORKS.glob("*/*.py")})
MANY_S = 1800.0  # a download of some hundred megabytes, and DeepSpeed's compiler


# The reference of vLLM's example are vLLM's own operators, not gloo.
CASES = [(name,) for name in NAMES if name != "common"]
CASES += [(name, "--switch") for (name,) in CASES if name != "vllm"]


@pytest.mark.timeout(MANY_S)
@pytest.mark.parametrize("args", CASES, ids=" ".join)
def test_an_example(args: tuple[str, ...]) -> None:
    command = [sys.executable, str(FRAMEWORKS / "common" / "compare.py"), *args]
    assert subprocess.run(command, check=False).returncode == 0
