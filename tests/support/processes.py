# SPDX-License-Identifier: BSD-3-Clause
"""Looking for processes that a test has started, however indirectly."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def processes_where(fits: Callable[[Path], bool]) -> list[int]:
    """Process ids whose folder in /proc fits; one that has ended meanwhile does not."""
    out = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and fits(entry):
                out.append(int(entry.name))
        except OSError:
            continue
    return sorted(out)


def processes_with(*words: str | Path) -> list[int]:
    """Process ids whose command line holds all of the words."""

    def fits(entry: Path) -> bool:
        command = (entry / "cmdline").read_bytes()
        return all(os.fsencode(word) in command for word in words)

    return processes_where(fits)
