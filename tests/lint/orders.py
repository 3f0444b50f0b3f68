#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Every atomic access says why its order is right, and every ordering edge has two sides.

The comment stands alone on the lines above the statement (or inside it, above the access):
    relaxed: <why>
    release <edge> -> acquire in <function>(): <what is published>
    acquire <edge> <- release in <function>()
    acq_rel <edge>: <why>                        (exchange, cas, add, or, and)
The other side may be called acq_rel instead. Comments may be stacked, one per edge. The lists of
docs/internals/protocol/edges.md name all edges.
"""

import re
from typing import NamedTuple

from cfunctions import functions
from common import EDGES, Finding, c_files, main, read, repo_files
from csource import Comment, Source, Unreadable, statement_starts

HOME = "src/shm/base/atomic.h"
ACCESS = re.compile(r"\b(shc_a(?:32|64)_(\w+))\s*\(")
NAME = r"[a-z][a-z0-9_]*(?:/[a-z0-9_]+)+"
EDGE = rf"(?P<edge>{NAME})"
LISTED = re.compile(rf"`({NAME})`")
OUTSIDE = r"the kernel|the device|a tool outside"  # sides that are not our code
SIDE = rf"(?P<partner>\w+\(\)(?:(?:,| and) \w+\(\))*|{OUTSIDE})"
FORMS = {
    "relaxed": (r"relaxed: \S", "relaxed: <why>"),
    "release": (
        rf"release {EDGE} -> (?:acquire|acq_rel) in {SIDE}: \S",
        "release <edge> -> acquire in <function>(): <what is published>",
    ),
    "acquire": (
        rf"acquire {EDGE} <- (?:release|acq_rel) in {SIDE}",
        "acquire <edge> <- release in <function>()",
    ),
    "acq_rel": (rf"acq_rel {EDGE}: \S", "acq_rel <edge>: <why>"),
}
BEGINS_FORM = re.compile(r"relaxed:|(?:release|acquire|acq_rel) \w+/")
OPPOSITE = {"release": "acquire", "acquire": "release"}


class Side(NamedTuple):
    """One access's part in an edge."""

    edge: str
    order: str
    partner: str
    path: str
    line: int
    function: str  # that holds the access


def words(comment):
    """The comment's text on one line, without its marks."""
    lines = re.sub(r"^/\*|\*/$", "", comment.text).split("\n")
    return " ".join(" ".join(re.sub(r"^\s*(?://|\*)?\s*", "", line) for line in lines).split())


def standing_comments(source):
    """Comments alone on their lines, by last line; lines of // that follow one another are one."""
    by_last = {}
    for comment in filter(lambda c: c.alone, source.comments()):
        above = by_last.get(comment.first - 1)
        if above and above.text.startswith("//") and comment.text.startswith("//"):
            if not BEGINS_FORM.match(words(comment)):
                del by_last[above.last]
                text = above.text + "\n" + comment.text
                comment = Comment(above.first, comment.last, text, True)
        by_last[comment.last] = comment
    return by_last


def comments_above(by_last, first, last):
    """The comments above the lines first..last of a statement."""
    found = []
    for line in range(first, last + 1):
        comment = by_last.get(line - 1)
        while comment:
            found.append(comment)
            comment = by_last.get(comment.first - 1)
    return found


def order_of(operation):
    return next((order for order in FORMS if operation.endswith("_" + order)), None)


def check_accesses(source, sides):
    """Finds accesses without their comment and the reverse; collects the sides of edges."""
    by_last, starts = standing_comments(source), statement_starts(source)
    held, used = functions(source), set()
    for match in ACCESS.finditer(source.code):
        name, operation = match.groups()
        line, order = source.line(match.start()), order_of(operation)
        if operation == "address":
            continue
        if order is None:
            yield Finding(source.path, line, f"{name}() has no order in its name; add it")
            continue
        start = starts.get(match.start())
        if start is None:
            start = source.directive_at(match.start())
        pattern, form = FORMS[order]
        function = next((f.name for f in held if f.first <= line <= f.last), "")
        commented = False
        for comment in comments_above(by_last, source.line(start), line):
            said = re.match(pattern, words(comment))
            if said:
                commented = True
                used.add(comment)
                edge, partner = (said.groupdict().get(key, "") for key in ("edge", "partner"))
                if edge:
                    sides.append(Side(edge, order, partner, source.path, line, function))
        if not commented:
            yield Finding(source.path, line, f'{name}() lacks its comment; write "{form}" above it')
    for comment in by_last.values():
        if BEGINS_FORM.match(words(comment)) and comment not in used:
            what = "this fits no access below it; correct its form or its order, or delete it"
            yield Finding(source.path, comment.first, what)


def homes_of(sides):
    """{"release": {edge: the functions with such an access}, "acquire": the same}."""
    homes = {"release": {}, "acquire": {}}
    for side in sides:
        for order in homes:
            if side.order in (order, "acq_rel"):
                homes[order].setdefault(side.edge, set()).add(side.function)
    return homes


def check_sides(sides):
    """Both sides of an edge exist, and are where the comments say."""
    homes = homes_of(sides)
    for side in sides:
        other = OPPOSITE.get(side.order)
        if other is None or re.fullmatch(OUTSIDE, side.partner):
            continue
        there = homes[other].get(side.edge, set())
        if not there:
            what = f"edge {side.edge} has no {other} side; write it, or drop the edge"
            yield Finding(side.path, side.line, what)
            continue
        for name in re.findall(r"\w+(?=\(\))", side.partner):
            if name not in there:
                where = ", ".join(sorted(there))
                what = f"{name}() has no {other} of {side.edge}; it is in {where}, correct the name"
                yield Finding(side.path, side.line, what)


def check_list(root, sides):
    """The edges in the code and those in the lists of the page are the same."""
    listed = {}
    text = read(root, EDGES) if EDGES in repo_files(root) else ""
    for line, item in enumerate(text.split("\n"), 1):
        for edge in LISTED.findall(item) if item.startswith("- **") else ():
            if edge in listed:
                yield Finding(EDGES, line, f"edge {edge} stands here twice; remove one")
            listed[edge] = line
    for side in sides:
        if side.edge not in listed:
            yield Finding(side.path, side.line, f"edge {side.edge} is not in {EDGES}; add it")
    for edge in listed.keys() - {side.edge for side in sides}:
        yield Finding(EDGES, listed[edge], f"no code has the edge {edge}; remove it")


def check(root):
    sides = []
    for path in c_files(root, "src"):
        if path == HOME:
            continue
        source = Source.load(root, path)
        try:
            yield from check_accesses(source, sides)
        except Unreadable as error:
            line = source.line(error.args[0])
            yield Finding(path, line, "this bracket has no partner; see limits.py")
    yield from check_sides(sides)
    yield from check_list(root, sides)


if __name__ == "__main__":
    main(check, __doc__)
