#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains the digits with two backends and shows both side by side: table, verdict, chart.

    examples/compare_backends.py                     # shmcoll and gloo
    examples/compare_backends.py shmcoll gloo mpi    # the last one is the reference

The runs take turns, A B A B ..., so that a drift of the machine hits both alike. The exit code is
0 if all runs ended well and all loss curves agree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

DEMO = Path(__file__).with_name("digits_ddp.py")

# What rounding may do to a loss curve. On two ranks nothing: a + b is b + a. On more, a backend may
# add in another order, which changes a sum by some 1e-7; training makes that grow, to a few
# thousandths after 150 steps with 3 ranks. A wrong sum shows in the first steps at once.
EARLY_STEPS = 20
EARLY_TOLERANCE = 1e-5
TOLERANCE = 5e-2

# Colours that differ for colour-blind readers and in grey.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")


class RunFailed(Exception):
    pass


@dataclass
class Contender:
    """A backend, and its runs in the order of the rounds."""

    label: str
    backend: str
    seed: int
    runs: list[dict[str, Any]] = field(default_factory=list)

    def figure(self, key: str) -> float:
        """The median over the rounds."""
        return float(median(run[key] for run in self.runs))

    @property
    def losses(self) -> list[float]:
        losses: list[float] = self.runs[0]["losses"]
        return losses

    @property
    def repeats_itself(self) -> bool:
        return all(run["losses"] == self.losses for run in self.runs)


@dataclass(frozen=True)
class Agreement:
    """How a backend's loss curves compare to the reference's: the worst over all rounds."""

    early: float
    worst: float
    bitwise: bool

    @property
    def good(self) -> bool:
        return self.early <= EARLY_TOLERANCE and self.worst <= TOLERANCE  # false for NaN


def agreement(one: Contender, reference: Contender) -> Agreement:
    curves = [run["losses"] for run in one.runs + reference.runs]
    differences = [
        [abs(ours - theirs) for ours, theirs in zip(curve, reference.losses, strict=True)]
        for curve in curves
    ]
    return Agreement(
        early=worst(value for steps in differences for value in steps[:EARLY_STEPS]),
        worst=worst(value for steps in differences for value in steps),
        bitwise=all(curve == reference.losses for curve in curves),
    )


def worst(values: Iterable[float]) -> float:
    """The largest; NaN if there is one."""
    return max(values, key=lambda value: (value != value, value))


def run_once(one: Contender, args: argparse.Namespace, json_file: Path) -> dict[str, Any]:
    """One training under torchrun, as a user would start it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(args.nproc), str(DEMO), "--backend", one.backend]
    command += ["--epochs", str(args.epochs), "--seed", str(one.seed), "--json", str(json_file)]
    json_file.unlink(missing_ok=True)
    begin = perf_counter()
    process = subprocess.Popen(
        command,
        env={"OMP_NUM_THREADS": "1", **os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=args.limit)
        code = process.returncode
        how = f"exit code {code}{first_error(output)}" if code else ""
    except subprocess.TimeoutExpired:
        output = end(process)
        how = f"no end after {args.limit:g} s"
    except KeyboardInterrupt:
        end(process)
        raise
    if how:
        log = json_file.with_suffix(".log")
        log.write_text(output, encoding="utf-8")
        raise RunFailed(f"{how}; all of its output: {log}")
    run: dict[str, Any] = json.loads(json_file.read_text(encoding="utf-8"))
    run["wall_s"] = perf_counter() - begin
    return run


def end(process: subprocess.Popen[str]) -> str:
    """Ends torchrun kindly, so that it ends its ranks; what it has printed."""
    process.terminate()
    try:
        output, _ = process.communicate(timeout=40)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output


def first_error(output: str) -> str:
    """The line with the exception that a rank died of; torchrun prints many more after it."""
    for line in output.splitlines():
        found = re.match(r"(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception)\b.*)", line)
        if found:
            return f": {found[1]}"
    return ""


def run_all(contenders: list[Contender], args: argparse.Namespace) -> None:
    for number in range(1, args.rounds + 1):
        for one in contenders:
            print(f"round {number}/{args.rounds}  {one.label:<12}", end=" ", flush=True)
            run = run_once(one, args, args.out / f"digits-{one.label}-{number}.json")
            one.runs.append(run)
            print(
                f"{run['wall_s']:5.1f} s, {run['step_ms']:.2f} ms per step, "
                f"test accuracy {run['test_accuracy']:.2%}",
                flush=True,
            )


# ---- the table ----

ROWS = (
    ("test accuracy", "test_accuracy", lambda value: f"{value:.2%}", False),
    ("final loss", "final_loss", lambda value: f"{value:.6f}", False),
    ("time per step", "step_ms", lambda value: f"{value:.2f} ms", True),
    ("time in communication", "comm_ms", lambda value: f"{value:.2f} ms", True),
    ("  with waiting for other ranks", "wait_ms", lambda value: f"{value:.2f} ms", True),
    ("init_process_group", "init_s", lambda value: f"{1e3 * value:.0f} ms", True),
    ("total wall time", "wall_s", lambda value: f"{value:.1f} s", True),
)


def ratio(one: Contender, reference: Contender, key: str) -> float:
    """The reference's time over this backend's: the median over the rounds' pairs."""
    pairs = zip(reference.runs, one.runs, strict=True)
    return float(median(theirs[key] / max(ours[key], 1e-9) for theirs, ours in pairs))


