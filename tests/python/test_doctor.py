# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll doctor`: what it says about prepared trees, and about this machine."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import run_and_look_at_modules
from trees import GPU, NAMESPACE, SHM_MOUNT, TREE, plant, process
from shmcoll.watch import checks, doctor, gpu_links, load, machine, trial
from shmcoll.watch.checks import FAIL, INFO, OK, WARN, Numbers, RunningRank, Verdict
from shmcoll.watch.gpu_links import Links
from shmcoll.watch.trial import Trial

GIB = 1 << 30
MEMORY_GROUP = "sys/fs/cgroup/job"
NAME = "shmcoll-" + "0123456789abcdef" * 2

MET = Trial(
    python="3.11.7",
    torch="2.13.0",
    registered=True,
    glue="2.13",
    met_ms=6.0,
    sum_ms=0.1,
    life_words="yes",
)
FIT = Numbers(
    ranks=4,
    cpus=frozenset(range(8)),
    shm_free=GIB,
    others=0.2,
    trial=MET,
    calls={"process_vm_readv": "ok", "membarrier": "ok"},
    installations=("site-packages",),
    tools=frozenset(("py-spy",)),
)


def facts(**found: Any) -> Trial:
    """What the child tells, judged."""
    base = {"executable": "py", "python": "3.11.7", "torch": "2.13.0", "distributed": True}
    code, in_time = found.pop("code", 0), found.pop("in_time", True)
    return trial.judge({**base, **found}, code, in_time, found.pop("said", ""), 120)


def without_torch(**found: Any) -> Trial:
    return trial.judge({"executable": "py", **found}, 1, True, "", 120)


