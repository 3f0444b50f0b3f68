#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""python/shmcoll/watch/layout.py has the structures of proto/board.h as the compiler sees them.

board_layout.py --program PATH    the compiled board_layout.c
"""

import subprocess
import sys

from common import Finding, arguments, report

LAYOUT = "python/shmcoll/watch/layout.py"
NOT_FIELDS = ("reserved", "fill_")


def fields(structure):
    """(name, offset, bytes) of each field that has a meaning."""
    for name, *_ in structure._fields_:
        field = getattr(structure, name)
        if not name.startswith(NOT_FIELDS):
            yield name, field.offset, field.size


def compare(structures, printed):
    """Findings of the Python structures against the program's lines."""
    said = {}
    for line in printed.strip().split("\n"):
        structure, name, offset, count = line.split()
        said[structure, name] = (int(offset), int(count))
    for name, structure in structures.items():
        for field, offset, count in fields(structure):
            right = said.pop((name, field), None)
            if right != (offset, count):
                text = (
                    f"{name}.{field} is at {offset} with {count} bytes, in C: {right}; correct it"
                )
                yield Finding(LAYOUT, 1, text)
    for name, field in said:
        yield Finding(LAYOUT, 1, f"{name} has no field {field}; add it")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--program", required=True, help="the compiled board_layout.c")
    options = parser.parse_args()
    sys.path.append(str(options.root / "python"))
    from shmcoll.watch import layout

    kinds = (layout.Header, layout.Record, layout.Sum, layout.Messages)
    kinds += (layout.Block, layout.Device, layout.End, layout.Over, layout.Group)
    printed = subprocess.run([options.program], check=True, capture_output=True, text=True).stdout
    return report(compare({kind.__name__: kind for kind in kinds}, printed))


if __name__ == "__main__":
    sys.exit(main())
