# SPDX-License-Identifier: BSD-3-Clause
"""The operations with their buffers, each with its check. over_torch and over_mpi have the calls.

A check runs the operation on values that depend on the rank, the position and a salt, and
compares every element of every rank. It finds values that were swapped, shifted, left out, added twice
or kept from an earlier call. The values are whole numbers whose sums the dtype holds exactly, so
"wrong" never means rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shmcoll.bench.run import over_torch
from shmcoll.bench.ops import DTYPES, DType
from shmcoll.bench.plan import Point
from shmcoll.bench.run.startline import StartLine


@dataclass(frozen=True)
class Context:
    """The rank that calls, its group, and the arguments of its calls."""

    rank: int  # in the group that runs the operation, as the roots below
    members: Sequence[int]  # the ranks of the group, as the world counts them
    line: StartLine  # of all ranks
    how: Mapping[str, Any] = field(default_factory=dict)  # what ``over`` needs for a call
    over: Any = over_torch  # the module with the calls: this one or over_mpi

    @property
    def world_size(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class Call:
    """An operation with its buffers. The timed buffers hold zeros, so that sums stay finite.

    A check is ``give``, ``run`` and ``take`` with one salt.
    """

    run: Callable[[int], Any]  # of the iteration's number, which chooses the root; may be a Work
    give: Callable[[int], object]  # makes the rank's input of the salt
    take: Callable[[int], int]  # how many elements are wrong here; all are zeros again


def prepare(point: Point, context: Context) -> Call:
    return CALLS[point.op](point, context)


def make_computation() -> Callable[[int], None]:
    """Work for a CPU, in the first level cache and without Python's lock, as often as asked for."""
    values = torch.ones(2048)

    def compute(amount: int) -> None:
        for _ in range(amount):
            values.neg_()

    return compute


def pattern(rank: int, count: int, salt: int, dtype: DType, addends: int = 1) -> torch.Tensor:
    """Returns what a rank contributes. ``addends`` such values add up exactly."""
    return _to_dtype(_whole_numbers(rank, count, salt, dtype, addends), dtype)


def count_wrong(got: torch.Tensor, want: torch.Tensor) -> int:
    """Elements that differ; NaN always does."""
    return int((got != want).sum())


