#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the protocol models, and that each of them finds every fault it names.

A model is NAME.pml (spin) or weak_NAME.cc (relacy). Its header comment lists its faults; each
FAULT_x, a macro for spin and WITH(FAULT_x) for relacy, takes one rule of docs/internals/protocol/ away.
Without a fault the model must hold, over all its states, with every statement reached; with a fault
it must fail. With --partly, a model visits a part of its states, or makes a quarter of its executions;
its faults must be found all the same.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

MEMORY_MIB = 1800
MAX_DEPTH = 100000
LIMIT_S = 150  # of one check
# Of a table of 2^20 bits, in which a state takes three: some 300000 states, from all over the model.
PART_OF_STATES = ("-DBITSTATE", "-w20")
PART_OF_EXECUTIONS = "4"


class Surprise(Exception):
    """A check that did not end as it must."""


@dataclasses.dataclass
class Outcome:
    holds: bool
    detail: str  # how far the search went, or what it found
    size: int  # states or executions


def run(command, folder):
    """Returns the output of a command, and its status. A time-out is a surprise."""
    limit = (MEMORY_MIB << 20, MEMORY_MIB << 20)
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=LIMIT_S,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
        )
    except subprocess.TimeoutExpired:
        raise Surprise(f"not over after {LIMIT_S} s: {command[0]}") from None
    return done.stdout, done.returncode


def build(command, folder):
    output, status = run(command, folder)
    if status != 0:
        raise Surprise(f"{command[0]} failed:\n{output.strip()}")


def tool(*names):
    found = next(filter(None, map(shutil.which, filter(None, names))), None)
    if found is None:
        raise Surprise(f"{names[-1]} is not installed")
    return found


# ---- spin ----


def unreached(output):
    """Assertions that no run comes to: they assert nothing."""
    return re.findall(r"^\s+\S*?(\w+\.pml:\d+), state \d+, \"(assert.*)\"$", output, re.M)


def run_spin(model, fault, folder, partly):
    """Visits all states of the model, or a part of them."""
    partly = partly and not fault
    build([tool("spin"), *([f"-D{fault}"] if fault else []), "-a", model], folder)
    # A fault is found early: there, compiling costs more than running; tcc takes a fiftieth of the
    # time, and its programs two or three times as long. -O1: what -O2 makes is no faster.
    quick = [tool("tcc", os.environ.get("CC"), "cc", "gcc")]
    compiler = quick if fault or partly else [tool(os.environ.get("CC"), "cc", "gcc"), "-O1"]
    options = ["-w", "-DSAFETY", f"-DMEMLIM={MEMORY_MIB * 3 // 4}"]
    build([*compiler, *options, *PART_OF_STATES[: int(partly)], "-o", "pan", "pan.c"], folder)
    bounds = [f"-m{MAX_DEPTH}", *PART_OF_STATES[1 : 1 + int(partly)]]
    output, _ = run([folder / "pan", *bounds], folder)
    error = re.search(r"^pan:\d+: (assertion violated .*?|invalid end state) ?\(at", output, re.M)
    if error:
        return Outcome(False, error.group(1), 0)
    stored = re.search(r"^\s*(\d+) states, stored", output, re.M)
    complete = "errors: 0" in output and "Search not completed" not in output
    if not stored or not complete or "max search depth too small" in output:
        raise Surprise(f"the search is not complete:\n{output.strip()}")
    never = unreached(output)
    if never and not fault and not partly:
        raise Surprise(f"never reached: {'; '.join(' '.join(one) for one in never)}")
    kind = "states of a part" if partly else "states"
    return Outcome(True, f"{stored.group(1)} {kind}", int(stored.group(1)))


# ---- relacy ----


