# SPDX-License-Identifier: BSD-3-Clause
"""Finds the boards of this machine's processes and reads them, without the help of any process.

A board changes while it is read. Numbers that belong together are read between two looks at the number
that their writer changes first and last; docs/internals/protocol/board.md has the rules.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from shmcoll.watch import layout

PROC = "/proc"
RESCAN_S = 2.0  # a look at all processes of a machine takes a tenth of a second
_LINK = "/memfd:shmcoll:board"
_LOOKS = 20  # at something that changes under the reader's hands
_MOST_BYTES = 1 << 20  # of a header, and of a part
_MOST_PARTS = 1 << 16
_MOST_WORLD = 1 << 16  # ranks of all hosts
_Structure = TypeVar("_Structure", bound=ctypes.Structure)


class BoardError(Exception):
    """Why the board of a process cannot be read, in a sentence."""


class NoBoard(BoardError):
    """There is nothing to read, and nothing to say about it."""


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
class Message:
    """A send or a receive that has ended, and that waited or was large."""

    number: int  # among those that its rank keeps
    operation: str
    peer: int | None  # None: a receive from any rank, which got none
    tag: int
    pair: int  # its number among the messages from its sender to its receiver
    dtype: str
    count: int
    bytes: int
    status: int
    begin_ns: int
    end_ns: int


@dataclasses.dataclass(frozen=True)
class DeviceCall:
    """A collective or a message that has ended on a GPU. Its end is when the library saw that: up to 10 ms
    later."""

    number: int  # among those that its rank keeps
    call: Call  # its number is that of the rank's collectives, or of its two ranks' messages
    peer: int | None  # of a message
    tag: int


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
class Device:
    """Operations of a rank on a GPU, or messages there: their calls return before they are carried out."""

    called: int
    done: int
    since_ns: int  # of the oldest one that is not over, as the rest
    call: str  # "": all are over
    whom: str  # "": it has not waited long
    missing: tuple[int, ...]  # the ranks that it waits for


ANY = 2**32 - 1  # a message of any rank


@dataclasses.dataclass(frozen=True)
class Owed:
    """What a rank still owes to a group, and which of its threads sleeps there."""

    user: int  # the thread that made the last call or message on the group
    queued: bool  # calls that have not ended
    sending: int  # messages that are not over
    receiving: int
    thread: int  # that sleeps; 0: none
    since_ns: int
    peer: int  # 1 + the rank of the message that it waits for, or ANY; 0: it waits for a call
    operation: str  # of that message, as the tag
    tag: int


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a rank, which failed the group."""

    rank: int
    pid: int  # as the group knows it
    died: bool  # without leaving the group
    exit_code: int | None
    signal: int | None
    exception: str | None  # with its place
    last_call: int | None  # the number of its newest collective

    def __str__(self) -> str:
        """ "died, killed by signal 9"."""
        said = "died" if self.died else "has left the group"
        if self.exception:
            return f"{said} because of {self.exception}"
        if self.signal is not None:
            return f"{said}, killed by signal {self.signal}"
        return f"{said}, exit code {self.exit_code}" if self.exit_code is not None else said


