# SPDX-License-Identifier: BSD-3-Clause
"""What changes from look to look: operations and bytes per second, time in calls, and which rank comes last."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

from shmcoll.watch.board import Member, Record, Snapshot, Watcher
from shmcoll.watch.groups import Group, gather
from shmcoll.watch.rings import Ring

WINDOW_S = 30.0  # calls that are older do not count
_CALLS = 1024  # of a group that are compared at most
_OPEN = 512  # calls of a group that not all ranks have ended yet
_LEAST_CALLS = 20
_LEAST_COST = 0.05
_LEAST_LAST = 0.5  # of the calls: alike ranks on a busy machine seldom reach it
_LEAST_RATIO = 1.25  # to the fair share, which is a half of two ranks


@dataclasses.dataclass(frozen=True)
class Rate:
    """Of one rank in one group, since the look before."""

    operations: float  # per second
    bytes: float  # per second
    busy: float | None  # share of the time in calls; None: times are not kept


@dataclasses.dataclass(frozen=True)
class Lateness:
    """How often each rank of a group came last to a call, and what that cost the others."""

    calls: int
    last: dict[int, float]  # the share of calls, by rank
    cost: dict[int, float]  # seconds that the others waited for that rank, per second

    @property
    def straggler(self) -> int | None:
        """The rank that costs most, if it comes last far more often than its share and that matters."""
        if self.calls < _LEAST_CALLS or not self.cost:
            return None
        rank = max(self.cost, key=lambda each: self.cost[each])
        often = max(_LEAST_LAST, _LEAST_RATIO / len(self.last))
        return rank if self.cost[rank] >= _LEAST_COST and self.last[rank] > often else None


@dataclasses.dataclass(frozen=True)
class Frame:
    """All that one look shows."""

    snapshot: Snapshot
    groups: list[Group]
    interval_s: float
    rates: dict[tuple[int, int, int], Rate]  # by Member.key
    lateness: dict[bytes, Lateness]  # by the group's nonce

    def rate(self, member: Member) -> Rate | None:
        """None: it is seen for the first time."""
        return self.rates.get(member.key)


@dataclasses.dataclass(frozen=True)
class _Call:
    begin: int  # of the last rank, in ticks
    rank: int
    cost: int  # ticks that the others waited
    passed: int | None  # since the call before; None: that is not known


class _Arrivals:
    """The calls of one group, of which all ranks' records were seen: of several hosts, those of the hosts that are seen."""

    def __init__(self) -> None:
        self.calls: deque[_Call] = deque(maxlen=_CALLS)
        self._open: dict[int, dict[int, int]] = {}  # begins by number and rank
        self._before = (0, 0)  # number and begin of the newest call

    def add(self, rank: int, records: list[Record], count: int) -> None:
        for record in records:
            begins = self._open.setdefault(record.number, {})
            begins[rank] = record.begin
            if len(begins) == count:
                self._close(record.number, self._open.pop(record.number))
        for number in sorted(self._open)[:-_OPEN]:
            del self._open[number]

    def _close(self, number: int, begins: dict[int, int]) -> None:
        rank = max(begins, key=lambda each: begins[each])
        last = begins[rank]
        cost = sum(last - begin for begin in begins.values())
        follows = number == self._before[0] + 1 and number > 1
        self.calls.append(_Call(last, rank, cost, last - self._before[1] if follows else None))
        self._before = (number, last)

    def lateness(self, since: int, ranks: Sequence[int]) -> Lateness:
        """Of the calls that have begun since that count of ticks."""
        calls = [call for call in self.calls if call.begin >= since]
        last = {
            rank: sum(call.rank == rank for call in calls) / max(1, len(calls)) for rank in ranks
        }
        cost = dict.fromkeys(ranks, 0)
        passed = 0
        for call in calls:
            if call.passed is not None:
                cost[call.rank] += call.cost
                passed += call.passed
        return Lateness(
            len(calls), last, {rank: each / max(1, passed) for rank, each in cost.items()}
        )


class Rates:
    """Looks again and again, and compares."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._before: dict[tuple[int, int, int], Member] = {}
        self._rings: dict[tuple[int, int, int, int], Ring] = {}
        self._arrivals: dict[bytes, _Arrivals] = {}
        self._now_ns = 0

    def look(self) -> Frame:
        snapshot = self._watcher.look()
        groups = gather(snapshot)
        now = {member.key: member for member in snapshot.members}
        rates = {
            key: _rate(self._before[key], member)
            for key, member in now.items()
            if key in self._before
        }
        interval = (snapshot.now_ns - self._now_ns) / 1e9 if self._now_ns else 0.0
        self._before, self._now_ns = now, snapshot.now_ns
        return Frame(snapshot, groups, interval, rates, self._lateness(groups))

    def _lateness(self, groups: list[Group]) -> dict[bytes, Lateness]:
        made = [group for group in groups if not group.making and group.world_size > 1]
        boards = {board.process.pid: (key, board) for key, board in self._watcher.boards.items()}
        rings: dict[tuple[int, int, int, int], Ring] = {}
        arrivals: dict[bytes, _Arrivals] = {}
        found: dict[bytes, Lateness] = {}
        for group in made:
            members = [each for each in group.members.values() if each.process.pid in boards]
            if not all(each.has_times for each in members) or group.absent:
                continue
            arrived = arrivals[group.nonce] = self._arrivals.get(group.nonce) or _Arrivals()
            for member in members:
                file, board = boards[member.process.pid]
                key = (*file, member.part, member.begun_ns)
                rings[key] = self._rings.get(key) or Ring(board, member.part)
                arrived.add(member.rank, rings[key].poll(), len(group.ranks))
            any_member = members[0]
            since = boards[any_member.process.pid][1].ticks(
                any_member.seen_ns - round(WINDOW_S * 1e9)
            )
            found[group.nonce] = arrived.lateness(since, group.ranks)
        self._rings, self._arrivals = rings, arrivals
        return found


def _rate(before: Member, after: Member) -> Rate:
    seconds = max(1e-9, (after.seen_ns - before.seen_ns) / 1e9)
    operations = sum(each.operations for each in after.sums.values())
    operations -= sum(each.operations for each in before.sums.values())
    count = sum(each.bytes for each in after.sums.values())
    count -= sum(each.bytes for each in before.sums.values())
    busy = None
    if after.has_times:
        ns = (after.busy_ticks - before.busy_ticks) * after.ns_per_tick
        ns += (after.call_ns or 0) - (before.call_ns or 0)
        busy = min(1.0, max(0.0, ns / 1e9 / seconds))
    return Rate(operations / seconds, count / seconds, busy)
