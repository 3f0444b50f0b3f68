#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the examples of frameworks under gloo and under shmcoll, and compares results and times.

    make frameworks                                            all of them
    make frameworks ONLY=fsdp2                                 one of them
    python examples/frameworks/common/compare.py fsdp2         the same, with this Python's torch and shmcoll
    ... compare.py --switch fsdp2       what asks for gloo by its name, without and with SHMCOLL_FOR_GLOO=1

An example imports from this file what every example needs: the backend's name (`backend`), a loop that is
timed (`steps`), and a place for its results (`report`). It is started once for each backend and round, the
backends by turns. With two ranks a + b is b + a, so results must be equal.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / "build" / "frameworks"
RANKS = 2
SWITCH = {"SHMCOLL_FOR_GLOO": "1", "SHMCOLL_LOG": "info"}
SWITCHED = "asked for gloo; its 2 ranks get shmcoll"  # says the log
LIMIT_S = 600.0  # for one run of one example: DeepSpeed compiles for minutes when it first starts


@dataclasses.dataclass
class Run:
    script: str
    arguments: tuple[str, ...] = ()
    torchrun: bool = True  # False: the framework starts the ranks itself
    backends: tuple[str, str] = ("gloo", "shmcoll")  # the reference comes first
    together: bool = False  # one start runs both, by turns
    tolerance: float = 0.0  # relative, of a float32 result; 0: the same bits

    @property
    def name(self) -> str:
        return " ".join([Path(self.script).parent.name, *self.arguments])


EXAMPLES = (
    Run("ddp/train.py"),
    Run("fsdp2/train.py"),
    Run("dtensor/decode.py"),
    Run("accelerate/train.py"),
    Run("hf_trainer/train.py"),
    Run("lightning/train.py", ("ddp",)),
    Run("lightning/train.py", ("fsdp2",)),
    Run("lightning/train.py", ("tp",)),
    Run("deepspeed/train.py"),
    Run("ray/train.py", torchrun=False),
    Run("torchrec/train.py"),
    Run("torchft/train.py", torchrun=False),
    Run("checkpoint/save.py", ("sync",)),
    Run("checkpoint/save.py", ("async",)),
    Run("torchmetrics/evaluate.py"),
    Run("vllm/decode.py", torchrun=False, backends=("vllm", "shmcoll"), together=True),
)

# ---- what an example uses ----

backend = os.environ.get("EXAMPLE_BACKEND", "shmcoll")
_times: list[float] = []


def steps(count: int, warm_up: int = 10) -> Iterator[int]:
    """Counts to `count`. The time of each step is kept, except those of the first ones."""
    for step in range(count):
        begun = perf_counter()
        yield step
        if step >= warm_up:
            _times.append(perf_counter() - begun)


def report(
    results: dict[str, Any], rank: int, times: list[float] | None = None, name: str = backend
) -> None:
    """Keeps this rank's results for the comparison: tensors, or anything with an ==."""
    import torch

    path = os.environ.get("EXAMPLE_RESULTS")
    own = median(times or _times)
    if path:
        torch.save({"results": results, "step_s": own}, Path(path) / f"{name}-{rank}.pt")
    else:
        print(f"rank {rank}: {name}, {1e3 * own:.3f} ms per step")


# ---- running them ----


class ExampleFailed(Exception):
    """With what the user is told."""


def requirements(run: Run) -> tuple[list[str], list[str]]:
    """What the example's requirements.txt installs, and what it removes after that."""
    file = HERE / Path(run.script).parent / "requirements.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    removed = [line.removeprefix("# remove:") for line in lines if line.startswith("# remove:")]
    wanted = [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]
    return wanted, " ".join(removed).split()


def python_for(run: Run) -> str:
    """This Python, or one in a virtual environment that has the example's requirements as well.

    The environment sees what this Python has, torch and shmcoll among it, and installs the rest.
    """
    wanted, removed = requirements(run)
    if not wanted:
        return sys.executable
    folder = ENVIRONMENTS / Path(run.script).parent.name
    python, done = folder / "bin" / "python", folder / "installed.txt"
    stamp = "\n".join([sys.executable, *wanted, *removed])
    if done.exists() and done.read_text(encoding="utf-8") == stamp:
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {' '.join(wanted)} into {folder}", flush=True)
    must(sys.executable, "-m", "venv", "--without-pip", str(folder))
    inside = sysconfig.get_path("purelib", vars={"base": str(folder)})
    outside = sysconfig.get_path("purelib")
    Path(inside, "shared.pth").write_text(f"import site; site.addsitedir({outside!r})\n")
    must(str(python), "-m", "pip", "install", "-q", *wanted)
    if removed:
        must(str(python), "-m", "pip", "uninstall", "-q", "-y", *removed)
        # Files that a removed package shares with a wanted one are gone, too.
        again = ("install", "-q", "--no-deps", "--force-reinstall")
        must(str(python), "-m", "pip", *again, *wanted)
    done.write_text(stamp, encoding="utf-8")
    return str(python)


