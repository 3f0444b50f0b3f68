# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as users have them: strided, offset, empty, scalar, overlapping."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

import oracle
from ranks import Rank, run

Maker = Callable[[int], torch.Tensor]
GUARD = -77.0

# Each makes a view of n x n elements, of a buffer that is larger; n picks the size class.
LAYOUTS: dict[str, Maker] = {
    "contiguous": lambda n: torch.full((n, n), GUARD),
    "offset": lambda n: torch.full((n * n + 7,), GUARD)[3 : 3 + n * n].view(n, n),
    "transposed": lambda n: torch.full((n, n), GUARD).t(),
    "every second": lambda n: torch.full((2 * n, 2 * n), GUARD)[1::2, ::2],
    "columns": lambda n: torch.full((n, 3 * n), GUARD)[:, n : 2 * n],
    "channels last": lambda n: (
        torch.full((1, n, n, 1), GUARD).to(memory_format=torch.channels_last).reshape(n, n)
    ),
    "permuted": lambda n: torch.full((n, 1, 2, n), GUARD)[:, :, 1].permute(2, 1, 0).reshape(n, n),
    "diagonal": lambda n: torch.full((n * n + 1, n * n), GUARD).diagonal().unflatten(0, (n, n)),
    "overlap-free strides": lambda n: torch.full((40 + n * n * 5,), GUARD).as_strided(
        (n, n), (5, 5 * n), 11
    ),
}
SIDES = (3, 30, 100)  # 36 B, 3.6 kB, 40 kB
# A diagonal of n^2 x n^2 floats gets too large.
CASES = [(name, n) for name in LAYOUTS for n in SIDES if (name, n) != ("diagonal", 100)]


def base_of(view: torch.Tensor) -> torch.Tensor:
    """Returns all the memory of which a tensor is a view."""
    size = view.untyped_storage().nbytes() // view.itemsize
    return view.as_strided((size,), (1,), 0)


def filled(name: str, n: int, rank: int) -> torch.Tensor:
    view = LAYOUTS[name](n)
    view.copy_(values(n, rank))
    return view


def values(n: int, rank: int) -> torch.Tensor:
    return (torch.arange(n * n, dtype=torch.float32) % 1000 + 1000 * rank).view(n, n)


def rest_is_untouched(view: torch.Tensor) -> bool:
    """Nothing but the view's elements was written: as many guards stand as there were."""
    return int((base_of(view) == GUARD).sum()) == base_of(view).numel() - view.numel()


def mixed(rank: Rank, name: str) -> str:
    """Ranks may differ in strides: rank 1 always has the plain layout."""
    return "contiguous" if rank.rank == 1 else name


def test_all_reduce_writes_the_elements_of_any_layout_and_nothing_else() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for name, n in CASES:
            mine = filled(mixed(rank, name), n, rank.rank)
            dist.all_reduce(mine)
            assert torch.equal(mine, sum(values(n, r) for r in range(3))), (name, n)
            assert rest_is_untouched(mine), (name, n)

    run(3, body)


def test_broadcast_writes_the_elements_of_any_layout_and_nothing_else() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for root in range(3):
            for name, n in CASES:
                mine = filled(mixed(rank, name), n, rank.rank)
                dist.broadcast(mine, root)
                assert torch.equal(mine, values(n, root)), (name, n)
                assert rest_is_untouched(mine), (name, n)

    run(3, body)


def test_all_gather_takes_any_layout_as_input_and_as_output() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for name, n in CASES:
            outputs = [LAYOUTS[name](n), LAYOUTS["contiguous"](n), LAYOUTS["transposed"](n)]
            dist.all_gather(outputs, filled(mixed(rank, name), n, rank.rank))
            for r, output in enumerate(outputs):
                assert torch.equal(output, values(n, r)), (name, n, r)
                assert rest_is_untouched(output), (name, n, r)

    run(3, body)


