#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The table under "### Offsets" in docs/internals/protocol/memory.md is what the compiler makes of proto/layout.h.

offsets.py --program PATH    the compiled offsets.c
"""

import subprocess
import sys

from common import OFFSETS, Finding, arguments, read, report, table_rows

HEADING = "### Offsets"


def compare(text, printed):
    """Findings of the page against the program's lines `offset|bytes|name`."""
    said = {}
    for line, cells in table_rows(text, HEADING):
        said[cells[2].strip("`")] = (line, cells[0], cells[1])
    for row in printed.strip().split("\n"):
        offset, count, name = row.split("|")
        if name not in said:
            yield Finding(OFFSETS, 1, f"{name} has no row under {HEADING}; add it")
            continue
        line, said_offset, said_count = said.pop(name)
        if (said_offset, said_count) != (offset, count):
            right = f"{offset} and {count}"
            yield Finding(OFFSETS, line, f"{name}: offset and bytes are {right}; correct the row")
    for name, (line, _, _) in said.items():
        yield Finding(OFFSETS, line, f"{name} is not in tests/lint/offsets.c; add or delete it")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--program", required=True, help="the compiled offsets.c")
    options = parser.parse_args()
    printed = subprocess.run([options.program], check=True, capture_output=True, text=True).stdout
    return report(compare(read(options.root, OFFSETS), printed))


if __name__ == "__main__":
    sys.exit(main())
