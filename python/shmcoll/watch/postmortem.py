# SPDX-License-Identifier: BSD-3-Clause
"""``shmcoll postmortem``: what the dumps of a failed job say. Why, the last calls of all ranks, who is missing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from shmcoll.watch import board, dumps, flight, layout, status, text
from shmcoll.watch.blame import judge
from shmcoll.watch.board import Call, DeviceCall, Member, Message, Snapshot
from shmcoll.watch.dumps import Dump
from shmcoll.watch.groups import Group, end_json, gather
from shmcoll.watch.parser import EXIT_USAGE, Parser
from shmcoll.watch.table import Column, Row, layout as lay_out, plain
from shmcoll.watch.text import EXIT_NOTHING, duration

EXIT_READ = 0
EXIT_PARTLY = 1  # a file was left out, or one cannot be written
__all__ = ["EXIT_NOTHING", "EXIT_PARTLY", "EXIT_READ", "EXIT_USAGE", "main"]

_LAST = 5  # calls of each rank
_MOST_ROWS = 24
_MOST_COLUMNS = 6
_MOST_RANKS = 8  # that have nothing special


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="shmcoll postmortem",
        description="Shows what the dumps of a failed job say: why a group failed, the last calls of all "
        "ranks, and which rank is missing. SHMCOLL_DUMP and shmcoll.dump() write dumps.",
        epilog="exit codes: 0 all files were read, 1 a file was left out or cannot be written, 3 no dump found",
    )
    parser.add_argument(
        "names",
        nargs="+",
        type=Path,
        metavar="DIR|FILE",
        help="a folder of dumps (*.dump), or a dump",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--torch",
        type=Path,
        metavar="OUT",
        help="also write the files that torchfrtrace reads into this new folder",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    found = dumps.find(options.names)
    reports = make_reports(found.dumps)
    problems = list(found.problems)
    written: list[str] = []
    if options.torch and reports:
        try:
            written = flight.write(options.torch, reports)
        except OSError as error:
            problems.append(
                f"{board.printable(options.torch)} cannot be written: {error.strerror or error}"
            )
    if options.json:
        print(json.dumps(_as_json(found.dumps, reports, problems), indent=2))
    else:
        lines = [f"note: {problem}" for problem in problems]
        lines += _lines(found.dumps, reports) if reports else ["no dump with a group in it"]
        print("\n".join([*lines, *written]))
    if not reports:
        return EXIT_NOTHING
    return EXIT_PARTLY if problems else EXIT_READ


# ---- the ranks of a group, from the dumps of a job ----


@dataclasses.dataclass
class Seat:
    """One rank of a group, as its best dump shows it."""

    dump: Dump
    member: Member
    calls: dict[int, Call]  # by number; the last 256
    messages: list[Message]  # that waited or were large, the oldest first; the last 256
    device: list[DeviceCall]  # calls and messages on a GPU that have ended; the last 128


@dataclasses.dataclass
class Report:
    group: Group
    seats: dict[int, Seat]  # by rank

    @property
    def group_name(self) -> str:
        """torch's name of the group, not the user's words for it."""
        return next(iter(self.seats.values())).member.name

    @property
    def newest(self) -> int:
        """The number of the newest call that any rank has entered."""
        return max(seat.member.entered for seat in self.seats.values())

    @property
    def not_come(self) -> list[int]:
        """Ranks that have not entered it."""
        return [rank for rank, seat in self.seats.items() if seat.member.entered < self.newest]

    @property
    def difference(self) -> int | None:
        """The first number at which the ranks' calls differ, or that a rank has not entered."""
        entered = [seat.member.entered for seat in self.seats.values()]
        found = self.differing
        if min(entered) < max(entered):
            found.append(min(entered) + 1)
        return min(found, default=None)

    @property
    def differing(self) -> list[int]:
        """The numbers at which ranks have made different calls."""
        numbers = {number for seat in self.seats.values() for number in seat.calls}
        return [number for number in numbers if len(self._kinds(number)) > 1]

    def _kinds(self, number: int) -> set[object]:
        calls = (seat.calls.get(number) for seat in self.seats.values())
        return {_kind(call) for call in calls if call}

    @property
    def failed_unix_ns(self) -> int:
        """When the first rank knew of the failure; the groups that have not failed come last."""
        times = [
            seat.dump.written_unix_ns
            for seat in self.seats.values()
            if seat.dump.failed == seat.member.part
        ]
        return min(times, default=1 << 63)


def _kind(call: Call) -> object:
    """What is equal on all ranks of one call."""
    count = call.count if call.operation not in layout.UNCOUNTED else None
    return call.operation, call.dtype, call.reduction, call.root, count


