# SPDX-License-Identifier: BSD-3-Clause
"""Lines in the form of the library's (src/shm/base/log.h), by the level of SHMCOLL_LOG, to where its lines go."""

import contextlib
import datetime
import io
import os
import re
import select
import sys

_WAIT_MS = 100
_LEVELS = ("off", "warn", "info", "trace")
_ranks: set[int] = set()


def know_rank(rank: int) -> None:
    """This process is that rank of the job. If it is several ranks, lines name none."""
    _ranks.add(rank)


def _only_rank() -> int | None:
    ranks = _ranks.copy()  # another thread may add one
    return ranks.pop() if len(ranks) == 1 else None


def _path(pattern: str) -> str:
    rank = _only_rank()
    words = {
        "h": os.uname().nodename or "x",
        "r": "x" if rank is None else str(rank),
        "p": str(os.getpid()),
        "%": "%",
    }
    return re.sub("%([hrp%])", lambda match: words[match[1]], pattern)


def _at_once(path: str, flags: int) -> int:
    """For open(): a pipe that nobody reads is an error, and holds up no rank."""
    return os.open(path, flags | os.O_NONBLOCK, 0o644)


def tell(text: str) -> None:
    """Writes it to standard error. It is lost if that is closed or full, or a pipe that nobody reads for a tenth of a
    second: no line is worth a call that fails or waits."""
    with contextlib.suppress(OSError, ValueError):
        if isinstance(sys.stderr, io.TextIOWrapper):
            _write_through(sys.stderr, text)
        elif sys.stderr is not None:  # as in a notebook
            sys.stderr.write(text)
            sys.stderr.flush()


def _write_through(stream: io.TextIOWrapper, text: str) -> None:
    """Not into its buffer: what cannot be written would fail again at the interpreter's end."""
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    if poll.poll(_WAIT_MS):
        os.write(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))


def _write(line: str) -> None:
    """Appends the line to the file of SHMCOLL_LOG_FILE, or writes it to stderr."""
    pattern = os.environ.get("SHMCOLL_LOG_FILE")
    if pattern:
        try:
            with open(_path(pattern), "ab", opener=_at_once) as file:
                file.write(line.encode(errors="replace"))
            return
        except (OSError, ValueError):
            pass  # the library says so, once
    tell(line)


def _line(level: str, text: str) -> str:
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    rank = _only_rank()
    who = "" if rank is None else f"rank {rank} "
    return f"[shmcoll {now} {who}pid {os.getpid()}] {level}: {text}\n"


def say(level: str, text: str) -> None:
    """Writes one line, if SHMCOLL_LOG lets lines of that level through."""
    said = os.environ.get("SHMCOLL_LOG", "warn")
    if _LEVELS.index(level) <= _LEVELS.index(said if said in _LEVELS else "warn"):
        _write(_line(level, text))