@dataclasses.dataclass(frozen=True)
class Over:
    """A group over several hosts. A board has the ranks of its own host, under numbers of their own."""

    id: int  # the same on all hosts
    hosts: int
    host: int  # the board's
    world_size: int  # ranks of all hosts
    ranks: tuple[
        int, ...
    ]  # the group's ranks that are on this host, in the order of their numbers here
    awaits_since_ns: int | None  # since when the call has waited for other hosts; None: it does not
    whom: str  # these hosts, and what they are at; "": it has not waited long, or does not lead its host

    def rank(self, number: int) -> int:
        """Which rank of the group the board means; after those of its own host come all others."""
        if number < len(self.ranks):
            return self.ranks[number]
        here = set(self.ranks)
        others = (rank for rank in range(self.world_size) if rank not in here)
        return next(itertools.islice(others, number - len(here), None), number)

    def spread(self, values: Sequence[int], unknown: int) -> list[int]:
        """The board's values of its ranks as a list of all ranks of the group."""
        found = [unknown] * self.world_size
        for rank, value in zip(self.ranks, values):
            found[rank] = value
        return found


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
    found_by: int | None  # the rank that found the failure; None: it is not known
    over: Over | None  # None: the group has one host
    end: End | None  # None: the reason is not the end of a rank, or not known as facts
    entered: int  # numbers of calls
    left: int
    call: Call | None  # the one that runs, or ran last; None: none, or times are not kept
    waits_for: int | None  # if the call sleeps: a rank that it waits for
    waits_since_ns: int
    late: int  # lines about late calls
    slept_ns: int
    pending: Pending | None
    owed: Owed
    device: Device | None  # None: it has made no call on a GPU
    device_messages: Device | None  # None: it has made no send or recv there
    device_kept: int  # calls and messages on a GPU that it has put on the board
    sums: dict[str, Sum]
    pids: list[int]  # of all ranks, as that process knows them
    global_ranks: list[int]  # -1: not known
    waited_ns: list[int]
    seen_ns: int  # when all this was read
    kept_messages: int  # that it has put on the board
    busy_ticks: int  # in calls that have ended; 0 where times are not kept
    ns_per_tick: float
    part: int  # its place on the process's board

    @property
    def in_call(self) -> bool:
        return self.entered != self.left

    @property
    def sleeps_in_message(self) -> bool:
        """A thread sleeps until a message is over, and no call runs."""
        return bool(self.owed.thread and self.owed.peer and not self.in_call and not self.status)

    @property
    def on_gpu(self) -> Device | None:
        """What its GPU has not finished: the oldest of calls and messages."""
        both = (self.device, self.device_messages)
        found = [device for device in both if device and device.call]
        return min(found, key=lambda device: device.since_ns, default=None)

    @property
    def awaits_ns(self) -> int | None:
        """Since when its call has waited for other hosts; None: it does not."""
        return self.over.awaits_since_ns if self.over and not self.status else None

    @property
    def call_text(self) -> str:
        return str(self.call) if self.call else f"call #{self.entered}"

    @property
    def key(self) -> tuple[int, int, int]:
        """What no other rank of any group has, as long as the process lives."""
        return self.process.pid, self.begun_ns, self.part

    @property
    def has_times(self) -> bool:
        return self.process.has_times

    @property
    def call_ns(self) -> int | None:
        """How long the call that runs has lasted; None: none runs, or it is not known."""
        if not self.in_call or self.call is None:
            return None
        return max(0, self.seen_ns - self.call.begin_ns)


@dataclasses.dataclass(frozen=True)
class Process:
    pid: int  # as this process's /proc has it
    command: str
    state: str  # the letter of /proc: R, S, D, T, t
    library: str
    level: int
    host: str = ""  # of a dump: those of several hosts may be read together

    @property
    def identity(self) -> tuple[str, int]:
        return self.host, self.pid

    @property
    def has_times(self) -> bool:
        return self.level >= layout.LEVELS.index("times")


def all_pids() -> list[int]:
    """Raises BoardError where there is no /proc."""
    try:
        return [int(name) for name in os.listdir(PROC) if name.isdigit()]
    except OSError as error:
        raise BoardError(f"processes cannot be listed: {error}") from error


def find(pids: Iterable[int] | None = None) -> Iterator[tuple[int, Path]]:
    """The processes that have a board, and their descriptor of it, as far as this user may see them."""
    for pid in all_pids() if pids is None else pids:
        folder = f"{PROC}/{pid}/fd"
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
        stat = Path(f"{PROC}/{pid}/stat").read_text(errors="replace")
        words = printable(Path(f"{PROC}/{pid}/cmdline").read_bytes(), keep="\0").split("\0")
    except OSError:
        return None
    rest = stat[stat.rindex(")") + 2 :].split()
    return _command(words), rest[0], int(rest[19])


def printable(data: bytes | str | os.PathLike[str], keep: str = "") -> str:
    """What another program has written, or a name, without anything that could steer a terminal."""
    if not isinstance(data, bytes):
        data = os.fspath(data).encode(errors="surrogateescape")
    text = data.decode(errors="replace")
    return "".join(each if each.isprintable() or each in keep else "?" for each in text)


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


def parse(kind: type[_Structure], data: bytes) -> _Structure:
    """A board of an older version may lack the last fields: they are zero then."""
    return kind.from_buffer_copy(data.ljust(ctypes.sizeof(kind), b"\0"))


