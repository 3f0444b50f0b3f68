# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a run with a GPU: what is started, for how long, and what its lines amount to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import built
import mps as mps_daemon

Row = dict[str, Any]

TAKEN_S = 5.0  # for a process to get a CPU
STACKS_S = 0.2  # and to say where it stands
TOLD_S = 14.0  # from the signal that asks to the one that kills: poison takes its time
PACKAGES = "cmake, gcc, g++ and ninja (or make)"
LEAST_S = 12.0  # for an experiment, whatever those before it took
# "kill" is the last: it may leave what cannot be ended.
EXPERIMENTS = ("info", "share", "release", "handoff", "copies", "relay", "register", "graph")
EXPERIMENTS += ("queues", "queues of 32", "kill")


class Absent(Exception):
    """A tool or device that this machine does not have."""


class Failed(Exception):
    """The error, in one line."""


class TimeIsUp(Exception):
    """The command that still ran at its limit, and was ended."""


class Stopped(BaseException):
    """The whole run is told to end."""


@dataclass(frozen=True)
class Lab:
    root: Path
    driver: str  # the library that is libcuda
    quick: bool
    facts: dict[str, Any]

    @property
    def build(self) -> Path:
        return self.root / "build" / "gpu"

    @property
    def package(self) -> Path:
        """The folder from which `import shmcoll` is to work."""
        return self.build / "package"

    def program(self, name: str) -> Path:
        return self.build / "benchmarks" / name

    def script(self, name: str) -> list[str]:
        return [sys.executable, str(self.root / name)]


running: set[int] = set()  # leaders of process groups


def members(group: int) -> list[int]:
    """The processes that still run. Dead ones that nobody has asked for do not count: whose parent is
    gone may stay so for a while."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, of_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(of_group) == group and state not in "ZX":
            found.append(int(entry.name))
    return found


def threads_of(pid: int) -> list[str]:
    """Returns what the kernel says about a process's threads: where each waits, and how much CPU it used."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            waits = (task / "wchan").read_text().strip("0 ") or "-"
        except OSError:
            continue
        words = rest.split()
        ticks = int(words[11]) + int(words[12])
        lines.append(f"thread {task.name} {name}: {words[0]}, in {waits}, {ticks} ticks of CPU")
    return lines


def has_signal(pid: int, field: str, number: int) -> bool:
    """Is that signal in that set of /proc/PID/status?"""
    try:
        found = re.search(rf"^{field}:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return False
    return bool(found) and bool(int(found[1], 16) >> (number - 1) & 1)


def hears(pid: int, number: int) -> bool:
    """Whom a signal would not end."""
    return has_signal(pid, "SigCgt", number)


def await_taken(pid: int, number: int, limit_s: float) -> None:
    """On a busy machine a process takes a signal once it gets a CPU."""
    end = time.monotonic() + limit_s
    while has_signal(pid, "ShdPnd", number) and time.monotonic() < end:
        time.sleep(0.01)


def stands(pid: int) -> str:
    """Returns where a process is. The process itself writes its Python stacks to its output (SIGUSR2:
    faulthandler), and gets a moment for that."""
    lines = [f"---- process {pid}: {command_of(pid)}", *threads_of(pid)]
    if hears(pid, signal.SIGUSR2):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
            await_taken(pid, signal.SIGUSR2, TAKEN_S)
            time.sleep(STACKS_S)
    return "\n".join(lines) + "\n"


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:160]
    except OSError:
        return ""


