# SPDX-License-Identifier: BSD-3-Clause
"""The command lines that start the ranks of each MPI on this host, with its best settings.

``benchmarks/peers.py`` starts its programs in this way too; it loads only this file, without torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

# Large temporary buffers stay mapped; glibc gives them back after each call otherwise, and Open MPI
# faults them in again: 15.7 instead of 4.1 ms for 32 MiB.
TUNABLES = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=8589934592"


@dataclass(frozen=True)
class Mpi:
    """One implementation."""

    vendor: str  # as mpi4py calls it
    launchers: tuple[str, ...]
    says: tuple[str, ...]  # one of them is in what the launcher answers to --version
    arguments: Callable[[int, bool], list[str]]  # for so many ranks, bound to CPUs or not

    def launcher(self) -> str | None:
        """The first that is this one's; on many machines mpirun is whichever was installed."""
        for name in self.launchers:
            if shutil.which(name) is None:
                continue
            told = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
            if any(word in told.stdout for word in self.says):
                return name
        return None


def _openmpi(ranks: int, bind: bool) -> list[str]:
    # Copies by the kernel are the slower way here, and not allowed in many containers.
    arguments = ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
    arguments += ["--mca", "btl_vader_single_copy_mechanism", "none"]
    if os.geteuid() == 0:
        arguments.append("--allow-run-as-root")
    if ranks > len(os.sched_getaffinity(0)):
        return [*arguments, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return [*arguments, "--bind-to", "hwthread" if bind else "none"]


def _mpich(ranks: int, bind: bool) -> list[str]:
    bound = bind and ranks <= len(os.sched_getaffinity(0))
    return ["-bind-to", "hwthread"] if bound else []


MPIS = {
    "openmpi": Mpi(
        "Open MPI",
        ("mpirun.openmpi", "mpirun"),
        ("Open MPI", "OpenRTE"),
        _openmpi,
    ),
    "mpich": Mpi(
        "MPICH",
        ("mpiexec.mpich", "mpiexec.hydra", "mpirun"),
        ("HYDRA",),
        _mpich,
    ),
}


def command(name: str, ranks: int, bind: bool) -> list[str] | None:
    """Returns the words before the program; None if this MPI cannot start a program."""
    launcher = MPIS[name].launcher()
    if launcher is None:
        return None
    return [launcher, *MPIS[name].arguments(ranks, bind), "-n", str(ranks)]