def is_sound(header: layout.Header) -> bool:
    """Can what it says of its sizes be so? Any process may show a file as its board."""
    ends = (
        header.record_offset + header.record_count * header.record_bytes,
        header.kept_offset + header.kept_count * header.record_bytes,
        header.device_offset + header.device_count * header.record_bytes,
    )
    return bool(
        header.header_bytes <= _MOST_BYTES
        and max(ends) <= header.group_bytes <= _MOST_BYTES
        and ctypes.sizeof(layout.Record) <= header.record_bytes
        and 0 < header.record_count
        and header.group_count <= _MOST_PARTS
        and header.level < len(layout.LEVELS)
    )


class Record(NamedTuple):
    """One call or message, with times in counts of the processor's counter, which all processes share."""

    number: int
    begin: int
    end: int  # 0: it runs
    what: int
    elements: int
    bytes: int
    peer: int  # of a message: the rank, then the tag, 32 bits each
    pair: int


_Self = TypeVar("_Self", bound="Image")


def _sure(group: layout.Group) -> tuple[object, ...]:
    """What two copies of a part have in common if nothing has happened between them. One copy alone may have half a
    nonce and say that the group is made; one that begins later has all of it."""
    return group.entered, group.left, group.state, bytes(group.nonce)


class Image:
    """What the processes write to their boards: of a process that lives (Board), or in a file (dumps.Dump)."""

    _states: tuple[int, ...] = (layout.MAKING, layout.MADE)  # of the groups that members() gives

    def __init__(self, descriptor: int, header: layout.Header, process: Process) -> None:
        self._fd = descriptor
        self._header = header
        self.process = process
        # The latest known moment.
        self._latest: tuple[int, int] = (header.ticks, header.ns)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _seen_ns(self) -> int:
        """When what has just been read was so."""
        return now_ns()

    def members(self) -> list[Member]:
        """This process's part in each of its groups."""
        found = []
        for index in range(self._header.group_count):
            offset = self.offset(index)
            state = int.from_bytes(os.pread(self._fd, 4, offset), "little")
            if state == layout.FREE:
                if self._is_hole(offset):
                    break
            elif state in self._states:
                member = self._member(index, offset)
                if member is not None:
                    found.append(member)
        return found

    def offset(self, part: int) -> int:
        return int(self._header.header_bytes + part * self._header.group_bytes)

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
            return parse(layout.Group, os.pread(self._fd, ctypes.sizeof(layout.Group), offset))

        group = self._steady(look, _steady_number)
        self._latest = max(self._latest, (group.clock_ticks, group.clock_ns))
        return group

    def read(self, part: int, offset: int, count: int) -> bytes:
        """Bytes of a group's part."""
        return os.pread(self._fd, count, self.offset(part) + offset)

    @property
    def records(self) -> tuple[int, int, int]:
        """Where the records of a part begin, their size and their number."""
        header = self._header
        return int(header.record_offset), int(header.record_bytes), int(header.record_count)

    @property
    def kept_records(self) -> tuple[int, int, int]:
        """The same for the records of messages; their number is 0 on a board of an older library."""
        header = self._header
        return int(header.kept_offset), int(header.record_bytes), int(header.kept_count)

    @property
    def device_records(self) -> tuple[int, int, int]:
        """The same for the records of a GPU's work."""
        header = self._header
        return int(header.device_offset), int(header.record_bytes), int(header.device_count)

    def _record(
        self, offset: int, number: int, records: tuple[int, int, int] | None = None
    ) -> Record | None:
        """The record of that call; None: it has been overwritten."""
        begin, size, count = records or self.records
        at = offset + begin + number % count * size
        for _ in range(_LOOKS):
            first, record, last = (
                parse(layout.Record, os.pread(self._fd, ctypes.sizeof(layout.Record), at))
                for _ in range(3)
            )
            if first.number == last.number == number:
                return Record(
                    *(number, record.begin, record.end, record.what, record.count, record.bytes),
                    *(record.peer, record.pair),
                )
        return None

    def _member(self, part: int, offset: int) -> Member | None:
        group, record = self._group(offset), None
        seen_ns = self._seen_ns()
        for _ in range(_LOOKS):
            record = self._record(offset, group.entered) if group.entered else None
            again = self._group(offset)
            if _sure(again) == _sure(group):
                break
            group, seen_ns = again, self._seen_ns()
        if group.state not in self._states or not (0 < group.world_size <= layout.MAX_WORLD):
            return None
        if not 0 <= group.rank < group.world_size:
            return None
        over = _over(group)
        waits = group.entered != group.left and group.waits_epoch == group.entered
        if over and over.awaits_since_ns is not None:
            waits = False  # no more for a rank of its own host
        member = Member(
            process=self.process,
            name=printable(group.name),
            description=printable(
                group.description if group.described == layout.DESCRIBED else group.name
            ),
            nonce=bytes(group.nonce),
            rank=group.rank,
            world_size=group.world_size,
            making=group.state == layout.MAKING,
            begun_ns=group.begun_ns,
            made_ns=group.made_ns,
            timeout_ns=group.timeout_ns,
            segment_bytes=group.segment_bytes,
            status=group.status,
            reason=printable(group.reason) if group.status else "",
            found_by=group.end.finder - 1 if 0 < group.end.finder <= group.world_size else None,
            over=over,
            end=_end(group),
            entered=group.entered,
            left=group.left,
            call=self.call(record) if record else None,
            waits_for=group.waits_for - 1 if waits else None,
            waits_since_ns=group.waits_since_ns,
            late=group.late,
            slept_ns=group.slept_ns,
            pending=self._pending(group.messages),
            owed=_owed(group),
            device=_device(group.device, group.world_size),
            device_messages=_device(group.device_messages, group.world_size),
            device_kept=group.device_kept,
            sums=self._sums(group.sums),
            pids=list(group.pids[: group.world_size]),
            global_ranks=list(group.global_ranks[: group.world_size]),
            waited_ns=list(group.waited_ns[: group.world_size]),
            seen_ns=seen_ns,
            kept_messages=group.kept_messages,
            busy_ticks=sum(each.ticks for each in group.sums),
            ns_per_tick=self.ns_per_tick,
            part=part,
        )
        return _of_all_hosts(member, over) if over else member

    @property
    def ticks_known(self) -> int:
        """How long the rate of the processor's counter was observed: the longer, the better it is known."""
        return int(self._latest[0] - self._header.ticks)

    @property
    def ns_per_tick(self) -> float:
        """0: not known."""
        passed = self.ticks_known
        return (self._latest[1] - self._header.ns) / passed if passed > 0 else 0.0

    def ns(self, ticks: int) -> int:
        """The processor's counter as nanoseconds of CLOCK_MONOTONIC."""
        latest_ticks, latest_ns = self._latest
        return latest_ns + round((ticks - latest_ticks) * (self.ns_per_tick or 1.0))

    def ticks(self, ns: int) -> int:
        """CLOCK_MONOTONIC as a count of the processor's counter."""
        latest_ticks, latest_ns = self._latest
        return latest_ticks + round((ns - latest_ns) / (self.ns_per_tick or 1.0))

    def call(self, record: Record) -> Call:
        kind, dtype, reduction, status = record.what.to_bytes(8, "little")[:4]
        operation = name_of(layout.OPERATIONS, kind)
        return Call(
            number=record.number,
            operation=operation,
            dtype=name_of(layout.DTYPES, dtype),
            reduction=name_of(layout.REDUCTIONS, reduction)
            if operation in layout.WITH_REDUCTION
            else None,
            root=record.what >> 32 if operation in layout.WITH_ROOT else None,
            count=record.elements,
            bytes=record.bytes,
            status=status,
            begin_ns=self.ns(record.begin),
            end_ns=self.ns(record.end) if record.end else None,
        )

    def device_call(self, record: Record) -> DeviceCall:
        """Its times are nanoseconds already."""
        call = self.call(record._replace(number=record.pair))
        call = dataclasses.replace(call, begin_ns=record.begin, end_ns=record.end)
        peer, tag = struct.unpack("<Ii", record.peer.to_bytes(8, "little"))
        is_message = call.operation in layout.MESSAGES
        return DeviceCall(record.number, call, peer if is_message else None, tag)

    def message(self, member: Member, record: Record) -> Message:
        kind, dtype, _, status = record.what.to_bytes(8, "little")[:4]
        peer, tag = struct.unpack("<Ii", record.peer.to_bytes(8, "little"))
        if member.over and peer < ANY:
            peer = member.over.rank(peer)
        return Message(
            number=record.number,
            operation=name_of(layout.OPERATIONS, kind),
            peer=peer if peer < ANY else None,
            tag=tag,
            pair=record.pair,
            dtype=name_of(layout.DTYPES, dtype),
            count=record.elements,
            bytes=record.bytes,
            status=status,
            begin_ns=self.ns(record.begin),
            end_ns=self.ns(record.end),
        )

    def _pending(self, messages: layout.Messages) -> Pending | None:
        if messages.sends + messages.receives == 0:
            return None
        return Pending(
            sends=messages.sends,
            receives=messages.receives,
            operation=name_of(layout.OPERATIONS, messages.kind),
            peer=messages.peer - 1 if messages.peer else None,
            tag=messages.tag,
            bytes=messages.bytes,
            since_ns=messages.since_ns,
            waited_for=messages.waiters > 0,
        )

    def _sums(self, sums: Iterable[layout.Sum]) -> dict[str, Sum]:
        return {
            operation: Sum(each.ops, each.bytes, round(each.ticks * self.ns_per_tick))
            for operation, each in zip(layout.OPERATIONS, sums)
            if each.ops
        }


