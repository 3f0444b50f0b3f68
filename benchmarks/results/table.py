#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes goals.md: the newest whole run of `make bench` per machine, side by side.

python benchmarks/results/table.py            # after a new MACHINE.json was put here
python benchmarks/results/table.py --check    # fails if goals.md is not what it would write
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE / "goals.md"
SCHEMA = "shmcoll.goals/1"
VERDICTS = ("met", "not met", "noisy", "not measured", "failed")

Run = dict[str, Any]


def runs() -> Iterable[tuple[str, Run]]:
    """Every file of goals in this folder, newest first."""
    found = []
    for path in HERE.glob("*.json"):
        run = json.loads(path.read_text())
        if run.get("schema") == SCHEMA:
            found.append((path.stem, run))
    return sorted(found, key=lambda item: (item[1]["machine"]["date"], item[0]), reverse=True)


def counts(run: Run) -> str:
    count = collections.Counter(goal["verdict"] for goal in run["goals"])
    return ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict])


def commit(run: Run) -> str:
    named = dict.fromkeys(part["commit"] for part in run["parts"] if part.get("commit"))
    return ", ".join(f"`{name}`" for name in named)


def row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def machines(measured: Sequence[tuple[str, Run]]) -> Iterable[str]:
    yield row(("file", "processor", "CPUs", "date", "commit", "verdicts"))
    yield "|---|---|---|---|---|---|"
    for name, run in measured:
        facts = run["machine"]
        link = f"[{name}]({name}.json)"
        cpus = str(facts["cpus_usable"])
        yield row((link, facts["cpu"], cpus, facts["date"], commit(run), counts(run)))


def cell(goal: Run | None) -> str:
    if goal is None:
        return "not run"
    text = goal["measured"] or "-"
    return text if goal["verdict"] in ("met", "not measured") else f"**{text}**"


def goals(measured: Sequence[tuple[str, Run]]) -> Iterable[str]:
    demands: dict[str, str] = {}
    for _, run in measured:
        for goal in run["goals"]:
            demands.setdefault(goal["goal"], goal["demand"])
    yield row(("goal", "demanded", *(name for name, _ in measured)))
    yield "|---" * (2 + len(measured)) + "|"
    tables = [{goal["goal"]: goal for goal in run["goals"]} for _, run in measured]
    for name, demand in demands.items():
        yield row((name, demand, *(cell(table.get(name)) for table in tables)))


def remarks(measured: Sequence[tuple[str, Run]]) -> Iterable[str]:
    for name, run in measured:
        yield f"## Remarks on {name}"
        yield ""
        if run.get("note"):
            yield run["note"]
            yield ""
        for goal in run["goals"]:
            for note in goal.get("notes") or goal.get("missed") or []:
                if not note.startswith("excused"):
                    yield f"- {goal['goal']}: {note.split('; ')[0]}"
        yield ""


def page() -> str:
    measured = list(runs())
    lines = [
        "# The goals on each machine",
        "",
        "Made by `benchmarks/results/table.py`; do not edit.",
        "",
        "A cell is the worst point of a goal: the median over the rounds of one run, in which both",
        "sides take turns, and its quartiles in brackets. Bold: the goal is not met. The remarks name",
        "the first point of each list; the files have all of them.",
        "",
        *machines(measured),
        "",
        *goals(measured),
        "",
        *remarks(measured),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() == text:
            return 0
        print(f"{PAGE} is out of date: run {Path(__file__).name}", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
