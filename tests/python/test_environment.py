# SPDX-License-Identifier: BSD-3-Clause
"""What tests/run.py, and CI before it, pass on of the environment they were started in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import environment

ROOT = Path(__file__).parents[2]
BARE_ENV = ROOT / "tests/support/bare_env.sh"

NEEDED = {
    "HOME": "/nowhere",
    "CI": "true",
    "PIP_INDEX_URL": "https://example.org/a b\nc",
    "REQUESTS_CA_BUNDLE": "/nowhere/ca.crt",
    "SSL_CERT_FILE": "/nowhere/ca.crt",
    "https_proxy": "http://localhost:1",
    "NO_PROXY": "localhost",
}
CHOSEN = {"CC": "gcc-of-somebody", "CCACHE_DIR": "/nowhere", "SHMCOLL_FUZZ_SEED": "7"}
LEANED_ON = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": "/nowhere",
    "LD_LIBRARY_PATH": "/nowhere",
    "PYTEST_ADDOPTS": "-x",
    "SHMCOLL_TUNING": "no_such_file",
    "SHMCOLL_LATE_MS": "1",
    "OMP_NUM_THREADS": "1",
    "GIT_DIR": "/nowhere",
    "NOT_CI": "1",
    "HOMEPAGE": "1",
}
ELSEWHERE = "/nowhere/bin"


def passed(command: list[str], path: str) -> dict[str, str]:
    """Returns the environment that `command` gives to the program at its end."""
    given = {**NEEDED, **CHOSEN, **LEANED_ON, "PATH": path}
    done = subprocess.run(
        command, env=given, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout[done.stdout.index("HOME=") :]
    return dict(one.split("=", 1) for one in lines.split("\0") if one)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that writes HOME first, then the rest of its environment."""
    file = tmp_path_factory.mktemp("shown") / "shown"
    file.write_text(
        '#!/bin/sh\nprintf "HOME=%s\\0" "$HOME"; exec /usr/bin/env -u _ -u PWD -u SHLVL -0\n'
    )
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize("first", ["/usr/lib/ccache", ELSEWHERE])
def test_lanes_get_what_is_listed_and_no_more(shown: str, first: str) -> None:
    text = f"import sys; sys.path.insert(0, 'tests'); import run; run.run([{shown!r}])"
    told = passed([sys.executable, "-c", text], f"{first}:{ELSEWHERE}:/usr/bin:/bin")
    folders = told.pop("PATH").split(os.pathsep)
    assert told == NEEDED | CHOSEN
    if "ccache" in first:
        assert folders.pop(0) == first
    assert folders[0] == str(ROOT / ".venv/bin")
    assert set(folders[1:]) <= {*environment.SYSTEM, *environment.CUDA_TOOLKITS}
    assert {"/usr/bin", "/bin"} <= set(folders)


def test_ci_gives_the_test_command_what_a_bare_machine_has(shown: str) -> None:
    told = passed([str(BARE_ENV), shown], f"{ELSEWHERE}:/usr/bin:/bin")
    assert told.pop("PATH").split(os.pathsep) == list(environment.SYSTEM)
    assert told == NEEDED
    assert "exec tests/support/bare_env.sh make test" in (ROOT / ".ci/run").read_text()


def test_what_the_makefile_exports_reaches_the_lanes() -> None:
    """Else a long lane is a short one, and nobody sees that."""
    exported = set(re.findall(r"export (SHMCOLL_\w+)", (ROOT / "Makefile").read_text()))
    assert "SHMCOLL_STORE_FUZZ" in exported
    given = dict.fromkeys(exported, "7")
    assert environment.environment(given).keys() >= exported
