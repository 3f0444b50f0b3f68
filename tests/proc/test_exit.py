# SPDX-License-Identifier: BSD-3-Clause
"""A process that ends without destroying its group ends as any other, and disturbs no rank."""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ranks

SCRIPT = Path(__file__).with_name("exit_ranks.py")
LIMIT_S = 600  # a busy machine took more than 300

CODES = {
    "end_of_script": 0,
    "status": 3,
    "exception": 1,
    "in_flight": 0,
    "in_flight_forgotten": 0,
    "in_flight_alone": 0,
    "future_waited_at_exit": 0,
    "thread_of_multiprocessing": 0,
    "callbacks": 0,
    "inside_a_callback": 0,
    "many_groups": 0,
    "peer_has_left": 0,
}


def end_ranks(script: Path, directory: Path, rounds: int, ways: list[str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(script), str(directory), str(rounds), *ways],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    ended = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(ended) == 2 * rounds * len(ways)
    return ended


def processes_of(directory: Path) -> list[str]:
    """Processes whose command line names this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if str(directory).encode() in command:
            found.append(f"{entry.name}: {command.decode(errors='replace')}")
    return found


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("rounds", [2, pytest.param(5, marks=pytest.mark.long)])
def test_a_process_that_ends_without_destroy_ends_clean(rounds: int, tmp_path: Path) -> None:
    """In all ways, of one process: an import of torch takes longer than the exits of a way."""
    endings = end_ranks(SCRIPT, tmp_path, rounds, list(CODES))
    assert processes_of(tmp_path) == []
    assert ranks.leftovers() == []
    assert collections.Counter(ended["way"] for ended in endings) == dict.fromkeys(
        CODES, 2 * rounds
    )
    for ended in endings:
        assert ended["code"] == CODES[ended["way"]], ended
        if ended["way"] == "exception":
            lines = [line.partition("]: ")[2] for line in ended["err"].splitlines()]
            assert lines[0].startswith("Traceback"), ended
            assert lines[-1] == "ValueError: as it should be", ended
            assert ended["err"].count("Traceback") == 1, ended
        else:
            assert ended["err"] == "" and ended["out"] == "came to its end\n", ended


@pytest.mark.timeout(60)
def test_a_rank_that_cannot_begin_is_seen_to_fail(tmp_path: Path) -> None:
    """The same script with a backend that does not exist: codes and stderr do arrive here."""
    script = tmp_path / "broken.py"
    script.write_text(SCRIPT.read_text().replace('"shmcoll", store', '"unheard", store'))
    ended = end_ranks(script, tmp_path, 1, ["status"])
    assert [end["code"] for end in ended] == [1, 1]
    assert all("unheard" in end["err"] for end in ended)


# Rank 1 makes a mistake; the others wait for it.
CULPRIT = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing

def run(rank, path):
    store = dist.FileStore(path, 3)
    dist.init_process_group("shmcoll", store=store, rank=rank, world_size=3)
    for i in range(20):
        dist.all_reduce(torch.ones(1000))
    if rank == 1:
        raise KeyError("the user's own mistake")
    dist.all_reduce(torch.ones(1000))

if __name__ == "__main__":
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), sys.argv[1])
    else:
        torch.multiprocessing.spawn(run, (sys.argv[1],), 3)
"""

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "launcher, names_it",
    [
        pytest.param(TORCHRUN, r"Root Cause.*?rank\s*:\s*1 .*?exitcode\s*:\s*1 ", id="torchrun"),
        pytest.param([], r"Process 1 terminated.*KeyError: \"the user's own", id="spawn"),
    ],
)
def test_a_launcher_names_the_rank_that_raised(
    launcher: list[str], names_it: str, tmp_path: Path
) -> None:
    script = tmp_path / "culprit.py"
    script.write_text(CULPRIT)
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S / 2,
    )
    assert done.returncode == 1, done.stderr
    assert re.search(names_it, done.stderr, re.DOTALL), done.stderr
