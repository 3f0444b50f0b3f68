# SPDX-License-Identifier: BSD-3-Clause
"""Folders that stand for ``/``, for the tools that read /proc and /sys."""

from __future__ import annotations

from pathlib import Path

CPU = "sys/devices/system/cpu"
SHM_MOUNT = "36 25 0:30 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1g"
NAMESPACE = 4026531836

# A machine on which nothing is wrong: 8 CPUs, two nodes, SMT.
TREE: dict[str, str] = {
    "proc/self/status": "NSpid:\t100\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-7\n",
    "proc/self/mountinfo": SHM_MOUNT + "\n",
    "proc/self/cgroup": "0::/job\n",
    "proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max core file size        0                    unlimited            bytes     \n"
    "Max processes             96365                96365                processes \n"
    "Max open files            1024                 20000                files     \n",
    "proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable:   16777216 kB\n",
    "proc/stat": "cpu  100 0 100 800 0 0 0 10 0 0\n",
    "proc/sys/kernel/osrelease": "6.1.0-28-amd64\n",
    "proc/sys/kernel/core_pattern": "core\n",
    "proc/cpuinfo": "model name\t: Test CPU\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
    "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       16777216 kB\n",
    f"{CPU}/online": "0-7\n",
    **{f"{CPU}/cpu{n}/topology/physical_package_id": "0\n" for n in range(8)},
    **{f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}\n" for n in range(8)},
    **{f"{CPU}/cpu{n}/cache/index2/level": "2\n" for n in range(8)},
    **{f"{CPU}/cpu{n}/cache/index2/type": "Unified\n" for n in range(8)},
    **{f"{CPU}/cpu{n}/cache/index2/size": "1024K\n" for n in range(8)},
    **{f"{CPU}/cpu{n}/cache/index2/shared_cpu_list": f"{n % 4},{n % 4 + 4}\n" for n in range(8)},
    **{f"{CPU}/cpu{n}/cache/index3/level": "3\n" for n in range(8)},
    **{f"{CPU}/cpu{n}/cache/index3/type": "Unified\n" for n in range(8)},
    **{f"{CPU}/cpu{n}/cache/index3/size": "32768K\n" for n in range(8)},
    **{
        f"{CPU}/cpu{n}/cache/index3/shared_cpu_list": "0-1,4-5\n" if n % 4 < 2 else "2-3,6-7\n"
        for n in range(8)
    },
}
GPU = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan\n",
    "proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: \t\t NVIDIA H100\nDevice Minor: \t 0\n",
    "sys/bus/pci/devices/0000:17:00.0/numa_node": "1\n",
    "sys/bus/pci/devices/0000:17:00.0/local_cpulist": "2-3,6-7\n",
    "dev/nvidiactl": "",
}


def plant(root: Path, files: dict[str, str | None]) -> Path:
    for name, text in files.items():
        path = root / name
        if text is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "proc/self/ns").mkdir(parents=True, exist_ok=True)
    link = root / "proc/self/ns/pid"
    if not link.is_symlink():  # a tree may be planted in steps
        link.symlink_to(f"pid:[{NAMESPACE}]")
    return root


def process(started: int, state: str = "S") -> str:
    return f"7 (a) b) {state} " + " ".join(["0"] * 18) + f" {started} " + "0 " * 16 + "5 0\n"
