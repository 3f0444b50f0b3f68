# SPDX-License-Identifier: BSD-3-Clause
"""The parser of the tools' arguments: a wrong one ends with a code that no verdict has."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from shmcoll.watch.board import printable

EXIT_USAGE = 64


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {printable(message)}\n")
