# SPDX-License-Identifier: BSD-3-Clause
"""What groups cost to make: `init_process_group`, the first all_reduce, `new_group`, memory.

    python benchmarks/startup.py [--nproc 8] [--json out.json]

The ranks meet at one TCPStore. Rounds alternate between
  store     each rank sets a key and waits for the keys of all others: the least any rendezvous does
  shmcoll   init_process_group, one all_reduce of 8 bytes, new_group of all ranks
  gloo      the same
Times are those of the slowest rank, from a moment that all have agreed on. Shared memory is what a
rank has mapped of it after collectives and messages of 8 MiB, in one group.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import re
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

KINDS = ("store", "shmcoll", "gloo")
STEPS = ("init", "first", "new_group")  # of all but "store"
LARGE = 8 << 20  # bytes: everything that is made late has been made


class Team:
    """One rank among those that start together."""

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world
        self.turn = 0

    def keys(self, name: str) -> dist.Store:
        """Nobody has used them before."""
        self.turn += 1
        return dist.PrefixStore(f"{self.turn}{name}", self.store)

    def meet(self, store: dist.Store) -> None:
        store.set(str(self.rank), b"here")
        store.wait([str(other) for other in range(self.world)])

    def slowest_ms(self, step: Callable[[], object]) -> float:
        """Times a step, from a moment that all ranks have agreed on until the last rank has done it."""
        keys = self.keys("step")
        self.meet(dist.PrefixStore("ready", keys))
        if self.rank == 0:
            keys.set("start", str(time.monotonic() + 0.05))
        start_s = float(keys.get("start"))
        while time.monotonic() < start_s:
            time.sleep(0.0002)
        step()
        keys.set(f"took{self.rank}", str(time.monotonic() - start_s))
        return 1e3 * max(float(keys.get(f"took{other}")) for other in range(self.world))


def one_round(kind: str, team: Team) -> dict[str, float]:
    """Milliseconds of each step."""
    keys = team.keys(kind)
    if kind == "store":
        return {"init": team.slowest_ms(lambda: team.meet(keys))}

    def init() -> None:
        dist.init_process_group(kind, store=keys, rank=team.rank, world_size=team.world)

    steps = (init, lambda: dist.all_reduce(torch.ones(2)), dist.new_group)
    took = {name: team.slowest_ms(step) for name, step in zip(STEPS, steps)}
    dist.destroy_process_group()
    return took


def shared_bytes(maps: str) -> int:
    """Returns the bytes of unnamed or removed files in shared memory that a process has mapped."""
    files: dict[str, int] = {}
    line = r"^([0-9a-f]+)-([0-9a-f]+) ...s ([0-9a-f]+) (\S+ \d+) +(/dev/shm/|/memfd:).*$"
    for first, last, offset, inode, _ in re.findall(line, maps, re.M):
        end = int(last, 16) - int(first, 16) + int(offset, 16)
        files[inode] = max(files.get(inode, 0), end)
    return sum(files.values())


def memory_of_a_group(team: Team) -> int:
    maps = pathlib.Path("/proc/self/maps")
    before = shared_bytes(maps.read_text())
    dist.init_process_group(
        "shmcoll", store=team.keys("memory"), rank=team.rank, world_size=team.world
    )
    data = torch.zeros(LARGE // 4)
    dist.all_reduce(data)
    dist.broadcast(data, 0)
    after, behind = (team.rank + 1) % team.world, (team.rank - 1) % team.world
    sent = dist.isend(data, after)
    dist.recv(torch.empty_like(data), behind)
    if sent is not None:
        sent.wait()
    dist.barrier()
    used = shared_bytes(maps.read_text()) - before
    dist.destroy_process_group()
    return used


def run_rank(rank: int, world: int, port: int, rounds: int, path: str | None) -> None:
    import shmcoll

    shmcoll.build_info()  # loads the library, which is no part of what is timed
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(minutes=2))
    team = Team(store, rank, world)
    took: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            took[kind].append(one_round(kind, team))
    used = memory_of_a_group(team)
    if rank == 0:
        report(took, world, used, path)


def report(
    took: dict[str, list[dict[str, float]]], world: int, used: int, path: str | None
) -> None:
    ms = {
        kind: {step: [one[step] for one in rounds] for step in rounds[0]}
        for kind, rounds in took.items()
    }
    for kind, steps in ms.items():
        for step, values in steps.items():
            worst = f"(worst round {max(values):.2f})"
            print(f"{kind:8} {step:10} {statistics.median(values):8.2f} ms   {worst}")
    added = [a - b for a, b in zip(ms["shmcoll"]["init"], ms["store"]["init"])]
    print(f"{world} ranks: shmcoll's init adds {statistics.median(added):.1f} ms to the store's")
    print(f"{world} ranks: {used / 2**20:.2f} MiB of shared memory")
    if path:
        result = {"world_size": world, "ms": ms, "init_added_ms": added, "shared_bytes": used}
        pathlib.Path(path).write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nproc", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arguments = (options.nproc, server.port, options.rounds, options.json)
    mp.spawn(run_rank, arguments, nprocs=options.nproc)


if __name__ == "__main__":
    main()
