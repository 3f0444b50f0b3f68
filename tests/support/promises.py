#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares what users can name with docs/reference/promised.txt: C API, Python API, tools, files.

Without an argument it prints the differences, and exits with 1 if there are any. --write writes the
list anew. A line that is there may then only go, or change, with a new major version.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "docs/reference/promised.txt"
LIBRARIES = ROOT / "python/shmcoll/lib"
HEADER = ROOT / "src/shm/shmcoll.h"
HEADERS = (HEADER, ROOT / "src/shm/shmcoll_memory.h")
sys.path.append(str(ROOT / "tests/lint"))

from csource import Source  # noqa: E402

MAJOR = "major version"
PRIVATE = "private symbol"
HEAD = """\
# Everything that a program, a script or a file of a user can name. stability.md says what is promised.
# Written by `python tests/support/promises.py --write`; tests/python/test_promises.py compares.
# A "private symbol" is promised to nobody: it is listed so that nothing is exported by accident.
"""

Line = tuple[str, str]  # what it is and its name; what must not change about it


def plain(text: str) -> str:
    return " ".join(text.split())


# ---- C ----


def c_api() -> Iterator[Line]:
    for header in HEADERS:
        yield from declared(Source(header.name, header.read_text()))


def declared(source: Source) -> Iterator[Line]:
    for name, value in re.findall(r"^#define (SHC_(?!VERSION)\w+)[ ]+(.+)$", source.code, re.M):
        yield f"C constant {name}", value.strip()
    for name, body in re.findall(r"^enum (\w+) \{(.*?)\n\};", source.bare, re.M | re.S):
        for number, value in enumerate(re.findall(r"^\s*(\w+)", body, re.M)):
            if not value.endswith("_COUNT"):  # grows with each value
                yield f"C value {value}", f"enum {name}, {number}"
    for name, body in re.findall(r"^struct (\w+) \{(.*?)\n\};", source.bare, re.M | re.S):
        yield f"C struct {name}", plain(body)
    for declaration in re.findall(r"^[a-z][^;{}]*?\bshc_\w+\([^;{}]*?\);", source.bare, re.M):
        (name,) = re.findall(r"(shc_\w+)\(", declaration)[:1]
        yield f"C function {name}", plain(declaration).rstrip(";")


def symbols(library: Path) -> Iterator[tuple[str, str]]:
    """The names that it exports with their versions, except those of C++: torch's templates are among
    them, and another torch has others."""
    command = ["nm", "-D", "--defined-only", "--with-symbol-versions", str(library)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    ):
        _, _, symbol = line.rpartition(" ")
        name, _, version = symbol.partition("@@")
        if name and not name.startswith("_") and " A " not in line:
            yield name, version


def libraries() -> Iterator[Line]:
    for name in ("libshmcoll", "libshmcoll_cuda", "libshmcoll_python"):
        (file,) = LIBRARIES.glob(f"{name}.so.*")
        yield f"library {name}", file.name
        for symbol, version in symbols(file):
            promised = name == "libshmcoll" and version != "SHMCOLL_PRIVATE"
            yield f"{'symbol' if promised else PRIVATE} {name} {symbol}", version
    for file in sorted(LIBRARIES.glob("libshmcoll_c10d-*.so")):
        for symbol, version in symbols(file):
            yield f"{PRIVATE} libshmcoll_c10d {symbol}", version


def variables() -> Iterator[Line]:
    text = (ROOT / "src/shm/base/config.c").read_text()
    for name, words, numbers in re.findall(r'\{"(SHMCOLL_\w+)", ("[^"]*"|\w+), ([^}]*)\}', text):
        limits = " to ".join(numbers.split(", ")[:2])
        values = words.strip('"') if "|" in words else f"{words}, {limits}"
        yield f"environment {name}", "any text" if words == "TEXT" else values
    elsewhere = text.partition("elsewhere[] = {")[2].partition("}")[0]
    for name in re.findall(r'"(SHMCOLL_\w+)"', elsewhere):
        yield f"environment {name}", "read by Python or the CUDA side"


