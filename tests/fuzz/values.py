# SPDX-License-Identifier: BSD-3-Clause
"""What tensors hold, and how they lie in memory."""

from __future__ import annotations

import math

import numpy as np
import torch

import oracle

# Bytes are put into, and read out of, a tensor of any dtype through one of the same element size.
CARRIERS = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
    16: torch.complex128,
}
LAYOUTS = ("plain", "offset", "gaps", "transposed", "column", "rows", "turned")
UNTOUCHED = 0xA5  # every byte that nobody has a reason to write
SCRIBBLE = 0x5A  # what an input is overwritten with, once it may be


def content(key: tuple[int, ...], dtype: torch.dtype, count: int) -> torch.Tensor:
    """Ordinary numbers and arbitrary bits in turn; of floats also zeros, infinities and NaN."""
    rng = np.random.Generator(np.random.SFC64(list(key)))
    if count == 0:
        return torch.empty(0, dtype=CARRIERS[dtype.itemsize]).view(dtype)
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, count, np.uint8)).view(torch.bool)
    raw = torch.frombuffer(bytearray(rng.bytes(count * dtype.itemsize)), dtype=torch.uint8)
    data = raw.view(dtype)
    if dtype in oracle.COMPLEX:
        parts = torch.view_as_real(data)
        numbers = torch.from_numpy(rng.standard_normal((len(parts[::2]), 2), np.float32))
        parts[::2] = numbers.to(parts.dtype)
    elif dtype in oracle.FLOATS:
        numbers = torch.from_numpy(rng.standard_normal(len(data[::2]), np.float32))
        data[::2] = numbers.to(dtype)
        rare = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan]).to(dtype)
        where = torch.from_numpy(rng.integers(0, count, count // 8))
        data.view(CARRIERS[dtype.itemsize])[where] = rare.view(CARRIERS[dtype.itemsize])[
            torch.from_numpy(rng.integers(0, len(rare), count // 8))
        ]
    return data


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _arrange(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of that shape; where it has too few dimensions for the layout, a contiguous one."""

    def blank(*sizes: int) -> torch.Tensor:
        count = math.prod(sizes) * dtype.itemsize
        return torch.full((count,), UNTOUCHED, dtype=torch.uint8).view(dtype).reshape(sizes)

    dims = len(shape)
    if layout == "offset":
        return blank(math.prod(shape) + 3)[3:].reshape(shape)
    if layout == "column":
        return blank(*shape, 3)[..., 1]
    if layout == "gaps" and dims >= 1:
        return blank(*shape[:-1], 2 * shape[-1])[..., ::2]
    if layout == "rows" and dims >= 1:
        return blank(2 * shape[0] + 1, *shape[1:])[1::2]
    if layout == "transposed" and dims >= 2:
        return blank(*reversed(shape)).permute(*reversed(range(dims)))
    if layout == "turned" and dims >= 2:
        return blank(shape[-1], *shape[:-1]).movedim(0, -1)
    return blank(*shape)


class Cell:
    """A tensor, with the whole memory that it lies in."""

    def __init__(self, bits: torch.Tensor, dtype: torch.dtype) -> None:
        self.bits = bits  # of the carrier's dtype
        self.dtype = dtype
        self.tensor = bits.view(dtype)
        self.memory = bits.as_strided((bits.untyped_storage().nbytes() // bits.itemsize,), (1,), 0)

    @classmethod
    def make(
        cls, shape: tuple[int, ...], layout: str, dtype: torch.dtype, values: torch.Tensor | None
    ) -> Cell:
        cell = cls(_arrange(shape, layout, CARRIERS[dtype.itemsize]), dtype)
        if values is not None:
            cell.put(values)
        return cell

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Cell:
        """Of a tensor that somebody else has made."""
        return cls(tensor.view(CARRIERS[tensor.dtype.itemsize]), tensor.dtype)

    def put(self, values: torch.Tensor) -> None:
        self.bits.copy_(values.view(self.bits.dtype).reshape(self.bits.shape))

    def copy(self) -> Cell:
        memory = self.memory.clone()
        like = (self.bits.size(), self.bits.stride(), self.bits.storage_offset())
        return Cell(memory.as_strided(*like), self.dtype)

    def scribble(self) -> None:
        """Gaps and all: nobody may read it now."""
        self.memory.view(torch.uint8).fill_(SCRIBBLE)

    def values(self) -> torch.Tensor:
        flat = torch.empty(self.bits.numel(), dtype=self.bits.dtype)
        return flat.copy_(self.bits.reshape(-1)).view(self.dtype)

    def complain(self, want: torch.Tensor, exact: bool) -> str:
        """ "" when it holds these values and the memory around it is untouched.

        exact: to the bit; else a NaN is as good as another.
        """
        got = self.values()
        if exact:
            whole = torch.int64 if self.bits.dtype.is_complex else self.bits.dtype
            got, want = got.view(whole), want.view(whole)
        text = oracle.differ(got, want) if not exact or not same_bytes(got, want) else ""
        if text:
            return text
        around = self.copy()
        around.bits.copy_(blank_like(around.bits))
        if not bool((around.memory.view(torch.uint8) == UNTOUCHED).all()):
            return "memory next to the tensor was written to"
        return ""


def blank_like(bits: torch.Tensor) -> torch.Tensor:
    count = bits.numel() * bits.itemsize
    return torch.full((count,), UNTOUCHED, dtype=torch.uint8).view(bits.dtype).reshape(bits.shape)
