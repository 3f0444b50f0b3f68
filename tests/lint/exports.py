#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Public header, symbol map and (with a library) its symbols name the same functions.

So it is for the core, and for its CUDA side, which is a library of its own.
"""

import re
import subprocess
import sys
from pathlib import Path

from common import Finding, arguments, line_of, read, report
from csource import Source

HEADER = "src/shm/shmcoll.h"
MAP = "src/shm/shmcoll.map"
MORE = ("src/shm/shmcoll_memory.h",)  # further public headers
# For src/hosts, which the glue contains.
PRIVATE = ("src/shm/p2p/remote.h", "src/shm/comm/island.h")
CUDA_HEADER = "src/cuda_ipc/cuda_ipc.h"
CUDA_MAP = "src/cuda_ipc/shmcoll_cuda.map"

MOST_TLS = 64


def declared(source):
    """The lines of the functions a header declares; inline ones are not exported."""
    lines = {}
    for match in re.finditer(r"\b(shc_\w+)\s*\((?!\*)([^;{}]*)([;{])", source.bare):
        if match.group(3) == ";":
            lines[match.group(1)] = source.line(match.start())
    return lines


def mapped(text):
    """The lines of the names under `global:`."""
    text = re.sub(
        r"/\*.*?\*/|#[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S
    )
    lines = {}
    for section in re.finditer(r"global:(.*?)(?=local:|\})", text, re.S):
        for name in re.finditer(r"[^\s;]+(?=\s*;)", section.group(1)):
            lines[name.group()] = line_of(text, section.start(1) + name.start())
    return lines


def check(root, library=None, cuda_library=None):
    yield from check_one(root, HEADER, MAP, library)
    if (Path(root) / CUDA_HEADER).exists():
        yield from check_one(root, CUDA_HEADER, CUDA_MAP, cuda_library)


def check_one(root, path, map_path, library):
    header = declared(Source.load(root, path))
    for more in (*MORE, *PRIVATE) if path == HEADER else ():
        if (Path(root) / more).exists():
            header |= declared(Source.load(root, more))
    text = read(root, map_path)
    exported = mapped(text)
    for name in header.keys() - exported.keys():
        yield Finding(path, header[name], f"{name}() is not exported; add it to {map_path}")
    for name in exported.keys() - header.keys():
        yield Finding(map_path, exported[name], f"{name} is not declared in {path}; remove it")
    if not re.search(r"local:\s*\*\s*;", text):
        yield Finding(map_path, 1, "other symbols are not hidden; add `local: *;`")
    if library:
        yield from check_library(library, header.keys())


def check_library(library, functions):
    command = ["nm", "-D", "--defined-only", library]
    listing = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    symbols = set()
    for line in listing.splitlines():
        *_, kind, name = line.split()
        if kind != "A":  # the name of the version itself
            symbols.add(name.split("@")[0])
    for name in symbols - functions:
        yield Finding(str(library), 1, f"exports {name}; hide it")
    for name in functions - symbols:
        yield Finding(str(library), 1, f"does not export {name}(); define it, and visibly")
    yield from check_tls(library)


def check_tls(library):
    """Checks that a library with static thread-local memory needs little of it: all libraries that are
    loaded late share a small reserve."""
    command = ["readelf", "--wide", "--program-headers", "--dynamic", library]
    listing = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    segment = re.search(r"^\s*TLS\s+(?:0x\w+\s+){4}(0x\w+)", listing, re.M)
    size = int(segment.group(1), 16) if segment else 0
    if "STATIC_TLS" in listing and size > MOST_TLS:
        yield Finding(str(library), 1, f"{size} bytes of static thread-local memory; point to them")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--library", help="the built libshmcoll.so")
    parser.add_argument("--cuda-library", help="the built libshmcoll_cuda.so")
    options = parser.parse_args()
    sys.exit(report(check(options.root, options.library, options.cuda_library)))


if __name__ == "__main__":
    main()
