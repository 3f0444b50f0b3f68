# SPDX-License-Identifier: BSD-3-Clause
"""Does SHMCOLL_THREADS=auto lose to 0 anywhere? Steps of compute, all_reduce and a read of the result.

    python benchmarks/reduction_threads.py [--ranks 2,4] [--turns 7] [--sizes 64K,1M,16M,64M] [--json out.json]

Four scenes, in each of which the two settings take turns, each time in new processes:

    idle      torch computes with one thread in each rank, so that other CPUs are free
    busy      torch has as many threads in all ranks together as there are CPUs
    pinned    the same, and each rank may use its part of the CPUs alone
    siblings  each rank has whole cores, and torch one thread for each core; only where cores have two threads

A row has the median time of a step with 0 over that with auto, over the turns, and how many turns auto
lost. It is a loss if the ratio is below 0.97 and auto is slower in nine turns of ten. With few CPUs auto takes no
threads: that row compares nothing, and says so.

exit code: 0; 1 if auto loses a row; 3 if it takes threads in none
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

SETTINGS = ("0", "auto")
WIDTH = 256  # of the matrices that a step multiplies
LOSS, MOST = 0.97, 0.9
LIMIT_S = 300
UNITS = {"K": 10, "M": 20, "G": 30}


@dataclass
class Scene:
    name: str
    cpus: list[list[int]]  # that each rank may use
    threads: int  # of torch, in each rank


@dataclass
class Row:
    scene: str
    ranks: int
    bytes: int
    threads: int = 0  # reduction threads of rank 0 with auto
    step_us: dict[str, list[float]] = field(default_factory=lambda: {"0": [], "auto": []})

    @property
    def ratios(self) -> list[float]:
        return [none / auto for none, auto in zip(self.step_us["0"], self.step_us["auto"])]

    @property
    def lost(self) -> bool:
        slower = sum(ratio < 1 for ratio in self.ratios)
        below = statistics.median(self.ratios) < LOSS
        return self.threads > 0 and below and slower >= MOST * len(self.ratios)


def bytes_of(text: str) -> int:
    return int(text.rstrip("KMG")) << UNITS.get(text[-1], 0)


def cores_of(cpus: Sequence[int], root: str = "/sys") -> list[list[int]]:
    """Returns the CPUs of each core, of those CPUs."""
    cores: dict[str, list[int]] = {}
    for cpu in cpus:
        path = pathlib.Path(f"{root}/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        name = path.read_text().strip() if path.exists() else str(cpu)
        cores.setdefault(name, []).append(cpu)
    return list(cores.values())


def scenes_of(ranks: int, cpus: Sequence[int], cores: Sequence[Sequence[int]]) -> list[Scene]:
    """Returns the scenes that so many CPUs allow."""
    everywhere = [list(cpus)] * ranks
    share = max(len(cpus) // ranks, 1)
    found = [Scene("idle", everywhere, 1), Scene("busy", everywhere, share)]
    if len(cores) >= ranks:
        each = len(cores) // ranks
        parts = [
            [cpu for core in cores[r * each : (r + 1) * each] for cpu in core] for r in range(ranks)
        ]
        found.append(Scene("pinned", parts, len(parts[0])))
        if len(cores) < len(cpus):
            found.append(Scene("siblings", parts, each))
    return found


def run_rank(rank: int, ranks: int, folder: str, threads: int, sizes: Sequence[int]) -> None:
    """One rank of a turn; rank 0 writes a line of JSON for each size."""
    import torch
    import torch.distributed as dist

    import shmcoll

    torch.set_num_threads(threads)
    dist.init_process_group(
        "shmcoll", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    matrix = torch.ones(WIDTH, WIDTH)
    for size in sizes:
        tensor, source = torch.ones(size // 4), torch.ones(size // 4)
        steps = max(4, min(200, (64 << 20) // size))
        took = []
        for step in range(steps + 2):
            dist.barrier()
            begun = time.perf_counter()
            (matrix @ matrix).relu_()
            tensor.copy_(source)
            dist.all_reduce(tensor)
            total = tensor.sum().item()
            took.append((time.perf_counter() - begun) * 1e6)
            if step == 0 and total != ranks * (size // 4):
                sys.exit(f"rank {rank}: a wrong sum of {size} bytes")
        if rank == 0:
            has = shmcoll.describe(dist.group.WORLD)["threads"]
            print(json.dumps({"bytes": size, "threads": has, "us": statistics.median(took[2:])}))
    dist.destroy_process_group()


def run_turn(scene: Scene, setting: str, sizes: Sequence[int]) -> dict[int, tuple[float, int]]:
    """Returns the time of a step, and the reduction threads, by size."""
    env = {**os.environ, "SHMCOLL_THREADS": setting}
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank, cpus in enumerate(scene.cpus):
            words = [rank, len(scene.cpus), folder, scene.threads, ",".join(map(str, sizes))]
            processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--rank", *map(str, words)],
                    env=env,
                    stdout=subprocess.PIPE,
                    text=True,
                    preexec_fn=lambda cpus=cpus: os.sched_setaffinity(0, cpus),
                )
            )
        try:
            texts = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(process.returncode for process in processes):
        sys.exit(f"{scene.name} with SHMCOLL_THREADS={setting}: a rank failed")
    rows = [json.loads(line) for line in texts[0].splitlines()]
    return {row["bytes"]: (row["us"], row["threads"]) for row in rows}


def measure(scene: Scene, sizes: Sequence[int], turns: int) -> list[Row]:
    rows = {size: Row(scene.name, len(scene.cpus), size) for size in sizes}
    for turn in range(turns):
        for setting in SETTINGS[:: 1 if turn % 2 == 0 else -1]:
            for size, (us, threads) in run_turn(scene, setting, sizes).items():
                rows[size].step_us[setting].append(us)
                if setting == "auto":
                    rows[size].threads = threads
    return list(rows.values())


def print_row(row: Row) -> None:
    none, auto = (statistics.median(row.step_us[setting]) for setting in SETTINGS)
    text = f"{row.scene:9} {row.ranks:3} ranks {row.bytes:10} bytes  0: {none:9.0f} us"
    text += f"  auto: {auto:9.0f} us, {row.threads} threads  {statistics.median(row.ratios):.2f}x"
    print(text + ("  LOST" if row.lost else "" if row.threads else "  (no threads)"), flush=True)


def verdict(rows: Sequence[Row]) -> tuple[str, int]:
    """Returns the last line, and the exit code."""
    compared = [row for row in rows if row.threads]
    if not compared:
        return "auto takes no threads on this machine: nothing was compared", 3
    lost = [row for row in compared if row.lost]
    text = f"auto loses {len(lost)} of {len(compared)} rows"
    return text, 1 if lost else 0


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        rank, ranks, folder, threads, sizes = sys.argv[2:]
        run_rank(int(rank), int(ranks), folder, int(threads), list(map(int, sizes.split(","))))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="2,4", help="default: 2,4")
    parser.add_argument("--sizes", default="64K,1M,16M,64M", help="default: 64K,1M,16M,64M")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    rows: list[Row] = []
    for ranks in map(int, options.ranks.split(",")):
        for scene in scenes_of(ranks, cpus, cores_of(cpus)):
            for row in measure(scene, list(map(bytes_of, options.sizes.split(","))), options.turns):
                rows.append(row)
                print_row(row)
    text, code = verdict(rows)
    print(text)
    if options.json:
        written = {"verdict": text, "rows": [asdict(row) for row in rows]}
        pathlib.Path(options.json).write_text(json.dumps(written, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