def must(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExampleFailed(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def end(process: subprocess.Popen[str]) -> str:
    """Ends a launcher kindly, so that it ends its ranks, which have sessions of their own."""
    process.terminate()
    try:
        return process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "the launcher did not end its ranks"


def run_once(
    run: Run, names: tuple[str, ...], python: str, switch: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Starts the example once. Returns what the ranks have reported under each of the names.

    `switch`: the groups that ask for gloo get shmcoll, without a change of the example.
    """
    import torch

    command = [python, *(["-m", "torch.distributed.run"] if run.torchrun else [])]
    command += ["--standalone", f"--nproc-per-node={RANKS}"] if run.torchrun else []
    command += [str(HERE / run.script), *run.arguments]
    with tempfile.TemporaryDirectory(prefix="shmcoll-example-") as folder:
        own = {"EXAMPLE_BACKEND": names[0], "EXAMPLE_RESULTS": folder, "OMP_NUM_THREADS": "1"}
        paths = [str(HERE / "common"), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                **own,
                **(SWITCH if switch else {}),
            },
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except BaseException as error:
            said = end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said += f"\nnot done after {LIMIT_S:.0f} s"
        missing = [name for name in names if len(list(Path(folder).glob(f"{name}-?.pt"))) < RANKS]
        if process.returncode or missing:
            raise ExampleFailed(f"exit code {process.returncode}\n{said[-6000:]}")
        if switch and SWITCHED not in said:
            raise ExampleFailed(f"no group got shmcoll in gloo's place\n{said[-6000:]}")
        return {
            name: [torch.load(f"{folder}/{name}-{r}.pt", weights_only=False) for r in range(RANKS)]
            for name in names
        }


def difference(got: Any, want: Any, tolerance: float) -> str:
    """Says how two ranks' results differ; "" if they do not."""
    import torch

    if got.keys() != want.keys() or not want:
        return f"other results: {sorted(got)}, {sorted(want)}"
    for name, value in want.items():
        if not isinstance(value, torch.Tensor):
            if got[name] != value:
                return f"{name}: {got[name]} is not {value}"
            continue
        if not value.isfinite().all():
            return f"{name}: not finite"
        same = torch.equal(got[name], value)
        if not same and not torch.allclose(got[name], value, rtol=tolerance, atol=tolerance / 10):
            return f"{name}: differs by at most {(got[name] - value).abs().max().item():.3g}"
    return ""


def compare(run: Run, rounds: int, switch: bool = False) -> dict[str, Any]:
    """Runs one example in two ways by turns. Raises ExampleFailed if results differ.

    The ways are its two backends; or, with `switch`, gloo without and with the variable.
    """
    python = python_for(run)
    reference = run.backends[0]
    ways: list[tuple[str, tuple[str, ...], bool]] = []  # title, backends of the start, switched
    if switch:
        ways = [("gloo", ("gloo",), False), ("gloo, switched", ("gloo",), True)]
    elif run.together:
        ways = [(" and ".join(run.backends), run.backends, False)]
    else:
        ways = [(name, (name,), False) for name in run.backends]
    times: dict[str, list[float]] = {}
    first: list[dict[str, Any]] = []
    for _ in range(rounds):
        found: dict[str, list[dict[str, Any]]] = {}
        for title, names, switched in ways:
            try:
                ranks_of = run_once(run, names, python, switched)
            except ExampleFailed as failure:
                raise ExampleFailed(f"under {title}: {failure}") from None
            found.update(ranks_of if len(names) > 1 else {title: ranks_of[names[0]]})
        for title, ranks in found.items():
            first = first or ranks
            for rank, (mine, other) in enumerate(zip(ranks, first)):
                how = difference(mine["results"], other["results"], run.tolerance)
                if how:
                    raise ExampleFailed(f"{title}, rank {rank}, not as under {reference}: {how}")
            times.setdefault(title, []).append(max(one["step_s"] for one in ranks))
    theirs, ours = times.values()
    return {
        "ratio": median(a / b for a, b in zip(theirs, ours)),
        "times": [f"{title} {1e3 * median(times[title]):.3f} ms" for title in times],
        "equal": f"within {run.tolerance:g}" if run.tolerance else "exactly",
    }


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cpus, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    busy = ", busy machine" if load > 0.5 else ""
    return f"{(models or [platform.machine()])[0]}, {cpus} CPUs, load {load:.1f}{busy}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("only", nargs="*", help="examples; all if none is named")
    parser.add_argument("--rounds", type=int, default=3, help="runs under each backend")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument(
        "--switch", action="store_true", help="gloo compared with gloo under SHMCOLL_FOR_GLOO=1"
    )
    args = parser.parse_args()
    chosen = [run for run in EXAMPLES if not args.only or Path(run.script).parent.name in args.only]
    if args.switch:
        chosen = [run for run in chosen if "gloo" in run.backends]
    if not chosen:
        known = sorted({Path(run.script).parent.name for run in EXAMPLES})
        parser.error(f"no such example; there are: {', '.join(known)}")
    import torch

    print(
        f"{machine()}; torch {torch.__version__}; {RANKS} ranks, {args.rounds} rounds", flush=True
    )
    figures, failed = {}, []
    for run in chosen:
        try:
            found = figures[run.name] = compare(run, args.rounds, args.switch)
        except ExampleFailed as failure:
            failed.append(run.name)
            print(f"{run.name:28} FAILED: {failure}", flush=True)
            continue
        row = f"{found['ratio']:5.2f}x   results equal {found['equal']:10}"
        print(f"{run.name:28} {row} {', '.join(found['times'])}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(f"{len(figures)} examples passed, {len(failed)} failed {' '.join(failed)}".rstrip())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
