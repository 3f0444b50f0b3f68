# SPDX-License-Identifier: BSD-3-Clause
"""What was measured: cells, rows, ratios, and the JSON file made of them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

from shmcoll.bench.judge import noise
from shmcoll.bench.machine import Machine
from shmcoll.bench.judge.noise import Activity
from shmcoll.bench.ops import OPS
from shmcoll.bench.plan import Point, Settings, points
from shmcoll.bench.provenance import Provenance
from shmcoll.bench.rebuild import rebuild

# The file's form. Counted up when a reader of the old form would misread the new one, or when the
# old form lacks what this reader needs: 2 has every iteration, 3 has its round with --overlap too, 4
# has the pair of a row.
SCHEMA = "shmcoll.bench"
SCHEMA_VERSION = 4
OLDEST_READ = 3  # lacks nothing


class Unreadable(Exception):
    """A file that holds no report; the text says why in one line."""


@dataclass
class Cell:
    """One backend at one point. Times are in ns."""

    rounds: list[list[int]] = field(default_factory=list)  # a list of iterations per round
    # With --overlap rounds are of both together, and these are of each alone.
    operation: list[list[int]] = field(default_factory=list)
    computation: list[list[int]] = field(default_factory=list)
    wrong: int = 0
    error: str | None = None
    unsupported: bool = False  # the error is that the backend has no such thing

    @property
    def samples(self) -> list[int]:
        """All iterations, sorted; none if the point could not be finished."""
        return [] if self.error else sorted(ns for one in self.rounds for ns in one)

    @property
    def p50_us(self) -> float | None:
        """The median of the rounds' medians. A round in a slow phase has fewer iterations than one
        in a fast phase: over all iterations together, fast phases would count more."""
        medians = self.round_medians_us()
        return median(medians) if medians else None

    def spread(self) -> dict[str, float]:
        """The columns other than the median, of all iterations, times in us; none without samples."""
        samples = self.samples
        if not samples:
            return {}
        average = mean(samples)
        return {
            "p99": samples[math.ceil(0.99 * len(samples)) - 1] / 1e3,
            "min": samples[0] / 1e3,
            "max": samples[-1] / 1e3,
            "cv": pstdev(samples, average) / average,
        }

    def overlap(self) -> dict[str, float]:
        """The columns of --overlap, medians over the rounds; none without it."""
        if self.error or not self.operation:
            return {}
        rounds = [
            tuple(median(one) / 1e3 for one in phases)
            for phases in zip(self.rounds, self.operation, self.computation)
        ]
        return {
            "op": median(op for _, op, _ in rounds),
            "compute": median(compute for _, _, compute in rounds),
            "hidden": median((op + comp - both) / min(op, comp) for both, op, comp in rounds),
        }

    def round_medians_us(self) -> list[float]:
        return [] if self.error else [median(one) / 1e3 for one in self.rounds]

    @property
    def noisy(self) -> bool:
        """The times of its rounds disagree."""
        return noise.disagree(self.round_medians_us())


@dataclass
class Row:
    """One point, measured with all backends. The first label is the one others are compared to."""

    point: Point
    world_size: int
    cells: dict[str, Cell]
    # What memory allowed in each round, with the column roof.
    scale_us: list[float] = field(default_factory=list)
    exchange_gbs: list[float] = field(default_factory=list)
    activity: list[Activity] = field(default_factory=list)  # of the machine, in each round

    @property
    def noisy(self) -> bool:
        return self.varied or self.busy

    @property
    def varied(self) -> bool:
        """The rounds disagree, of a time or of a ratio."""
        ratios = (noise.disagree(self.round_ratios(label)) for label in list(self.cells)[1:])
        return any(ratios) or any(cell.noisy for cell in self.cells.values())

    @property
    def busy(self) -> bool:
        """The machine did something else while this row's rounds were timed."""
        activity = noise.together(self.activity)
        return activity is not None and activity.busy

    def noisy_ratio(self, label: str) -> bool:
        """The ratios of the rounds disagree, or the machine was busy. A drift that both backends feel
        does not show here."""
        return self.busy or noise.disagree(self.round_ratios(label))

    def whole(self, rounds: int) -> bool:
        """Every backend that measured it has all its rounds."""
        return all(len(cell.rounds) == rounds for cell in self.cells.values() if not cell.error)

    @property
    def wrong(self) -> int:
        return sum(cell.wrong for cell in self.cells.values())

    @property
    def measured(self) -> bool:
        """Is there a round of any backend, or a reason why there is none?"""
        return any(cell.rounds or cell.error for cell in self.cells.values())

    def busbw_gbs(self, label: str) -> float | None:
        time_us = self.cells[label].p50_us
        if self.cells[label].operation:
            return None  # the time is not that of the operation alone
        return None if time_us is None else busbw_gbs(self.point, time_us, self.world_size)

    def roof(self, label: str) -> float | None:
        """The part of the time that scaling and exchange alone would take. An algorithm that does one
        after the other cannot beat 1. What each rank sends in a ring is what it must read."""
        times = self.cells[label].round_medians_us()
        shared_bytes = self.point.size_bytes * OPS[self.point.op].busbw_factor(self.world_size)
        parts = [
            (scale + shared_bytes / exchange / 1e3) / time
            for scale, exchange, time in zip(self.scale_us, self.exchange_gbs, times)
        ]
        return median(parts) if parts else None

    def round_ratios(self, label: str) -> list[float]:
        """Time of the backend over time of the first one, for each pair of adjacent rounds."""
        first = next(iter(self.cells.values())).round_medians_us()
        return [theirs / ours for ours, theirs in zip(first, self.cells[label].round_medians_us())]

    def ratio(self, label: str) -> float | None:
        """How many times faster the first backend is: a drift of the machine hits both sides."""
        ratios = self.round_ratios(label)
        return median(ratios) if ratios else None