LIMITS_WITH_CORE = (
    "Limit\nMax core file size        unlimited            unlimited            bytes\n"
)
SCATTER = "seccomp filter kills"
Files = dict[str, "str | None"]
# name: files that differ, numbers that differ, the verdict's check, state, part of its text, part of its fix
ROWS: dict[str, tuple[Files, dict[str, Any], str, str, str, str]] = {
    "torch met": ({}, {}, "torch", OK, "glue for torch 2.13, Python 3.11.7; 2 ranks met", ""),
    "torch not tried": ({}, {"trial": None}, "torch", INFO, "not tried", ""),
    "no torch": (
        *({}, {"trial": without_torch(torch_error="missing")}),
        *("torch", FAIL, "py has no torch", "pip install torch"),
    ),
    "broken torch": (
        *({}, {"trial": without_torch(torch_error="ImportError: libc10.so: not found")}),
        *("torch", FAIL, "import torch fails: ImportError: libc10.so", "--force-reinstall torch"),
    ),
    "torch crashes": (
        *({}, {"trial": trial.judge({}, -11, True, "", 120)}),
        *("torch", FAIL, "import torch ended with -11", ""),
    ),
    "torch without distributed": (
        *({}, {"trial": facts(distributed=False)}),
        *("torch", FAIL, "no torch.distributed", ""),
    ),
    "no glue": (
        *(
            {},
            {"trial": facts(shmcoll_error="ImportError: built for torch 2.9. Build it again: do")},
        ),
        *("torch", FAIL, "torch 2.13.0: ImportError: built for torch 2.9.", "Build it again: do"),
    ),
    "slow glue": (
        *({}, {"trial": dataclasses.replace(MET, glue="Python")}),
        *("torch", WARN, "slow glue in Python", "SHMCOLL_GLUE=build"),
    ),
    "slow glue on demand": (
        {},
        {
            "trial": dataclasses.replace(MET, glue="Python"),
            "variables": {"SHMCOLL_GLUE": "python"},
        },
        *("torch", WARN, "slow glue in Python", "unset SHMCOLL_GLUE"),
    ),
    "wrong sum": (
        *({}, {"trial": facts(build_info={}, rank_error="rank 1: ValueError: 1 + 2 was 4.0")}),
        *("torch", FAIL, "rank 1: ValueError: 1 + 2 was 4.0", ""),
    ),
    "ranks hang": (
        *({}, {"trial": facts(build_info={}, in_time=False)}),
        *("torch", FAIL, "two ranks took more than 120 s", ""),
    ),
    "not registered": (
        *({}, {"trial": dataclasses.replace(MET, registered=False)}),
        *("registered", WARN, "no entry point", "pip"),
    ),
    "autoload off": (
        {},
        {
            "trial": dataclasses.replace(MET, registered=False),
            "variables": {"SHMCOLL_AUTOLOAD": "0"},
        },
        *("registered", WARN, "SHMCOLL_AUTOLOAD=0", "unset SHMCOLL_AUTOLOAD"),
    ),
    "two installations": (
        *({}, {"installations": ("a", "b")}),
        *("registered", WARN, "more than one shmcoll is on sys.path: a, b", "uninstall"),
    ),
    "shm fits": (
        *({}, {}),
        *("/dev/shm", OK, "4 ranks need up to 260 KiB, with large operations up to 16 MiB", ""),
    ),
    "shm small": (
        *({}, {"shm_free": 1 << 20}),
        *("/dev/shm", WARN, "1 MiB free in /dev/shm", "mount -o remount,rw,size=1g /dev/shm"),
    ),
    "shm small in docker": (
        *({".dockerenv": ""}, {"shm_free": 1 << 20}),
        *("/dev/shm", WARN, "a memfd takes over", "--shm-size=1g"),
    ),
    "shm missing": ({}, {"shm_free": None}, "/dev/shm", WARN, "there is no /dev/shm", ""),
    "shm on a disk": (
        *({"proc/self/mountinfo": SHM_MOUNT.replace("tmpfs", "ext4")}, {}),
        *("/dev/shm", WARN, "not memory but ext4", "mount -t tmpfs -o size=1g shm /dev/shm"),
    ),
    "shm read-only": (
        *({"proc/self/mountinfo": SHM_MOUNT.replace("rw,nosuid", "ro")}, {}),
        *("/dev/shm", WARN, "cannot be written", "mount -o remount,rw,size=1g /dev/shm"),
    ),
    "shm needed": (
        *({}, {"shm_free": 0, "variables": {"SHMCOLL_SEGMENT": "named"}}),
        *("/dev/shm", FAIL, "SHMCOLL_SEGMENT=named asks for it", "unset SHMCOLL_SEGMENT"),
    ),
    "shm for 100 ranks": ({}, {"ranks": 100}, "/dev/shm", OK, "100 ranks need up to 6.25 MiB", ""),
    "memory": ({}, {}, "memory", OK, "16 GiB available (/proc/meminfo)", ""),
    "memory short": (
        {f"{MEMORY_GROUP}/memory.max": "1000000\n", f"{MEMORY_GROUP}/memory.current": "990000\n"},
        {},
        *("memory", FAIL, "9.77 KiB available (/sys/fs/cgroup/job)", "--memory"),
    ),
    "memory scarce": (
        *({"proc/meminfo": "MemAvailable: 8192 kB\n"}, {}),
        *("memory", WARN, "8 MiB available (/proc/meminfo): ", ""),
    ),
    "quota small": (
        *({f"{MEMORY_GROUP}/cpu.max": "200000 100000\n"}, {}),
        *("CPU quota", FAIL, "2 CPUs (/sys/fs/cgroup/job) for 4 ranks", "docker run --cpus=4"),
    ),
    "quota wide": (
        *({f"{MEMORY_GROUP}/cpu.max": "400000 100000\n"}, {}),
        *("CPU quota", OK, "4 CPUs", ""),
    ),
    "quota used up": (
        {
            f"{MEMORY_GROUP}/cpu.max": "400000 100000\n",
            f"{MEMORY_GROUP}/cpu.stat": "usage_usec 9\nnr_periods 50\nnr_throttled 20\n",
        },
        {},
        *("CPU quota", WARN, "used up in 40% of the periods", "OMP_NUM_THREADS"),
    ),
    "quota of v1": (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/a\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
        },
        {},
        *("CPU quota", FAIL, "1 CPUs (/sys/fs/cgroup/cpu/a)", ""),
    ),
    "no quota": ({}, {}, "CPU quota", OK, "none", ""),
    "quota of a running job": (
        {
            "proc/500/cgroup": "0::/other\n",
            "proc/501/cgroup": "0::/other\n",
            "proc/502/cgroup": "0::/job\n",
            "sys/fs/cgroup/other/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/other/cpu.stat": "nr_periods 100\nnr_throttled 36\n",
        },
        {"running": [RunningRank("0", rank, 500 + rank) for rank in range(3)]},
        *(
            "CPU quota",
            FAIL,
            "0.5 CPUs (/sys/fs/cgroup/other) for 2 running ranks (processes 500, 501)",
        ),
        "docker run --cpus=2",
    ),
    "few CPUs": (
        *({}, {"cpus": frozenset((2, 3))}),
        *("CPUs", WARN, "2 CPUs may be used (2-3) by 4 ranks", "2 ranks"),
    ),
    "more running ranks than CPUs": (
        {f"proc/{pid}/status": "Cpus_allowed_list:\t0-7\n" for pid in range(500, 509)},
        {"running": [RunningRank("0", rank, 500 + rank) for rank in range(9)]},
        "CPUs",
        WARN,
        "8 CPUs may be used (0-7) by 9 running ranks (processes 500, 501, 502, 503, ...): ranks that",
        "8 ranks",
    ),
    "a process in two groups is one rank": (
        {f"proc/{pid}/status": "Cpus_allowed_list:\t0-7\n" for pid in range(500, 505)},
        {"running": [RunningRank(name, pid, 500 + pid) for pid in range(5) for name in "01"]},
        *("CPUs", OK, "8 CPUs may be used (0-7) by 5 running ranks (processes 500, ", ""),
    ),
    "fewer running ranks than CPUs": (
        {"proc/500/status": "Cpus_allowed_list:\t0-7\n"},
        {"running": [RunningRank("0", 0, 500)]},
        *("CPUs", OK, "8 CPUs may be used (0-7) by 4 ranks", ""),
    ),
    "running ranks on few CPUs of many": (
        {f"proc/{pid}/status": "Cpus_allowed_list:\t2-3\n" for pid in (500, 501, 502)},
        {"running": [RunningRank("0", rank, 500 + rank) for rank in range(3)]},
        "CPUs",
        WARN,
        "2 CPUs may be used (2-3) by 3 running ranks (processes 500, 501, 502): ranks that share",
        "2 ranks",
    ),
    "running ranks on CPUs that are not there": (
        {f"proc/{pid}/status": "Cpus_allowed_list:\t0-127\n" for pid in range(500, 509)},
        {"running": [RunningRank("0", rank, 500 + rank) for rank in range(9)]},
        *("CPUs", WARN, "8 CPUs may be used (0-7) by 9 running ranks", "8 ranks"),
    ),
    "running ranks on other CPUs": (
        {f"proc/{pid}/status": "Cpus_allowed_list:\t0-7\n" for pid in range(500, 503)},
        {
            "ranks": 2,
            "cpus": frozenset((0, 1)),
            "running": [RunningRank("0", rank, 500 + rank) for rank in range(3)],
        },
        *("CPUs", OK, "2 CPUs may be used (0-1) by 2 ranks", ""),
    ),
    "bound together": (
        {f"proc/{pid}/status": "Cpus_allowed_list:\t3\n" for pid in (500, 501)},
        {"running": [RunningRank("0", rank, 500 + rank) for rank in range(2)]},
        *("CPUs", WARN, 'ranks 0, 1 of the running group "0" are all bound to CPU 3', "501"),
    ),
    "quiet": (
        *({"proc/loadavg": "0.30 0.20 0.10 1/200 4321\n"}, {}),
        *("load", OK, "other processes use 0.2 of 8 CPUs; load average 0.30", ""),
    ),
    "others take the CPUs": (
        {"proc/loadavg": "18.41 9.20 5.10 9/200 4321\n"},
        {"others": 5.3},
        *("load", WARN, "other processes use 5.3 of 8 CPUs, and 4 ranks need 4", "top"),
    ),
    "others take the CPUs of running ranks": (
        {},
        {"others": 3.1, "running": [RunningRank("0", rank, 500 + rank) for rank in range(6)]},
        *("load", WARN, "use 3.1 of 8 CPUs, and 6 ranks need 6", "top"),
    ),
    "others leave enough CPUs": ({}, {"others": 3.9}, "load", OK, "use 3.9 of 8 CPUs", ""),
    "others take little": (
        *({}, {"others": 0.4, "cpus": frozenset((2, 3))}),
        *("load", OK, "use 0.4 of 2 CPUs", ""),
    ),
    "yama": (
        *({"proc/sys/kernel/yama/ptrace_scope": "1\n"}, {}),
        *("tracing", INFO, "ancestors alone", "sysctl kernel.yama.ptrace_scope=0"),
    ),
    "yama and root": (
        {
            "proc/sys/kernel/yama/ptrace_scope": "1\n",
            "proc/self/status": "CapEff:\t000001ffffffffff\n",
        },
        *({}, "tracing", OK, "can look into ranks", ""),
    ),
    "yama forbids": (
        *({"proc/sys/kernel/yama/ptrace_scope": "3\n"}, {}),
        *("tracing", WARN, "lets nobody trace", "restart"),
    ),
    "seccomp": (
        *({}, {"calls": {"process_vm_readv": "Operation not permitted"}}),
        *("tracing", WARN, "process_vm_readv is refused (Operation not permitted)", "SYS_PTRACE"),
    ),
    "seccomp kills": (
        *({}, {"calls": {"process_vm_readv": "killed"}}),
        *("tracing", FAIL, SCATTER, "SHMCOLL_CMA=off"),
    ),
    "membarrier killed": (
        *({}, {"calls": {"membarrier": "killed"}}),
        *("kernel", FAIL, SCATTER, "SHMCOLL_BIAS=off"),
    ),
    "old kernel": (
        *({"proc/sys/kernel/osrelease": "4.18.0-553\n"}, {}),
        *("kernel", FAIL, "shmcoll needs 5.4", "newer"),
    ),
    "no life words": (
        *({}, {"trial": dataclasses.replace(MET, life_words="no")}),
        *("kernel", WARN, "look at /proc", "set_robust_list"),
    ),
    "few files": (
        *({"proc/self/limits": "Limit\nMax open files            64     64     files\n"}, {}),
        *("limits", WARN, "may open 64 files", "ulimit -n"),
    ),
    "few processes": (
        *({"proc/self/limits": "Limit\nMax processes             20     20     processes\n"}, {}),
        *("limits", FAIL, "may have 20 processes", "ulimit -u"),
    ),
    "few pids": (
        {f"{MEMORY_GROUP}/pids.max": "30\n", f"{MEMORY_GROUP}/pids.current": "10\n"},
        {},
        *("limits", FAIL, "room for 20 processes and threads (/sys/fs/cgroup/job)", "--pids-limit"),
    ),
    "core dumps": (
        *({"proc/sys/kernel/core_pattern": "|/usr/share/apport/apport %p\n"}, {}),
        *("core dumps", INFO, "into a program (|/usr/share/apport/apport)", "ulimit -c 0"),
    ),
    "core dumps in the working directory": (
        {
            "proc/self/limits": LIMITS_WITH_CORE,
            "proc/sys/kernel/core_pattern": "core.%p\n",
        },
        *({}, "core dumps", INFO, "a file (core.%p, in the rank's working directory)", ""),
    ),
    "core dumps in a folder": (
        {
            "proc/self/limits": LIMITS_WITH_CORE,
            "proc/sys/kernel/core_pattern": "/var/cores/core.%p\n",
        },
        *({}, "core dumps", INFO, "a file (/var/cores/core.%p). The", ""),
    ),
    "nodes": ({}, {}, "NUMA", INFO, "2 NUMA nodes", "--numa-binding"),
    "steal": (
        *({"proc/stat": "cpu  100 0 100 700 0 0 0 100 0 0\n"}, {}),
        *("speed", WARN, "other machines took 10% of the CPUs' time", "its own"),
    ),
    "steal meanwhile": (
        {"proc/stat": "cpu  200 0 100 700 0 0 0 1000 0 0\n"},
        {"stat_before": "cpu  100 0 100 700 0 0 0 1000 0 0\n"},
        *("speed", INFO, "steal 0%", ""),
    ),
    "GPU": (GPU, {}, "GPUs", INFO, "driver 570.86.15: 1 NVIDIA H100; torch with CPU", ""),
    "MIG": (
        {**GPU, "proc/driver/nvidia/capabilities/gpu0/mig/gi3/access": ""},
        {"trial": dataclasses.replace(MET, cuda="12.8", nccl="2.27.3")},
        *("GPUs", INFO, "1 NVIDIA H100 in 1 MIG parts; torch with CUDA 12.8, NCCL 2.27.3", ""),
    ),
    "GPU out of reach": (
        *({**GPU, "dev/nvidiactl": None}, {}),
        *("GPUs", WARN, "/dev/nvidiactl is missing", "--gpus all"),
    ),
    "old driver": (
        {**GPU, "proc/driver/nvidia/version": "Kernel Module  470.256.02  May\n"},
        {},
        *("GPUs", WARN, "need driver 525", "newer"),
    ),
    "clock": ({}, {}, "clock", OK, "tsc", ""),
    "slow clock": (
        {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"},
        {},
        *("clock", INFO, "the clock is hpet", ""),
    ),
    "no py-spy": ({}, {"tools": frozenset()}, "tools", WARN, "no stacks", 'pip install "shmcoll['),
    "GPUs that reach each other": (
        *(GPU, {"links": Links(count=2)}),
        *("GPU links", OK, "each of 2 GPUs reads the others' memory", ""),
    ),
    "GPUs apart": (
        *(GPU, {"links": Links(count=3, apart=[(0, 2), (2, 0)])}),
        *("GPU links", WARN, "no access between GPUs 0 and 2: CUDA", "nvidia-smi topo -p2p r"),
    ),
    "GPUs without handles": (
        *(GPU, {"links": Links(count=3, no_handles=[0, 2])}),
        *("GPU links", INFO, "memory of GPU 0,2 is shared by legacy handles", ""),
    ),
    "no GPU in this container": (
        *(GPU, {"links": Links("cuInit gives CUDA_ERROR_NO_DEVICE (100)")}),
        *("GPU links", WARN, "CUDA_ERROR_NO_DEVICE (100). CUDA tensors are refused", "--gpus all"),
    ),
    "no remains": ({}, {}, "remains", OK, "no file of ours", ""),
}


