# SPDX-License-Identifier: BSD-3-Clause
"""Loads the extension, or says in one sentence why it cannot be loaded.

The extension is compiled for one minor version of torch: c10d has no stable ABI. A build for
another one would fail with an undefined symbol, or crash; so the versions are compared first.
"""

import importlib
import json
import pathlib
import sys
import types
from typing import Any

_HERE = pathlib.Path(__file__).parent
# In the folder of the sources: there is no package of this name to fetch.
_REBUILD = (
    "in the folder of shmcoll's sources run `make clean build` (for its .venv) or "
    "`pip install --no-build-isolation --force-reinstall --no-deps .`"
)


def build_facts() -> dict[str, str]:
    """The versions this installation was built with (written by setup.py)."""
    path = _HERE / "_build_info.json"
    if not path.exists():
        raise ImportError(
            f"shmcoll is not built here ({_HERE} has no _build_info.json). Build it: {_REBUILD}"
        )
    facts: dict[str, str] = json.loads(path.read_text())
    return facts


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def check_torch(facts: dict[str, str], torch: Any) -> None:
    """Raises ImportError when the build does not fit the torch that is installed."""
    if not torch.distributed.is_available():
        raise ImportError("shmcoll needs a torch with torch.distributed; this one has none")
    if _minor(facts["torch"]) != _minor(torch.__version__):
        raise ImportError(
            f"this shmcoll was built for torch {_minor(facts['torch'])} (exactly: "
            f"{facts['torch']}), but torch {torch.__version__} is installed. Build it again for "
            f"this torch: {_REBUILD}"
        )


def load_extension() -> types.ModuleType:
    """The compiled module shmcoll._C."""
    facts = build_facts()
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"shmcoll needs torch, and this Python ({sys.executable}) has none. Install torch "
            f"{_minor(facts['torch'])}, for which this shmcoll was built"
        ) from None
    check_torch(facts, torch)
    try:
        return importlib.import_module("shmcoll._C")
    except ImportError as error:
        raise ImportError(
            f"shmcoll's compiled part does not load: {error}. It was built for torch "
            f"{facts['torch']} and Python {facts['python']}. Build it again: {_REBUILD}"
        ) from error
