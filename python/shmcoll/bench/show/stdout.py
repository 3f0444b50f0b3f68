# SPDX-License-Identifier: BSD-3-Clause
"""Standard output whose reader may end early, as that of ``| head`` does.

Code that prints need not care. Output after the end of the reader is dropped, and so is what Python
still holds in its buffer at exit. A program that need not go on then reads ``closed_by_reader``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast


class Output:
    """A file as print() needs it; all else is the true one's."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.closed_by_reader = False

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except BrokenPipeError:
            self._lose()
            return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except BrokenPipeError:
            self._lose()

    def _lose(self) -> None:
        # The descriptor itself: the file keeps what it could not write, and tries again at exit.
        self.closed_by_reader = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def watched() -> Iterator[Output]:
    """Replaces sys.stdout by an Output; there is none if its descriptor was closed before."""
    output = Output(sys.stdout or open(os.devnull, "w"))
    with redirect_stdout(cast(TextIO, output)):
        try:
            yield output
        finally:
            output.flush()
