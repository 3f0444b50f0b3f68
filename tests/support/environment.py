# SPDX-License-Identifier: BSD-3-Clause
"""The environment that tests/run.py starts builds and tests with.

It is made here, not passed on: a test that leans on a variable of its author's shell, or on a program
that lies on the author's PATH, fails for its author first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Who runs the tests, where, and in which language.
PERSON = ("HOME", "LANG", "LC_ALL", "TERM", "TMPDIR", "CI")
# How builds and downloads reach what they need.
NETWORK = (r"PIP_\w+", r"\w+_CA_BUNDLE", r"SSL_CERT_\w+", r"\w+_proxy", r"\w+_PROXY")
# The compilers that somebody has chosen, and their cache.
COMPILERS = ("CC", "CXX", "CUDA_HOME", "CUDA_PATH", "SHMCOLL_CUDA_ARCHS", "MAX_JOBS", r"CCACHE_\w+")
# How long the long lanes are, and what they begin with (make help).
LONG_LANES = (
    r"SHMCOLL_(FUZZ|LIES|SOAK|STRESS)_\w+",
    r"SHMCOLL_KILLS(_SEED)?",
    r"SHMCOLL_STORE_FUZZ(_SEED)?",
    "SHMCOLL_CUDA_KILLS",
)

PASSES = re.compile("|".join((*PERSON, *NETWORK, *COMPILERS, *LONG_LANES)))

SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
CUDA_TOOLKITS = (
    "/usr/local/cuda/bin",
    "/opt/cuda/bin",
)  # as src/cuda_ipc/kernel/image.cmake has them


def path(given: str) -> str:
    """PATH: the compiler cache, where the caller's begins with it; .venv; the system."""
    first = given.split(os.pathsep)[0]
    cache = [first] if Path(first).name == "ccache" else []
    folders = [*cache, str(ROOT / ".venv/bin"), *SYSTEM]
    return os.pathsep.join([*folders, *filter(os.path.isdir, CUDA_TOOLKITS)])


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that may pass, and a PATH."""
    passed = {name: value for name, value in given.items() if PASSES.fullmatch(name)}
    return {**passed, "PATH": path(given.get("PATH", ""))}