def run_relacy(model, fault, folder, partly):
    """Many executions of the real code, with loads that return any value the orders allow."""
    program = folder / "model"
    if not program.exists():
        compiler = tool(os.environ.get("CXX"), "c++", "g++")
        includes = [f"-I{HERE / 'relacy'}", f"-I{ROOT / 'src'}", f"-I{ROOT}"]
        # With a quarter of the executions, optimising takes longer than it saves.
        level = "-O0" if partly else "-O1"
        build([compiler, "-std=c++17", level, "-w", *includes, "-o", program, model], folder)
    part = [PART_OF_EXECUTIONS] if partly else []
    output, status = run([program, fault or "", *part], folder)
    error = re.search(r"^FOUND (.+)$", output, re.M)
    if error:
        return Outcome(False, error.group(1), 0)
    count = re.search(r"^HOLDS (\d+)$", output, re.M)
    if status != 0 or not count:
        raise Surprise(f"ended with status {status}:\n{output.strip()[-2000:]}")
    return Outcome(True, f"{count.group(1)} executions", int(count.group(1)))


# ---- all ----


def models():
    """Name -> its files: NAME.pml, weak_NAME.cc."""
    found = {}
    for path in sorted([*HERE.glob("*.pml"), *HERE.glob("weak_*.cc")]):
        found.setdefault(path.stem, []).append(path)
    return found


def faults_of(model):
    """The faults that the header lists; they are those that the code has."""
    text = model.read_text(encoding="utf-8")
    listed = re.findall(r"^(?: \*|//) (FAULT_\w+)", text, re.M)
    used = set(re.findall(r"^#.*?\b(FAULT_\w+)", text, re.M))
    used.update(re.findall(r"^#.*defined\((FAULT_\w+)\)", text, re.M))
    used.update(re.findall(r"WITH\((FAULT_\w+)\)", text))
    if set(listed) != used:
        raise Surprise(f"header and code differ: {sorted(set(listed) ^ used)}")
    if not listed:
        raise Surprise("no fault: nothing shows that it can fail")
    return listed


def check_one(model, fault, folder, partly):
    """One line of the report; True when all is as it must be."""
    begun = time.monotonic()
    name = f"{model.stem} {fault}" if fault else model.stem
    search = run_spin if model.suffix == ".pml" else run_relacy
    try:
        outcome = search(model, fault, folder, partly)
    except Surprise as surprise:
        print(f"{name}: SURPRISE: {surprise}", flush=True)
        return False
    seconds = time.monotonic() - begun
    if fault:
        said = f"found: {outcome.detail}" if not outcome.holds else f"NOT FOUND, {outcome.detail}"
    else:
        said = f"holds, {outcome.detail}" if outcome.holds else f"FAILS: {outcome.detail}"
    print(f"{name}: {said} ({seconds:.1f} s)", flush=True)
    return outcome.holds != bool(fault)


def chosen_of(model, options):
    """The model itself, as "", and its faults, or the part of them that is asked for."""
    faults = faults_of(model)
    named = {f"FAULT_{name}" for name in (options.without or options.only).split(",") if name}
    if not named <= set(faults):
        raise Surprise(f"no such fault: {', '.join(sorted(named - set(faults)))}")
    if options.only:
        return [fault for fault in faults if fault in named]
    left = [fault for fault in faults if fault not in named]
    if not left:
        raise Surprise("no fault is left: nothing shows that it can fail")
    return ["", *left]


def check(model, options):
    try:
        chosen = chosen_of(model, options)
    except Surprise as surprise:
        print(f"{model.stem}: SURPRISE: {surprise}", flush=True)
        return False
    with tempfile.TemporaryDirectory(prefix="shmcoll-models-") as name:
        folder = pathlib.Path(name)
        return all([check_one(model, fault, folder, options.partly) for fault in chosen])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these models alone")
    parser.add_argument(
        "--without", default="", help="leaves out these faults, as in: odd_rounds,no_reset"
    )
    parser.add_argument("--partly", action="store_true", help="a part of each model's states")
    parser.add_argument("--only", default="", help="these faults alone, without the model itself")
    options = parser.parse_args()
    every = models()
    unknown = set(options.names) - set(every)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    chosen = options.names or list(every)
    good = [check(model, options) for name in chosen for model in every[name]]
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
