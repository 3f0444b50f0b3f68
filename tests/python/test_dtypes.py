# SPDX-License-Identifier: BSD-3-Clause
"""Every dtype that torch can allocate, through every operation that moves data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from ranks import Rank, run

ALL = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
PACKED = (torch.quint4x2, torch.quint2x4)  # several elements in a byte
MOVED = [d for d in ALL if d not in PACKED]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
FLOATS += ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
REDUCED = [getattr(torch, name) for name in (*INTEGERS, *FLOATS, "bool")]
COUNTS = (1, 7, 900, 70_000)


def made(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Any bytes; of a bool, values. By way of bytes: few dtypes can be filled."""
    top = 2 if dtype == torch.bool else 256
    rng = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, top, (count * dtype.itemsize,), generator=rng, dtype=torch.uint8)
    return raw.view(dtype)


def empty(dtype: torch.dtype, count: int) -> torch.Tensor:
    return torch.zeros(count * dtype.itemsize, dtype=torch.uint8).view(dtype)


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.dtype == want.dtype and torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def parts(dtype: torch.dtype, world: int, count: int) -> list[torch.Tensor]:
    return [made(dtype, count, seed=r) for r in range(world)]


def broadcast(rank: Rank, dtype: torch.dtype, n: int) -> None:
    mine = made(dtype, n, seed=rank.rank)
    dist.broadcast(mine, 1)
    assert same(mine, made(dtype, n, seed=1))


def gathers(rank: Rank, dtype: torch.dtype, n: int) -> None:
    want = parts(dtype, rank.world, n)
    mine = made(dtype, n, seed=rank.rank)
    outputs = [empty(dtype, n) for _ in want]
    dist.all_gather(outputs, mine)
    flat = empty(dtype, n * rank.world)
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(flat, mine)
    coalesced = [[empty(dtype, n)] for _ in want]
    dist.all_gather_coalesced(coalesced, [mine])
    several = [empty(dtype, n * rank.world), empty(dtype, n * rank.world)]
    dist.group.WORLD.allgather_into_tensor_coalesced(several, [mine, mine]).wait()
    for whole in (flat, *several):
        assert same(whole, torch.cat([t.view(torch.uint8) for t in want]).view(dtype))
    for r, part in enumerate(want):
        assert same(outputs[r], part) and same(coalesced[r][0], part)


def uneven(rank: Rank, dtype: torch.dtype, n: int) -> None:
    outputs = [empty(dtype, n + r) for r in range(rank.world)]
    dist.all_gather(outputs, made(dtype, n + rank.rank, seed=rank.rank))
    for r, output in enumerate(outputs):
        assert same(output, made(dtype, n + r, seed=r))


def rooted(rank: Rank, dtype: torch.dtype, n: int) -> None:
    want = parts(dtype, rank.world, n)
    mine = empty(dtype, n)
    dist.scatter(mine, want if rank.rank == 2 else None, 2)
    assert same(mine, want[rank.rank])
    outputs = [empty(dtype, n) for _ in want] if rank.rank == 0 else None
    dist.gather(mine, outputs, 0)
    assert all(same(output, part) for output, part in zip(outputs or [], want))


def exchange(rank: Rank, dtype: torch.dtype, n: int) -> None:
    me, world = rank.rank, rank.world
    sent = [made(dtype, n + r, seed=10 * me + r) for r in range(world)]
    outputs = [empty(dtype, n + me) for _ in range(world)]
    dist.all_to_all(outputs, sent)
    want = [made(dtype, n + me, seed=10 * r + me) for r in range(world)]
    assert all(same(output, part) for output, part in zip(outputs, want))
    whole = torch.cat([t.view(torch.uint8) for t in sent]).view(dtype)
    output = empty(dtype, (n + me) * world)
    dist.all_to_all_single(output, whole, [n + me] * world, [n + r for r in range(world)])
    assert same(output, torch.cat([t.view(torch.uint8) for t in want]).view(dtype))