def _whole_numbers(rank: int, count: int, salt: int, dtype: DType, addends: int) -> torch.Tensor:
    """A hash of the position, with other constants for each rank and salt: no place, no rank and
    no call has the values of another. Of more ranks than the dtype can count up to, only every
    so-manieth gives something, at each place another one."""
    bits = max(1, (dtype.max_exact // addends + 1).bit_length() - 1)
    seed = (rank * 0x85EBCA6B + salt * 0xC2B2AE35 + 0x27D4EB2F) & 0xFFFFFFFF
    places = torch.arange(1, count * (2 if dtype.part else 1) + 1, dtype=torch.int32)
    values = places * _int32((seed * 0x9E3779B1) & 0xFFFFFFFF | 1) + _int32(seed)
    values.bitwise_xor_(values >> 15).mul_(0x2C1B3C6D)
    values.bitwise_right_shift_(32 - bits).bitwise_and_((1 << bits) - 1)
    givers = -(-addends // dtype.max_exact)
    return values if givers == 1 else values.mul_((places + rank) % givers == 0)


def _int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _to_dtype(values: torch.Tensor, dtype: DType) -> torch.Tensor:
    if dtype.scale != 1:
        values = values.to(torch.int64).mul_(dtype.scale)
    return values.to(getattr(torch, dtype.part or dtype.name)).view(getattr(torch, dtype.name))


def _dtype(point: Point) -> DType:
    assert point.dtype is not None
    return DTYPES[point.dtype]


def _buffer(point: Point, blocks: int = 1) -> torch.Tensor:
    """Memory that has been written to: untouched pages of zeros are all one page."""
    return torch.empty(point.count * blocks, dtype=getattr(torch, _dtype(point).name)).zero_()


def _mine_and_everyone(point: Point, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's block, which in place lies where it belongs, and the tensor of all blocks."""
    everyone = _buffer(point, blocks=context.world_size)
    if point.place == "in":
        return _block(everyone, context.rank, context.world_size), everyone
    return _buffer(point), everyone


def _sum(count: int, salt: int, dtype: DType, world_size: int) -> torch.Tensor:
    """Returns the sum of all ranks' patterns. Torch cannot add all dtypes. No partial sum is rounded in any."""
    total = _whole_numbers(0, count, salt, dtype, world_size)
    for rank in range(1, world_size):
        total += _whole_numbers(rank, count, salt, dtype, world_size)
    return _to_dtype(total, dtype)


def _block(values: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    return values.chunk(world_size)[rank]


def _wrong_blocks(everyone: torch.Tensor, salt: int, dtype: DType, context: Context) -> int:
    """Returns how many elements of a gathered result are wrong."""
    blocks = enumerate(everyone.chunk(context.world_size))
    return sum(count_wrong(b, pattern(rank, b.numel(), salt, dtype)) for rank, b in blocks)


def _call(
    point: Point,
    context: Context,
    run: Callable[[int], Any],
    wrong: Callable[[int], int],
    given: torch.Tensor,
    *others: torch.Tensor,
    addends: int = 1,
) -> Call:
    """The rank's pattern is in ``given``; salt and iteration choose the root alike. ``wrong``
    counts, and all buffers are zeros again."""
    dtype = _dtype(point)

    def give(salt: int) -> None:
        given.copy_(pattern(context.rank, given.numel(), salt, dtype, addends=addends))

    def take(salt: int) -> int:
        found = wrong(salt)
        for buffer in (given, *others):
            buffer.zero_()
        return found

    return Call(run, give, take)


def _all_reduce(point: Point, context: Context) -> Call:
    data, dtype, world_size = _buffer(point), _dtype(point), context.world_size

    run = context.over.all_reduce(context, data)

    def wrong(salt: int) -> int:
        return count_wrong(data, _sum(point.count, salt, dtype, world_size))

    return _call(point, context, run, wrong, data, addends=world_size)


def _broadcast(point: Point, context: Context) -> Call:
    data, dtype, world_size = _buffer(point), _dtype(point), context.world_size

    run = context.over.broadcast(context, data)

    def wrong(salt: int) -> int:
        return count_wrong(data, pattern(salt % world_size, point.count, salt, dtype))

    return _call(point, context, run, wrong, data)


def _reduce(point: Point, context: Context) -> Call:
    data, dtype, world_size = _buffer(point), _dtype(point), context.world_size

    run = context.over.reduce(context, data)

    def wrong(salt: int) -> int:
        if context.rank != salt % world_size:
            return 0  # nothing is promised of the others' tensors
        return count_wrong(data, _sum(point.count, salt, dtype, world_size))

    return _call(point, context, run, wrong, data, addends=world_size)


def _all_gather(point: Point, context: Context) -> Call:
    dtype = _dtype(point)
    mine, everyone = _mine_and_everyone(point, context)

    run = context.over.all_gather(context, mine, everyone)

    def wrong(salt: int) -> int:
        found = _wrong_blocks(everyone, salt, dtype, context)
        if point.place != "in":  # there it is one of the blocks
            found += count_wrong(mine, pattern(context.rank, point.count, salt, dtype))
        return found

    return _call(point, context, run, wrong, mine, everyone)


def _reduce_scatter(point: Point, context: Context) -> Call:
    dtype, world_size = _dtype(point), context.world_size
    mine, everyone = _mine_and_everyone(point, context)

    run = context.over.reduce_scatter(context, mine, everyone)

    def wrong(salt: int) -> int:
        total = _sum(everyone.numel(), salt, dtype, world_size)
        return count_wrong(mine, _block(total, context.rank, world_size))

    return _call(point, context, run, wrong, everyone, mine, addends=world_size)


def _all_to_all(point: Point, context: Context) -> Call:
    dtype, world_size = _dtype(point), context.world_size
    given, got = (_buffer(point, blocks=world_size) for _ in range(2))

    run = context.over.all_to_all(context, got, given)

    def wrong(salt: int) -> int:
        found = 0
        for rank, block in enumerate(got.chunk(world_size)):
            sent = pattern(rank, given.numel(), salt, dtype)
            found += count_wrong(block, _block(sent, context.rank, world_size))
        return found

    return _call(point, context, run, wrong, given, got)


def _gather(point: Point, context: Context) -> Call:
    mine, dtype, world_size = _buffer(point), _dtype(point), context.world_size
    everyone = _buffer(point, blocks=world_size)
    run = context.over.gather(context, mine, everyone)

    def wrong(salt: int) -> int:
        if context.rank != salt % world_size:
            return 0
        return _wrong_blocks(everyone, salt, dtype, context)

    return _call(point, context, run, wrong, mine, everyone)


def _scatter(point: Point, context: Context) -> Call:
    mine, dtype, world_size = _buffer(point), _dtype(point), context.world_size
    everyone = _buffer(point, blocks=world_size)  # only the root's is looked at
    run = context.over.scatter(context, mine, everyone)

    def wrong(salt: int) -> int:
        sent = pattern(salt % world_size, everyone.numel(), salt, dtype)
        return count_wrong(mine, _block(sent, context.rank, world_size))

    return _call(point, context, run, wrong, everyone, mine)


def _sendrecv(point: Point, context: Context) -> Call:
    """Everybody to the next rank, and from the one before."""
    dtype = _dtype(point)
    given, got = _buffer(point), _buffer(point)
    following = (context.rank + 1) % context.world_size
    before = (context.rank - 1) % context.world_size
    run = context.over.sendrecv(context, given, following, got, before)

    def wrong(salt: int) -> int:
        return count_wrong(got, pattern(before, point.count, salt, dtype))

    return _call(point, context, run, wrong, given, got)


def _ping_pong(point: Point, context: Context) -> Call:
    """Between ranks 0 and 1, 2 and 3, ...: there, and what has come back again. With an odd number
    of ranks the last one has nobody."""
    dtype, peer = _dtype(point), context.rank ^ 1
    given, got = _buffer(point), _buffer(point)
    alone = peer >= context.world_size
    run = (lambda i: None) if alone else context.over.ping_pong(context, given, got, peer)

    def wrong(salt: int) -> int:
        if alone:
            return 0
        return count_wrong(got, pattern(context.rank & ~1, point.count, salt, dtype))

    return _call(point, context, run, wrong, given, got)


def _barrier(point: Point, context: Context) -> Call:
    run = context.over.barrier(context)

    def take(salt: int) -> int:
        wrong = 0
        for late in range(min(context.world_size, 8)):
            if context.rank == late:
                time.sleep(0.005)
            context.line.enter()
            work = run(salt)
            if work is not None:
                work.wait()
            wrong += context.line.missing(context.members)
            context.line.wait()  # nobody enters the next one before all have looked
        return wrong

    return Call(run, lambda salt: None, take)


CALLS: dict[str, Callable[[Point, Context], Call]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "sendrecv": _sendrecv,
    "ping_pong": _ping_pong,
    "barrier": _barrier,
}