def verdict_of(root: Path, numbers: Numbers, check: str, text: str) -> Verdict:
    found = [one for one in checks.run(root, numbers) if one.check == check and text in one.text]
    assert len(found) == 1, checks.run(root, numbers)
    return found[0]


@pytest.mark.parametrize("name", ROWS)
def test_a_prepared_machine(name: str, tmp_path: Path) -> None:
    files, numbers, check, state, text, fix = ROWS[name]
    root = plant(tmp_path, {**TREE, **files})
    found = verdict_of(root, dataclasses.replace(FIT, **numbers), check, text)
    assert found.state == state and fix in found.fix, found


def test_a_fit_machine_has_no_warning_and_an_empty_one_no_traceback(tmp_path: Path) -> None:
    root = plant(tmp_path / "fit", TREE)
    assert {one.state for one in checks.run(root, FIT)} == {OK, INFO}
    (tmp_path / "empty").mkdir()
    empty = checks.run(tmp_path / "empty", Numbers(2, frozenset((0,))))
    assert {one.check for one in empty} >= {"/dev/shm", "memory", "tools", "NUMA"}


def test_without_core_dumps_there_is_no_line_about_them(tmp_path: Path) -> None:
    assert not [one for one in checks.run(plant(tmp_path, TREE), FIT) if one.check == "core dumps"]


