# SPDX-License-Identifier: BSD-3-Clause
"""A process that can make no further thread, as under a limit of processes or of memory."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_CLONE_THREAD = 0x10000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _FIRST_ARGUMENT = 0, 16  # in struct seccomp_data


def refuse_threads() -> None:
    """From now on the kernel refuses (EAGAIN) every new thread that the calling thread starts. No way back."""
    program = [
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 1, _CLONE3),  # whose flags are out of sight: glibc takes the other one
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_EQUAL, 0, 3, _CLONE[platform.machine()]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ERRNO | errno.EAGAIN),
        (_RETURN, 0, 0, _ALLOW),
    ]
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
