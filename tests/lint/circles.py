#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Files of a folder that call each other in a circle: the largest circle of each folder has a limit.

A file calls another one where it names one of its functions. An inline function belongs to its header;
header and source of one name count as one file of a circle. `--show` prints every circle and its calls.
"""

import posixpath
import sys
from collections import defaultdict

from cfunctions import functions
from common import Finding, arguments, c_files, report
from csource import Source, Unreadable, tokens

# The most files in one circle; 1: no circle. A number is only ever lowered.
LIMITS = {
    "src/cuda_ipc": 2,
    "src/hosts": 1,
    "src/shm/base": 1,
    "src/shm/os": 1,
    "src/shm/proto": 1,
    "src/shm/kernel": 2,
    "src/shm/exec": 1,
    "src/shm/coll": 1,
    "src/shm/p2p": 1,
    "src/shm/comm": 5,
}


def stem(path):
    return posixpath.splitext(path)[0]


def calls_of(root, folder):
    """{file: {other file: names of its functions}}."""
    sources, bodies, owners = {}, {}, {}
    for path in c_files(root, folder):
        if path.endswith("_tmpl.h"):  # included several times, each time as part of its includer
            continue
        source = sources[path] = Source.load(root, path)
        try:
            found = functions(source)
        except Unreadable:  # `limits` reports it
            found = []
        bodies[path] = [(f.first, f.last) for f in found]
        for function in found:
            if function.name.startswith("shc_"):  # others are static
                owners.setdefault(function.name, path)
    calls = {path: defaultdict(set) for path in sources}
    for path, source in sources.items():
        text = source.bare
        if path.endswith(".h"):  # a declaration is no call
            lines = text.split("\n")
            text = "\n".join("\n".join(lines[a - 1 : b]) for a, b in bodies[path])
        for token in tokens(text):
            owner = owners.get(token.text, path)
            if owner != path:
                calls[path][owner].add(token.text)
    return calls


def reached(calls, start):
    found, rest = set(), [start]
    while rest:
        for other in calls[rest.pop()]:
            if other not in found:
                found.add(other)
                rest.append(other)
    return found


def circles(calls):
    """Sets of files of which each reaches all others."""
    reach = {path: reached(calls, path) for path in calls}
    found = []
    for path in sorted(calls):
        circle = {other for other in reach[path] if path in reach[other]}
        if len({stem(other) for other in circle}) > 1 and circle not in found:
            found.append(circle)
    return found


def check(root, show=False):
    for folder, limit in LIMITS.items():
        calls = calls_of(root, folder)
        for circle in circles(calls):
            names = sorted({stem(path) for path in circle})
            if show:
                print(f"{folder}: {len(names)} files")
                for path in sorted(circle):
                    for other in sorted(circle & calls[path].keys()):
                        print(f"  {path} -> {other}: {' '.join(sorted(calls[path][other]))}")
            if len(names) > limit:
                short = ", ".join(posixpath.basename(name) for name in names)
                yield Finding(
                    names[0] + ".c",
                    1,
                    f"{len(names)} files call each other in a circle, and {folder} may have {limit}: "
                    f"{short}; move a function down, or hand it in as a pointer",
                )


def main():
    parser = arguments(__doc__)
    parser.add_argument("--show", action="store_true", help="print every circle and its calls")
    options = parser.parse_args()
    sys.exit(report(check(options.root, options.show)))


if __name__ == "__main__":
    main()
