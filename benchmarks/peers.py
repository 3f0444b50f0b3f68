# SPDX-License-Identifier: BSD-3-Clause
"""The C library compared with every MPI of this machine, or with another build of itself.

    python benchmarks/peers.py [-n RANKS] [--mpi openmpi] [-o OPS] [-b MIN] [-e MAX] [-f FACTOR] ...
    python benchmarks/peers.py --against old/libshmcoll.so   # is the change a gain? 8 bytes: in_turns.py
    python benchmarks/peers.py --setting SHMCOLL_TUNING=turn=128k  # would that be better here?
    python benchmarks/peers.py -d bfloat16,float16                # compared with our own float32
    python benchmarks/peers.py -k -o broadcast,reduce             # rank 0 is the root each time
    python benchmarks/peers.py -w -o stream                       # of data that has just been stored
    python benchmarks/peers.py -w -u -o sendrecv                  # and what came is read, which counts, too
    python benchmarks/peers.py --core build/gpu                   # with a library that is built already

Debian: apt-get install libopenmpi-dev openmpi-bin libmpich-dev mpich. Intel MPI: pip install impi-devel, into
the Python that runs this. oneCCL, which Intel MPI starts: pip install oneccl-devel impi-devel; it has no
gather, scatter and messages, and calls without workers (CCL_WORKER_OFFLOAD=0). `ratio` is the other's time
over ours. GB/s is how fast two ranks read lines that the other has just written, in the same
rounds: it tells whether the ranks share a cache. `roof` is the part of the time that scaling in
place and that exchange would take, `scale` that of the scaling alone, `bare` that of the flags and
copies of such an operation with no library around them. --json keeps every round.

Below the rows stand those whose rounds disagree, and whether the machine was busy: their ratios say little.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in ("judge", "run"):  # as plain modules: the package would load torch
    sys.path.insert(0, str(ROOT / "python" / "shmcoll" / "bench" / folder))
import noise  # noqa: E402
from mpirun import MPIS, TUNABLES, command as command_of  # noqa: E402

SOURCES = sorted((ROOT / "benchmarks" / "peers").glob("*.c"))

ONECCL = "oneccl"
PEERS = (*MPIS, ONECCL)

SCHEMA = "shmcoll.peers/1"


def build_core(folder: Path) -> None:
    settings = [f"-S{ROOT}", f"-B{folder}", "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run(["cmake", *settings], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "-j2"], check=True, stdout=subprocess.DEVNULL)


def library_of(core: Path) -> Path:
    return next(core.rglob("libshmcoll.so"))


def compiler_of(name: str) -> list[str] | None:
    """Returns the compiler of this MPI. The mpicc without a suffix belongs to the mpirun without one."""
    if name == ONECCL:
        return compiler_of_oneccl()
    if shutil.which(f"mpicc.{name}"):
        return [f"mpicc.{name}"]
    launcher = MPIS[name].launcher()
    if (
        launcher and "/" in launcher
    ):  # of a wheel, whose mpicc does not know where it has been installed
        prefix = Path(launcher).parents[1]
        found = (prefix / "include" / "mpi.h").exists()
        flags = [f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"]
        return ["cc", *flags, "-Wl,--no-as-needed", "-lmpi"] if found else None
    return ["mpicc"] if launcher == "mpirun" and shutil.which("mpicc") else None


def prefix_of_oneccl() -> Path | None:
    """Returns the folder of Intel MPI's wheel, if oneCCL's is there too."""
    launcher = MPIS["intelmpi"].launcher()
    if launcher is None or "/" not in launcher:
        return None
    prefix = Path(launcher).parents[1]
    needed = ("include/oneapi/ccl.hpp", "lib/libccl.so")
    return prefix if all((prefix / name).exists() for name in needed) else None


def compiler_of_oneccl() -> list[str] | None:
    prefix, compiler = prefix_of_oneccl(), compiler_of("intelmpi")
    if prefix is None or compiler is None:
        return None
    # Its own libraries are found by the path that the ranks are started with.
    return [*compiler, "-DPEERS_ONECCL", "-lccl", "-Wl,--allow-shlib-undefined"]


def compile_oneccl(core: Path) -> list[str]:
    """Compiles what calls oneCCL, which is C++. Returns what the program is linked with."""
    folder, compiled = ROOT / "benchmarks" / "peers", core / "peers.oneccl.o"
    flags = ["-std=c++17", "-O3", "-DPEERS_ONECCL", f"-I{ROOT / 'src'}"]
    flags += [f"-I{prefix_of_oneccl()}/include"]
    command = ["c++", *flags, "-c", str(folder / "oneccl.cc"), "-o", str(compiled)]
    if subprocess.run(command).returncode:
        sys.exit("c++ cannot compile this with oneCCL's header")
    return [str(compiled), "-lstdc++"]


def launch_of(name: str, ranks: int) -> tuple[list[str] | None, dict[str, str]]:
    """Returns the words before the program, and its environment."""
    env = {**os.environ, "GLIBC_TUNABLES": TUNABLES}
    if name != ONECCL:
        return command_of(name, ranks, bind=True), env
    return command_of("intelmpi", ranks, bind=True), {**env, "CCL_WORKER_OFFLOAD": "0"}


def compile_with(name: str, core: Path, program: Path) -> None:
    compiler = compiler_of(name) or [f"mpicc.{name}"]
    sources = (*SOURCES, SOURCES[0].parent / "oneccl.cc")
    newest = max(path.stat().st_mtime for path in (*sources, library_of(core)))
    if program.exists() and program.stat().st_mtime > newest:
        return
    command = [*compiler, "-std=gnu11", "-O3", "-march=native", "-Wall"]
    command += [f"-I{ROOT / 'src'}", *map(str, SOURCES), "-o", str(program)]
    library = library_of(core)
    command += [str(library), f"-Wl,-rpath,{library.parent}", "-ldl"]
    if name == ONECCL:
        command += compile_oneccl(core)
    if subprocess.run(command).returncode:
        sys.exit(f"{compiler[0]} cannot compile this: is lib{name}-dev there?")


def read_run(other: str, path: Path) -> dict[str, Any]:
    """Returns the output of the program: its head, and the rows."""
    head, *rows = (json.loads(line) for line in path.read_text().splitlines())
    return {"other": other, **head, "rows": rows}


def judged(run: dict[str, Any], activity: noise.Activity) -> dict[str, Any]:
    """Adds to the run which rows can be trusted, by the judgement that all programs here use."""
    for row in run["rows"]:
        pairs = zip(row["ours_us"], row["theirs_us"])
        row["noisy"] = noise.disagree([theirs / ours for ours, theirs in pairs])
    return {**run, "said": noise.words(activity), "activity": asdict(activity)}


def remarks(run: dict[str, Any]) -> list[str]:
    noisy = [f"{row['op']} {row['bytes']}" for row in run["rows"] if row["noisy"]]
    lines = [f"# {run['said']}"]
    if noisy:
        many = f"{len(noisy)} of {len(run['rows'])} rows varied by more than {noise.DISAGREE:g}x"
        lines.append(f"# {noise.MARK} {many} between rounds: {', '.join(noisy)}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument(
        "--mpi", choices=PEERS, action="append", help="default: all there are, and oneCCL"
    )
    parser.add_argument("--against", metavar="LIBRARY", help="a libshmcoll.so, in MPI's place")
    parser.add_argument(
        "--setting", metavar="NAME=VALUE", help="of that library; alone: of this one"
    )
    parser.add_argument(
        "--core", type=Path, metavar="FOLDER", help="a build of it; default: a new one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every round of every row")
    args, rest = parser.parse_known_args()
    wanted = args.mpi or PEERS
    found = [name for name in wanted if compiler_of(name)]
    for name in wanted:
        if name not in found:
            print(f"# not here: {name}")
    beside_itself = args.against or args.setting or "-d" in rest
    if beside_itself:
        found = found[:1]
    if not found:
        print("no MPI: apt-get install libopenmpi-dev openmpi-bin", file=sys.stderr)
        return 2
    core = args.core or ROOT / "build" / "peers"
    if not args.core:
        build_core(core)
    runs = []
    watch = noise.Watch(noise.children_s, os.sched_getaffinity(0))
    for name in found:
        program = core / f"peers.{name}"
        compile_with(name, core, program)
        launch, env = launch_of(name, args.ranks)
        if launch is None:
            sys.exit(f"no mpirun of {name}")
        print(f"# {name}, {args.ranks} ranks", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder, "rows")
            command = [*launch, str(program), folder, "-j", str(rows), *rest]
            if args.against or args.setting:  # a copy: the loader knows files, not paths
                other = shutil.copy(args.against or library_of(core), f"{folder}/other.so")
                command += ["-a", other]
            if args.setting:
                command += ["-s", args.setting]
            seen: list[noise.Activity] = []
            with watch.over(seen.append):
                subprocess.run(command, check=True, env=env)
            other_name = "itself" if beside_itself else name
            runs.append(judged(read_run(other_name, rows), seen[0]))
            print(*remarks(runs[-1]), sep="\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"schema": SCHEMA, "runs": runs}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
