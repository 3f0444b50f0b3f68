# SPDX-License-Identifier: BSD-3-Clause
"""Who waits for whom, over all groups: the processes that all others wait for, and cycles of waits."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from shmcoll.watch.board import ANY, Member
from shmcoll.watch.groups import Group

_Process = tuple[str, int]  # its host, of dumps, and its pid

_MOST_SHOWN = 4  # culprits


@dataclasses.dataclass(frozen=True)
class Wait:
    """One rank waits for another one of its group."""

    group: Group
    rank: int
    peer: int
    seconds: float
    what: str

    @property
    def waiter(self) -> _Process:
        return self.group.members[self.rank].process.identity

    @property
    def waited_for(self) -> _Process | None:
        return self.group.process(self.peer)

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
    # Each wait of a cycle is for the rank of the next one. The shortest cycle is first, and no
    # process is in two of them: so the cycles of two jobs are both there.
    cycles: Sequence[Sequence[Wait]]

    def foremost(self) -> tuple[Sequence[Culprit], list[str]]:
        """The culprits that tools show, and a line that counts the others, if there are any."""
        more = len(self.culprits) - _MOST_SHOWN
        rest = [f"-> and {more} more rank{'s' * (more > 1)}"] if more > 0 else []
        return self.culprits[:_MOST_SHOWN], rest

    def lines(self, verb: str = "waits") -> list[str]:
        """The cycles, as the tools show them."""
        found = []
        for cycle in self.cycles:
            found.append(f"DEADLOCK: each of these {verb} for the next")
            found += [f"  {wait}" for wait in cycle]
        return found


def waits(groups: Sequence[Group], least_seconds: float) -> list[Wait]:
    """The waits that have lasted so long: calls that sleep, and messages that a thread waits for."""
    found = []
    for group in groups:
        for rank, member in sorted(group.members.items()):
            found += [*_call_waits(group, rank, member), *_message_waits(group, rank, member)]
            found += _device_waits(group, rank, member)
    return [wait for wait in found if wait.seconds >= least_seconds]


def _call_waits(group: Group, rank: int, member: Member) -> Iterator[Wait]:
    since_ns = member.waits_since_ns if member.awaits_ns is None else member.awaits_ns
    if (member.waits_for is None and member.awaits_ns is None) or member.status:
        return
    for peer in group.missing(member):
        yield Wait(group, rank, peer, group.seconds_since(since_ns), member.call_text)


def _message_waits(group: Group, rank: int, member: Member) -> Iterator[Wait]:
    pending = member.pending
    if pending is None or pending.peer is None or not pending.waited_for or member.status:
        return
    what = f"{pending.operation} (tag {pending.tag})"
    yield Wait(group, rank, pending.peer, group.seconds_since(pending.since_ns), what)


def _device_waits(group: Group, rank: int, member: Member) -> Iterator[Wait]:
    """Of what its GPU does, or is to do."""
    for device in (member.device, member.device_messages):
        if device and device.call and not member.status:
            for peer in device.missing:
                if peer != rank:
                    seconds = group.seconds_since(device.since_ns)
                    yield Wait(group, rank, peer, seconds, f"{device.call} of its GPU")


def judge(groups: Sequence[Group], least_seconds: float) -> Verdict:
    """The cause of all waits that have lasted so long."""
    edges: dict[_Process, list[Wait]] = defaultdict(list)
    for wait in waits(groups, least_seconds):
        edges[wait.waiter].append(wait)
    away = {
        member.process.identity
        for group in groups
        for member in group.members.values()
        if member.awaits_ns is not None
    }
    return Verdict(_culprits(edges, away), _cycles(groups, least_seconds))


def _culprits(edges: dict[_Process, list[Wait]], away: Collection[_Process]) -> list[Culprit]:
    """The most waited for first. away: these processes wait for other hosts."""
    waiters: dict[object, set[_Process]] = defaultdict(set)
    place: dict[object, Wait] = {}
    for start in edges:
        for wait in _reach(edges, start):
            if wait.waited_for not in edges and wait.waited_for not in away:
                key = wait.waited_for or (wait.group.nonce, wait.peer)
                waiters[key].add(start)
                place.setdefault(key, wait)
    found = [Culprit(place[key].group, place[key].peer, len(pids)) for key, pids in waiters.items()]
    return sorted(found, key=lambda culprit: -culprit.waited_for_by)


def _reach(edges: dict[_Process, list[Wait]], start: _Process) -> Iterator[Wait]:
    """All waits that process depends on."""
    seen, todo = {start}, [start]
    while todo:
        for wait in edges.get(todo.pop(), ()):
            yield wait
            if wait.waited_for is not None and wait.waited_for not in seen:
                seen.add(wait.waited_for)
                todo.append(wait.waited_for)


@dataclasses.dataclass(frozen=True)
class _Sleep:
    """A rank's wait in a call (`message`: for a message) of its group."""

    group: int  # the place in the list of groups
    rank: int
    message: bool


