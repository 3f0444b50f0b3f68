# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll status``: all groups of this machine, what each rank does, and who waits for whom."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from shmcoll.watch import board
from shmcoll.watch.blame import Culprit, Verdict, judge
from shmcoll.watch.board import Member, Sight
from shmcoll.watch.groups import Group, gather

EXIT_MOVES = 0
EXIT_FAILED = 1  # a group has failed
EXIT_LATE = 2  # a rank has waited too long
EXIT_NOTHING = 3  # no group to be seen
EXIT_USAGE = 64

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
}


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    sight = board.look(options.pids or None)
    groups = gather(sight)
    verdict = judge(groups, options.late)
    if options.json:
        print(json.dumps(_as_json(sight, groups, verdict), indent=2))
    else:
        print("\n".join(_lines(sight, groups, verdict, options)))
    return _exit_code(groups, verdict, options.late)


def _parser() -> argparse.ArgumentParser:
    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> None:  # type: ignore[override]
            self.print_usage(sys.stderr)
            self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")

    parser = Parser(
        prog="shmcoll status",
        description="Shows the groups of this machine's processes, without asking the processes: also "
        "of those that hang or are stopped. It sees your own processes; root sees all.",
        epilog="exit codes: 0 all ranks move, 1 a group has failed, 2 a rank is late, 3 no group found",
    )
    parser.add_argument("pids", nargs="*", type=int, metavar="PID", help="look at these alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--late",
        type=float,
        default=5.0,
        metavar="S",
        help="a wait of so many seconds is late (default 5)",
    )
    return parser


def _exit_code(groups: list[Group], verdict: Verdict, late: float) -> int:
    if not groups:
        return EXIT_NOTHING
    if any(group.failure for group in groups):
        return EXIT_FAILED
    if verdict.culprits or verdict.cycle or any(_is_late(group, late) for group in groups):
        return EXIT_LATE
    return EXIT_MOVES


def _is_late(group: Group, late: float) -> bool:
    return group.making and group.age_seconds >= late


# ---- text ----


def _lines(
    sight: Sight, groups: list[Group], verdict: Verdict, options: argparse.Namespace
) -> list[str]:
    lines = [f"note: {problem}" for problem in sight.problems]
    if not groups:
        return lines + _nothing(options.pids)
    for index, group in enumerate(groups):
        lines += [_title(index, group), *_rank_lines(group), *_group_verdict(group, options.late)]
    return lines + _verdict(verdict)


def _nothing(pids: list[int]) -> list[str]:
    where = f"process {', '.join(map(str, pids))}" if pids else f"{len(_visible())} processes"
    return [
        f"no shmcoll group in {where} (looked at the descriptors that user {os.geteuid()} may read).",
        "A process shows its groups if SHMCOLL_BOARD is not off, and to its own user and root alone.",
    ]


