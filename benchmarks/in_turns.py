# SPDX-License-Identifier: BSD-3-Clause
"""Two builds of the C library in turns, each time in new processes.

    python benchmarks/in_turns.py old/libshmcoll.so [new/libshmcoll.so] [--pairs 300] [-o OPS] [-b MIN] [-e MAX]
    python benchmarks/in_turns.py old/build/libshmcoll.so --headers old/src
    python benchmarks/in_turns.py a/libshmcoll.so a/libshmcoll.so --setting SHMCOLL_BOARD=off  # what it costs

Where the pages of a group happen to lie decides more about a call of 8 bytes than a change does: one
pair of processes takes 90 ns and the next one 220. Rounds inside one pair, as in `peers.py --against`,
do not show that. So this starts benchmarks/scaling.c anew for every measurement, the two builds in
turns, and prints the geometric mean of the ratios, old time over new time, with its standard error.
Default of the new library: a build of this tree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean, median, stdev

from peers import ROOT, build_core, library_of, noise

OPS = "barrier,broadcast,all_reduce"  # of those of scaling.c


def compile_program(library: Path, headers: Path, program: Path) -> None:
    """Compiles the program with the headers of its library. LD_LIBRARY_PATH chooses that."""
    command = ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", f"-I{headers}"]
    command += [str(ROOT / "benchmarks" / "scaling.c"), "-o", str(program)]
    subprocess.run([*command, f"-L{library.parent}", "-lshmcoll"], check=True)


def measure(
    program: Path, library: Path, arguments: list[str], settings: list[str]
) -> dict[tuple[str, int], float]:
    """Median microseconds of each operation and size, of one new pair of processes."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    env.update(setting.split("=", 1) for setting in settings)
    done = subprocess.run(
        [program, *arguments], check=True, capture_output=True, text=True, env=env
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [row["op"] for row in rows if row["wrong"]]
    if wrong:
        sys.exit(f"{library}: wrong results of {', '.join(wrong)}")
    return {(row["op"], row["bytes"]): row["median_us"] for row in rows}


def ratio_of(old: list[float], new: list[float]) -> tuple[float, float]:
    """Geometric mean of old over new, and its standard error."""
    logs = [math.log(a / b) for a, b in zip(old, new)]
    return math.exp(mean(logs)), stdev(logs) / math.sqrt(len(logs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="a libshmcoll.so")
    parser.add_argument("new", type=Path, nargs="?", help="another one; default: of this tree")
    parser.add_argument(
        "--headers",
        type=Path,
        default=ROOT / "src",
        metavar="SRC",
        help="folder src of the old library, where structs of shmcoll.h have changed since",
    )
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument(
        "--setting", action="append", default=[], help="NAME=VALUE, of the new library alone"
    )
    parser.add_argument("--pairs", type=int, default=300, help="processes of each, 2 or more")
    parser.add_argument("-o", "--ops", default=OPS)
    parser.add_argument("-b", "--min", default="8")
    parser.add_argument("-e", "--max", default="8")
    parser.add_argument("-f", "--factor", default="8")
    parser.add_argument("-t", "--ms", default="5", help="of one round; there are 7")
    args = parser.parse_args()
    core = ROOT / "build" / "peers"
    if args.new is None:
        build_core(core)
    new = (args.new or library_of(core)).resolve()
    old = args.old.resolve()
    core.mkdir(parents=True, exist_ok=True)
    programs = core / "scaling-old", core / "scaling"
    compile_program(old, args.headers.resolve(), programs[0])
    compile_program(new, ROOT / "src", programs[1])
    arguments = ["-o", args.ops, "-b", args.min, "-e", args.max]
    arguments += ["-f", args.factor, "-t", args.ms, str(args.ranks)]
    was: list[dict[tuple[str, int], float]] = []
    now: list[dict[tuple[str, int], float]] = []
    wrong = [setting for setting in args.setting if "=" not in setting]
    if wrong:
        parser.error(f"--setting {wrong[0]} has no value: NAME=VALUE")
    arms: list[tuple[Path, Path, list[str], list[dict[tuple[str, int], float]]]]
    arms = [(programs[0], old, [], was), (programs[1], new, args.setting, now)]
    seen: list[noise.Activity] = []
    with noise.Watch(noise.children_s, os.sched_getaffinity(0)).over(seen.append):
        for pair in range(max(args.pairs, 2)):
            for program, library, settings, runs in arms if pair % 2 == 0 else reversed(arms):
                runs.append(measure(program, library, arguments, settings))
    print(f"{'operation':>16} {'bytes':>9} {'old us':>8} {'new us':>8}   old/new")
    for row in now[0]:
        before = [run[row] for run in was]
        after = [run[row] for run in now]
        ratio, error = ratio_of(before, after)
        print(
            f"{row[0]:>16} {row[1]:>9} {median(before):>8.3f} {median(after):>8.3f}"
            f"   {ratio:.3f} +- {error:.3f}"
        )
    print(f"# {args.pairs} pairs of processes of each; {noise.words(seen[0])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
