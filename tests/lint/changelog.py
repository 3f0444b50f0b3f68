#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""CHANGELOG.md has the form of Keep a Changelog: versions from new to old, short entries of one line.

Figures are in docs/notebook/performance.md, which says how they were measured.
"""

import datetime
import re

from common import Finding, main, read, repo_files

PAGE = "CHANGELOG.md"
KINDS = ("Added", "Changed", "Faster", "Deprecated", "Removed", "Fixed", "Security")
LONGEST = 140  # characters, without the targets of links
VERSION = re.compile(r"## \[(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?\] - (\d{4}-\d\d-\d\d)")
FIGURE = re.compile(r"\b\d[\d.]* ?(?:[nu]?s|ms|[KMG]i?B(?:/s)?|x|%)(?!\w)")
LINK = re.compile(r"\]\([^)]*\)")


def number(match):
    """The version, as it compares: a release candidate comes before its release."""
    return (*map(int, match.groups()[:3]), int(match[4] or 10**9))


def check(root):
    if PAGE not in repo_files(root):
        return
    state = State()
    for number, line in enumerate(read(root, PAGE).split("\n"), 1):
        if message := state.line(line):
            yield Finding(PAGE, number, message)
    if not state.versions:
        yield Finding(PAGE, 1, "there is no ## [Unreleased]; add it")


class State:
    """What stands above a line."""

    def __init__(self):
        self.versions = []
        self.kind = None  # of the entries that follow; the number in KINDS

    def line(self, line):
        """What is wrong with it, or None."""
        if line.startswith("## "):
            return self.version(line)
        if line.startswith("### "):
            return self.section(line[4:])
        if line.startswith("- "):
            return self.entry(line)
        if line and not line.startswith("#") and self.versions:
            return "not an entry or a heading; write one line that begins with `- `"
        return None

    def version(self, line):
        self.kind = None
        first = not self.versions
        self.versions.append(line)
        if first:
            return None if line == "## [Unreleased]" else "not ## [Unreleased]; begin with that"
        match = VERSION.fullmatch(line)
        if not match:
            return "not ## [1.2.3] - 2030-12-31; write version and date so"
        try:
            datetime.date.fromisoformat(match[5])
        except ValueError:
            return f"{match[5]} is no date; correct it"
        newer = VERSION.fullmatch(self.versions[-2])
        if newer and number(match) >= number(newer):
            return "the version above is not newer; put the newest first"
        if newer and match[5] > newer[5]:
            return "the version above has an older date; put the newest first"
        return None

    def section(self, name):
        if name not in KINDS:
            return f"no section is called {name}; use {', '.join(KINDS)}"
        old, self.kind = self.kind, KINDS.index(name)
        if old is not None and old >= self.kind:
            return f"{name} comes after {KINDS[old]}; keep the order {', '.join(KINDS)}"
        return None

    def entry(self, line):
        if self.kind is None:
            return "an entry without a section; put it under ### Added or another one"
        length = len(LINK.sub("]", line))
        if length > LONGEST:
            return f"{length} characters; an entry has at most {LONGEST}"
        if not line.endswith("."):
            return "no full stop; end the entry with one"
        if found := FIGURE.search(line):
            return f'"{found[0]}" is a figure; put it into docs/notebook/performance.md'
        return None


if __name__ == "__main__":
    main(check, __doc__)
