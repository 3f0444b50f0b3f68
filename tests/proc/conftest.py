# SPDX-License-Identifier: BSD-3-Clause
"""The soak tests run only if their directory is named.

A test that measures milliseconds has the mark `alone`: nothing else runs on the machine meanwhile, except
a metronome. The others run several at once.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # kill_ranks, for soak/ too


def pytest_ignore_collect(collection_path: Path, config: Any) -> bool | None:
    asked = any("soak" in argument for argument in config.args)
    return True if "soak" in collection_path.parts and not asked else None


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "alone: measures milliseconds, so nothing else may run")


@pytest.fixture(scope="session", autouse=True)
def code_stays_in_memory() -> Iterator[None]:
    """Keeps the code of errors in memory. A system that evicts cold pages reads it from a disk again
    when a survivor needs it: 100 to 300 ms, for all survivors at once."""
    import shmcoll

    files = []
    for path in Path(shmcoll.__file__).parent.glob("**/*.so*"):  # here it is not loaded
        with path.open("rb") as file:
            files.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split()
        if len(words) == 6 and words[5].startswith("/") and words[1][1] == "-":
            begin, end = (int(word, 16) for word in words[0].split("-"))
            # If a limit forbids it, a late survivor says that it had to read.
            libc.mlock(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin))
    yield
    libc.munlockall()
    for one in files:
        one.close()


@pytest.fixture(autouse=True)
def metronome(request: pytest.FixtureRequest) -> Iterator[None]:
    """Measures for how long the machine stands still: in that time no survivor can be told."""
    from metronome import beats

    if request.node.get_closest_marker("alone") is None:
        yield
        return
    beats.start()
    yield
    beats.stop()
