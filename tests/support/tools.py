# SPDX-License-Identifier: BSD-3-Clause
"""Running the commands of shmcoll as a user does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
