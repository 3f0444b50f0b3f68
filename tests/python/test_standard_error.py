# SPDX-License-Identifier: BSD-3-Clause
"""Lines for a standard error that nobody reads: they are lost, and no call fails or waits for that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

SAY = (sys.executable, "-c", "from shmcoll._log import say; say('warn', 'a line')")


def unread() -> tuple[int, list[int]]:
    reader, writer = os.pipe()
    os.close(reader)
    return writer, [writer]


def full() -> tuple[int, list[int]]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b"x")
        except BlockingIOError:
            os.set_blocking(writer, True)
            return writer, [reader, writer]


def on_a_full_disk() -> tuple[int, list[int]]:
    device = os.open("/dev/full", os.O_WRONLY)
    return device, [device]


@pytest.mark.parametrize("prepare", [unread, full, on_a_full_disk])
def test_a_line_that_cannot_be_written_is_lost(
    prepare: Callable[[], tuple[int, list[int]]],
) -> None:
    stream, opened = prepare()
    try:
        done = subprocess.run(SAY, stderr=stream, timeout=20, check=False)
    finally:
        for each in opened:
            os.close(each)
    assert done.returncode == 0  # also not that of an interpreter that cannot write at its end


def test_a_line_is_written_where_it_can_be() -> None:
    done = subprocess.run(SAY, stderr=subprocess.PIPE, text=True, timeout=20, check=False)
    assert done.returncode == 0 and done.stderr.endswith("warn: a line\n"), done
