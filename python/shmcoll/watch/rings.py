# SPDX-License-Identifier: BSD-3-Clause
"""Takes the records of calls from a board while they are written: each one once, and none half written."""

from __future__ import annotations

import struct
from typing import NamedTuple

from shmcoll.watch import layout
from shmcoll.watch.board import Board, Record

_FIELDS = struct.Struct("<8Q")
_NUMBER_AND_BEGIN = struct.Struct("<2Q")
_STATE = struct.Struct("<I")
_ENTERED_AND_LEFT = struct.Struct("<2Q")
_KEPT = struct.Struct("<Q")
_HEAD_BYTES = layout.Group.left.offset + layout.Group.left.size


class _Head(NamedTuple):
    state: int
    nonce: bytes
    entered: int
    left: int


def in_turn(ended: list[Record]) -> list[Record]:
    """The end of a short call is an estimate (BOARD-19), but a call ends before the next one begins."""
    following = {record.number - 1: record.begin for record in ended}
    return [
        record._replace(end=min(record.end, following.get(record.number, record.end)))
        for record in ended
    ]


class Ring:
    """The records of one rank of a group that has been made."""

    def __init__(self, board: Board, part: int, *, from_start: bool = False) -> None:
        """from_start: calls that were overwritten before the first poll count as lost."""
        self.board = board
        self.part = part
        self.offset, self.record_bytes, self.record_count = self._records()
        self.nonce = self._head().nonce
        self.lost = 0  # calls that were overwritten before they were taken
        self._taken = 0 if from_start else None  # the number of the newest one, and its begin
        self._begin = 0

    def poll(self) -> list[Record]:
        """The records of all calls that have ended since the poll before, the oldest first. The first poll
        takes all that are there."""
        head = self._head()
        newest = head.left
        if not self._is_ours(head) or newest == 0:
            self._taken = self._taken or 0
            return []
        if newest == self._taken and self._begin_of(newest) == self._begin:
            return []
        copies = self._copies()
        if not self._is_ours(self._head()):
            return []
        found = self._ended(newest, copies)
        if self._taken is not None:
            fresh = {record.number for record in found} - {self._taken}
            self.lost += newest - self._taken - len(fresh)
        self._taken = newest
        if found and found[-1].number == newest:
            self._begin = found[-1].begin
        return found

    @property
    def newest(self) -> int:
        """The number of the newest call that was taken or lost."""
        return self._taken or 0

    def running(self) -> Record | None:
        """The record of the call that runs."""
        head = self._head()
        if not self._is_ours(head) or head.entered == head.left:
            return None
        found = self._record(head.entered, self._copies())
        return found if found and not found.end and self._is_ours(self._head()) else None

    def _records(self) -> tuple[int, int, int]:
        return self.board.records

    def _head(self) -> _Head:
        data = self.board.read(self.part, 0, _HEAD_BYTES)
        at = layout.Group.nonce.offset
        return _Head(
            _STATE.unpack_from(data)[0],
            data[at : at + layout.Group.nonce.size],
            *_ENTERED_AND_LEFT.unpack_from(data, layout.Group.entered.offset),
        )

    def _is_ours(self, head: _Head) -> bool:
        """A part keeps its records after its group has gone, until another group takes it."""
        return head.nonce == self.nonce and head.state != layout.TAKEN

    def _begin_of(self, number: int) -> int:
        """Differs from the begin that was taken, if a call that failed before another rank could see it
        left its number to the next one."""
        at = self.offset + number % self.record_count * self.record_bytes
        data = self.board.read(self.part, at, _NUMBER_AND_BEGIN.size)
        return int(_NUMBER_AND_BEGIN.unpack(data)[1])

    def _copies(self) -> list[bytes]:
        count = self.record_count * self.record_bytes
        return [self.board.read(self.part, self.offset, count) for _ in range(3)]

    def _ended(self, newest: int, copies: list[bytes]) -> list[Record]:
        oldest = max(1, self._taken or 0, newest - self.record_count + 1)
        found = [self._record(number, copies) for number in range(oldest, newest + 1)]
        ended = [
            record
            for record in found
            if record and record.end and (record.number, record.begin) != (self._taken, self._begin)
        ]
        return self._in_turn(ended)

    def _in_turn(self, ended: list[Record]) -> list[Record]:
        return in_turn(ended)

    def _record(self, number: int, copies: list[bytes]) -> Record | None:
        """The record of that call, if its number and begin stood there before and after the second copy of
        the records was made. The order within one copy is not known."""
        before, data, after = copies
        at = number % self.record_count * self.record_bytes
        first = _NUMBER_AND_BEGIN.unpack_from(before, at)
        if first[0] != number or first != _NUMBER_AND_BEGIN.unpack_from(after, at):
            return None
        return Record(*_FIELDS.unpack_from(data, at))


class MessageRing(Ring):
    """The same for the messages that the board keeps. They get their numbers when they end."""

    _kept = layout.Group.kept_messages.offset

    def _records(self) -> tuple[int, int, int]:
        return self.board.kept_records

    def _in_turn(self, ended: list[Record]) -> list[Record]:
        return ended

    def _head(self) -> _Head:
        head = super()._head()
        if self.record_count == 0:  # the board of an older library
            return head._replace(entered=0, left=0)
        (kept,) = _KEPT.unpack(self.board.read(self.part, self._kept, _KEPT.size))
        return head._replace(entered=kept, left=kept)


class DeviceRing(MessageRing):
    """The same for collectives and messages on a GPU."""

    _kept = layout.Group.device_kept.offset

    def _records(self) -> tuple[int, int, int]:
        return self.board.device_records
