# SPDX-License-Identifier: BSD-3-Clause
"""The C library by ctypes, for the glue in Python: what shm/shmcoll.h declares, with its names.

Every function is called without the interpreter's lock.
"""

import ctypes
import struct
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p
from typing import Any

from shmcoll._load import load_glue

library = load_glue()
_functions = ctypes.CDLL(library._name)  # the same library; its calls release the lock

# enum shc_status
OK, INVALID = 0, 1
STORE = 5
UNSUPPORTED = 8
TIMEOUT = 9
PEER_DEAD = 11
INTERRUPTED = 14
ABORTED = 13
CLOSED = 15
SYSTEM = 4

# enum shc_op_kind
(BARRIER, BROADCAST, ALL_REDUCE, ALL_GATHER, REDUCE, GATHER, SCATTER, REDUCE_SCATTER) = range(8)
(ALL_TO_ALL, ALL_GATHER_UNEVEN, REDUCE_SCATTER_UNEVEN, ALL_REDUCE_SPARSE, SEND, RECV) = range(8, 14)

# enum shc_redop
(SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM) = range(9)

OPAQUE = 19  # of enum shc_dtype
ANY_SOURCE = -1


class Tensor(ctypes.Structure):
    """struct shc_tensor"""

    _fields_ = [
        ("data", c_void_p),
        ("ndim", c_int32),
        ("sizes", c_void_p),
        ("strides", c_void_p),
    ]


class Sparse(ctypes.Structure):
    """struct shc_sparse"""

    _fields_ = [
        ("ndim", c_int32),
        ("sparse_ndim", c_int32),
        ("sizes", c_void_p),
        ("count", c_uint64),
        ("indices", Tensor),
        ("values", Tensor),
        ("sum_count", c_uint64),
        ("sum_indices", c_void_p),
        ("sum_values", c_void_p),
    ]


class Operation(ctypes.Structure):
    """struct shc_op, and after it an input and an output of one contiguous tensor each."""

    _fields_ = [
        ("kind", c_int),
        ("dtype", c_int),
        ("elem_bytes", c_uint32),
        ("dtype_tag", c_uint32),
        ("reserved", c_uint64),
        ("redop", c_int),
        ("root", c_int),
        ("peer", c_int),
        ("tag", c_int32),
        ("premul", c_double),
        ("timeout_ns", c_uint64),
        ("inputs", c_void_p),
        ("input_count", c_uint32),
        ("outputs", c_void_p),
        ("output_count", c_uint32),
        ("sparse", c_void_p),
        ("input_elements", c_int64),
        ("input", Tensor),
        ("output_elements", c_int64),
        ("output", Tensor),
    ]

    def __init__(self) -> None:
        super().__init__()
        base = ctypes.addressof(self)
        self.pointer = c_void_p(base)
        self.input_at = base + Operation.input.offset
        self.output_at = base + Operation.output.offset
        self.input.ndim = self.output.ndim = 1
        self.input.sizes = base + Operation.input_elements.offset
        self.output.sizes = base + Operation.output_elements.offset


# An Operation up to its input's address, and its output: to set several fields by one call.
pack_operation = struct.Struct("=2i2I8x4idQQI4xQI4xQqQ").pack_into
pack_output = struct.Struct("=qQ").pack_into
OUTPUT = Operation.output_elements.offset

SET = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
GET = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t))
CHECK = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_char_p), c_size_t)
ADD = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64, POINTER(c_int64))
PUT_FIRST = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t)
)
HOLD = ctypes.CFUNCTYPE(None, c_void_p)
COMPLETE = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class Store(ctypes.Structure):
    """struct shc_store"""

    _fields_ = [
        ("ctx", c_void_p),
        ("set", SET),
        ("get", GET),
        ("check", CHECK),
        ("add", ADD),
        ("put_first", PUT_FIRST),
        ("retain", HOLD),
        ("release", HOLD),
        ("server", c_char_p),
        ("server_port", c_int),
    ]


class Config(ctypes.Structure):
    """struct shc_comm_config"""

    _fields_ = [
        ("rank", c_int),
        ("world_size", c_int),
        ("name", c_char_p),
        ("global_ranks", c_void_p),
        ("timeout_ns", c_uint64),
        ("store", Store),
        ("interrupted", c_void_p),
        ("interrupted_ctx", c_void_p),
        ("tuning", c_char_p),
        ("outsider_prefix", c_char_p),
        ("outsider_text", c_char_p),
        ("description", c_char_p),
        ("reserved", c_uint64 * 4),
    ]


class Hooks(ctypes.Structure):
    """struct shc_request_hooks"""

    _fields_ = [("ctx", c_void_p), ("complete", COMPLETE), ("retire", HOLD)]


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_functions, name)
    function.restype = result
    function.argtypes = arguments
    return function


# Without argtypes, whose conversions take time: both arguments are c_void_p already.
run = _functions.shc_run

error_text = _function("shc_error_text", c_char_p)
redop_name = _function("shc_redop_name", c_char_p, c_int)
op_kind_name = _function("shc_op_kind_name", c_char_p, c_int)
tuning_check = _function("shc_tuning_check", c_int, c_char_p)
comm_create = _function("shc_comm_create", c_int, POINTER(Config), POINTER(c_void_p))
comm_close = _function("shc_comm_close", None, c_void_p)
comm_abort = _function("shc_comm_abort", None, c_void_p, c_char_p)
comm_free = _function("shc_comm_free", None, c_void_p)
comm_sequence = _function("shc_comm_sequence", c_uint64, c_void_p)
comm_error = _function("shc_comm_error", c_int, c_void_p)
comm_describe = _function("shc_comm_describe", None, c_void_p, c_char_p)
comm_set_timeout = _function("shc_comm_set_timeout", None, c_void_p, c_uint64)
comm_info = _function("shc_comm_info", c_int, c_void_p, c_char_p, c_size_t)
check = _function("shc_check", c_int, c_void_p, c_void_p)
submit = _function("shc_submit", c_int, c_void_p, c_void_p, POINTER(Hooks), POINTER(c_void_p))
request_wait = _function("shc_request_wait", c_int, c_void_p, c_uint64)
request_done = _function("shc_request_done", c_bool, c_void_p, POINTER(c_int))
request_error = _function("shc_request_error", c_char_p, c_void_p)
request_source = _function("shc_request_source", c_int, c_void_p)
request_notify = _function("shc_request_notify", c_bool, c_void_p)
request_release = _function("shc_request_release", None, c_void_p)
free = _function("free", None, c_void_p)  # libc's
memmove = ctypes.memmove

# Of backend/for_ctypes.cpp. `library` calls with the lock held.
interrupted = ctypes.cast(_functions.shmcoll_interrupted, c_void_p)
watch_signals = library.shmcoll_watch_signals
raise_pending = library.shmcoll_raise
for _hook in (watch_signals, raise_pending):
    _hook.restype = None