def make_reports(found: Sequence[Dump]) -> list[Report]:
    """The groups, in the order in which they failed."""
    best: dict[tuple[object, ...], tuple[tuple[bool, int], Dump, Member]] = {}
    for dump in found:
        for member in dump.groups:
            key: tuple[object, ...] = (member.nonce, member.rank)
            if member.making:  # without a nonce
                key = (dump.host, dump.process.pid, member.begun_ns)
            worth = (dump.failed == member.part, dump.written_ns)
            if key not in best or worth > best[key][0]:
                best[key] = worth, dump, member
    owners = {id(member): dump for _, dump, member in best.values()}
    groups = gather(Snapshot(0, [member for _, _, member in best.values()], []))
    reports = []
    for group in groups:
        seats = {
            rank: Seat(
                dump := owners[id(member)],
                member,
                dump.calls(member),
                dump.messages(member),
                dump.device_calls(member),
            )
            for rank, member in sorted(group.members.items())
        }
        group.now_ns = max(seat.dump.written_ns for seat in seats.values())
        reports.append(Report(group, seats))
    return sorted(reports, key=lambda report: report.failed_unix_ns)


# ---- text ----


def _lines(found: Sequence[Dump], reports: Sequence[Report]) -> list[str]:
    lines = [_job_line(found)]
    for index, report in enumerate(reports):
        lines += ["", *_report_lines(index, report)]
    waits = _wait_lines([report.group for report in reports])
    return [*lines, "", *waits] if waits else lines


def _wait_lines(groups: Sequence[Group]) -> list[str]:
    """Over all groups that had not failed."""
    verdict = judge(groups, 0.0)
    if verdict.cycles:
        return verdict.lines("waited")
    shown, rest = verdict.foremost()
    return [
        f"-> {each.waited_for_by} rank{'s' * (each.waited_for_by > 1)} waited for "
        f'{each.group.name_rank(each.rank)} of "{each.group.name}"'
        for each in shown
    ] + rest


def _job_line(found: Sequence[Dump]) -> str:
    jobs = sorted({dump.job for dump in found if dump.job})
    hosts = ", ".join(sorted({dump.host for dump in found}))
    first, last = (_time(choose(dump.written_unix_ns for dump in found)) for choose in (min, max))
    parts = [f"job {', '.join(jobs)}"] if jobs else []
    parts += [f"{len(found)} dump{'s' * (len(found) != 1)}", f"host {hosts}"]
    parts.append(f"written {first}" + (f" to {last.split()[1]}" if last != first else ""))
    return " · ".join(parts)


def _time(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ns / 1e9))


def _report_lines(index: int, report: Report) -> Iterator[str]:
    group = report.group
    absent, number = group.absent, report.difference
    state = "being made" if group.making else "failed" if group.failure else "had not failed"
    yield f'GROUP {index} "{group.name}" · {text.size(group)} · {state}'
    if group.failure:
        kind = board.name_of(layout.STATUSES, group.failure.status)
        yield f"  {kind}: {group.failure.reason}"
    elif number is None and not any(_has_more(seat) for seat in report.seats.values()):
        without = f"; no dump of {text.ranks(group, absent)}" if absent else ""
        yield f"  the dumps show the same calls, the last one is #{report.newest}{without}"
        return
    if not group.making:
        yield from _table(report)
    yield from _rank_lines(report)
    if absent:
        yield from _absent_lines(report)
    yield from _not_come_lines(report)
    if report.differing:
        yield f"  -> the calls differ from #{min(report.differing)} on"


def _has_more(seat: Seat) -> bool:
    """Than calls: messages that were pending, or work on a GPU."""
    return seat.member.pending is not None or bool(seat.device or seat.member.on_gpu)


def _absent_lines(report: Report) -> Iterator[str]:
    known = [rank for rank in report.group.absent if report.group.end_of(rank)]
    rest = [rank for rank in report.group.absent if rank not in known]
    if known:
        yield f"  -> no dump of {text.ranks(report.group, known)}, which ended before the others failed"
    if rest:
        yield f"  -> no dump of {text.ranks(report.group, rest)}: killed, ended by its own error, stuck outside of shmcoll, or without SHMCOLL_DUMP"


def _not_come_lines(report: Report) -> Iterator[str]:
    ranks, group = report.not_come, report.group
    if len(ranks) > 4:
        yield f"  -> {text.ranks(group, ranks)} had not come to call #{report.newest}"
        return
    for rank in ranks:
        seat = report.seats[rank]
        told = seat.dump.failed == seat.member.part
        after = _since(seat.dump.written_unix_ns, report.failed_unix_ns)
        came = f"; came {after} after the failure" if told else ""
        yield f"  -> {group.name_rank(rank)} had not come to call #{report.newest}{came}"


