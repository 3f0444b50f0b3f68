# SPDX-License-Identifier: BSD-3-Clause
"""Running the commands of shmcoll as a user does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from shmcoll.watch.board import Watcher

LIMIT_S = 40.0

_CODE = (
    "import sys; from shmcoll.cli import main; main(sys.argv[1:]);"
    "bad = [m for m in ('torch', 'numpy', 'shmcoll._glue') if m in sys.modules];"
    "sys.exit(str(bad) if bad else 0)"
)


def run_and_look_at_modules(
    *words: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`shmcoll WORDS`, in that folder. The process fails if it has loaded torch, numpy or the library."""
    command = [sys.executable, "-c", _CODE, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def await_groups(pids: Iterable[int]) -> None:
    """Until each of these processes is in a group that is made. A tool that looks earlier finds no group, and
    its exit code says so."""
    left = set(pids)
    deadline = time.monotonic() + LIMIT_S
    with Watcher(sorted(left)) as watcher:
        while left := left - {m.process.pid for m in watcher.look().members if not m.making}:
            assert time.monotonic() < deadline, f"no group in processes {sorted(left)}"
            time.sleep(0.01)
            watcher.scan()
