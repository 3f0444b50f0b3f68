# SPDX-License-Identifier: BSD-3-Clause
"""Puts the boards of one group's ranks together."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from shmcoll.watch.board import End, Member, Over, Snapshot

_SECOND = 1e9


@dataclasses.dataclass
class Group:
    """A group as its ranks' boards show it."""

    name: str  # the user's words for it, if there are any
    world_size: int
    members: dict[int, Member]  # by rank; a rank without a board is missing
    now_ns: int

    @property
    def nonce(self) -> bytes:
        return next(iter(self.members.values())).nonce

    @property
    def over(self) -> Over | None:
        """Of a group over several hosts."""
        return next((member.over for member in self.members.values() if member.over), None)

    @property
    def ranks(self) -> Sequence[int]:
        """Those of the hosts that have a board here."""
        if self.over is None:
            return range(self.world_size)
        return sorted({rank for m in self.members.values() if m.over for rank in m.over.ranks})

    @property
    def awaited(self) -> str | None:
        """The other hosts that a call waits for, as far as its rank knows; None: none does."""
        waits = [m.over for m in self.members.values() if m.over and m.awaits_ns is not None]
        if not waits:
            return None
        return next((over.whom for over in waits if over.whom), "other hosts")

    @property
    def making(self) -> bool:
        return any(member.making for member in self.members.values())

    @property
    def failure(self) -> Member | None:
        """A rank that knows the group's failure: the one that found it, if it is there."""
        failed = [member for member in self.members.values() if member.status]
        finders = [member for member in failed if member.found_by == member.rank]
        return next(iter(finders + failed), None)

    def end_of(self, rank: int) -> End | None:
        """What other ranks know of the end of that one, if it failed the group."""
        known = [m.end for m in self.members.values() if m.end and m.end.rank == rank]
        return max(known, key=_worth, default=None)

    @property
    def age_seconds(self) -> float:
        return self.seconds_since(min(member.begun_ns for member in self.members.values()))

    @property
    def absent(self) -> list[int]:
        """The ranks of these hosts that have no board."""
        return [rank for rank in self.ranks if rank not in self.members]

    def seconds_since(self, ns: int) -> float:
        return max(0.0, (self.now_ns - ns) / _SECOND)

    def pid(self, rank: int) -> int | None:
        """The rank's process: as this process sees it, or as the group knows it; None: not known."""
        if rank in self.members:
            return self.members[rank].process.pid
        return next((pid for pid in self._told(rank, "pids") if pid > 0), None)

    def process(self, rank: int) -> tuple[str, int] | None:
        """The same, with the host of dumps."""
        if rank in self.members:
            return self.members[rank].process.identity
        near = [m for m in self.members.values() if m.over is None or rank in m.over.ranks]
        known = ((m.process.host, m.pids[rank]) for m in near if rank < len(m.pids))
        return next((each for each in known if each[1] > 0), None)

    def global_rank(self, rank: int) -> int | None:
        return next((known for known in self._told(rank, "global_ranks") if known >= 0), None)

    def _told(self, rank: int, name: str) -> list[int]:
        """What members say of the rank. Of a damaged dump one may know fewer ranks than it names."""
        lists = [getattr(member, name) for member in self.members.values()]
        return [each[rank] for each in lists if rank < len(each)]

    def name_rank(self, rank: int) -> str:
        """ "rank 2"; or "rank 5 (2 here)" where the job numbers it otherwise."""
        whole = self.global_rank(rank)
        return f"rank {rank}" if whole in (None, rank) else f"rank {whole} ({rank} here)"

    def missing(self, member: Member) -> tuple[int, ...]:
        """The ranks that the member's call waits for: those that have not entered it, or the one whose
        data is missing."""
        late = self.absentees(member)
        if late or member.waits_for is None:
            return tuple(late)
        return (member.waits_for,)

    def absentees(self, member: Member) -> list[int]:
        """The ranks that have not entered the member's call."""
        return [r for r, other in sorted(self.members.items()) if other.entered < member.entered]


def _worth(end: End) -> tuple[bool, bool]:
    """Which ranks could see how a process ended differs: it may have been waited for before."""
    return end.exception is not None, (end.signal or end.exit_code) is not None


def end_json(end: End | None) -> dict[str, object] | None:
    return dataclasses.asdict(end) if end else None


def gather(snapshot: Snapshot) -> list[Group]:
    """The groups, the oldest first. While a group is made its ranks have its name alone in common."""
    parts: dict[tuple[object, ...], dict[int, Member]] = defaultdict(dict)
    for member in snapshot.members:
        key: tuple[object, ...] = (member.nonce,)
        if member.making:
            key = (member.name, member.world_size)
        while member.rank in parts[key]:  # two jobs that make a group of one name
            key = (*key, "another")
        parts[key][member.rank] = member
    groups = []
    for members in parts.values():
        any_member = next(iter(members.values()))
        # A rank knows the user's words for the group since its first call there.
        words = (m.description for m in members.values() if m.description != m.name)
        name = next(words, any_member.name)
        groups.append(Group(name, any_member.world_size, members, snapshot.now_ns))
    return sorted(groups, key=lambda group: -group.age_seconds)
