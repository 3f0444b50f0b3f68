# SPDX-License-Identifier: BSD-3-Clause
"""Which send belongs to which recv, for torch's flight recorder.

A message that found room, or was there already, may have left a record on one side only. So one that is over
counts only if both sides have a record. One that is not over counts always: its other side is what a user
looks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shmcoll.watch.board import Message, Pending

if TYPE_CHECKING:
    from shmcoll.watch.postmortem import Report, Seat

Pair = tuple[int, int]  # two ranks of the group, the smaller one first


@dataclass(frozen=True)
class Side:
    """A send or a recv."""

    rank: int  # whose it is
    operation: str
    peer: int
    tag: int
    number: int | None  # among the messages from its sender to its receiver; None: not known
    dtype: str
    count: int
    bytes: int
    begin_ns: int
    end_ns: int | None  # None: it has failed, or is still pending

    @property
    def ends(self) -> Pair:
        """Sender and receiver."""
        return (self.rank, self.peer) if self.operation == "send" else (self.peer, self.rank)

    @property
    def over(self) -> bool:
        return self.end_ns is not None

    def in_bytes(self) -> Side:
        return replace(self, dtype="uint8", count=self.bytes)


def find(report: Report) -> dict[Pair, list[list[Side]]]:
    """The messages of each two ranks, the oldest first: both sides, or the only one that there is."""
    sides = [side for rank, seat in report.seats.items() for side in _sides(rank, seat)]
    found: dict[Pair, list[list[Side]]] = defaultdict(list)
    for message in _joined(sorted(sides, key=lambda side: side.begin_ns)):
        if len(message) == 2 or not message[0].over:
            low, high = sorted(message[0].ends)
            found[low, high].append(_alike(message))
    return found


def _sides(rank: int, seat: Seat) -> Iterator[Side]:
    kept = [_of_message(rank, m) for m in seat.messages if m.peer not in (None, rank)]
    yield from kept
    pending = seat.member.pending
    if pending is not None and pending.peer not in (None, rank):
        side = _of_pending(rank, pending)
        # A dump that is written while the group fails may show a message both ways.
        if not any(_key(side) == _key(each) and not each.over for each in kept):
            yield side


def _key(side: Side) -> object:
    return side.operation, side.peer, side.tag, side.bytes


def _of_message(rank: int, m: Message) -> Side:
    assert m.peer is not None
    over = m.status == 0
    # A recv that has found no message yet has the number 0, like the first message.
    known = over or m.operation == "send" or m.pair > 0
    return Side(
        *(rank, m.operation, m.peer, m.tag, m.pair if known else None),
        *(m.dtype, m.count, m.bytes, m.begin_ns, m.end_ns if over else None),
    )


def _of_pending(rank: int, m: Pending) -> Side:
    assert m.peer is not None
    return Side(
        *(rank, m.operation, m.peer, m.tag, None, "uint8", m.bytes, m.bytes, m.since_ns, None)
    )


def _joined(sides: Sequence[Side]) -> list[list[Side]]:
    """By their numbers, and those without one, or without another side of that number, by their tags."""
    numbered: dict[object, list[Side]] = defaultdict(list)
    for side in sides:
        if side.number is not None:
            numbered[side.ends, side.number].append(side)
    joined = [both for both in numbered.values() if len(both) == 2]
    rest = [both[0] for both in numbered.values() if len(both) == 1]
    joined += [[side] for side in rest if side.over]
    unjoined = [side for side in rest if not side.over]
    unjoined += [side for side in sides if side.number is None]
    tagged: dict[object, dict[str, list[Side]]] = defaultdict(lambda: defaultdict(list))
    for side in unjoined:
        tagged[side.ends, side.tag][side.operation].append(side)
    for each in tagged.values():
        sends, receives = each["send"], each["recv"]
        for at in range(max(len(sends), len(receives))):
            joined.append(sends[at : at + 1] + receives[at : at + 1])
    return sorted(joined, key=lambda message: min(side.begin_ns for side in message))


def _alike(message: list[Side]) -> list[Side]:
    """The analyser compares the counts, and of a pending message only its bytes are known."""
    if len({(side.dtype, side.count) for side in message}) == 1:
        return message
    if len({side.bytes for side in message}) == 1:
        return [side.in_bytes() for side in message]
    return message
