# SPDX-License-Identifier: BSD-3-Clause
"""What a shared library asks of the system, as readelf tells it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# manylinux_2_28's, in which torch's own wheels are.
NEWEST = {"GLIBC": "2.28", "GLIBCXX": "3.4.24", "CXXABI": "1.3.11", "GCC": "7.0.0"}
SYSTEM = re.compile(
    r"lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s)\.so\.\d+|ld-linux-[\w-]+\.so\.\d"
    r"|lib(torch|torch_cpu|torch_python|c10)\.so|libshmcoll\w*(-[\d.]+)?\.so(\.\d+)?"
)

# Older C libraries have these, too, but linked into each program.
STATIC = {"stat", "lstat", "fstat", "fstatat", "mknod", "mknodat"}


def _readelf(option: str, file: Path) -> str:
    command = ["readelf", "-W", option, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def foreign(file: Path) -> set[str]:
    """The libraries that it needs and that are not of the system, of torch or of ours."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", _readelf("-d", file)))
    assert needed, f"{file} needs no library at all?"
    return {name for name in needed if not SYSTEM.fullmatch(name)}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _versions(file: Path) -> set[tuple[str, str, str]]:
    """(UND or where it is, name, version) of the symbols that have a version of the C library."""
    return set(re.findall(r" (\w+) (\w+)@@?GLIBC_([\d.]+)", _readelf("--dyn-syms", file), re.M))


def missing(file: Path) -> set[str]:
    """The functions that it takes from this machine's C library, and that manylinux_2_28's does not have."""
    mapped = re.findall(r"/\S*/lib(?:c|m|pthread)[.-]\S+", Path("/proc/self/maps").read_text())
    offered = set().union(*(_versions(Path(path)) for path in set(mapped)))
    assert offered, mapped
    old = {name for _, name, version in offered if _numbers(version) <= _numbers(NEWEST["GLIBC"])}
    return {name for where, name, _ in _versions(file) if where == "UND"} - old - STATIC


def too_new(file: Path, *families: str) -> set[str]:
    """The versions of symbols that manylinux_2_28 does not have, of these families: GLIBC, GLIBCXX, ..."""
    found = set(re.findall(r"Name: (\w+?)_([\d.]+)\b", _readelf("-V", file)))
    assert any(family in families for family, _ in found), f"{file} has no versions: {found}"

    return {
        f"{family}_{version}"
        for family, version in found
        if family in families and _numbers(version) > _numbers(NEWEST[family])
    }
