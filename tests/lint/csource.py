# SPDX-License-Identifier: BSD-3-Clause
"""Reads C, C++ and CUDA well enough for the lints: comments, strings, statements.

No preprocessor runs: both branches of an #if are seen, so braces must balance within each.
Functions are in cfunctions.py.
"""

import re
from typing import NamedTuple

from common import line_of, read

LEXEME = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
      | (?P<string>R"(?P<tag>[^(\s"]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
      | \b\d(?:'?[\w.])*   # numbers are eaten whole for the sake of 1'000""",
    re.X | re.S,
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d(?:'?[\w.])*|::|->|\.\.\.|[^\s\w]")
OPEN, CLOSE = "([{", ")]}"


class Unreadable(Exception):
    """The braces of a file do not balance."""


class Comment(NamedTuple):
    first: int  # line
    last: int
    text: str
    alone: bool  # no code on its lines


class Token(NamedTuple):
    text: str
    at: int  # offset


def blank(text):
    return re.sub(r"[^\n]", " ", text)


class Source:
    """One file in four views of equal length and equal lines."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.strings = self._without("comment")  # comments blanked
        self.code = self._without("comment", "string")
        self.bare = DIRECTIVE.sub(lambda m: blank(m.group()), self.code)  # and directives

    @classmethod
    def load(cls, root, path):
        return cls(path, read(root, path) or "")

    def _without(self, *kinds):
        return LEXEME.sub(
            lambda m: blank(m.group()) if m.lastgroup in kinds else m.group(), self.text
        )

    def line(self, offset):
        return line_of(self.text, offset)

    def comments(self):
        code = self.code.split("\n")
        for match in LEXEME.finditer(self.text):
            if match.lastgroup == "comment":
                first, last = self.line(match.start()), self.line(match.end())
                alone = not "".join(code[first - 1 : last]).strip()
                yield Comment(first, last, match.group(), alone)

    def directive_at(self, offset):
        """The offset of the preprocessor directive that holds `offset`, or None."""
        for match in DIRECTIVE.finditer(self.code):
            if match.start() <= offset < match.end():
                return match.start()
        return None


def tokens(text):
    return [Token(match.group(), match.start()) for match in TOKEN.finditer(text)]


def partners(toks):
    """The index of every closing bracket by that of its opening one."""
    pairs, stack = {}, []
    for index, token in enumerate(toks):
        if token.text in OPEN:
            stack.append(index)
        elif token.text in CLOSE:
            if not stack or OPEN.index(toks[stack[-1]].text) != CLOSE.index(token.text):
                raise Unreadable(token.at)
            pairs[stack.pop()] = index
    if stack:
        raise Unreadable(toks[stack[-1]].at)
    return pairs


def is_initializer(toks, index):
    """Does this `{` hold values, as far as the token before it tells?"""
    return index > 0 and toks[index - 1].text in ("=", ",", "(", "[", "return")


def statement_starts(source):
    """For every token offset of source.bare: the offset where its statement begins."""
    starts, stack = {}, []
    toks = tokens(source.bare)
    start, depth = None, 0
    for index, token in enumerate(toks):
        if token.text == "}":
            start, depth, values = stack.pop() if stack else (None, 0, False)
            if depth == 0 and not values:
                start = None
            continue
        if start is None:
            start = token.at
        starts[token.at] = start
        if token.text == "{":
            values = is_initializer(toks, index)
            stack.append((start, depth, values))
            start, depth = (start, depth + 1) if values else (None, 0)
        elif token.text in "([":
            depth += 1
        elif token.text in ")]":
            depth -= 1
        elif token.text == ";" and depth == 0:
            start = None
    return starts