@pytest.mark.parametrize("variables", [{}, {"SHMCOLL_SEGMENT": "named"}])
def test_a_full_shm_names_its_three_largest_files(
    variables: dict[str, str], tmp_path: Path
) -> None:
    root = plant(tmp_path, {**TREE, "proc/7/stat": process(5)})
    names = ("torch_700_389_0", "torch_7_389_0", "data/big", "small", "empty")
    for mib, name in zip((3, 2, 4, 1, 0), names):
        path = root / "dev/shm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(mib << 20))
    (root / "dev/shm/link").symlink_to(root / "dev/shm/data/big")
    full = dataclasses.replace(FIT, shm_free=1 << 20, variables=variables)
    found = verdict_of(root, full, "/dev/shm", "largest files")
    sizes = [checks.size((root / "dev/shm" / one).stat().st_blocks * 512) for one in names]
    assert found.state == INFO and found.text == (
        f"the largest files: /dev/shm/data/big ({sizes[2]}), /dev/shm/torch_700_389_0 "
        f"({sizes[0]}; no process 700 here), /dev/shm/torch_7_389_0 ({sizes[1]})"
    )
    # What is wrong with /dev/shm there is not its size.
    read_only = {"proc/self/mountinfo": SHM_MOUNT.replace("rw,nosuid", "ro")}
    for other, numbers in ((read_only, full), ({}, FIT)):
        said = checks.run(plant(root, {**TREE, **other}), numbers)
        assert not [one for one in said if "largest" in one.text], said