def _table(report: Report) -> Iterator[str]:
    """The last calls, a column for each set of ranks that made the same ones."""
    rows = _row_numbers(report)
    columns: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, seat in report.seats.items():
        columns[tuple(_cell(seat, number) for number in rows)].append(rank)
    shown = list(columns.items())[:_MOST_COLUMNS]
    if not rows:
        return
    heads = [Column("", right=True)]
    heads += [Column(_rank_range(report.group, ranks), least=14) for _, ranks in shown]
    cells: list[Row] = []
    for at, number in enumerate(rows):
        if at and number != rows[at - 1] + 1:
            cells.append([("...", ""), *[("", "") for _ in shown]])
        mark = "-> " if number == report.difference else ""
        cells.append([(f"{mark}#{number}", ""), *[(column[at], "") for column, _ in shown]])
    width = shutil.get_terminal_size((120, 24)).columns
    for line in lay_out(heads, cells, width - 2):
        yield f"  {plain(line)}"
    if len(columns) > len(shown):
        yield f"  and {len(columns) - len(shown)} more columns, which --json has"


def _row_numbers(report: Report) -> list[int]:
    """Of the last calls of each rank, and around the first difference."""
    numbers: set[int] = set()
    if report.difference is not None:
        numbers |= {report.difference - 1, report.difference}
    for entered in sorted({seat.member.entered for seat in report.seats.values()}, reverse=True):
        if len(numbers) < _MOST_ROWS:
            numbers |= set(range(entered - _LAST + 1, entered + 1))
    return sorted(number for number in numbers if number > 0)


def _cell(seat: Seat, number: int) -> str:
    member, call = seat.member, seat.calls.get(number)
    if number > member.entered:
        return "-"
    runs = " (in it)" if number == member.entered and member.in_call else ""
    if call is None:
        return f"?{runs}"
    words = [text.short_call(call).split(" ", 1)[1]]
    words += [call.reduction] if call.reduction else []
    words += [f"root {call.root}"] if call.root is not None else []
    if call.status and not runs:
        words.append(f"({board.name_of(layout.STATUSES, call.status)})")
    return " ".join(words) + runs


def _rank_range(group: Group, ranks: Sequence[int]) -> str:
    """ "rank 3", or "ranks 0-2, 5"."""
    whole = [group.global_rank(rank) for rank in ranks]
    numbers = sorted(rank if known is None else known for rank, known in zip(ranks, whole))
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in parts[:4]]
    more = ", ..." if len(parts) > 4 else ""
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(words)}{more}"


def _rank_lines(report: Report) -> Iterator[str]:
    group, plain_ranks = report.group, 0
    for rank in group.ranks:
        seat = report.seats.get(rank)
        pid = group.pid(rank)
        special = seat is None or rank in report.not_come or seat.member.pending is not None
        plain_ranks += not special
        if special or plain_ranks <= _MOST_RANKS:
            yield f"  {group.name_rank(rank)}  pid {pid or '?'}  {_what(report, seat, rank)}"
            if seat and seat.messages:
                yield f"          {_last_message(group, seat)}"
            if seat and seat.device:
                yield f"          {_last_on_gpu(seat)}"
    if plain_ranks > _MOST_RANKS:
        yield f"  and {plain_ranks - _MOST_RANKS} more ranks like these"
    yield from text.elsewhere(group)


def _last_message(group: Group, seat: Seat) -> str:
    """ "last message: send f32[1000] to rank 1, tag 7, which took 3 ms; ended 2.0 s before"."""
    last = seat.messages[-1]
    peer = "any rank" if last.peer is None else group.name_rank(last.peer)
    said = f"{text.short_type(last.dtype)}[{last.count}] {'to' if last.operation == 'send' else 'from'} {peer}"
    took = duration(max(0, last.end_ns - last.begin_ns) / 1e9)
    failed = f", which failed ({board.name_of(layout.STATUSES, last.status)})" * bool(last.status)
    ago = _since(seat.dump.written_ns, last.end_ns)
    return f"last message kept: {last.operation} {said}, tag {last.tag}{failed}; took {took}, ended {ago} before"


def _last_on_gpu(seat: Seat) -> str:
    """ "last on its GPU: all_reduce #7 (float32[8], sum), ended 2.0 s before"."""
    last = seat.device[-1]
    ago = _since(seat.dump.written_ns, last.call.end_ns or 0)
    peer = "" if last.peer is None else f" with rank {last.peer}"
    return f"last on its GPU: {last.call}{peer}, ended {ago} before"


