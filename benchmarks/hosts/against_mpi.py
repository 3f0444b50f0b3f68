# SPDX-License-Identifier: BSD-3-Clause
"""all_reduce over several hosts compared with Open MPI's tuned and HAN, over the same links, in turns.

    python benchmarks/hosts/against_mpi.py [--layout 2x2] [--rate 1gbit] [-b 1m] [-e 64m] [-f 4] [--turns 3]
                                           [--json FILE]

The hosts are those of tests/hosts/hosts.py, on this machine: needs root, and openmpi-bin and libopenmpi-dev.
Sums of float32. In every turn each of the three runs as a job of its own, one after the other, and another one
begins the next turn. A round takes as long as its slowest rank; `ratio` is the median of the better of tuned and
HAN over that of shmcoll, over the rounds of all turns. Results are checked.

MPI uses TCP between hosts and shared memory inside. Its ranks yield while they wait, because all hosts share the
CPUs of this machine. The goal holds for 2 hosts of 2 ranks whose links carry 1 Gbit/s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import against_gloo as gloo
import noise
import torch
import torch.distributed as dist
from hosts import Hosts, missing
from job import Job, Rank

SCHEMA = "shmcoll.hosts-mpi/1"
SIDES = ("tuned", "han", "shmcoll")
ROUND_S = 0.2
LIMIT_S = 300.0
GOAL = 1.5

Times = dict[int, list[float]]  # seconds of a call by bytes


# ---- Open MPI ----


def absent() -> str:
    """Why this machine has no Open MPI, or ""."""
    if not (shutil.which("mpirun") and shutil.which("mpicc")):
        return "no Open MPI here: apt-get install openmpi-bin libopenmpi-dev"
    return "" if "Open MPI" in version() else "mpirun is that of another MPI"


def version() -> str:
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True)
    return said.stdout.partition("\n")[0].removeprefix("mpirun ").replace("(", "").replace(")", "")


def compiled(folder: Path) -> Path:
    source = Path(__file__).with_name("mpi_sums.c")
    program = folder / "mpi_sums"
    subprocess.run(["mpicc", "-O2", str(source), "-o", str(program)], check=True)
    return program


def command(hosts: Hosts, layout: list[int], side: str, folder: Path) -> list[str]:
    """mpirun's. Instead of ssh it writes what is to be run to the file of that host."""
    slots = [f"{hosts.address(host)} slots={layout.count(host)}\n" for host in sorted(set(layout))]
    (folder / "hostfile").write_text("".join(slots))
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\nhost=$1; shift; echo "$*" > {folder}/$host\n')
    agent.chmod(0o755)
    settings = {
        "plm_rsh_agent": str(agent),
        "pml": "ob1",
        "btl": "tcp,vader,self",
        "btl_tcp_if_include": "eth0",
        "oob_tcp_if_include": "eth0",
        "coll_han_priority": "100" if side == "han" else "0",
        "mpi_yield_when_idle": "1",
    }
    words = ["mpirun", "--allow-run-as-root", "-np", str(len(layout))]
    words += ["--hostfile", str(folder / "hostfile"), "--map-by", "slot", "--bind-to", "none"]
    return words + [word for key, value in settings.items() for word in ("--mca", key, value)]


def mpi(
    layout: list[int], rate: str | None, side: str, sizes: list[int], rounds: int
) -> tuple[Times, float]:
    """Times, and CPU seconds of all ranks."""
    with tempfile.TemporaryDirectory() as name, Hosts(max(layout) + 1, rate=rate) as hosts:
        folder = Path(name)
        for host in range(1, max(layout) + 1):
            os.mkfifo(folder / hosts.address(host))
            hosts.run(host, ["sh", str(folder / hosts.address(host))])
        program = [str(compiled(folder)), str(rounds), str(ROUND_S), *map(str, sizes)]
        run = hosts.run(0, [*command(hosts, layout, side, folder), *program])
        if run.wait(LIMIT_S) != 0:
            raise RuntimeError(f"mpirun failed:\n{run.output()}")
        rows = [json.loads(line) for line in run.output().splitlines() if line.startswith("{")]
    cpu_s = rows.pop()["cpu_s"]
    if wrong := {row["bytes"] for row in rows if row["wrong"]}:
        raise RuntimeError(f"{side}: wrong results of {wrong} bytes")
    return {size: [row["s"] for row in rows if row["bytes"] == size] for size in sizes}, cpu_s


# ---- shmcoll ----