def test_the_name_of_a_file_is_printed_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    root = plant(tmp_path, {**TREE, "dev/shm/\x1b[2J\n\udcff": "text" * 2000})
    full = dataclasses.replace(FIT, shm_free=1 << 20)
    said = verdict_of(root, full, "/dev/shm", "the largest files: /dev/shm/?[2J?")
    assert said.text.isprintable() and said.text.encode(), said


def test_a_full_shm_without_files_names_none(tmp_path: Path) -> None:
    said = checks.run(plant(tmp_path, TREE), dataclasses.replace(FIT, shm_free=1 << 20))
    assert not [one for one in said if "largest" in one.text], said


def segment(pid: int, started: int, namespace: int) -> bytes:
    header = (0x006C6C6F636D6873).to_bytes(8, "little").ljust(4096, b"\0")
    return header + b"".join(
        (pid.to_bytes(8, "little"), started.to_bytes(8, "little"), namespace.to_bytes(8, "little"))
    )


@pytest.mark.parametrize(
    ("what", "state", "text"),
    [
        (segment(700, 5, NAMESPACE), WARN, "1 file in /dev/shm whose creator is dead (4.02 KiB)"),
        (segment(7, 6, NAMESPACE), WARN, "whose creator is dead"),  # the number was given again
        (segment(8, 5, NAMESPACE), WARN, "whose creator is dead"),  # a zombie
        (segment(7, 5, NAMESPACE), None, ""),
        (segment(700, 5, 1), INFO, "made by another container or user"),
        (b"cut off", WARN, "whose creator is dead"),
    ],
)
def test_what_a_job_has_left(tmp_path: Path, what: bytes, state: str | None, text: str) -> None:
    processes = {"proc/7/stat": process(5), "proc/8/stat": process(5, "Z")}
    root = plant(tmp_path, {**TREE, **processes})
    (root / "dev/shm").mkdir(parents=True)
    (root / "dev/shm" / NAME).write_bytes(what)
    (root / "dev/shm" / "shmcoll-other").write_bytes(what)  # not a name of ours
    found = [one for one in checks.run(root, FIT) if one.check == "remains"]
    if state is None:
        assert found == []
        return
    assert [one.state for one in found] == [state] and text in found[0].text, found
    if state == WARN:
        assert found[0].fix == f"rm /dev/shm/{NAME}"
    assert (root / "dev/shm" / NAME).exists()


