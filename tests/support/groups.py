# SPDX-License-Identifier: BSD-3-Clause
"""Prints the requirements of the named dependency groups of pyproject.toml: pip before 25.1 cannot
install them. Python 3.10 has no TOML reader, so the one block that matters is read by hand."""

import ast
import pathlib
import re
import sys

TEXT = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text()


def group(name: str) -> list[str]:
    """The list of `name = [...]` under [dependency-groups]."""
    block = TEXT.split("[dependency-groups]")[1]
    found = re.search(rf"^{name} = (\[.*?\])$", block, re.M | re.S)  # an extra has brackets, too
    if not found:
        raise SystemExit(f"pyproject.toml has no group {name!r}")
    return list(ast.literal_eval(found[1]))


if __name__ == "__main__":
    print(" ".join(f"{item}" for name in sys.argv[1:] for item in group(name)))
