# SPDX-License-Identifier: BSD-3-Clause
"""Results as CSV: a line per row and backend. docs/reference/formats.md says what each column is.

The first column names the format, also if lines of many files are put together. A new column is added
at the end and keeps the version. A column that is removed, or changes its meaning, counts it up.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from shmcoll.bench.judge import noise
from shmcoll.bench.results import Report, Row, row_json

SCHEMA = "shmcoll.bench.csv/2"

_SETTINGS = ("mode", "cache", "overlap", "groups")
_TIMES = ("p50", "mean", "p99", "min", "max")
COLUMNS = (
    "schema",
    "started",
    "op",
    "size_bytes",
    "count",
    "dtype",
    "redop",
    "place",
    "mode",
    "cache",
    "overlap",
    "groups",
    "world_size",
    "backend",
    "rounds",
    "iterations",
    *(f"{name}_us" for name in _TIMES),
    "cv",
    "algbw_gbs",
    "busbw_gbs",
    "vs_first",
    "wrong",
    "error",
    "from_rank",
    "to_rank",
    "roof",
    "noisy",
    "vs_noisy",
    "others_cpus",
)


def write(report: Report, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in report.rows:
            for label in row.cells:
                writer.writerow(_line(report, row, label))


def _line(report: Report, row: Row, label: str) -> dict[str, Any]:
    """None becomes an empty field."""
    result = row_json(row)
    cell = result["backends"][label]
    times = cell.get("time_us", {})
    activity = noise.together(row.activity)
    begins, answers = row.point.pair or (None, None)
    out = {name: result[name] for name in COLUMNS if name in result}
    out |= {name: getattr(report.settings, name) for name in _SETTINGS}
    out |= {name: cell[name] for name in COLUMNS if name in cell and name not in _SETTINGS}
    return out | {
        "schema": SCHEMA,
        "started": report.started,
        "backend": label,
        "rounds": len(cell["rounds"]),
        "vs_first": row.ratio(label),
        "noisy": int(row.cells[label].noisy),
        "vs_noisy": int(row.noisy_ratio(label)),
        "others_cpus": activity and activity.others,
        "from_rank": begins,
        "to_rank": answers,
        **{f"{name}_us": times.get(name) for name in _TIMES},
    }
