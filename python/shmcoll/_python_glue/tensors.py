# SPDX-License-Identifier: BSD-3-Clause
"""From torch's types to the core's, for the glue in Python, and the checks that need to know a tensor.

The texts of the errors are those of backend/convert.cpp.
"""

from __future__ import annotations

import ctypes
import datetime
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from shmcoll._python_glue import core

_MILLISECOND = datetime.timedelta(milliseconds=1)
UNSET = -_MILLISECOND  # c10d::kUnsetTimeout
_FOR_EVER = datetime.timedelta(days=365 * 100)
_STRIDED = torch.strided


class Dtype(NamedTuple):
    """How the core takes a dtype."""

    code: int  # of enum shc_dtype
    elem_bytes: int  # of one that is only moved
    tag: int  # of one that is only moved: torch's number of it, which all ranks compare
    name: str  # in C++, which errors name


# In the order of enum shc_dtype.
_REDUCED = (
    "int8 Char|int16 Short|int32 Int|int64 Long|uint8 Byte|uint16 UInt16|uint32 UInt32|uint64 UInt64"
    "|bool Bool|float16 Half|bfloat16 BFloat16|float8_e4m3fn Float8_e4m3fn|float8_e5m2 Float8_e5m2"
    "|float8_e4m3fnuz Float8_e4m3fnuz|float8_e5m2fnuz Float8_e5m2fnuz|float32 Float|float64 Double"
    "|complex64 ComplexFloat|complex128 ComplexDouble"
)
# torch's numbers (c10::ScalarType), which it never changes.
_MOVED = {
    "complex32": (8, "ComplexHalf"),
    "qint8": (12, "QInt8"),
    "quint8": (13, "QUInt8"),
    "qint32": (14, "QInt32"),
    "quint4x2": (16, "QUInt4x2"),
    "quint2x4": (17, "QUInt2x4"),
    "bits1x8": (18, "Bits1x8"),
    "bits2x4": (19, "Bits2x4"),
    "bits4x2": (20, "Bits4x2"),
    "bits8": (21, "Bits8"),
    "bits16": (22, "Bits16"),
    **{f"uint{bits}": (29 + bits, f"UInt{bits}") for bits in range(1, 8)},
    **{f"int{bits}": (36 + bits, f"Int{bits}") for bits in range(1, 8)},
    "float8_e8m0fnu": (44, "Float8_e8m0fnu"),
    "float4_e2m1fn_x2": (45, "Float4_e2m1fn_x2"),
}
_PACKED = ("quint4x2", "quint2x4")


def name_of(dtype: torch.dtype) -> str:
    """As in Python, without the module."""
    return str(dtype).removeprefix("torch.")


def _all_dtypes() -> dict[torch.dtype, Dtype]:
    found = {}
    for code, names in enumerate(_REDUCED.split("|")):
        python, cpp = names.split()
        if hasattr(torch, python):
            found[getattr(torch, python)] = Dtype(code, 0, 0, cpp)
    for python, (tag, cpp) in _MOVED.items():
        if hasattr(torch, python):
            dtype = getattr(torch, python)
            found[dtype] = Dtype(core.OPAQUE, dtype.itemsize, tag, cpp)
    return found


DTYPES = _all_dtypes()


def dtype_of(dtype: torch.dtype) -> Dtype:
    """How the core takes it. One that is newer than this file is moved; its number is made of its name."""
    known = DTYPES.get(dtype)
    if known is None:
        name = name_of(dtype)
        known = Dtype(core.OPAQUE, dtype.itemsize, zlib.crc32(name.encode()) | 1 << 31, name)
        DTYPES[dtype] = known
    if known.code == core.OPAQUE and name_of(dtype) in _PACKED:
        raise TypeError(
            f"shmcoll: a tensor of {known.name} has several elements in a byte; move its int_repr()"
        )
    return known


def common_dtype(tensors: Sequence[torch.Tensor], op: str) -> torch.dtype:
    """The dtype of all tensors of one call."""
    if not tensors:
        raise ValueError(f"shmcoll: {op}: an empty list of tensors")
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise TypeError(
                f"shmcoll: {op}: tensors of one call differ in dtype: {cpp_name(dtype)} and "
                f"{cpp_name(tensor.dtype)}"
            )
    return dtype


