# SPDX-License-Identifier: BSD-3-Clause
"""The verdicts: on a terminal, as JSON, and as a page for benchmarks/results."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scores.judge import FAILED, MET, NOISY, NOT_MEASURED, NOT_MET, Judgement
from scores.rows import NEAR_HOP_NS, Row

from shmcoll.bench.judge import noise
from shmcoll.bench.judge.noise import Activity

SCHEMA = "shmcoll.goals/1"
SHOWN_MISSES = 4


@dataclass(frozen=True)
class Record:
    """How a part went, and what it measured."""

    part: str
    status: str = "ok"  # or "absent", "failed"
    why: str = ""
    quick: bool = False
    started: str = ""
    seconds: float = 0.0
    commit: str = ""
    rows: tuple[Row, ...] = ()
    activity: Activity | None = None  # of the machine, meanwhile

    @property
    def busy(self) -> bool:
        return self.activity is not None and self.activity.busy

    @staticmethod
    def of(data: Mapping[str, Any]) -> Record:
        rows = [
            Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
            for row in data["rows"]
        ]
        seen = data.get("activity")
        activity = None if seen is None else Activity(**seen)
        return Record(**{**data, "rows": tuple(rows), "activity": activity})


@dataclass(frozen=True)
class Report:
    machine: Mapping[str, Any]
    records: Sequence[Record]
    judgements: Sequence[Judgement] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Did something not run, or give wrong values? Missed goals are no failure."""
        return any(record.status == "failed" for record in self.records) or any(
            judgement.verdict == FAILED for judgement in self.judgements
        )

    def counts(self) -> str:
        count = collections.Counter(judgement.verdict for judgement in self.judgements)
        verdicts = (MET, NOT_MET, NOISY, NOT_MEASURED, FAILED)
        return ", ".join(f"{count[verdict]} {verdict}" for verdict in verdicts if count[verdict])

    def commits(self) -> str:
        return ", ".join(dict.fromkeys(record.commit for record in self.records if record.commit))


def mode_text(judgement: Judgement) -> str:
    known = [mode for mode in judgement.modes if mode != "unknown"]
    return "/".join(sorted(known, reverse=True)) or "-"


def misses(judgement: Judgement) -> str:
    if not judgement.missed:
        return ""
    text = f"{len(judgement.missed)} of {judgement.points} miss it"
    if len(judgement.missed) == 1 or judgement.points == 1:
        return text if judgement.points > 1 else ""
    ordered = sorted(
        judgement.missed, key=lambda point: point.value, reverse=judgement.goal.at_most
    )
    shown = "; ".join(point.text(judgement.goal.unit) for point in ordered[1 : SHOWN_MISSES + 1])
    return f"{text}; then {shown}" + ("; ..." if len(ordered) > SHOWN_MISSES + 1 else "")


def notes(judgement: Judgement) -> list[str]:
    excused = [f"excused: {text}" for text in judgement.excused]
    return [
        text for text in (misses(judgement), beyond(judgement), judgement.why, *excused) if text
    ]


def beyond(judgement: Judgement) -> str:
    if not judgement.beyond:
        return ""
    shown = "; ".join(judgement.beyond[:SHOWN_MISSES])
    more = "; ..." if len(judgement.beyond) > SHOWN_MISSES else ""
    return f"{len(judgement.beyond)} of {len(judgement.missed)} out of reach here: {shown}{more}"


def terminal(report: Report) -> Iterable[str]:
    width = max(len(judgement.goal.name) for judgement in report.judgements)
    demands = max(len(judgement.goal.demand) for judgement in report.judgements)
    for one in report.judgements:
        demand = one.goal.demand
        yield f"{one.verdict:12}  {one.goal.name:{width}}  {demand:>{demands}}  {one.measured}" + (
            f"  [{mode_text(one)}]" if one.worst else ""
        )
        for note in notes(one):
            yield f"{'':12}    {note}"
    yield report.counts()
    for record in report.records:
        if record.busy:
            yield f"{record.part}: {noise.words(record.activity)}"
        if record.status != "ok":
            yield f"{record.part} {record.status}: {record.why}"


def as_json(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "machine": dict(report.machine),
        "goals": [_goal_json(judgement) for judgement in report.judgements],
        "parts": [asdict(record) for record in report.records],
    }


def _goal_json(one: Judgement) -> dict[str, Any]:
    worst = one.worst
    return {
        "goal": one.goal.name,
        "demand": one.goal.demand,
        "verdict": one.verdict,
        "noisy": one.verdict == NOISY,
        "why": one.why,
        "bound": one.goal.bound,
        "unit": one.goal.unit,
        "value": worst.value if worst else None,
        "quartiles": [worst.low, worst.high] if worst else None,
        "measured": one.measured,
        "points": one.points,
        "missed": [point.text(one.goal.unit) for point in one.missed],
        "out_of_reach": list(one.beyond),
        "modes": list(one.modes),
    }


def markdown(report: Report) -> str:
    facts = report.machine
    lines = [
        f"# {facts['date']}: the goals, on {facts['cpus_usable']} CPUs of {facts['cpu']}",
        "",
        f"Commit `{report.commits()}`, torch {facts['torch']}, Linux {facts['kernel']}. "
        f"{report.counts()}. Each line is the goal's worst point: the median over the rounds of one "
        "run in which the two sides take turns, and in brackets its quartiles. `~`: the rounds disagree by "
        f"more than {noise.DISAGREE:g}x. `near`: the CPUs "
        f"shared an L3 (a flag took {NEAR_HOP_NS:.0f} ns or less one way), `far`: they did not; `near/far`: it changed between the rounds.",
        "",
        "    python benchmarks/goals.py",
        "",
        "| goal | demanded | measured | mode | verdict |",
        "|---|---|---|---|---|",
    ]
    for one in report.judgements:
        verdict = f"**{one.verdict}**" if one.verdict in (NOT_MET, NOISY, FAILED) else one.verdict
        cells = (one.goal.name, one.goal.demand, one.measured, mode_text(one), verdict)
        lines.append("| " + " | ".join(cells) + " |")
    remarks = [(one.goal.name, note) for one in report.judgements for note in notes(one)]
    if remarks:
        lines += ["", "## More of what was missed, and what was not measured", ""]
        lines += [f"- {name}: {note}" for name, note in remarks]
    lines += [
        "",
        "## Runs",
        "",
        "| part | started | seconds | | machine |",
        "|---|---|---|---|---|",
    ]
    for record in report.records:
        state = "quick" if record.quick and record.status == "ok" else record.status
        why = f"{state}: {record.why}" if record.why else state
        seen = "" if record.activity is None else noise.words(record.activity)
        lines.append(
            f"| {record.part} | {record.started} | {record.seconds:.0f} | {why} | {seen} |"
        )
    return "\n".join(lines) + "\n"