def test_a_flat_all_gather_may_write_a_strided_output() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for n in (2, 60, 5000):
            buffer = torch.full((3 * n, 2), GUARD)
            group = dist.group.WORLD
            options = AllgatherOptions()
            options.asyncOp = False
            group._allgather_base(buffer[:, 1], torch.full((n,), float(rank.rank)), options)
            want = torch.arange(3.0).repeat_interleave(n)
            assert torch.equal(buffer[:, 1], want) and (buffer[:, 0] == GUARD).all()

    run(3, body)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_scalars_are_tensors_too(shape: tuple[int, ...]) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = torch.full(shape, rank.rank + 1.0)
        dist.all_reduce(mine)
        assert mine.shape == shape and mine.item() == 6.0
        mine = torch.full(shape, rank.rank + 1.0)
        dist.broadcast(mine, 2)
        assert mine.item() == 3.0
        outputs = [torch.zeros(shape) for _ in range(3)]
        dist.all_gather(outputs, torch.full(shape, float(rank.rank)))
        assert [t.item() for t in outputs] == [0.0, 1.0, 2.0]

    run(3, body)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty_tensors_pass_and_keep_the_order_of_calls(shape: tuple[int, ...]) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for turn in range(3):
            nothing = torch.empty(shape)
            dist.all_reduce(nothing)
            dist.broadcast(nothing, 1)
            dist.all_gather([torch.empty(shape) for _ in range(2)], nothing)
            dist.all_reduce(nothing, async_op=True).wait()
            assert nothing.shape == shape
            mine = torch.tensor([turn + rank.rank])
            dist.all_reduce(mine)
            assert mine.item() == 2 * turn + 1

    run(2, body)


def test_many_dimensions() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        shape = (2, 1, 3, 1, 2, 1, 2, 1, 2, 2)
        mine = torch.arange(96.0).view(shape).permute(9, 0, 8, 1, 7, 2, 6, 3, 5, 4) + rank.rank
        want = 2 * mine - 2 * rank.rank + 1
        dist.all_reduce(mine)
        assert torch.equal(mine, want)

    run(2, body)


def test_an_expanded_input_is_read_and_an_expanded_output_refused() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        outputs = [torch.zeros(4, 3) for _ in range(2)]
        dist.all_gather(outputs, torch.tensor([rank.rank + 1.0]).expand(4, 3))
        assert torch.equal(outputs[0], torch.ones(4, 3)) and torch.equal(outputs[1], outputs[0] * 2)

        expanded = torch.tensor([1.0, 2.0, 3.0]).expand(5, 3)
        for call in (
            lambda: dist.all_reduce(expanded),
            lambda: dist.all_gather([torch.zeros(5, 3), expanded], torch.zeros(5, 3)),
            lambda: dist.broadcast(expanded, 1 - rank.rank),
        ):
            with pytest.raises(ValueError, match="overlap"):
                call()
        assert expanded[0].tolist() == [1.0, 2.0, 3.0]

        mine = expanded if rank.rank == 0 else torch.zeros(5, 3)
        dist.broadcast(mine, 0)  # the root only reads
        assert mine[4].tolist() == [1.0, 2.0, 3.0]

    run(2, body)


def test_a_resolved_conjugate_is_a_tensor_like_another() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = torch.full((3,), 1 + 2j).conj().resolve_conj()
        dist.all_reduce(mine)
        assert mine.tolist() == [2 - 4j] * 3

    run(2, body)


def test_parameters_and_their_gradients_can_be_reduced() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        weight = torch.nn.Parameter(torch.full((4,), float(rank.rank)))
        (weight * 3).sum().backward()
        dist.all_reduce(weight.grad)
        assert weight.grad.tolist() == [6.0] * 4
        with torch.inference_mode():
            mine = torch.ones(3)
            dist.all_reduce(mine)
            assert mine.tolist() == [2.0] * 3

    run(2, body)


def test_the_guards_of_these_tests_can_fail() -> None:
    view = LAYOUTS["every second"](3)
    view.copy_(values(3, 0))
    assert rest_is_untouched(view)
    base_of(view)[0] = 0.0
    assert not rest_is_untouched(view)
    assert not oracle.differ(torch.ones(3), torch.ones(3))
    assert oracle.differ(torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.0])).startswith("1 of 2")
    assert not oracle.differ(torch.tensor([float("nan")]), -torch.tensor([float("nan")]))


# ---- in place, and views that cross without touching ----


def blocks(rank: int, world: int, size: int) -> list[torch.Tensor]:
    """Returns the blocks that `rank` has for each rank."""
    return [torch.arange(float(size)) % 89 + 10 * rank + 100 * k for k in range(world)]


