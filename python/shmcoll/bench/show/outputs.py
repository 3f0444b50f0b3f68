# SPDX-License-Identifier: BSD-3-Clause
"""The files that results go to, and how much is printed.

Errors that would appear at the end of a long run are looked for before anything is measured.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmcoll.bench.results import Report

_PLOT_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Outputs:
    """The files that were asked for, and ``-q``."""

    json: Path | None
    csv: Path | None
    plot: Path | None
    html: Path | None
    quiet: bool

    def problem(self) -> str | None:
        """Why a file could not be written, if that can be known now."""
        for option, path in self._paths():
            if path.is_dir():
                return f"--{option} {path}: is a directory; name a file in it"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                return f"--{option} {path}: {error.strerror} ({path.parent})"
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                return f"--{option} {path}: may not be written"
        return None if self.plot is None else _plot_problem(self.plot)

    def write(self, report: Report) -> bool:
        """Writes all files with what there is; one that fails does not keep the others away."""
        good = True
        for option, path in self._paths():
            try:
                _writer(option)(report, path)
            except (OSError, ValueError) as error:
                print(f"shmcoll.bench: --{option} {path}: {error}", file=sys.stderr, flush=True)
                good = False
        return good

    def _paths(self) -> list[tuple[str, Path]]:
        """Data first: they cannot be had again."""
        return [
            (option, path)
            for option in ("json", "csv", "html", "plot")
            if (path := getattr(self, option)) is not None
        ]


def add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    for option, what in (
        ("json", "all results and every iteration; what compare reads"),
        ("csv", "a line per row and backend"),
        ("plot", "a picture: .png, .svg or .pdf (needs matplotlib: pip install shmcoll[bench])"),
        ("html", "a page with table and charts that needs no network"),
    ):
        group.add_argument(f"--{option}", type=Path, metavar="FILE", help=what)
    group.add_argument("-q", "--quiet", action="store_true", help="print the rows and nothing else")


def take(args: dict[str, Any]) -> Outputs:
    """Takes what add_options() has added out of the parsed arguments."""
    return Outputs(**{name: args.pop(name) for name in ("json", "csv", "plot", "html", "quiet")})


def _plot_problem(path: Path) -> str | None:
    if path.suffix not in _PLOT_SUFFIXES:
        return f"--plot {path}: the name must end in {', '.join(_PLOT_SUFFIXES)}"
    if importlib.util.find_spec("matplotlib") is None:
        return "--plot needs matplotlib, which is not installed: pip install shmcoll[bench]"
    return None


def _writer(option: str) -> Callable[[Report, Path], None]:
    """Imported when needed: a run that draws nothing loads no matplotlib."""
    if option == "json":
        return Report.write_json
    module = {"csv": "csv_file", "plot": "plot", "html": "page"}[option]
    write: Callable[[Report, Path], None]
    write = importlib.import_module(f"shmcoll.bench.show.{module}").write
    return write
