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
import mmap
import os
import pathlib
import random
import signal
import statistics
import struct
import tempfile
import time

import torch
import torch.distributed as dist

OPERATIONS = ("all_reduce", "recv")
SETTLE_S = 2.0  # the first looks of a wait are closer together
WAITING, TOLD = 0, 1  # of the words of a rank

stores = tempfile.TemporaryDirectory(prefix="shmcoll-parked-")


class Board:
    """Numbers that a rank writes and the parent reads."""

    def __init__(self, ranks: int) -> None:
        self.memory = mmap.mmap(-1, 16 * ranks)

    def put(self, rank: int, word: int, value: float) -> None:
        struct.pack_into("d", self.memory, 16 * rank + 8 * word, value)

    def get(self, rank: int, word: int) -> float:
        return float(struct.unpack_from("d", self.memory, 16 * rank + 8 * word)[0])


def wait_for_rank_0(board: Board, rank: int, operation: str) -> None:
    tensor = torch.ones(2)
    board.put(rank, WAITING, time.monotonic())
    try:
        if operation == "recv":
            dist.recv(tensor, 0)
        else:
            dist.all_reduce(tensor)
    except (RuntimeError, dist.DistBackendError):
        board.put(rank, TOLD, time.monotonic())


def body(board: Board, rank: int, world: int, path: str, operation: str) -> None:
    limit = datetime.timedelta(seconds=120)
    store = dist.FileStore(path, world)
    dist.init_process_group("shmcoll", store=store, rank=rank, world_size=world, timeout=limit)
    dist.all_reduce(torch.ones(2))
    if rank == 0:
        board.put(rank, WAITING, time.monotonic())
        time.sleep(limit.seconds)
    wait_for_rank_0(board, rank, operation)


def start(board: Board, world: int, operation: str) -> list[int]:
    """Returns the ranks' pids once all of them wait."""
    path = tempfile.mktemp(dir=stores.name)
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            body(board, rank, world, path, operation)
            os._exit(0)
        pids.append(pid)
    while not all(board.get(rank, WAITING) for rank in range(world)):
        time.sleep(0.01)
    return pids


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


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
    pids = start(Board(world), world, operation)
    time.sleep(SETTLE_S)
    before = [use(pid) for pid in pids[1:]]
    time.sleep(seconds)
    after = [use(pid) for pid in pids[1:]]
    kill(pids)
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
        board = Board(world)
        pids = start(board, world, operation)
        time.sleep(random.uniform(0.1, 0.6))
        killed = time.monotonic()
        kill(pids[:1])
        for pid in pids[1:]:
            os.waitpid(pid, 0)
        took.append(1e3 * (max(board.get(rank, TOLD) for rank in range(1, world)) - killed))
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
    options = parser.parse_args()
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