def gathered_in_place(me: int, world: int, size: int) -> None:
    mine = blocks(me, 1, size)[0]
    expected = torch.cat([blocks(r, 1, size)[0] for r in range(world)])
    flat = torch.full((world * size,), GUARD)
    own = flat[me * size : (me + 1) * size].copy_(mine)
    dist.all_gather_into_tensor(flat, own)
    assert torch.equal(flat, expected)
    strided = torch.full((world * size, 2), GUARD)[:, 1]
    own = strided[me * size : (me + 1) * size].copy_(mine)
    dist.all_gather_into_tensor(strided, own)
    assert torch.equal(strided, expected) and rest_is_untouched(strided)
    parts = [torch.full((size,), GUARD) for _ in range(world)]
    dist.all_gather(parts, parts[me].copy_(mine))
    assert torch.equal(torch.cat(parts), expected)
    parts = [torch.full((size,), GUARD) for _ in range(world)] if me == 0 else []
    dist.gather(parts[0].copy_(mine) if me == 0 else mine, parts or None, 0)
    assert me != 0 or torch.equal(torch.cat(parts), expected)


def scattered_in_place(me: int, world: int, size: int) -> None:
    given = blocks(0, world, size)
    out = given[0] if me == 0 else torch.empty(size)
    dist.scatter(out, given if me == 0 else None, 0)
    assert torch.equal(out, blocks(0, world, size)[me])
    expected = sum(blocks(r, world, size)[me] for r in range(world))
    for block in (me, 0, world - 1):  # any block of the input
        given = torch.cat(blocks(me, world, size))
        out = given[block * size : (block + 1) * size]
        dist.reduce_scatter_tensor(out, given)
        assert torch.equal(out, expected), block
    uneven = [torch.full((size + k,), float(me)) for k in range(world)]
    dist.reduce_scatter(uneven[me], uneven)
    assert torch.equal(uneven[me], torch.full((size + me,), world * (world - 1) / 2))


def exchanged_in_place(me: int, world: int, size: int) -> None:
    expected = [blocks(r, world, size)[me] for r in range(world)]
    parts = blocks(me, world, size)
    dist.all_to_all(parts, parts)
    assert torch.equal(torch.cat(parts), torch.cat(expected))
    flat = torch.cat(blocks(me, world, size))
    dist.all_to_all_single(flat, flat)
    assert torch.equal(flat, torch.cat(expected))
    # What i sends to j is as long as what j sends to i. Some ranks' blocks are short, others' long.
    uneven = [torch.full((1 + size * (me * k),), 10.0 * me + k) for k in range(world)]
    dist.all_to_all(uneven, uneven)
    for r, part in enumerate(uneven):
        assert torch.equal(part, torch.full((1 + size * (me * r),), 10.0 * r + me))


@pytest.mark.parametrize("arena_kib", ["", "0"], ids=["arena", "no arena"])
def test_in_place_is_right_where_an_operation_has_it(arena_kib: str) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for size in (1, 30, 3000, 60000):
            for form in (gathered_in_place, scattered_in_place, exchanged_in_place):
                form(rank.rank, rank.world, size)

    env = {"SHMCOLL_ARENA_KIB": arena_kib} if arena_kib else {}
    for world in (2, 3):
        run(world, body, env=env)


def test_outputs_may_be_interleaved() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for size in (5, 30000):
            rows = torch.full((size, 3), GUARD)
            dist.all_gather([rows[:, 0], rows[:, 2]], torch.full((size,), float(rank.rank)))
            assert torch.equal(rows, torch.tensor([0.0, GUARD, 1.0]).expand(size, 3))
            rows = torch.full((size, 2, 2), GUARD)
            ends = [rows[:, i, i] for i in range(2)]
            dist.all_to_all(ends, [torch.full((size,), 10.0 * rank.rank + k) for k in range(2)])
            expected = torch.tensor([[0.0 + rank.rank, GUARD], [GUARD, 10.0 + rank.rank]])
            assert torch.equal(rows, expected.expand(size, 2, 2))
            odd = torch.full((2 * size,), 1.0)
            dist.group.WORLD.allreduce_coalesced([odd[::2], odd[1::2]]).wait()
            assert torch.equal(odd, torch.full((2 * size,), 2.0))

    run(2, body)
