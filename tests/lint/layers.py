#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Who may include whom: the tree is the layering (docs/internals/architecture.md).

Within src/shm a file includes its own folder or a lower layer; two folders of one layer never meet.
"""

import posixpath
import re

from common import Finding, c_files, main, matches
from csource import Source

LAYERS = {"base": 0, "os": 1, "proto": 2, "kernel": 2, "exec": 3, "coll": 4, "p2p": 5, "comm": 6}
PUBLIC = "shm/shmcoll.h"
MEMORY = "shm/shmcoll_memory.h"

# The parts around the core, and which of our headers each may include.
PARTS = {
    "backend": (
        "backend/*",
        PUBLIC,
        MEMORY,
        "cuda_ipc/cuda_ipc.h",
        "hosts/hosts.h",
        "shm/base/utf8.h",
    ),
    "cuda_ipc": ("cuda_ipc/*", PUBLIC)
    + tuple(
        f"shm/base/{name}.h" for name in ("attrs", "atomic", "once", "num", "clock", "lateness")
    ),
    "hosts": ("hosts/*", PUBLIC, "shm/p2p/remote.h", "shm/comm/island.h")
    + tuple(
        f"shm/base/{name}.h"
        for name in (
            "agreed_call",
            "attrs",
            "num",
            "once",
            "clock",
            "lateness",
            "positions",
            "tensors",
        )
    ),
}

# The GPU's kernels work out what the core's do: with the same functions, which have no state.
ARITHMETIC = tuple(f"shm/kernel/{name}.h" for name in ("half", "ops", "ops_int_tmpl"))
FOLDERS = {"cuda_ipc/kernel": PARTS["cuda_ipc"] + ARITHMETIC}

# The one include whose name is a macro: a model checker puts its own operations there.
MACRO_INCLUDES = ("src/shm/base/atomic.h",)

TORCH = re.compile(r"torch/|c10/|c10d/|ATen/|pybind11/|Python\.h")
CUDA = re.compile(r"cuda|nv\w+\.h|cooperative_groups")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:(["<])([^">\n]*)[">]|(\w+))', re.M)


def part_of(path):
    """("shm", "ring's folder") of shm/proto/ring.h; the folder is "" for a file right in it."""
    part, *folders = path.split("/")[:-1]
    return part, folders[0] if folders else ""


def ours_is_wrong(includer, target):
    """Why a file of ours may not include another one, or None."""
    part, folder = part_of(includer)
    if part in PARTS:
        allowed = FOLDERS.get(posixpath.dirname(includer), PARTS[part])
        may = f"{part} may include only {', '.join(allowed)}"
        return None if matches(target, allowed) else may
    if part != "shm" or (folder and folder not in LAYERS):
        return (
            f"src/{posixpath.dirname(includer)} has no layer; give it one in the table of layers.py"
        )
    if not target.startswith("shm/"):
        return f"src/shm never includes {target.split('/')[0]}; let the caller hand it in"
    if target in (PUBLIC, MEMORY):
        return None
    if not folder:
        return "the public header includes nothing of ours; move what it needs into it"
    other = part_of(target)[1]
    if other == folder or LAYERS.get(other, 99) < LAYERS[folder]:
        return None
    if LAYERS.get(other) == LAYERS[folder]:
        return f"{folder} and {other} are siblings and never meet; join them in a higher layer"
    return f"{folder} (layer {LAYERS[folder]}) may not see {other}; move one of them"


def system_is_wrong(includer, target):
    part = part_of(includer)[0]
    if part != "backend" and TORCH.match(target):
        return f"<{target}> belongs to src/backend alone; pass plain values instead"
    if part == "shm" and CUDA.match(target):
        return f"src/shm includes no CUDA header (<{target}>); put it into src/cuda_ipc"
    if part == "shm" and not target.endswith(".h"):
        return f"src/shm is C and includes no C++ header (<{target}>); use its C counterpart"
    return None


def include_is_wrong(includer, quote, target, macro):
    if macro:
        allowed = "src/" + includer in MACRO_INCLUDES
        return None if allowed else f"#include {macro} hides what is included; name the file"
    if target.split("/")[0] not in ("shm", *PARTS):
        if quote == "<":
            return system_is_wrong(includer, target)
        return f'"{target}" is not written from src/; write "shm/...", or <> for a system header'
    if quote == "<":
        return f'<{target}> is ours; write "{target}"'
    return ours_is_wrong(includer, target)


def check_names(paths):
    """A base name belongs to one folder, so that <name>_test.cc has one owner."""
    owners = {}
    for path in paths:
        folder, name = posixpath.split(path)
        stem, suffix = posixpath.splitext(name)
        if suffix in (".c", ".h") and owners.setdefault(stem, folder) != folder:
            yield Finding(path, 1, f"{owners[stem]} has a {stem} already; rename one of them")


def check(root):
    paths = c_files(root, "src")
    yield from check_names(paths)
    for path in paths:
        source = Source.load(root, path)
        for match in INCLUDE.finditer(source.strings):
            wrong = include_is_wrong(path.removeprefix("src/"), *match.groups())
            if wrong:
                yield Finding(path, source.line(match.start()), wrong)


if __name__ == "__main__":
    main(check, __doc__)
