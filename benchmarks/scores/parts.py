# SPDX-License-Identifier: BSD-3-Clause
"""The programs that measure, and what rows their output amounts to.

A part finishes in a few minutes. It raises Absent if this machine cannot run it, Failed if it could
and something went wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import peers
from scores.rows import Row, mode_of
from scores.table import KIB, MESSAGES_TOO, MIB, MPIS, ONECCL_OTHERS, OTHERS

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
PATIENCE_S = 1800
CROWD_CPUS = 2  # that 4 and 8 ranks share
LARGE_RUNS = 3

T = TypeVar("T")


class Absent(Exception):
    """A tool or device that this machine does not have."""


class Failed(Exception):
    """The error, in one line."""


@dataclass(frozen=True)
class Lab:
    """Runs programs. `quick`: few sizes and rounds, only to see that they run."""

    folder: Path
    part: str
    quick: bool = False

    def run(self, command: list[str], cpus: Iterable[int] = ()) -> None:
        """Runs a command. Its output goes to the log of the part."""
        log = self.folder / f"{self.part}.log"
        allowed = set(cpus) or os.sched_getaffinity(0)
        with log.open("a") as output:
            output.write(f"+ {' '.join(command)}\n")
            output.flush()
            try:
                code = subprocess.run(
                    command,
                    cwd=ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=PATIENCE_S,
                    preexec_fn=lambda: os.sched_setaffinity(0, allowed),
                ).returncode
            except subprocess.TimeoutExpired:
                raise Failed(f"{command[1]} took more than {PATIENCE_S} s; see {log}") from None
        if code:
            raise Failed(f"{' '.join(command[1:3])} ended with {code}; see {log}")

    def script(self, name: str, *options: str, cpus: Iterable[int] = ()) -> Any:
        """Runs a program of benchmarks/, and returns what it writes with --json."""
        return self.python(str(BENCHMARKS / name), *options, cpus=cpus)

    def python(self, *arguments: str, cpus: Iterable[int] = ()) -> Any:
        written = self.folder / f"{self.part}.out.json"
        written.unlink(missing_ok=True)
        self.run([sys.executable, *arguments, "--json", str(written)], cpus)
        return json.loads(written.read_text())

    def hop_ns(self) -> tuple[float, ...]:
        """How long a flag takes one way now; empty where that cannot be asked."""
        if not mpis():
            return ()
        options = ("--mpi", mpis()[0], "-o", "barrier", "-r", "1", "-t", "1")
        return (self.script("peers.py", *options)["runs"][0]["hop_ns"],)

    def choose(self, full: T, quick: T) -> T:
        return quick if self.quick else full


def mpis() -> list[str]:
    return [name for name in MPIS if shutil.which(f"mpicc.{name}")]


# ---- from C ----

NO_MPI = "no MPI: apt-get install libopenmpi-dev openmpi-bin libmpich-dev mpich"


def c_rows(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of a file of peers.py."""
    rows = []
    for run in data["runs"]:
        for one in run["rows"]:
            rows += c_row(one, run["ranks"], run["other"])
        rows += growth(run["rows"], run["ranks"])
    return rows


def over(these: Iterable[float], those: Iterable[float]) -> Iterable[float]:
    return (this / that for this, that in zip(these, those))


def c_row(one: dict[str, Any], ranks: int, other: str) -> list[Row]:
    ours, exchange = one["ours_us"], one["exchange_gbs"]
    # Of more than two, the first two may share a CPU.
    modes = tuple(mode_of([us * 1e3]) for us in one["hop_us"]) if ranks == 2 else ()

    def row(metric: str, values: Iterable[float], rival: str = "", kind: str = "") -> Row:
        wrong = "" if one["right"] else "wrong values"
        place = (metric, one["op"], one["bytes"], ranks, rival, kind)
        return Row(*place, tuple(values), modes, wrong)

    ratios = list(over(one["theirs_us"], ours))
    if other == "itself":
        return [row("of float32", ratios, kind=f"{one['dtype']} {one['redop']}")]
    rows = [row("ratio", ratios, other)]
    if one["op"] == "barrier":
        rows.append(row("hops", over(ours, one["hop_us"])))
    if "scale_us" in one:
        bounds = [s + one["bytes"] / gbs / 1e3 for s, gbs in zip(one["scale_us"], exchange)]
        rows.append(row("scale", over(one["scale_us"], ours)))
        rows.append(row("roof", over(bounds, ours)))
    bare = one.get("bare_us", [])
    if bare:
        rows.append(row("ratio limit", over(one["theirs_us"], bare), other))
    if bare and "scale_us" in one:
        rows.append(row("scale limit", over(one["scale_us"], bare)))
        rows.append(row("roof limit", over(bounds, bare)))
    return rows


