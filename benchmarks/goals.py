# SPDX-License-Identifier: BSD-3-Clause
"""Runs the benchmarks, and says for each goal of the project whether it is met.

    python benchmarks/goals.py [--only NAME] [--quick] [--report] [--folder build/goals]

The run has parts of a few minutes each (`--list`). Each part writes its results to the folder, so that
`--only` can repeat one part, and `--report` can judge the files without a run. The verdicts are printed
and written to goals.json and goals.md in the folder. A goal that is not met is no failure. The verdict is
"noisy" if the rounds disagree about a goal, or if its part ran on a busy machine.

exit code: 0, or 1 if something failed to run or gave wrong values, or 2 after bad usage
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scores import report as reports
from scores.judge import doubted, judge
from scores.parts import PARTS, ROOT, Absent, Failed, Lab
from scores.report import Record, Report
from scores.table import GOALS

from shmcoll.bench import machine, provenance, topology
from shmcoll.bench.judge import noise


def measure(name: str, folder: Path, quick: bool) -> Record:
    lab = Lab(folder, name, quick)
    (folder / f"{name}.log").unlink(missing_ok=True)
    started = datetime.now(timezone.utc).isoformat(" ", "seconds").removesuffix("+00:00")
    begun, status, why, rows = time.monotonic(), "ok", "", ()
    seen: list[noise.Activity] = []
    watch = noise.Watch(noise.children_s, os.sched_getaffinity(0))
    try:
        with watch.over(seen.append):
            rows = tuple(PARTS[name](lab))
    except Absent as absent:
        status, why = "absent", str(absent)
    except Failed as failed:
        status, why = "failed", str(failed)
    except (
        OSError,
        ValueError,
        KeyError,
    ) as error:  # what a program wrote is not what it should be
        status, why = "failed", f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    commit = provenance.commit(ROOT) or ""
    return Record(name, status, why, quick, started, seconds, commit, rows, noise.together(seen))


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.rows.json"


def run_parts(names: Sequence[str], folder: Path, quick: bool) -> None:
    for name in names:
        print(f"{name:18}", end="", flush=True)
        record = measure(name, folder, quick)
        path_of(folder, name).write_text(json.dumps(asdict(record)) + "\n")
        busy = noise.words(record.activity) if record.busy else ""
        said = f"{record.seconds:6.0f} s  {record.status}  {record.why or busy}"
        print(said.rstrip(), flush=True)


def make_report(names: Sequence[str], folder: Path) -> Report:
    """Makes the report from the parts that have left a file in the folder."""
    files = [path_of(folder, name) for name in names]
    records = [Record.of(json.loads(file.read_text())) for file in files if file.exists()]
    facts = machine.gather()
    rows = [row for record in records for row in record.rows]
    absent = dict.fromkeys(names, "has not run") | {
        record.part: f"{record.status}: {record.why}" if record.why else "" for record in records
    }
    goals = [goal for goal in GOALS if goal.part in names]
    busy = {record.part: noise.words(record.activity) for record in records if record.busy}
    judgements = [
        doubted(judge(goal, rows, facts.cpus_usable, absent), busy.get(goal.part)) for goal in goals
    ]
    return Report(facts_of(facts), records, judgements)


def facts_of(facts: machine.Machine) -> dict[str, Any]:
    date = datetime.now(timezone.utc).date().isoformat()
    allowed = os.sched_getaffinity(0)
    return {
        "date": date,
        "torch": facts.versions["torch"],
        **asdict(facts),
        "argv": sys.argv[1:],
        "environment": provenance.variables(os.environ),
        "build": provenance.build(),
        "topology": asdict(topology.read(Path("/"), allowed)),
        "governor": machine.governor(Path("/"), allowed),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAME", help="parts whose name contains it")
    parser.add_argument("--quick", action="store_true", help="few sizes: does everything run?")
    parser.add_argument("--report", action="store_true", help="run nothing, judge what is there")
    parser.add_argument("--list", action="store_true", help="the parts, and their goals")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "goals", metavar="DIR")
    args = parser.parse_args(argv)
    names = [name for name in PARTS if args.only in name]
    if not names:
        parser.error(f"--only {args.only}: no part of {', '.join(PARTS)} is called so")
    if args.list:
        for name in names:
            print(name, *(f"    {g.name}  {g.demand}" for g in GOALS if g.part == name), sep="\n")
        return 0
    args.folder.mkdir(parents=True, exist_ok=True)
    if not args.report:
        run_parts(names, args.folder, args.quick)
    report = make_report(names, args.folder)
    print(*reports.terminal(report), sep="\n")
    text = json.dumps(reports.as_json(report), indent=1)
    (args.folder / "goals.json").write_text(text + "\n")
    (args.folder / "goals.md").write_text(reports.markdown(report))
    print(f"{args.folder}/goals.md, goals.json")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
