# SPDX-License-Identifier: BSD-3-Clause
"""python -m shmcoll.bench started by torchrun, mpirun or srun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench_runs import TINY, bench_environment, rows_of

from shmcoll.bench import cli, options
from shmcoll.bench.run import hosts_team, latency, started_by
from shmcoll.bench.run.started_by import Launched

pytestmark = pytest.mark.timeout(120)

OMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "8"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, None),
        ({"RANK": "2"}, None),
        ({"RANK": "x", "WORLD_SIZE": "4"}, None),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, Launched(2, 4, 4)),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, Launched(2, 4, 2)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, Launched(2, 4, 4)),
        (OMPI, Launched(3, 4, 4)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, Launched(1, 2, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}, Launched(1, 2, 1)),
        (SLURM, Launched(1, 8, 8)),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, Launched(1, 8, None)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script, without srun
        ({**SLURM, **OMPI}, Launched(3, 4, 4)),  # mpirun's daemon was started by srun
    ],
)
def test_launchers_are_known_by_their_variables(
    environment: dict[str, str], found: Launched | None
) -> None:
    assert started_by.find(environment) == found


def test_a_launcher_says_how_many_ranks_if_nobody_else_does() -> None:
    assert options.parse([], 5)[0].nproc == 5
    assert options.parse(["-g", "3"], 5)[0].nproc == 3


def test_only_the_first_process_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["--no-such-option"]) == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("RANK", "0")
    assert cli.main([]) == 2
    assert capsys.readouterr() == (
        "",
        "shmcoll.bench: 4 ranks on several hosts: start them with torchrun\n",
    )


@pytest.mark.parametrize(
    "words",
    ["--matrix", "--groups 2", "--overlap", "--bind core", "--mode skew", "--backends ruler"],
)
def test_what_needs_one_host_is_refused_on_several(words: str) -> None:
    settings, _ = options.parse(words.split(), 4)
    assert words.partition(" ")[0] in str(hosts_team.problem(settings, 4))
    assert hosts_team.problem(options.parse([], 4)[0], 4) is None
    assert hosts_team.problem(settings, 2) == "-g 4: the launcher has started 2 ranks"


def test_each_rank_of_several_hosts_has_its_own_clock() -> None:
    called, returned = [[100, 110], [5000, 5030]], [[108, 125], [5020, 5035]]
    assert latency.of_own_clocks(called, returned) == [20, 15]


@pytest.mark.parametrize(("theirs", "taken"), [({0, 1, 2}, [{0, 1, 2}]), ({0}, []), ({1, 2}, [])])
def test_the_first_process_takes_the_cpus_of_its_launcher(
    monkeypatch: pytest.MonkeyPatch, theirs: set[int], taken: list[set[int]]
) -> None:
    cpus = {0: {0}, os.getppid(): theirs}
    found: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus[pid])
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: found.append(cpus))
    started_by.take_cpus()
    assert found == taken


@pytest.mark.long
def test_torchrun_has_one_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "3", "-m", "shmcoll.bench"]
    done = subprocess.run(
        [*command, "--backends", "shmcoll", "-o", "barrier", "-n", "2", *TINY],
        env={**bench_environment(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("; 3 ranks on this host") == 1
    assert len(rows_of(done.stdout)) == 1