def _steady_number(group: layout.Group) -> int:
    """Odd while one of its parts changes; each part's number is so, and all only grow."""
    parts = (group.messages.number, group.clock_number, group.device.number)
    numbers = (*parts, group.device_messages.number, group.over.number)
    return int(sum(numbers) * 2 + any(number % 2 for number in numbers))


def _device(device: layout.Device, world_size: int) -> Device | None:
    if device.called == 0:
        return None
    missing = int.from_bytes(bytes(device.missing), "little")
    return Device(
        device.called,
        device.done,
        device.since_ns,
        printable(device.call),
        printable(device.whom),
        tuple(rank for rank in range(world_size) if missing >> rank & 1),
    )


def _over(group: layout.Group) -> Over | None:
    over = group.over
    ranks = tuple(over.ranks[: group.world_size])
    if not over.id or not 0 < over.world <= _MOST_WORLD:
        return None
    if len(set(ranks)) < len(ranks) or max(ranks) >= over.world:
        return None
    awaits = group.entered != group.left and over.awaits_epoch == group.entered
    return Over(
        over.id,
        over.hosts,
        over.host,
        over.world,
        ranks,
        over.awaits_since_ns if awaits else None,
        printable(over.whom) if awaits and over.whom_epoch == group.entered else "",
    )


