# SPDX-License-Identifier: BSD-3-Clause
"""Dumps: boards in files (src/shm/proto/dump.h). Finds them, reads them, and puts those of one job together."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from shmcoll.watch import layout
from shmcoll.watch.board import (
    BoardError,
    Call,
    DeviceCall,
    Image,
    Member,
    Message,
    Process,
    is_sound,
    parse,
    printable,
)

ENDING = ".dump"


class Dump(Image):
    """One file. Raises BoardError, with a sentence that does not name the file."""

    _states = (layout.MAKING, layout.MADE, layout.CLOSED)

    def __init__(self, path: Path) -> None:
        try:
            # A pipe of that name must not hold up the tool.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise BoardError(f"cannot be opened: {error.strerror}") from error
        try:
            header = _read_header(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise BoardError(f"cannot be read: {error.strerror}") from error
        except BoardError:
            os.close(descriptor)
            raise
        host = printable(header.host)
        process = Process(header.pid, "", "?", printable(header.library), header.level, host)
        super().__init__(descriptor, header, process)
        self.path = path
        self.host = host
        self.job = printable(header.job)  # "": no launcher has named it
        self.written_ns: int = header.dumped_ns  # CLOCK_MONOTONIC
        self.written_unix_ns: int = header.dumped_unix_ns
        self.failed: int | None = header.failed - 1 if header.failed else None  # the group's part
        self.made_unix_ns = self.written_unix_ns - (self.written_ns - header.ns)  # of the board
        self.identity = (self.host, header.pid, header.start_time)  # of the process
        self.groups = [each for each in self.members() if 0 <= each.rank < each.world_size]
        self.nonces = {each.nonce for each in self.groups if not each.making}

    def _seen_ns(self) -> int:
        return int(self._header.dumped_ns)

    def calls(self, member: Member) -> dict[int, Call]:
        """The calls of that group that are kept, by their numbers; the last 256."""
        _, _, count = self.records
        oldest, offset = max(1, member.entered - count + 1), self.offset(member.part)
        found = (self._record(offset, number) for number in range(oldest, member.entered + 1))
        return {record.number: self.call(record) for record in found if record}

    def messages(self, member: Member) -> list[Message]:
        """Its messages that waited or were large, the oldest first; the last 256."""
        records, newest, offset = self.kept_records, member.kept_messages, self.offset(member.part)
        if records[2] == 0:  # the dump of an older library
            return []
        numbers = range(max(1, newest - records[2] + 1), newest + 1)
        found = (self._record(offset, number, records) for number in numbers)
        return [self.message(member, record) for record in found if record]

    def device_calls(self, member: Member) -> list[DeviceCall]:
        """Its calls and messages on a GPU that have ended, the oldest first; the last 128."""
        records, newest, offset = self.device_records, member.device_kept, self.offset(member.part)
        numbers = range(max(1, newest - records[2] + 1), newest + 1) if records[2] else range(0)
        found = (self._record(offset, number, records) for number in numbers)
        return [self.device_call(record) for record in found if record]


def _read_header(descriptor: int) -> layout.Header:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise BoardError("is not a file")
    data = os.pread(descriptor, ctypes.sizeof(layout.Header), 0)
    header = parse(layout.Header, data)
    if header.magic != layout.MAGIC:
        raise BoardError("is not a dump of shmcoll")
    if len(data) < ctypes.sizeof(layout.Header):
        raise BoardError(f"is cut off: it has {len(data)} bytes")
    if header.version != layout.VERSION:
        raise BoardError(
            f"is of version {header.version}, and this tool reads version {layout.VERSION}; use the tool of "
            f"shmcoll {printable(header.library)}, which wrote it"
        )
    if header.dumped_ns == 0:
        raise BoardError("is a board, and not a dump")
    if not _is_sound(header):
        raise BoardError("is damaged: its header contradicts itself")
    wanted = header.header_bytes + header.group_count * header.group_bytes
    if found.st_size != wanted:
        what = "is cut off" if found.st_size < wanted else "is damaged"
        raise BoardError(f"{what}: it has {found.st_size} bytes, and its header says {wanted}")
    return header


def _is_sound(header: layout.Header) -> bool:
    records_end = header.record_offset + header.record_count * header.record_bytes
    kept_end = header.kept_offset + header.kept_count * header.record_bytes
    return bool(
        is_sound(header)
        and ctypes.sizeof(layout.Header) <= header.header_bytes
        and ctypes.sizeof(layout.Group) <= header.record_offset
        and (header.kept_count == 0 or records_end <= header.kept_offset)
        and (header.device_count == 0 or kept_end <= header.device_offset)
        and header.failed <= header.group_count
    )


@dataclasses.dataclass
class Found:
    """The dumps of one job, and what was left out."""

    dumps: list[Dump]
    problems: list[str]


def files(names: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The dumps in these folders and the other files, and what is wrong with a name."""
    found, problems = [], []
    for name in names:
        if os.path.isdir(name):
            try:
                inside = sorted(each for each in name.iterdir() if each.name.endswith(ENDING))
            except OSError as error:
                problems.append(f"{printable(name)} cannot be read: {error.strerror}")
                continue
            found += inside
            if not inside:
                problems.append(f"{printable(name)} has no file *{ENDING}")
        else:
            found.append(name)
    return list(dict.fromkeys(found)), problems


def find(names: Sequence[Path]) -> Found:
    """Reads these files, and those of these folders. Of several jobs it keeps the newest one."""
    paths, problems = files(names)
    dumps = []
    for path in paths:
        try:
            dumps.append(Dump(path))
        except BoardError as error:
            problems.append(f"{printable(path)} {error}")
    jobs = sorted(_jobs(dumps), key=lambda job: max(dump.written_unix_ns for dump in job))
    for job in jobs[:-1]:
        for dump in job:
            named = f" ({dump.job})" if dump.job else ""
            problems.append(
                f"{printable(dump.path)} is of another job{named}, which is older; name it alone"
            )
            dump.close()
    return Found(jobs[-1] if jobs else [], problems)


def _jobs(dumps: Iterable[Dump]) -> list[list[Dump]]:
    jobs: list[list[Dump]] = []
    for dump in dumps:
        same = [job for job in jobs if any(_of_one_job(dump, other) for other in job)]
        jobs = [job for job in jobs if job not in same]
        jobs.append([*(each for job in same for each in job), dump])
    return jobs


def _of_one_job(one: Dump, other: Dump) -> bool:
    """They share a group; or a launcher has given them one name, and they ran at the same time."""
    if one.nonces & other.nonces or one.identity == other.identity:
        return True
    return (
        one.job == other.job != ""
        and one.made_unix_ns <= other.written_unix_ns
        and other.made_unix_ns <= one.written_unix_ns
    )
