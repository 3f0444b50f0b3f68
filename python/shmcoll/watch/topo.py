# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll topo``: CPUs, caches, NUMA nodes and GPUs, where ranks run, and how far apart they are."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from shmcoll.bench.topology import Cpu, cpus_of, list_text, parse_list, cache_size
from shmcoll.watch import board, machine
from shmcoll.watch.groups import Group, gather
from shmcoll.watch.parser import EXIT_USAGE, Parser

EXIT_SHOWN = 0

_ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_MOST_IN_MATRIX = 16
_LAST_CPU = 36  # the word of /proc/PID/stat, counted from the state

__all__ = ["EXIT_SHOWN", "EXIT_USAGE", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="shmcoll topo",
        description="Shows CPUs, caches, NUMA nodes and GPUs of this machine, where the ranks of running "
        "groups run, and how far apart they are.",
        epilog="exit codes: 0 shown, 64 bad usage",
    )
    parser.parse_args(argv)
    return _run()


def _run() -> int:
    groups = gather(board.look())
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    lines = [*machine_lines(_ROOT, width), *gpu_lines(_ROOT)]
    for group in groups:
        lines += ["", *group_lines(_ROOT, group.name, pids_of(group), width)]
    if not groups:
        lines += ["", "no running group of this user"]
    if tool := shutil.which("lstopo"):
        lines += ["", f"{tool} --of console shows more of the machine"]
    print("\n".join(lines))
    return EXIT_SHOWN


def pids_of(group: Group) -> dict[int, int]:
    return {rank: member.process.pid for rank, member in sorted(group.members.items())}


# ---- the machine ----


@dataclasses.dataclass(frozen=True)
class Cache:
    level: int
    kind: str  # "Data", "Instruction", "Unified"
    bytes_text: str
    cpus: frozenset[int]


def online(root: Path) -> list[int]:
    listed = parse_list(machine.read(root / _CPUS / "online"))
    folders = [n[3:] for n in machine.entries(root / _CPUS) if n.startswith("cpu")]
    return listed or sorted(int(number) for number in folders if number.isdecimal())


def caches_of(root: Path, cpu: int) -> list[Cache]:
    folder, found = root / _CPUS / f"cpu{cpu}/cache", []
    for name in machine.entries(folder):
        level = machine.read(folder / name / "level")
        if level.isdecimal():
            cpus = frozenset(parse_list(machine.read(folder / name / "shared_cpu_list")))
            kind, size = (machine.read(folder / name / what) for what in ("type", "size"))
            found.append(Cache(int(level), kind, cache_size(size), cpus or frozenset((cpu,))))
    return found


