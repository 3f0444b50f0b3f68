# SPDX-License-Identifier: BSD-3-Clause
"""A process for which the kernel refuses some system calls, as in a container with a filter."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16  # in struct seccomp_data
IO_URING_SETUP, FUTEX_WAITV = 425, 449  # on every processor
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}.get(platform.machine(), -1)


def install(program: list[tuple[int, int, int, int]]) -> None:
    """From now on the calling thread, and those that it starts, have this filter. No way back."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    filter_ = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    )
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    done = prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    done = done and (
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filter_), 0, 0) == 0
    )
    assert done, f"no filter of system calls: {errno.errorcode[ctypes.get_errno()]}"


def refuse(number: int, error: int = errno.ENOSYS) -> None:
    """As a kernel that does not have that call; or as a filter that forbids it, with EPERM."""
    install(
        [
            (LOAD, 0, 0, NUMBER),
            (EQUAL, 0, 1, number),
            (RETURN, 0, 0, ERRNO | error),
            (RETURN, 0, 0, ALLOW),
        ]
    )
