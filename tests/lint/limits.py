#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Sizes: lines of functions and files, parameters, nesting. --stats prints the spread."""

import statistics
import sys

from cfunctions import functions
from common import Finding, arguments, c_files, report
from csource import Source, Unreadable

FUNCTION_LINES = 60  # from the signature to the closing brace
PARAMETERS = 7
NESTING = 4  # controlled statements inside one another, with or without braces
FILE_LINES = 600
HEADER_LINES = 500
PUBLIC_HEADERS = ("src/shm/shmcoll.h", "src/shm/shmcoll_memory.h", "src/cuda_ipc/cuda_ipc.h")


def check_file(source):
    limit = HEADER_LINES if source.path in PUBLIC_HEADERS else FILE_LINES
    lines = len(source.text.splitlines())
    if lines > limit:
        message = f"the file has {lines} lines, the limit is {limit}; split it by subject"
        yield Finding(source.path, limit + 1, message)


def check_function(path, function):
    lines = function.last - function.first + 1
    if lines > FUNCTION_LINES:
        what = f"has {lines} lines, the limit is {FUNCTION_LINES}; split it"
        yield Finding(path, function.first, f"{function.name}() {what}")
    if function.parameters > PARAMETERS:
        what = f"takes {function.parameters} parameters, the limit is {PARAMETERS}; pass a struct"
        yield Finding(path, function.first, f"{function.name}() {what}")
    if function.depth > NESTING:
        what = f"nests {function.depth} deep, the limit is {NESTING}; return early or split it"
        yield Finding(path, function.deepest, f"{function.name}() {what}")


def survey(root):
    """The findings, and the lengths of all functions."""
    findings, lengths = [], []
    for path in c_files(root, "src"):
        source = Source.load(root, path)
        findings += check_file(source)
        try:
            found = functions(source)
        except Unreadable as error:
            what = "this bracket has no partner; keep brackets whole within each branch of an #if"
            findings.append(Finding(path, source.line(error.args[0]), what))
            continue
        for function in found:
            findings += check_function(path, function)
            lengths.append(function.last - function.first + 1)
    return findings, sorted(lengths)


def check(root):
    return survey(root)[0]


def main():
    parser = arguments(__doc__)
    parser.add_argument("--stats", action="store_true", help="print the spread of lengths")
    options = parser.parse_args()
    findings, lengths = survey(options.root)
    if options.stats and lengths:
        p90 = lengths[int(0.9 * (len(lengths) - 1))]
        median = statistics.median(lengths)
        print(f"{len(lengths)} functions: median {median:g}, p90 {p90}, longest {lengths[-1]}")
    sys.exit(report(findings))


if __name__ == "__main__":
    main()
