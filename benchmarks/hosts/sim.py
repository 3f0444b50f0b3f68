# SPDX-License-Identifier: BSD-3-Clause
"""What a call over many hosts costs, by a model: groups of shmcoll, and flat gloo. Starts nothing, needs no network.

    python benchmarks/hosts/sim.py [--hosts 64,256,1024] [--ranks 8,64] [--rate 10gbit]
                                   [-o all_reduce] [--sizes 1k,64k,1m,64m] [--set hop=20e-6]
    python benchmarks/hosts/sim.py --check FILE     # the JSON of against_gloo.py
    python benchmarks/hosts/sim.py --constants      # what the model knows of a machine, and from where

The table says what a call of shmcoll costs: calls of the engine that the leader of a host makes, bytes that leave
the host that sends most, staging memory of a rank, time; and flat gloo's time over that. Bytes are those of the
vector; of a block for all_gather, reduce_scatter and all_to_all. Nobody has measured such a row: what was is what
--check compares.

--check exits with 1 if the ratio of a row of at least 1 MiB over links of 1 Gbit/s is more than 15 % off. A row
whose rounds disagree is then in doubt. Shorter rows have no verdict: there the CPUs decide. The model takes what
other processes used of the CPUs from the file. benchmarks/hosts/model.py says how it counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from model import Constants, Gloo, Machine, Shmcoll
from shmcoll.cli import run_quietly

SCHEMA = "shmcoll.hosts/1"  # of against_gloo.py
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
TOLERANCE = 0.15
MIB = 1 << 20
LINKED_BYTES, LINKED_RATE = MIB, "1gbit"  # rows that the links bound
BURST, QUEUE_S = 512e3, 40e-3  # of the links of tests/hosts/hosts.py
MOST_RANKS = 65536  # of a group
MOST_BYTES = 16 << 30

SOURCES = {
    "payload": "bytes of payload in those of a link: 1448 of 1514; found: 0.957",
    "call": "a short all_to_all of gloo, 2 ranks, p10: 72 to 87 us; of waits the least",
    "hop": "a message of gloo one way, p10: 29 to 55 us",
    "message": "CPU of a further message out and in, 8 ranks: 18 to 91 us",
    "island": "an all_reduce of 64 bytes of two ranks of a host, p10: 4.1 to 7.4 us",
    "wire": "CPU of a byte out and a byte in over TCP: 0.51 to 0.90 ns",
    "copy": "of one CPU, in memory that it knows: 6.0 to 8.9 GB/s",
    "clone": "the same into new pages, which are returned: 1.7 to 2.3 GB/s",
    "free": "the return of such pages alone: 64 MiB in 3.2 and 3.4 ms",
    "add": "of one CPU, two inputs and an output: 4.5 to 6.7 GB/s",
    "crowd": "of a link, for an all_to_all that overfills its queue, 2 x 3: 0.83, 0.85",
    "flow": "of one TCP connection: assumed (pytorch#9389 says 25 Gbit/s)",
}


class Row(NamedTuple):
    hosts: int
    ranks: int
    operation: str
    bytes: int
    calls: int
    out: float
    memory: float
    seconds: float
    ratio: float


def bytes_of(text: str) -> int:
    factor = {"k": 1 << 10, "m": MIB}.get(text[-1].lower(), 1)
    return int(text.rstrip("kKmM")) * factor


def words_of(bytes_: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if bytes_ >= 0.9995 * factor:
            return f"{bytes_ / factor:.{0 if bytes_ >= 99.5 * factor else 1}f} {unit}".replace(
                ".0 ", " "
            )
    return f"{bytes_:.0f} B"


def rate_of(text: str) -> float:
    """Bits per second, as tc has them."""
    for unit, factor in (("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(f"{text}: no rate; 10gbit is one")


def machine_of(rate: str, constants: Constants) -> Machine:
    """Hosts of their own, on which each rank has a CPU."""
    return Machine(rate_of(rate) / 8 * constants.payload, constants)


def row_of(machine: Machine, hosts: int, ranks: int, operation: str, bytes_: int) -> Row:
    ours = Shmcoll(machine, hosts, ranks).cost(operation, bytes_)
    theirs = Gloo(machine, hosts, ranks).cost(operation, bytes_)
    seconds = ours.seconds(machine)
    ratio = theirs.seconds(machine) / seconds
    return Row(hosts, ranks, operation, bytes_, ours.calls, ours.out, ours.memory, seconds, ratio)


def table(machine: Machine, hosts: list[int], ranks: list[int], args: argparse.Namespace) -> None:
    print(f"# a model, not measured: {args.rate} for each host, a CPU for each rank")
    print(f"# without tensors of more than {words_of(MOST_BYTES)}")
    head = ("operation", "bytes", "calls", "bytes out", "staging", "time", "gloo/ours")
    for count, of_host in ((count, one) for one in ranks for count in hosts):
        if count * of_host > MOST_RANKS:
            raise ValueError(f"{count} hosts of {of_host} ranks: a group has {MOST_RANKS} at most")
        print(f"\n{count} hosts of {of_host} ranks")
        print("{:>14} {:>8} {:>7} {:>10} {:>9} {:>9} {:>10}".format(*head))
        for operation in args.ops.split(","):
            for size in map(bytes_of, args.sizes.split(",")):
                if tensor_bytes(operation, size, count * of_host) <= MOST_BYTES:
                    print(line_of(machine, count, of_host, operation, size))


def line_of(machine: Machine, hosts: int, ranks: int, operation: str, bytes_: int) -> str:
    head = f"{operation:>14} {words_of(bytes_):>8}"
    try:
        row = row_of(machine, hosts, ranks, operation, bytes_)
    except ValueError as error:
        return f"{head}   {error}"
    time = f"{row.seconds * 1e3:.2f} ms" if row.seconds < 1 else f"{row.seconds:.2f} s"
    out, memory = words_of(row.out), words_of(row.memory)
    return f"{head} {row.calls:>7} {out:>10} {memory:>9} {time:>9} {row.ratio:>10.2f}"


def tensor_bytes(operation: str, bytes_: int, world: int) -> int:
    return bytes_ if operation in ("all_reduce", "broadcast") else bytes_ * world


# ---- against what was measured ----


def shape_of(layout: list[int]) -> tuple[int, int]:
    """Hosts, and ranks of each."""
    counts = [layout.count(host) for host in sorted(set(layout))]
    if len(set(counts)) != 1 or layout != sorted(layout):
        raise ValueError("the model has equal hosts, whose ranks have successive numbers")
    return len(counts), counts[0]


def as_measured(run: dict[str, Any], constants: Constants) -> Machine:
    """The machine that played all hosts: ranks share its CPUs with each other, and with what else runs."""
    activity, world = run["activity"], len(run["layout"])
    cpus, others = activity["cpus"], 0.0
    if activity["busy_s"] is not None:
        others = max(0.0, activity["busy_s"] - activity["own_s"]) / activity["seconds"]
    share = max(cpus - others, 0.1 * cpus) / world
    nic = rate_of(run["rate"]) / 8 * constants.payload
    queue = BURST + QUEUE_S * nic
    return Machine(nic, constants, BURST, queue, min(1.0, share), min(1.0, cpus / world))


def check(run: dict[str, Any], constants: Constants) -> int:
    """How many rows are off."""
    if run.get("schema") != SCHEMA or run["rate"] is None:
        raise ValueError("a JSON of against_gloo.py is needed, whose links have a rate")
    hosts, ranks = shape_of(run["layout"])
    machine = as_measured(run, constants)
    print(f"# {hosts} hosts of {ranks} ranks, {run['rate']}; {run['said']}")
    print(f"{'operation':>14} {'bytes':>9} {'measured':>9} {'model':>7} {'off by':>7}")
    judged = off = 0
    for row in run["rows"]:
        if "absent" in row:
            continue
        ratio = row_of(machine, hosts, ranks, row["op"], row["bytes"]).ratio
        by = ratio / row["ratio"] - 1
        verdict = ""
        if row["bytes"] >= LINKED_BYTES and run["rate"] == LINKED_RATE:
            is_off = abs(by) > TOLERANCE
            doubted = is_off and row["noisy"]
            judged += not doubted
            off += is_off and not doubted
            verdict = "  in doubt" if doubted else "  OFF" if is_off else "  ok"
        line = f"{row['op']:>14} {row['bytes']:>9} {row['ratio']:>9.2f} {ratio:>7.2f} {by:>+7.0%}"
        print(line + verdict)
    print(f"# {off} of {judged} rows of at least 1 MiB are more than {TOLERANCE:.0%} off")
    if judged == 0:
        raise ValueError(f"no row of at least 1 MiB at {LINKED_RATE}: there is nothing to check")
    return off


def changed(constants: Constants, settings: list[str]) -> Constants:
    known = {field.name for field in dataclasses.fields(Constants)}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in known:
            raise ValueError(f"no constant {name}; there are {', '.join(sorted(known))}")
        constants = dataclasses.replace(constants, **{name: float(value)})
    return constants


def show(constants: Constants) -> None:
    print("# measured on 2026-11-30 by calibrate.py, 2 CPUs of a virtual machine, load 6 to 14")
    for name, source in SOURCES.items():
        print(f"{name:>8} {getattr(constants, name):<8.4g} {source}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=Path, metavar="FILE", help="the JSON of against_gloo.py")
    parser.add_argument("--constants", action="store_true", help="print them, and their sources")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--hosts", default="64,256,1024")
    parser.add_argument("--ranks", default="8,64", help="of each host")
    parser.add_argument("--rate", default="10gbit", help="of a host's link, as tc has it")
    parser.add_argument("-o", "--ops", default=",".join(OPERATIONS))
    parser.add_argument("--sizes", default="1k,64k,1m,64m")
    args = parser.parse_args()
    try:
        constants = changed(Constants(), args.set)
        if unknown := set(args.ops.split(",")) - set(OPERATIONS):
            raise ValueError(f"no operation {', '.join(sorted(unknown))}")
        if args.constants:
            show(constants)
        elif args.check:
            return 1 if check(json.loads(args.check.read_text()), constants) else 0
        else:
            hosts, ranks = ([int(n) for n in text.split(",")] for text in (args.hosts, args.ranks))
            table(machine_of(args.rate, constants), hosts, ranks, args)
    except BrokenPipeError:
        raise  # for run_quietly(): a reader may want the first lines alone
    except (ValueError, KeyError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run_quietly(main))