def messages(rank: Rank, dtype: torch.dtype, n: int) -> None:
    before, behind = (rank.rank - 1) % rank.world, (rank.rank + 1) % rank.world
    mine = empty(dtype, n)
    work = dist.isend(made(dtype, n, seed=rank.rank), behind)
    dist.recv(mine, before)
    work.wait()
    assert same(mine, made(dtype, n, seed=before))


OPERATIONS: dict[str, Callable[[Rank, torch.dtype, int], None]] = {
    "broadcast": broadcast,
    "gathers": gathers,
    "uneven": uneven,
    "rooted": rooted,
    "exchange": exchange,
    "messages": messages,
}


def test_torch_has_the_dtypes_that_this_test_is_for() -> None:
    assert len(MOVED) >= 40
    for name in ("bits1x8", "uint1", "int7", "float4_e2m1fn_x2", "float8_e8m0fnu", "qint32"):
        assert getattr(torch, name) in MOVED


def test_a_reduction_of_what_can_only_be_moved_names_its_dtype() -> None:
    only_moved = [dtype for dtype in MOVED if dtype not in REDUCED]

    def body(rank: Rank) -> list[tuple[str, str]]:
        rank.init()
        group, found = dist.group.WORLD, []
        for dtype in only_moved:
            one, list_of_two = empty(dtype, 4), [empty(dtype, 4), empty(dtype, 4)]
            calls: dict[str, Callable[[], object]] = {
                "all_reduce": lambda: group.allreduce([one]),
                "reduce": lambda: group.reduce(one, 0, dist.ReduceOp.SUM),
                "reduce_scatter": lambda: group.reduce_scatter(one, list_of_two),
            }
            for name, call in calls.items():
                with pytest.raises(TypeError, match=f"shmcoll: {name}: sum of ") as caught:
                    call()
                found.append((str(dtype), str(caught.value)))
        barrier = torch.ones(1)
        dist.all_reduce(barrier)  # nothing was published
        assert barrier.item() == 2.0
        return found

    found = run(2, body)[0]
    assert len(found) == 3 * len(only_moved) >= 60
    for name, text in found:
        what = f"sum of {name.removeprefix('torch.')} does not exist; possible: nothing"
        assert what in text, text


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_bytes_of_every_dtype_arrive(name: str) -> None:
    def body(rank: Rank) -> int:
        rank.init()
        for dtype in MOVED:
            for count in COUNTS:
                OPERATIONS[name](rank, dtype, count)
        return len(MOVED)

    assert run(3, body) == [len(MOVED)] * 3


def test_elements_of_a_strided_view_of_every_dtype() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for dtype in MOVED:
            wide = made(dtype, 3000, seed=rank.rank)
            view = wide.as_strided((1000,), (3,), 1)
            dist.broadcast(view, 0)
            mine, roots = (made(dtype, 3000, seed=r).view(torch.uint8) for r in (rank.rank, 0))
            want = mine.reshape(1000, 3, -1).clone()
            want[:, 1] = roots.reshape(1000, 3, -1)[:, 1]
            assert torch.equal(wide.view(torch.uint8), want.reshape(-1)), dtype

    run(2, body)


@pytest.mark.parametrize("dtype", PACKED)
def test_packed_elements_are_refused_before_their_memory_is_touched(dtype: torch.dtype) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = torch.zeros(4, dtype=torch.uint8).view(dtype)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        with pytest.raises(TypeError, match="several elements in a byte; move its int_repr"):
            backend.broadcast([mine], dist.BroadcastOptions())
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2.0

    run(2, body)


def test_torch_itself_stops_quantized_tensors() -> None:
    """torch refuses tensors with a quantizer; their integers can be moved."""

    def body(rank: Rank) -> str:
        rank.init()
        mine = torch.quantize_per_tensor(torch.arange(4.0) + rank.rank, 1.0, 0, torch.quint8)
        with pytest.raises(NotImplementedError, match="QuantizedCPU"):
            dist.broadcast(mine, 0)
        integers = mine.int_repr()
        dist.broadcast(integers, 0)
        return str(integers.tolist())

    assert run(2, body) == ["[0, 1, 2, 3]"] * 2
