# SPDX-License-Identifier: BSD-3-Clause
"""all_reduce of sparse COO tensors: the bits of the dense sum, whatever each rank has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import oracle
from ranks import Rank, describe, outcomes, run

WORLDS = (1, 2, 3, pytest.param(5, marks=pytest.mark.long))
# Shape, how many dimensions are indexed, entries of rank r.
Case = tuple[tuple[int, ...], int, Callable[[int], int]]
CASES: dict[str, Case] = {
    "vector": ((50,), 1, lambda r: 7 + r),
    "matrix": ((40, 30), 2, lambda r: 100 * r),
    "rows of an embedding": ((300, 16), 1, lambda r: 40),
    "hybrid": ((6, 5, 2, 3), 2, lambda r: 9),
    "one rank has none": ((1000,), 1, lambda r: 500 * (r != 1)),
    "nobody has any": ((10, 10), 2, lambda r: 0),
    "many": ((200, 100), 2, lambda r: 9000 + 999 * r),
    "nothing indexed": ((4,), 0, lambda r: 2),
    "a scalar": ((), 0, lambda r: 1),
    "no elements": ((3, 0), 1, lambda r: 2),
    "no positions": ((0, 3), 1, lambda r: 0),
}


def entries(shape: tuple[int, ...], indexed: int, count: int, dtype: torch.dtype, seed: int):
    """Indices and values; an index may come twice."""
    rng = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, max(size, 1), (count,), generator=rng) for size in shape[:indexed]]
    indices = torch.stack(rows) if rows else torch.empty((0, count), dtype=torch.long)
    size = count * torch.Size(shape[indexed:]).numel()
    return indices, oracle.plain(dtype, size, seed).reshape(count, *shape[indexed:])


def unchecked(indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)


def dense(indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns the dense tensor of one rank's entries, each type added as the oracle says."""
    places = torch.zeros(len(values), dtype=torch.long)
    for row, size in zip(indices, shape):
        places = places * size + row
    count = torch.Size(shape[: len(indices)]).numel()
    return oracle.sums(places, values, count).reshape(shape)


def positions(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(at) for at in tensor._indices().t().tolist()]


def check(rank: Rank, case: Case, dtype: torch.dtype, name: str, asynchronous: bool) -> None:
    shape, indexed, count = case
    given = [entries(shape, indexed, count(r), dtype, seed=r) for r in range(rank.world)]
    mine = unchecked(*given[rank.rank], shape)
    options = dist.AllreduceOptions()
    options.reduceOp = oracle.reduce_op(name)
    options.asyncOp = asynchronous
    work = dist.group.WORLD.allreduce([mine], options)
    if asynchronous:
        work.wait()
    else:
        assert work is None or work.is_completed()
    want = oracle.fold([dense(*one, shape) for one in given], name).reshape(shape)
    assert mine.is_coalesced() and mine.layout == torch.sparse_coo and mine.shape == shape
    found = sorted({tuple(at) for one in given for at in one[0].t().tolist()})
    assert positions(mine) == found, "every position once, in order"
    got = dense(mine._indices(), mine._values(), shape)
    assert not oracle.differ(got, want), (case, dtype, name)


@pytest.mark.parametrize("world", WORLDS)
def test_the_sum_and_the_average_are_those_of_the_dense_tensors(world: int) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for number, case in enumerate(CASES.values()):
            check(rank, case, torch.float32, "sum", asynchronous=number % 2 == 0)
            check(rank, case, torch.float32, "avg", asynchronous=number % 2 == 1)

    run(world, body)


def test_every_dtype_that_can_be_summed() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for dtype in oracle.REDUCIBLE:
            for name in ("sum", "avg"):
                if oracle.supported(dtype, name):
                    check(rank, CASES["vector"], dtype, name, asynchronous=False)
                    check(rank, CASES["hybrid"], dtype, name, asynchronous=False)

    run(3, body)


def test_torchs_own_call() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        mine = torch.tensor([[0.0, rank.rank + 1.0], [0.0, 0.0]]).to_sparse()
        assert dist.all_reduce(mine) is None
        assert mine._nnz() == 1 and mine.to_dense().tolist() == [[0.0, 3.0], [0.0, 0.0]]
        work = dist.all_reduce(mine, async_op=True)
        work.wait()
        work.wait()
        return mine.to_dense()[0].tolist()

    assert run(2, body) == [[0.0, 6.0]] * 2


def test_the_result_is_there_wherever_it_is_looked_for() -> None:
    """wait, is_completed, result, a future alone, a callback."""

    def body(rank: Rank) -> None:
        rank.init()

        def made() -> torch.Tensor:
            return torch.sparse_coo_tensor([[rank.rank, 3]], [1.0, 2.0], (5,))

        want = [1.0, 1.0, 0.0, 4.0, 0.0]
        polled = made()
        work = dist.all_reduce(polled, async_op=True)
        while not work.is_completed():
            pass
        assert polled.to_dense().tolist() == want
        assert work.result()[0].to_dense().tolist() == want

        seen: list[object] = []
        mine = made()
        future = dist.all_reduce(mine, async_op=True).get_future()  # the Work goes at once
        then = future.then(lambda f: seen.append(f.value()[0].to_dense().tolist()))
        then.wait()
        assert seen == [want] and mine.to_dense().tolist() == want

        late = made()
        work = dist.all_reduce(late, async_op=True)
        dist.barrier()
        assert work.get_future().value()[0].to_dense().tolist() == want, "born settled"
        work.wait()
        assert late.to_dense().tolist() == want

    run(2, body)


