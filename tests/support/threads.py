# SPDX-License-Identifier: BSD-3-Clause
"""Calls at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_threads(*calls: Callable[[], object]) -> None:
    """Each in a thread of its own, all at once; raises what the first of them to fail has raised."""
    start = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            start.wait()
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
