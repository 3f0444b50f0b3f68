#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Prose is plain English: no word of the list below, no long sentence, no paragraph in a table.

Prose is the comments and strings of C, C++, Promela and Python, and the whole text of other files. Documents
(*.md) are also checked for sentences above 40 words and table cells above 200 characters; code in
backquotes is not prose there.
"""

import io
import re
import tokenize
from typing import NamedTuple

from common import C_FAMILY, Finding, find_files, line_of, main, matches, read
from csource import LEXEME, blank

WORDS_IN_A_SENTENCE = 40
CHARACTERS_IN_A_CELL = 200


class Word(NamedTuple):
    pattern: (
        str  # a regular expression; a space stands for any gap, also across the lines of a comment
    )
    instead: str
    fine: str = r"(?!)"  # matches where the word is right, from eight characters before it
    allowed: tuple = ()  # files in which it is a name

    def rarest(self):
        """What a text that has it contains: its longest word."""
        return max(re.findall(r"[a-z]+", self.pattern), key=len)


# A place, not a time: the only sense in which these two are right.
PLACE = r"\b(?:left |lags? |falls? |far )behind\b|behind (?:a|the) (?:pointer|reference|socket|switch)\b"

WORDS = (
    Word(r"behind", "say after, or because of", PLACE),
    Word(r"in front of", "say before"),
    Word(
        r"beside", "say compared with, next to, or as well as", r"beside (?:it|each other) on the"
    ),
    Word(
        r"preset(?:s)?",
        "say default",
        r"--preset",
        ("python/shmcoll/bench/*.py", "tests/python/test_bench*.py", "docs/*bench*"),
    ),
    Word(r"but for", "say except"),
    Word(r"mend(?:s|ed|ing)?", "say fix, repair or correct"),
    Word(r"whoever", "name the thing: the caller, a rank that ..."),
    Word(r"likewise", "say what holds, again"),
    Word(r"times as (?:fast|slow|quick\w*|cheap)", "say faster by 1.3x, or slower by 1.3x"),
    Word(r"as above", "say what holds, again"),
)

# Not read: words quoted as examples, and the records of old measurements.
NOT_READ = ("tests/lint/words.py", "tests/lint/test_lint_words.py", "benchmarks/results/*")

HASH = ("Makefile", ".sh", ".cmake", "CMakeLists.txt", ".toml", ".txt", ".in", ".map", "/run")
FENCE = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1|`+[^`\n]*`+", re.M | re.S)
LINK = re.compile(r"\]\([^)\n]*\)")
GAP = r"[\s*/#\"'|>]{1,200}"


def without_code(text):
    """A document whose code became a word X of the same length, and whose links lost their targets."""
    text = FENCE.sub(lambda m: "X" + blank(m.group())[1:], text)
    return LINK.sub(lambda m: "]" + blank(m.group())[1:], text)


def python_prose(text):
    """The comments and strings of a Python file, at their places."""
    lines = [" " * len(line) for line in text.split("\n")]
    source = text.split("\n")
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            (first, begin), (last, end) = token.start, token.end
            for row in range(first, last + 1):
                a = begin if row == first else 0
                b = end if row == last else len(source[row - 1])
                lines[row - 1] = lines[row - 1][:a] + source[row - 1][a:b] + lines[row - 1][b:]
    return "\n".join(lines)


def c_prose(text):
    prose, end = [], 0
    for match in LEXEME.finditer(text):
        if match.lastgroup in ("comment", "string", "tag"):
            prose += [blank(text[end : match.start()]), match.group()]
            end = match.end()
    return "".join((*prose, blank(text[end:])))


def prose_of(path, text):
    """The text with all that is no prose blanked, or None for a file without prose."""
    if path.endswith(".md"):
        return without_code(text)
    if path.endswith((".py", ".pyi")):
        return python_prose(text)
    if path.endswith((*C_FAMILY, ".pml")):
        return c_prose(text)
    return text if path.endswith(HASH) else None


def check_words(path, prose, words):
    # In one case, and for what begins with a letter, re searches ten times faster.
    small = prose.lower()
    for word in words:
        if matches(path, word.allowed):
            continue
        for match in re.finditer(rf"{word.pattern.replace(' ', GAP)}(?![-\w(])", small):
            if re.match(r"[-\w/.]", small[max(match.start() - 1, 0) : match.start()]):
                continue
            around = prose[max(match.start() - 8, 0) : match.end() + 20]
            if not re.search(word.fine, around, re.I):
                said = " ".join(re.sub(r"[^\w ]", " ", prose[match.start() : match.end()]).split())
                line = line_of(prose, match.start())
                yield Finding(path, line, f'"{said}" is not plain; {word.instead}')


def blocks(text):
    """(line, text) of each paragraph and each item of a list of a document."""
    start, lines = 0, []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        ends = not line.strip() or re.match(r"\s*(?:[-*+]|\d+\.)\s|#|\||>?\s*$", line)
        if ends and lines:
            yield start, "\n".join(lines)
            lines = []
        if line.strip() and not line.startswith(("#", "|")):
            start = start if lines else number
            lines.append(line)


def check_document(path, prose, text):
    for start, block in blocks(prose):
        begin = 0
        for end in [m.end() for m in re.finditer(r"[.!?:][)\"*]*(?=\s|$)", block)] + [len(block)]:
            sentence = block[begin:end]
            count = len(re.findall(r"\S*\w\S*", sentence))
            if count > WORDS_IN_A_SENTENCE:
                at = start + line_of(block, begin + len(sentence) - len(sentence.lstrip())) - 1
                yield Finding(
                    path, at, f"a sentence of {count} words; {WORDS_IN_A_SENTENCE} at most"
                )
            begin = end
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("|"):
            continue
        for cell in re.split(r"(?<!\\)\|", LINK.sub("]", line).strip().strip("|")):
            if len(cell.strip()) > CHARACTERS_IN_A_CELL:
                what = f"a table cell of {len(cell.strip())} characters; {CHARACTERS_IN_A_CELL} at most"
                yield Finding(path, number, what)


def check_file(path, text):
    small = text.lower()
    words = [word for word in WORDS if word.rarest() in small]
    if not words and not path.endswith(".md"):
        return
    prose = prose_of(path, text)
    if prose is None:
        return
    yield from check_words(path, prose, words)
    if path.endswith(".md"):
        yield from check_document(path, prose, text)


def check(root):
    for path in find_files(root, "*"):
        if matches(path, NOT_READ):
            continue
        text = read(root, path)
        if text is not None:
            yield from check_file(path, text)


if __name__ == "__main__":
    main(check, __doc__)
