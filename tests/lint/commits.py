#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Commit messages: `area: imperative subject`, an empty line, and a body that says why.

Looks at the commits after --base, or at all that HEAD reaches. Merges are left out.
"""

import re
import sys

from common import Finding, arguments, git, report

SUBJECT_COLUMNS = 72
SUBJECT = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*: (\w\S*)")
NOT_IMPERATIVE = re.compile(
    r"\w+ing|\w+ed|(?:add|allow|change|fix|give|let|make|move|remove|rename|replace|use|update)e?s"
)
IMPERATIVE_ALL_THE_SAME = {"bring", "embed", "exceed", "feed", "need", "proceed", "seed", "shed"}
TRAILER = re.compile(r"[A-Z][\w-]+: ")

# Commits that can no longer be corrected, by full hash, and why.
ACCEPTED = {}

# A word that no message may hold, as a regular expression, and why.
FORBIDDEN_WORDS = {}


def is_imperative(verb):
    return verb in IMPERATIVE_ALL_THE_SAME or not NOT_IMPERATIVE.fullmatch(verb)


def check_message(name, lines):
    """lines: the message without its final newline; line 1 is the subject."""
    subject = lines[0]
    match = SUBJECT.match(subject)
    if not match:
        yield Finding(name, 1, f'"{subject}" has no area; write "area: imperative subject"')
    elif not is_imperative(match.group(1)):
        what = f'"{match.group(1)}" is not imperative; say what the commit does when it is applied'
        yield Finding(name, 1, what)
    if len(subject) > SUBJECT_COLUMNS:
        what = f"the subject has {len(subject)} columns, the limit is {SUBJECT_COLUMNS}; shorten it"
        yield Finding(name, 1, what)
    if subject.endswith("."):
        yield Finding(name, 1, "the subject ends in a full stop; drop it")
    if len(lines) > 1 and lines[1]:
        yield Finding(name, 2, "the second line is not empty; separate subject and body")
    if not any(line and not TRAILER.match(line) for line in lines[1:]):
        yield Finding(name, min(3, len(lines)), "there is no body; say why the change is made")
    for number, line in enumerate(lines, 1):
        for word, why in FORBIDDEN_WORDS.items():
            if re.search(word, line):
                yield Finding(name, number, f'"{word}": {why}; reword it')


def check(root, base=None):
    commits = git(
        root, "log", "--no-merges", "-z", "--format=%H%n%B", f"{base}..HEAD" if base else "HEAD"
    )
    for entry in filter(None, (commits or "").split("\0")):
        name, _, message = entry.partition("\n")
        if name not in ACCEPTED:
            yield from check_message(name[:12], message.rstrip("\n").split("\n"))


def main():
    parser = arguments(__doc__)
    parser.add_argument("--base", help="look at the commits that this revision does not reach")
    options = parser.parse_args()
    if git(options.root, "rev-parse", "HEAD") is None:
        print("commits: skipped, this is not a git work tree")
        sys.exit(0)
    sys.exit(report(check(options.root, options.base)))


if __name__ == "__main__":
    main()
