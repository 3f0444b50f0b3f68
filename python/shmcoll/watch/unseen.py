# SPDX-License-Identifier: BSD-3-Clause
"""Processes that are in a group and have no board, so that no tool can show what they do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from shmcoll.watch import board

# How /proc/PID/maps names the memory of a group (docs/internals/protocol/memory.md): a file in /dev/shm with or
# without a name, or a memfd. A forked child does not have it.
_SEGMENT = re.compile(rb" (/dev/shm/shmcoll-[0-9a-f]{32}|/memfd:shmcoll)( \(deleted\))?$", re.M)
_UNNAMED = re.compile(rb" /dev/shm/#\d+ \(deleted\)$", re.M)  # may be another program's
_LIBRARY = re.compile(rb"/libshmcoll\.so[.\d]*( \(deleted\))?$", re.M)
_SHOWN = 8  # processes


def sentences(seen: Iterable[int], pids: Sequence[int] | None = None) -> list[str]:
    """About these processes, or all, as far as this user may look at them. seen: these show their groups."""
    off: list[str] = []
    refused: list[str] = []
    try:
        looked_at = set(board.all_pids() if pids is None else pids) - set(seen)
    except board.BoardError:
        return []
    for pid in sorted(looked_at):
        if is_unseen(pid):
            (off if _variable(pid) == b"off" else refused).append(_name(pid))
    return [*_sentence(off, _OFF), *_sentence(refused, _REFUSED)]


_OFF = "was started with SHMCOLL_BOARD=off"
_REFUSED = (
    "could not make a memfd (its warning on stderr says why), or its program set SHMCOLL_BOARD=off"
)


def _sentence(names: Sequence[str], why: str) -> Iterator[str]:
    if len(names) == 1:
        yield f"process {names[0]} is in a group, but nothing of it can be shown: it {why}"
    elif names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        those = ", ".join(names[:_SHOWN]) + more
        yield f"processes {those} are in a group, but nothing of them can be shown: each {why}"


def is_unseen(pid: int) -> bool:
    """Is it in a group, and has no board?"""
    return _has_segment(pid) and not any(board.find([pid]))


def _has_segment(pid: int) -> bool:
    try:
        maps = Path(f"{board.PROC}/{pid}/maps").read_bytes()
    except OSError:  # another user's process, or it has ended
        return False
    return bool(_SEGMENT.search(maps) or (_LIBRARY.search(maps) and _UNNAMED.search(maps)))


def _variable(pid: int) -> bytes:
    """SHMCOLL_BOARD, as the process was started."""
    try:
        environment = Path(f"{board.PROC}/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    found = dict(each.partition(b"=")[::2] for each in environment)
    return found.get(b"SHMCOLL_BOARD", b"")


def _name(pid: int) -> str:
    found = board.read_process(pid)
    return f"{pid} ({found[0]})" if found else str(pid)
