# SPDX-License-Identifier: BSD-3-Clause
"""reduce_scatter and all_to_all: every form and size class, to the bit."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

import oracle
from ranks import Rank, outcomes, run

WORLDS = (1, 2, 3, 5)
COUNTS = (0, 1, 2, 5, 10, 11, 700, 2049, 8193, 100_003)


def reduce_scatter_flat(output: torch.Tensor, whole: torch.Tensor, **options: object) -> object:
    """Under its present name."""
    call = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    return call(output, whole, **options)


def check_reduce_scatter(rank: Rank, dtype: torch.dtype, name: str, count: int) -> None:
    inputs = [oracle.plain(dtype, count * rank.world, seed=r) for r in range(rank.world)]
    mine = inputs[rank.rank].clone()
    op = oracle.reduce_op(name, rank.rank)
    want = oracle.fold(inputs, name)[rank.rank * count : (rank.rank + 1) * count]
    flat = torch.zeros_like(want)
    reduce_scatter_flat(flat, mine, op=op)
    assert not oracle.differ(flat, want), (dtype, name, count, "flat")
    listed = torch.zeros_like(want)
    dist.reduce_scatter(listed, list(mine.split(count) if count else [mine] * rank.world), op)
    assert not oracle.differ(listed, want), (dtype, name, count, "list")
    assert torch.equal(oracle.bits(mine), oracle.bits(inputs[rank.rank])), "the input has changed"


@pytest.mark.parametrize("world", WORLDS)
def test_reduce_scatter_at_every_size(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for count in COUNTS:
            check_reduce_scatter(rank, torch.float32, "sum", count)

    run(world, body)


def test_reduce_scatter_of_every_dtype_and_reduction() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for dtype in oracle.REDUCIBLE:
            for name in oracle.NAMES:
                if oracle.supported(dtype, name):
                    for count in (3, 300, 6001):
                        check_reduce_scatter(rank, dtype, name, count)

    run(3, body)


def test_reduce_scatter_gives_the_bits_of_all_reduce() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for count in (7, 2000, 70_001):
            mine = oracle.plain(torch.bfloat16, count * 3, seed=rank.rank)
            part = torch.empty(count, dtype=torch.bfloat16)
            reduce_scatter_flat(part, mine)
            dist.all_reduce(mine)
            assert torch.equal(part, mine[rank.rank * count : (rank.rank + 1) * count])

    run(3, body)


# ---- all_to_all ----


def rows(source: int, target: int, scale: int) -> int:
    """How many rows go from one rank to another; also none."""
    return scale * ((source * 3 + target * 5) % 4)


def block(source: int, target: int, count: int) -> torch.Tensor:
    """Rows of two elements that say whence and whither."""
    return torch.arange(2.0 * count).reshape(count, 2) + 1000 * source + 100 * target


def check_single(rank: Rank, scale: int) -> None:
    me, world = rank.rank, rank.world
    sent = [rows(me, r, scale) for r in range(world)]
    got = [rows(r, me, scale) for r in range(world)]
    whole = torch.cat([block(me, r, count) for r, count in enumerate(sent)])
    output = torch.full((sum(got), 2), -1.0)
    dist.all_to_all_single(output, whole, got, sent)
    want = torch.cat([block(r, me, count) for r, count in enumerate(got)])
    assert torch.equal(output, want), scale


def check_list(rank: Rank, scale: int, asynchronous: bool) -> None:
    me, world = rank.rank, rank.world
    inputs = [block(me, r, rows(me, r, scale)).t() for r in range(world)]
    outputs = [torch.full((2, rows(r, me, scale)), -1.0) for r in range(world)]
    work = dist.all_to_all(outputs, inputs, async_op=asynchronous)
    if asynchronous:
        work.wait()
    for r in range(world):
        assert torch.equal(outputs[r], block(r, me, rows(r, me, scale)).t()), (scale, r)


@pytest.mark.parametrize("world", WORLDS)
def test_all_to_all_with_uneven_splits(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for scale in (0, 1, 30, 250, 3000, 40_000):
            check_single(rank, scale)
            check_list(rank, scale, asynchronous=scale % 4 == 0)

    run(world, body)


@pytest.mark.parametrize("world", (2, 3))
def test_all_to_all_single_with_even_splits_of_every_dtype(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for dtype in (*oracle.REDUCIBLE, *oracle.MOVED_ONLY):
            for count in (1, 9, 3001):
                size = count * dtype.itemsize
                byte = torch.uint8 if dtype != torch.bool else torch.bool
                pieces = [
                    [oracle.sample(byte, size, seed=10 * s + t) for t in range(world)]
                    for s in range(world)
                ]
                whole = torch.cat(pieces[rank.rank]).view(dtype)
                output = torch.empty_like(whole)
                dist.all_to_all_single(output, whole)
                want = torch.cat([pieces[s][rank.rank] for s in range(world)])
                assert torch.equal(output.view(torch.uint8), want.view(torch.uint8)), dtype

    run(world, body)


def test_a_large_block_between_two_ranks_passes_small_ones() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        sent = [1, 1, 1]
        if rank.rank == 0:
            sent = [1, 1, 3_000_000]
        got = [1, 1, 1] if rank.rank != 2 else [3_000_000, 1, 1]
        output = torch.zeros(sum(got), dtype=torch.int32)
        dist.all_to_all_single(output, torch.arange(sum(sent), dtype=torch.int32), got, sent)
        if rank.rank == 2:
            assert torch.equal(output[:3_000_000], torch.arange(2, 3_000_002, dtype=torch.int32))

    run(3, body)


def test_splits_that_differ_are_told_on_every_rank() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        output = torch.full((6 - (rank.rank == 1),), -1.0)
        got = [2, 2, 2] if rank.rank != 1 else [2, 2, 1]
        with pytest.raises(dist.DistBackendError) as error:
            dist.all_to_all_single(output, torch.zeros(6), got, [2, 2, 2])
        assert "rank 2 sends 2 elements to rank 1, which expects 1" in str(error.value)
        assert torch.equal(output, torch.full_like(output, -1))

    ended = outcomes(3, body)
    assert [(outcome.error, outcome.exit) for outcome in ended] == [("", 0)] * 3, ended


def test_blocks_of_two_ranks_may_need_more_than_32_bits() -> None:
    """The tables of two ranks are narrower in their call lines while that is enough."""

    def body(rank: Rank) -> None:
        rank.init()
        huge = torch.zeros(1, dtype=torch.uint8).expand(2**32 + rank.rank)
        inputs = [torch.zeros(1, dtype=torch.uint8)] * 2
        inputs[rank.rank] = huge
        with pytest.raises(dist.DistBackendError) as error:
            dist.all_to_all([torch.zeros(1, dtype=torch.uint8) for _ in range(2)], inputs)
        assert "rank 0 sends 4294967296 elements to rank 0, which expects 1" in str(error.value)

    ended = outcomes(2, body)
    assert [(outcome.error, outcome.exit) for outcome in ended] == [("", 0)] * 2, ended


def test_blocks_around_the_size_that_goes_with_the_call() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        me, other = rank.rank, 1 - rank.rank
        for sizes in itertools.product((0, 1, 31, 32, 33, 64), repeat=2):
            sent = [5, 5]
            sent[other] = sizes[me]
            got = [5, 5]
            got[other] = sizes[other]
            output = torch.zeros(sum(got), dtype=torch.uint8)
            source = torch.arange(sum(sent), dtype=torch.uint8) + 100 * me
            dist.all_to_all_single(output, source, got, sent)
            begin = 0 if other == 1 else 5  # of what the other one sends to me
            theirs = torch.arange(begin, begin + sizes[other], dtype=torch.uint8) + 100 * other
            mine = source[:5] if me == 0 else source[sizes[me] :]
            want = torch.cat((mine, theirs) if me == 0 else (theirs, mine))
            assert torch.equal(output, want), sizes

    run(2, body)
