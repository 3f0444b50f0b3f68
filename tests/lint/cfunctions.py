# SPDX-License-Identifier: BSD-3-Clause
"""Finds the functions of a C, C++ or CUDA source, their parameters and their nesting."""

import re
from typing import NamedTuple

from csource import CLOSE, OPEN, is_initializer, partners, tokens

NOT_NAMES = {"alignas", "decltype", "noexcept", "requires", "sizeof"}
TYPE_WORDS = {"struct", "class", "union", "enum"}
ACCESS = {"public", "private", "protected"}


class Function(NamedTuple):
    name: str
    first: int  # line of its signature
    last: int  # line of its closing brace
    parameters: int
    depth: int  # deepest nesting of statements; the body itself is 0
    deepest: int  # line where that nesting begins


def functions(source):
    """All functions defined in the file. Raises Unreadable when its braces do not balance."""
    return list(_Reader(source).functions())


class _Reader:
    def __init__(self, source):
        self.source = source
        self.toks = tokens(source.bare)
        self.pairs = partners(self.toks)
        self.openers = {close: open_ for open_, close in self.pairs.items()}
        self.depth = self.deepest = 0

    def text(self, index):
        return self.toks[index].text if 0 <= index < len(self.toks) else ""

    def line(self, index):
        return self.source.line(self.toks[index].at)

    def functions(self):
        index = head = 0  # head: where the declaration that leads to `index` begins
        while index < len(self.toks):
            text = self.text(index)
            if text == "{":
                signature = self.signature(head, index)
                if signature:
                    yield self.function(head, index, *signature)
                    index = self.pairs[index]
                    head = index + 1
                elif self.holds_values(head, index):
                    index = self.pairs[index]  # the declaration goes on to its `;`
                else:
                    head = index + 1  # a namespace, a class, extern "C": look inside
            elif text in (";", "}") or (text == ":" and self.text(index - 1) in ACCESS):
                head = index + 1
            elif text in ("(", "["):
                index = self.pairs[index]
            index += 1

    def function(self, head, brace, name, parameters):
        self.depth, self.deepest = 0, self.line(brace)
        self.block(brace, 0)
        last = self.line(self.pairs[brace])
        return Function(name, self.line(head), last, parameters, self.depth, self.deepest)

    def holds_values(self, head, brace):
        """`= {`, or a member's braces in a constructor's list."""
        declaration = " ".join(self.text(i) for i in range(head, brace))
        in_list = re.search(r"\) (noexcept )?: .*\w$", declaration)
        return is_initializer(self.toks, brace) or in_list is not None

    def signature(self, head, brace):
        """(name, number of parameters) when these tokens begin a function, else None."""
        while self.text(head) in ("template", "static", "inline", "extern", "const", "typedef"):
            head = self.after_template(head) if self.text(head) == "template" else head + 1
        if self.text(head) in TYPE_WORDS and self.text(brace - 1) not in (")", "const", "override"):
            return None
        if self.holds_values(head, brace):
            return None
        groups, index = [], head
        while index < brace and not (self.text(index) == ":" and groups):
            before = self.text(index - 1)
            if self.text(index) == "=" and "operator" not in (before, self.text(index - 2)):
                return None
            if self.text(index) == "(":
                named = re.match(r"[A-Za-z]|_[^_]", before) and before not in NOT_NAMES
                if named or "operator" in (self.text(index - 2), self.text(index - 3)):
                    groups.append(index)
                index = self.pairs[index]
            index += 1
        if not groups:
            return None
        # A macro in capitals is an attribute, unless there is nothing else.
        group = next((g for g in groups if not self.text(g - 1).isupper()), groups[0])
        name = self.text(group - 1)
        if self.text(self.pairs[group] + 1) == "(":  # NAME(pasted)(parameters), operator()(...)
            group = self.pairs[group] + 1
        return name, self.count_parameters(group)

    def after_template(self, index):
        depth = 0
        while index < len(self.toks):
            index += 1
            depth += (self.text(index) == "<") - (self.text(index) == ">")
            if depth == 0:
                return index + 1
        return index

    def count_parameters(self, group):
        commas, angles, index = 0, 0, group + 1
        while index < self.pairs[group]:
            text = self.text(index)
            angles += (text == "<") - (text == ">")
            commas += text == "," and angles == 0
            index = self.pairs.get(index, index) + 1
        inside = [self.text(i) for i in range(group + 1, self.pairs[group])]
        if inside in ([], ["void"]):
            return 0
        return commas + (inside[-1] != "...")

    # Statements. Each takes the index of its first token and returns that of the next statement.

    def enter(self, depth, index):
        if depth > self.depth:
            self.depth, self.deepest = depth, self.line(index)
        return depth

    def block(self, index, depth):
        end = self.pairs[index]
        index += 1
        while index < end:
            index = self.statement(index, depth)
        return end + 1

    def statement(self, index, depth):
        text = self.text(index)
        if text == "{":
            return self.block(index, depth)
        if text in ("if", "for", "while", "switch", "catch"):
            return self.controlled(index, depth)
        if text in ("do", "try"):
            index = self.statement(index + 1, self.enter(depth + 1, index))
            return self.expression(index, depth) if text == "do" else index
        if text == "else":  # its `if` was in another branch of an #if
            return self.statement(index + 1, depth)
        if re.match(r"\w", text) and self.text(index + 1) == ":":  # a label
            return index + 2
        return self.expression(index, depth)

    def controlled(self, index, depth):
        inner = self.enter(depth + 1, index)
        is_if = self.text(index) == "if"
        index += 2 if self.text(index + 1) == "constexpr" else 1
        index = self.statement(self.pairs[index] + 1, inner)
        if is_if and self.text(index) == "else":
            chained = self.text(index + 1) == "if"  # else if: no deeper than the first
            return self.statement(index + 1, depth if chained else inner)
        return index

    def expression(self, start, depth):
        """Up to its `;`. The body of a lambda, or of a loop that is a macro, is a block."""
        level, index = 0, start
        while index < len(self.toks):
            text = self.text(index)
            if level == 0 and text in (";", "}"):  # `}`: a macro without its `;`
                return index + (text == ";")
            if text == "{" and self.is_lambda(index):
                index = self.block(index, self.enter(depth + 1, index))
                continue
            if text == "{" and self.pairs.get(start + 1) == index - 1:  # FOR_EACH(x) {
                return self.block(index, self.enter(depth + 1, index))
            level += (text in OPEN) - (text in CLOSE)
            index += 1
        return index

    def is_lambda(self, brace):
        """[captures](parameters) -> type {"""
        index = brace - 1
        while re.match(r"->|::|\w|[<>*&]", self.text(index)):  # mutable, the type
            index -= 1
        if self.text(index) == ")":
            index = self.openers[index] - 1
        before = self.text(self.openers.get(index, 0) - 1)  # a name: [] is an index
        return self.text(index) == "]" and not re.match(r"(?!return)\w|[)\]]", before)