class _Graph:
    """Which wait ends only after which other one; DEAD-1 to DEAD-3 of docs/internals/protocol/waiting.md."""

    def __init__(self, groups: Sequence[Group], least_seconds: float) -> None:
        self._groups = groups
        self._least = least_seconds
        # Where a thread of a process sleeps.
        self._sleeps: dict[tuple[_Process, int], _Sleep] = {}
        for at, group in enumerate(groups):
            for rank, member in group.members.items():
                owed = member.owed
                if owed.thread and owed.peer != ANY and not member.status:
                    key = member.process.identity, owed.thread
                    self._sleeps[key] = _Sleep(at, rank, owed.peer != 0)

    def member(self, sleep: _Sleep) -> Member:
        return self._groups[sleep.group].members[sleep.rank]

    def process(self, sleep: _Sleep) -> _Process:
        return self.member(sleep).process.identity

    def sleeps(self) -> list[_Sleep]:
        """All waits that have lasted long enough."""
        calls = [
            _Sleep(at, rank, False)
            for at, group in enumerate(self._groups)
            for rank in sorted(group.members)
        ]
        messages = [sleep for sleep in self._sleeps.values() if sleep.message]
        return [sleep for sleep in calls + messages if self._holds(sleep)]

    def steps(self, sleep: _Sleep) -> Iterator[tuple[Wait, _Sleep]]:
        """What that wait waits for, and the next wait."""
        group, member = self._groups[sleep.group], self.member(sleep)
        if sleep.message:
            peers, since_ns = [member.owed.peer - 1], member.owed.since_ns
            what = f"{member.owed.operation} (tag {member.owed.tag})"
        else:
            peers, since_ns, what = group.absentees(member), member.waits_since_ns, member.call_text
        for peer in peers:
            next_one = self._next(sleep, peer) if peer in group.members else None
            if next_one is not None and self._holds(next_one):
                yield Wait(group, sleep.rank, peer, group.seconds_since(since_ns), what), next_one

    def _holds(self, sleep: _Sleep) -> bool:
        group, member = self._groups[sleep.group], self.member(sleep)
        if member.status or member.making:
            return False
        since_ns = member.owed.since_ns if sleep.message else member.waits_since_ns
        there = sleep.message or member.waits_for is not None
        return there and group.seconds_since(since_ns) >= self._least

    def _next(self, sleep: _Sleep, peer: int) -> _Sleep | None:
        """The wait that keeps the peer from making the call, or from posting the message."""
        other = self._groups[sleep.group].members[peer]
        if not sleep.message and other.in_call:
            return _Sleep(sleep.group, peer, False)
        if not sleep.message and other.owed.queued:
            return None
        found = self._sleeps.get((other.process.identity, other.owed.user))
        if found is None or (sleep.message and self._has_posted(sleep, peer, found)):
            return None
        return found

    def _has_posted(self, sleep: _Sleep, peer: int, found: _Sleep) -> bool:
        """Has the peer posted what the message needs, or may it have?"""
        mine, theirs = self.member(sleep).owed, self._groups[sleep.group].members[peer].owed
        wanted = "recv" if mine.operation == "send" else "send"
        posted = theirs.receiving if wanted == "recv" else theirs.sending
        if found == _Sleep(sleep.group, peer, True) and theirs.operation == wanted:
            if (theirs.peer - 1, theirs.tag) == (sleep.rank, mine.tag):
                return True
            posted -= 1
        return posted != 0


def _cycles(groups: Sequence[Group], least_seconds: float) -> list[list[Wait]]:
    """A shortest cycle, a shortest one of the other processes, and so on."""
    graph = _Graph(groups, least_seconds)
    left = graph.sleeps()
    found: list[list[Wait]] = []
    while cycle := _shortest(graph, left):
        found.append(cycle)
        named = {wait.waiter for wait in cycle}
        left = [sleep for sleep in left if graph.process(sleep) not in named]
    return found


def _shortest(graph: _Graph, sleeps: Collection[_Sleep]) -> list[Wait]:
    """A shortest cycle of these sleeps alone; empty: there is none."""
    allowed = set(sleeps)
    best: list[Wait] = []
    for start in sleeps:
        paths: list[tuple[list[Wait], _Sleep]] = [([], start)]
        seen: set[_Sleep] = set()
        while paths:
            path, at = paths.pop(0)
            if path and at == start:
                best = path if not best or len(path) < len(best) else best
                break
            if at not in seen:
                seen.add(at)
                paths += [
                    ([*path, wait], after) for wait, after in graph.steps(at) if after in allowed
                ]
    return best