def end_group(group: int, patience_s: float) -> bool:
    """Tells all of the group to end, then kills them. False: somebody is still there."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + patience_s
        told = 0
        while members(group):
            if told == 0 or number == signal.SIGKILL:  # a second SIGTERM would interrupt the first
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, number)
                told += 1
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        else:
            return True
    return False


def end_running() -> None:
    for group in list(running):
        end_group(group, TOLD_S)


def rows_of(text: str) -> list[Row]:
    """The lines that are JSON objects; all others are talk."""
    rows = []
    for line in text.splitlines():
        if line.startswith("{") and line.endswith("}"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


class Session:
    """One run of a part: its log, its time, the rows it has so far."""

    def __init__(self, lab: Lab, part: str, limit_s: float) -> None:
        self.lab = lab
        self.end = time.monotonic() + limit_s
        self.rows: list[Row] = []
        self.leftovers: list[str] = []
        folder = lab.build / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{part}.log"
        self.log.unlink(missing_ok=True)

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def mark(self) -> int:
        """Returns the current end of the log."""
        return self.log.stat().st_size if self.log.exists() else 0

    def since(self, mark: int) -> str:
        with self.log.open("rb") as log:
            log.seek(mark)
            return log.read().decode(errors="replace")

    def run(
        self,
        command: list[str | Path],
        limit_s: float = 1e9,
        env: dict[str, str] | None = None,
        told_s: float = TOLD_S,
    ) -> int:
        """Runs a command and returns its exit code. Its output goes to the log, its JSON lines to the rows.

        At the limit the log gets the stacks of its whole process group, which is ended, and TimeIsUp
        is raised. The rows until then are kept.
        """
        limit_s = min(limit_s, self.left_s)
        words = [str(word) for word in command]
        if limit_s < 1:
            raise TimeIsUp(f"{name_of(words)} was not begun: no time was left")
        begin = self.mark()
        with self.log.open("a") as log:
            log.write(f"+ {' '.join(words)}\n")
            log.flush()
            process = subprocess.Popen(
                words,
                cwd=self.lab.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            )
        running.add(process.pid)
        timed_out = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            for pid in sorted(members(process.pid)):
                self.note(stands(pid))
        finally:  # also where all is told to end
            self.settle(process, words, told_s)
            new = rows_of(self.since(begin))
            self.rows += new
        for row in new:
            print(json.dumps(row), flush=True)
        if timed_out:
            raise TimeIsUp(f"{name_of(words)} did not end within {limit_s:.0f} s; {self.log}")
        return process.returncode

    def note(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(text)

    def settle(self, process: subprocess.Popen[bytes], words: list[str], told_s: float) -> None:
        """Nobody of its group stays."""
        ended = process.returncode is not None
        if members(process.pid):
            if ended:  # what it started has a moment to see that it is alone
                time.sleep(0.5)
            if ended and members(process.pid):
                self.leftovers.append(f"processes of {name_of(words)}")
            if not end_group(process.pid, told_s):
                self.leftovers.append(f"a process of {name_of(words)} THAT CANNOT BE KILLED")
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        running.discard(process.pid)

    def must(self, command: list[str | Path], **options: Any) -> None:
        code = self.run(command, **options)
        if code:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-12:]
            print(*tail, sep="\n", flush=True)
            raise Failed(f"{name_of([str(w) for w in command])} ended with {code}; {self.log}")


def name_of(words: list[str]) -> str:
    """Returns a short name of a command."""
    shown = [Path(word).name for word in words if not word.startswith("-")]
    return " ".join(shown[1:3] if "python" in shown[0] else shown[:2])


# ---- the parts ----


def extend_search_path() -> None:
    """Tools that come with this Python, or with CUDA, are not always on PATH."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = os.environ.get("PATH", os.defpath).split(":")
    more = [str(Path(sys.executable).parent), *(f"{home}/bin" for home in homes if home)]
    more += ["/usr/local/cuda/bin", "/usr/local/nvidia/bin"]
    folders += [one for one in more if one not in folders and Path(one).is_dir()]
    os.environ["PATH"] = ":".join(folders)


def tools(lab: Lab) -> dict[str, str]:
    """Returns the environment of both builds: the tools, and the GPU."""
    needed = (("cmake",), ("cc", "gcc", "clang"), ("c++", "g++", "clang++"))
    missing = [names[0] for names in needed if not any(map(shutil.which, names))]
    if "CC" in os.environ and "CXX" in os.environ:
        missing = [name for name in missing if name == "cmake"]
    told = {"MAX_JOBS": str(os.cpu_count() or 2)}
    if "CMAKE_GENERATOR" not in os.environ:
        if shutil.which("ninja"):
            told["CMAKE_GENERATOR"] = "Ninja"
        elif shutil.which("make"):
            told["CMAKE_GENERATOR"] = "Unix Makefiles"
        else:
            missing.append("ninja (or make)")
    if missing:
        raise Failed(f"not on this machine: {', '.join(missing)}; needed: {PACKAGES}")
    if lab.facts.get("capability"):  # else what the environment says, or the default
        told["SHMCOLL_CUDA_ARCHS"] = lab.facts["capability"]
    return told


