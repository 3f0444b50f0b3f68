# SPDX-License-Identifier: BSD-3-Clause
"""Lines on stderr in the form of the library's (src/shm/base/log.h), by the level of SHMCOLL_LOG."""

import datetime
import os
import sys

_LEVELS = ("off", "warn", "info", "trace")


def say(level: str, text: str) -> None:
    """Writes one line, if SHMCOLL_LOG lets lines of that level through."""
    said = os.environ.get("SHMCOLL_LOG", "warn")
    if _LEVELS.index(level) > _LEVELS.index(said if said in _LEVELS else "warn"):
        return
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    line = f"[shmcoll {now} pid {os.getpid()}] {level}: {text}"
    print(line, file=sys.stderr, flush=True)
