# SPDX-License-Identifier: BSD-3-Clause
"""The checks of ``shmcoll doctor``: pure functions of a folder that stands for ``/``, and of some numbers."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from shmcoll.bench.machine import boost, governor, group_levels, tightest_memory, tightest_quota
from shmcoll.bench.topology import list_text, parse_list
from shmcoll.watch import machine, quota
from shmcoll.watch.board import printable
from shmcoll.watch.gpu_links import Links
from shmcoll.watch.trial import Trial

OK, INFO, WARN, FAIL = "ok", "info", "warn", "FAIL"

_KIB = 1 << 10
_ENOUGH_FOR_8_RANKS = 16 << 20  # docs/operate/memory.md
_MESSAGES_PER_RANK = 256 * _KIB
_FIRST_PER_RANK = 64 * _KIB  # more than any world needs before its first large operation
_PROCESSES_PER_RANK = 8  # itself, its threads, some workers
_PAIRS_SHOWN = 4
_PIDS_SHOWN = 4
_FILES_SHOWN = 3
_MEMORY = ("tmpfs", "ramfs")
_PID_IN_NAME = re.compile(r"/torch_(\d+)_\w+$")  # of torch's DataLoader workers
_WORTH_SAYING = 0.5  # CPUs that other processes use
_OLDEST_DRIVER = 525  # the first one with CUDA 12.0


@dataclass(frozen=True)
class Verdict:
    check: str
    state: str  # OK, INFO, WARN or FAIL
    text: str
    fix: str = ""  # a command, or what to change


@dataclass(frozen=True)
class RunningRank:
    group: str
    rank: int
    pid: int


@dataclass(frozen=True)
class Numbers:
    """What no file says."""

    ranks: int  # that a job shall have
    cpus: frozenset[int]  # that this process may use
    shm_free: int | None = None  # bytes of /dev/shm; None: no such folder
    shm_writable: bool = True
    others: float | None = None  # CPUs that processes other than ranks use; None: not known
    trial: Trial | None = None  # None: not tried
    calls: Mapping[str, str] = field(
        default_factory=dict
    )  # of the kernel: "ok", an error, "killed"
    links: Links | None = None  # of GPUs; None: there are none, or nobody asked
    running: Sequence[RunningRank] = ()
    installations: Sequence[str] = ()  # folders of sys.path with a shmcoll
    variables: Mapping[str, str] = field(default_factory=dict)  # SHMCOLL_*
    tools: frozenset[str] = frozenset()  # programs that were found
    stat_before: str = ""  # /proc/stat some time ago


Check = Callable[[Path, Numbers], Iterator[Verdict]]


def run(root: Path, numbers: Numbers) -> list[Verdict]:
    """The verdicts of all checks, in their order."""
    return [verdict for check in CHECKS for verdict in check(root, numbers)]


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"


def first_need(ranks: int) -> int:
    """Bytes of shared memory, at most, of a group that has made small operations only."""
    return 4 * _KIB + ranks * _FIRST_PER_RANK


def whole_need(ranks: int) -> int:
    """Bytes, at most, with operations and messages of any size."""
    if ranks <= 8:
        return _ENOUGH_FOR_8_RANKS
    return max(32768, 6 * ranks**2) * _KIB + ranks * _MESSAGES_PER_RANK


# ---- torch and this installation ----


def check_torch(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    trial = numbers.trial
    if trial is None:
        yield Verdict("torch", INFO, "not tried (--no-torch)")
    elif trial.failure:
        yield Verdict("torch", FAIL, trial.failure, trial.fix)
    else:
        text = (
            f"{trial.torch}, glue for torch {trial.glue}, Python {trial.python}; 2 ranks met in "
            f"{trial.met_ms:.0f} ms and summed in {trial.sum_ms:.1f} ms"
        )
        if trial.glue == "Python":
            text = f"{trial.torch}, the slow glue in Python; 2 ranks met and summed"
            asked_for = numbers.variables.get("SHMCOLL_GLUE") == "python"
            fix = "unset SHMCOLL_GLUE" if asked_for else trial.fix or "SHMCOLL_GLUE=build"
            yield Verdict("torch", WARN, text, fix)
        else:
            yield Verdict("torch", OK, text)


def check_registered(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    trial = numbers.trial
    if len(numbers.installations) > 1:
        text = f"more than one shmcoll is on sys.path: {', '.join(numbers.installations)}"
        yield Verdict("registered", WARN, text, "python -m pip uninstall shmcoll, for all but one")
    if trial is None or trial.registered is None:
        return
    if trial.registered:
        yield Verdict("registered", OK, 'torch.distributed knows "shmcoll" without an import')
    elif numbers.variables.get("SHMCOLL_AUTOLOAD") == "0":
        text = 'SHMCOLL_AUTOLOAD=0: torch.distributed knows "shmcoll" only after import shmcoll'
        yield Verdict("registered", WARN, text, "unset SHMCOLL_AUTOLOAD, or import shmcoll")
    else:
        text = (
            'torch.distributed knows "shmcoll" only after import shmcoll: no entry point was found'
        )
        fix = "install the package with pip (a path in PYTHONPATH has no entry points)"
        yield Verdict("registered", WARN, text, fix)


# ---- memory ----


def check_shm(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    ranks, need = numbers.ranks, whole_need(numbers.ranks)
    problem = _shm_problem(root, numbers)
    short = not problem and (numbers.shm_free or 0) < need
    if short:
        problem = f"{size(numbers.shm_free or 0)} free in /dev/shm, and {ranks} ranks need up to {size(need)}"
    yield _judge_shm(root, numbers, problem)
    largest = machine.largest_files(root, "/dev/shm", _FILES_SHOWN) if short else []
    if largest:  # on a line of its own, which no bug report shows: names may be private
        text = "the largest files: " + ", ".join(_file_text(root, one) for one in largest)
        yield Verdict("/dev/shm", INFO, text, "ls -l /dev/shm; rm what nothing uses any more")


def _judge_shm(root: Path, numbers: Numbers, problem: str) -> Verdict:
    ranks, need = numbers.ranks, whole_need(numbers.ranks)
    if not problem:
        text = (
            f"{size(numbers.shm_free or 0)} free; {ranks} ranks need up to "
            f"{size(first_need(ranks))}, with large operations up to {size(need)}"
        )
        return Verdict("/dev/shm", OK, text)
    form = numbers.variables.get("SHMCOLL_SEGMENT", "auto")
    if form in ("named", "unnamed"):
        fix = "unset SHMCOLL_SEGMENT: a memfd then takes over"
        return Verdict("/dev/shm", FAIL, f"{problem}, and SHMCOLL_SEGMENT={form} asks for it", fix)
    more = "" if form == "memfd" else "; a memfd takes over, and only DataLoader workers suffer"
    return Verdict("/dev/shm", WARN, problem + more, _shm_fix(root, numbers))


def _shm_fix(root: Path, numbers: Numbers) -> str:
    if machine.in_container(root):
        return "docker run --shm-size=1g; kubernetes: an emptyDir of medium Memory at /dev/shm"
    if numbers.shm_free is None:
        return ""
    mount = machine.mount_of(root, "/dev/shm")
    if mount is None or mount.kind not in _MEMORY:
        return "mount -t tmpfs -o size=1g shm /dev/shm"
    return "mount -o remount,rw,size=1g /dev/shm"


def _file_text(root: Path, file: tuple[str, int]) -> str:
    path, count = file
    owner = _PID_IN_NAME.search(path)
    dead = owner is not None and not machine.stat_of(root, int(owner[1]))
    shown = printable(os.fsencode(path))
    return f"{shown} ({size(count)}{f'; no process {owner[1]} here' if owner and dead else ''})"


def _shm_problem(root: Path, numbers: Numbers) -> str:
    """Why no file there can be used, or ""."""
    mount = machine.mount_of(root, "/dev/shm")
    if numbers.shm_free is None:
        return "there is no /dev/shm"
    if mount is None or mount.kind not in _MEMORY:
        return f"/dev/shm is not memory but {mount.kind if mount else 'a plain folder'}"
    if "ro" in mount.options or not numbers.shm_writable:
        return "/dev/shm cannot be written"
    return ""


def check_memory(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    free, place = tightest_memory(root)
    need, shown = whole_need(numbers.ranks), quota.shown(root, place)
    text = f"{size(free)} available ({shown})"
    if free >= need:
        yield Verdict("memory", OK, text)
        return
    state = FAIL if free < first_need(numbers.ranks) else WARN
    text += f": the groups of {numbers.ranks} ranks alone need up to {size(need)}"
    yield Verdict("memory", state, text, "docker run --memory=..., kubernetes: resources.limits")


# ---- CPUs ----


def check_quota(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    cpus, own = tightest_quota(root)
    if cpus is None:
        yield Verdict("CPU quota", OK, "none")
    else:
        yield _judge_quota(root, cpus, own, numbers.ranks)
    # Running ranks may be in a container, and this command on its host.
    elsewhere: dict[Path, tuple[float, set[int]]] = {}
    for pid in {one.pid for one in numbers.running}:
        cpus, place = tightest_quota(root, pid)
        if cpus is not None and place != own:
            elsewhere.setdefault(place, (cpus, set()))[1].add(pid)
    for place, (cpus, pids) in sorted(elsewhere.items()):
        yield _judge_quota(root, cpus, place, pids)


def _judge_quota(root: Path, cpus: float, place: Path, who: int | Set[int]) -> Verdict:
    """who: so many ranks, or the processes of running ones."""
    used_up, ranks = quota.used_up(place), who if isinstance(who, int) else len(who)
    text = f"{cpus:g} CPUs ({quota.shown(root, place)}) for {_ranks_text(who)}"
    if used_up:
        text += f", used up in {used_up:.0%} of the periods so far"
    if ranks > cpus:
        text += ": when it is used up, all ranks stand still for up to 100 ms"
        fix = f"docker run --cpus={ranks}; kubernetes: limits.cpu; or fewer ranks"
        return Verdict("CPU quota", FAIL, text, fix)
    if used_up > quota.WORTH_SAYING:
        return Verdict("CPU quota", WARN, text, "one thread for each rank (OMP_NUM_THREADS=1)")
    return Verdict("CPU quota", OK, text)


def _ranks_text(who: int | Set[int]) -> str:
    """Of so many ranks, or of the processes of running ones."""
    if isinstance(who, int):
        return f"{who} rank{'s' * (who != 1)}"
    shown = ", ".join(map(str, sorted(who)[:_PIDS_SHOWN])) + ", ..." * (len(who) > _PIDS_SHOWN)
    many = len(who) != 1
    return f"{len(who)} running rank{'s' * many} (process{'es' * many} {shown})"


def check_affinity(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    places: dict[frozenset[int], set[int]] = defaultdict(set)  # pids by the CPUs they may use
    for pid in {one.pid for one in numbers.running}:
        places[_cpus_of(root, pid) or numbers.cpus].add(pid)
    here = {pid for cpus, pids in places.items() if cpus <= numbers.cpus for pid in pids}
    yield _judge_cpus(numbers.cpus, here if len(here) > numbers.ranks else numbers.ranks)
    for cpus, pids in sorted(places.items(), key=lambda place: sorted(place[0])):
        # _bound_together names those that have one CPU.
        if cpus != numbers.cpus and len(pids) > len(cpus) > 1:
            yield _judge_cpus(cpus, pids)
    yield from _bound_together(root, numbers)


def _cpus_of(root: Path, pid: int) -> frozenset[int]:
    """The CPUs that a process may use. Its list may name some that the machine does not have."""
    online = parse_list(machine.read(root / "sys/devices/system/cpu/online"))
    allowed = parse_list(machine.status_of(root, pid).get("Cpus_allowed_list", ""))
    return frozenset(allowed).intersection(online or allowed)


def _judge_cpus(cpus: frozenset[int], who: int | Set[int]) -> Verdict:
    ranks = who if isinstance(who, int) else len(who)
    text = f"{len(cpus)} CPUs may be used ({list_text(cpus)}) by {_ranks_text(who)}"
    if ranks <= len(cpus):
        return Verdict("CPUs", OK, text)
    text += ": ranks that share a CPU wait for the scheduler, for milliseconds in some calls"
    return Verdict(
        "CPUs", WARN, text, f"taskset -c, docker run --cpuset-cpus; or {len(cpus)} ranks"
    )


def _bound_together(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    """Ranks of a running group that are bound to the same CPU."""
    places: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for one in numbers.running:
        allowed = parse_list(machine.status_of(root, one.pid).get("Cpus_allowed_list", ""))
        if len(allowed) == 1:
            places[one.group, allowed[0]][one.rank] = one.pid
    for (group, cpu), ranks in places.items():
        if len(ranks) > 1:
            names = ", ".join(map(str, sorted(ranks)))
            text = f'ranks {names} of the running group "{group}" are all bound to CPU {cpu}'
            pid = ranks[max(ranks)]
            yield Verdict("CPUs", WARN, text, f"taskset -acp OTHER_CPU {pid}")


def check_load(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    others, count = numbers.others, len(numbers.cpus)
    if others is None:
        return
    text = f"other processes use {others:.1f} of {count} CPUs"
    average = machine.read(root / "proc/loadavg").split()
    more = f"; load average {average[0]}" if average else ""
    ranks = max(numbers.ranks, len({one.pid for one in numbers.running}))
    if others < _WORTH_SAYING or others + ranks <= count:
        yield Verdict("load", OK, text + more)
        return
    text += f", and {_ranks_text(ranks)} need{'s' * (ranks == 1)} {ranks}{more}"
    yield Verdict("load", WARN, text, "top shows which; stop them, or start fewer ranks")


# ---- what the kernel allows ----


def check_tracing(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    result = numbers.calls.get("process_vm_readv")
    if result == "killed":
        text = "a seccomp filter kills a process that calls process_vm_readv"
        yield Verdict("tracing", FAIL, text, "SHMCOLL_CMA=off")
    elif result not in (None, "ok"):
        text = (
            f"process_vm_readv is refused ({result}): large scatters copy twice, stacks need root"
        )
        yield Verdict("tracing", WARN, text, "docker run --cap-add SYS_PTRACE")
    scope = machine.read(root / "proc/sys/kernel/yama/ptrace_scope") or "0"
    if scope == "0" or machine.may_trace_all(root):
        if result in (None, "ok"):
            yield Verdict("tracing", OK, "shmcoll stacks can look into ranks of this user")
        return
    if scope == "1":
        text = "Yama lets a process be traced by its ancestors alone: stacks need root"
        fix = "sudo shmcoll stacks, SHMCOLL_TRACEABLE=1, or sysctl kernel.yama.ptrace_scope=0"
    else:
        text = (
            f"Yama (ptrace_scope {scope}) lets {'root alone' if scope == '2' else 'nobody'} trace"
        )
        fix = "sudo shmcoll stacks" if scope == "2" else "a restart with another ptrace_scope"
    yield Verdict("tracing", WARN if scope == "3" else INFO, text, fix)


def check_kernel(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    trial = numbers.trial
    if trial is not None and trial.life_words == "no":
        text = "the kernel's mark of a death is filtered away: ranks look at /proc after 50 ms"
        yield Verdict("kernel", WARN, text, "a seccomp filter that allows set_robust_list")
    result = numbers.calls.get("membarrier")
    if result == "killed":
        text = "a seccomp filter kills a process that calls membarrier"
        yield Verdict("kernel", FAIL, text, "SHMCOLL_BIAS=off")
    elif result not in (None, "ok"):
        text = f"membarrier is refused ({result}): a call of 8 bytes is a little slower"
        yield Verdict("kernel", INFO, text)
    version = machine.read(root / "proc/sys/kernel/osrelease")
    numbers_of = [int(word) for word in re.findall(r"\d+", version)[:2]]
    if numbers_of and numbers_of < [5, 4]:
        yield Verdict("kernel", FAIL, f"Linux {version}; shmcoll needs 5.4", "a newer kernel")
    elif version:
        place = ", in a container" if machine.in_container(root) else ""
        yield Verdict("kernel", OK, f"Linux {version}{place}")


def check_limits(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    found, bad = machine.limits(root), False
    files = found.get("Max open files")
    if files is not None and files < 256:
        bad = True
        yield Verdict("limits", WARN, f"a process may open {files} files only", "ulimit -n 1024")
    need = numbers.ranks * _PROCESSES_PER_RANK
    processes = found.get("Max processes")
    if processes is not None and processes < need:
        bad = True
        text = f"this user may have {processes} processes and threads; {numbers.ranks} ranks need about {need}"
        yield Verdict("limits", FAIL, text, "ulimit -u 4096")
    for _, level in group_levels(root, "pids"):
        most, now = (machine.read(level / f"pids.{name}") for name in ("max", "current"))
        if most.isdecimal() and now.isdecimal() and int(most) - int(now) < need:
            bad = True
            text = f"room for {int(most) - int(now)} processes and threads ({quota.shown(root, level)})"
            yield Verdict("limits", FAIL, text, "docker run --pids-limit")
            break
    if not bad:
        yield Verdict("limits", OK, f"open files {_or_any(files)}, processes {_or_any(processes)}")
    yield from _core_dumps(root, found)


def _or_any(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _core_dumps(root: Path, found: Mapping[str, int | None]) -> Iterator[Verdict]:
    pattern = machine.read(root / "proc/sys/kernel/core_pattern")
    writes = pattern.startswith("|") or found.get("Max core file size", 0) != 0
    if pattern and writes:
        where = "a program" if pattern.startswith("|") else "a file"
        place = pattern.split()[0]
        if pattern[0] not in "|/":
            place += ", in the rank's working directory"
        text = (
            f"a crash writes a core dump into {where} ({place}). The other ranks see it "
            "after 50 ms; the process and its memory stay until the dump is written"
        )
        yield Verdict("core dumps", INFO, text, "ulimit -c 0 for ranks with much memory")


# ---- information ----


def check_numa(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    nodes = [n for n in machine.entries(root / "sys/devices/system/node") if n[4:].isdecimal()]
    pages = re.search(
        r"\[(\w+)\]", machine.read(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled")
    )
    text = f"{len(nodes) or 1} NUMA node{'s' if len(nodes) > 1 else ''}"
    if pages:
        text += f"; huge pages of shared memory: {pages[1]}"
    fix = "torchrun --numa-binding=node keeps a rank on one node" if len(nodes) > 1 else ""
    yield Verdict("NUMA", INFO, text, fix)


def check_speed(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    facts = []
    if found := governor(root, numbers.cpus):
        facts.append(f"governor {found}")
    if turbo := boost(root):
        facts.append(f"turbo {turbo}")
    smt = machine.read(root / "sys/devices/system/cpu/smt/active")
    if smt:
        facts.append(f"SMT {'on' if smt == '1' else 'off'}")
    stolen = machine.steal(numbers.stat_before, machine.read(root / "proc/stat"))
    if stolen is not None:
        facts.append(f"steal {stolen:.0%}")
    if stolen is not None and stolen > 0.05:
        text = (
            f"other machines took {stolen:.0%} of the CPUs' time: times vary ({', '.join(facts)})"
        )
        yield Verdict("speed", WARN, text, "a machine whose CPUs are its own")
    elif facts:
        yield Verdict("speed", INFO, ", ".join(facts))


def check_gpus(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    version, found = machine.driver_version(root), machine.gpus(root)
    if not version and not found:
        return
    names: dict[str, int] = defaultdict(int)
    for gpu in found:
        names[gpu.name + (f" in {gpu.parts} MIG parts" if gpu.parts else "")] += 1
    text = f"driver {version or '?'}: " + ", ".join(f"{n} {name}" for name, n in names.items())
    trial = numbers.trial
    if trial is not None and trial.torch:
        text += f"; torch with {f'CUDA {trial.cuda}' if trial.cuda else 'CPU support alone'}"
        text += f", NCCL {trial.nccl}" if trial.nccl else ""
    if version and int(version.split(".")[0]) < _OLDEST_DRIVER:
        text += f". CUDA tensors need driver {_OLDEST_DRIVER} or later (CUDA 12.0)"
        yield Verdict("GPUs", WARN, text, "a newer driver")
    elif found and not (root / "dev/nvidiactl").exists():
        yield Verdict("GPUs", WARN, f"{text}. /dev/nvidiactl is missing", "docker run --gpus all")
    else:
        yield Verdict("GPUs", INFO, text)


def check_links(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    """Which GPUs can read each other's memory, as the driver says."""
    links, parts = numbers.links, sum(gpu.parts for gpu in machine.gpus(root))
    if links is None:
        return
    if links.error:
        fix = "the driver's own library, of the version of its kernel module"
        if "NO_DEVICE" in links.error or "cannot open" in links.error:
            fix = "docker run --gpus all, or CUDA_VISIBLE_DEVICES"
        text = f"the driver cannot be used: {links.error}. CUDA tensors are refused"
        yield Verdict("GPU links", WARN, text, fix)
        return
    if links.no_handles:
        which = list_text(links.no_handles)
        text = f"the memory of GPU {which} is shared by legacy handles alone"
        yield Verdict("GPU links", INFO, text)
    if links.apart:
        pairs = sorted({(min(pair), max(pair)) for pair in links.apart})
        shown = ", ".join(f"{one} and {other}" for one, other in pairs[:_PAIRS_SHOWN])
        more = f" and {len(pairs) - _PAIRS_SHOWN} more pairs" if len(pairs) > _PAIRS_SHOWN else ""
        text = f"no access between GPUs {shown}{more}: CUDA tensors of ranks on them go through host memory"
        fix = "nvidia-smi topo -p2p r says why" if parts == 0 else "ranks on one MIG part"
        yield Verdict("GPU links", WARN, text, fix)
    elif links.count > 1:
        yield Verdict("GPU links", OK, f"each of {links.count} GPUs reads the others' memory")


