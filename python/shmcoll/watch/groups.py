# SPDX-License-Identifier: BSD-3-Clause
"""Puts the boards of one group's ranks together."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from shmcoll.watch.board import Member, Sight

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
    def making(self) -> bool:
        return any(member.making for member in self.members.values())

    @property
    def failure(self) -> Member | None:
        """A rank that knows the group's failure: the one that found it, if it is there."""
        failed = [member for member in self.members.values() if member.status]
        finders = [member for member in failed if "(found by" not in member.reason]
        return next(iter(finders + failed), None)

    @property
    def age_seconds(self) -> float:
        return self.seconds_since(min(member.begun_ns for member in self.members.values()))

    @property
    def absent(self) -> list[int]:
        """The ranks that have no board."""
        return [rank for rank in range(self.world_size) if rank not in self.members]

    def seconds_since(self, ns: int) -> float:
        return max(0.0, (self.now_ns - ns) / _SECOND)

    def pid(self, rank: int) -> int | None:
        """The rank's process: as this process sees it, or as the group knows it; None: not known."""
        if rank in self.members:
            return self.members[rank].process.pid
        known = [m.pids[rank] for m in self.members.values() if m.pids[rank] > 0]
        return next(iter(known), None)

    def global_rank(self, rank: int) -> int | None:
        known = [m.global_ranks[rank] for m in self.members.values() if m.global_ranks[rank] >= 0]
        return next(iter(known), None)

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


def gather(sight: Sight) -> list[Group]:
    """The groups, the oldest first. While a group is made its ranks have its name alone in common."""
    parts: dict[tuple[object, ...], dict[int, Member]] = defaultdict(dict)
    for member in sight.members:
        key: tuple[object, ...] = (member.nonce,)
        if member.making:
            key = (member.name, member.world_size)
        while member.rank in parts[key]:  # two jobs that make a group of one name
            key = (*key, "another")
        parts[key][member.rank] = member
    groups = []
    for members in parts.values():
        any_member = next(iter(members.values()))
        groups.append(Group(any_member.description, any_member.world_size, members, sight.now_ns))
    return sorted(groups, key=lambda group: -group.age_seconds)