def fresh(folder: Path, generator: str, root: Path) -> None:
    """CMake refuses a folder that another generator has made, or that was carried from elsewhere."""
    cache = folder / "CMakeCache.txt"
    known = f"CMAKE_GENERATOR:INTERNAL={generator}\n", f"CMAKE_HOME_DIRECTORY:INTERNAL={root}\n"
    if cache.exists() and not all(line in cache.read_text() for line in known):
        cache.unlink()
        shutil.rmtree(folder / "CMakeFiles", ignore_errors=True)


def gpus_of(lab: Lab) -> str:
    """Returns the GPUs for which kernels are compiled; "" lets CMake decide."""
    gpus = lab.facts.get("capability") or os.environ.get("SHMCOLL_CUDA_ARCHS", "")
    return ";".join(gpus.replace(",", " ").split())


TARGETS = ("gpu_experiments", "scaling", "shmcoll")
AS_BEFORE = "built before"


def build(session: Session) -> tuple[str, str]:
    lab = session.lab
    gpus = gpus_of(lab)
    key, stamp = built.key_of(lab.root, lab.facts, gpus), lab.build / "built.json"
    said = built.said_before(stamp, key)
    if said is not None and lab.program("scaling").exists():
        return "ok", f"{AS_BEFORE}; {said}".rstrip("; ")
    stamp.unlink(missing_ok=True)
    env = tools(lab)
    if "CMAKE_GENERATOR" in env:
        fresh(lab.build, env["CMAKE_GENERATOR"], lab.root)
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DSHMCOLL_BENCHMARKS=ON"]
    options += [f"-DSHMCOLL_CUDA_ARCHS={gpus}"]
    session.must(["cmake", "-S", lab.root, "-B", lab.build, *options], env=env)
    command = ["cmake", "--build", lab.build, "-j", env["MAX_JOBS"], "--target", *TARGETS]
    session.must(command, env=env)
    said = kernels_of(session)
    built.write(stamp, key, said)
    return "ok", said


def check_headers() -> None:
    """Before minutes are spent on what needs them."""
    folders = [sysconfig.get_paths()["include"], *os.environ.get("CPATH", "").split(":")]
    if not any(Path(folder, "Python.h").exists() for folder in folders if folder):
        raise Failed(f"no Python.h in {folders[0]} (python3-dev; or a folder in CPATH)")


def package(session: Session) -> tuple[str, str]:
    lab = session.lab
    key = built.key_of(lab.root, lab.facts, gpus_of(lab), "torch", "python")
    stamp = lab.package / "built.json"
    before = built.said_before(stamp, key) is not None
    if not before:
        env = tools(lab)
        check_headers()
        if "CMAKE_GENERATOR" in env:
            fresh(lab.root / "build" / "core", env["CMAKE_GENERATOR"], lab.root)
        session.must([*lab.script("setup.py"), "build_ext", "--inplace"], env=env)
    built.collect_package(lab.root / "python", lab.package, binaries=not before)
    built.write(stamp, key, "")
    return "ok", AS_BEFORE if before else ""


def kernels_of(session: Session) -> str:
    """Returns what CMake printed about the kernels. Without a working nvcc CUDA is off."""
    said = re.findall(r"GPU kernels: (.*)", session.since(0))
    return f"kernels: {'; '.join(said)}" if said else ""


