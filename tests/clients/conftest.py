# SPDX-License-Identifier: BSD-3-Clause
"""The long clients run only when somebody names their directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # test_clients, for long/ too


def pytest_ignore_collect(collection_path: Path, config: Any) -> bool | None:
    asked = any("long" in argument for argument in config.args)
    return True if "long" in collection_path.parts and not asked else None
