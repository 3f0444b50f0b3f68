# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in this process's shared memory (src/backend/memory.cpp).

Other ranks can map that memory, and it keeps its pages when a tensor ends: a large buffer that a program makes
anew in each step costs no page faults.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from shmcoll import _glue, _load

_HAS_ALLOCATOR = not _load.is_python(_glue.glue)
_OPERATORS: Any = torch.ops.shmcoll
_SIZE = re.compile(r"(\d+)([kmg]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

_is_shared = _glue.glue.shc_memory_is_shared
_is_shared.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_is_shared.restype = ctypes.c_bool


class _Usage(ctypes.Structure):
    """struct shc_memory_counts"""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("reserved_bytes", "used_bytes", "block_count", "attached_count")
    ]


_usage = _glue.glue.shc_memory_usage
_usage.argtypes = [ctypes.POINTER(_Usage)]
_usage.restype = None

if _HAS_ALLOCATOR:
    _share_allocations = _glue.glue.shmcoll_share_allocations
    _share_allocations.argtypes = [ctypes.c_longlong]
    _share_allocations.restype = ctypes.c_longlong

    def _empty_fake(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype)

    torch.library.register_fake("shmcoll::empty_strided", _empty_fake)


def info() -> list[str]:
    """The lines of key=value about this process's heap."""
    usage = _Usage()
    _usage(usage)
    return [
        f"heap_bytes={usage.reserved_bytes}",
        f"heap_used_bytes={usage.used_bytes}",
        f"heap_blocks={usage.block_count}",
        f"heaps_attached={usage.attached_count}",
    ]


def _check_allocator(what: str) -> None:
    if not _HAS_ALLOCATOR:
        raise NotImplementedError(
            f"shmcoll.{what}: the glue in Python makes no tensors in shared memory. SHMCOLL_GLUE=build "
            "compiles a glue for this torch, which does"
        )


def _bytes_of(size: int | str) -> int:
    """Bytes of 65536, "65536", "64k" or "1M"."""
    if isinstance(size, int) and not isinstance(size, bool):
        count = size
    elif isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise ValueError(f"shmcoll.shared_memory: min_bytes={size!r} is not a size as in 64k")
        count = int(match[1]) * _UNITS[match[2].lower()]
    else:
        raise TypeError(
            f"shmcoll.shared_memory: min_bytes must be an int or a str, got {type(size).__name__} ({size!r})"
        )
    if not 0 < count < 1 << 63:
        raise ValueError(f"shmcoll.shared_memory: min_bytes={size!r} is not from 1 to 2^63 - 1")
    return count


