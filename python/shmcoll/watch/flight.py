# SPDX-License-Identifier: BSD-3-Clause
"""Dumps in the form of torch's flight recorder, for its analyser (torchfrtrace).

The analyser knows the names of backends, and ours is not among them: the files say gloo. It compares the
calls of a number on all ranks, so calls that not all dumps have kept are left out.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shmcoll.watch.board import Call, Member

if TYPE_CHECKING:
    from shmcoll.watch.postmortem import Report, Seat

VERSION = "2.10"  # of the form, as torch 2.13 writes it
PREFIX = "shmcoll_rank_"

# Our names that torch spells otherwise.
_OPERATIONS = {
    "uneven all_gather": "all_gather_v",
    "uneven reduce_scatter": "reduce_scatter_v",
    "sparse all_reduce": "all_reduce",
}
_DTYPES = {
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "uint8": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "bool": "Bool",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "float8_e4m3fnuz": "Float8_e4m3fnuz",
    "float8_e5m2fnuz": "Float8_e5m2fnuz",
    "float32": "Float",
    "float64": "Double",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}


def write(folder: Path, reports: Sequence[Report]) -> list[str]:
    """Writes a file for each rank into a new folder, and says how to read them. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(0, "it is not empty, and the analyser reads all of its files")
    made = [report for report in reports if not report.group.making]
    ranks = files(made)
    for rank, content in ranks.items():
        with open(folder / f"{PREFIX}{rank}", "wb") as file:
            pickle.dump(content, file)
    incomplete = any(report.group.absent for report in made)
    command = f"python -m torch.distributed.flight_recorder.fr_trace {folder} -p {PREFIX}"
    return [
        "",
        f"{folder}: {len(ranks)} files for torchfrtrace, as of gloo: "
        f"{command}{' --allow-incomplete-ranks' if incomplete else ''}",
    ]


def files(reports: Sequence[Report]) -> dict[int, dict[str, Any]]:
    """By the rank of the job: what torch's recorder would have written there."""
    names = Counter(report.group_name for report in reports)
    entries: dict[int, list[dict[str, Any]]] = {}
    groups: dict[int, dict[str, Any]] = {}
    for number, report in enumerate(reports):
        group = report.group
        name = report.group_name
        if names[name] > 1:
            name += f".{group.nonce.hex()[:8]}"
        members = [_global(report, rank) for rank in range(group.world_size)]
        facts = {"name": name, "desc": group.name, "ranks": str(members)}
        first = max((min(seat.calls, default=1) for seat in report.seats.values()), default=1)
        for rank, seat in report.seats.items():
            mine = entries.setdefault(_global(report, rank), [])
            groups.setdefault(_global(report, rank), {})[name] = facts
            for call in seat.calls.values():
                if call.number >= first:
                    mine.append(_entry(seat, call, number, (name, group.name)))
    return {rank: _file(mine, groups[rank]) for rank, mine in sorted(entries.items())}


def _global(report: Report, rank: int) -> int:
    known = report.group.global_rank(rank)
    return rank if known is None else known


def _file(entries: list[dict[str, Any]], groups: dict[str, Any]) -> dict[str, Any]:
    entries.sort(key=lambda entry: entry["time_created_ns"])
    for index, entry in enumerate(entries):
        entry["record_id"] = index
    newest: dict[str, dict[str, Any]] = {name: {} for name in groups}
    for entry in entries:
        name = entry["process_group"][0]
        if entry["state"] == "completed":
            newest[name]["last_completed_collective"] = entry["collective_seq_id"]
        newest[name]["last_enqueued_collective"] = entry["collective_seq_id"]
        newest[name]["last_started_collective"] = entry["collective_seq_id"]
    unknown = {
        "last_enqueued_collective": -1,
        "last_started_collective": -1,
        "last_completed_collective": -1,
    }
    return {
        "version": VERSION,
        "entries": entries,
        "pg_config": groups,
        "pg_status": {name: {**unknown, **said} for name, said in newest.items()},
    }


def _entry(seat: Seat, call: Call, group: int, names: tuple[str, str]) -> dict[str, Any]:
    inputs, outputs = _sizes(call, seat.member)
    done = call.end_ns is not None and call.status == 0
    unix_ns = seat.dump.written_unix_ns - seat.dump.written_ns  # to add to CLOCK_MONOTONIC
    return {
        "record_id": 0,
        "pg_id": group,
        "process_group": names,
        "collective_seq_id": call.number,
        "p2p_seq_id": 0,
        "op_id": call.number,
        "profiling_name": f"gloo:{_OPERATIONS.get(call.operation, call.operation)}",
        "time_created_ns": call.begin_ns + unix_ns,
        "duration_ms": (call.end_ns - call.begin_ns) / 1e6 if call.end_ns else None,
        "frames": [],
        "input_sizes": [inputs],
        "input_dtypes": [_DTYPES.get(call.dtype, "Byte")],
        "output_sizes": [outputs],
        "output_dtypes": [_DTYPES.get(call.dtype, "Byte")],
        "state": "completed" if done else "started",
        "time_discovered_started_ns": call.begin_ns + unix_ns,
        "time_discovered_completed_ns": call.end_ns + unix_ns if call.end_ns and done else None,
        "retired": done,
        "timeout_ms": seat.member.timeout_ns // 1_000_000,
        "is_p2p": False,
        "thread_id": "",
        "thread_name": "",
    }


def _sizes(call: Call, member: Member) -> tuple[list[int], list[int]]:
    """Of input and output, as far as the number of elements says them."""
    one, all_ranks = [call.count], [call.count * member.world_size]
    if call.operation in ("all_gather", "gather"):
        return one, all_ranks
    if call.operation in ("reduce_scatter", "scatter"):
        return all_ranks, one
    return one, one
