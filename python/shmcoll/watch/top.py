# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll top`: what all ranks do, again and again, and which one comes last."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from shmcoll.watch import stacks, text, views
from shmcoll.watch.board import Watcher
from shmcoll.watch.parser import EXIT_USAGE
from shmcoll.watch.rates import Frame, Rates
from shmcoll.watch.table import Line, plain, wrapped
from shmcoll.watch.text import EXIT_NOTHING

EXIT_SEEN = 0
__all__ = ["EXIT_NOTHING", "EXIT_SEEN", "EXIT_USAGE", "main"]

_NO_RICH = (
    "shmcoll top: one table after the other, because rich is not installed; "
    'python -m pip install "shmcoll[tools]"'
)
_PLAIN_WIDTH = 120  # where there is no terminal


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = text.PidParser(
        prog="shmcoll top",
        description="Shows what all ranks of this machine do, and again every second. It asks no process.",
        epilog="exit codes: 0, or 3 if no group was found",
    )
    parser.add_argument("--once", action="store_true", help="print one table, and end")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object for each look, on a line"
    )
    parser.add_argument(
        "-d",
        dest="every",
        type=text.seconds,
        default=1.0,
        metavar="SECONDS",
        help="time from one look to the next (default 1)",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    text.exit_on_signals()
    with Watcher(options.pids or None) as watcher:
        rates = Rates(watcher)
        if options.once or options.json or not sys.stdout.isatty():
            return _print(rates, options)
        if importlib.util.find_spec("rich") is None:
            print(_NO_RICH, file=sys.stderr)
            return _print(rates, options)
        return _Live(rates, options).run()


# ---- one table after the other ----


def _print(rates: Rates, options: argparse.Namespace) -> int:
    """Until Ctrl-C. Rates need two looks."""
    frame = rates.look()
    if not frame.groups and options.once:
        return _print_nothing(frame, options)
    seen = False
    try:
        while True:
            time.sleep(options.every)
            frame = rates.look()
            seen = seen or bool(frame.groups)
            if not frame.groups and (options.once or options.pids):
                return EXIT_SEEN if seen and not options.once else _print_nothing(frame, options)
            print(json.dumps(views.as_json(frame)) if options.json else _text(frame, options))
            sys.stdout.flush()
            if options.once:
                return EXIT_SEEN
    except KeyboardInterrupt:
        return EXIT_SEEN if seen else EXIT_NOTHING


def _print_nothing(frame: Frame, options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(views.as_json(frame)))
    else:
        notes = [f"note: {problem}" for problem in frame.snapshot.problems]
        print("\n".join([*notes, *text.nothing(options.pids)]))
    return EXIT_NOTHING


def _text(frame: Frame, options: argparse.Namespace) -> str:
    width = shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns
    lines = [views.title(frame, "", options.every), *views.ranks(frame, width)]
    if not frame.groups:
        lines = [views.title(frame, "", options.every), *wrapped("no group yet", width)]
    lines += views.verdicts(frame, width)
    return "\n".join(plain(line) for line in lines) + "\n" * (not options.once)


# ---- live ----


class _Stopped(Exception):
    """Ctrl-Z."""


class _Live:
    def __init__(self, rates: Rates, options: argparse.Namespace) -> None:
        self._rates = rates
        self._options = options
        self._key = "r"
        self._seen = False

    def run(self) -> int:
        with contextlib.suppress(KeyboardInterrupt):
            while not self._show():
                pass
        return EXIT_SEEN if self._seen else EXIT_NOTHING

    def _show(self) -> bool:
        """Until the user leaves; False: begin again."""
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        before = signal.signal(signal.SIGTSTP, _stop)
        try:
            with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
                return self._loop(console, live)
        except _Stopped:
            os.kill(os.getpid(), signal.SIGSTOP)
            return False
        except _Stacks as asked:
            asked.run()
            return False
        finally:
            signal.signal(signal.SIGTSTP, before)

    def _loop(self, console: Any, live: Any) -> bool:
        frame = self._rates.look()
        due = time.monotonic() + min(0.3, self._options.every)  # rates need a second look
        while True:
            self._seen = self._seen or bool(frame.groups)
            live.update(_rich(self._screen(frame, *console.size)), refresh=True)
            key = _wait_for_key(due - time.monotonic())
            if key in ("q", "\x03", ""):
                return True
            if key:
                self._press(key, frame)
            if time.monotonic() >= due:
                frame = self._rates.look()
                due = time.monotonic() + self._options.every
                if self._options.pids and self._seen and not frame.groups:
                    return True

    def _press(self, key: str, frame: Frame) -> None:
        if key == "s":
            raise _Stacks(sorted({member.process.pid for member in frame.snapshot.members}))
        if key in views.VIEWS:
            self._key = "r" if key == self._key else key

    def _screen(self, frame: Frame, width: int, height: int) -> list[Line]:
        name, view = views.VIEWS[self._key]
        head = [views.title(frame, name, self._options.every)]
        tail = [*views.verdicts(frame, width), [(views.KEYS[:width], "dim")]]
        body = view(frame, width) if frame.groups else wrapped("no group yet", width)
        room = max(1, height - len(head) - len(tail))
        if len(body) > room:
            hidden = len(body) - room + 1
            body = body[: room - 1] + [[(f"... and {hidden} more lines", "dim")]]
        body += [[("", "")]] * (room - len(body))
        return (head + body + tail)[:height]


def _rich(lines: Sequence[Line]) -> Any:
    from rich.text import Text

    whole = Text(no_wrap=True, overflow="crop")
    for index, line in enumerate(lines):
        whole.append("\n" * (index > 0))
        for words, style in line:
            whole.append(words, style or None)
    return whole


def _stop(*_: object) -> None:
    raise _Stopped


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Single keys, without echo; the terminal is as it was before when this ends."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wait_for_key(seconds: float) -> str | None:
    """None: none came in time; "": there will be none."""
    seconds = max(0.0, seconds)
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return None
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    # os.read: what Python's own buffer holds, select() does not see.
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else None


# ---- stacks ----


class _Stacks(Exception):
    """The user asked for stacks, which need the whole terminal."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__()
        self.pids = pids

    def run(self) -> None:
        stacks.main([str(pid) for pid in self.pids])
        print("press Enter to go back", flush=True)
        sys.stdin.readline()
