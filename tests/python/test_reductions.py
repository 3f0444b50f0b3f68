# SPDX-License-Identifier: BSD-3-Clause
"""all_reduce: every dtype and reduction, at every size class, equal to an oracle to the bit."""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.distributed as dist

import oracle
from ranks import Rank, run

WORLDS = (1, 2, 3, pytest.param(5, marks=pytest.mark.long))

FAMILIES = {
    "signed": oracle.SIGNED,
    "unsigned": (*oracle.UNSIGNED, torch.bool),
    "float8": oracle.FLOAT8,
    "float": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    "complex": oracle.COMPLEX,
}

# Bytes around the bounds between algorithms (src/shm/coll/select.c), and several chunks.
SMALL = (0, 8, 32, 40, 48, 56, 8184, 8192, 8200)
LARGE = (32760, 32768, 32776, 65536, (1 << 20) + 8, 3 * (1 << 20) + 24)


def inputs_of(dtype: torch.dtype, count: int, world: int, seed: int = 0) -> list[torch.Tensor]:
    return [oracle.sample(dtype, count, seed * 100 + rank) for rank in range(world)]


def reduced(rank: Rank, dtype: torch.dtype, count: int, name: str) -> str:
    """The SHA-1 of the result, which is compared with the oracle's."""
    inputs = inputs_of(dtype, count, rank.world, seed=count)
    mine = inputs[rank.rank].clone()
    reduce_directly(mine, oracle.reduce_op(name, rank.rank))
    wrong = oracle.differ(mine, oracle.fold(inputs, name))
    assert not wrong, f"{name} of {count} x {dtype}: {wrong}"
    return hashlib.sha1(oracle.bits(mine).numpy().tobytes()).hexdigest()


def reduce_directly(tensor: torch.Tensor, op: dist.ReduceOp) -> None:
    """Reduces without dist.all_reduce, which passes complex tensors on as real ones, and refuses products."""
    options = dist.AllreduceOptions()
    options.reduceOp = op
    options.asyncOp = False
    work = dist.group.WORLD.allreduce([tensor], options)
    assert work is None or work.is_completed()


def sweep(rank: Rank, cases: list[tuple[torch.dtype, int, str]]) -> list[str]:
    rank.init()
    return [reduced(rank, *case) for case in cases]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_reduction_of_every_dtype_is_exact_on_all_ranks(family: str, world: int) -> None:
    cases = [
        (dtype, count, name)
        for dtype in FAMILIES[family]
        for name in oracle.NAMES
        for count in (1, 40 // dtype.itemsize, 333, 9001)
        if oracle.supported(dtype, name)
    ]
    hashes = run(world, sweep, cases)
    assert all(mine == hashes[0] for mine in hashes), "ranks hold different bits"
    if world > 1:  # else all reductions but avg and premul_sum give the input
        assert len(set(hashes[0])) > len(cases) / 2, "the inputs are too much alike"


@pytest.mark.parametrize("world", WORLDS)
def test_every_size_class_is_exact_on_all_ranks(world: int) -> None:
    cases = [(torch.float32, size // 4, "sum") for size in (*SMALL, *LARGE)]
    cases += [(torch.float32, size // 4, "premul_sum") for size in (*SMALL, *LARGE[:4])]
    cases += [(torch.int8, size + 1, "max") for size in (*SMALL, *LARGE[:4])]
    cases += [(torch.bfloat16, size // 2 + 1, "avg") for size in (*SMALL, *LARGE[:4])]
    cases += [(torch.complex128, size // 16, "product") for size in (*SMALL, *LARGE[:4])]
    hashes = run(world, sweep, cases)
    assert all(mine == hashes[0] for mine in hashes)


@pytest.mark.parametrize("settings", [{"SHMCOLL_THREADS": "2"}, {"SHMCOLL_CPU": "base"}], ids=str)
def test_threads_and_instruction_set_do_not_change_a_bit(settings: dict[str, str]) -> None:
    """The bits, NaN's included, of the run without the setting."""
    cases = [(torch.float32, size // 4, "sum") for size in LARGE]
    cases += [(torch.float16, 300_001, "avg"), (torch.bfloat16, 300_001, "premul_sum")]

    def clean(rank: Rank) -> list[str]:
        rank.init()
        out = []
        for dtype, count, name in cases:
            mine = oracle.plain(dtype, count, seed=rank.rank)
            dist.all_reduce(mine, oracle.reduce_op(name, rank.rank))
            out.append(hashlib.sha1(oracle.bits(mine).numpy().tobytes()).hexdigest())
        return out

    assert run(3, clean, env=settings) == run(3, clean)
    run(2, sweep, cases, env=settings)  # and right


def test_a_result_does_not_depend_on_the_message_around_it() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        whole = oracle.plain(torch.float32, 100_000, seed=rank.rank)
        parts = whole.clone()
        dist.all_reduce(whole)
        for begin, end in ((0, 3), (3, 1500), (1500, 60_000), (60_000, 100_000)):
            dist.all_reduce(parts[begin:end])
        assert torch.equal(whole, parts)

    run(3, body)


def test_the_same_call_gives_the_same_bits_every_time() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = oracle.plain(torch.float32, 50_000, seed=rank.rank)
        first = mine.clone()
        dist.all_reduce(first)
        for _ in range(10):
            again = mine.clone()
            dist.all_reduce(again)
            assert torch.equal(first, again)

    run(5, body)


def test_denormals_are_kept_when_torch_flushes_them() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for count in (4, 1000, 100_000):
            tiny = torch.full((count,), 0x00000001, dtype=torch.int32).view(torch.float32)
            torch.set_flush_denormal(True)
            try:
                dist.all_reduce(tiny)
            finally:
                torch.set_flush_denormal(False)
            assert (tiny.view(torch.int32) == rank.world).all()

    run(2, body)


def test_a_premul_factor_may_be_a_tensor() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        mine = torch.full((3,), rank.rank + 1.0)
        dist.all_reduce(mine, dist._make_nccl_premul_sum(torch.tensor([2.0 + rank.rank])))
        return mine.tolist()

    assert run(2, body) == [[2.0 + 6.0] * 3] * 2


def test_complex_tensors_are_reduced_as_torch_hands_them_on() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        inputs = inputs_of(torch.complex64, 1000, rank.world)
        for name in ("sum", "avg"):
            mine = inputs[rank.rank].clone()
            dist.all_reduce(mine, oracle.reduce_op(name))
            assert not oracle.differ(mine, oracle.fold(inputs, name))

    run(3, body)


@pytest.mark.parametrize("world", (1, 2, 3))
def test_coalesced_tensors_are_reduced_as_one(world: int) -> None:
    shapes = [(3,), (), (0,), (17, 9), (400, 30)]

    def body(rank: Rank) -> None:
        rank.init()
        inputs = [
            [
                oracle.plain(torch.float64, 12_000, seed=10 * r + i)[: torch.Size(s).numel()]
                for r in range(rank.world)
            ]
            for i, s in enumerate(shapes)
        ]
        mine = [inputs[i][rank.rank].clone().reshape(s) for i, s in enumerate(shapes)]
        with dist._coalescing_manager():
            for t in mine:
                dist.all_reduce(t)
        for i, s in enumerate(shapes):
            assert not oracle.differ(mine[i], oracle.fold(inputs[i], "sum").reshape(s))

    run(world, body)


def test_no_dtype_is_left_out() -> None:
    assert sorted(map(str, oracle.REDUCIBLE)) == sorted(map(str, sum(FAMILIES.values(), ())))
    assert len(oracle.REDUCIBLE) == 19