def table(contenders: list[Contender]) -> list[list[str]]:
    *others, reference = contenders
    head = ["", *(one.label for one in contenders)]
    head += [f"{reference.label} / {one.label}" for one in others]
    rows = [head]
    for name, key, show, is_time in ROWS:
        row = [name, *(show(one.figure(key)) for one in contenders)]
        for one in others:
            row.append(f"{ratio(one, reference, key):.2f}x" if is_time else "")
        rows.append(row)
    return rows


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    for number, row in enumerate(rows):
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("   ".join([first, *rest]).rstrip())
        if number == 0:
            print("   ".join("-" * width for width in widths))


def print_verdict(contenders: list[Contender]) -> bool:
    *others, reference = contenders
    good = True
    for one in contenders:
        if not one.repeats_itself:
            print(f"note: {one.label} does not repeat its own loss curve bit for bit")
    for one in others:
        found = agreement(one, reference)
        good = good and found.good
        bits = "bitwise equal" if found.bitwise else "not bitwise equal"
        print(
            f"loss curves of {one.label} and {reference.label}: {bits}, max. difference "
            f"{found.worst:.3g} over {len(reference.losses)} steps (tolerance "
            f"{EARLY_TOLERANCE:g} in the first {EARLY_STEPS}, then {TOLERANCE:g})"
        )
        if not found.good:
            print(f"VERDICT: {one.label} DISAGREES with {reference.label}")
            continue
        speed = ratio(one, reference, "step_ms")
        pace = f"a step takes {speed:.2f}x as long with {reference.label}"
        same = "the same training" if found.bitwise else "the same training up to rounding"
        print(f"VERDICT: {one.label} and {reference.label} do {same}; {pace}")
    return good


# ---- the chart ----


