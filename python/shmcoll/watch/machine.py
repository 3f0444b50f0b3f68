# SPDX-License-Identifier: BSD-3-Clause
"""What the files of /proc, /sys and /dev say. Each function reads below a folder that stands for ``/``."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

TOOLS_LINE = 'pip install "shmcoll[tools]"'  # installs py-spy

_CAP_SYS_PTRACE = 19
_OUR_NAME = re.compile(r"shmcoll-[0-9a-f]{32}")

# struct shc_header_shm and struct shc_identity_shm (docs/internals/protocol/memory.md).
_SEGMENT_MAGIC = 0x006C6C6F636D6873
_BLOCK_OF_RANK_0 = 4096


def read(path: Path) -> str:
    """The text without blanks around it; "" if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def entries(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def fields(text: str) -> dict[str, str]:
    """``Key: value`` and ``Key:\\tvalue`` on each line."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def status_of(root: Path, pid: int | str = "self") -> dict[str, str]:
    return fields(read(root / f"proc/{pid}/status"))


def _rights(root: Path, pid: int | str, kind: str) -> int:
    return int(status_of(root, pid).get(kind) or "0", 16)


def may_trace_all(root: Path) -> bool:
    """Has this process CAP_SYS_PTRACE?"""
    return bool(_rights(root, "self", "CapEff") >> _CAP_SYS_PTRACE & 1)


def has_more_rights(root: Path, pid: int) -> bool:
    """Has that process a capability that this one lacks?"""
    return bool(_rights(root, pid, "CapPrm") & ~_rights(root, "self", "CapEff"))


def in_container(root: Path) -> bool:
    """In a pid namespace that is not the machine's own, as far as this process can see."""
    return (
        len(status_of(root).get("NSpid", "").split()) > 1
        or (root / ".dockerenv").exists()
        or (root / "run/.containerenv").exists()
    )


def limits(root: Path) -> dict[str, int | None]:
    """The soft limits of this process by the names of /proc/self/limits; None: unlimited."""
    found: dict[str, int | None] = {}
    for line in read(root / "proc/self/limits").splitlines()[1:]:
        columns = re.split(r"\s{2,}", line.strip())
        if len(columns) >= 2:
            found[columns[0]] = int(columns[1]) if columns[1].isdecimal() else None
    return found


def steal(before: str, after: str) -> float | None:
    """The part of the time between two texts of /proc/stat that the CPUs were given to other machines.

    "" for the first text is the start of the machine. None: not known.
    """
    old, new = (_cpu_line(text) for text in (before, after))
    if len(new) < 8:
        return None
    passed = [b - a for a, b in zip(old or [0] * len(new), new)]
    total = sum(passed[:8])
    return passed[7] / total if total > 0 else None


def _cpu_line(text: str) -> list[int]:
    for line in text.splitlines():
        if line.startswith("cpu "):
            return [int(word) for word in line.split()[1:]]
    return []


@dataclass(frozen=True)
class Mount:
    kind: str
    options: frozenset[str]


def mount_of(root: Path, place: str) -> Mount | None:
    """The mount at that very place; the last one, which covers the others."""
    found = None
    for line in read(root / "proc/self/mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        words, rest = head.split(), tail.split()
        if len(words) > 5 and rest and words[4] == place:
            found = Mount(rest[0], frozenset(words[5].split(",")))
    return found


@dataclass(frozen=True)
class Gpu:
    name: str
    bus: str  # 0000:17:00.0
    minor: str  # of /dev/nvidiaN
    node: int | None  # NUMA node; None: not known
    cpus: str  # that are near
    parts: int  # MIG instances


def gpus(root: Path) -> list[Gpu]:
    """The GPUs that NVIDIA's driver shows."""
    found = []
    folder = root / "proc/driver/nvidia"
    for bus in entries(folder / "gpus"):
        facts = fields(read(folder / "gpus" / bus / "information"))
        device = root / "sys/bus/pci/devices" / bus.lower()
        node, minor = read(device / "numa_node"), facts.get("Device Minor", "?")
        parts = entries(folder / f"capabilities/gpu{minor}/mig")
        found.append(
            Gpu(
                facts.get("Model", "GPU"),
                bus,
                minor,
                int(node) if node.isdecimal() else None,
                read(device / "local_cpulist"),
                sum(name.startswith("gi") for name in parts),
            )
        )
    return found


def driver_version(root: Path) -> str:
    """ "570.86.15"; "": no driver."""
    match = re.search(
        r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", read(root / "proc/driver/nvidia/version") + " "
    )
    return match[1] if match else ""


def find_tool(name: str) -> str | None:
    """The program's path: on PATH, or where this Python's own programs are."""
    own = os.path.dirname(sys.executable)
    return shutil.which(name) or shutil.which(name, path=own)


def largest_files(root: Path, place: str, most: int) -> list[tuple[str, int]]:
    """The files below that folder that take most, each with its bytes; none that takes nothing."""
    found = []
    for folder, _, names in os.walk(root / place.lstrip("/")):
        for path in (Path(folder, name) for name in names):
            try:
                about = path.lstat()
            except OSError:
                continue
            # Not st_size: a file may have holes.
            if stat.S_ISREG(about.st_mode) and about.st_blocks:
                found.append((f"/{path.relative_to(root)}", about.st_blocks * 512))
    return sorted(found, key=lambda file: (-file[1], file[0]))[:most]


# ---- processes ----


def pid_namespace(root: Path, pid: int | str = "self") -> int:
    """The inode of its pid namespace; 0: not known."""
    try:
        link = os.readlink(root / f"proc/{pid}/ns/pid")
    except OSError:
        return 0
    return int(re.sub(r"\D", "", link) or "0")


def start_time(root: Path, pid: int) -> int | None:
    """Clock ticks from the machine's start to the process's; None: there is no such process."""
    words = stat_of(root, pid)
    return int(words[19]) if len(words) > 19 and words[0] not in "ZX" else None


def stat_of(root: Path, pid: int) -> list[str]:
    """The words of /proc/PID/stat from the state on; []: there is no such process."""
    return read(root / f"proc/{pid}/stat").rpartition(")")[2].split()


# ---- what a job has left in /dev/shm ----


@dataclass(frozen=True)
class Remain:
    path: str  # as a user sees it
    bytes: int
    pid: int  # of its creator; 0: not known
    state: str  # "dead", "alive", or "elsewhere": nobody can tell from here


def remains(root: Path) -> list[Remain]:
    """The files of shmcoll in /dev/shm. A healthy group has one only while its ranks open it."""
    found = []
    for name in entries(root / "dev/shm"):
        if _OUR_NAME.fullmatch(name):
            found.append(_remain(root, name))
    return found


def _remain(root: Path, name: str) -> Remain:
    path, shown = root / "dev/shm" / name, f"/dev/shm/{name}"
    try:
        # Anybody may give that name to a pipe, or to a link to one.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return Remain(shown, 0, 0, "elsewhere")
            size = found.st_size
            header = file.read(64)
            file.seek(_BLOCK_OF_RANK_0)
            identity = file.read(24)
    except OSError:
        return Remain(shown, 0, 0, "elsewhere")
    if len(identity) < 24 or int.from_bytes(header[:8], "little") != _SEGMENT_MAGIC:
        return Remain(shown, size, 0, _by_holders(root, shown))
    pid, started, namespace = (
        int.from_bytes(identity[at : at + length], "little")
        for at, length in ((0, 4), (8, 8), (16, 8))
    )
    if pid == 0:
        return Remain(shown, size, 0, _by_holders(root, shown))
    if namespace == 0 or namespace != pid_namespace(root):
        return Remain(shown, size, pid, "elsewhere")
    return Remain(shown, size, pid, "alive" if start_time(root, pid) == started else "dead")


def _by_holders(root: Path, shown: str) -> str:
    """Of a file that does not name its creator: "alive" if a process that this user sees has it open."""
    for pid in filter(str.isdecimal, entries(root / "proc")):
        for number in entries(root / f"proc/{pid}/fd"):
            try:
                if os.readlink(root / f"proc/{pid}/fd/{number}") == shown:
                    return "alive"
            except OSError:
                continue
    return "elsewhere" if in_container(root) else "dead"
