# SPDX-License-Identifier: BSD-3-Clause
"""Dumps on demand; the library writes them itself where a group fails (SHMCOLL_DUMP)."""

from __future__ import annotations

import ctypes
import os

from shmcoll._load import load_glue

_SYSTEM_ERROR = 4  # SHC_ERR_SYSTEM


def dump(path: str | os.PathLike[str]) -> None:
    """Writes the last calls of this process to a file, for ``shmcoll postmortem``.

    The file has what ``shmcoll status`` sees of this process: for each group its last 256 collectives, whom
    it waits for, what is pending, and why it has failed. It takes 48 KiB for each group, and replaces a file
    of that name. Give each rank a name of its own, with the ending ``.dump``. Any thread may call it, also
    while another one is inside a call. With ``SHMCOLL_DUMP`` the library does so when a group fails.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be written; one that was there stays.
        RuntimeError: there is nothing to write: this process has made no group, or runs with
            ``SHMCOLL_BOARD=off``.

    Example:
        >>> shmcoll.dump(f"/tmp/dumps/rank{dist.get_rank()}.dump")
    """
    glue = load_glue()
    glue.shc_error_text.restype = ctypes.c_char_p
    status: int = glue.shc_process_dump(os.fsencode(path))
    if status != 0:
        text = f"shmcoll: {glue.shc_error_text().decode(errors='replace')}"
        raise OSError(text) if status == _SYSTEM_ERROR else RuntimeError(text)


__all__ = ["dump"]