def experiments(session: Session) -> tuple[str, str]:
    lab, bad = session.lab, []
    program = lab.program("gpu/gpu_experiments")
    if not program.exists():
        raise Failed("it was not built")
    options = ["--driver", lab.driver, "--json", *(["--small"] if lab.quick else [])]
    for place, name in enumerate(EXPERIMENTS):
        behind = len(EXPERIMENTS) - 1 - place
        limit_s = min(90.0, max(session.left_s - LEAST_S * behind, LEAST_S))
        one_limit = [
            "--limit",
            f"{min(40.0, max(limit_s - TOLD_S, 5)):.0f}",
        ]  # of one number of ranks
        env = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"} if name.endswith(" of 32") else {}
        command: list[str | Path] = [program, *options, *one_limit, name]
        if name.startswith("queues"):
            command = [*lab.script("benchmarks/gpu/queues.py"), "--driver", lab.driver]
            limit_s = min(limit_s, 30)
        try:
            code = session.run(command, limit_s, env=env)
        except TimeIsUp as up:
            bad.append(str(up))
            continue
        if code:
            bad.append(f"{name} ended with {code}")
    return ("failed", "; ".join(bad)) if bad else ("ok", "")


def with_package(lab: Lab) -> dict[str, str]:
    """The environment in which `import shmcoll` finds what was built here."""
    paths = [str(lab.package), os.environ.get("PYTHONPATH", "")]
    # Else an import that asks torch whether there is CUDA has called the
    # driver, and CUDA refuses to work in the ranks that are forked.
    asked = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    return {"PYTHONPATH": ":".join(path for path in paths if path), **asked}


# What is no case of a plain collective has a part of its own.
GRAPHS = ("graphs:",)
SHARDED = ("DDP:", "FSDP2:", "DTensor:", "functional:")


def tensors(session: Session) -> tuple[str, str]:
    return run_cases(session, "--without", ",".join((*GRAPHS, *SHARDED)), "--no-death")


def graphs(session: Session) -> tuple[str, str]:
    return run_cases(session, "--only", ",".join(GRAPHS))


def sharded(session: Session) -> tuple[str, str]:
    return run_cases(session, "--only", ",".join(SHARDED))


def deaths(session: Session) -> tuple[str, str]:
    return run_cases(session, "--deaths")


def run_cases(session: Session, *options: str) -> tuple[str, str]:
    lab = session.lab
    command = [*lab.script("tests/gpu/test_cuda_tensors.py"), "--json", *options]
    command += ["--limit", f"{max(session.left_s - 20, 10):.0f}"]
    command += ["--worlds", "2"] if lab.quick else []
    code = session.run(command, env=with_package(lab))
    counts: dict[str, int] = {}
    for row in session.rows:
        if "case" in row:
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
    text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    again = [row for row in session.rows if "again" in row]
    if again:
        better = sum(row["outcome"] == "ok" for row in again)
        text += f"; {better} of {len(again)} tried again are ok with {again[0]['with']}"
    text = ", ".join([text or "no test ran", *routes(session)])
    return ("ok" if code == 0 and counts.get("ok") else "failed"), text


def routes(session: Session) -> list[str]:
    """The ways that groups of CUDA tensors went."""
    rows = [row for row in session.rows if "route" in row]
    return list(
        dict.fromkeys(f"route {row['route']} {row.get('memory', '')}".strip() for row in rows)
    )


def bench(session: Session) -> tuple[str, str]:
    quick = ["--worlds", "2", "--max", "1M"] if session.lab.quick else []
    return compare_backends(session, quick)


def mps(session: Session) -> tuple[str, str]:
    """Contexts of one MPS server do not take turns on the GPU."""
    tool = shutil.which(mps_daemon.CONTROL)
    if tool is None:
        raise Absent(f"no {mps_daemon.CONTROL} (it comes with NVIDIA's driver)")
    options = ["--worlds", "2", "--max", "64K"] if session.lab.quick else []
    options = options or ["--worlds", "8,2", "--max", "16M"]
    try:
        with mps_daemon.running(tool, session.note) as env:
            return compare_backends(session, options, env)
    except OSError as error:
        raise Failed(str(error)) from None


