# SPDX-License-Identifier: BSD-3-Clause
"""Command lines whose errors are one line, with the most similar known name."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Collection
from typing import NoReturn, TypeVar

EXIT_USAGE = 2
_FEW = 12  # names that an error may list

_T = TypeVar("_T")


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one line, without the usage."""

    commands: tuple[str, ...] = ()  # words that may stand first

    def error(self, message: str) -> NoReturn:
        text = self._with_hint(message.removeprefix("argument "))
        sys.stderr.write(f"{self.prog}: error: {text} (--help)\n")
        sys.exit(EXIT_USAGE)

    def _with_hint(self, message: str) -> str:
        unknown = re.fullmatch(r"unrecognized arguments: (\S+).*", message, re.DOTALL)
        if unknown is None:
            return message
        word = unknown[1].partition("=")[0]
        if not word.startswith("-"):
            return f"no command {word!r}{meant(word, self.commands)}"
        options = [name for action in self._actions for name in action.option_strings]
        return f"no option {word!r}{meant(word, options)}"


def meant(word: str, known: Collection[str]) -> str:
    """``; did you mean 'all_reduce'?``, or what there is if that is little, or nothing."""
    plain = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=0.65)
    if near:
        return f"; did you mean {plain[near[0]]}?"
    return f"; there is {', '.join(known)}" if 0 < len(known) <= _FEW else ""


def name_of(what: str, known: Collection[str]) -> Callable[[str], str]:
    """A type for argparse: one of these names."""

    def convert(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"no {what} {text!r}{meant(text, known)}")
        return text

    return convert


def checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """argparse shows the text of an ArgumentTypeError, but not that of a ValueError."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _plain(name: str) -> str:
    """allreduce is all_reduce, and so is AllReduce."""
    return name.lower().replace("_", "").replace("-", "")