def _like(meta: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    """A tensor in shared memory with the form of one without memory."""
    made: torch.Tensor = _OPERATORS.empty_strided(meta.size(), meta.stride(), meta.dtype)
    return made.requires_grad_(requires_grad)


def empty(
    *size: Any,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """Returns a CPU tensor in this process's shared memory, without values yet. No group is needed.

    Like ``torch.empty``. Use it for buffers that collectives read or write again and again. Its memory is
    given back with the tensor's last reference, and used again for the next one. Where there is no room,
    the tensor is in private memory; ``shmcoll.is_shared`` tells.

    Args:
        size: numbers, or one sequence of them.
        dtype: as ``torch.empty``; the default dtype if None.
        requires_grad: as ``torch.empty``.
        memory_format: as ``torch.empty``.

    Raises:
        TypeError, RuntimeError: what ``torch.empty`` raises for such arguments.
        NotImplementedError: with the glue in Python.

    Example:
        >>> buffer = shmcoll.empty(1024, 1024)
    """
    _check_allocator("empty")
    meta = torch.empty(*size, dtype=dtype, device="meta", memory_format=memory_format)
    return _like(meta, requires_grad)


def zeros(
    *size: Any, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> torch.Tensor:
    """Returns a tensor of zeros in shared memory. Like ``torch.zeros``; see ``empty``.

    Args:
        size: numbers, or one sequence of them.
        dtype: as ``torch.zeros``; the default dtype if None.
        requires_grad: as ``torch.zeros``.

    Raises:
        TypeError, RuntimeError, NotImplementedError: as ``empty``.
    """
    _check_allocator("zeros")
    return (
        _like(torch.empty(*size, dtype=dtype, device="meta")).zero_().requires_grad_(requires_grad)
    )


def empty_like(
    tensor: torch.Tensor, *, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> torch.Tensor:
    """Returns a tensor in shared memory with the sizes and strides of another one; see ``empty``.

    Args:
        tensor: a dense tensor on any device.
        dtype: that of ``tensor`` if None.
        requires_grad: as ``torch.empty_like``.

    Raises:
        TypeError: ``tensor`` is not a dense tensor.
        NotImplementedError: with the glue in Python.
    """
    _check_allocator("empty_like")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise TypeError(f"shmcoll.empty_like takes a dense tensor, got {type(tensor).__name__}")
    return _like(torch.empty_like(tensor, dtype=dtype, device="meta"), requires_grad)


def zeros_like(
    tensor: torch.Tensor, *, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> torch.Tensor:
    """Returns a tensor of zeros in shared memory, otherwise like ``empty_like``.

    Args:
        tensor: a dense tensor on any device.
        dtype: that of ``tensor`` if None.
        requires_grad: as ``torch.zeros_like``.

    Raises:
        TypeError, NotImplementedError: as ``empty_like``.
    """
    return empty_like(tensor, dtype=dtype).zero_().requires_grad_(requires_grad)


@contextmanager
def shared_memory(min_bytes: int | str = "64k") -> Iterator[None]:
    """Inside it, the CPU tensors that this thread makes lie in shared memory, if they are large enough.

    This is so for whatever makes them: ``torch.empty``, the results of operators, DDP's buckets, gradients.
    Scopes may be nested; the inner one counts. Other threads are not concerned.

    Args:
        min_bytes: the smallest tensor, in bytes or as ``"64k"``, ``"1m"``, ``"1g"``; smaller ones stay in
            private memory. A tensor in shared memory takes whole pages, mostly of 4 KiB.

    Raises:
        TypeError, ValueError: ``min_bytes`` is not such a size.
        RuntimeError: another library has put an allocator into torch that keeps its place.
        NotImplementedError: with the glue in Python.

    Example:
        >>> with shmcoll.shared_memory():
        ...     activations = model(inputs)
    """
    _check_allocator("shared_memory")
    before = _share_allocations(_bytes_of(min_bytes))
    if before < 0:
        raise RuntimeError(
            "shmcoll.shared_memory: another library has put an allocator for CPU tensors into torch, with a "
            "higher priority"
        )
    try:
        yield
    finally:
        _share_allocations(before)


def is_shared(tensor: torch.Tensor) -> bool:
    """Does the whole tensor lie in this process's shared memory?

    ``tensor.is_shared()`` of torch is another question: whether ``share_memory_()`` was called.

    Args:
        tensor: any tensor. The answer is False if it has no elements, is not on the CPU or not dense, or
            is a wrapper, as a DTensor is.

    Raises:
        TypeError: it is not a tensor.

    Example:
        >>> shmcoll.is_shared(shmcoll.zeros(8))
        True
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"shmcoll.is_shared takes a tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.numel() == 0:
        return False
    if is_traceable_wrapper_subclass(tensor):
        return False
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    shared: bool = _is_shared(tensor.data_ptr(), (last + 1) * tensor.element_size())
    return shared


def share(target: torch.Tensor | torch.nn.Module) -> bool:
    """Moves a tensor, or the parameters, buffers and gradients of a module, into shared memory.

    The tensor's views go along, and its users see no difference, as with torch's ``share_memory_()``. An
    address that something else has kept, as DLPack does, is not valid afterwards. Each tensor then takes whole
    pages, mostly of 4 KiB. Nothing may use the tensors meanwhile.

    Args:
        target: a dense CPU tensor, or a module.

    Returns True if all of them are in shared memory now. One stays where it is if numpy has a view of it, if
    it is mapped from a file or was given to ``share_memory_()``, if it has no bytes, or if there is no room.
    Tensors of a module that have no elements do not count.

    Raises:
        TypeError: ``target`` is neither of them, or not dense or not on the CPU.
        NotImplementedError: with the glue in Python.

    Example:
        >>> shmcoll.share(model)
        True
    """
    _check_allocator("share")
    if isinstance(target, torch.nn.Module):
        tensors = [*target.parameters(), *target.buffers()]
        tensors += [tensor.grad for tensor in tensors if tensor.grad is not None]
        # A list: none is left out.
        return all([_share(tensor) for tensor in tensors if tensor.numel() > 0])
    if not isinstance(target, torch.Tensor):
        raise TypeError(f"shmcoll.share takes a tensor or a module, got {type(target).__name__}")
    return _share(target)


def _share(tensor: torch.Tensor) -> bool:
    if is_traceable_wrapper_subclass(tensor):
        raise TypeError(f"shmcoll.share takes dense CPU tensors, not a {type(tensor).__name__}")
    moved: bool = _OPERATORS.share(tensor.detach())
    return moved