def growth(ones: list[dict[str, Any]], ranks: int) -> list[Row]:
    """Returns the time of each all_reduce over that of the next smaller size."""
    sums = [one for one in ones if one["op"] == "all_reduce" and one["dtype"] == "float32"]
    out = []
    for small, large in itertools.pairwise(sorted(sums, key=lambda one: one["bytes"])):
        if small["bytes"] < large["bytes"]:
            values = tuple(b / a for a, b in zip(small["ours_us"], large["ours_us"]))
            out.append(Row("growth", "all_reduce", large["bytes"], ranks, values=values))
    return out


def beside_mpis(lab: Lab, *options: str) -> list[Row]:
    if not mpis():
        raise Absent(NO_MPI)
    return [row for mpi in mpis() for row in c_rows(lab.script("peers.py", "--mpi", mpi, *options))]


def c_all_reduce(lab: Lab) -> list[Row]:
    how = lab.choose(("-f", "2", "-r", "11", "-t", "7"), ("-f", "1024", "-r", "3", "-t", "1"))
    return beside_mpis(lab, "-o", "barrier,all_reduce", "-e", "64M", *how)


def c_operations(lab: Lab) -> list[Row]:
    how = lab.choose(("-f", "2", "-r", "7", "-t", "3"), ("-f", "2048", "-r", "2", "-t", "1"))
    return beside_mpis(lab, "-o", ",".join(OTHERS), "-e", "32M", *how)


def c_messages(lab: Lab) -> list[Row]:
    how = lab.choose(("-f", "2", "-r", "9", "-t", "5"), ("-f", "2048", "-r", "2", "-t", "1"))
    return beside_mpis(lab, "-o", "ping,stream", "-e", "32M", *how)


def c_dtypes(lab: Lab) -> list[Row]:
    if not mpis():
        raise Absent(NO_MPI)
    how = lab.choose(("-e", "4M", "-r", "7", "-t", "5"), ("-e", "64K", "-r", "2", "-t", "1"))
    options = ("--mpi", mpis()[0], "-d", "all", "-b", "64K", "-f", "64", *how)
    return c_rows(lab.script("peers.py", *options))


def c_intel(lab: Lab) -> list[Row]:
    if not peers.compiler_of("intelmpi"):
        raise Absent("no Intel MPI: pip install impi-devel")
    how = lab.choose(("-f", "4", "-r", "7", "-t", "3"), ("-f", "2048", "-r", "2", "-t", "1"))
    ops = ("all_reduce", *OTHERS, "ping", "stream")
    return c_rows(
        lab.script("peers.py", "--mpi", "intelmpi", "-o", ",".join(ops), "-e", "8M", *how)
    )


def c_oneccl(lab: Lab) -> list[Row]:
    if not peers.compiler_of(peers.ONECCL):
        raise Absent("no oneCCL: pip install oneccl-devel impi-devel")
    how = lab.choose(("-f", "4", "-r", "7", "-t", "3"), ("-f", "2048", "-r", "2", "-t", "1"))
    ops = ",".join(("all_reduce", *ONECCL_OTHERS))
    return c_rows(lab.script("peers.py", "--mpi", peers.ONECCL, "-o", ops, "-e", "8M", *how))


def crowd(lab: Lab, ranks: int, *how: str) -> list[Row]:
    if "openmpi" not in mpis():
        raise Absent("no Open MPI: apt-get install libopenmpi-dev openmpi-bin")
    cpus = sorted(os.sched_getaffinity(0))[:CROWD_CPUS]
    options = ("-n", str(ranks), "--mpi", "openmpi", "-o", "barrier,all_reduce", *how)
    return c_rows(lab.script("peers.py", *options, cpus=cpus))


def smallest(lab: Lab, ranks: int) -> list[Row]:
    """Rounds that see more phases of the scheduler than a sweep over sizes has time for."""
    return crowd(
        lab, ranks, "-e", "8", *lab.choose(("-r", "11", "-t", "40"), ("-r", "2", "-t", "2"))
    )


