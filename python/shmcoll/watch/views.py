# SPDX-License-Identifier: BSD-3-Clause
"""What `shmcoll top` shows: lines of text for each of its views, and the same as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable

from shmcoll.watch import quota, status, text
from shmcoll.watch.blame import judge
from shmcoll.watch.board import ANY, Member
from shmcoll.watch.groups import Group
from shmcoll.watch.rates import Frame, Lateness, Rate
from shmcoll.watch.table import Column, Line, Row, Span, layout, wrapped

NONE: Span = ("-", "dim")
_BAD = "bold red"
_WAITS = "magenta"
_LATE_S = 5.0


def title(frame: Frame, view: str, every_s: float) -> Line:
    count = len(frame.snapshot.members)
    cpus = len(os.sched_getaffinity(0))
    parts = [
        f"{len(frame.groups)} group{'s' * (len(frame.groups) != 1)}",
        f"{count} rank{'s' * (count != 1)}",
        f"{cpus} CPU{'s' * (cpus != 1)}",
        f"every {every_s:g} s",
    ]
    return [
        ("shmcoll top", "bold"),
        (f"   {view}   " if view else "   ", ""),
        (" · ".join(parts), ""),
    ]


# ---- the ranks ----

_RANKS = [
    Column("GROUP", least=6),
    Column("RANK", right=True),
    Column("PID", right=True),
    Column("STATE"),
    Column("CALL", least=18),
    Column("IN", right=True),
    Column("OPS/S", right=True),
    Column("MB/S", right=True, rank=1),
    Column("COMM", right=True),
    Column("WAITS FOR", "FOR", least=4),
    Column("LAST", right=True),
    Column("COSTS", right=True, rank=2),
]


def ranks(frame: Frame, width: int) -> list[Line]:
    rows: list[Row] = []
    for group in frame.groups:
        late = frame.lateness.get(group.nonce)
        for at, rank in enumerate(group.ranks):
            name = group.name if at == 0 else ""
            rows.append([(name, "bold"), *_rank_cells(frame, group, rank, late)])
    return layout(_RANKS, rows, width)


def _rank_cells(frame: Frame, group: Group, rank: int, late: Lateness | None) -> list[Span]:
    member, pid = group.members.get(rank), group.pid(rank)
    number: Span = (_rank(group, rank), "")
    if member is None:
        where = (text.absent(group, rank), _BAD)
        return [number, (str(pid or "-"), ""), NONE, where, *[NONE] * 7]
    return [
        number,
        (str(pid), ""),
        _state(member),
        _call(group, member),
        _time_in(member),
        *_rates(frame.rate(member)),
        _waits_for(group, member),
        *_lateness(rank, late),
    ]


def _rank(group: Group, rank: int) -> str:
    whole = group.global_rank(rank)
    return str(rank) if whole in (None, rank) else f"{whole} ({rank})"


def _number(group: Group, rank: int) -> str:
    """As the job numbers it."""
    return _rank(group, rank).split(" ")[0]


def _state(member: Member) -> Span:
    if member.process.state in "Tt":
        return "stopped", _BAD
    if member.status:
        return "failed", _BAD
    if member.making:
        return "making", ""
    if member.in_call or member.sleeps_in_message:
        return "in", _WAITS
    return ("gpu", _WAITS) if member.on_gpu else ("out", "")


def _call(group: Group, member: Member) -> Span:
    if member.sleeps_in_message:
        peer = member.owed.peer
        whom = "any rank" if peer == ANY else _number(group, peer - 1)
        side = "to" if member.owed.operation == "send" else "from"
        return f"{member.owed.operation} {side} {whom}, tag {member.owed.tag}", ""
    if member.on_gpu and not member.in_call:
        return member.on_gpu.call, ""
    if member.call:
        return text.short_call(member.call), ""
    return (f"#{member.entered}", "") if member.entered else NONE


def _time_in(member: Member) -> Span:
    ns = member.call_ns
    if member.sleeps_in_message:
        ns = max(0, member.seen_ns - member.owed.since_ns)
    elif member.on_gpu and not member.in_call:
        ns = max(0, member.seen_ns - member.on_gpu.since_ns)
    if ns is None:
        return NONE
    return text.duration(ns / 1e9), _BAD if ns > _LATE_S * 1e9 else ""


def _rates(rate: Rate | None) -> list[Span]:
    if rate is None:
        return [NONE] * 3
    busy = NONE if rate.busy is None else (f"{rate.busy:.0%}", "")
    return [(f"{rate.operations:.0f}", ""), (f"{rate.bytes / 1e6:.1f}", ""), busy]


def _waits_for(group: Group, member: Member) -> Span:
    found: list[int] = []
    if member.awaits_ns is not None:
        return "hosts", _WAITS
    if member.waits_for is not None and not member.status:
        found = list(group.missing(member))
    elif member.sleeps_in_message and member.owed.peer != ANY:
        found = [member.owed.peer - 1]
    elif member.pending and member.pending.waited_for and member.pending.peer is not None:
        found = [member.pending.peer]
    elif member.on_gpu and not member.status:
        found = [rank for rank in member.on_gpu.missing if rank != member.rank]
    if not found:
        return NONE
    names = [_number(group, rank) for rank in found[:3]]
    more = f" +{len(found) - 3}" if len(found) > 3 else ""
    return ",".join(names) + more, _WAITS


def _lateness(rank: int, late: Lateness | None) -> list[Span]:
    if late is None or not late.calls:
        return [NONE, NONE]
    style = _BAD if late.straggler == rank else ""
    return [(f"{late.last[rank]:.0%}", style), (f"{late.cost[rank]:.2f} s/s", style)]


def verdicts(frame: Frame, width: int) -> list[Line]:
    """Sentences about what is wrong."""
    lines: list[Line] = []
    for group in frame.groups:
        if group.failure:
            reason = f'-> "{group.name}" has failed: {group.failure.reason}'
            lines += wrapped(reason, width, _BAD)
        late = frame.lateness.get(group.nonce)
        if late and late.straggler is not None:
            lines += wrapped(_straggler(group, late, late.straggler), width, _BAD)
    found = judge(frame.groups, _LATE_S)
    shown, rest = found.foremost()
    for culprit in shown:
        who = culprit.group.name_rank(culprit.rank)
        count = culprit.waited_for_by
        lines += wrapped(
            f'-> {count} rank{"s wait" if count > 1 else " waits"} for {who} of "{culprit.group.name}" '
            f"(pid {culprit.group.pid(culprit.rank) or 'not known'})",
            width,
            _BAD,
        )
    for line in rest + found.lines():
        lines += wrapped(line, width, _BAD if line.startswith("DEADLOCK") else "")
    for problem in frame.snapshot.problems:
        lines += wrapped(f"note: {problem}", width)
    return lines


def _straggler(group: Group, late: Lateness, rank: int) -> str:
    pid = group.pid(rank)
    held = quota.of_each(quota.ROOT, [pid] if pid else [])
    return (
        f'-> {group.name_rank(rank)} of "{group.name}" is last in {late.last[rank]:.0%} of '
        f"{late.calls} calls; the others wait {late.cost[rank]:.2f} s per second for it"
    ) + "".join(f"; its {each.said()}" for each in held.values())


# ---- the other views ----


def groups(frame: Frame, width: int) -> list[Line]:
    columns = [
        Column("GROUP", least=8),
        Column("RANKS", right=True),
        Column("COMMAND", least=8, rank=2),
        Column("STATE"),
        Column("AGE", right=True),
        Column("MIB", right=True, rank=1),
        Column("OPS/S", right=True),
        Column("MB/S", right=True),
        Column("OPERATIONS", least=12),
    ]
    rows: list[Row] = []
    for group in frame.groups:
        rates = [rate for each in group.members.values() if (rate := frame.rate(each))]
        state: Span = ("making", "") if group.making else ("made", "")
        shared = max(each.segment_bytes for each in group.members.values())
        rows.append(
            [
                (group.name, "bold"),
                (str(group.world_size), ""),
                (text.commands(group), ""),
                ("failed", _BAD) if group.failure else state,
                (text.duration(group.age_seconds), ""),
                (f"{shared / 2**20:.1f}", ""),
                (f"{max((rate.operations for rate in rates), default=0):.0f}", ""),
                (f"{sum(rate.bytes for rate in rates) / 1e6:.1f}", ""),
                (text.busiest(group) or "-", ""),
            ]
        )
    return layout(columns, rows, width)


def waits(frame: Frame, width: int) -> list[Line]:
    """For each group, how long each rank has slept for each other one."""
    lines: list[Line] = []
    for group in frame.groups:
        totals = {
            rank: sum(each.waited_ns[rank] for each in group.members.values())
            for rank in group.ranks
        }
        room = max(1, (width - 6) // 10)
        most = sorted(group.ranks, key=lambda rank: -totals[rank])[:room]
        columns = [Column("RANK", right=True)]
        columns += [Column(f"for {_rank(group, rank)}", right=True) for rank in sorted(most)]
        rows: list[Row] = []
        for rank, member in sorted(group.members.items()):
            cells = [
                NONE if not member.waited_ns[peer] else (_slept(member, peer), "")
                for peer in sorted(most)
            ]
            rows.append([(_rank(group, rank), "bold"), *cells])
        lines += wrapped(f'"{group.name}": how long each rank has slept for each other one', width)
        lines += [*layout(columns, rows, width), [("", "")]]
    return lines


def _slept(member: Member, peer: int) -> str:
    return text.duration(member.waited_ns[peer] / 1e9)


def messages(frame: Frame, width: int) -> list[Line]:
    lines: list[Line] = []
    for group in frame.groups:
        for rank, member in sorted(group.members.items()):
            who = f'"{group.name}", {group.name_rank(rank)}'
            if member.pending:
                lines += wrapped(f"{who}: {text.pending(group, member)}", width)
            if member.device_messages and member.device_messages.call:
                lines += wrapped(f"{who}: {status.device_texts(group, member)[-1]}", width)
    return lines or wrapped("no message has been pending for 10 ms or more", width)


def errors(frame: Frame, width: int) -> list[Line]:
    lines: list[Line] = []
    for group in frame.groups:
        for rank, member in sorted(group.members.items()):
            who = f'"{group.name}", {group.name_rank(rank)}'
            if member.status:
                lines += wrapped(f"{who}: {member.reason}", width, _BAD)
            if member.late:
                count = f"{member.late} line{'s' * (member.late != 1)}"
                lines += wrapped(f"{who}: {count} on stderr about late calls", width)
    return lines or wrapped("no group has failed, and no rank has written about a late call", width)


View = Callable[[Frame, int], list[Line]]
VIEWS: dict[str, tuple[str, View]] = {  # by key
    "r": ("ranks", ranks),
    "g": ("groups", groups),
    "w": ("waits", waits),
    "m": ("messages", messages),
    "e": ("errors", errors),
}
_NAMES = [f"{key} {name}" for key, (name, _) in VIEWS.items()]
KEYS = f"keys: {' · '.join(_NAMES)} · s stacks · q quit"


# ---- JSON ----


def as_json(frame: Frame) -> dict[str, object]:
    return {
        "schema": 1,
        "problems": frame.snapshot.problems,
        "interval_s": round(frame.interval_s, 6),
        "groups": [_group_json(frame, group) for group in frame.groups],
    }


def _group_json(frame: Frame, group: Group) -> dict[str, object]:
    failure, late = group.failure, frame.lateness.get(group.nonce)
    return {
        "name": group.name,
        "id": group.nonce.hex(),
        "world_size": group.world_size,
        "over_hosts": status.over_json(group),
        "state": "making" if group.making else "failed" if failure else "made",
        "reason": failure.reason if failure else None,
        "calls_compared": late.calls if late else 0,
        "straggler": late.straggler if late else None,
        "ranks": [_rank_json(frame, group, rank, late) for rank in group.ranks],
    }


def _rank_json(frame: Frame, group: Group, rank: int, late: Lateness | None) -> dict[str, object]:
    member = group.members.get(rank)
    facts: dict[str, object] = {
        "rank": rank,
        "global_rank": group.global_rank(rank),
        "pid": group.pid(rank),
        "board": member is not None,
    }
    if member is None:
        return facts
    rate, compared = frame.rate(member), late if late and late.calls else None
    sleeps = member.waits_for is not None and not member.status
    return {
        **facts,
        "state": _state(member)[0],
        "in_call": member.in_call,
        "call": str(member.call) if member.call else None,
        "number": member.entered,
        "in_call_s": None if member.call_ns is None else round(member.call_ns / 1e9, 6),
        "operations_per_s": round(rate.operations, 3) if rate else None,
        "bytes_per_s": round(rate.bytes, 3) if rate else None,
        "share_in_calls": round(rate.busy, 4) if rate and rate.busy is not None else None,
        "waits_for": list(group.missing(member)) if sleeps else [],
        "device": status.device_json(group, member.device),
        "device_messages": status.device_json(group, member.device_messages),
        "last_share": round(compared.last[rank], 4) if compared else None,
        "cost_s_per_s": round(compared.cost[rank], 6) if compared else None,
    }
