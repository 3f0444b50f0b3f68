# SPDX-License-Identifier: BSD-3-Clause
"""Whole runs of ``python -m shmcoll.bench`` in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from processes import processes_where

TINY = ("-e", "4K", "-f", "512", "--rounds", "2", "--point-time", "0.02")


def bench_command(*args: str) -> list[str]:
    return [sys.executable, "-m", "shmcoll.bench", *args]


def bench_environment(tmp_path: Path) -> dict[str, str]:
    import shmcoll.bench

    package_root = Path(shmcoll.bench.__file__).parents[2]
    path = [str(package_root), str(tmp_path), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(tmp_path)}


def run_bench(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        bench_command(*args),
        env=bench_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def start_bench(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        bench_command(*args),
        env=bench_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(tmp_path: Path) -> list[int]:
    """The rank processes of a run, whose TMPDIR that is."""

    def fits(entry: Path) -> bool:
        is_rank = (entry / "comm").read_text().startswith("bench rank ")
        return is_rank and f"TMPDIR={tmp_path}\0" in (entry / "environ").read_text(errors="replace")

    return processes_where(fits)


def wait_until_gone(tmp_path: Path) -> None:
    deadline = time.monotonic() + 10
    while ranks_of(tmp_path):
        assert time.monotonic() < deadline, f"still there: {ranks_of(tmp_path)}"
        time.sleep(0.05)


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]