def _of_all_hosts(member: Member, over: Over) -> Member:
    """The member with the numbers that its ranks have in the group over all hosts."""
    end, pending, owed = member.end, member.pending, member.owed
    if end:
        end = dataclasses.replace(end, rank=over.rank(end.rank))
    if pending and pending.peer is not None:
        pending = dataclasses.replace(pending, peer=over.rank(pending.peer))
    if owed.peer not in (0, ANY):
        owed = dataclasses.replace(owed, peer=over.rank(owed.peer - 1) + 1)
    return dataclasses.replace(
        member,
        nonce=over.id.to_bytes(8, "big") * 2,
        rank=over.rank(member.rank),
        world_size=over.world_size,
        found_by=None if member.found_by is None else over.rank(member.found_by),
        end=end,
        waits_for=None if member.waits_for is None else over.rank(member.waits_for),
        pending=pending,
        owed=owed,
        pids=over.spread(member.pids, 0),
        global_ranks=over.spread(member.global_ranks, -1),
        waited_ns=over.spread(member.waited_ns, 0),
    )


def _end(group: layout.Group) -> End | None:
    end = group.end
    if not group.status or not 0 < end.rank <= group.world_size:
        return None
    return End(
        rank=end.rank - 1,
        pid=end.pid,
        died=end.died != 0,
        exit_code=end.code if end.kind == layout.EXIT else None,
        signal=end.code if end.kind == layout.SIGNAL else None,
        exception=printable(end.why) or None,
        last_call=end.last_call or None,
    )


def _owed(group: layout.Group) -> Owed:
    block = group.block
    return Owed(
        user=group.user,
        queued=group.submitted != group.ended,
        sending=group.sending,
        receiving=group.receiving,
        thread=block.thread if block.since_ns else 0,
        since_ns=block.since_ns,
        peer=block.peer,
        operation=name_of(layout.OPERATIONS, block.kind),
        tag=block.tag,
    )


