# SPDX-License-Identifier: BSD-3-Clause
"""What every lint needs: the repository's files, a finding, the command line.

A lint is a module with a function check(root) that yields findings. Reading C is in csource.py.
"""

import argparse
import fnmatch
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

C_FAMILY = (".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh")
PROTOCOL = "docs/internals/protocol"  # a folder of pages with rules
EDGES = f"{PROTOCOL}/edges.md"
NOT_OURS = ("build", "dist", "out", "__pycache__")  # folders that .gitignore names
CACHE = "CMakeCache.txt"  # at the top of a build, whatever its name


class Finding(NamedTuple):
    path: str  # relative to the root
    line: int
    message: str  # "what is wrong; what to do"

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}"


def git(root, *arguments):
    """The output of a git command in `root`, or None when root is not a work tree's top."""
    if not (Path(root) / ".git").exists():
        return None
    # A hook runs with variables that point git at the repository of the hook.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, encoding="utf-8", env=env
    ).stdout


def repo_files(root):
    """Every file git tracks or would add, or without git all but hidden folders; no builds."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        names = set(filter(None, listed.split("\0")))
    else:
        names = set()
        for folder, subfolders, files in os.walk(root):
            subfolders[:] = [n for n in subfolders if n[0] != "." and n not in NOT_OURS]
            names.update(Path(folder, name).relative_to(root).as_posix() for name in files)
    builds = tuple(name[: -len(CACHE)] for name in names if name.endswith("/" + CACHE))
    ours = (name for name in names if not name.startswith(builds))
    return sorted(name for name in ours if (Path(root) / name).is_file())


def matches(path, patterns):
    """Is the path under one of the patterns? `*` crosses folders."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def find_files(root, *patterns):
    return [path for path in repo_files(root) if matches(path, patterns)]


def c_files(root, *folders):
    return [p for p in find_files(root, *(f"{f}/*" for f in folders)) if p.endswith(C_FAMILY)]


def read(root, path):
    """The text of a file, or None when it is not text."""
    data = (Path(root) / path).read_bytes()
    if b"\0" in data:
        return None
    return data.decode("utf-8", errors="replace")


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def arguments(description):
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--root", default=Path(__file__).parents[2], help="the repository")
    return parser


def report(findings):
    """Prints the findings and returns the exit status."""
    findings = sorted(set(findings))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def main(check, description):
    """The whole command line of a lint that takes --root alone."""
    sys.exit(report(check(arguments(description).parse_args().root)))