def cpp_name(dtype: torch.dtype) -> str:
    """As C++ writes it."""
    known = DTYPES.get(dtype)
    return known.name if known else name_of(dtype)


# ---- time-outs ----


def milliseconds(timeout: datetime.timedelta) -> int:
    return timeout // _MILLISECOND


def check_timeout(timeout: datetime.timedelta) -> None:
    """The only negative value with a meaning is UNSET."""
    if timeout < UNSET:
        raise ValueError(
            f"shmcoll: a time-out of {milliseconds(timeout)} ms is negative; give a positive one (of a "
            "group, 0 is no limit)"
        )


def timeout_ns(timeout: datetime.timedelta | None) -> int:
    """Of an operation; 0, if it has none of its own."""
    if timeout is None or timeout == UNSET:
        return 0
    check_timeout(timeout)
    return milliseconds(min(timeout, _FOR_EVER)) * 1_000_000 if timeout > UNSET else 0


def group_timeout_ns(timeout: datetime.timedelta) -> int:
    """Of a group: here 0 is no limit, and UNSET is the core's default."""
    check_timeout(timeout)
    return timeout_ns(timeout if milliseconds(timeout) else _FOR_EVER)


# ---- reductions ----

_REDOPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_ReduceOp: Any = torch.distributed.ReduceOp
# The hash of a ReduceOp is its number.
REDOPS = {int(getattr(_ReduceOp.RedOpType, name)): code for code, name in enumerate(_REDOPS)}


def redop_of(reduce_op: Any, kind: int, dtype: torch.dtype, known: Dtype) -> tuple[int, float]:
    """The core's number of a reduction, and the factor of PREMUL_SUM."""
    redop = REDOPS.get(hash(reduce_op))
    if redop is None:
        raise ValueError("shmcoll: a reduce op that does not exist")
    factor = 0.0
    if redop == core.PREMUL_SUM:
        if not isinstance(reduce_op, _ReduceOp):
            raise ValueError("shmcoll: PREMUL_SUM without its factor")
        given = reduce_op.__getstate__()[1]
        factor = float(given.item() if isinstance(given, torch.Tensor) else given)
    if known.code == core.OPAQUE:
        raise TypeError(
            f"shmcoll: {core.op_kind_name(kind).decode()}: {core.redop_name(redop).decode()} of "
            f"{name_of(dtype)} does not exist; possible: nothing (it can be moved)"
        )
    return redop, factor


# ---- tensors ----

_LAYOUTS = {torch.sparse_coo: "Sparse", getattr(torch, "_mkldnn", None): "Mkldnn"}


def layout_name(layout: torch.layout) -> str:
    """As C++ writes it: SparseCsr for torch.sparse_csr."""
    text = str(layout).removeprefix("torch.").title().replace("_", "")
    return _LAYOUTS.get(layout, text)


def _needs(tensor: torch.Tensor) -> int:
    """Bytes of storage up to its last element."""
    last = int(tensor.storage_offset()) + 1
    for size, stride in zip(tensor.size(), tensor.stride()):
        last += (size - 1) * stride
    return int(last) * tensor.itemsize


