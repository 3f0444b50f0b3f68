# SPDX-License-Identifier: BSD-3-Clause
"""Finds the boards of this machine's processes and reads them, without the help of any process.

A board changes while it is read. Numbers that belong together are read between two looks at the number
that their writer changes first and last; docs/internals/board.md has the rules.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from shmcoll.watch import layout

_LINK = "/memfd:shmcoll:board"
_LOOKS = 20  # at something that changes under the reader's hands
_Structure = TypeVar("_Structure", bound=ctypes.Structure)


class BoardError(Exception):
    """Why the board of a process cannot be read, in a sentence."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A collective call."""

    number: int
    operation: str
    dtype: str
    reduction: str | None
    root: int | None
    count: int
    bytes: int
    status: int
    begin_ns: int
    end_ns: int | None  # None: it runs

    def __str__(self) -> str:
        if self.operation == "barrier":
            return f"barrier #{self.number}"
        dtype = self.dtype
        if dtype == "opaque":
            dtype = f"{self.bytes // self.count if self.count else 0}-byte elements"
        parts = [f"{dtype}[{self.count}]"]
        if self.reduction:
            parts.append(self.reduction)
        if self.root is not None:
            parts.append(f"root {self.root}")
        return f"{self.operation} #{self.number} ({', '.join(parts)})"


@dataclasses.dataclass(frozen=True)
class Pending:
    """The messages of a rank that have been pending for 10 ms or more."""

    sends: int
    receives: int
    operation: str  # of the oldest one, as the rest
    peer: int | None  # None: any rank
    tag: int
    bytes: int
    since_ns: int
    waited_for: bool  # a thread waits for a message


@dataclasses.dataclass(frozen=True)
class Sum:
    operations: int
    bytes: int
    ns: int


@dataclasses.dataclass(frozen=True)
class Member:
    """One process's part in one group."""

    process: Process
    name: str
    description: str  # the user's words for the group; the name, if there are none
    nonce: bytes  # the same for all ranks of the group; zeros while it is being made
    rank: int
    world_size: int
    making: bool
    begun_ns: int
    made_ns: int
    timeout_ns: int
    segment_bytes: int
    status: int  # 0, or why the group has failed
    reason: str
    entered: int  # numbers of calls
    left: int
    call: Call | None  # the one that runs, or ran last; None: none, or times are not kept
    waits_for: int | None  # if the call sleeps: a rank that it waits for
    waits_since_ns: int
    late: int  # lines about late calls
    slept_ns: int
    pending: Pending | None
    sums: dict[str, Sum]
    pids: list[int]  # of all ranks, as that process knows them
    global_ranks: list[int]  # -1: not known
    waited_ns: list[int]

    @property
    def in_call(self) -> bool:
        return self.entered != self.left

    @property
    def call_text(self) -> str:
        return str(self.call) if self.call else f"call #{self.entered}"


@dataclasses.dataclass(frozen=True)
class Process:
    pid: int  # as this process's /proc has it
    command: str
    state: str  # the letter of /proc: R, S, D, T, t
    library: str
    level: int


def find(pids: Iterable[int] | None = None) -> Iterator[tuple[int, Path]]:
    """The processes that have a board, and their descriptor of it, as far as this user may see them."""
    if pids is None:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:  # another user's process, or it has ended
            continue
        for name in names:
            try:
                link = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            if link.startswith(_LINK):
                yield pid, Path(folder, name)