def c_4_ranks(lab: Lab) -> list[Row]:
    sweep = ("-e", "64M", "-f", "2", "-i", "-r", "5", "-t", "10")
    few = ("-e", "64K", "-f", "64", "-r", "2", "-t", "2")
    return smallest(lab, 4) + crowd(lab, 4, *lab.choose(sweep, few))


def c_8_ranks(lab: Lab) -> list[Row]:
    return smallest(lab, 8)


# ---- from Python ----


def around(hops: tuple[float, ...], values: tuple[float, ...]) -> tuple[str, ...]:
    """The mode of rounds, of which only before and after them was looked at."""
    return (mode_of(hops),) * len(values)


@dataclass
class Bare:
    """The least time of bare loops, in us, by operation and bytes, and how long a flag took during them."""

    least_us: dict[tuple[str, int], float] = field(default_factory=dict)
    hops: tuple[float, ...] = ()

    def look(self, lab: Lab, first: int, last: int) -> None:
        """Measures everything except all_reduce once more. Without an MPI it does nothing."""
        if not mpis():
            return
        how = lab.choose(("-r", "3", "-t", "2"), ("-r", "1", "-t", "1"))
        sizes = ("-b", str(first), "-e", str(last), "-f", "2")
        ops = ",".join(MESSAGES_TOO)
        data = lab.script("peers.py", "--mpi", mpis()[0], "-o", ops, *sizes, *how)
        for run in data["runs"]:
            self.hops += (run["hop_ns"],)
            for one in run["rows"]:
                place = (one["op"], one["bytes"])
                known = [self.least_us[place]] if place in self.least_us else []
                if one.get("bare_us"):
                    self.least_us[place] = min(one["bare_us"] + known)


def bench_rows(data: dict[str, Any], hops: tuple[float, ...], bare: Bare) -> list[Row]:
    """Returns the rows of a file of `python -m shmcoll.bench --json`.

    A backend without an operation gives no row.
    """
    rows = []
    for one in data["results"]:
        place = (one["op"], one["size_bytes"], one["world_size"])
        wrong = one["backends"]["shmcoll"]["wrong"]
        error = one["backends"]["shmcoll"]["error"]
        why = f"{wrong} wrong elements" if wrong else error or ""
        values = tuple(one["ratios"]["gloo"]["rounds"])
        modes = around(hops, values)
        rows.append(Row("gloo ratio", *place, values=values, modes=modes, wrong=why))
        least = bare.least_us.get(place[:2])
        if least and values:
            gloo = tuple(one["backends"]["gloo"]["time_us"]["round_p50"])
            most = tuple(us / least for us in gloo)
            modes = around(hops + bare.hops, most)
            rows.append(Row("gloo bare limit", *place, values=most, modes=modes))
    return rows


def between(
    lab: Lab, measure: Callable[[], Any], bare_sizes: tuple[int, int] | None
) -> tuple[Any, tuple[float, ...], Bare]:
    """Returns the measurement, how long a flag took before and after it, and bare loops.

    The bare loops have the sizes from the first to the last one of `bare_sizes`.
    """
    bare = Bare()
    if bare_sizes:
        bare.look(lab, *bare_sizes)
    before = lab.hop_ns()
    data = measure()
    hops = before + lab.hop_ns()
    if bare_sizes:
        bare.look(lab, *bare_sizes)
    return data, hops, bare


def beside_gloo(lab: Lab, *options: str, bare_sizes: tuple[int, int] | None = None) -> list[Row]:
    command = ("-m", "shmcoll.bench", "-q", "-g", "2", *options)
    return bench_rows(*between(lab, lambda: lab.python(*command), bare_sizes))


def python_all_reduce(lab: Lab) -> list[Row]:
    few = ("-f", "1024", "--rounds", "2", "--point-time", "0.1")
    how = lab.choose(("-f", "2", "--rounds", "7", "--point-time", "0.6"), few)
    rows = beside_gloo(lab, "-o", "all_reduce", "-b", "8", "-e", "16M", *how)
    # By itself, and in short runs: what matters most here is whether the CPUs share an L3, and that
    # may change at any time.
    how = lab.choose(("--rounds", "5", "--point-time", "1.5"), ("--rounds", "2"))
    for _ in range(1 if lab.quick else LARGE_RUNS):
        rows += beside_gloo(lab, "-o", "all_reduce", "-b", "32M", "-e", "32M", *how)
    return rows


