# SPDX-License-Identifier: BSD-3-Clause
"""Short calls next to as many busy loops as there are CPUs, and gloo's calls in the same run.

    python benchmarks/beside_hogs.py [--ranks 2] [--cells 100] [--turns 6] [--json out.json]

A loop that computes keeps whatever a waiting rank leaves to it for a time slice of milliseconds. A cell is
some turns of 20 calls, the two backends one after the other, and before each turn a barrier: gloo's in half
of the cells. In half of them each rank has a CPU that it may not leave. What counts is all the time that a
backend took in a cell, not the median turn: calls that are slow now and then are what this looks for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BACKENDS = ("shmcoll", "gloo")
CALLS = 20  # a turn
REQUEST = {"id": 1, "tokens": list(range(40)), "temperature": 0.5}


@dataclass
class Cell:
    op: str
    pinned: bool
    barrier: str  # the backend whose barrier comes before each turn
    us: dict[str, float] = field(default_factory=dict)  # a call, over all turns


def broadcast_request(group: dist.ProcessGroup) -> None:
    request = REQUEST if dist.get_rank() == 0 else None
    dist.broadcast_object_list([request], src=0, group=group)


OPS: dict[str, Callable[[dist.ProcessGroup], None]] = {
    "barrier": lambda group: dist.barrier(group=group),
    "broadcast_object_list": broadcast_request,
}


def measure(cell: Cell, groups: dict[str, dist.ProcessGroup], turns: int) -> None:
    call, spent = OPS[cell.op], dict.fromkeys(BACKENDS, 0.0)
    for turn in range(turns):
        for backend in BACKENDS[:: 1 if turn % 2 == 0 else -1]:
            dist.barrier(group=groups[cell.barrier])
            begun = time.perf_counter()
            for _ in range(CALLS):
                call(groups[backend])
            spent[backend] += time.perf_counter() - begun
    cell.us = {backend: spent[backend] / (turns * CALLS) * 1e6 for backend in BACKENDS}


def cells(count: int) -> Iterator[Cell]:
    kinds = itertools.product(OPS, (False, True), BACKENDS)
    for op, pinned, barrier in itertools.islice(itertools.cycle(kinds), count):
        yield Cell(op, pinned, barrier)


def run_rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    import shmcoll  # noqa: F401

    torch.set_num_threads(1)
    everywhere = sorted(os.sched_getaffinity(0))
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=options.ranks)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    for call in OPS.values():
        for group in groups.values():
            call(group)
    done = []
    for cell in cells(options.cells):
        os.sched_setaffinity(0, {everywhere[rank % len(everywhere)]} if cell.pinned else everywhere)
        measure(cell, groups, options.turns)
        done.append(cell)
    if rank == 0:
        print_cells(done)
        if options.json:
            facts = {"ranks": options.ranks, "hogs": len(everywhere)}
            facts["cells"] = [asdict(cell) for cell in done]
            pathlib.Path(options.json).write_text(json.dumps(facts, indent=1) + "\n")
    dist.destroy_process_group()


def print_cells(done: list[Cell]) -> None:
    """Prints gloo's time over ours for each kind of cell: the least, the median, the most."""
    kinds = {(cell.op, cell.pinned, cell.barrier) for cell in done}
    for op, pinned, barrier in sorted(kinds):
        same = [
            cell for cell in done if (cell.op, cell.pinned, cell.barrier) == (op, pinned, barrier)
        ]
        ratios = sorted(cell.us["gloo"] / cell.us["shmcoll"] for cell in same)
        where = "pinned" if pinned else "not pinned"
        print(
            f"{op:22} {where:10}  {barrier + ' barrier':15}  {len(ratios):3} cells: "
            f"{ratios[0]:6.2f} {ratios[len(ratios) // 2]:6.2f} {ratios[-1]:6.2f}",
            flush=True,
        )


def compute(parent: int) -> None:
    while os.getppid() == parent:
        for _ in range(1 << 20):
            pass


@contextmanager
def hogs() -> Iterator[None]:
    """Busy loops, as many as this process has CPUs, that go where the scheduler puts them."""
    context = multiprocessing.get_context("fork")
    count = len(os.sched_getaffinity(0))
    loops = [
        context.Process(target=compute, args=(os.getpid(),), daemon=True) for _ in range(count)
    ]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--turns", type=int, default=6, help="of each backend in a cell")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, hogs():
        mp.spawn(run_rank, (folder, options), nprocs=options.ranks)


if __name__ == "__main__":
    main()