def read_process(pid: int) -> tuple[str, str, int] | None:
    """The command, the state's letter, and the start time of a process; None: it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    rest = stat[stat.rindex(")") + 2 :].split()
    return _command(words), rest[0], int(rest[19])


def _command(words: list[str]) -> str:
    """ "train.py" of ["/usr/bin/python3", "-u", "train.py", "--lr", "1"]."""
    program, *arguments = words
    if "python" not in os.path.basename(program):
        return os.path.basename(program)
    for at, word in enumerate(arguments):
        if word == "-m":
            return f"-m {' '.join(arguments[at + 1 : at + 2])}"
        if word == "-c":
            return "-c"
        if word and not word.startswith("-"):
            return os.path.basename(word)
    return os.path.basename(program)


def _parse(kind: type[_Structure], data: bytes) -> _Structure:
    """A board of an older version may lack the last fields: they are zero then."""
    return kind.from_buffer_copy(data.ljust(ctypes.sizeof(kind), b"\0"))


class Board:
    """One process's board. Close it, or use it in a ``with`` statement."""

    def __init__(self, pid: int, path: Path) -> None:
        found = read_process(pid)
        if found is None:
            raise BoardError(f"process {pid} has ended")
        command, state, start_time = found
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BoardError(f"the board of process {pid} cannot be opened: {error}") from error
        try:
            self._header = self._read_header(pid, start_time)
        except BoardError:
            os.close(self._fd)
            raise
        self.process = Process(
            pid, command, state, self._header.library.decode(errors="replace"), self._header.level
        )

    def _read_header(self, pid: int, start_time: int) -> layout.Header:
        header = _parse(layout.Header, os.pread(self._fd, ctypes.sizeof(layout.Header), 0))
        if header.magic != layout.MAGIC:
            raise BoardError(f"process {pid} has just begun to make its board")
        if header.start_time != start_time:
            raise BoardError(f"process {pid} only inherited the board of process {header.pid}")
        if header.version != layout.VERSION:
            raise BoardError(
                f"process {pid} has a board of version {header.version}, and this tool reads version "
                f"{layout.VERSION}; use the tool of shmcoll {header.library.decode()}, as the process does"
            )
        return header

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def members(self) -> list[Member]:
        """This process's part in each of its groups."""
        found = []
        for index in range(self._header.group_count):
            offset = self._header.header_bytes + index * self._header.group_bytes
            state = int.from_bytes(os.pread(self._fd, 4, offset), "little")
            if state == layout.FREE:
                if self._is_hole(offset):
                    break
            elif state in (layout.MAKING, layout.MADE):
                member = self._member(offset)
                if member is not None:
                    found.append(member)
        return found

    def _is_hole(self, offset: int) -> bool:
        """Groups take the first free part, so a part that was never used is followed by others."""
        try:
            found: int = os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole up to the end
            return True
        return found >= offset + int(self._header.group_bytes)

    def _steady(
        self, look: Callable[[], _Structure], number: Callable[[_Structure], int]
    ) -> _Structure:
        """What look() returns, when its number did not change meanwhile."""
        before = look()
        for _ in range(_LOOKS):
            after = look()
            if number(before) == number(after) and number(after) % 2 == 0:
                return before
            before = after
        return before

    def _group(self, offset: int) -> layout.Group:
        def look() -> layout.Group:
            return _parse(layout.Group, os.pread(self._fd, ctypes.sizeof(layout.Group), offset))

        return self._steady(look, lambda group: group.messages.number + group.clock_number)

    def _record(self, offset: int, number: int) -> layout.Record | None:
        """The record of that call; None: it has been overwritten."""
        header = self._header
        at = offset + header.record_offset
        at += number % header.record_count * header.record_bytes
        for _ in range(_LOOKS):
            first, second = (
                _parse(layout.Record, os.pread(self._fd, ctypes.sizeof(layout.Record), at))
                for _ in range(2)
            )
            if first.number == second.number == number:
                return first
        return None

    def _member(self, offset: int) -> Member | None:
        group, record = self._group(offset), None
        for _ in range(_LOOKS):
            record = self._record(offset, group.entered) if group.entered else None
            again = self._group(offset)
            if again.entered == group.entered and again.left == group.left:
                break
            group = again
        if group.state not in (layout.MAKING, layout.MADE) or not (
            0 < group.world_size <= layout.MAX_WORLD
        ):
            return None
        waits = group.entered != group.left and group.waits_epoch == group.entered
        return Member(
            process=self.process,
            name=group.name.decode(errors="replace"),
            description=(
                group.description if group.described == layout.DESCRIBED else group.name
            ).decode(errors="replace"),
            nonce=bytes(group.nonce),
            rank=group.rank,
            world_size=group.world_size,
            making=group.state == layout.MAKING,
            begun_ns=group.begun_ns,
            made_ns=group.made_ns,
            timeout_ns=group.timeout_ns,
            segment_bytes=group.segment_bytes,
            status=group.status,
            reason=group.reason.decode(errors="replace") if group.status else "",
            entered=group.entered,
            left=group.left,
            call=self._call(group, record) if record else None,
            waits_for=group.waits_for - 1 if waits else None,
            waits_since_ns=group.waits_since_ns,
            late=group.late,
            slept_ns=group.slept_ns,
            pending=self._pending(group.messages),
            sums=self._sums(group),
            pids=list(group.pids[: group.world_size]),
            global_ranks=list(group.global_ranks[: group.world_size]),
            waited_ns=list(group.waited_ns[: group.world_size]),
        )

    def _ns(self, group: layout.Group, ticks: int) -> int:
        """The processor's counter as nanoseconds of CLOCK_MONOTONIC."""
        header = self._header
        passed = group.clock_ticks - header.ticks
        rate = (group.clock_ns - header.ns) / passed if passed > 0 else 1.0
        since: int = round((ticks - group.clock_ticks) * rate)
        return int(group.clock_ns) + since

    def _call(self, group: layout.Group, record: layout.Record) -> Call:
        kind, dtype, reduction, status = record.what.to_bytes(8, "little")[:4]
        operation = _name(layout.OPERATIONS, kind)
        return Call(
            number=record.number,
            operation=operation,
            dtype=_name(layout.DTYPES, dtype),
            reduction=_name(layout.REDUCTIONS, reduction)
            if operation in layout.WITH_REDUCTION
            else None,
            root=record.what >> 32 if operation in layout.WITH_ROOT else None,
            count=record.count,
            bytes=record.bytes,
            status=status,
            begin_ns=self._ns(group, record.begin),
            end_ns=self._ns(group, record.end) if record.end else None,
        )

    def _pending(self, messages: layout.Messages) -> Pending | None:
        if messages.sends + messages.receives == 0:
            return None
        return Pending(
            sends=messages.sends,
            receives=messages.receives,
            operation=_name(layout.OPERATIONS, messages.kind),
            peer=messages.peer - 1 if messages.peer else None,
            tag=messages.tag,
            bytes=messages.bytes,
            since_ns=messages.since_ns,
            waited_for=messages.waiters > 0,
        )

    def _sums(self, group: layout.Group) -> dict[str, Sum]:
        passed = group.clock_ticks - self._header.ticks
        rate = (group.clock_ns - self._header.ns) / passed if passed > 0 else 0.0
        return {
            operation: Sum(each.ops, each.bytes, round(each.ticks * rate))
            for operation, each in zip(layout.OPERATIONS, group.sums)
            if each.ops
        }


def _name(names: list[str], index: int) -> str:
    return names[index] if index < len(names) else f"unknown ({index})"


@dataclasses.dataclass(frozen=True)
class Sight:
    """All that was seen at one moment."""

    now_ns: int
    members: list[Member]
    problems: list[str]  # sentences about processes that cannot be read


def look(pids: Iterable[int] | None = None) -> Sight:
    """Reads the boards of these processes, or of all."""
    members: list[Member] = []
    problems: list[str] = []
    for pid, path in find(pids):
        try:
            with Board(pid, path) as board:
                members += board.members()
        except BoardError as error:
            if "inherited" not in str(error):
                problems.append(str(error))
    return Sight(time.clock_gettime_ns(time.CLOCK_MONOTONIC), members, problems)