def python_operations(lab: Lab) -> list[Row]:
    few = ("-f", "2048", "--rounds", "2", "--point-time", "0.1")
    how = lab.choose(("-f", "2", "--rounds", "5", "--point-time", "0.3"), few)
    ops = ",".join((*MESSAGES_TOO, "barrier"))
    sizes = lab.choose((64 * KIB, 4 * MIB), (16 * KIB, 16 * KIB))
    return beside_gloo(lab, "-o", ops, "-b", "8", "-e", "4M", *how, bare_sizes=sizes)


def python_copies(lab: Lab) -> list[Row]:
    how = lab.choose(("--rounds", "9"), ("--rounds", "2", "--sizes", "8"))
    sizes = lab.choose((8 * MIB, 32 * MIB), (8 * MIB, 8 * MIB))
    data, hops, bare = between(lab, lambda: lab.script("copy_bound.py", *how), sizes)
    return [row for one in data["rows"] for row in copy_rows(one, hops, bare)]


def copy_rows(one: dict[str, Any], hops: tuple[float, ...], bare: Bare) -> list[Row]:
    place = (one["op"], one["bytes"])
    values = tuple(over(one["ours_us"], one["copy_us"]))
    modes = around(hops, values)
    wrong = f"{one['wrong']} wrong elements" if one["wrong"] else ""
    rows = [Row("over copy", *place, values=values, modes=modes, wrong=wrong)]
    least = bare.least_us.get(place)
    if least:
        values = tuple(least / copy for copy in one["copy_us"])
        modes = around(hops + bare.hops, values)
        rows.append(Row("over copy limit", *place, values=values, modes=modes))
    return rows


def python_floor(lab: Lab) -> list[Row]:
    how = lab.choose(("--rounds", "9"), ("--rounds", "2", "--step", "9"))
    return [row for one in lab.script("python_floor.py", *how)["rows"] for row in floor_rows(one)]


def floor_rows(one: dict[str, Any]) -> list[Row]:
    us = one["us"]
    floor = [null + core for null, core in zip(us["null"], us["core"])]
    wrong = f"{one['wrong']} wrong elements" if one["wrong"] else ""

    def row(metric: str, above: Iterable[float], below: Iterable[float]) -> Row:
        values = tuple(a / b for a, b in zip(above, below))
        return Row(metric, "all_reduce", one["bytes"], values=values, wrong=wrong)

    return [
        row("over floor", us["shmcoll"], floor),
        row("over floor limit", us["bare"], floor),
        row("gloo limit", us["gloo"], floor),
    ]


def direct_calls(lab: Lab) -> list[Row]:
    """fp32 for the times, and bf16, in which models decode, next to the operators of vLLM and DeepSpeed."""
    how = lab.choose(("--turns", "100"), ("--turns", "3", "--sizes", "2"))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    command = (str(BENCHMARKS / "direct_calls.py"), *how, "--dtype")
    runs = [
        lab.python(*torchrun, ranks, *command, dtype)
        for ranks, dtype in (("2", "fp32"), ("2", "bf16"), ("4", "bf16"))
    ]
    return [row for run in runs for one in run["rows"] for row in direct_rows(one, run)]


def direct_rows(one: dict[str, Any], run: dict[str, Any]) -> list[Row]:
    us, dtype, place = one["us"], run["dtype"], (one["op"], one["bytes"], run["world_size"])
    rows = [
        Row("direct us", *place, kind=dtype, values=tuple(us["bound"])),
        Row("torch / direct", *place, kind=dtype, values=tuple(over(us["torch"], us["bound"]))),
    ]
    for rival in ("vllm", "deepspeed"):
        if rival in us:
            values = tuple(over(us[rival], us["bound"]))
            rows.append(Row("ratio", *place, rival, dtype, values))
    return rows


# ---- whole programs ----


def ddp(lab: Lab) -> list[Row]:
    few = ("--rounds", "2", "--buckets", "4", "--models", "digits")
    how = lab.choose(("--rounds", "7"), few)
    data, hops, _ = between(lab, lambda: lab.script("ddp_step.py", *how), None)
    return [row for one in data["rows"] for row in ddp_rows(one, hops)]