def check_clock(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    source = machine.read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in ("tsc", "arch_sys_counter"):
        yield Verdict("clock", OK, source)
    elif source:
        text = f"the clock is {source}: shmcoll status shows calls without their times"
        yield Verdict("clock", INFO, text, "the kernel's log says why the tsc is not used")


def check_tools(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    if "py-spy" in numbers.tools:
        yield Verdict("tools", OK, ", ".join(sorted(numbers.tools)))
    else:
        yield Verdict("tools", WARN, "py-spy is not installed: no stacks", machine.TOOLS_LINE)


def check_remains(root: Path, numbers: Numbers) -> Iterator[Verdict]:
    found = machine.remains(root)
    dead = [one for one in found if one.state == "dead"]
    if dead:
        count, total = len(dead), size(sum(one.bytes for one in dead))
        text = f"{count} file{'s' if count > 1 else ''} in /dev/shm whose creator is dead ({total})"
        yield Verdict("remains", WARN, text, f"rm {' '.join(one.path for one in dead)}")
    elsewhere = [one for one in found if one.state == "elsewhere"]
    if elsewhere:
        paths = ", ".join(one.path for one in elsewhere)
        text = f"{paths}: made by another container or user. If no job is starting there, remove it"
        yield Verdict("remains", INFO, text)
    if not found:
        yield Verdict("remains", OK, "no file of ours in /dev/shm")


CHECKS: tuple[Check, ...] = (
    check_torch,
    check_registered,
    check_shm,
    check_memory,
    check_quota,
    check_affinity,
    check_load,
    check_tracing,
    check_kernel,
    check_limits,
    check_numa,
    check_speed,
    check_gpus,
    check_links,
    check_clock,
    check_tools,
    check_remains,
)