# ---- Python ----


def signature(member: Any) -> str:
    parameters = []
    for one in member.parameters:
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(one.kind.value, "")
        annotation = f": {one.annotation}" if one.annotation is not None else ""
        default = f" = {one.default}" if one.default is not None and not star else ""
        parameters.append(f"{star}{one.name}{annotation}{default}")
    return f"({', '.join(parameters)}) -> {member.returns}"


def described(path: str, member: Any) -> Iterator[Line]:
    if member.is_function:
        yield f"Python function {path}", signature(member)
    elif member.is_class:
        yield f"Python class {path}", ", ".join(map(str, member.bases))
        for name, inner in member.members.items():
            if name == "__init__" or not name.startswith("_"):
                yield from described(f"{path}.{name}", inner)
    else:
        yield f"Python attribute {path}", str(member.annotation)


def python_api() -> Iterator[Line]:
    import griffe  # as docs/site/hooks.py: it reads the stubs, whatever is built

    package: Any = griffe.load(
        "shmcoll",
        search_paths=[ROOT / "python"],
        resolve_aliases=True,
        allow_inspection=False,
    )
    for name in map(str, package.exports):
        # Its keys may change with any version.
        if name != "InternalDescription":
            yield from described(f"shmcoll.{name}", package[name])
    text = (ROOT / "pyproject.toml").read_text()
    for group, body in re.findall(r"^\[project\.([^\]\n]+)\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S):
        if group != "urls":
            for name, value in re.findall(r"^([\w-]+) = (.+)$", body, re.M):
                yield f"metadata {group} {name}", "" if value.startswith("[") else value


# ---- tools and files ----


class Found(Exception):
    pass


def options_of(parse: Callable[[], object]) -> Iterator[str]:
    """The options of the parser with which `parse` begins."""

    def give(parser: argparse.ArgumentParser, *_: object) -> None:
        raise Found(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", give):
        try:
            parse()
        except Found as found:
            for action in found.args[0]._actions:
                words = "" if action.nargs == 0 else " VALUE"
                for option in action.option_strings or [action.dest]:
                    yield f"{option}{words}"


def tools() -> Iterator[Line]:
    from shmcoll import _launch, cli
    from shmcoll.bench import cli as bench, options
    from shmcoll.bench.judge import compare, tune
    from shmcoll.watch import doctor, export, postmortem, stacks, status, top, topo, trace

    for name in (*cli.COMMANDS, *cli.INNER):
        yield f"command shmcoll {name}", ""
    commands = {
        "bench": lambda: options.parse([]),
        "bench compare": lambda: compare._parser().parse_args([]),
        "bench tune": lambda: tune._parser().parse_args([]),
        "run": lambda: _launch.main([]),
        "status": lambda: status.main([]),
        "top": lambda: top.main([]),
        "trace": lambda: trace.main([]),
        "postmortem": lambda: postmortem.main([]),
        "export": lambda: export.main([]),
        "stacks": lambda: stacks.main([]),
        "doctor": lambda: doctor.main([]),
        "topo": lambda: topo.main([]),
    }
    assert commands.keys() == {*cli.COMMANDS, *cli.INNER}
    for name, parse in commands.items():
        for option in options_of(parse):
            yield f"option shmcoll {name} {option}", ""
    modules = {"bench": bench, "bench compare": compare, "bench tune": tune, "status": status}
    modules |= {"top": top, "trace": trace, "postmortem": postmortem, "export": export}
    modules |= {"stacks": stacks, "doctor": doctor, "topo": topo, "run": _launch}
    for name, module in modules.items():
        for code, value in sorted(vars(module).items()):
            if code.startswith("EXIT_"):
                yield f"exit code shmcoll {name} {code.removeprefix('EXIT_').lower()}", str(value)


def keys(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all keys, except those of objects whose keys are names of a user's."""
    if isinstance(value, list):
        for one in value:
            yield from keys(one, f"{path}[]")
    elif isinstance(value, dict):
        named = path.endswith((".backends", ".ratios", "unusable", "failures", "versions"))
        for key, inner in value.items():
            step = "{}" if named else f".{key}" if path else key
            if not named:
                yield path + step
            yield from keys(inner, path + step)


def report(*arguments: str) -> Any:
    """What --json writes, of a run that was not made."""
    from shmcoll.bench import machine, options, plan
    from shmcoll.bench.results import Cell, Report, Row

    settings, _ = options.parse(["-g", "2", "-e", "8", "--backends", "shmcoll,gloo", *arguments])
    made = Report(settings, machine.gather())
    times = [[2000, 3000]]
    for point in plan.points(settings):
        cells = {
            label: Cell(times, *([times, times] if settings.overlap else []))
            for label in settings.labels
        }
        made.rows.append(Row(point, 2, cells))
    return made.as_json()


def files() -> Iterator[Line]:
    from shmcoll.bench.judge.noise import Activity
    from shmcoll.bench.provenance import Provenance
    from shmcoll.bench.results import OLDEST_READ, SCHEMA, SCHEMA_VERSION
    from shmcoll.bench.show import csv_file

    yield "JSON schema", f"{SCHEMA}/{SCHEMA_VERSION}, reads {OLDEST_READ}"
    found = {*keys(report()), *keys(report("--overlap"))}
    found |= {f"provenance.{field.name}" for field in dataclasses.fields(Provenance)}
    found |= {f"results[].activity[].{field.name}" for field in dataclasses.fields(Activity)}
    for name in sorted(found):
        yield f"JSON key {name}", ""
    yield "CSV schema", csv_file.SCHEMA
    for number, name in enumerate(csv_file.COLUMNS, 1):
        yield f"CSV column {name}", str(number)


SOURCES = (c_api, libraries, variables, python_api, tools, files)


def major() -> str:
    return re.findall(r"^#define SHC_VERSION_MAJOR (\d+)", HEADER.read_text(), re.M)[0]


def present() -> dict[str, str]:
    return {MAJOR: major()} | dict(line for source in SOURCES for line in source())


def promised(text: str) -> dict[str, str]:
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition(" = ") for line in lines)}


def written(lines: dict[str, str]) -> str:
    return HEAD + "".join(f"{name} = {value}".strip(" =") + "\n" for name, value in lines.items())


def differences(old: dict[str, str], new: dict[str, str]) -> list[tuple[str, bool]]:
    """What differs, in words; and whether it breaks a promise."""
    found = []
    for name in old.keys() - new.keys():
        found.append((f"{name} is gone", not name.startswith(PRIVATE)))
    for name in new.keys() - old.keys():
        found.append((f"{name} is new", False))
    for name in old.keys() & new.keys():
        if old[name] != new[name] and name != MAJOR:
            what = f"{name} was ({old[name]}) and is now ({new[name]})"
            found.append((what, not name.startswith(PRIVATE)))
    return sorted(found)


ADVICE = """\
Undo what is gone or has changed, or, before 1.0.0 and for a new major version only, write it into
CHANGELOG.md under Changed. What is new: document it. Then run
    .venv/bin/python tests/support/promises.py --write"""


def complaint(old: dict[str, str], new: dict[str, str]) -> str:
    """Empty if nothing differs."""
    found = [what for what, _ in differences(old, new)]
    return "\n".join(["docs/reference/promised.txt differs:", *found, ADVICE]) if found else ""


def refusal(old: dict[str, str], new: dict[str, str]) -> str:
    """Why the list may not be written anew; empty if it may."""
    broken = [what for what, breaks in differences(old, new) if breaks]
    if not broken or old.get(MAJOR, "0") == "0" or old[MAJOR] != new[MAJOR]:
        return ""
    return "\n".join([f"promised for all of version {old[MAJOR]}; not written:", *broken])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the list anew")
    old, new = promised(LIST.read_text() if LIST.exists() else ""), present()
    if not parser.parse_args().write:
        if text := complaint(old, new):
            sys.exit(text)
    elif text := refusal(old, new):
        sys.exit(text)
    else:
        LIST.write_text(written(new))


if __name__ == "__main__":
    main()
