# SPDX-License-Identifier: BSD-3-Clause
"""Metrics of all groups in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from shmcoll.watch import board, layout
from shmcoll.watch.board import Member, Snapshot
from shmcoll.watch.groups import Group, gather

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAKING, MADE, FAILED = range(3)  # values of shmcoll_group_state

# name -> (type, help)
FAMILIES = {
    "shmcoll_boards": ("gauge", "Processes whose board was read."),
    "shmcoll_unreadable_boards": ("gauge", "Processes whose board cannot be read."),
    "shmcoll_rank_info": ("gauge", "Always 1: which process is that rank."),
    "shmcoll_group_state": ("gauge", "0 while the group is made, 1 made, 2 failed."),
    "shmcoll_ops_total": ("counter", "Operations that have ended."),
    "shmcoll_bytes_total": ("counter", "Bytes of this rank in operations that have ended."),
    "shmcoll_seconds_total": ("counter", "Seconds inside collectives that have ended."),
    "shmcoll_wait_seconds_total": ("counter", "Seconds asleep in collectives, for that peer."),
    "shmcoll_call_age_seconds": ("gauge", "Seconds inside the collective that runs; 0: none runs."),
    "shmcoll_pending_messages": ("gauge", "Messages that have been pending for 10 ms or more."),
    "shmcoll_late_lines_total": ("counter", "Lines on stderr about late calls."),
    "shmcoll_errors_total": ("counter", "Ranks that know that the group has failed, and why."),
}
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


@dataclasses.dataclass(frozen=True)
class Sample:
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{_escape(value)}"' for name, value in self.labels)
        number = repr(self.value).removesuffix(".0")
        return f"{self.name}{{{labels}}} {number}" if labels else f"{self.name} {number}"

    @property
    def series(self) -> str:
        return str(self).rpartition(" ")[0]


def _escape(value: str) -> str:
    return "".join(_ESCAPES.get(each, each) for each in value)


class Steady:
    """Keeps counters from going back. The processor's counter becomes seconds by a rate that is known better
    from look to look, so that a sum may get smaller by some microseconds. Prometheus would take that for
    a process that has started again."""

    def __init__(self, text: str = "") -> None:
        """Begins with what an earlier run of the tool has written."""
        self._before: dict[str, float] = {}
        for line in text.splitlines():
            found = re.fullmatch(r"(shmcoll_seconds_total\{.*\}) ([0-9.e+-]+)", line)
            if found:
                self._before[found[1]] = float(found[2])

    def apply(self, samples: Iterable[Sample]) -> list[Sample]:
        result, now = [], {}
        for sample in samples:
            if sample.name == "shmcoll_seconds_total":
                series = sample.series
                value = max(sample.value, self._before.get(series, 0.0))
                now[series] = value
                sample = dataclasses.replace(sample, value=value)
            result.append(sample)
        self._before = now
        return result


def samples(snapshot: Snapshot) -> list[Sample]:
    processes = {member.process.pid for member in snapshot.members}
    found = [
        Sample("shmcoll_boards", (), len(processes)),
        Sample("shmcoll_unreadable_boards", (), len(snapshot.problems)),
    ]
    for group in gather(snapshot):
        found += _group_samples(group)
    return found


def _group_samples(group: Group) -> list[Sample]:
    # Two jobs may have a group of one name; while a group is made, the name and a process tell it.
    first = min(member.process.pid for member in group.members.values())
    name = f"making-{first}" if group.making else group.nonce.hex()[:12]
    labels = (("group", group.name), ("id", name))
    state = MAKING if group.making else FAILED if group.failure else MADE
    found = [Sample("shmcoll_group_state", labels, state)]
    failed: dict[str, int] = {}
    for rank, member in sorted(group.members.items()):
        found += _rank_samples(group, member, (*labels, ("rank", str(rank))))
        if member.status:
            status = board.name_of(layout.STATUSES, member.status)
            failed[status] = failed.get(status, 0) + 1
    for status, count in failed.items():
        found.append(Sample("shmcoll_errors_total", (*labels, ("status", status)), count))
    return found


def _rank_samples(
    group: Group, member: Member, labels: tuple[tuple[str, str], ...]
) -> list[Sample]:
    whole = group.global_rank(member.rank)
    info = (
        ("global_rank", "" if whole is None else str(whole)),
        ("pid", str(member.process.pid)),
        ("command", member.process.command),
    )
    found = [Sample("shmcoll_rank_info", (*labels, *info), 1)]
    for operation, each in member.sums.items():
        by_operation = (*labels, ("op", operation))
        found.append(Sample("shmcoll_ops_total", by_operation, each.operations))
        found.append(Sample("shmcoll_bytes_total", by_operation, each.bytes))
        if member.has_times and operation not in layout.MESSAGES:
            found.append(Sample("shmcoll_seconds_total", by_operation, each.ns / 1e9))
    for peer, ns in enumerate(member.waited_ns):
        if ns:
            by_peer = (*labels, ("peer", str(peer)))
            found.append(Sample("shmcoll_wait_seconds_total", by_peer, ns / 1e9))
    age = _call_age(member)
    if age is not None:
        found.append(Sample("shmcoll_call_age_seconds", labels, age))
    messages = member.pending
    for direction, count in (
        ("send", messages.sends if messages else 0),
        ("receive", messages.receives if messages else 0),
    ):
        by_direction = (*labels, ("direction", direction))
        found.append(Sample("shmcoll_pending_messages", by_direction, count))
    found.append(Sample("shmcoll_late_lines_total", labels, member.late))
    return found


def _call_age(member: Member) -> float | None:
    """None: it is not known. Where times are not kept, a call that sleeps has that wait's age."""
    if not member.in_call:
        return 0.0
    if member.call_ns is not None:
        return member.call_ns / 1e9
    if member.waits_for is not None:
        return max(0.0, (member.seen_ns - member.waits_since_ns) / 1e9)
    return None


def render(found: Sequence[Sample]) -> str:
    lines = []
    for name, (kind, help_text) in FAMILIES.items():
        of_family = [str(sample) for sample in found if sample.name == name]
        if of_family:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *of_family]
    return "\n".join(lines) + "\n"
