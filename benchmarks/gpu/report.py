# SPDX-License-Identifier: BSD-3-Clause
"""What runs with a GPU write down: <date>-<gpu>.json with every row, .md for people, made from it,
and .log with all that the parts printed: what lies elsewhere on a lent machine goes with it.

There is one report for a commit and a GPU. A run adds its parts to it: of each part the newest run
is kept, except that a part that was not run tells nothing."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import built

ROOT = Path(__file__).resolve().parents[2]

Row = dict[str, Any]

SCHEMA = "shmcoll.gpu/2"
OF_A_RUN = ("date", "started", "asked")  # facts that differ between runs anyway
LOG_HEAD = "######## "
SHOWN = 40  # of the tests that are not ok
TAIL_LINES = 60  # of the log of a part that is not good
LOG_CHARS = 1 << 20  # of one part, from its beginning and from its end each
SMI = "name,uuid,driver_version,memory.total,compute_mode,mig.mode.current,pcie.link.gen.current"


# Without torch, which takes seconds to load.
VERSIONS = """
import importlib.util, pathlib, runpy
folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
found = runpy.run_path(folder / "version.py")
print(found["__version__"], found["cuda"])
"""


@dataclass
class Result:
    """The result of one part."""

    part: str
    status: str  # ok, failed, hung, absent, not run, stopped
    why: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    log: str = ""  # all that the part printed
    run: str = ""  # when the run began whose part it is
    tail: list[str] = field(default_factory=list)  # of the log, where that is not at hand

    @property
    def good(self) -> bool:
        return self.status in ("ok", "absent")

    def replaces(self, old: Result | None) -> bool:
        """Should this result replace an older one of its part?

        A part that was not run says nothing, and a part that a signal has cut says less than one that
        has ended well.
        """
        if old is None or old.status == "not run":
            return True
        if self.status == "not run" or (self.status == "stopped" and old.good):
            return False
        return self.run >= old.run


@dataclass
class Report:
    runs: list[dict[str, Any]] = field(default_factory=list)  # the facts of each, oldest first
    results: list[Result] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the newest run."""
        return self.runs[-1] if self.runs else {}

    def add(self, other: Report, order: Sequence[str] = ()) -> None:
        """`order`: of the parts; others come last."""
        runs = {run.get("started", ""): run for run in (*self.runs, *other.runs)}
        results = {result.part: result for result in self.results}
        for result in other.results:
            if result.replaces(results.get(result.part)):
                results[result.part] = result
        places = {part: place for place, part in enumerate(order)}
        self.results = sorted(results.values(), key=lambda r: places.get(r.part, len(places)))
        kept = {result.run for result in self.results}
        newest = max(runs)
        self.runs = [runs[key] for key in sorted(runs) if key in kept or key == newest]


def said(command: list[str], root: Path) -> str:
    """Returns the output of a command; "" if it is missing, or fails."""
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_model() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


def gather(root: Path, gpu: str) -> dict[str, Any]:
    """Facts that a reader of the numbers needs. `gpu`: name|version|capability, by the driver."""
    name, version, capability = [*gpu.split("|"), "", ""][:3]
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.M)
    shm, locked = os.statvfs("/dev/shm"), resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "started": datetime.now(timezone.utc).isoformat(" ", "seconds"),
        "gpu": name,
        "driver_cuda": version,
        "capability": capability,
        "smi": said(["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"], root),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20) if memory else 0,
        "dev_shm_gib": round(shm.f_frsize * shm.f_blocks / 2**30, 2),
        "memlock": locked if locked != resource.RLIM_INFINITY else "no limit",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": said([sys.executable, "-c", VERSIONS], root),
        "nvcc": (said(["nvcc", "--version"], root).splitlines() or [""])[-1],
        "commit": commit_of(root),
    }


def commit_of(root: Path) -> str:
    """Returns the commit. If it does not identify the sources, a digest of them is added."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    commit = said(describe, root) or "unknown"
    exact = re.fullmatch(r"[0-9a-f]+", commit)
    return commit if exact else f"{commit}-{built.digest(root)[:7]}"


# ---- the files ----


def slug_of(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def belongs(path: Path, facts: dict[str, Any]) -> bool:
    try:
        found = load(path, with_log=False).facts
    except ValueError:
        return False
    return all(found.get(key, "") == facts.get(key, "") for key in ("gpu", "commit"))


def paths(out: Path, facts: dict[str, Any]) -> tuple[Path, Path]:
    """The .md and the .json of the report of these facts' commit and GPU, which may be there."""
    gpu = slug_of(facts["gpu"]) or "gpu"
    for path in sorted(out.glob(f"*-{gpu}*.json"), reverse=True):
        if belongs(path, facts):
            return path.with_suffix(".md"), path
    stem = out / f"{facts['date']}-{gpu}"
    if stem.with_suffix(".md").exists() or stem.with_suffix(".json").exists():
        stem = out / f"{stem.name}-{slug_of(facts.get('commit', '')) or 'other'}"
    return stem.with_suffix(".md"), stem.with_suffix(".json")