def test_what_has_a_name_of_ours_and_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    root = plant(tmp_path, TREE)
    (root / "dev/shm").mkdir(parents=True)
    os.mkfifo(root / "dev/shm" / NAME)
    (root / "dev/shm" / f"{NAME[:-1]}a").symlink_to(NAME)
    assert [one.state for one in machine.remains(root)] == ["elsewhere", "elsewhere"]


def test_a_file_that_a_process_has_open_is_no_remain(tmp_path: Path) -> None:
    root = plant(tmp_path, {**TREE, f"dev/shm/{NAME}": "cut off"})
    (root / "proc/9/fd").mkdir(parents=True)
    (root / "proc/9/fd/4").symlink_to(f"/dev/shm/{NAME}")
    assert [one.state for one in machine.remains(root)] == ["alive"]


def used(*ticks: int) -> str:
    """The text of /proc/stat whose CPU n has been busy so long, of 100 ticks each."""
    lines = ["cpu  1 1 1 1 1 1 1 1 0 0"]
    lines += [f"cpu{cpu} {n} 0 0 {100 - n} 0 0 0 0 7 0" for cpu, n in enumerate(ticks)]
    return "\n".join([*lines, "intr 5 5"])


def worked(ticks: int) -> str:
    """The text of /proc/PID/stat of a process that has run so long."""
    words = process(5).split()
    return " ".join([*words[:14], str(ticks - 2), "2", *words[16:]])


