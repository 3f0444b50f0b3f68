# SPDX-License-Identifier: BSD-3-Clause
"""broadcast, all_gather, barrier: every dtype and size class, to the bit."""

from __future__ import annotations

import re
import time

import pytest
import torch
import torch.distributed as dist

import oracle
from ranks import Rank, now_ns, run, seconds

WORLDS = (1, 2, 3, pytest.param(5, marks=pytest.mark.long))
SIZES = (0, 1, 40, 47, 48, 49, 8191, 8192, 8193, 32767, 32768, 32769, 65536, 1 << 20, 5_000_001)
DTYPES = (*oracle.REDUCIBLE, *oracle.MOVED_ONLY)


def sample(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Any bits; of a bool, values."""
    if dtype == torch.bool:
        return oracle.sample(dtype, count, seed)
    return oracle.sample(torch.uint8, count * dtype.itemsize, seed).view(dtype)


def all_gather_flat(output: torch.Tensor, piece: torch.Tensor, **options: bool) -> object:
    """Under its present name."""
    call = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    return call(output, piece, **options)


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(oracle.bits(got), oracle.bits(want))


def check_broadcast(rank: Rank, dtype: torch.dtype, count: int, root: int) -> None:
    mine = sample(dtype, count, seed=rank.rank)
    assert dist.broadcast(mine, root) is None
    assert same_bits(mine, sample(dtype, count, seed=root)), (dtype, count, root)


def check_gather(rank: Rank, dtype: torch.dtype, count: int) -> None:
    pieces = [sample(dtype, count, seed=r) for r in range(rank.world)]
    mine = pieces[rank.rank].clone()
    outputs = [sample(dtype, count, seed=99) for _ in pieces]
    assert dist.all_gather(outputs, mine) is None
    flat = sample(dtype, count * rank.world, seed=98)
    assert all_gather_flat(flat, mine) is None
    assert same_bits(mine, pieces[rank.rank]), "the input has changed"
    for r, piece in enumerate(pieces):
        assert same_bits(outputs[r], piece), (dtype, count, "list", r)
        assert same_bits(flat[r * count : (r + 1) * count], piece), (dtype, count, "flat", r)


@pytest.mark.parametrize("world", WORLDS)
def test_broadcast_gives_the_roots_bytes_at_every_size(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for i, size in enumerate(SIZES):
            check_broadcast(rank, torch.uint8, size, root=i % world)
        for root in range(world):
            check_broadcast(rank, torch.float32, 5000, root)

    run(world, body)


@pytest.mark.parametrize("world", WORLDS)
def test_all_gather_orders_by_rank_at_every_size(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for size in SIZES[:-1] + (1_000_003,):
            check_gather(rank, torch.uint8, size)

    run(world, body)


@pytest.mark.parametrize("world", (2, 3))
def test_every_dtype_is_moved_to_the_bit(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for dtype in DTYPES:
            for count in (1, 5, 700, 9001):
                check_broadcast(rank, dtype, count, root=world - 1)
                check_gather(rank, dtype, count)

    run(world, body)


def test_a_large_all_gather_into_views_of_one_buffer() -> None:
    """FSDP does this: each rank's input is its own block of the output."""

    def body(rank: Rank) -> None:
        rank.init()
        for count in (1, 7, 1500, 400_000):
            whole = torch.full((count * rank.world,), -1.0)
            mine = whole[rank.rank * count : (rank.rank + 1) * count]
            mine.copy_(oracle.plain(torch.float32, count, seed=rank.rank))
            all_gather_flat(whole, mine)
            want = [oracle.plain(torch.float32, count, seed=r) for r in range(rank.world)]
            assert torch.equal(whole, torch.cat(want))

    run(3, body)


def test_flat_all_gather_takes_a_stacked_output() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        out = torch.empty(3, 2, 5)
        all_gather_flat(out, torch.full((2, 5), float(rank.rank)))
        assert torch.equal(out, torch.arange(3.0).reshape(3, 1, 1).expand(3, 2, 5))

    run(3, body)


def test_coalesced_gathers_fill_every_output() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        inputs = [torch.full((n,), rank.rank * 10.0 + n) for n in (1, 0, 40, 9000)]
        outputs = [torch.full((t.numel() * rank.world,), -1.0) for t in inputs]
        group = dist.group.WORLD
        work = group.allgather_into_tensor_coalesced(outputs, inputs)
        work.wait()
        for output, n in zip(outputs, (1, 0, 40, 9000)):
            want = [torch.full((n,), r * 10.0 + n) for r in range(rank.world)]
            assert torch.equal(output, torch.cat(want))

    run(3, body)


def test_objects_of_any_kind_are_broadcast_and_gathered() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = {"rank": rank.rank, "text": "x" * (20_000 * rank.rank), "tensor": torch.arange(3)}
        gathered: list[object] = [None] * rank.world
        dist.all_gather_object(gathered, mine)
        assert [one["rank"] for one in gathered] == [0, 1, 2]
        assert [len(one["text"]) for one in gathered] == [0, 20_000, 40_000]
        things = [mine, "a"] if rank.rank == 2 else [None, None]
        dist.broadcast_object_list(things, src=2)
        assert things[0]["rank"] == 2 and torch.equal(things[0]["tensor"], torch.arange(3))
        assert things[1] == "a"

    run(3, body)


@pytest.mark.parametrize("world", (2, 5))
def test_nobody_leaves_a_barrier_before_everybody_has_come(world: int) -> None:
    def body(rank: Rank) -> list[tuple[int, int]]:
        rank.init()
        times = []
        for turn in range(6):
            if turn % world == rank.rank:
                time.sleep(0.02)
            come = now_ns()
            dist.barrier()
            times.append((come, now_ns()))
        for _ in range(200):
            dist.barrier()
        return times

    for turn in zip(*run(world, body)):
        assert min(left for _, left in turn) >= max(come for come, _ in turn)


def test_a_barrier_takes_a_time_out_of_its_own() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        if rank.rank == 1:
            rank.sync()
            return ""
        group = dist.group.WORLD
        options = dist.BarrierOptions()
        options.timeout = seconds(0.2)
        options.asyncOp = False
        begin = time.monotonic()
        try:
            group.barrier(options)
        except dist.DistBackendError as error:
            assert 0.2 <= time.monotonic() - begin < 5
            return str(error)
        finally:
            rank.sync()
        return "no error"

    text = run(2, body)[0]
    assert re.search(r"Timed out after [0-4]\.\d{3} s", text) and "rank 1" in text, text


def test_rank_and_world_size_are_the_groups() -> None:
    def body(rank: Rank) -> tuple[int, int, str, str]:
        rank.init()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        return dist.get_rank(), dist.get_world_size(), dist.get_backend(), backend.name()

    assert run(3, body) == [(r, 3, "shmcoll", "shmcoll") for r in range(3)]