def machine_lines(root: Path, width: int) -> list[str]:
    numbers = online(root)
    cpus = cpus_of(root, numbers)
    if not cpus:
        return ["CPUs: /sys says nothing"]
    packages, cores = {cpu.package for cpu in cpus}, {cpu.core for cpu in cpus}
    model = machine.fields(machine.read(root / "proc/cpuinfo")).get("model name", "")
    counts = (
        f"{_count(len(packages), 'package')}, {_count(len(cores), 'core')}, "
        f"{_count(len(cpus), 'CPU')} ({list_text(numbers)})"
    )
    lines = _wrapped("CPUs", " · ".join(filter(None, (counts, model))), width)
    for words in _cache_texts(root, numbers):
        lines += _wrapped("cache", words, width)
    for node in sorted({cpu.node for cpu in cpus}):
        own = [cpu.number for cpu in cpus if cpu.node == node]
        lines += _wrapped("node", f"{node}: CPUs {list_text(own)}{_memory(root, node)}", width)
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _wrapped(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{head:6}",
        subsequent_indent=" " * 6,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _cache_texts(root: Path, numbers: Sequence[int]) -> list[str]:
    """For each level and size, the sets of CPUs that share one."""
    shared: dict[tuple[int, str, str], dict[frozenset[int], None]] = {}
    for cpu in numbers:
        for cache in caches_of(root, cpu):
            if cache.kind != "Instruction":
                key = (cache.level, cache.kind, cache.bytes_text)
                shared.setdefault(key, {})[cache.cpus] = None
    texts = []
    for (level, kind, size), sets in sorted(shared.items()):
        name = f"L{level}{'d' if kind == 'Data' else ''}"
        whole = [list_text(cpus) for cpus in sets]
        owners = "one for each CPU" if all(len(one) == 1 for one in sets) else "; ".join(whole)
        texts.append(f"{name} {size}, {len(sets)} of them: {owners}")
    return texts


def _memory(root: Path, node: int) -> str:
    for line in machine.read(root / f"sys/devices/system/node/node{node}/meminfo").splitlines():
        if "MemTotal:" in line:
            return f", {int(line.split()[-2]) / (1 << 20):.1f} GiB"
    return ""


def gpu_lines(root: Path) -> list[str]:
    found, version = machine.gpus(root), machine.driver_version(root)
    lines = [f"GPUs  driver {version}"] if version else []
    for gpu in found:
        near = [f"node {gpu.node}"] if gpu.node is not None else []
        near += [f"near CPUs {gpu.cpus}"] if gpu.cpus else []
        near += [f"{_count(gpu.parts, 'MIG part')}"] if gpu.parts else []
        lines.append(f"GPU   {gpu.minor}: {', '.join([gpu.name, gpu.bus, *near])}")
    return lines


# ---- the ranks ----


@dataclasses.dataclass(frozen=True)
class Place:
    rank: int
    pid: int
    allowed: tuple[int, ...]  # CPUs of its main thread; empty: the process has ended
    last: int | None  # the CPU that it ran on last


def place_of(root: Path, rank: int, pid: int) -> Place:
    allowed = machine.status_of(root, pid).get("Cpus_allowed_list", "")
    words = machine.stat_of(root, pid)
    last = int(words[_LAST_CPU]) if len(words) > _LAST_CPU else None
    return Place(rank, pid, tuple(parse_list(allowed)), last)


def distance(root: Path, a: int, b: int, cpus: Callable[[int], Cpu | None]) -> str:
    """How far apart two CPUs are: "CPU", "core", "L2", "L3", "node" or "far"."""
    if a == b:
        return "CPU"
    first, second = cpus(a), cpus(b)
    if first is None or second is None:
        return "?"
    if first.core == second.core:
        return "core"
    levels = [one.level for one in caches_of(root, a) if b in one.cpus]
    if levels:
        return f"L{min(levels)}"
    return "node" if first.node == second.node else "far"


def group_lines(root: Path, name: str, pids: dict[int, int], width: int) -> list[str]:
    places = [place_of(root, rank, pid) for rank, pid in pids.items()]
    known = {cpu.number: cpu for cpu in cpus_of(root, online(root))}
    lines = [f'GROUP "{name}" · {_count(len(places), "rank")}']
    for place in places:
        where = "has ended"
        if place.last is not None:
            node = known[place.last].node if place.last in known else "?"
            where = (
                f"ran last on CPU {place.last} (node {node}), may use {list_text(place.allowed)}"
            )
        lines.append(f"  rank {place.rank}  pid {place.pid}  {where}")
    lines += _warnings(places)
    if 2 <= len(places):
        lines += ["", *_distances(root, places, known.get, width)]
    return lines


def _warnings(places: Iterable[Place]) -> list[str]:
    bound: dict[int, list[int]] = {}
    for place in places:
        if len(place.allowed) == 1:
            bound.setdefault(place.allowed[0], []).append(place.rank)
    return [
        f"  -> ranks {', '.join(map(str, ranks))} are all bound to CPU {cpu}"
        for cpu, ranks in bound.items()
        if len(ranks) > 1
    ]


def _distances(
    root: Path, places: Sequence[Place], cpus: Callable[[int], Cpu | None], width: int
) -> list[str]:
    def between(a: Place, b: Place) -> str:
        if a.last is None or b.last is None:
            return "?"
        return distance(root, a.last, b.last, cpus)

    legend = (
        "distance of the CPUs on which the ranks ran last: the same CPU, the same core, a shared L2 or L3 "
        "cache, the same node, or far (another node)"
    )
    lines = textwrap.wrap(legend, width, initial_indent="  ", subsequent_indent="  ")
    if len(places) <= _MOST_IN_MATRIX and 8 + 6 * len(places) <= width:
        lines.append("  " + " " * 5 + "".join(f"{one.rank:>6}" for one in places))
        for a in places:
            row = "".join(f"{'-' if a is b else between(a, b):>6}" for b in places)
            lines.append(f"  {a.rank:>5}{row}")
        return lines
    counts: dict[str, int] = {}
    for index, a in enumerate(places):
        for b in places[index + 1 :]:
            counts[between(a, b)] = counts.get(between(a, b), 0) + 1
    order = ("CPU", "core", "L1", "L2", "L3", "L4", "node", "far", "?")
    texts = [f"{key} {counts[key]}" for key in order if key in counts]
    return [*lines, f"  pairs of ranks: {', '.join(texts)}"]