def sums(rank: Rank, sizes: list[int], rounds: int) -> dict[str, Any]:
    """Seconds of a call, by bytes and round."""
    rank.init("shmcoll", timeout_s=LIMIT_S)
    took: Times = {}
    for size in sizes:
        t = torch.full((size // 4,), float(rank.rank + 1))
        dist.all_reduce(t)
        assert bool((t == rank.world * (rank.world + 1) / 2).all()), "wrong result"
        t.zero_()
        one_s = torch.tensor([timed(t, 2)])
        dist.all_reduce(one_s, dist.ReduceOp.MAX)
        calls = max(1, int(ROUND_S / one_s.item()))
        took[size] = [timed(t, calls) for _ in range(rounds)]
    return {"took": took, "cpu_s": time.process_time()}


def timed(t: torch.Tensor, calls: int) -> float:
    dist.barrier()
    begun = time.monotonic()
    for _ in range(calls):
        dist.all_reduce(t)
    return (time.monotonic() - begun) / calls


def shmcoll(
    layout: list[int], rate: str | None, sizes: list[int], rounds: int
) -> tuple[Times, float]:
    with Hosts(max(layout) + 1, rate=rate, shm_mb=1024) as hosts:
        said = Job(hosts, layout).run(sums, sizes, rounds, limit_s=LIMIT_S)
    took = {
        size: [max(times) for times in zip(*(one["took"][size] for one in said))] for size in sizes
    }
    return took, sum(one["cpu_s"] for one in said)


# ---- both ----


def row_of(size: int, took: dict[str, list[float]]) -> dict[str, Any]:
    best = min("tuned", "han", key=lambda side: median(took[side]))
    ratio = median(took[best]) / median(took["shmcoll"])
    noisy = any(noise.disagree(took[side]) for side in (best, "shmcoll"))
    return {"op": "all_reduce", "bytes": size, "ratio": ratio, "noisy": noisy, **took}


def judged(row: dict[str, Any], busy: bool) -> str:
    """Ranks of MPI spin, so a busy machine slows them more than those of shmcoll: then nothing is met, either."""
    if busy or row["noisy"]:
        return "in doubt"
    return "met" if row["ratio"] >= GOAL else "missed"


def line_of(row: dict[str, Any], verdict: str) -> str:
    text = f"{row['op']:>12} {row['bytes']:>9}"
    for side in SIDES:
        text += f" {median(row[side]) * 1e6:>10.0f}"
    text += f" {row['ratio']:>7.2f}{noise.MARK if row['noisy'] else ' '}"
    return text + (f"  {GOAL:g}  {verdict}" if verdict else "")


def measure(
    layout: list[int], rate: str | None, sizes: list[int], turns: int, rounds: int
) -> tuple[list[dict[str, Any]], float]:
    """Rows, and the CPU seconds of all ranks."""
    took: dict[str, Times] = {side: {size: [] for size in sizes} for side in SIDES}
    own_s = 0.0
    for turn in range(turns):
        for number in range(len(SIDES)):
            side = SIDES[(turn + number) % len(SIDES)]
            if side == "shmcoll":
                one, cpu_s = shmcoll(layout, rate, sizes, rounds)
            else:
                one, cpu_s = mpi(layout, rate, side, sizes, rounds)
            own_s += cpu_s
            for size in sizes:
                took[side][size] += one[size]
    return [row_of(size, {side: took[side][size] for side in SIDES}) for size in sizes], own_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layout", type=gloo.layout_of, default="2x2", help="2x2, 3+1, ...")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc has it, or none")
    parser.add_argument("-b", "--min", type=gloo.bytes_of, default="1m")
    parser.add_argument("-e", "--max", type=gloo.bytes_of, default="64m")
    parser.add_argument("-f", "--factor", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="of each size in a turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every round of every row")
    args = parser.parse_args()
    if why := missing() or absent():
        print(why, file=sys.stderr)
        return 2
    sizes = [args.min]
    while sizes[-1] * args.factor <= args.max:
        sizes.append(sizes[-1] * args.factor)
    rate = None if args.rate == "none" else args.rate
    seen: list[noise.Activity] = []
    own_s = [0.0]
    with noise.Watch(lambda: own_s[0], os.sched_getaffinity(0)).over(seen.append):
        rows, own_s[0] = measure(args.layout, rate, sizes, args.turns, args.rounds)
    goal = args.layout == [0, 0, 1, 1] and rate == "1gbit"
    print(
        f"{'operation':>12} {'bytes':>9} {'tuned us':>10} {'HAN us':>10} {'shmcoll us':>10}   ratio"
    )
    for row in rows:
        print(line_of(row, judged(row, seen[0].busy) if goal else ""))
    print(f"# {noise.words(seen[0])}")
    if args.json:
        head = {"schema": SCHEMA, "layout": args.layout, "rate": args.rate}
        head["date"] = time.strftime("%Y-%m-%d", time.gmtime())
        head["mpi"] = version()
        activity = {"said": noise.words(seen[0]), "activity": asdict(seen[0])}
        args.json.write_text(json.dumps({**head, **activity, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
