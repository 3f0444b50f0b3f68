# SPDX-License-Identifier: BSD-3-Clause
"""A process that can make no further thread, as under a limit of processes or of memory."""

from __future__ import annotations

import errno
import platform

from system_calls import ALLOW, ANY_BIT, EQUAL, ERRNO, FIRST_ARGUMENT, LOAD, NUMBER, RETURN, install

_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_CLONE_THREAD = 0x10000


def refuse_threads() -> None:
    """From now on the kernel refuses (EAGAIN) every new thread that the calling thread starts. No way back."""
    install(
        [
            (LOAD, 0, 0, NUMBER),
            (EQUAL, 0, 1, _CLONE3),  # whose flags are out of sight: glibc takes the other one
            (RETURN, 0, 0, ERRNO | errno.ENOSYS),
            (EQUAL, 0, 3, _CLONE[platform.machine()]),
            (LOAD, 0, 0, FIRST_ARGUMENT),
            (ANY_BIT, 0, 1, _CLONE_THREAD),
            (RETURN, 0, 0, ERRNO | errno.EAGAIN),
            (RETURN, 0, 0, ALLOW),
        ]
    )
