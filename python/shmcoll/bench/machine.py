# SPDX-License-Identifier: BSD-3-Clause
"""Facts about the machine that a reader of the numbers needs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Gathered once, before the first measurement."""

    cpu: str
    cpus_online: int
    cpus_usable: int
    cpus_affinity: int
    cpu_quota: float | None  # CPUs the control group grants; None: no limit
    cache_bytes: int | None  # the largest, which is the last level; None: /sys does not tell
    memory_available_bytes: int
    shm_free_bytes: int | None
    shm_total_bytes: int | None
    kernel: str
    python: str
    versions: dict[str, str | None]


def gather() -> Machine:
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota(Path("/"))
    shm_free, shm_total = _shm()
    return Machine(
        cpu=_cpu_model(),
        cpus_online=os.cpu_count() or affinity,
        cpus_usable=usable(affinity, quota),
        cpus_affinity=affinity,
        cpu_quota=quota,
        cache_bytes=cache_bytes(Path("/")),
        memory_available_bytes=memory_available_bytes(Path("/")),
        shm_free_bytes=shm_free,
        shm_total_bytes=shm_total,
        kernel=platform.release(),
        python=platform.python_version(),
        versions={name: _version(name) for name in ("torch", "shmcoll")},
    )


def usable_cpus() -> int:
    return usable(len(os.sched_getaffinity(0)), cpu_quota(Path("/")))


def usable(affinity: int, quota: float | None) -> int:
    """CPUs that ranks can have at the same time; at least one."""
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def cpu_quota(root: Path) -> float | None:
    """The tightest CPU quota over this process's control groups, v2 or v1."""
    return tightest_quota(root)[0]


def tightest_quota(root: Path, pid: int | str = "self") -> tuple[float | None, Path]:
    """The same, and the folder of the control group that has it. pid: of another process."""
    return min(quotas(root, pid), default=(None, root))


def quotas(root: Path, pid: int | str = "self") -> list[tuple[float, Path]]:
    """All of them: CPUs, and the folder of the control group."""
    return [
        (quota, level)
        for v1, level in group_levels(root, "cpu", pid)
        if (quota := _quota_v1(level) if v1 else _quota_v2(level)) is not None
    ]


def cache_bytes(root: Path) -> int | None:
    """The largest cache of any CPU."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*/size")
    sizes = [text[:-1] for text in (_read(file).strip() for file in files) if text.endswith("K")]
    return max((int(kib) << 10 for kib in sizes), default=None)


def memory_available_bytes(root: Path) -> int:
    """Returns the bytes that are free without swapping, in the tightest control group of this process."""
    return tightest_memory(root)[0]


def tightest_memory(root: Path) -> tuple[int, Path]:
    """The same, and where the limit is: a control group's folder, or /proc/meminfo."""
    machine = root / "proc/meminfo"
    free = [(0, machine)]
    for line in _read(machine).splitlines():
        if line.startswith("MemAvailable:"):
            free = [(int(line.split()[1]) << 10, machine)]
    for v1, level in group_levels(root, "memory"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (
            _read(level / name).strip()
            for name in (names if v1 else ("memory.max", "memory.current"))
        )
        if limit.isdecimal() and used.isdecimal():
            free.append((max(0, int(limit) - int(used)), level))
    return min(free)


def group_levels(
    root: Path, controller: str, pid: int | str = "self"
) -> Iterator[tuple[bool, Path]]:
    """(is v1, directory) of each of that process's control groups with that controller, and of all
    groups around it."""
    for controllers, group in _cgroups(root, pid):
        v1 = bool(controllers)
        if v1 and controller not in controllers:
            continue
        mount = root / "sys/fs/cgroup" / (controller if v1 else "")
        inside = Path(group.lstrip("/"))
        for level in [inside, *inside.parents]:
            yield v1, mount / level


def _cgroups(root: Path, pid: int | str) -> list[tuple[list[str], str]]:
    """(controllers, path) of each line; no controllers: the unified hierarchy."""
    out = []
    for line in _read(root / f"proc/{pid}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        out.append(([name for name in controllers.split(",") if name], group))
    return out


def _quota_v2(directory: Path) -> float | None:
    fields = _read(directory / "cpu.max").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return int(fields[0]) / int(fields[1])


def _quota_v1(directory: Path) -> float | None:
    quota = _read(directory / "cpu.cfs_quota_us").strip()
    period = _read(directory / "cpu.cfs_period_us").strip()
    if not quota or not period or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def governor(root: Path, cpus: Sequence[int] | Set[int]) -> str | None:
    files = (root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor" for cpu in cpus)
    found = dict.fromkeys(text for file in files if (text := _read(file).strip()))
    return ", ".join(found) or None


def boost(root: Path) -> str | None:
    cpu = root / "sys/devices/system/cpu"
    for file, on in ((cpu / "cpufreq/boost", "1"), (cpu / "intel_pstate/no_turbo", "0")):
        if text := _read(file).strip():
            return "on" if text == on else "off"
    return None


def _cpu_model() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _shm() -> tuple[int | None, int | None]:
    try:
        fs = os.statvfs("/dev/shm")
    except OSError:
        return None, None
    return fs.f_bavail * fs.f_frsize, fs.f_blocks * fs.f_frsize


def _version(distribution: str) -> str | None:
    import importlib.metadata  # slow, and most users of this file do not need it

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
