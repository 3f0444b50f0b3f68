# SPDX-License-Identifier: BSD-3-Clause
"""What NVIDIA's driver says of the GPUs that this process sees: which can read each other's memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libcuda.so.1"
LIMIT_S = 30.0  # a driver that must start first takes seconds
_CHILD = Path(__file__).with_name("gpu_child.py")


@dataclass(frozen=True)
class Links:
    error: str = ""  # why the driver could not be asked
    count: int = 0  # of GPUs
    apart: Sequence[tuple[int, int]] = ()  # the first cannot read the memory of the second
    no_handles: Sequence[
        int
    ] = ()  # GPUs whose memory goes to another process by legacy handles alone


def ask(library: str = LIBRARY, limit_s: float = LIMIT_S) -> Links:
    """Asks in a child process, and kills it at the limit."""
    command = [sys.executable, "-c", _CHILD.read_text(), library]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, errors="replace"
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return Links(f"it does not answer within {limit_s:.0f} s")
    except ValueError:
        return Links(f"it ended the process that asked it ({done.returncode})")
    if "error" in found:
        return Links(str(found["error"]))
    pairs = [(int(one), int(other)) for one, other in found["apart"]]
    return Links("", int(found["count"]), pairs, [int(one) for one in found["no_handles"]])
