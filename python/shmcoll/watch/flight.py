# SPDX-License-Identifier: BSD-3-Clause
"""Dumps in the form of torch's flight recorder, for its analyser (torchfrtrace).

The analyser knows the names of backends, and ours is not among them: the files say gloo. It compares the
calls of a number on all ranks, so calls that not all dumps have kept are left out. It also expects a message on
all ranks of its group, so the messages of two ranks stand in a group of these two.
"""

from __future__ import annotations

import math
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shmcoll.watch import flight_messages
from shmcoll.watch.board import Call, Member
from shmcoll.watch.flight_messages import Side

if TYPE_CHECKING:
    from shmcoll.watch.postmortem import Report, Seat

VERSION = "2.10"  # of the form, as torch 2.13 writes it
PREFIX = "shmcoll_rank_"

Entry = dict[str, Any]

# "all_reduce #1 (float32[8], sum)"
_ON_GPU = re.compile(r"(.+?) #(\d+)(?: \((\w+)[^[]*\[(\d+)\])?")

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
    entries: dict[int, list[Entry]] = defaultdict(list)
    groups: dict[int, dict[str, Any]] = defaultdict(dict)
    for number, report in enumerate(reports):
        name = report.group_name
        if names[name] > 1:
            name += f".{report.group.nonce.hex()[:8]}"
        seated = [_global(report, rank) for rank in report.seats]
        for group in [_whole(report, name), *_on_gpus(report, name), *_pairs(report, name)]:
            for rank in set(seated).intersection(group.members):
                groups[rank][group.name] = group.facts()
            for rank, entry in group.entries:
                entry["pg_id"], entry["process_group"] = number, (group.name, group.description)
                entries[rank].append(entry)
    return {rank: _file(entries[rank], groups[rank]) for rank in sorted(groups)}


@dataclass(frozen=True)
class _Group:
    """As the analyser sees it: a group, its calls on GPUs, or two of its ranks with their messages."""

    name: str
    description: str
    members: list[int]  # by their ranks of the job
    entries: list[tuple[int, Entry]]  # with the rank of the job

    def facts(self) -> dict[str, str]:
        return {"name": self.name, "desc": self.description, "ranks": str(self.members)}


def _whole(report: Report, name: str) -> _Group:
    group = report.group
    first = max((min(seat.calls, default=1) for seat in report.seats.values()), default=1)
    entries = [
        (_global(report, rank), _call_entry(seat, call))
        for rank, seat in report.seats.items()
        for call in seat.calls.values()
        if call.number >= first
    ]
    members = [_global(report, rank) for rank in range(group.world_size)]
    return _Group(name, group.name, members, entries)


def _on_gpus(report: Report, name: str) -> Iterator[_Group]:
    """The collectives on GPUs, which have numbers of their own."""
    found = {rank: _gpu_calls(seat) for rank, seat in report.seats.items()}
    if not any(found.values()):
        return
    first = max(min(calls, default=1) for calls in found.values())
    # Of what a rank has called after its oldest call that is not over, the dump has the number alone.
    known = min(_known_until(seat, found[rank], first) for rank, seat in report.seats.items())
    entries = [
        (_global(report, rank), _call_entry(report.seats[rank], call))
        for rank, calls in found.items()
        for call in calls.values()
        if first <= call.number <= known
    ]
    members = [_global(report, rank) for rank in range(report.group.world_size)]
    yield _Group(f"{name}:gpu", f"{report.group.name}, on GPUs", members, entries)


def _gpu_calls(seat: Seat) -> dict[int, Call]:
    """By number: those that have ended, and the oldest one that has not."""
    found = {each.call.number: each.call for each in seat.device if each.peer is None}
    device = seat.member.device
    pending = _ON_GPU.match(device.call) if device else None
    if device and pending:
        operation, number, dtype, count = pending.groups()
        facts = (int(number), operation, dtype or "int8", None, None, int(count or 0), 0, 0)
        found.setdefault(int(number), Call(*facts, device.since_ns, None))
    return found


def _known_until(seat: Seat, calls: dict[int, Call], first: int) -> float:
    """The last number of which this dump says what the rank called, or that it has not called it."""
    number = first
    while number in calls:
        number += 1
    called = seat.member.device.called if seat.member.device else 0
    return number - 1 if number <= called else math.inf


def _pairs(report: Report, name: str) -> Iterator[_Group]:
    """The messages of each two ranks."""
    for pair, messages in flight_messages.find(report).items():
        members = sorted(_global(report, rank) for rank in pair)
        entries = [
            (_global(report, side.rank), _message_entry(report, side, members, number))
            for number, message in enumerate(messages, 1)
            for side in message
        ]
        low, high = members
        yield _Group(
            f"{name}:{low}-{high}",
            f"{report.group.name}, messages of ranks {low} and {high}",
            members,
            entries,
        )


def _global(report: Report, rank: int) -> int:
    known = report.group.global_rank(rank)
    return rank if known is None else known


def _file(entries: list[Entry], groups: dict[str, Any]) -> dict[str, Any]:
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


def _call_entry(seat: Seat, call: Call) -> Entry:
    inputs, outputs = _sizes(call, seat.member)
    end_ns = call.end_ns if call.status == 0 else None
    return {
        **_entry(seat, call.begin_ns, end_ns, call.dtype),
        "collective_seq_id": call.number,
        "p2p_seq_id": 0,
        "op_id": call.number,
        "profiling_name": f"gloo:{_OPERATIONS.get(call.operation, call.operation)}",
        "duration_ms": (call.end_ns - call.begin_ns) / 1e6 if call.end_ns else None,
        "input_sizes": [inputs],
        "output_sizes": [outputs],
        "is_p2p": False,
    }


def _message_entry(report: Report, side: Side, members: list[int], number: int) -> Entry:
    """Both sides of a message have that number. The analyser takes ranks for places in their group."""
    me, peer = (members.index(_global(report, rank)) for rank in (side.rank, side.peer))
    return {
        **_entry(report.seats[side.rank], side.begin_ns, side.end_ns, side.dtype),
        "collective_seq_id": number,
        "p2p_seq_id": number,
        "op_id": number,
        "profiling_name": f"gloo:{side.operation} {me}{'->' if side.operation == 'send' else '<-'}{peer}",
        "duration_ms": (side.end_ns - side.begin_ns) / 1e6 if side.end_ns else None,
        "input_sizes": [[side.count]],
        "output_sizes": [[side.count]],
        "is_p2p": True,
    }


def _entry(seat: Seat, begin_ns: int, end_ns: int | None, dtype: str) -> Entry:
    """What calls and messages have in common. end_ns: None, if it is not over, or has failed."""
    unix_ns = seat.dump.written_unix_ns - seat.dump.written_ns  # to add to CLOCK_MONOTONIC
    return {
        "record_id": 0,
        "time_created_ns": begin_ns + unix_ns,
        "frames": [],
        "input_dtypes": [_DTYPES.get(dtype, "Byte")],
        "output_dtypes": [_DTYPES.get(dtype, "Byte")],
        "state": "started" if end_ns is None else "completed",
        "time_discovered_started_ns": begin_ns + unix_ns,
        "time_discovered_completed_ns": None if end_ns is None else end_ns + unix_ns,
        "retired": end_ns is not None,
        "timeout_ms": seat.member.timeout_ns // 1_000_000,
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