def draw(contenders: list[Contender], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
    figure = plt.figure(figsize=(11, 6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.7, 1), height_ratios=(2, 1))
    curves = figure.add_subplot(grid[0, 0])
    differences = figure.add_subplot(grid[1, 0], sharex=curves)
    draw_curves(curves, contenders)
    draw_differences(differences, contenders)
    draw_bars(figure.add_subplot(grid[:, 1]), contenders)
    ranks = contenders[0].runs[0]["world_size"]
    names = " and ".join(one.label for one in contenders)
    figure.suptitle(f"Handwritten digits, DDP on {ranks} ranks of one host: {names}", weight="bold")
    figure.savefig(file, dpi=130)
    plt.close(figure)


def draw_curves(axes: Any, contenders: list[Contender]) -> None:
    """The curves lie on each other: the first is a wide band, the last a thin line on top."""
    for number, one in enumerate(contenders):
        first = number == 0
        accuracy = f"{one.label}: test accuracy {one.figure('test_accuracy'):.2%}"
        axes.plot(
            range(1, len(one.losses) + 1),
            one.losses,
            color=COLOURS[number % len(COLOURS)],
            linewidth=4.5 if first else 1.1,
            alpha=0.55 if first else 1,
            label=accuracy,
        )
    axes.set_yscale("log")
    axes.set_ylabel("training loss (mean over ranks)")
    axes.tick_params(labelbottom=False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


def draw_differences(axes: Any, contenders: list[Contender]) -> None:
    *others, reference = contenders
    lines = []
    for number, one in enumerate(others):
        difference = [ours - theirs for ours, theirs in zip(one.losses, reference.losses)]
        steps = range(1, len(difference) + 1)
        axes.plot(steps, difference, color=COLOURS[number % len(COLOURS)], linewidth=1.5)
        found = agreement(one, reference)
        lines.append(
            f"{one.label}: bitwise equal at every step"
            if found.bitwise
            else f"{one.label}: at most {found.worst:.2g}"
        )
    top = max(abs(bound) for bound in axes.get_ylim())
    if all(agreement(one, reference).bitwise for one in others):
        top = 1e-7  # about one unit in the last place of a float32 near 1
    axes.set_ylim(-top, top)
    axes.text(0.99, 0.92, "\n".join(lines), transform=axes.transAxes, ha="right", va="top")
    axes.set_ylabel(f"difference\nto {reference.label}")
    axes.set_xlabel("step")
    axes.grid(alpha=0.25)


def draw_bars(axes: Any, contenders: list[Contender]) -> None:
    """A step of each backend: what the rank computes, and what it spends in communication."""
    steps = [one.figure("step_ms") for one in contenders]
    comms = [one.figure("comm_ms") for one in contenders]
    wide = {"width": 0.7}
    for x, (step, comm) in enumerate(zip(steps, comms)):
        colour = COLOURS[x % len(COLOURS)]
        rest = step - comm
        axes.bar(x, rest, color=colour, alpha=0.35, **wide)
        axes.bar(x, comm, bottom=rest, color=colour, **wide)
        middle = {"ha": "center", "va": "center"}
        axes.text(x, step, f"{step:.2f} ms", ha="center", va="bottom", weight="bold")
        axes.text(x, rest / 2, f"the rest\n{rest:.2f} ms", **middle)
        label = f"communication\n{comm:.2f} ms"
        if comm > 0.1 * max(steps):
            axes.text(x, rest + comm / 2, label, color="white", **middle)
        else:  # too thin for its label, which goes into the part below
            axes.text(x, rest - 0.01 * max(steps), label, ha="center", va="top")
    axes.set_xticks(range(len(contenders)), [one.label for one in contenders])
    axes.set_xlim(-0.5, len(contenders) - 0.5)
    axes.set_ylim(0, 1.1 * max(steps))
    axes.set_ylabel("time per step (ms), median")
    axes.tick_params(bottom=False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


# ---- the program ----


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("backends", nargs="*", default=["shmcoll", "gloo"], metavar="BACKEND")
    parser.add_argument("--nproc", type=int, default=2, help="ranks")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of a run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each backend")
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[0], help="one for all, or one for each backend"
    )
    parser.add_argument("--limit", type=float, default=100.0, help="seconds for one run")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory for results")
    args = parser.parse_args()
    if len(args.backends) < 2:
        parser.error("at least two backends")
    if len(args.seed) not in (1, len(args.backends)):
        parser.error("--seed: one for all, or one for each backend")
    return args


def make_contenders(args: argparse.Namespace) -> list[Contender]:
    seeds = args.seed * len(args.backends) if len(args.seed) == 1 else args.seed
    contenders: list[Contender] = []
    for backend, seed in zip(args.backends, seeds, strict=True):
        same = sum(one.backend == backend for one in contenders)
        label = f"{backend}#{same + 1}" if same else backend
        contenders.append(Contender(label, backend, seed))
    return contenders


def main() -> int:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    contenders = make_contenders(args)
    try:
        run_all(contenders, args)
    except RunFailed as failure:
        print(f"FAILED: {failure}")
        return 1
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    print()
    print_table(table(contenders))
    print("(medians over the rounds; ratios: median over the pairs of runs of the same round)\n")
    good = print_verdict(contenders)
    chart = args.out / "digits.png"
    try:
        draw(contenders, chart)
    except ImportError:
        print("no chart: matplotlib is not installed")
    else:
        print(f"chart: {chart}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
