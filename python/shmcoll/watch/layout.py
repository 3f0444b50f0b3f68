# SPDX-License-Identifier: BSD-3-Clause
"""The structures of a board, as src/shm/proto/board.h has them; tests/lint/board_layout.py compares."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_uint8, c_uint16, c_uint32, c_uint64

MAGIC = int.from_bytes(b"shmboard", "little")
VERSION = 3
KINDS = 16
MAX_WORLD = 256

LEVELS = ("off", "counts", "times")
FREE, TAKEN, MAKING, MADE, CLOSED = range(5)  # the states of a group

# In the order of the enumerations of shmcoll.h, with the names that the library has for them.
OPERATIONS = [
    "barrier",
    "broadcast",
    "all_reduce",
    "all_gather",
    "reduce",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "uneven all_gather",
    "uneven reduce_scatter",
    "sparse all_reduce",
    "send",
    "recv",
    "call",
]
DTYPES = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool float16 bfloat16 float8_e4m3fn "
    "float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float32 float64 complex64 complex128 opaque"
).split()
REDUCTIONS = "sum avg product min max band bor bxor premul_sum".split()
STATUSES = [
    "ok",
    "invalid argument",
    "out of memory",
    "out of shared memory",
    "system error",
    "store error",
    "ranks cannot share memory",
    "version mismatch",
    "unsupported",
    "timeout",
    "mismatch",
    "peer dead",
    "peer left",
    "aborted",
    "interrupted",
    "closed",
    "forked child",
    "deadlock",
]

WITH_REDUCTION = {
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "uneven reduce_scatter",
    "sparse all_reduce",
}
MESSAGES = {"send", "recv"}
UNCOUNTED = {"uneven all_gather", "uneven reduce_scatter", "sparse all_reduce", "all_to_all"}
WITH_ROOT = {"broadcast", "reduce", "gather", "scatter"}


DESCRIBED = 2


class Header(ctypes.Structure):
    _fields_ = [
        ("magic", c_uint64),
        ("version", c_uint32),
        ("header_bytes", c_uint32),
        ("group_bytes", c_uint32),
        ("group_count", c_uint32),
        ("record_offset", c_uint32),
        ("record_bytes", c_uint32),
        ("record_count", c_uint32),
        ("kind_count", c_uint32),
        ("level", c_uint32),
        ("layout", c_uint32),
        ("pid", c_int32),
        ("reserved", c_uint32),
        ("start_time", c_uint64),
        ("pid_namespace", c_uint64),
        ("boot", c_uint64),
        ("ticks", c_uint64),
        ("ns", c_uint64),
        ("library", c_char * 32),
        ("dumped_ns", c_uint64),
        ("dumped_unix_ns", c_uint64),
        ("failed", c_uint32),
        ("reserved_too", c_uint32),
        ("host", c_char * 64),
        ("job", c_char * 64),
        ("kept_offset", c_uint32),
        ("kept_count", c_uint32),
        ("device_offset", c_uint32),
        ("device_count", c_uint32),
    ]


class Record(ctypes.Structure):
    _fields_ = [
        ("number", c_uint64),
        ("begin", c_uint64),
        ("end", c_uint64),
        ("what", c_uint64),
        ("count", c_uint64),
        ("bytes", c_uint64),
        ("peer", c_uint64),
        ("pair", c_uint64),
    ]


class Sum(ctypes.Structure):
    _fields_ = [("ops", c_uint64), ("bytes", c_uint64), ("ticks", c_uint64)]


class Messages(ctypes.Structure):
    _fields_ = [
        ("number", c_uint64),
        ("sends", c_uint32),
        ("receives", c_uint32),
        ("kind", c_uint32),
        ("peer", c_uint32),
        ("tag", c_int32),
        ("waiters", c_uint32),
        ("bytes", c_uint64),
        ("since_ns", c_uint64),
    ]


class Device(ctypes.Structure):
    """Operations on a GPU, or messages there."""

    _fields_ = [
        ("number", c_uint64),
        ("called", c_uint64),
        ("done", c_uint64),
        ("since_ns", c_uint64),
        ("call", c_char * 128),
        ("whom", c_char * 256),
        ("missing", c_uint8 * (MAX_WORLD // 8)),
    ]


class Block(ctypes.Structure):
    """A thread of the application that sleeps in a wait on the group."""

    _fields_ = [
        ("since_ns", c_uint64),
        ("thread", c_uint64),
        ("peer", c_uint32),
        ("kind", c_uint32),
        ("tag", c_uint32),
        ("reserved", c_uint32),
    ]


UNKNOWN_END, EXIT, SIGNAL = range(3)  # how a process has ended


class End(ctypes.Structure):
    """Whose end has failed the group."""

    _fields_ = [
        ("finder", c_uint32),
        ("rank", c_uint32),
        ("pid", c_int32),
        ("died", c_uint32),
        ("kind", c_uint32),
        ("code", c_int32),
        ("last_call", c_uint64),
        ("why", c_char * 96),
    ]


class Over(ctypes.Structure):
    """Of a group over several hosts, of which the part shows the ranks of one."""

    _fields_ = [
        ("id", c_uint64),
        ("hosts", c_uint32),
        ("host", c_uint32),
        ("world", c_uint32),
        ("reserved", c_uint32),
        ("ranks", c_uint16 * MAX_WORLD),
        ("awaits_epoch", c_uint64),
        ("awaits_since_ns", c_uint64),
        ("number", c_uint64),
        ("whom_epoch", c_uint64),
        ("whom", c_char * 256),
    ]


class Group(ctypes.Structure):
    """A group's part without its records."""

    _fields_ = [
        ("state", c_uint32),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("global_rank", c_int32),
        ("begun_ns", c_uint64),
        ("made_ns", c_uint64),
        ("timeout_ns", c_uint64),
        ("segment_bytes", c_uint64),
        ("nonce", c_uint8 * 16),
        ("name", c_char * 64),
        ("failed_once", c_uint32),
        ("status", c_uint32),
        ("reason", c_char * 512),
        ("described", c_uint32),
        ("description", c_char * 64),
        ("fill_1", c_uint8 * 52),
        ("entered", c_uint64),
        ("left", c_uint64),
        ("waits_epoch", c_uint64),
        ("waits_since_ns", c_uint64),
        ("waits_for", c_uint32),
        ("reserved", c_uint32),
        ("late", c_uint64),
        ("slept_ns", c_uint64),
        ("user", c_uint64),
        ("clock_number", c_uint64),
        ("clock_ticks", c_uint64),
        ("clock_ns", c_uint64),
        ("submitted", c_uint32),
        ("ended", c_uint32),
        ("block", Block),
        ("messages", Messages),
        ("sending", c_uint32),
        ("receiving", c_uint32),
        ("looked_ns", c_uint64),
        ("fill_3", c_uint8 * 64),
        ("sums", Sum * KINDS),
        ("device", Device),
        ("device_messages", Device),
        ("device_kept", c_uint64),
        ("kept_messages", c_uint64),
        ("end", End),
        ("over", Over),
        ("fill_4", c_uint8 * 824),
        ("pids", c_int32 * MAX_WORLD),
        ("global_ranks", c_int32 * MAX_WORLD),
        ("waited_ns", c_uint64 * MAX_WORLD),
    ]