def _said_of(report: Report, rank: int) -> str:
    """What the other ranks' dumps say of a rank that has left none: how it went, and its last call."""
    end = report.group.end_of(rank)
    if end is None:
        return ""
    if end.last_call is None:
        return f"; {end}; it had made no call"
    # Ranks of one number have made one call, or their calls would not have ended.
    others = [seat.calls.get(end.last_call) for seat in report.seats.values()]
    call = next((call for call in others if call), None)
    return f"; {end}; its last call was {call or f'#{end.last_call}'}"


def _what(report: Report, seat: Seat | None, rank: int) -> str:
    """What the rank did when it wrote its dump."""
    if seat is None:
        return f"no dump{_said_of(report, rank)}"
    group, member, now_ns = report.group, seat.member, seat.dump.written_ns
    call = member.call
    if member.making:
        return "waited for the other ranks"
    if member.in_call:
        said = f"in {member.call_text}"
        said += f" for {_since(now_ns, call.begin_ns)}" if call else ""
        if member.awaits_ns is not None:
            said += ", waited for other hosts"
        elif member.waits_for is not None:
            said += f", waited for {text.ranks(group, group.missing(member))}"
    elif member.entered == 0:
        said = "no call yet"
    else:
        last = call if call else f"#{member.entered}"
        said = f"last {last}"
        if call and call.end_ns:
            said = f"not in a call for {_since(now_ns, call.end_ns)}; {said}"
    if not member.has_times:
        said += "; kept no calls (SHMCOLL_BOARD=counts, or its clock)"
    parts = status.device_texts(group, member)
    if not parts or member.entered:
        parts.insert(0, said)
    return "; ".join([*parts, *([text.pending(group, member)] if member.pending else [])])


def _since(now_ns: int, ns: int) -> str:
    return duration(max(0, now_ns - ns) / 1e9)


# ---- JSON ----


def _as_json(
    found: Sequence[Dump], reports: Sequence[Report], problems: Sequence[str]
) -> dict[str, object]:
    return {
        "schema": 1,
        "problems": problems,
        "dumps": [
            {
                "file": str(dump.path),
                "host": dump.host,
                "job": dump.job or None,
                "pid": dump.process.pid,
                "library": dump.process.library,
                "written_unix_s": dump.written_unix_ns / 1e9,
                "failed": dump.failed is not None,
            }
            for dump in found
        ],
        "groups": [_report_json(report) for report in reports],
    }


def _report_json(report: Report) -> dict[str, object]:
    group, failure = report.group, report.group.failure
    return {
        "name": group.name,
        "id": group.nonce.hex(),
        "world_size": group.world_size,
        "over_hosts": status.over_json(group),
        "state": "making" if group.making else "failed" if failure else "made",
        "status": board.name_of(layout.STATUSES, failure.status) if failure else None,
        "reason": failure.reason if failure else None,
        "found_by": failure.found_by if failure else None,
        "newest": report.newest,
        "difference": report.difference,
        "not_come": report.not_come,
        "without_dump": group.absent,
        "ranks": [_seat_json(report, rank) for rank in group.ranks],
    }


def _seat_json(report: Report, rank: int) -> dict[str, object]:
    group, seat = report.group, report.seats.get(rank)
    facts: dict[str, object] = {
        "rank": rank,
        "global_rank": group.global_rank(rank),
        "pid": group.pid(rank),
        "text": _what(report, seat, rank),
        "ended": end_json(group.end_of(rank)),
        "file": str(seat.dump.path) if seat else None,
    }
    if seat is None:
        return facts
    member, pending = seat.member, seat.member.pending
    return {
        **facts,
        "reason": member.reason or None,
        "number": member.entered,
        "in_call": member.in_call,
        "waits_for": list(group.missing(member)) if member.waits_for is not None else [],
        "pending_sends": pending.sends if pending else 0,
        "pending_receives": pending.receives if pending else 0,
        "calls": [
            {
                **dataclasses.asdict(call),
                "status": board.name_of(layout.STATUSES, call.status),
            }
            for call in seat.calls.values()
        ],
        "messages": [
            {
                **dataclasses.asdict(message),
                "status": board.name_of(layout.STATUSES, message.status),
            }
            for message in seat.messages
        ],
        "device": status.device_json(group, member.device),
        "device_messages": status.device_json(group, member.device_messages),
        "device_calls": [
            {**dataclasses.asdict(each.call), "peer": each.peer, "tag": each.tag}
            for each in seat.device
        ],
    }
