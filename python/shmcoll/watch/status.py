# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll status``: all groups of this machine, what each rank does, and who waits for whom."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Sequence

from shmcoll.watch import board, layout, quota, text, unseen
from shmcoll.watch.blame import Culprit, Verdict, judge
from shmcoll.watch.board import Device, Member, Snapshot
from shmcoll.watch.groups import Group, end_json, gather
from shmcoll.watch.parser import EXIT_USAGE
from shmcoll.watch.quota import Quota
from shmcoll.watch.text import EXIT_NOTHING, STATES, duration

EXIT_MOVES = 0
EXIT_FAILED = 1  # a group has failed
EXIT_LATE = 2  # a rank has waited too long

# The ranks that a failure was told to add this to its reason.
_FOUND_BY = re.compile(r" \(found by rank \d+\)$")


__all__ = ["EXIT_NOTHING", "EXIT_USAGE", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    snapshot = board.look(options.pids or None)
    groups = gather(snapshot)
    if groups or options.json:  # else nothing() says it
        shown = {member.process.pid for member in snapshot.members}
        snapshot.problems.extend(unseen.sentences(shown, options.pids or None))
    verdict = judge(groups, options.late)
    if options.json:
        print(json.dumps(_as_json(snapshot, groups, verdict), indent=2))
    else:
        text.print_fitted(_lines(snapshot, groups, verdict, options))
    return exit_code(groups, verdict, options.late)


def _parser() -> argparse.ArgumentParser:
    parser = text.PidParser(
        prog="shmcoll status",
        description="Shows the groups of this machine's processes, without asking the processes: also "
        "of those that hang or are stopped. It sees your own processes; root sees all.",
        epilog="exit codes: 0 all ranks move, 1 a group has failed, 2 a rank is late, 3 no group found",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text.add_late_option(parser)
    return parser


def exit_code(groups: list[Group], verdict: Verdict, late: float) -> int:
    if not groups:
        return EXIT_NOTHING
    if any(group.failure for group in groups):
        return EXIT_FAILED
    if verdict.culprits or verdict.cycles or any(_is_late(group, late) for group in groups):
        return EXIT_LATE
    return EXIT_MOVES


def _is_late(group: Group, late: float) -> bool:
    """Late in a way that no wait of a thread shows."""
    members = group.members.values()
    devices = [each for m in members for each in (m.device, m.device_messages) if each]
    since = [device.since_ns for device in devices if device.call]
    since += [m.awaits_ns for m in members if m.awaits_ns is not None]
    return (group.making and group.age_seconds >= late) or any(
        group.seconds_since(ns) >= late for ns in since
    )


# ---- text ----


def _lines(
    snapshot: Snapshot, groups: list[Group], verdict: Verdict, options: argparse.Namespace
) -> list[str]:
    lines = [f"note: {problem}" for problem in snapshot.problems]
    if not groups:
        return lines + text.nothing(options.pids)
    held = _held_back(groups)
    for index, group in enumerate(groups):
        lines += [title(index, group), *_rank_lines(group)]
        lines += _quota_lines(group, held) + group_verdict(group, options.late)
    return lines + verdict_lines(verdict)


def title(index: int, group: Group) -> str:
    age = duration(group.age_seconds)
    parts = [
        f'GROUP {index} "{group.name}"',
        text.size(group),
        text.commands(group),
        f"being made for {age}" if group.making else f"made {age} ago",
    ]
    busiest = text.busiest(group)
    if busiest:
        parts.append(busiest)
    return " · ".join(parts)


def _rank_lines(group: Group) -> list[str]:
    return [
        f"  {group.name_rank(rank)}  pid {group.pid(rank) or '?'}  {_what(group, rank)}"
        for rank in group.ranks
    ] + text.elsewhere(group)


def _quota_lines(group: Group, held: dict[int, Quota]) -> list[str]:
    return [f"  the {each.said(text.ranks(group, ranks))}" for each, ranks in _quotas(group, held)]


def _held_back(groups: list[Group]) -> dict[int, Quota]:
    """The CPU quotas that hold processes of the groups back, by pid."""
    pids = {each.process.pid for group in groups for each in group.members.values()}
    return quota.of_each(quota.ROOT, sorted(pids))


def _quotas(group: Group, held: dict[int, Quota]) -> list[tuple[Quota, list[int]]]:
    """The quotas that hold ranks of the group back, each one with its ranks."""
    found: dict[str, tuple[Quota, list[int]]] = {}
    for rank, member in sorted(group.members.items()):
        of_rank = held.get(member.process.pid)
        if of_rank:
            found.setdefault(of_rank.place, (of_rank, []))[1].append(rank)
    return list(found.values())


def _what(group: Group, rank: int) -> str:
    member = group.members.get(rank)
    if member is None:
        return text.absent(group, rank)
    state = state_texts(member.process.state)
    if member.making:
        waited = duration(group.seconds_since(member.begun_ns))
        return "; ".join([f"waits {waited} for the other ranks", *state])
    if member.status:
        return _failed(group, member)
    texts = [_call_text(group, member)]
    on_gpu = device_texts(group, member)
    if on_gpu and member.entered == 0:
        texts = []  # all its calls are on the GPU
    texts += on_gpu
    if member.pending:
        texts.append(text.pending(group, member))
    return "; ".join(texts + state)


def _failed(group: Group, member: Member) -> str:
    text = "found" if member.found_by == member.rank else "knows"
    text += " that the group has failed"
    reasons = {_FOUND_BY.sub("", each.reason) for each in group.members.values() if each.status}
    return text if len(reasons) == 1 else f"{text}: {member.reason}"  # group_verdict() says it once


def state_texts(state: str) -> list[str]:
    """About a process that does not run at all."""
    return [f"process: {STATES[state]}"] if state and state in "TtZX" else []


def device_texts(group: Group, member: Member) -> list[str]:
    """What its GPU does: calls, and messages."""
    kinds = ((member.device, "call"), (member.device_messages, "message"))
    return [_device_text(group, device, kind) for device, kind in kinds if device]


def _device_text(group: Group, device: Device, kind: str) -> str:
    if not device.call:
        if device.done == 1:
            return f"its {kind} on the GPU is over"
        return f"its {device.done} {kind}s on the GPU are over"
    lasted = duration(group.seconds_since(device.since_ns))
    text = f"on the GPU {device.call} has been under way for {lasted}"
    if device.whom:
        text += f" and waits for {device.whom}"
    more = device.called - device.done - 1
    return f"{text}; {more} more after it" if more else text


def _call_text(group: Group, member: Member) -> str:
    call = member.call
    if not member.in_call:
        if call is None:
            return (
                "no call yet" if member.entered == 0 else f"not in a call; last #{member.entered}"
            )
        ago = duration(group.seconds_since(call.end_ns)) if call.end_ns else "?"
        return f"not in a call for {ago}; last {call}"
    what = member.call_text
    if member.awaits_ns is not None:
        waited = duration(group.seconds_since(member.awaits_ns))
        return f"waits {waited} in {what} for other hosts"
    if member.waits_for is None:
        took = f" for {duration(group.seconds_since(call.begin_ns))}" if call else ""
        return f"in {what}{took}"
    waited = duration(group.seconds_since(member.waits_since_ns))
    return f"waits {waited} in {what} for {text.ranks(group, group.missing(member))}"


def group_verdict(group: Group, late: float) -> list[str]:
    if group.failure:
        return [f"  -> the group has failed: {group.failure.reason}"]
    if _is_late(group, late) and group.making:
        missing = text.ranks(group, group.absent)
        why = (
            f"{missing} has not come"
            if group.absent
            else "all ranks have come; is the store alive?"
        )
        return [f"  -> the group is not made: {why}"]
    return awaited(group) if _is_late(group, late) else []


def awaited(group: Group) -> list[str]:
    """What is known of the hosts that the group waits for."""
    return [] if group.awaited is None else [f"  -> it waits for {group.awaited}"]


def verdict_lines(verdict: Verdict) -> list[str]:
    """The ranks that others wait for, and the cycles: of another job, say."""
    shown, rest = verdict.foremost()
    return [_culprit_text(culprit) for culprit in shown] + rest + verdict.lines()


def _culprit_text(culprit: Culprit) -> str:
    group, rank = culprit.group, culprit.rank
    member, pid = group.members.get(rank), group.pid(rank)
    count = culprit.waited_for_by
    text = f"-> {count} rank{'s wait' if count > 1 else ' waits'} for {group.name_rank(rank)}"
    text += f' of "{group.name}"'
    if member and member.process.state == "T":
        text += f", which is stopped: kill -CONT {pid}"
    elif member:
        text += f". What it does: shmcoll stacks {pid}"
    return text


# ---- JSON ----


def _as_json(snapshot: Snapshot, groups: list[Group], verdict: Verdict) -> dict[str, object]:
    held = _held_back(groups)
    return {
        "schema": 1,
        "problems": snapshot.problems,
        "waited_for": [
            {
                "group": culprit.group.nonce.hex(),
                "rank": culprit.rank,
                "pid": culprit.group.pid(culprit.rank),
                "waited_for_by": culprit.waited_for_by,
            }
            for culprit in verdict.culprits
        ],
        "deadlock": [str(wait) for wait in verdict.cycles[0]] if verdict.cycles else [],
        "deadlocks": [[str(wait) for wait in cycle] for cycle in verdict.cycles],
        "groups": [_group_json(group, _quotas(group, held)) for group in groups],
    }


def _group_json(group: Group, quotas: list[tuple[Quota, list[int]]]) -> dict[str, object]:
    failure = group.failure
    return {
        "name": group.name,
        "id": group.nonce.hex(),
        "world_size": group.world_size,
        "over_hosts": over_json(group),
        "state": "making" if group.making else "failed" if failure else "made",
        "reason": failure.reason if failure else None,
        "found_by": failure.found_by if failure else None,
        "age_s": round(group.age_seconds, 6),
        "cpu_quotas": [{**dataclasses.asdict(each), "ranks": ranks} for each, ranks in quotas],
        "ranks": [_rank_json(group, rank) for rank in group.ranks],
    }


def over_json(group: Group) -> dict[str, object] | None:
    """About the hosts of a group over several hosts."""
    over = group.over
    if over is None:
        return None
    here = {m.over.host: list(m.over.ranks) for m in group.members.values() if m.over}
    return {
        "hosts": over.hosts,
        "here": [{"host": host, "ranks": ranks} for host, ranks in sorted(here.items())],
        "waits_for": group.awaited,
    }


def _rank_json(group: Group, rank: int) -> dict[str, object]:
    member = group.members.get(rank)
    facts: dict[str, object] = {
        "rank": rank,
        "global_rank": group.global_rank(rank),
        "pid": group.pid(rank),
        "text": _what(group, rank),
        "ended": end_json(group.end_of(rank)),
    }
    if member is None:
        return {**facts, "board": False}
    call, pending = member.call, member.pending
    waits = member.waits_for is not None
    return {
        **facts,
        "board": True,
        "command": member.process.command,
        "process_state": STATES.get(member.process.state, member.process.state),
        "library": member.process.library,
        "level": layout.LEVELS[member.process.level],
        "in_call": member.in_call,
        "call": None if call is None else str(call),
        "number": member.entered,
        "operation": call.operation if call else None,
        "waits_s": round(group.seconds_since(member.waits_since_ns), 6) if waits else None,
        "waits_for": list(group.missing(member)) if waits else [],
        "waits_for_other_hosts_s": None
        if member.awaits_ns is None
        else round(group.seconds_since(member.awaits_ns), 6),
        "pending_sends": pending.sends if pending else 0,
        "pending_receives": pending.receives if pending else 0,
        "oldest_message": None
        if pending is None
        else {
            "operation": pending.operation,
            "peer": pending.peer,
            "tag": pending.tag,
            "bytes": pending.bytes,
            "age_s": round(group.seconds_since(pending.since_ns), 6),
        },
        "device": device_json(group, member.device),
        "device_messages": device_json(group, member.device_messages),
        "late_lines": member.late,
        "slept_s": round(member.slept_ns / 1e9, 6),
        "slept_for_s": [round(ns / 1e9, 6) for ns in member.waited_ns],
        "operations": {
            name: {
                "count": each.operations,
                "bytes": each.bytes,
                "seconds": round(each.ns / 1e9, 6),
            }
            for name, each in member.sums.items()
        },
    }


def device_json(group: Group, device: Device | None) -> dict[str, object] | None:
    if device is None:
        return None
    return {
        "called": device.called,
        "done": device.done,
        "call": device.call or None,
        "waits_for": device.whom or None,
        "missing": list(device.missing) if device.call else [],
        "age_s": round(group.seconds_since(device.since_ns), 6) if device.call else None,
    }