def _visible() -> list[str]:
    return [
        name
        for name in os.listdir("/proc")
        if name.isdigit() and os.access(f"/proc/{name}/fd", os.R_OK)
    ]


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _amount(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def _title(index: int, group: Group) -> str:
    commands = sorted({member.process.command for member in group.members.values()})
    sums: dict[str, int] = {}
    for member in group.members.values():
        for operation, each in member.sums.items():
            sums[operation] = max(sums.get(operation, 0), each.operations)
    parts = [f'GROUP {index} "{group.name}"', f"{group.world_size} ranks", ", ".join(commands)]
    if group.making:
        parts.append(f"being made for {_duration(group.age_seconds)}")
    else:
        parts.append(f"made {_duration(group.age_seconds)} ago")
    most = sorted(sums.items(), key=lambda item: -item[1])[:3]
    if most:
        parts.append(", ".join(f"{operation} {_amount(count)}" for operation, count in most))
    return " · ".join(parts)


def _rank_lines(group: Group) -> list[str]:
    lines = []
    for rank in range(group.world_size):
        pid = group.pid(rank)
        said = _what(group, rank)
        lines.append(f"  {group.name_rank(rank)}  pid {pid or '?'}  {said}")
    return lines


def _what(group: Group, rank: int) -> str:
    member = group.members.get(rank)
    if member is None:
        return _absent(group, rank)
    if member.making:
        return f"waits {_duration(group.seconds_since(member.begun_ns))} for the other ranks"
    if member.status:
        return f"knows that the group has failed: {member.reason}"
    texts = [_call_text(group, member)]
    if member.pending:
        texts.append(_pending_text(group, member))
    if member.process.state in "TtZX":
        texts.append(f"process: {_STATES[member.process.state]}")
    return "; ".join(texts)


def _absent(group: Group, rank: int) -> str:
    pid = group.pid(rank)
    found = board.read_process(pid) if pid else None
    if group.making:
        return "has not come"
    if pid is None:
        return "not visible from here"
    if found is None or found[1] in "ZX":
        return "DEAD, or it has left the group"
    return f"has left the group, or its board is off; process: {_STATES.get(found[1], found[1])}"


def _call_text(group: Group, member: Member) -> str:
    call = member.call
    if not member.in_call:
        if call is None:
            return (
                "no call yet" if member.entered == 0 else f"not in a call; last #{member.entered}"
            )
        ago = _duration(group.seconds_since(call.end_ns)) if call.end_ns else "?"
        return f"not in a call for {ago}; last {call}"
    what = member.call_text
    if member.waits_for is None:
        took = f" for {_duration(group.seconds_since(call.begin_ns))}" if call else ""
        return f"in {what}{took}"
    waited = _duration(group.seconds_since(member.waits_since_ns))
    return f"waits {waited} in {what} for {_ranks(group, group.missing(member))}"


def _ranks(group: Group, ranks: Sequence[int]) -> str:
    names = [group.name_rank(rank) for rank in ranks[:4]]
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return ", ".join(names) + more


def _pending_text(group: Group, member: Member) -> str:
    pending = member.pending
    assert pending is not None
    counts = [
        f"{count} {name}{'s' if count > 1 else ''}"
        for count, name in ((pending.sends, "send"), (pending.receives, "receive"))
        if count
    ]
    direction = "to" if pending.operation == "send" else "from"
    peer = "any rank" if pending.peer is None else group.name_rank(pending.peer)
    age = _duration(group.seconds_since(pending.since_ns))
    return (
        f"{' and '.join(counts)} pending (oldest {age}: {pending.bytes} bytes {direction} {peer}, "
        f"tag {pending.tag})"
    )


def _group_verdict(group: Group, late: float) -> list[str]:
    if group.failure:
        return [f"  -> the group has failed: {group.failure.reason}"]
    if _is_late(group, late) and group.absent:
        return [f"  -> the group is not made: {_ranks(group, group.absent)} has not come"]
    return []


def _verdict(verdict: Verdict) -> list[str]:
    if verdict.cycle:
        return ["DEADLOCK: each of these waits for the next", *(f"  {w}" for w in verdict.cycle)]
    return [_culprit_text(culprit) for culprit in verdict.culprits[:4]]


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


def _as_json(sight: Sight, groups: list[Group], verdict: Verdict) -> dict[str, object]:
    return {
        "schema": 1,
        "problems": sight.problems,
        "waited_for": [
            {
                "group": culprit.group.nonce.hex(),
                "rank": culprit.rank,
                "pid": culprit.group.pid(culprit.rank),
                "waited_for_by": culprit.waited_for_by,
            }
            for culprit in verdict.culprits
        ],
        "deadlock": [str(wait) for wait in verdict.cycle],
        "groups": [_group_json(group) for group in groups],
    }


def _group_json(group: Group) -> dict[str, object]:
    failure = group.failure
    return {
        "name": group.name,
        "id": group.nonce.hex(),
        "world_size": group.world_size,
        "state": "making" if group.making else "failed" if failure else "made",
        "reason": failure.reason if failure else None,
        "age_s": round(group.age_seconds, 6),
        "ranks": [_rank_json(group, rank) for rank in range(group.world_size)],
    }


def _rank_json(group: Group, rank: int) -> dict[str, object]:
    member = group.members.get(rank)
    facts: dict[str, object] = {
        "rank": rank,
        "global_rank": group.global_rank(rank),
        "pid": group.pid(rank),
        "text": _what(group, rank),
    }
    if member is None:
        return {**facts, "board": False}
    call, pending = member.call, member.pending
    waits = member.waits_for is not None
    return {
        **facts,
        "board": True,
        "command": member.process.command,
        "process_state": _STATES.get(member.process.state, member.process.state),
        "library": member.process.library,
        "level": ("off", "counts", "times")[member.process.level],
        "in_call": member.in_call,
        "call": None if call is None else str(call),
        "number": member.entered,
        "operation": call.operation if call else None,
        "waits_s": round(group.seconds_since(member.waits_since_ns), 6) if waits else None,
        "waits_for": list(group.missing(member)) if waits else [],
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
