# SPDX-License-Identifier: BSD-3-Clause
"""What a reduction must give, to the bit: docs/reference/support.md written down once more, in plain torch.

Elements are combined over the ranks in rank order; half and 8-bit floats in float32 with one
rounding at the end. So there is one right answer, and no tolerance. Only a NaN's bits are free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

Op = dist.ReduceOp

SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
NARROW = (torch.float16, torch.bfloat16, *FLOAT8)
FLOATS = (*NARROW, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
REDUCIBLE = (*SIGNED, *UNSIGNED, torch.bool, *FLOATS, *COMPLEX)
MOVED_ONLY = (torch.complex32, torch.float8_e8m0fnu)  # two of those that are bytes to the library

NAMES = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
FACTOR = 0.3  # of rank 0; rank r has FACTOR + r


def supported(dtype: torch.dtype, name: str) -> bool:
    """The table of docs/reference/support.md."""
    if dtype in (torch.complex64, torch.complex128):
        return name in ("sum", "avg", "product", "premul_sum")
    if dtype == torch.bool:
        return name not in ("avg", "premul_sum")
    if dtype in FLOATS:
        return name not in ("band", "bor", "bxor")
    return dtype in REDUCIBLE and name != "premul_sum"


def reduce_op(name: str, rank: int = 0) -> Op:
    if name == "premul_sum":
        return dist._make_nccl_premul_sum(FACTOR + rank)
    return getattr(Op, name.upper())


def sample(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Ordinary values and arbitrary bits, mixed; of floats infinities, NaN, both zeros too."""
    rng = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=rng).to(torch.bool)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=rng, dtype=torch.uint8)
    data = raw.view(dtype)
    if dtype in COMPLEX:
        torch.view_as_real(data)[::2] = torch.randn((count, 2), generator=rng)[::2]
    elif dtype in FLOATS:
        data[::2] = torch.randn(count, generator=rng).to(dtype)[::2]
        rare = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])
        where = torch.randint(0, max(count, 1), (count // 8,), generator=rng)
        # Chosen first: torch 2.8 cannot index 8-bit floats.
        data[where] = rare[torch.randint(0, len(rare), (count // 8,), generator=rng)].to(dtype)
    return data


def plain(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Ordinary values only."""
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(count, generator=rng) * 4).to(dtype)


def fold(
    inputs: list[torch.Tensor], name: str, hosts: Sequence[int] = (), wide: bool = False
) -> torch.Tensor:
    """The result, from the inputs of all ranks in rank order.

    hosts: the host of each, if there are several; wide: partials="wide".
    """
    dtype = inputs[0].dtype
    if len(set(hosts)) > 1 and dtype in (*FLOATS, *COMPLEX) and name not in ("min", "max"):
        return _fold_over_hosts(inputs, name, hosts, wide)
    if dtype == torch.bool:
        return _fold_bool(inputs, name)
    if dtype in COMPLEX:
        return _fold_complex(inputs, name)
    if dtype in NARROW:
        return _rounded(_fold_floats([t.to(torch.float32) for t in inputs], name), dtype)
    if dtype in FLOATS:
        return _fold_floats(inputs, name)
    return _fold_ints([t.numpy() for t in inputs], name)


def _fold_over_hosts(
    inputs: list[torch.Tensor], name: str, hosts: Sequence[int], wide: bool
) -> torch.Tensor:
    """Each host's ranks in order, and then the hosts in the order of their first ranks."""
    dtype = inputs[0].dtype
    given = [t.to(torch.float32) if dtype in NARROW else t for t in inputs]
    if name == "premul_sum":
        given = [_scaled(t, rank) for rank, t in enumerate(given)]
    step = "product" if name == "product" else "sum"
    rounds = dtype == torch.bfloat16 and not wide
    partials = []
    for host in dict.fromkeys(hosts):
        total = fold([t for t, where in zip(given, hosts) if where == host], step)
        partials.append(total.to(dtype).to(torch.float32) if rounds else total)
    total = fold(partials, step)
    if name == "avg" and dtype in COMPLEX:  # whose division by a number multiplies
        torch.view_as_real(total).div_(len(inputs))
    elif name == "avg":
        total = total / len(inputs)
    return _rounded(total, dtype) if dtype in NARROW else total


def _scaled(t: torch.Tensor, rank: int) -> torch.Tensor:
    if t.dtype in COMPLEX:
        return torch.view_as_complex(_scaled(torch.view_as_real(t), rank).contiguous())
    return t * torch.tensor(FACTOR + rank, dtype=t.dtype)


def _rounded(wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds as torch 2.13 does, with any torch: before 2.13, float8_e4m3fn overflowed to NaN."""
    if dtype == torch.float8_e4m3fn:
        wide = wide.clamp(-448.0, 448.0)  # NaN stays
    return wide.to(dtype)


def _fold_bool(inputs: list[torch.Tensor], name: str) -> torch.Tensor:
    both = {"sum": "or", "max": "or", "bor": "or", "bxor": "xor"}.get(name, "and")
    out = inputs[0].clone()
    for t in inputs[1:]:
        out = getattr(torch, f"logical_{both}")(out, t)
    return out


def _fold_ints(inputs: list[np.ndarray], name: str) -> torch.Tensor:
    kind = inputs[0].dtype
    if name == "avg":
        total = np.zeros(inputs[0].shape, np.uint64 if kind.kind == "u" else np.int64)
        for a in inputs:
            total = total + a.astype(total.dtype)
        count = total.dtype.type(len(inputs))
        down = total // count
        up = ((total % count != 0) & (total < 0)).astype(total.dtype)
        return torch.from_numpy((down + up).astype(kind))
    call = {
        "sum": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }[name]
    out = inputs[0].copy()
    for a in inputs[1:]:
        out = call(out, a)
    return torch.from_numpy(out)


def _lesser(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    tie = torch.where(torch.signbit(a), a, b)
    out = torch.where(a < b, a, torch.where(b < a, b, tie))
    return torch.where(a.isnan(), a, torch.where(b.isnan(), b, out))


def _fold_floats(inputs: list[torch.Tensor], name: str) -> torch.Tensor:
    if name == "premul_sum":
        inputs = [_scaled(t, rank) for rank, t in enumerate(inputs)]
    out = inputs[0].clone()
    for t in inputs[1:]:
        if name == "product":
            out = out * t
        elif name == "min":
            out = _lesser(out, t)
        elif name == "max":
            out = -_lesser(-out, -t)
        else:
            out = out + t
    return out / len(inputs) if name == "avg" else out


def _fold_complex(inputs: list[torch.Tensor], name: str) -> torch.Tensor:
    parts = [torch.view_as_real(t) for t in inputs]
    if name != "product":
        return torch.view_as_complex(_fold_floats(parts, name).contiguous())
    real, imag = parts[0].unbind(-1)
    for t in parts[1:]:
        c, d = t.unbind(-1)
        real, imag = real * c - imag * d, real * d + imag * c
    return torch.view_as_complex(torch.stack((real, imag), -1))


def sums(places: torch.Tensor, values: torch.Tensor, count: int) -> torch.Tensor:
    """Rows 0 to count - 1: the sum, in their order, of the values whose place it is, or zeros.

    Flat. Layer by layer: the n-th value of every place, and what changes no sum where it has none.
    """
    width = math.prod(values.shape[1:]) * values.itemsize
    raw = values.reshape(-1).view(torch.uint8).reshape(len(values), width)
    nothing = torch.tensor([complex(-0.0, -0.0) if values.is_complex() else -0.0])
    blank = nothing.to(values.dtype).view(torch.uint8)
    blank = blank.repeat(count * width // values.itemsize).reshape(count, width)
    order = places.argsort(stable=True)
    turn = torch.arange(len(order)) - torch.searchsorted(places[order], places[order])
    layers = [blank]
    for rows in order[turn.argsort(stable=True)].split(turn.bincount().tolist()):
        layers.append(blank.clone())
        layers[-1][places[rows]] = raw[rows]
    total = fold([layer.reshape(-1).view(values.dtype) for layer in layers], "sum")
    out = torch.zeros_like(blank)
    out[places] = bits(total).reshape(count, width)[places]
    return out.reshape(-1).view(values.dtype)


def bits(t: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a tensor, one row for each element."""
    # A copy: a tensor of at most one element may have any stride, and view() asks for 1.
    flat = t.reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).reshape(t.numel(), t.dtype.itemsize)


def differ(got: torch.Tensor, want: torch.Tensor) -> str:
    """ "" when they are the same to the bit (NaN is as good as NaN), else where they are not."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if got.dtype in COMPLEX:
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    wrong = (bits(got) != bits(want)).any(1)
    if got.dtype in FLOATS:
        wide = torch.float64 if got.dtype == torch.float64 else torch.float32
        wrong &= ~(got.to(wide).isnan() & want.to(wide).isnan()).reshape(-1)
    if not wrong.any():
        return ""
    first = int(wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements, first {first}: "
        f"{got.reshape(-1)[first].tolist()} instead of {want.reshape(-1)[first].tolist()}"
    )