def _refuse(tensor: torch.Tensor, op: str) -> None:
    """Raises why the tensor cannot take part, if it cannot."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"shmcoll: {op}: {type(tensor).__name__} is not a tensor")
    if tensor.is_cuda:
        raise TypeError(
            f"shmcoll: {op}: a tensor on {tensor.device}. The glue in Python, which this torch "
            f"({torch.__version__}) needs, is for CPU tensors; a glue for it is made by SHMCOLL_GLUE=build"
        )
    if not tensor.is_cpu:
        raise ValueError(
            f"shmcoll: {op}: a tensor on {tensor.device}; CPU and CUDA tensors are possible"
        )
    if tensor.layout is not _STRIDED:
        raise TypeError(
            f"shmcoll: {op}: a tensor of layout {layout_name(tensor.layout)}; dense tensors are possible"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            f"shmcoll: {op}: a conjugate or negative view; call resolve_conj() or resolve_neg() first"
        )
    if tensor.numel() == 0:
        return
    needs, has = _needs(tensor), tensor.untyped_storage().nbytes()
    if needs > has:
        raise ValueError(
            f"shmcoll: {op}: a tensor that needs a storage of {needs} bytes, but its storage has {has}; "
            "it was freed or made smaller (resize_), and must be restored before the call"
        )


def elements(tensor: torch.Tensor, op: str) -> int:
    """How many elements a contiguous tensor has, or -1 if it is strided; raises if it cannot take part."""
    try:
        count = tensor.numel()
        if (
            tensor.is_cpu
            and tensor.layout is _STRIDED
            and tensor.is_contiguous()
            and (tensor.storage_offset() + count) * tensor.itemsize
            <= tensor.untyped_storage().nbytes()
            and not tensor.is_neg()
            and not tensor.is_conj()
        ):
            return count
    except (AttributeError, NotImplementedError):  # no tensor; one without a storage
        pass
    _refuse(tensor, op)
    return count if tensor.is_contiguous() else -1


class Views:
    """Tensors as the core takes them: an array of shc_tensor, and the memory that it refers to."""

    def __init__(self, tensors: Sequence[torch.Tensor], op: str) -> None:
        self.array = (core.Tensor * len(tensors))()
        self.pointer = ctypes.addressof(self.array)
        self.count = len(tensors)
        self._keep = []
        for view, tensor in zip(self.array, tensors):
            contiguous = elements(tensor, op) >= 0
            dimensions = tensor.dim()
            numbers = (ctypes.c_int64 * (2 * dimensions or 1))(*tensor.size(), *tensor.stride())
            self._keep.append(numbers)
            view.data = tensor.data_ptr()
            view.ndim = dimensions
            view.sizes = ctypes.addressof(numbers)
            view.strides = None if contiguous else view.sizes + 8 * dimensions


def _is_dense(tensor: torch.Tensor) -> bool:
    """Does it fill the memory between its first and its last element, each byte once?"""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size())):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def check_outputs_apart(outputs: Sequence[torch.Tensor], op: str) -> None:
    """Raises if two dense outputs of several operations in one call share memory."""
    pieces = sorted(
        (tensor.data_ptr(), tensor.numel() * tensor.itemsize)
        for tensor in outputs
        if tensor.layout is _STRIDED and _is_dense(tensor)
    )
    for (begin, size), (following, _) in zip(pieces, pieces[1:]):
        if begin + size > following:
            raise ValueError(
                f"shmcoll: {op}: two outputs overlap: one would be written over the other"
            )


class SparseTensor:
    """A COO tensor as the core takes it, and the way back."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.sparse_coo:
            raise TypeError(
                f"shmcoll: all_reduce: a tensor of layout {layout_name(tensor.layout)}; dense and sparse "
                "COO tensors are possible"
            )
        try:
            with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
                tensor._coalesced_(tensor.is_coalesced())
        except RuntimeError:
            raise TypeError(
                "shmcoll: all_reduce: a sparse tensor whose entries cannot be replaced"
            ) from None
        self._tensor = tensor
        plain = tensor.detach()
        self._entries = plain._indices(), plain._values()
        self._views = [Views([entry], "sparse all_reduce") for entry in self._entries]
        self._sizes = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.size())
        self.view = core.Sparse()
        self.view.ndim = tensor.dim()
        self.view.sparse_ndim = tensor.sparse_dim()
        self.view.sizes = ctypes.addressof(self._sizes)
        self.view.count = tensor._nnz()
        self.view.indices, self.view.values = (views.array[0] for views in self._views)

    def __del__(self) -> None:
        view = getattr(self, "view", None)
        if view is not None:
            core.free(view.sum_indices)
            core.free(view.sum_values)

    def store_sum(self) -> None:
        """Makes the sum the tensor's entries. pre: the operation has succeeded; once."""
        count = self.view.sum_count
        inference = self._tensor.is_inference()
        with torch.inference_mode(inference), torch.no_grad():
            sizes = [self.view.sparse_ndim, count], [count, *self._entries[1].shape[1:]]
            indices, values = map(torch.empty_like, self._entries)
            for piece, size, source in zip(
                (indices, values), sizes, (self.view.sum_indices, self.view.sum_values)
            ):
                piece.resize_(size, memory_format=torch.contiguous_format)
                if piece.numel():
                    ctypes.memmove(piece.data_ptr(), source, piece.numel() * piece.itemsize)
            total = torch.sparse_coo_tensor(
                indices, values, self._tensor.shape, is_coalesced=True, check_invariants=False
            )
            self._tensor.copy_(total)
