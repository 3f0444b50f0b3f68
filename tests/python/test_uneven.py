# SPDX-License-Identifier: BSD-3-Clause
"""all_gather and reduce_scatter with lists of unequal sizes, and coalesced lists of gathers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import oracle
from ranks import Rank, describe, outcomes, run

WORLDS = (1, 2, 3, pytest.param(5, marks=pytest.mark.long))
SCALES = (0, 1, 7, 250, 1021, 3000, 40_000)


def size_of(rank: int, scale: int) -> int:
    """Elements that belong to a rank; some have none."""
    return scale * ((rank * 3 + 1) % 4) + (rank == 1)


def check_gather(rank: Rank, dtype: torch.dtype, scale: int, asynchronous: bool = False) -> None:
    count = [size_of(r, scale) * dtype.itemsize for r in range(rank.world)]
    byte = torch.uint8 if dtype != torch.bool else torch.bool
    pieces = [oracle.sample(byte, n, seed=r).view(dtype) for r, n in enumerate(count)]
    outputs = [oracle.sample(byte, n, seed=99).view(dtype) for n in count]
    mine = pieces[rank.rank].clone()
    work = dist.all_gather(outputs, mine, async_op=asynchronous)
    if work is not None:
        work.wait()
    for r, piece in enumerate(pieces):
        assert torch.equal(oracle.bits(outputs[r]), oracle.bits(piece)), (dtype, scale, r)
    assert torch.equal(oracle.bits(mine), oracle.bits(pieces[rank.rank])), "the input has changed"


def check_reduce_scatter(rank: Rank, dtype: torch.dtype, name: str, scale: int) -> None:
    sizes = [size_of(r, scale) for r in range(rank.world)]
    wholes = [oracle.plain(dtype, sum(sizes), seed=r) for r in range(rank.world)]
    want = oracle.fold(wholes, name).split(sizes)[rank.rank]
    output = torch.zeros_like(want)
    inputs = list(wholes[rank.rank].clone().split(sizes))
    dist.reduce_scatter(output, inputs, oracle.reduce_op(name, rank.rank))
    assert not oracle.differ(output, want), (dtype, name, scale)
    same = torch.equal(oracle.bits(torch.cat(inputs)), oracle.bits(wholes[rank.rank]))
    assert same, "the input has changed"


@pytest.mark.parametrize("world", WORLDS)
def test_lists_at_every_size(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for scale in SCALES:
            check_gather(rank, torch.float32, scale, asynchronous=scale % 2 == 0)
            check_reduce_scatter(rank, torch.float32, "sum", scale)

    run(world, body)


def test_gathers_of_every_dtype() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for dtype in (*oracle.REDUCIBLE, *oracle.MOVED_ONLY):
            for scale in (1, 300, 5000):
                check_gather(rank, dtype, scale)

    run(3, body)


def test_reduce_scatter_of_every_dtype_and_reduction() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for dtype in oracle.REDUCIBLE:
            for name in oracle.NAMES:
                if oracle.supported(dtype, name):
                    for scale in (2, 3000):
                        check_reduce_scatter(rank, dtype, name, scale)

    run(3, body)


def test_reduce_scatter_gives_the_bits_of_all_reduce() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for scale in (5, 30_001):
            sizes = [size_of(r, scale) for r in range(3)]
            mine = oracle.plain(torch.bfloat16, sum(sizes), seed=rank.rank)
            part = torch.empty(sizes[rank.rank], dtype=torch.bfloat16)
            dist.reduce_scatter(part, list(mine.split(sizes)))
            dist.all_reduce(mine)
            assert torch.equal(part, mine.split(sizes)[rank.rank])

    run(3, body)


def test_shapes_and_strides_are_the_callers_own() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        outputs = [torch.zeros(4, 3).t(), torch.zeros(100, 70)[:, ::7], torch.zeros(())]
        mine = [torch.arange(12.0), torch.arange(1000.0).reshape(2, 500), torch.tensor(5.0)]
        dist.all_gather(outputs, mine[rank.rank])
        for output, piece in zip(outputs, mine):
            assert torch.equal(output.reshape(-1), piece.reshape(-1))

        inputs = [t.clone() for t in outputs]
        output = outputs[rank.rank].zero_()
        dist.reduce_scatter(output, inputs)
        assert torch.equal(output.reshape(-1), 3 * mine[rank.rank].reshape(-1))

    run(3, body)


def test_only_the_elements_of_a_strided_output_are_written() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        wide = torch.full((3000, 3), -1.0)
        outputs = [wide[:, 1], torch.zeros(5)]
        dist.all_gather(outputs, torch.full((3000 if rank.rank == 0 else 5,), rank.rank + 1.0))
        assert (wide[:, 1] == 1).all() and (wide[:, ::2] == -1).all() and (outputs[1] == 2).all()

    run(2, body)


DIFFERENT = {
    "all_gather": (
        lambda rank, n: [torch.full((m,), -1.0) for m in (n, 3, n + (rank == 2))],
        lambda rank, n, many: dist.all_gather(many, torch.full((many[rank].numel(),), 1.0)),
        "rank 2 gives {more} elements, but rank 0 has room for {n}",
    ),
    "reduce_scatter": (
        lambda rank, n: [torch.full((m,), -1.0) for m in (n, 3, n + (rank == 2))],
        lambda rank, n, many: dist.reduce_scatter(torch.empty(many[rank].numel()), many),
        "the output of rank 2 has {more} elements, but rank 0 gives it {n}",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("n", [5, 30_000])
def test_sizes_that_differ_are_told_on_every_rank(name: str, n: int) -> None:
    make, call, text = DIFFERENT[name]

    def body(rank: Rank) -> None:
        rank.init()
        many = make(rank.rank, n)
        try:
            call(rank.rank, n, many)
        finally:
            rank.sync()
            print("CHANGED" if any((t != -1).any() for t in many) else "unchanged")

    for outcome in outcomes(3, body):
        assert outcome.error == "DistBackendError", describe(outcome)
        assert text.format(n=n, more=n + 1) in outcome.text, describe(outcome)
        assert "unchanged" in outcome.output, describe(outcome)


def test_an_even_list_beside_an_uneven_one_is_told_with_both_numbers() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        outputs = [torch.zeros(3), torch.zeros(3 + rank.rank)]
        try:
            dist.all_gather(outputs, torch.ones(3 + rank.rank))
        finally:
            rank.sync()

    for outcome in outcomes(2, body):
        assert outcome.error == "DistBackendError", describe(outcome)
        assert "called all_gather #1 (float32[3])" in outcome.text
        assert "called uneven all_gather #1 (float32[7 in all])" in outcome.text


# ---- coalesced lists ----


@pytest.mark.parametrize("world", WORLDS)
def test_coalesced_gathers_of_lists(world: int) -> None:
    shapes = [(2, 3), (0,), (), (41, 100), (3, 1, 2)]

    def body(rank: Rank) -> None:
        rank.init()
        for dtype in (torch.float32, torch.int64, torch.complex64):
            for asynchronous in (False, True):
                inputs = [
                    torch.full(shape, 10 * rank.rank + i, dtype=dtype)
                    for i, shape in enumerate(shapes)
                ]
                outputs = [[torch.zeros(s, dtype=dtype) for s in shapes] for _ in range(world)]
                outputs[0][3] = torch.zeros((100, 41), dtype=dtype).t()
                work = dist.all_gather_coalesced(outputs, inputs, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                for r, tensors in enumerate(outputs):
                    for i, tensor in enumerate(tensors):
                        assert tensor.shape == shapes[i] and (tensor == 10 * r + i).all(), (r, i)

    run(world, body)


def test_a_coalesced_gather_is_one_operation() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        group = dist.group.WORLD._get_backend(torch.device("cpu"))
        before = group._get_sequence_number_for_group()
        outputs = [[torch.zeros(3), torch.zeros(4)] for _ in range(2)]
        dist.all_gather_coalesced(outputs, [torch.ones(3), torch.ones(4)])
        assert group._get_sequence_number_for_group() == before + 1

    run(2, body)
