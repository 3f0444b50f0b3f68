# SPDX-License-Identifier: BSD-3-Clause
"""Whether torchrun, mpirun or srun has started this process, as one of many.

On one host the bench starts its ranks itself, a team for each backend. So the first process of a launcher
runs the bench, and the others end immediately, with 0. torchrun, Open MPI, MPICH's Hydra and srun go
on until all processes have ended, and end the rest only if one has failed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# Names of the rank, how many there are, and how many of them are on this host. First the launchers
# that others may have started: under srun, torchrun's ranks have srun's variables too.
_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)


@dataclass(frozen=True)
class Launched:
    """What a launcher tells this process about its place."""

    rank: int
    size: int
    local_size: int | None  # None: not told, or not a mere number, as srun's "4(x2)"


def find(environment: Mapping[str, str]) -> Launched | None:
    """None if nobody started more than this one."""
    for names in _VARIABLES:
        rank, size, local_size = (_number(environment.get(name, "")) for name in names)
        if rank is not None and size is not None:
            told = names[2] in environment
            return Launched(rank, size, local_size if told else size) if size > 1 else None
    return None


def rank_of(environment: Mapping[str, str]) -> int:
    """Returns the rank of a process that mpirun has started. A single process may have no number."""
    for name, *_ in _VARIABLES[1:]:
        rank = _number(environment.get(name, ""))
        if rank is not None:
            return rank
    return 0


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without the variables of a launcher, which would confuse another mpirun."""
    if find(environment) is None:
        return dict(environment)
    theirs = ("OMPI_", "ORTE_", "PMIX_", "PMI_", "HYDRA_", "HYDI_", "MPI_LOCAL", "SLURM_")
    return {name: value for name, value in environment.items() if not name.startswith(theirs)}


def take_cpus() -> None:
    """Lets this process run on all CPUs of the launcher.

    mpirun and srun bind the first rank to its own part of them, but here it starts all ranks.
    """
    theirs = os.sched_getaffinity(os.getppid())
    if theirs > os.sched_getaffinity(0):
        os.sched_setaffinity(0, theirs)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