def log_path(out: Path, facts: dict[str, Any]) -> Path:
    return paths(out, facts)[0].with_suffix(".log")


def summary(results: Iterable[Result]) -> list[str]:
    return [f"{r.part:12} {r.status:8} {r.seconds:5.0f} s  {r.why}".rstrip() for r in results]


def shown(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def table(rows: list[Row]) -> list[str]:
    """Returns a table of all keys that have a value in any row."""
    keys = [key for key in dict.fromkeys(k for row in rows for k in row)]
    keys = [key for key in keys if any(shown(row.get(key)) for row in rows)]
    lines = [f"| {' | '.join(keys)} |", f"|{'---|' * len(keys)}"]
    return lines + [f"| {' | '.join(shown(row.get(key)) for key in keys)} |" for row in rows]


def tables(rows: list[Row]) -> list[str]:
    """Neighbours of the same kind, which is a row's first key and value, stand together."""
    lines: list[str] = []
    for _, group in itertools.groupby(rows, lambda row: next(iter(row.items()), None)):
        lines += [*table(list(group)), ""]
    return lines


def of_tests(rows: list[Row]) -> list[str]:
    """How many of each outcome, and which are not ok."""
    counts: dict[tuple[int, str], int] = {}
    for row in rows:
        key = (row["ranks"], row["outcome"])
        counts[key] = counts.get(key, 0) + 1
    lines = ["| ranks | outcome | tests |", "|---|---|---|"]
    lines += [f"| {ranks} | {outcome} | {n} |" for (ranks, outcome), n in sorted(counts.items())]
    bad = [row for row in rows if row["outcome"] != "ok"]
    lines += [
        "",
        *(f"- {r['ranks']} ranks, {r['case']}: {shown(r['detail'])}" for r in bad[:SHOWN]),
    ]
    if len(bad) > SHOWN:
        lines.append(f"- and {len(bad) - SHOWN} more, in the .json")
    return [*lines, ""]


def duration(us: float) -> str:
    for most, unit, factor in ((1e3, "us", 1), (1e6, "ms", 1e-3)):
        if us < most:
            return f"{us * factor:.3g} {unit}"
    return f"{us * 1e-6:.3g} s"


def size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024 or count % 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"


def cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.get("us") is None:
        return row["why"] if row["why"] in ("", "no time") else "failed"
    return duration(row["us"]) + (" WRONG" if row["wrong"] else "")


def of_bench(rows: list[Row]) -> list[str]:
    """A line for ranks and bytes, a column for each backend, and how many times faster than the
    first one each other one is."""
    found: dict[tuple[int, int], dict[str, Row]] = {}
    for row in rows:
        line = found.setdefault((row["ranks"], row["bytes"]), {})
        if row.get("us") is not None or row["backend"] not in line:
            line[row["backend"]] = row
    names = list(dict.fromkeys(row["backend"] for row in rows if "+" not in row["backend"]))
    first, others = names[:1], names[1:]
    heads = ["ranks", "bytes", *names, *(f"{first[0]} / {other}" for other in others)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for (ranks, count), line in sorted(found.items()):
        cells = [str(ranks), size(count), *(cell(line.get(name)) for name in names)]
        for other in others:
            us = [line.get(name, {}).get("us") for name in (first[0], other)]
            cells.append(f"{us[0] / us[1]:.3g}" if us[0] and us[1] else "")
        lines.append(f"| {' | '.join(cells)} |")
    bad = [row for row in rows if row["why"] not in ("", "no time")]
    told = [
        f"- {r['ranks']} ranks, {size(r['bytes'])}, {r['backend']}: {shown(r['why'])}" for r in bad
    ]
    return [*lines, "", *told, *([""] if told else [])]


def of_rows(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for bench, group in itertools.groupby(rows, lambda row: row.get("bench") == "all_reduce"):
        lines += (of_bench if bench else tables)(list(group))
    return lines


def of_part(result: Result) -> list[str]:
    lines = [
        f"## {result.part}",
        "",
        f"{result.status}, {result.seconds:.0f} s. {result.why}".strip(),
    ]
    lines.append("")
    tests = [row for row in result.rows if "case" in row]
    others = [row for row in result.rows if "case" not in row]
    lines += (of_tests(tests) if tests else []) + (of_rows(others) if others else [])
    said = [] if result.good else tail_of(result)
    return [*lines, *(["The end of its log:", ""] if said else []), *(f"    {one}" for one in said)]


def tail_of(result: Result) -> list[str]:
    """Rows stand in the tables. Paths are this checkout's."""
    log = result.log.replace(f"{ROOT}/", "")
    said = [line[:240] for line in log.splitlines() if line.strip()]
    return [line for line in said if not line.startswith("{")][-TAIL_LINES:] or result.tail


def cut(log: str) -> str:
    if len(log) <= 2 * LOG_CHARS:
        return log
    return f"{log[:LOG_CHARS]}\n[... {len(log) - 2 * LOG_CHARS} left out ...]\n{log[-LOG_CHARS:]}"


def logs(results: list[Result]) -> str:
    return "".join(f"{LOG_HEAD}{r.part}: {r.status}\n{cut(r.log)}\n" for r in results)


def logs_in(path: Path) -> dict[str, str]:
    """The parts' logs of such a file."""
    found: dict[str, str] = {}
    for text in path.read_text(errors="replace").split(f"\n{LOG_HEAD}") if path.exists() else ():
        head, _, log = text.removeprefix(LOG_HEAD).partition("\n")
        found[head.partition(":")[0]] = log
    return found


def of_runs(runs: list[dict[str, Any]]) -> list[str]:
    """Returns the facts that differ between several runs."""
    keys = dict.fromkeys(key for run in runs for key in run if key not in OF_A_RUN)
    differ = [key for key in keys if len({shown(run.get(key)) for run in runs}) > 1]
    rows = [{"run": run.get("started", ""), "asked": run.get("asked", "")} for run in runs]
    rows = [row | {key: run.get(key) for key in differ} for row, run in zip(rows, runs)]
    return ["", *table(rows)] if len(runs) > 1 else []


def markdown(report: Report) -> str:
    facts = report.facts
    lines = [f"# {facts['gpu']}, {facts['date']}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {shown(value)} |" for key, value in facts.items()]
    lines += of_runs(report.runs)
    lines += ["", "| part | status | seconds | run | |", "|---|---|---|---|---|"]
    lines += [
        f"| {r.part} | {r.status} | {r.seconds:.0f} | {r.run} | {shown(r.why)} |"
        for r in report.results
    ]
    for result in report.results:
        lines += ["", *of_part(result)]
    return "\n".join(lines).rstrip() + "\n"


def load(path: Path, with_log: bool = True) -> Report:
    """ValueError says what is wrong with the file."""
    try:
        whole = json.loads(path.read_text())
        if whole["schema"] != SCHEMA:
            raise ValueError(f"its schema is {whole['schema']}, not {SCHEMA}")
        report = Report(whole["runs"], [Result(**part) for part in whole["parts"]])
        if not report.runs:
            raise ValueError("it has no run")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no report: {error}") from None
    log = logs_in(path.with_suffix(".log")) if with_log else {}
    for result in report.results:
        result.log = log.get(result.part, "")
    return report


def found(out: Path, facts: dict[str, Any]) -> Report:
    """Returns the report that exists for the commit and GPU of these facts."""
    data = paths(out, facts)[1]
    return load(data) if data.exists() else Report()


def write(
    out: Path, facts: dict[str, Any], results: Iterable[Result], order: Sequence[str] = ()
) -> Report:
    """Adds them to the report that is there. Whole files at every moment."""
    return write_report(out, Report([facts], list(results)), order)


def write_report(out: Path, new: Report, order: Sequence[str] = ()) -> Report:
    text, data = paths(out, new.facts)
    report = found(out, new.facts)
    report.add(new, order)
    listed = [asdict(one) | {"tail": [] if one.good else tail_of(one)} for one in report.results]
    for part in listed:
        del part["log"]
    whole = {"schema": SCHEMA, "runs": report.runs, "parts": listed}
    for path, content in (
        (data, json.dumps(whole, indent=1)),
        (text, markdown(report)),
        (data.with_suffix(".log"), logs(report.results)),
    ):
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(content.rstrip() + "\n")
        temporary.replace(path)
    return report
