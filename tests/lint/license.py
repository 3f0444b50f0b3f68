#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Every source has the license in a line of its own among its first three, as REUSE reads it.

Other files have it from REUSE.toml. `make release` runs `reuse lint`, which reads both.
"""

import re

from common import C_FAMILY, Finding, main, read, repo_files

SOURCES = (*C_FAMILY, ".py", ".sh", ".cmake", "CMakeLists.txt", "Makefile", ".pml")
TAG = (
    "SPDX" + "-License-Identifier: BSD-3-Clause"
)  # in one piece, reuse would read it as this file's
LINE = re.compile(rf"^(?:#|//|/\*) {TAG}(?: \*/)?$", re.M)


def check(root):
    for path in repo_files(root):
        if not path.endswith(SOURCES):
            continue
        head = "\n".join((read(root, path) or "").split("\n")[:3])
        if head.strip() and not LINE.search(head):
            what = f"no line `{TAG}` that ends there; begin with one"
            yield Finding(path, 1, what)


if __name__ == "__main__":
    main(check, __doc__)