def compare_backends(
    session: Session, options: list[str], env: dict[str, str] | None = None
) -> tuple[str, str]:
    lab = session.lab
    command = [*lab.script("benchmarks/gpu/baselines.py"), "--json", *options]
    command += ["--seconds", f"{max(session.left_s - 15, 10):.0f}"]
    code = session.run(command, env=with_package(lab) | (env or {}))
    wrong = [row for row in session.rows if row.get("wrong")]
    if wrong:
        return "failed", f"{len(wrong)} rows with wrong values"
    refused = {row["backend"]: row["why"] for row in session.rows if row.get("works") is False}
    said = [f"{backend} refuses: {why}" for backend, why in refused.items()]
    text = "; ".join([*([] if code == 0 else [f"ended with {code}"]), *said, *routes(session)])
    ours = any(backend.startswith("shmcoll") for backend in refused)
    return ("ok" if code == 0 and not ours else "failed"), text


def nccl(session: Session) -> tuple[str, str]:
    lab = session.lab
    command = [*lab.script("benchmarks/gpu/with_nccl.py")]
    command += ["--limit", f"{max(session.left_s - 10, 10):.0f}"]
    code = session.run(command, env=with_package(lab))
    last = {row["with_nccl"]: row for row in session.rows if "with_nccl" in row}
    said = [f"{name}: {row['step']} {row['outcome']}" for name, row in last.items()]
    return ("ok" if code == 0 else "failed"), "; ".join(said) or f"it ended with {code}"


MPI_S = 60.0  # for everything with an MPI
GLOO_S = 60.0
# Exactly these sizes: the program multiplies by a factor.
MPI_SLICES = (
    ("-b", "8", "-e", "8", "-o", "all_reduce,broadcast,all_gather,barrier"),
    ("-b", "4K", "-e", "1M", "-f", "16", "-o", "all_reduce,broadcast,all_gather"),
)


def cpu(session: Session) -> tuple[str, str]:
    """Measures CPU tensors: growth with ranks and threads from C, then an MPI from C, and gloo from
    Python."""
    cpus = len(os.sched_getaffinity(0))
    program = session.lab.program("scaling")
    quick = ["-t", "2", "-e", "64K"] if session.lab.quick else []
    worlds = [n for n in (2, 4, 8, 16) if n <= max(cpus, 2)]
    for world in worlds:
        session.must([program, *quick, str(world)])
    for threads in (0, 1, 3, 7):
        if 2 * (threads + 1) <= cpus:
            wide = ["-c", str(threads + 1), "-b", "64K", "-o", "all_reduce"]
            env = {"SHMCOLL_THREADS": str(threads)}
            session.must([program, *quick[:2], *wide, "2"], env=env)
    worlds = worlds[:1] if session.lab.quick else worlds
    said = [compare_mpi(session, worlds), compare_gloo(session, worlds)]
    return "ok", "; ".join([f"{cpus} CPUs", *(text for text in said if text)])


def compare_mpi(session: Session, worlds: list[int]) -> str:
    """Compares with an MPI. A missing or failing MPI is a row: no MPI belongs to this project."""
    missing = [tool for tool in ("mpirun", "mpicc") if shutil.which(tool) is None]
    if missing:
        why = f"no {' and no '.join(missing)}"
        session.rows.append({"peer": "MPI", "why": why})
        return f"not compared with an MPI: {why}"
    end = time.monotonic() + min(MPI_S, session.left_s - 20)
    written = session.lab.build / "peers.json"
    for world in worlds:
        for options in MPI_SLICES:
            why = run_peers(session, world, options, written, end - time.monotonic())
            if why:
                session.rows.append({"peer": "MPI", "ranks": world, "why": why})
                return f"{world} ranks of an MPI: {why}"
    return ""


