#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Documents agree with the tree: links resolve, variables are documented, cited rules exist, and messages
that the operator's page explains are those of the sources.

--strict: docs/reference/variables.md must exist; without it, it is only compared when it does.
"""

import posixpath
import re
import sys
from urllib.parse import unquote

from common import PROTOCOL, Finding, arguments, find_files, line_of, read, repo_files, report

CONFIG = "src/shm/base/config.c"
VARIABLES = "docs/reference/variables.md"
HANGS = "docs/operate/hangs.md"
VARIABLE = re.compile(r"\bSHMCOLL_[A-Z0-9_]+\b")
MESSAGE = re.compile(r"^\| `([^`]*\u2026[^`]*|[^`]* [^`]* [^`]*)` \|", re.M)
ROW = re.compile(r"^\| `(SHMCOLL_[A-Z0-9_]+)` \|", re.M)
READERS = ("src/*", "python/*", "setup.py", "*CMakeLists.txt", "*.cmake")

GENERATED = ("docs/reference/c.md",)  # by docs/site/hooks.py, when the site is built
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.M | re.S)
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)>?[^)\n]*\)|^\[[^\]\n]+\]:[ \t]*<?([^>\s]+)", re.M)
RULE = re.compile(r"^- \*\*([A-Z0-9]+-\d+)\*\*", re.M)
LINT_TESTS = "tests/lint/test_lint_"  # full of planted faults
CITING = ("src/*", "tests/*", "python/*", "benchmarks/*", "*.md")
SECTION = re.compile(r"\bprotocol\.md\)?,?[\s*/]+sections? \d", re.I)
HEADING = re.compile(r"^#+[ \t]+(.+?)[ \t#]*$", re.M)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)


def anchors(text):
    """The names a page's headings get; a repeated one is numbered."""
    names = {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = names[name] = names.get(name, -1) + 1
        yield f"{name}-{count}" if count else name


def check_links(root):
    paths = repo_files(root)
    places = set(paths)
    for path in paths:
        while path:
            path = posixpath.dirname(path)
            places.add(path or ".")
    for page in find_files(root, "*.md"):
        text = read(root, page) or ""
        blanked = CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        for match in LINK.finditer(blanked):
            target = match.group(1) or match.group(2)
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            file, _, anchor = unquote(target).partition("#")
            folder = "" if file.startswith("/") else posixpath.dirname(page)
            file = posixpath.normpath(posixpath.join(folder, file.lstrip("/"))) if file else page
            line = line_of(text, match.start())
            if file in GENERATED:
                continue
            if file not in places:
                yield Finding(page, line, f"{target} leads nowhere; correct the link")
            elif anchor and file.endswith(".md") and anchor not in anchors(read(root, file)):
                yield Finding(page, line, f"{file} has no heading #{anchor}; correct the link")


def check_variables(root):
    """The table of base/config.c and the variables in docs/reference/variables.md."""
    paths = repo_files(root)
    if VARIABLES not in paths:
        return
    page = read(root, VARIABLES)
    documented = {match.group(): match.start() for match in VARIABLE.finditer(page)}
    config = read(root, CONFIG) if CONFIG in paths else ""
    for match in re.finditer(r'\{\s*"(SHMCOLL_\w+)"', config):
        if match.group(1) not in documented:
            line = line_of(config, match.start(1))
            yield Finding(
                CONFIG, line, f"{match.group(1)} is not in {VARIABLES}; describe it there"
            )
    names = re.findall(r'"(SHMCOLL_\w+)"', config)
    for match in ROW.finditer(page):
        if CONFIG in paths and match.group(1) not in names:
            what = f"{match.group(1)} is not known to {CONFIG}, which tells misspelt ones; add it there"
            yield Finding(VARIABLES, line_of(page, match.start(1)), what)
    known = set()
    for path in find_files(root, *READERS):
        known.update(VARIABLE.findall(read(root, path) or ""))
    for name in documented.keys() - known:
        what = f"nothing reads {name}; remove it, or correct its name"
        yield Finding(VARIABLES, line_of(page, documented[name]), what)


def said_by(text):
    """What a source can say: its string literals, neighbours joined."""
    for run in re.findall(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+', text):
        yield "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', run)).replace('\\"', '"')


def check_messages(root):
    """Each message in a table of the page, between its dots, stands so in a source."""
    page = read(root, HANGS) if HANGS in repo_files(root) else ""
    files = find_files(root, "src/*", "python/*.py") if page else ()
    sources = "\n".join(read(root, file) or "" for file in files)
    named = dict(re.findall(r'^#define (\w+)[ ]+("[^"\n]*")$', sources, re.M))
    sources = re.sub(r"\b[A-Z_]{4,}\b", lambda m: named.get(m[0], m[0]), sources)
    said = "\n".join(said_by(sources))
    for match in MESSAGE.finditer(page):
        for part in re.split(r"\s*\u2026\s*", match.group(1)):
            if len(part) > 3 and part not in said:
                what = f'no source says "{part}"; write the message as it is now'
                yield Finding(HANGS, line_of(page, match.start()), what)


def check_rules(root):
    """Every rule of the protocol has a name of its own, and a cited rule exists."""
    known = set()
    for page in find_files(root, f"{PROTOCOL}/*.md"):
        text = read(root, page)
        for match in RULE.finditer(text):
            name = match.group(1)
            if name in known:
                line = line_of(text, match.start())
                yield Finding(page, line, f"{name} is a rule already; take the next number")
            known.add(name)
    if not known:
        return
    prefixes = "|".join(sorted({name.split("-")[0] for name in known}))
    cited = re.compile(rf"(?<![\w-])(?:{prefixes})-\d+\b")
    for path in find_files(root, *CITING):
        text = "" if path.startswith(LINT_TESTS) else read(root, path) or ""
        for match in cited.finditer(text):
            if match.group() not in known:
                line = line_of(text, match.start())
                yield Finding(path, line, f"{match.group()} is no rule of {PROTOCOL}; correct it")
        for match in SECTION.finditer(text):
            what = "the protocol has no numbered sections; cite a rule, such as CALL-1"
            yield Finding(path, line_of(text, match.start()), what)


# One function per agreement.
CHECKS = (check_links, check_variables, check_messages, check_rules)


def check(root, strict=False):
    for one in CHECKS:
        yield from one(root)
    if strict and VARIABLES not in repo_files(root):
        yield Finding(VARIABLES, 1, "missing; it lists every variable")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--strict", action="store_true", help=f"{VARIABLES} must exist")
    options = parser.parse_args()
    if not options.strict and VARIABLES not in repo_files(options.root):
        print(f"docs: variables not compared, {VARIABLES} does not exist yet")
    sys.exit(report(check(options.root, options.strict)))


if __name__ == "__main__":
    main()
