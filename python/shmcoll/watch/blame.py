# SPDX-License-Identifier: BSD-3-Clause
"""Who waits for whom, over all groups: the processes that all others wait for, and cycles of waits."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence

from shmcoll.watch.board import Member
from shmcoll.watch.groups import Group


@dataclasses.dataclass(frozen=True)
class Wait:
    """One rank waits for another one of its group."""

    group: Group
    rank: int
    peer: int
    seconds: float
    what: str

    @property
    def waiter(self) -> int:
        return self.group.members[self.rank].process.pid

    @property
    def waited_for(self) -> int | None:
        return self.group.pid(self.peer)

    def __str__(self) -> str:
        group = self.group
        return (
            f'{group.name_rank(self.rank)} waits in {self.what} on "{group.name}" for '
            f"{group.name_rank(self.peer)}"
        )


@dataclasses.dataclass(frozen=True)
class Culprit:
    """A rank that waits for nobody, and that others wait for."""

    group: Group
    rank: int
    waited_for_by: int  # processes, directly or through others


@dataclasses.dataclass(frozen=True)
class Verdict:
    culprits: Sequence[Culprit]
    cycle: Sequence[Wait]  # each one waits for the next one's rank; empty: there is none


def waits(groups: Sequence[Group], least_seconds: float) -> list[Wait]:
    """The waits that have lasted so long: calls that sleep, and messages that a thread waits for."""
    found = []
    for group in groups:
        for rank, member in sorted(group.members.items()):
            found += [*_call_waits(group, rank, member), *_message_waits(group, rank, member)]
    return [wait for wait in found if wait.seconds >= least_seconds]


def _call_waits(group: Group, rank: int, member: Member) -> Iterator[Wait]:
    if member.waits_for is None or member.status:
        return
    for peer in group.missing(member):
        yield Wait(group, rank, peer, group.seconds_since(member.waits_since_ns), member.call_text)


def _message_waits(group: Group, rank: int, member: Member) -> Iterator[Wait]:
    pending = member.pending
    if pending is None or pending.peer is None or not pending.waited_for or member.status:
        return
    what = f"{pending.operation} (tag {pending.tag})"
    yield Wait(group, rank, pending.peer, group.seconds_since(pending.since_ns), what)


def judge(groups: Sequence[Group], least_seconds: float) -> Verdict:
    """The cause of all waits that have lasted so long."""
    edges: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits(groups, least_seconds):
        edges[wait.waiter].append(wait)
    return Verdict(_culprits(edges), _cycle(edges))


def _culprits(edges: dict[int, list[Wait]]) -> list[Culprit]:
    """The most waited for first."""
    waiters: dict[object, set[int]] = defaultdict(set)
    place: dict[object, Wait] = {}
    for start in edges:
        for wait in _reach(edges, start):
            if wait.waited_for not in edges:
                key = wait.waited_for or (wait.group.nonce, wait.peer)
                waiters[key].add(start)
                place.setdefault(key, wait)
    found = [Culprit(place[key].group, place[key].peer, len(pids)) for key, pids in waiters.items()]
    return sorted(found, key=lambda culprit: -culprit.waited_for_by)


def _reach(edges: dict[int, list[Wait]], start: int) -> Iterator[Wait]:
    """All waits that process depends on."""
    seen, todo = {start}, [start]
    while todo:
        for wait in edges.get(todo.pop(), ()):
            yield wait
            if wait.waited_for is not None and wait.waited_for not in seen:
                seen.add(wait.waited_for)
                todo.append(wait.waited_for)


def _cycle(edges: dict[int, list[Wait]]) -> list[Wait]:
    """A shortest cycle."""
    best: list[Wait] = []
    for start in edges:
        paths: list[list[Wait]] = [[wait] for wait in edges[start]]
        seen: set[int | None] = set()
        while paths:
            path = paths.pop(0)
            end = path[-1].waited_for
            if end == start:
                best = path if not best or len(path) < len(best) else best
                break
            if end not in seen:
                seen.add(end)
                paths += [[*path, wait] for wait in edges.get(end or 0, ())]
    return best
