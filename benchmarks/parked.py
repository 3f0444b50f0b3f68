# SPDX-License-Identifier: BSD-3-Clause
"""What a waiting rank costs, and how soon it is told of a death.

    python benchmarks/parked.py [--nproc 2 8] [--seconds 5] [--kills 20] [--threads] [--json out.json]

Rank 0 does not come, and the others wait for it in an all_reduce or a receive. The parent counts how
often the waiting ranks' threads gave up a CPU, and for how long they had one (/proc/<pid>/task).
Then it kills rank 0, and each rank notes when its call failed. Times of a kill are those of the last
rank to be told.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

OPERATIONS = ("all_reduce", "recv")
SETTLE_S = 2.0  # the first looks of a wait are closer together
LIMIT_S = 120


def be_a_rank(rank: int, world: int, path: str, operation: str) -> None:
    """Writes a line when it waits, and one with the time when its call fails."""
    limit = datetime.timedelta(seconds=LIMIT_S)
    store = dist.FileStore(path, world)
    dist.init_process_group("shmcoll", store=store, rank=rank, world_size=world, timeout=limit)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    print("waits", flush=True)
    if rank == 0:
        time.sleep(LIMIT_S)
    try:
        if operation == "recv":
            dist.recv(tensor, 0)
        else:
            dist.all_reduce(tensor)
    except dist.DistBackendError:
        print(time.monotonic(), flush=True)
    os._exit(0)


class Job:
    """Ranks that wait for rank 0. Each is a program of its own: the pages of a forked one are copied when it
    first writes to them, and an error that is raised writes to many."""

    def __init__(self, world: int, operation: str) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="shmcoll-parked-")
        path = str(pathlib.Path(self.directory.name) / "store")
        how = [sys.executable, __file__, "--nproc", str(world), "--rank"]
        self.ranks = [
            subprocess.Popen([*how, str(rank), path, operation], stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        for rank in range(world):
            self._line(rank)

    def _line(self, rank: int) -> str:
        out = self.ranks[rank].stdout
        line = out.readline() if out else ""
        if not line:
            self.end()
            raise SystemExit(f"rank {rank} of {len(self.ranks)} ended before its time")
        return line

    def waiting(self) -> list[int]:
        """Their pids."""
        return [rank.pid for rank in self.ranks[1:]]

    def kill_first(self) -> float:
        """Returns the milliseconds until the last of the others was told."""
        killed = time.monotonic()
        self.ranks[0].kill()
        told = [float(self._line(rank)) for rank in range(1, len(self.ranks))]
        return 1e3 * (max(told) - killed)

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            if rank.stdout:
                rank.stdout.close()
        self.directory.cleanup()


def use(pid: int) -> dict[str, tuple[int, int]]:
    """For each kind of thread: how often it gave up a CPU, and for how many ns it had one."""
    found: dict[str, tuple[int, int]] = collections.defaultdict(lambda: (0, 0))
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        status = (task / "status").read_text()
        switches = sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_sw" in line)
        ran_ns = int((task / "schedstat").read_text().split()[0])
        found[name] = (found[name][0] + switches, found[name][1] + ran_ns)
    return found


def parked(world: int, operation: str, seconds: float) -> dict[str, object]:
    """The mean of the waiting ranks."""
    job = Job(world, operation)
    time.sleep(SETTLE_S)
    before = [use(pid) for pid in job.waiting()]
    time.sleep(seconds)
    after = [use(pid) for pid in job.waiting()]
    job.end()
    threads: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for old, new in zip(before, after):
        for name, (switches, ran_ns) in new.items():
            threads[name][0] += (switches - old[name][0]) / seconds / (world - 1)
            threads[name][1] += 100 * (ran_ns - old[name][1]) / 1e9 / seconds / (world - 1)
    return {
        "wakeups_a_second": sum(switches for switches, _ in threads.values()),
        "percent_of_a_cpu": sum(percent for _, percent in threads.values()),
        "threads": {name: numbers for name, numbers in threads.items() if numbers[0] > 0},
    }


def told_ms(world: int, operation: str, kills: int) -> list[float]:
    """How long it took until the last rank was told, for each kill."""
    took = []
    for _ in range(kills):
        job = Job(world, operation)
        time.sleep(random.uniform(0.1, 0.6))
        took.append(job.kill_first())
        job.end()
    return took


def measure(world: int, operation: str, options: argparse.Namespace) -> dict[str, object]:
    found = parked(world, operation, options.seconds)
    took = sorted(told_ms(world, operation, options.kills))
    if took:
        found["told_ms"] = {
            "median": statistics.median(took),
            "p99": took[int(0.99 * (len(took) - 1) + 0.5)],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--nproc", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--threads", action="store_true", help="which threads woke up")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank, path, operation = options.rank
        be_a_rank(int(rank), options.nproc[0], path, operation)
    results = {}
    for world in options.nproc:
        for operation in OPERATIONS:
            found = results[f"{operation}.{world}"] = measure(world, operation, options)
            line = f"{operation:10} {world} ranks: {found['wakeups_a_second']:.1f} wake-ups/s, "
            line += f"{found['percent_of_a_cpu']:.4f} % of a CPU"
            if "told_ms" in found:
                line += ", told after {median:.2f} ms (p99 {p99:.2f})".format(**found["told_ms"])
            print(line, flush=True)
            if options.threads:
                print("   ", found["threads"], flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