def ddp_rows(one: dict[str, Any], hops: tuple[float, ...]) -> list[Row]:
    ms = one["step_ms"]
    wrong = f"{one['wrong']} parameters differ from gloo's" if one["wrong"] else ""
    place = ("DDP step", one["bucket_mib"] * MIB, 2, "", one["model"])
    over_gloo = tuple(gloo / ours for ours, gloo in zip(ms["shmcoll"], ms["gloo"]))
    over_compute = tuple(ours / compute for ours, compute in zip(ms["shmcoll"], ms["compute"]))
    nobody = tuple(alone / compute for alone, compute in zip(ms["alone"], ms["compute"]))
    modes = around(hops, over_gloo)
    return [
        Row("gloo step", *place, over_gloo, modes, wrong),
        Row("over compute", *place, over_compute, modes, wrong),
        Row("over compute limit", *place, nobody, modes),
    ]


def hogs(lab: Lab) -> list[Row]:
    how = lab.choose((), ("--cells", "8", "--turns", "1"))
    runs = [lab.script("beside_hogs.py", "--ranks", ranks, *how) for ranks in ("2", "4")]
    return [row for run in runs for row in hog_rows(run)]


def hog_rows(run: dict[str, Any]) -> list[Row]:
    """Each cell is a place of its own: one that is slow is not outvoted."""
    rows = []
    for number, cell in enumerate(run["cells"]):
        where = "pinned" if cell["pinned"] else "not pinned"
        kind = f"cell {number}, {where}, {cell['barrier']}'s barrier before"
        ratio = cell["us"]["gloo"] / cell["us"]["shmcoll"]
        rows.append(Row("gloo next to hogs", cell["op"], 0, run["ranks"], "", kind, (ratio,)))
    return rows


def parked(lab: Lab) -> list[Row]:
    how = lab.choose(("--kills", "20"), ("--nproc", "2", "--seconds", "0.5", "--kills", "2"))
    return [
        row for key, one in lab.script("parked.py", *how).items() for row in parked_rows(key, one)
    ]


def parked_rows(key: str, one: dict[str, Any]) -> list[Row]:
    op, _, ranks = key.partition(".")
    values = {
        "wake-ups": one["wakeups_a_second"],
        "parked CPU": one["percent_of_a_cpu"] / 100,
        "told": one["told_ms"]["median"],
        "told p99": one["told_ms"]["p99"],
    }
    return [Row(name, op, 0, int(ranks), values=(value,)) for name, value in values.items()]


def start(lab: Lab) -> list[Row]:
    how = lab.choose(("--rounds", "11"), ("--rounds", "2"))
    data = lab.script("startup.py", "--nproc", "8", *how)
    if data["shared_bytes"] <= 0:
        raise Failed("startup.py found no shared memory mapped: it looked for the wrong files")
    ranks = data["world_size"]
    memory = data["shared_bytes"] / (4 * MIB + ranks * 64 * KIB)
    return [
        Row("init", ranks=ranks, values=tuple(data["init_added_ms"])),
        Row("new_group", ranks=ranks, values=tuple(data["ms"]["shmcoll"]["new_group"])),
        Row("shared memory", ranks=ranks, values=(memory,)),
    ]


def bench_time(lab: Lab) -> list[Row]:
    begun = time.monotonic()
    lab.python("-m", "shmcoll.bench", *lab.choose((), ("-o", "barrier")))
    seconds = time.monotonic() - begun
    return [] if lab.quick else [Row("seconds", values=(seconds,))]


def verdicts(lab: Lab) -> list[Row]:
    few = ("--pairs", "1", "--", "-o", "barrier")
    data = lab.script("verdicts.py", *lab.choose((), few))
    if lab.quick:
        return []
    wanted = {"one build": "equal", "planted": "slower"}
    return [
        Row("right verdicts", kind=kind, values=(data[kind].count(right) / len(data[kind]),))
        for kind, right in wanted.items()
    ]


PARTS: dict[str, Callable[[Lab], list[Row]]] = {
    "c-all_reduce": c_all_reduce,
    "c-dtypes": c_dtypes,
    "c-operations": c_operations,
    "c-messages": c_messages,
    "c-intel": c_intel,
    "c-oneccl": c_oneccl,
    "c-4-ranks": c_4_ranks,
    "c-8-ranks": c_8_ranks,
    "python-floor": python_floor,
    "python-direct": direct_calls,
    "python-all_reduce": python_all_reduce,
    "python-operations": python_operations,
    "python-copies": python_copies,
    "hogs": hogs,
    "ddp": ddp,
    "parked": parked,
    "start": start,
    "bench-time": bench_time,
    "verdicts": verdicts,
}