@dataclass(frozen=True)
class Headline:
    """The mean ratio of an operation's rows. Rows that say nothing are left out and counted."""

    op: str
    label: str
    mean: float | None  # None: withheld, less than half of the rows are left
    used: int
    rows: int  # that the run was to have of this operation
    noisy: int = 0  # left out: the ratios of the rounds disagree
    busy: int = 0  # left out: measured on a busy machine
    cut: int = 0  # left out: rounds are missing
    absent: int = 0  # left out: not measured, or a backend has no time


@dataclass
class Report:
    """A whole run."""

    settings: Settings
    machine: Machine
    started: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat("T", "seconds")
    )
    rows: list[Row] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)  # backend -> why it could not start
    failures: dict[str, str] = field(default_factory=dict)  # backend -> why it has ended early
    points: int = 0  # that the run was to have
    interrupted: bool = False
    provenance: Provenance | None = None  # None: written by an older shmcoll

    @property
    def wrong(self) -> int:
        return sum(row.wrong for row in self.rows)

    @property
    def complete(self) -> int:
        """Rows with all their rounds."""
        return sum(row.whole(self.settings.rounds) for row in self.rows)

    @property
    def activity(self) -> Activity | None:
        """What the machine did while rounds were timed; None if that was not recorded."""
        return noise.together(one for row in self.rows for one in row.activity)

    @property
    def busy(self) -> bool:
        return self.activity is not None and self.activity.busy

    @property
    def first_is_unusable(self) -> bool:
        """Nothing can be compared then."""
        return len(self.settings.labels) > 1 and self.settings.labels[0] in self.unusable

    @property
    def failed(self) -> bool:
        """Is there anything wrong with what was measured?"""
        mute = [
            label
            for label in self.settings.labels
            if label not in self.unusable
            and not any(
                row.cells[label].samples or row.cells[label].unsupported for row in self.rows
            )
        ]
        return bool(self.wrong or self.failures or mute)

    def wrong_by_op(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(backend, operation) -> (wrong elements, rows that have some)."""
        out: dict[tuple[str, str], tuple[int, int]] = {}
        for row in self.rows:
            for label, cell in row.cells.items():
                if cell.wrong:
                    wrong, rows = out.get((label, row.point.op), (0, 0))
                    out[label, row.point.op] = (wrong + cell.wrong, rows + 1)
        return out

    def errors(self) -> list[tuple[str, str, str]]:
        """(backend, operation, message) of rows that a backend refused, each message once."""
        found = dict.fromkeys(
            (label, row.point.op, cell.error)
            for row in self.rows
            for label, cell in row.cells.items()
            if cell.error and label not in self.unusable and label not in self.failures
        )
        return [(label, op, error) for label, op, error in found if error]

    def headlines(self) -> list[Headline]:
        """Per operation and compared backend: the geometric mean of the ratios over sizes and dtypes."""
        wanted: dict[str, int] = {}
        for point in points(self.settings):
            wanted[point.op] = wanted.get(point.op, 0) + 1
        ops = dict.fromkeys(row.point.op for row in self.rows)
        return [
            self._headline(op, label, wanted.get(op, 0))
            for op in ops
            for label in self.settings.labels[1:]
            if any(row.ratio(label) is not None for row in self.rows if row.point.op == op)
        ]

    def _headline(self, op: str, label: str, wanted: int) -> Headline:
        logs: list[float] = []
        left_out = {"noisy": 0, "busy": 0, "cut": 0}
        rows = [row for row in self.rows if row.point.op == op]
        for row in rows:
            ratio = row.ratio(label)
            if ratio is None:
                continue
            if not row.whole(self.settings.rounds):
                left_out["cut"] += 1
            elif row.busy:
                left_out["busy"] += 1
            elif row.noisy_ratio(label):
                left_out["noisy"] += 1
            else:
                logs.append(math.log(ratio))
        total = max(wanted, len(rows))
        mean_ratio = math.exp(sum(logs) / len(logs)) if 2 * len(logs) >= max(1, total) else None
        absent = total - len(logs) - sum(left_out.values())
        return Headline(op, label, mean_ratio, len(logs), total, **left_out, absent=absent)

    def write_json(self, path: Path) -> None:
        """A line per row: there are thousands of iterations in it."""
        data = self.as_json()
        rows = ",\n  ".join(json.dumps(row) for row in data.pop("results"))
        head = json.dumps(data, indent=1).removesuffix("\n}")
        path.write_text(f'{head},\n "results": [\n  {rows}\n ]\n}}\n', encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": f"{SCHEMA}/{SCHEMA_VERSION}",
            "started": self.started,
            "machine": asdict(self.machine),
            "settings": asdict(self.settings),
            "points": self.points,
            "interrupted": self.interrupted,
            "unusable": self.unusable,
            "failures": self.failures,
            "wrong": self.wrong,
            "provenance": None if self.provenance is None else asdict(self.provenance),
            "noise": self._noise_json(),
            "headlines": [asdict(one) for one in self.headlines()],
            "results": [
                {**row_json(row), "complete": row.whole(self.settings.rounds)} for row in self.rows
            ],
        }

    def _noise_json(self) -> dict[str, Any]:
        """Returns what limits the trust in the run."""
        activity = self.activity
        return {
            "said": noise.words(activity),
            "busy": self.busy,
            "noisy_rows": sum(row.noisy for row in self.rows),
            "others_cpus": activity and activity.others,
            "steal_cpus": activity and activity.steal,
            "machine": None if activity is None else asdict(activity),
            "limits": {"quartiles": noise.DISAGREE, "busy_share": noise.BUSY_SHARE},
        }


def read(path: str | Path) -> Report:
    """The report that write_json() wrote. Raises Unreadable."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path}: not JSON ({error})") from None
    _check_schema(path, data)
    try:
        return _report(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(f"{path}: damaged ({error})") from None


def _check_schema(path: Path, data: Any) -> None:
    schema = data.get("schema") if isinstance(data, dict) else None
    name, _, version = str(schema).partition("/")
    if name != SCHEMA or not version.isdecimal():
        raise Unreadable(f"{path}: not written by shmcoll.bench --json (schema: {schema})")
    if int(version) > SCHEMA_VERSION:
        what = f"schema {version} is newer than this shmcoll, which reads {SCHEMA_VERSION}"
        raise Unreadable(f"{path}: {what}; use a newer shmcoll")
    if int(version) < OLDEST_READ:
        raise Unreadable(f"{path}: schema {version} is older than this shmcoll; measure again")


def _report(data: dict[str, Any]) -> Report:
    report = rebuild(Report, data)
    for result in data["results"]:
        point = rebuild(Point, result)
        if point.op not in OPS:
            raise ValueError(f"no operation {point.op!r}")
        cells = {label: rebuild(Cell, cell) for label, cell in result["backends"].items()}
        if list(cells) != list(report.settings.labels):
            raise ValueError(f"a row has the backends {', '.join(cells)}")
        row = Row(point, int(result["world_size"]), cells)
        row.scale_us = list(map(float, result.get("scale_us", [])))
        row.exchange_gbs = list(map(float, result.get("exchange_gbs", [])))
        row.activity = [rebuild(Activity, one) for one in result.get("activity", [])]
        report.rows.append(row)
    return report


def algbw_gbs(point: Point, time_us: float) -> float:
    """Algorithm bandwidth as in nccl-tests; a GB is 10^9 bytes."""
    return point.size_bytes / time_us / 1e3


def busbw_gbs(point: Point, time_us: float, world_size: int) -> float:
    return algbw_gbs(point, time_us) * OPS[point.op].busbw_factor(world_size)


def row_json(row: Row) -> dict[str, Any]:
    op = OPS[row.point.op]
    return {
        "op": op.name,
        "size_bytes": row.point.size_bytes,
        "count": row.point.count,
        "dtype": row.point.dtype,
        "redop": op.redop,
        "place": row.point.place,
        "pair": row.point.pair,
        "root": "in turn" if op.root else None,
        "world_size": row.world_size,
        "noisy": row.noisy,
        "backends": {label: _cell_json(row, label) for label in row.cells},
        "scale_us": row.scale_us,
        "exchange_gbs": row.exchange_gbs,
        "activity": [asdict(one) for one in row.activity],
        "ratios": {
            label: {
                "median": row.ratio(label),
                "noisy": row.noisy_ratio(label),
                "rounds": row.round_ratios(label),
            }
            for label in list(row.cells)[1:]
        },
    }


def _cell_json(row: Row, label: str) -> dict[str, Any]:
    cell = row.cells[label]
    out: dict[str, Any] = {"wrong": cell.wrong, "error": cell.error, "noisy": cell.noisy}
    samples = cell.samples
    if samples:
        p50_us, spread = median(cell.round_medians_us()), cell.spread()
        out["time_us"] = {
            "p50": p50_us,
            "mean": mean(samples) / 1e3,
            "p99": spread["p99"],
            "min": spread["min"],
            "max": spread["max"],
            "round_p50": cell.round_medians_us(),
        }
        out["cv"] = spread["cv"]  # standard deviation / mean
        out["iterations"] = len(samples)
        if overlap := cell.overlap():
            out["overlap"] = {
                "op_us": overlap["op"],
                "compute_us": overlap["compute"],
                "hidden": overlap["hidden"],
            }
        else:
            out["algbw_gbs"] = algbw_gbs(row.point, p50_us)
            out["busbw_gbs"] = busbw_gbs(row.point, p50_us, row.world_size)
    out["roof"] = row.roof(label)
    return out | asdict(cell)  # with every iteration, last