def run_peers(
    session: Session, world: int, options: Sequence[str], written: Path, limit_s: float
) -> str:
    """Runs peers.py. Returns its rows, and "" or why there are none."""
    lab = session.lab
    written.unlink(missing_ok=True)
    command = [*lab.script("benchmarks/peers.py"), "--core", lab.build, "-n", str(world)]
    command += ["--json", written, *options, "-r", "5", "-t", "5" if lab.quick else "10"]
    mark = session.mark()
    try:
        code = session.run(command, limit_s)
    except TimeIsUp:
        return "no time"
    if code or not written.exists():
        said = [line for line in session.since(mark).splitlines() if line.strip()]
        return f"benchmarks/peers.py ended with {code}: {said[-1][:200]}"
    for run in json.loads(written.read_text())["runs"]:
        for row in run["rows"]:
            ours, theirs = (statistics.median(row[key]) for key in ("ours_us", "theirs_us"))
            known = {"peer": run["other"], "ranks": world, "op": row["op"], "bytes": row["bytes"]}
            figures = {"shmcoll_us": ours, "peer_us": theirs, "ratio": theirs / ours}
            session.rows.append(known | figures | {"wrong": not row["right"]})
    return ""


def compare_gloo(session: Session, worlds: list[int]) -> str:
    lab = session.lab
    seconds = min(GLOO_S, session.left_s - 15)
    if not lab.package.exists() or seconds < 10:
        return "not compared with gloo: " + ("no time" if lab.package.exists() else "no package")
    command = [*lab.script("benchmarks/gpu/baselines.py"), "--device", "cpu"]
    command += ["--backends", "gloo,shmcoll", "--worlds", ",".join(map(str, worlds))]
    command += ["--max", "4K" if lab.quick else "1M", "--seconds", f"{seconds:.0f}"]
    try:
        code = session.run(command, seconds + 10, env=with_package(lab))
    except TimeIsUp as up:
        return str(up)
    return f"compared with gloo: it ended with {code}" if code else ""


