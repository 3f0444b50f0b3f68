# SPDX-License-Identifier: BSD-3-Clause
"""CPUs, cores, caches and NUMA nodes as /sys tells them, and ``--bind``: which CPUs a rank may run on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from shmcoll.bench.show.units import count

NONE, CORE, SPREAD, NODE = BINDINGS = ("none", "core", "spread", "node")

BINDING_WORDS = {
    NONE: "ranks are not bound",
    CORE: "each rank is bound to a core, one NUMA node after the other",
    SPREAD: "each rank is bound to a core, NUMA nodes in turn",
    NODE: "each rank is bound to the CPUs of a NUMA node, nodes in turn",
}

_CPUS = Path("sys/devices/system/cpu")
_NODES = Path("sys/devices/system/node")


@dataclass(frozen=True)
class Cpu:
    """Where a CPU is. If /sys does not say, the CPU is a core of its own in node 0."""

    number: int
    node: int
    package: int
    core: int  # the lowest CPU of it


@dataclass(frozen=True)
class Topology:
    """The topology of the CPUs that this process may use."""

    cpus: str  # as a list: 0-3,8
    packages: int
    cores: int
    threads_per_core: int  # 2 and more: SMT
    numa_nodes: list[str]  # the usable CPUs of each
    caches: list[str]  # of the first CPU, with the usable CPUs that share it

    def text(self) -> str:
        smt = f"{self.threads_per_core} threads each" if self.threads_per_core > 1 else "no SMT"
        nodes = "; ".join(self.numa_nodes)
        return (
            f"{count(self.packages, 'package')}, {count(self.cores, 'core')} ({smt}), "
            f"{count(len(self.numa_nodes), 'NUMA node')} (CPUs {nodes})"
        )


def cpus_of(root: Path, allowed: Collection[int]) -> list[Cpu]:
    nodes = {
        cpu: int(folder.name[4:])
        for folder in sorted((root / _NODES).glob("node[0-9]*"))
        for cpu in parse_list(_read(folder / "cpulist"))
    }
    out = []
    for number in sorted(allowed):
        folder = root / _CPUS / f"cpu{number}" / "topology"
        package = _read(folder / "physical_package_id").strip()
        siblings = parse_list(_read(folder / "thread_siblings_list")) or [number]
        known = package.isdecimal()  # some virtual machines tell -1
        out.append(Cpu(number, nodes.get(number, 0), int(package) if known else 0, min(siblings)))
    return out


def read(root: Path, allowed: Collection[int]) -> Topology:
    cpus = cpus_of(root, allowed)
    cores = _grouped(cpus, lambda cpu: cpu.core)
    nodes = _grouped(cpus, lambda cpu: cpu.node)
    return Topology(
        list_text(allowed),
        len({cpu.package for cpu in cpus}),
        len(cores),
        max((len(core) for core in cores), default=1),
        [list_text([cpu.number for cpu in node]) for node in nodes],
        _caches(root, sorted(allowed)),
    )


def placement(
    how: str, ranks: int, allowed: Collection[int], root: Path = Path("/")
) -> list[list[int]]:
    """The CPUs of each rank; all of them where ranks are not bound. More ranks than cores, or nodes,
    begin with the first one again."""
    if how == NONE:
        return [sorted(allowed)] * ranks
    nodes = _grouped(cpus_of(root, allowed), lambda cpu: cpu.node)
    if how == NODE:
        places = [[cpu.number for cpu in node] for node in nodes]
    else:
        of_nodes = [
            [[cpu.number for cpu in core] for core in _grouped(node, lambda cpu: cpu.core)]
            for node in nodes
        ]
        in_turn = zip_longest(*of_nodes) if how == SPREAD else of_nodes
        places = [core for cores in in_turn for core in cores if core]
    return [places[rank % len(places)] for rank in range(ranks)]


def parse_list(text: str) -> list[int]:
    """``0-3,8`` as numbers."""
    out: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


def list_text(cpus: Collection[int]) -> str:
    """``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def _caches(root: Path, allowed: Sequence[int]) -> list[str]:
    out = []
    for folder in sorted((root / _CPUS / f"cpu{allowed[0]}" / "cache").glob("index[0-9]*")):
        level, kind, size = (_read(folder / name).strip() for name in ("level", "type", "size"))
        shared = set(parse_list(_read(folder / "shared_cpu_list"))) & set(allowed)
        letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
        shared_text = list_text(shared or allowed[:1])
        out.append(f"L{level}{letter} {cache_size(size)} (CPU {shared_text})")
    return out


def cache_size(text: str) -> str:
    """Returns a size that /sys writes as 2048K."""
    if not text[:-1].isdecimal() or text[-1] != "K":
        return text or "?"
    kib = int(text[:-1])
    return f"{kib >> 10} MiB" if kib >= 1024 and kib % 1024 == 0 else f"{kib} KiB"


def _grouped(cpus: Iterable[Cpu], key: Callable[[Cpu], int]) -> list[list[Cpu]]:
    """Lists of those with the same key, by rising key."""
    out: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        out.setdefault(key(cpu), []).append(cpu)
    return [out[name] for name in sorted(out)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
