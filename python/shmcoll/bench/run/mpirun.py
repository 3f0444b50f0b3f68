# SPDX-License-Identifier: BSD-3-Clause
"""The command lines that start the ranks of each MPI on this host, with its best settings.

``benchmarks/peers.py`` starts its programs in this way too; it loads only this file, without torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
    abi: str  # what MPI4PY_MPIABI calls it

    def launcher(self) -> str | None:
        """The first that is this one's; on many machines mpirun is whichever was installed.

        A path where it is next to this Python: Intel MPI comes as a wheel, which finds its files by that.
        """
        for name in self.launchers:
            for path in (_next_to_python(name), shutil.which(name) and name):
                if path is None:
                    continue
                told = subprocess.run([path, "--version"], capture_output=True, text=True)
                if any(word in told.stdout for word in self.says):
                    return path
        return None


def _next_to_python(name: str) -> str | None:
    path = Path(sys.prefix, "bin", name)
    return str(path) if path.exists() else None


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


def _intel(ranks: int, bind: bool) -> list[str]:
    """Shared memory alone. It binds ranks by itself, two of them to one CPU where there are too few."""
    arguments = ["-genv", "I_MPI_FABRICS", "shm"]
    return arguments if bind else [*arguments, "-genv", "I_MPI_PIN", "0"]


MPIS = {
    "openmpi": Mpi(
        "Open MPI",
        ("mpirun.openmpi", "mpirun"),
        ("Open MPI", "OpenRTE"),
        _openmpi,
        "openmpi",
    ),
    "mpich": Mpi(
        "MPICH",
        ("mpiexec.mpich", "mpiexec.hydra", "mpirun"),
        ("HYDRA",),
        _mpich,
        "mpich",
    ),
    # pip install impi-rt. Its mpirun is a script that finds the rest by PATH.
    "intelmpi": Mpi(
        "Intel MPI",
        ("mpiexec.hydra", "mpiexec"),
        ("Intel(R) MPI",),
        _intel,
        "impi",
    ),
}


def command(name: str, ranks: int, bind: bool) -> list[str] | None:
    """Returns the words before the program; None if this MPI cannot start a program."""
    launcher = MPIS[name].launcher()
    if launcher is None:
        return None
    words = [launcher, *MPIS[name].arguments(ranks, bind), "-n", str(ranks)]
    if "/" in launcher:  # a wheel's: mpi4py asks the loader for the library
        words[1:1] = ["-genv", "LD_LIBRARY_PATH", str(Path(launcher).parents[1] / "lib")]
    return words