class Board(Image):
    """One process's board. Close it, or use it in a ``with`` statement."""

    def __init__(self, pid: int, path: Path) -> None:
        found = read_process(pid)
        if found is None:
            raise NoBoard(f"process {pid} has ended")
        command, state, start_time = found
        try:
            # Any process may have a pipe that is called so.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise BoardError(f"the board of process {pid} cannot be opened: {error}") from error
        try:
            header = _read_header(descriptor, pid, start_time)
        except BoardError:
            os.close(descriptor)
            raise
        process = Process(pid, command, state, printable(header.library), header.level)
        super().__init__(descriptor, header, process)

    @property
    def file(self) -> int:
        """A number that no other board has."""
        return os.fstat(self._fd).st_ino

    def refresh(self) -> None:
        """Reads the state of the process again. Raises NoBoard if it has ended."""
        found = read_process(self.process.pid)
        if found is None or found[1] in "ZX" or found[2] != self._header.start_time:
            raise NoBoard(f"process {self.process.pid} has ended")
        self.process = dataclasses.replace(self.process, state=found[1])


def _read_header(descriptor: int, pid: int, start_time: int) -> layout.Header:
    header = parse(layout.Header, os.pread(descriptor, ctypes.sizeof(layout.Header), 0))
    if header.magic != layout.MAGIC:
        raise BoardError(f"process {pid} has just begun to make its board")
    if header.start_time != start_time:
        raise NoBoard(f"process {pid} only inherited the board of process {header.pid}")
    if header.version != layout.VERSION:
        raise BoardError(
            f"process {pid} has a board of version {header.version}, and this tool reads version "
            f"{layout.VERSION}; use the tool of shmcoll {printable(header.library)}, as the process does"
        )
    needed = header.header_bytes + header.group_count * header.group_bytes
    if not is_sound(header) or os.fstat(descriptor).st_size < needed:
        raise BoardError(f"the board of process {pid} is damaged: its header contradicts itself")
    return header


def name_of(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"unknown ({index})"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All that was seen at one moment."""

    now_ns: int
    members: list[Member]
    problems: list[str]  # sentences about processes that cannot be read


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Watcher:
    """The boards of these processes, or of all, kept open between looks. New ones are looked for every
    RESCAN_S. Close it, or use it in a ``with`` statement."""

    def __init__(self, pids: Sequence[int] | None = None) -> None:
        self._pids = pids
        self._scanned_ns: int | None = None
        self.problems: list[str] = []
        self._to_scan: list[int] = []
        self.boards: dict[tuple[int, int], Board] = {}  # by the process and the file

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for board in self.boards.values():
            board.close()
        self.boards = {}

    def scan(self) -> None:
        """Looks at all processes."""
        self._scanned_ns, self.problems = now_ns(), []
        try:
            pids = all_pids() if self._pids is None else self._pids
        except BoardError as error:
            self.problems.append(str(error))
            return
        found = {key for pid in pids for key in self._open(pid)}
        for key in self.boards.keys() - found:
            self.boards.pop(key).close()

    def scan_some(self, count: int) -> None:
        """Looks at so many processes, for a caller that cannot stay away for long."""
        if not self._to_scan:
            if self._scanned_ns is not None and now_ns() - self._scanned_ns < RESCAN_S * 1e9:
                return
            self._scanned_ns = now_ns()
            self._to_scan = all_pids() if self._pids is None else list(self._pids)
        for _ in range(min(count, len(self._to_scan))):
            self._open(self._to_scan.pop())

    def _open(self, pid: int) -> list[tuple[int, int]]:
        keys = []
        for _, path in find([pid]):
            try:
                key = pid, os.stat(path).st_ino
                if key not in self.boards:
                    self.boards[key] = Board(pid, path)
                keys.append(key)
            except NoBoard:
                pass
            except BoardError as error:
                self._say(str(error))
            except OSError as error:
                if read_process(pid):  # it has not ended meanwhile
                    self._say(f"the board of process {pid} cannot be opened: {error}")
        return keys

    def _say(self, problem: str) -> None:
        """Once, however often scan_some() finds it."""
        if problem not in self.problems:
            self.problems.append(problem)

    def look(self) -> Snapshot:
        if self._scanned_ns is None or now_ns() - self._scanned_ns >= RESCAN_S * 1e9:
            self.scan()
        members: list[Member] = []
        for key, board in list(self.boards.items()):
            try:
                board.refresh()
            except NoBoard:
                self.boards.pop(key).close()
            else:
                members += board.members()
        return Snapshot(now_ns(), members, list(self.problems))


def look(pids: Sequence[int] | None = None) -> Snapshot:
    """Reads the boards of these processes, or of all."""
    with Watcher(pids) as watcher:
        return watcher.look()