def ddp(session: Session) -> tuple[str, str]:
    lab = session.lab
    options = ["--models", "mlp", "--buckets", "4,16", "--rounds", "5"]
    written = lab.build / "ddp.json"
    written.unlink(missing_ok=True)
    command = [*lab.script("benchmarks/ddp_step.py"), *options, "--json", written]
    session.must(command, env=with_package(lab))
    for row in json.loads(written.read_text())["rows"]:
        ms = {side: sorted(times)[len(times) // 2] for side, times in row["step_ms"].items()}
        kept = {key: row[key] for key in ("model", "bucket_mib", "wrong")}
        session.rows.append({"step": "ddp, cpu", **kept, **{f"{s}_ms": ms[s] for s in ms}})
    return "ok", ""


SANITIZER_FOUND = 86  # ours: no program of ours ends so by itself
# All ranks are slowed down, and twenty-fold is said to be common: what waits has more time.
SLOW = 6
SLOW_CASES = ("all_reduce float32", "all_gather float32", "reduce_scatter_flat float32")
SLOW_CASES += ("send_recv float32", "all_to_all_single float32", "graphs: a sum")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
FINDING = re.compile(r"^=+ (Invalid|Error|Race|Potential|Program hit|Address|Out-of|Device not)")


def judged(check: str, code: int | None, text: str) -> Row:
    """Returns the row of a run under compute-sanitizer: what it found, and how the program ended.

    `code`: None if it was ended.
    """
    lines = text.splitlines()
    counts = [int(count) for count in SUMMARY.findall(text)]
    found = [line.strip("= ") for line in lines if FINDING.match(line)]
    if code == SANITIZER_FOUND or any(counts):
        verdict = "errors found"
    elif code is None:
        verdict = "hung"
    elif not counts:
        verdict = "it said nothing"  # the tool itself did not work
    else:
        verdict = "clean, but the program failed" if code else "clean"
    row: Row = {"sanitizer": check, "verdict": verdict, "exit": code, "errors": sum(counts)}
    if verdict == "it said nothing":
        found = found or [line for line in lines if line.strip()][-3:]
    return row | {"first": "; ".join(dict.fromkeys(found[:5]))[:400]}


def sanitizer(session: Session) -> tuple[str, str]:
    """The experiments' kernels and copies, and the tensors' first world, under memcheck; the kernels
    under racecheck."""
    lab = session.lab
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise Absent("no compute-sanitizer (it comes with the CUDA toolkit)")
    small: list[str | Path] = [lab.program("gpu/gpu_experiments"), "--driver", lab.driver]
    small += ["--json", "--small", "--limit", "40", "--patience", "5000", "--ranks", "2"]
    script = lab.script("tests/gpu/test_cuda_tensors.py")
    cases = [*script, "--json", "--worlds", "2", "--no-death"]
    cases += ["--slow", str(SLOW), "--only", ",".join(SLOW_CASES)]
    verdicts: list[Row] = []
    programs: tuple[tuple[str, str, list[str | Path], float], ...] = (
        ("memcheck", "experiments", [*small, "share", "release"], 50),
        ("memcheck", "tensors", [*cases, "--limit", "60"], 70),
        ("racecheck", "experiments", [*small, "release"], 50),
    )
    for check, program, command, limit_s in programs:
        options = ["--tool", check, "--target-processes", "all"]
        options += ["--error-exitcode", str(SANITIZER_FOUND)]
        code: int | None = None
        mark = session.mark()
        with contextlib.suppress(TimeIsUp):
            code = session.run([tool, *options, *command], limit_s, env=with_package(lab))
        verdicts.append(judged(check, code, session.since(mark)) | {"program": program})
    # What the experiments measure so slowed down is no answer.
    session.rows = [row for row in session.rows if "case" in row] + verdicts
    bad = [row for row in verdicts if row["verdict"] != "clean"]
    texts = [f"{row['sanitizer']} of {row['program']}: {row['verdict']}" for row in bad]
    return ("failed", "; ".join(texts)) if bad else ("ok", "")


@dataclass(frozen=True)
class Part:
    run: Callable[[Session], tuple[str, str]]
    limit_s: float
    settles: str
    least_s: float = 15  # it is not begun with less
    due_s: float = 20  # kept for it by those before, whatever they would like
    needs: tuple[str, ...] = field(default=("build",))  # without these it is not run
    wants: tuple[str, ...] = ()  # these run before it, and may fail


# In the order of what is missing most. The package is no need where only a comparison is lost
# without it. Together they may ask for more than a run has: --next goes on in another one.
PARTS = {
    "build": Part(build, 120, "the C programs, from this checkout, or carried", needs=()),
    "package": Part(
        package, 180, "the Python package, against this torch, or carried", due_s=45, needs=()
    ),
    "bench": Part(
        bench,
        165,
        "all_reduce on one GPU: gloo, shmcoll, shmcoll without the relay",
        due_s=65,
        needs=(),
        wants=("package",),
    ),
    "tensors": Part(
        tensors,
        170,
        "collectives on CUDA tensors, compared with the same on CPU tensors",
        due_s=65,
        needs=("package",),
    ),
    "mps": Part(mps, 90, "the same as bench under an MPS server", due_s=40, needs=("package",)),
    "graphs": Part(graphs, 90, "captured operations, replayed", due_s=25, needs=("package",)),
    "nccl": Part(nccl, 100, "cpu:shmcoll,cuda:nccl in one group", due_s=35, needs=("package",)),
    "sharded": Part(
        sharded,
        90,
        "DDP, FSDP2, DTensor, functional collectives on one GPU",
        due_s=25,
        needs=("package",),
    ),
    "deaths": Part(deaths, 100, "a killed rank, while others wait", due_s=25, needs=("package",)),
    "cpu": Part(
        cpu,
        170,
        "2 to 16 ranks on CPUs, reduction threads, compared with an MPI and gloo",
        due_s=40,
        wants=("package",),
    ),
    "sanitizer": Part(
        sanitizer,
        180,
        "compute-sanitizer's memcheck and racecheck",
        due_s=50,
        wants=("package",),
    ),
    "ddp": Part(
        ddp, 60, "a training step on 2 ranks of the CPU, compared with gloo", needs=("package",)
    ),
    # The last: its last experiment may leave what cannot be ended.
    "experiments": Part(
        experiments, 170, "what the GPU really does (docs/notebook/cuda-experiments.md)", due_s=50
    ),
}
