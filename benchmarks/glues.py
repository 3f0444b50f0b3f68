# SPDX-License-Identifier: BSD-3-Clause
"""Compares the glues: an all_reduce of 8 bytes of two ranks, by turns in one run.

    chrt -f 10 .venv/bin/python benchmarks/glues.py          # quiet on a busy machine; needs root
    .venv/bin/python benchmarks/glues.py --rounds 50 python  # only the glue in Python

Each glue has two processes of its own, pinned to the first two CPUs. They make a block of calls when it
is their turn, and sleep otherwise. Printed are the medians over the rounds, and their ratio to that of
the first glue, the module shmcoll._C.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection

GLUES = ("module", "operators", "python")
CALLS = 2000


def rank_main(glue: str, rank: int, store: str, turns: Connection) -> None:
    """One rank: a block of calls for each word that comes."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    os.environ["SHMCOLL_GLUE"] = "python" if glue == "python" else "native"
    if glue == "operators":
        sys.modules["shmcoll._C"] = None  # type: ignore[assignment]
    import torch
    import torch.distributed as dist

    import shmcoll

    torch.set_num_threads(1)
    dist.init_process_group("shmcoll", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    tensor = torch.zeros(2)
    turns.send(shmcoll.describe()["glue"])
    while turns.recv():
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        turns.send((time.perf_counter() - begun) / CALLS)
    dist.destroy_process_group()


class Pair:
    """The two ranks of a glue."""

    def __init__(self, glue: str, store: str) -> None:
        self.turns = []
        self.micros: list[float] = []
        context = multiprocessing.get_context("spawn")
        for rank in range(2):
            ours, theirs = context.Pipe()
            context.Process(target=rank_main, args=(glue, rank, store, theirs), daemon=True).start()
            self.turns.append(ours)
        self.name = [turn.recv() for turn in self.turns][0]

    def run(self) -> None:
        for turn in self.turns:
            turn.send(True)
        self.micros.append(max(turn.recv() for turn in self.turns) * 1e6)

    def end(self) -> None:
        for turn in self.turns:
            turn.send(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("glues", nargs="*", default=list(GLUES), help=f"of {', '.join(GLUES)}")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    glues = ["module", *(glue for glue in arguments.glues if glue != "module")]
    with tempfile.TemporaryDirectory(prefix="shmcoll-glues-") as folder:
        pairs = [Pair(glue, os.path.join(folder, glue)) for glue in glues]
        for _ in range(arguments.rounds + 3):
            for pair in pairs:
                pair.run()
        first = statistics.median(pairs[0].micros[3:])
        print(f"all_reduce of 8 bytes, 2 ranks, {arguments.rounds} rounds of {CALLS} calls")
        for glue, pair in zip(glues, pairs):
            median = statistics.median(pair.micros[3:])
            print(f"{glue:10} {median:6.2f} us  {median / first:5.3f}x   glue: {pair.name}")
            pair.end()


if __name__ == "__main__":
    main()
