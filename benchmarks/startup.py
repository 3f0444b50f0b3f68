# SPDX-License-Identifier: BSD-3-Clause
"""What `init_process_group` and the first all_reduce take, and what the store alone would take.

    python benchmarks/startup.py [--nproc 8] [--json out.json]

The ranks meet at one TCPStore. Rounds alternate between
  store     each rank sets a key and waits for the keys of all others: the least any rendezvous does
  shmcoll   init_process_group and one all_reduce of 8 bytes
  gloo      the same
A round's time is that of the slowest rank, from a moment that all have agreed on.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

KINDS = ("store", "shmcoll", "gloo")


def meet(store: dist.Store, rank: int, world: int) -> None:
    store.set(str(rank), b"here")
    store.wait([str(other) for other in range(world)])


def make_group(kind: str, store: dist.Store, rank: int, world: int) -> None:
    dist.init_process_group(kind, store=store, rank=rank, world_size=world)
    dist.all_reduce(torch.ones(2))


def one_round(kind: str, store: dist.Store, rank: int, world: int, start_s: float) -> float:
    """Seconds from start_s, which lies a moment ahead on every rank's clock."""
    while time.monotonic() < start_s:
        time.sleep(0.0002)
    if kind == "store":
        meet(store, rank, world)
    else:
        make_group(kind, store, rank, world)
    took = time.monotonic() - start_s
    if kind != "store":
        dist.destroy_process_group()
    return took


def run_rank(rank: int, world: int, port: int, rounds: int, path: str | None) -> None:
    import shmcoll  # noqa: F401

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(minutes=2))
    worst: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for index in range(rounds):
        for kind in KINDS:
            keys = dist.PrefixStore(f"{index}{kind}", store)
            meet(dist.PrefixStore("ready", keys), rank, world)
            if rank == 0:
                keys.set("start", str(time.monotonic() + 0.1))
            start_s = float(keys.get("start"))
            took = one_round(kind, dist.PrefixStore("round", keys), rank, world, start_s)
            keys.set(f"took{rank}", str(took))
            all_took = [float(keys.get(f"took{other}")) for other in range(world)]
            worst[kind].append(1e3 * max(all_took))
    if rank == 0:
        report(worst, world, path)


def report(worst: dict[str, list[float]], world: int, path: str | None) -> None:
    result = {kind: statistics.median(values) for kind, values in worst.items()}
    for kind, median in result.items():
        print(f"{kind:8} {median:8.2f} ms   (worst round {max(worst[kind]):.2f})")
    added = statistics.median(a - b for a, b in zip(worst["shmcoll"], worst["store"]))
    print(f"{world} ranks: shmcoll adds {added:.1f} ms to the store's  (goal: less than 50)")
    if path:
        text = json.dumps({"world_size": world, "median_ms": result, "rounds": worst}, indent=2)
        pathlib.Path(path).write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nproc", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json")
    options = parser.parse_args()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arguments = (options.nproc, server.port, options.rounds, options.json)
    mp.spawn(run_rank, arguments, nprocs=options.nproc)


if __name__ == "__main__":
    main()
