# SPDX-License-Identifier: BSD-3-Clause
"""reduce, gather, scatter: the root's part, every size class, to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import features
import oracle
from ranks import Rank, run

WORLDS = (1, 2, 3, 5)
COUNTS = (0, 1, 9, 10, 11, 12, 13, 2047, 2049, 8193, 100_003)


def check_reduce(rank: Rank, dtype: torch.dtype, name: str, count: int, root: int) -> None:
    inputs = [oracle.plain(dtype, count, seed=r) for r in range(rank.world)]
    mine = inputs[rank.rank].clone()
    dist.reduce(mine, root, oracle.reduce_op(name, rank.rank))
    want = oracle.fold(inputs, name) if rank.rank == root else inputs[rank.rank]
    assert not oracle.differ(mine, want), (dtype, name, count, root)


def check_move(rank: Rank, dtype: torch.dtype, count: int, root: int) -> None:
    """A scatter and the gather that undoes it."""
    pieces = [oracle.sample(torch.uint8, count * dtype.itemsize, seed=r) for r in range(rank.world)]
    blocks = [piece.view(dtype) for piece in pieces]
    mine = torch.zeros(count, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)
    dist.scatter(mine, blocks if rank.rank == root else None, root)
    assert torch.equal(mine.view(torch.uint8), pieces[rank.rank]), (dtype, count, root)
    outputs = [torch.zeros_like(mine) for _ in blocks] if rank.rank == root else None
    dist.gather(mine, outputs, root)
    for output, piece in zip(outputs or [], pieces):
        assert torch.equal(output.view(torch.uint8), piece), (dtype, count, root)
    if features.GATHER_SINGLE:
        flat = torch.zeros_like(torch.cat(pieces)).view(dtype) if rank.rank == root else None
        dist.gather_single(mine, flat, root)
        assert flat is None or torch.equal(flat.view(torch.uint8), torch.cat(pieces))


@pytest.mark.parametrize("world", WORLDS)
def test_every_size_and_root(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for i, count in enumerate(COUNTS):
            check_reduce(rank, torch.float32, "sum", count, root=i % world)
            check_move(rank, torch.float32, count, root=(i + 1) % world)

    run(world, body)


def test_every_dtype_and_reduction() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for dtype in oracle.REDUCIBLE:
            for count in (5, 900, 9001):
                if dtype != torch.bool:
                    check_move(rank, dtype, count, root=2)
                for name in oracle.NAMES:
                    if oracle.supported(dtype, name):
                        check_reduce(rank, dtype, name, count, root=1)

    run(3, body)


def test_asynchronous_calls_give_their_results() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        total = torch.full((3000,), rank.rank + 1.0)
        outputs = [torch.empty(2) for _ in range(rank.world)] if rank.rank == 0 else None
        mine = torch.empty(4)
        blocks = [torch.full((4,), float(r)) for r in range(rank.world)] if rank.rank == 1 else None
        works = [
            dist.reduce(total, 0, async_op=True),
            dist.gather(torch.full((2,), float(rank.rank)), outputs, 0, async_op=True),
            dist.scatter(mine, blocks, 1, async_op=True),
        ]
        for work in reversed(works):
            work.wait()
        assert mine.tolist() == [float(rank.rank)] * 4
        if rank.rank == 0:
            assert total[0] == 6 and outputs is not None
            assert [o.tolist() for o in outputs] == [[float(r)] * 2 for r in range(3)]

    run(3, body)


@features.needs_gather_single
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_flat_gather_checks_its_root_and_leaves_the_others_alone(asynchronous: bool) -> None:
    """Calls the backend itself, without the checks that torch's function does before."""

    def gather(output: torch.Tensor, mine: torch.Tensor) -> list[torch.Tensor]:
        options = dist.GatherOptions()
        options.rootRank, options.asyncOp = 1, asynchronous
        work = dist.group.WORLD.gather_single(output, mine, options)
        if not asynchronous:
            assert work is None
            return []
        work.wait()
        return work.result()

    def body(rank: Rank) -> None:
        rank.init()
        mine, spare = torch.full((2, 3), float(rank.rank)), torch.full((5,), 7.0)
        output = torch.zeros(4, 3) if rank.rank == 1 else spare
        result = gather(output, mine)
        assert spare.tolist() == [7.0] * 5
        if rank.rank == 1:
            assert output.tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
            assert not asynchronous or result[0] is output
            with pytest.raises(TypeError, match="the input is Float, the output Int"):
                gather(torch.zeros(12, dtype=torch.int32), mine)
            with pytest.raises(ValueError, match="gather: 2 ranks with 6 elements each"):
                gather(torch.zeros(11), mine)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2

    run(2, body)


def test_layouts_are_the_callers_own() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        wide = torch.arange(6000.0).reshape(60, 100).t()
        outputs = [torch.zeros(60, 100).t() for _ in range(2)] if rank.rank == 1 else None
        dist.gather(wide, outputs, 1)
        assert all(torch.equal(output, wide) for output in outputs or [])
        column = torch.zeros(50, 3)
        blocks = [torch.arange(100.0)[r::2] for r in range(2)] if rank.rank == 1 else None
        dist.scatter(column[:, 1], blocks, 1)
        assert torch.equal(column[:, 1], torch.arange(100.0)[rank.rank :: 2])
        assert not column[:, ::2].any()

    run(2, body)


def test_object_collectives_have_what_they_need() -> None:
    def body(rank: Rank) -> object:
        rank.init()
        gathered: list[object] | None = [None] * 3 if rank.rank == 2 else None
        dist.gather_object({"rank": rank.rank, "more": "x" * rank.rank * 5000}, gathered, 2)
        mine: list[object] = [None]
        dist.scatter_object_list(mine, [["a"], "b" * 9000, 3] if rank.rank == 0 else None, 0)
        return gathered and [entry["rank"] for entry in gathered], mine[0]

    assert run(3, body) == [(None, ["a"]), (None, "b" * 9000), ([0, 1, 2], 3)]
