# SPDX-License-Identifier: BSD-3-Clause
"""Measures the constants of benchmarks/hosts/model.py on this machine, and prints them.

    python benchmarks/hosts/calibrate.py

The hosts are those of tests/hosts/hosts.py: needs root, takes a minute. What CPUs do is measured by CPU time, and
waits by the fastest tenth of all calls, so that other processes change them less.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests/hosts", "tests/support"):
    sys.path.insert(0, str(ROOT / folder))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from hosts import Hosts, missing  # noqa: E402
from job import Job, Rank  # noqa: E402

LIMIT_S = 300.0
MIB = 1 << 20
BYTES = 48 * MIB  # above what malloc keeps: each tensor of this size has new pages
LONG, CROWDED = 16 * MIB, 4 * MIB
RATE, RATE_NAME = 125e6, "1gbit"
PAYLOAD = 1448 / 1514


def timed(call: Callable[[], Any], rounds: int) -> float:
    """Seconds of a call: the fastest tenth."""
    took = []
    for _ in range(rounds):
        begun = time.monotonic()
        call()
        took.append(time.monotonic() - begun)
    return sorted(took)[rounds // 10]


def cpu_s(call: Callable[[], Any], rounds: int) -> float:
    """CPU seconds of a call in this thread, the median."""
    took = []
    for _ in range(rounds):
        begun = time.thread_time()
        call()
        took.append(time.thread_time() - begun)
    return median(took)


def memory(rank: Rank) -> dict[str, float]:
    """Bytes per second of a CPU while another one does the same."""
    a, b, out = (torch.ones(BYTES // 4) for _ in range(3))
    calls: dict[str, Callable[[], Any]] = {
        "copy": lambda: out.copy_(a),
        "add": lambda: torch.add(a, b, out=out),
        "clone": lambda: a.clone(),
    }
    found = {name: BYTES / cpu_s(call, 30) for name, call in calls.items()}
    kept = [torch.ones(BYTES // 4) for _ in range(9)]
    return {**found, "free": BYTES / cpu_s(kept.pop, 9)}


def one_way(rank: Rank, rounds: int) -> float:
    """Seconds of a long broadcast. (A long exchange on one connection takes longer, both ways together.)"""
    rank.init("gloo")
    t = torch.zeros(LONG, dtype=torch.uint8)
    dist.broadcast(t, 0)
    return timed(lambda: dist.broadcast(t, 0), rounds)


def ping_pong(rank: Rank, rounds: int) -> float:
    """Seconds one way."""
    rank.init("gloo")
    t, other = torch.zeros(64, dtype=torch.uint8), 1 - rank.rank

    def there_and_back() -> None:
        for turn in (0, 1):
            dist.send(t, other) if turn == rank.rank else dist.recv(t, other)

    return timed(there_and_back, rounds) / 2


def exchange(rank: Rank, block: int, rounds: int) -> tuple[float, float]:
    """Seconds of an all_to_all, and CPU seconds."""
    rank.init("gloo")
    t = torch.zeros(rank.world * block, dtype=torch.uint8)
    out = torch.zeros_like(t)
    dist.all_to_all_single(out, t)
    begun = time.process_time()
    took = timed(lambda: dist.all_to_all_single(out, t), rounds)
    return took, (time.process_time() - begun) / rounds


def long_exchanges(rank: Rank, rounds: int) -> list[float]:
    """Seconds of each all_to_all whose blocks are long."""
    rank.init("gloo")
    t = torch.zeros(rank.world * CROWDED // 4)
    out = torch.zeros_like(t)
    dist.all_to_all_single(out, t)
    took = []
    for _ in range(rounds):
        dist.barrier()
        begun = time.monotonic()
        dist.all_to_all_single(out, t)
        took.append(time.monotonic() - begun)
    return took


def short_sum(rank: Rank, rounds: int) -> float:
    """Seconds of a short all_reduce of an island."""
    rank.init("shmcoll")
    t = torch.zeros(16)
    return timed(lambda: dist.all_reduce(t), rounds)


def job(count: int, rate: str | None, layout: list[int], body: Any, *arguments: Any) -> list[Any]:
    with Hosts(count, rate=rate) as hosts:
        return Job(hosts, layout).run(body, *arguments, limit_s=LIMIT_S)


def links() -> dict[str, float]:
    sent = job(2, RATE_NAME, [0, 1], one_way, 10)
    few = job(2, None, [0, 1], exchange, 64, 3000)
    many = job(8, None, list(range(8)), exchange, 64, 1000)
    long = job(2, RATE_NAME, [0, 0, 1, 1], exchange, 4 * MIB, 6)
    crowded = zip(*job(2, RATE_NAME, [0, 0, 0, 1, 1, 1], long_exchanges, 15))
    return {
        "payload": LONG / max(sent) / RATE,
        "crowd": 9 * CROWDED / median(map(max, crowded)) / (RATE * PAYLOAD),
        "wire": median(cpu for _, cpu in long) / (3 * 4 * MIB),
        "hop": max(job(2, None, [0, 1], ping_pong, 3000)),
        "call": max(took for took, _ in few),
        "message": (median(cpu for _, cpu in many) - few[0][1]) / 6,
        "island": max(job(1, None, [0, 0], short_sum, 5000)),
    }


def main() -> int:
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    found = {**job(1, None, [0, 0], memory)[0], **links()}
    print(
        f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs, torch {torch.__version__}"
    )
    for name in ("payload", "crowd", "call", "hop", "message", "island"):
        share = name in ("payload", "crowd")
        unit = "of the link" if share else "us"
        value = found[name] * (1 if share else 1e6)
        print(f"{name:>8} {value:8.3f} {unit}")
    print(f"{'wire':>8} {found['wire'] * 1e9:8.3f} ns of CPU for a byte out and a byte in")
    for name in ("copy", "clone", "free", "add"):
        print(f"{name:>8} {found[name] / 1e9:8.3f} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
