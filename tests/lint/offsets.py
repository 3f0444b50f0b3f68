#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The table of offsets at the begin of proto/layout.h is what the compiler makes of that file.

offsets.py --program PATH    the compiled offsets.c
"""

import re
import subprocess
import sys

from common import Finding, arguments, read, report

LAYOUT = "src/shm/proto/layout.h"
# Two blanks and more are between cells: offset, bytes, name, and who writes it, which may be missing.
ROW = re.compile(r" \*   (\S+(?: \S+)*) {2,}([\w*]+(?: \S+)*) {2,}(\S+(?: \S+)*)(?: {2,}.*)?")
TITLES = "offset"


def rows(text):
    """(line, offset, bytes, name) of each row, in the file's first comment of several lines."""
    for number, line in enumerate(text.split("\n"), 1):
        match = ROW.fullmatch(line)
        if match and match.group(1) != TITLES:
            yield number, *match.groups()
        if line == " */":
            return


def compare(text, printed):
    """Findings of the table against the program's lines `offset|bytes|name`."""
    said = {name: (line, offset, count) for line, offset, count, name in rows(text)}
    for row in printed.strip().split("\n"):
        offset, count, name = row.split("|")
        if name not in said:
            yield Finding(LAYOUT, 1, f"{name} has no row in the table of offsets; add it")
            continue
        line, said_offset, said_count = said.pop(name)
        if (said_offset, said_count) != (offset, count):
            right = f"{offset} and {count}"
            yield Finding(LAYOUT, line, f"{name}: offset and bytes are {right}; correct the row")
    for name, (line, _, _) in said.items():
        yield Finding(LAYOUT, line, f"{name} is not in tests/lint/offsets.c; add or delete it")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--program", required=True, help="the compiled offsets.c")
    options = parser.parse_args()
    printed = subprocess.run([options.program], check=True, capture_output=True, text=True).stdout
    return report(compare(read(options.root, LAYOUT), printed))


if __name__ == "__main__":
    sys.exit(main())
