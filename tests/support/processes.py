# SPDX-License-Identifier: BSD-3-Clause
"""Looking for processes that a test has started, however indirectly."""

from __future__ import annotations

import os
from pathlib import Path


def processes_with(*words: str | Path) -> list[int]:
    """Process ids whose command line holds all of the words."""
    out = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if all(os.fsencode(word) in command for word in words):
            out.append(int(entry.name))
    return out