def test_it_takes_its_turn_among_other_operations() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        works, sparse, plain = [], [], []
        for turn in range(40):
            mine = torch.sparse_coo_tensor([[turn % 7, rank.rank]], [1.0, 1.0 * turn], (9,))
            sparse.append(mine)
            plain.append(torch.full((turn * 100,), rank.rank + 1.0))
            works.append(dist.all_reduce(mine, async_op=True))
            works.append(dist.all_reduce(plain[-1], async_op=True))
        for work in reversed(works):
            work.wait()
        for turn in range(40):
            want = torch.zeros(9)
            want[turn % 7] += 2
            want[0] += turn
            want[1] += turn
            assert torch.equal(sparse[turn].to_dense(), want)
            assert (plain[turn] == 3).all()

    run(2, body)


def test_strided_and_expanded_entries_are_read() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        indices = torch.tensor([[0, 1], [2, 3], [1, 1]]).t()
        values = torch.arange(12.0).reshape(4, 3).t()
        mine = torch.sparse_coo_tensor(indices, values, (3, 4, 4))
        want = 2 * mine.to_dense()
        dist.all_reduce(mine)
        assert torch.equal(mine.to_dense(), want)
        mine = torch.sparse_coo_tensor(indices, torch.ones(1).expand(3), (3, 4))
        dist.all_reduce(mine)
        assert mine._values().tolist() == [2.0] * 3

    run(2, body)


def test_complex_tensors_through_the_group() -> None:
    """dist.all_reduce makes a real view first, a tensor of its own: the sum would go there."""

    def body(rank: Rank) -> list[complex]:
        rank.init()
        mine = torch.sparse_coo_tensor([[rank.rank, 2]], [1 + 1j, 2j], (3,))
        dist.group.WORLD.allreduce([mine]).wait()
        return mine.to_dense().tolist()

    assert run(2, body) == [[1 + 1j, 1 + 1j, 4j]] * 2


def test_ddp_with_an_embedding_of_sparse_gradients() -> None:
    def body(rank: Rank) -> torch.Tensor:
        rank.init()
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(20, 3, sparse=True)
        model = DistributedDataParallel(embedding)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(3):
            optimizer.zero_grad()
            rows = torch.tensor([rank.rank, step, step, 7])
            model(rows).pow(2).sum().backward()
            assert embedding.weight.grad.is_sparse
            optimizer.step()
        return embedding.weight.detach()

    torch.manual_seed(0)
    weight = torch.nn.Embedding(20, 3).weight.detach()
    for step in range(3):
        grad = torch.zeros_like(weight)
        for r in range(2):
            for row in (r, step, step, 7):
                grad[row] += weight[row]  # 2 w, halved over two ranks
        weight = weight - 0.5 * grad
    for got in run(2, body):
        assert torch.allclose(got, weight, atol=1e-6)


# ---- what is wrong ----

WRONG = {
    "shape": lambda rank: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 3 + rank)),
    "indexed dimensions": lambda rank: torch.ones(2, 3).to_sparse(1 + rank),
    "dtype": lambda rank: torch.ones(2, 3, dtype=(torch.float32, torch.float64)[rank]).to_sparse(),
    "layout": lambda rank: torch.ones(2, 3) if rank else torch.ones(2, 3).to_sparse(),
}
TEXTS = {
    "shape": ("is float32[2, 3], 2 indexed", "is float32[2, 4], 2 indexed"),
    "indexed dimensions": ("is float32[2, 3], 1 indexed", "is float32[2, 3], 2 indexed"),
    "dtype": ("sparse all_reduce #1 (float32", "sparse all_reduce #1 (float64"),
    "layout": ("sparse all_reduce #1 (float32", "called all_reduce #1 (float32[6]"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_tensors_that_differ_are_told_on_every_rank(name: str, asynchronous: bool) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = WRONG[name](rank.rank)
        before = mine.clone()
        try:
            work = dist.all_reduce(mine, async_op=asynchronous)
            if work is not None:
                work.wait()
        finally:
            rank.sync()
            same = torch.equal(mine.to_dense(), before.to_dense())
            same = same and (mine.layout == torch.strided or mine._nnz() == before._nnz())
            print("unchanged" if same else "CHANGED")

    for outcome in outcomes(2, body):
        assert outcome.error == "DistBackendError", describe(outcome)
        for text in TEXTS[name]:
            assert text in outcome.text, describe(outcome)
        assert "unchanged" in outcome.output, describe(outcome)


def test_an_index_out_of_range_is_an_error_of_its_rank_alone() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank == 0:
            for at in (5, -1):
                bad = unchecked(torch.tensor([[1, at]]), torch.ones(2), (5,))
                with pytest.raises(ValueError, match=f"index {at} of entry 1 in dimension 0"):
                    dist.all_reduce(bad)
        mine = torch.tensor([1.0])
        dist.all_reduce(mine)
        assert mine.item() == 2.0

    run(2, body)


def test_a_detached_tensor_gets_entries_of_its_own() -> None:
    """torch's copy_ does this too: the tensor that it was made from keeps its entries."""

    def body(rank: Rank) -> None:
        rank.init()
        mine = torch.sparse_coo_tensor([[rank.rank]], [1.0], (3,))
        detached = mine.detach()
        dist.all_reduce(detached)
        assert detached.to_dense().tolist() == [1.0, 1.0, 0.0]
        assert mine._nnz() == 1

    run(2, body)


def test_under_inference_mode() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        outside = torch.sparse_coo_tensor([[rank.rank]], [1.0], (3,))
        with torch.inference_mode():
            inside = torch.sparse_coo_tensor([[rank.rank]], [1.0], (3,))
            for mine in (inside, outside):
                dist.all_reduce(mine)
                assert mine.to_dense().tolist() == [1.0, 1.0, 0.0]
        assert not outside._values().is_inference()

    run(2, body)
