# SPDX-License-Identifier: BSD-3-Clause
"""Where a run's numbers come from: the command, the build, the machine, and its state.

machine.py has the CPU's name, memory, kernel, Python and torch.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import shmcoll.bench
from shmcoll.bench import topology
from shmcoll.bench.judge import noise
from shmcoll.bench.machine import boost, governor
from shmcoll.bench.plan import Settings
from shmcoll.bench.topology import Topology

# What changes the speed of a backend, of torch, or of memory. No variable with a name like a secret's.
_PREFIXES = (
    *("SHMCOLL_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GLOO_", "NCCL_", "TORCH_"),
    *("OMPI_MCA_", "MPIR_CVAR_", "MPICH_", "UCX_", "GLIBC_TUNABLES", "MALLOC_", "LD_PRELOAD"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TP_SOCKET_IFNAME", "PYTHONMALLOC"),
)

_SOURCES = Path(shmcoll.bench.__file__).resolve().parents[3]


@dataclass(frozen=True)
class Provenance:
    """Gathered once, before the first measurement."""

    argv: list[str]
    environment: dict[str, str]
    commit: str | None  # of the source tree, "-dirty" if it has changes; None: not run from one
    build: dict[str, str]  # of the library: compiler, instruction set, torch
    topology: Topology
    bind: str  # of BINDINGS
    placement: list[str]  # the CPUs that each rank may run on
    governor: str | None  # of the usable CPUs; None: /sys does not tell
    boost: str | None  # "on", "off"; None: /sys does not tell
    virtual: bool  # in a virtual machine
    load: list[float]  # averages of 1, 5 and 15 minutes
    runnable: int | None  # processes and threads, except this one


def gather(settings: Settings, argv: Sequence[str], root: Path = Path("/")) -> Provenance:
    allowed = os.sched_getaffinity(0)
    places = topology.placement(settings.bind, settings.nproc, allowed, root)
    return Provenance(
        list(argv),
        variables(os.environ),
        commit(_SOURCES),
        build(),
        topology.read(root, allowed),
        settings.bind,
        [topology.list_text(cpus) for cpus in places],
        governor(root, allowed),
        boost(root),
        " hypervisor" in _read(root / "proc/cpuinfo"),
        [float(one) for one in _read(root / "proc/loadavg").split()[:3]],
        noise.load_of(root)[1],
    )


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that change what is measured."""
    return {name: environment[name] for name in sorted(environment) if name.startswith(_PREFIXES)}


def commit(tree: Path) -> str | None:
    """Returns the commit of a source tree, with "-dirty" if it has local changes. None if it has no .git."""
    if not (tree / ".git").exists():
        return None
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=7"]
    try:
        done = subprocess.run([*command, "--exclude=*"], capture_output=True, text=True)
    except OSError:  # no git here
        return None
    return done.stdout.strip() or None


def build() -> dict[str, str]:
    """Asks shmcoll.build_info() in a child process.

    The library reads its variables once per process, and ranks that are forked from this process have
    variables of their own.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            info = {key: str(value) for key, value in shmcoll.build_info().items()}
            with os.fdopen(writer, "w") as out:
                json.dump(info, out)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {}


def lines(found: Provenance) -> dict[str, str]:
    """Returns the known facts as names and texts."""
    load = ", ".join(f"{one:.2f}" for one in found.load)
    facts = {
        "command": " ".join(["shmcoll bench", *found.argv]),
        "environment": ", ".join(f"{k}={v}" for k, v in found.environment.items()) or "none set",
        "commit": found.commit,
        "build": ", ".join(f"{k} {v}" for k, v in found.build.items() if v),
        "topology": found.topology.text(),
        "caches": ", ".join(found.topology.caches),
        "binding": f"{found.bind}: {topology.BINDING_WORDS[found.bind]}",
        "CPUs of ranks": placement_text(found.placement),
        "governor": found.governor,
        "boost": found.boost,
        "virtual": "yes" if found.virtual else "no",
        "load at start": f"{load} (1, 5, 15 minutes), {found.runnable} runnable" if load else None,
    }
    return {name: text for name, text in facts.items() if text}


def placement_text(places: Sequence[str]) -> str:
    """``0 on 0, 1 on 1``, or in short if all may run everywhere."""
    if len(set(places)) == 1:
        return f"all on {places[0]}"
    return ", ".join(f"{rank} on {cpus}" for rank, cpus in enumerate(places))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
