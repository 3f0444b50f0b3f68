# SPDX-License-Identifier: BSD-3-Clause
"""What the tools that look from outside have in common: arguments, exit codes, and how things are said."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from shmcoll.watch import board, unseen
from shmcoll.watch.board import Call, Member
from shmcoll.watch.groups import Group
from shmcoll.watch.parser import Parser

EXIT_NOTHING = 3  # no group to be seen

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
}
_SHORT_TYPES = {"complex": "c", "float": "f", "uint": "u", "int": "i"}


class PidParser(Parser):
    """Takes PIDs, too."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog)
        self.add_argument("pids", nargs="*", type=int, metavar="PID", help="look at these alone")


def add_late_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--late",
        type=_seconds_or_none,
        default=5.0,
        metavar="S",
        help="a wait of so many seconds is late (default 5)",
    )


def seconds(word: str, least: float = 0.01) -> float:
    """A number of seconds on a command line."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan  # which is in no range
    if not least <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{word} is not a number of seconds from {least} to 86400")
    return value


def _seconds_or_none(word: str) -> float:
    return seconds(word, 0)


def exit_on_signals() -> None:
    """SIGTERM, SIGHUP and SIGQUIT (Ctrl-\\) raise SystemExit, so that what was begun is put in order."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, leave)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[IO[str]]:
    """A new file, which takes the place of the one with that path if all goes well; a link stays one. What is there
    and is no file, such as a pipe or /dev/stdout, is written to. Raises OSError."""
    if path.exists() and not path.is_file():
        with open(path, "w", encoding="utf-8") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    # A reader of all *.prom of the folder must not take the half of it.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(descriptor, 0o666 & ~umask)
            yield file
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def print_fitted(lines: Iterable[str]) -> None:
    """A line that is wider than the terminal goes on in the next one. A pipe or a file gets it whole."""
    if sys.stdout.isatty():
        width = max(40, shutil.get_terminal_size().columns)
        lines = [part for line in lines for part in _fitted(line, width)]
    print("\n".join(lines))


def _fitted(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False
    )


_WHAT_SHOWS = (
    "A process shows its groups if SHMCOLL_BOARD is not off, and to its own user and root alone."
)


def nothing(pids: Sequence[int]) -> list[str]:
    where = f"process {', '.join(map(str, pids))}" if pids else f"{_visible()} processes"
    gone = [pid for pid in pids if not os.path.exists(f"{board.PROC}/{pid}")]
    if gone and len(gone) == len(pids):
        return [f"no such process: {', '.join(map(str, gone))}, as seen from here (pid namespace)."]
    return [
        f"no shmcoll group in {where} (looked at the descriptors that user {os.geteuid()} may read).",
        *(unseen.sentences((), pids or None) or [_WHAT_SHOWS]),
    ]


def _visible() -> int:
    try:
        return sum(os.access(f"{board.PROC}/{pid}/fd", os.R_OK) for pid in board.all_pids())
    except board.BoardError:
        return 0


# ---- numbers ----


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def amount(number: float) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


# ---- ranks and calls ----


def ranks(group: Group, some: Sequence[int]) -> str:
    names = [group.name_rank(rank) for rank in some[:4]]
    more = f" and {len(some) - 4} more" if len(some) > 4 else ""
    return ", ".join(names) + more


def size(group: Group) -> str:
    """ "4 ranks", or "4 ranks on 2 hosts"."""
    hosts = f" on {group.over.hosts} hosts" if group.over else ""
    return f"{group.world_size} rank{'s' * (group.world_size != 1)}{hosts}"


def elsewhere(group: Group) -> list[str]:
    """About ranks of hosts that have no board here."""
    count = group.world_size - len(group.ranks)
    return [f"  and {count} rank{'s' * (count > 1)} on other hosts"] if count else []


def absent(group: Group, rank: int) -> str:
    """About a rank without a board."""
    pid, end = group.pid(rank), group.end_of(rank)
    found = board.read_process(pid) if pid else None
    if group.making:
        return "has not come"
    if end is not None:
        return str(end)
    if pid is None:
        return "not visible from here"
    if found is None or found[1] in "ZX":
        return "DEAD, or it has left the group"
    state = STATES.get(found[1], found[1])
    if unseen.is_unseen(pid):
        return f"cannot be seen: it has no board; process: {state}"
    if any(member.nonce == group.nonce for member in board.look([pid]).members):
        return f"was not looked at; process: {state}"
    return f"has left the group, or its board is off; process: {state}"


def short_call(call: Call) -> str:
    """ "#53 all_reduce f64[4096]"."""
    if call.operation == "barrier":
        return f"#{call.number} barrier"
    return f"#{call.number} {call.operation} {short_type(call.dtype)}[{call.count}]"


def short_type(dtype: str) -> str:
    """ "f32" of "float32"."""
    for long, short in _SHORT_TYPES.items():
        if dtype.startswith(long) and dtype[len(long) :].isdigit():
            return short + dtype[len(long) :]
    return "bf16" if dtype == "bfloat16" else dtype


def pending(group: Group, member: Member) -> str:
    """About the messages of a rank that has some pending."""
    messages = member.pending
    assert messages is not None
    counts = [
        f"{count} {name}{'s' if count > 1 else ''}"
        for count, name in ((messages.sends, "send"), (messages.receives, "receive"))
        if count
    ]
    direction = "to" if messages.operation == "send" else "from"
    peer = "any rank" if messages.peer is None else group.name_rank(messages.peer)
    age = duration(group.seconds_since(messages.since_ns))
    return (
        f"{' and '.join(counts)} pending (oldest {age}: {messages.bytes} bytes {direction} {peer}, "
        f"tag {messages.tag})"
    )


def busiest(group: Group) -> str:
    """Its most frequent operations: "all_reduce 1.1 M, barrier 3"."""
    counts: dict[str, int] = {}
    for member in group.members.values():
        for operation, each in member.sums.items():
            counts[operation] = max(counts.get(operation, 0), each.operations)
    most = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{operation} {amount(count)}" for operation, count in most)


def commands(group: Group) -> str:
    return ", ".join(sorted({member.process.command for member in group.members.values()}))
