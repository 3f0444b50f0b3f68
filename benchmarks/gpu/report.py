# SPDX-License-Identifier: BSD-3-Clause
"""What a run with a GPU writes down: <date>-<gpu>.md for people, .json with every row, .log
with all that the parts printed: what lies elsewhere on a lent machine goes with it."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

Row = dict[str, Any]

SCHEMA = "shmcoll.gpu/1"
SHOWN = 40  # of the tests that are not ok
TAIL_LINES = 60  # of the log of a part that is not good
LOG_CHARS = 1 << 20  # of one part, from its beginning and from its end each
SMI = "name,uuid,driver_version,memory.total,compute_mode,mig.mode.current,pcie.link.gen.current"


@dataclass
class Result:
    """Of one part."""

    part: str
    status: str  # ok, failed, hung, absent, not run, stopped
    why: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    log: str = ""  # all that the part printed

    @property
    def good(self) -> bool:
        return self.status in ("ok", "absent")


def said(command: list[str], root: Path) -> str:
    """What a command prints; "" where it is not there, or fails."""
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
    commit = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    versions = "import torch; print(torch.__version__, torch.version.cuda)"
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
        "torch": said([sys.executable, "-c", versions], root),
        "nvcc": (said(["nvcc", "--version"], root).splitlines() or [""])[-1],
        "commit": said(commit, root) or "unknown",
    }


def paths(out: Path, facts: dict[str, Any]) -> tuple[Path, Path]:
    # Some parts alone: beside the report of all, not over it.
    name = f"{facts['gpu']} {facts.get('only', '')}"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"
    stem = out / f"{facts['date']}-{slug}"
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
    """Of all keys that hold something in one of them."""
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


def of_part(result: Result) -> list[str]:
    lines = [
        f"## {result.part}",
        "",
        f"{result.status}, {result.seconds:.0f} s. {result.why}".strip(),
    ]
    lines.append("")
    tests = [row for row in result.rows if "case" in row]
    others = [row for row in result.rows if "case" not in row]
    lines += (of_tests(tests) if tests else []) + (tables(others) if others else [])
    return lines + ([] if result.good else tail(result.log))


def tail(log: str) -> list[str]:
    """Rows stand in the tables."""
    said = [line[:240] for line in log.splitlines() if line.strip() and not line.startswith("{")]
    if not said:
        return []
    head = "The end of its log:" if len(said) > TAIL_LINES else "Its log:"
    return [head, "", *(f"    {line}" for line in said[-TAIL_LINES:]), ""]


def cut(log: str) -> str:
    if len(log) <= 2 * LOG_CHARS:
        return log
    return f"{log[:LOG_CHARS]}\n[... {len(log) - 2 * LOG_CHARS} left out ...]\n{log[-LOG_CHARS:]}"


def logs(results: list[Result]) -> str:
    return "".join(f"######## {r.part}: {r.status}\n{cut(r.log)}\n" for r in results)


def markdown(facts: dict[str, Any], results: list[Result]) -> str:
    lines = [f"# {facts['gpu']}, {facts['date']}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {shown(value)} |" for key, value in facts.items()]
    lines += ["", "| part | status | seconds | |", "|---|---|---|---|"]
    lines += [f"| {r.part} | {r.status} | {r.seconds:.0f} | {shown(r.why)} |" for r in results]
    for result in results:
        lines += ["", *of_part(result)]
    return "\n".join(lines).rstrip() + "\n"


def write(out: Path, facts: dict[str, Any], results: list[Result]) -> None:
    """Whole files at every moment."""
    text, data = paths(out, facts)
    listed = [asdict(result) for result in results]
    for one in listed:
        del one["log"]
    whole = {"schema": SCHEMA, "facts": facts, "parts": listed}
    for path, content in (
        (text, markdown(facts, results)),
        (data, json.dumps(whole, indent=1)),
        (log_path(out, facts), logs(results)),
    ):
        new = path.with_name(path.name + ".new")
        new.write_text(content.rstrip() + "\n")
        new.replace(path)