IDLE = "cpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n"


@pytest.mark.parametrize(
    ("cpus", "after", "others"),
    [
        ((0, 1), {"proc/stat": used(100, 80), "proc/500/stat": worked(52)}, 1.3),
        ((0, 1), {"proc/stat": used(100, 80)}, 1.8),  # the rank slept
        ((1,), {"proc/stat": used(100, 80)}, 0.8),
        ((0, 1), {"proc/stat": used(30, 0), "proc/500/stat": worked(90)}, 0.0),
        ((0, 1), {"proc/stat": used(100, 80), "proc/500/stat": None}, 1.8),  # it has ended
        ((0, 1), {}, None),  # no tick has passed
        ((0, 1), {"proc/stat": None}, None),
        ((4,), {"proc/stat": used(100, 80)}, None),  # a CPU of which it says nothing
    ],
)
def test_what_other_processes_use_is_what_the_running_ranks_do_not(
    cpus: tuple[int, ...], after: Files, others: float | None, tmp_path: Path
) -> None:
    root = plant(tmp_path, {"proc/stat": IDLE, "proc/500/stat": worked(2)})
    found = load.of_others(root, cpus, [500, 501], lambda: plant(root, after))
    assert found == (others if others is None else pytest.approx(others))


def test_the_load_of_this_machine_is_measured_in_a_moment() -> None:
    cpus = os.sched_getaffinity(0)
    found = load.of_others(Path("/"), cpus, [os.getpid()])
    assert found is None or 0 <= found <= len(cpus)
    assert load.SAMPLE_S <= 0.2


# ---- the driver ----

DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuDeviceGetCount(int *count) { if (HANG) for (;;) ; *count = 3; return 0; }
int cuDeviceGetAttribute(int *value, int what, int device) { *value = what == 103 && device != 1; return 0; }
int cuDeviceCanAccessPeer(int *can, int one, int other) { *can = one + other != 2; return 0; }
"""


@pytest.mark.parametrize(
    ("options", "links"),
    [
        ({}, Links("", 3, [(0, 2), (2, 0)], [1])),
        ({"INIT": 100}, Links("cuInit gives CUDA_ERROR_NO_DEVICE (100)")),
        ({"INIT": "*(volatile int *)0"}, Links("it ended the process that asked it (-11)")),
        ({"HANG": 1}, Links("it does not answer within 3 s")),
    ],
    ids=["fine", "refused", "crash", "hang"],
)
def test_a_driver_is_asked_in_a_process_of_its_own(
    options: dict[str, object], links: Links, tmp_path: Path
) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    words = [f"-D{name}={value}" for name, value in {"INIT": 0, "HANG": 0, **options}.items()]
    command = ["cc", "-shared", "-fPIC", *words, "-o", library, tmp_path / "driver.c"]
    subprocess.run(command, check=True)
    assert gpu_links.ask(str(library), limit_s=3.0 if "HANG" in options else 60.0) == links


def test_a_machine_without_a_driver() -> None:
    assert "libno-such-driver.so.1: cannot open" in gpu_links.ask("libno-such-driver.so.1").error


# ---- this machine ----


def tool(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmcoll", *words]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_two_ranks_meet_on_this_machine() -> None:
    done = tool("doctor", "--json", "-g", "2")
    assert done.stderr == "", done.stderr
    said = json.loads(done.stdout)
    found = {one["check"]: one for one in said["checks"]}
    assert found["torch"]["state"] == "ok" and "2 ranks met in" in found["torch"]["text"], found
    assert found["registered"]["state"] == "ok", found["registered"]
    assert said["schema"] == 1 and said["ranks"] == 2
    assert "isa=" in said["facts"]["build_info"] and said["facts"]["kernel"]
    assert done.returncode == (1 if said["state"] == "failure" else 0)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "has no torch"),
        ("raise OSError('libgomp.so.1: cannot open')", "import torch fails: OSError: libgomp.so.1"),
        ("import os; os.abort()", "import torch ended with -6"),
        ("import time; time.sleep(100)", "import torch took more than 0.5 s"),
    ],
)
def test_a_torch_that_is_broken(
    source: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(source + "\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = trial.attempt(0.5 if "sleep" in source else 60)
    assert text in found.failure and found.torch == "", found


def test_a_call_of_the_kernel_that_is_refused_or_kills() -> None:
    def refused(_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    def kills(_: object) -> int:
        os.kill(os.getpid(), signal.SIGSYS)
        return 0

    assert doctor._tried(refused) == "Operation not permitted"
    assert doctor._tried(kills) == "killed"
    assert set(doctor.kernel_calls()) == {"process_vm_readv", "membarrier"}


def test_the_text_fits_the_terminal_and_a_failure_is_the_exit_code() -> None:
    for columns in (80, 200):
        done = tool("doctor", "--no-torch", "-g", "256", COLUMNS=str(columns))
        assert done.stderr == "" and "Traceback" not in done.stdout
        lines = [line for line in done.stdout.splitlines() if "-> " not in line]
        assert max(map(len, lines)) <= columns, done.stdout
        assert done.returncode == ("FAIL" in done.stdout)
    assert tool("doctor", "-g", "0").returncode == 64


def test_a_failure_is_counted(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    bad = Verdict("memory", FAIL, "a long text " * 30, "a command that is not broken")
    monkeypatch.setattr(doctor, "run", lambda *_: [bad, Verdict("clock", WARN, "w", "f")])
    monkeypatch.setattr(doctor, "_width", lambda: 60)
    assert doctor.main(["--no-torch", "--paste"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert "                  -> a command that is not broken" in said
    assert "1 failure, 1 warning" in said and said[-1] == "```"
    assert "warn  clock       w" + " " * 40 + "f" in said, said


@pytest.mark.parametrize("words", ["doctor --no-torch", "topo", "stacks 1"])
def test_the_tools_load_neither_torch_nor_the_library(words: str) -> None:
    done = run_and_look_at_modules(*words.split())
    assert done.returncode == 0, done.stderr
