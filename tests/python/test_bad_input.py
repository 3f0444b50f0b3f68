# SPDX-License-Identifier: BSD-3-Clause
"""Wrong calls: one clear exception on the rank at fault, and the group works on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import oracle
import shmcoll
from ranks import Rank, describe, outcomes, run, seconds

Op = dist.ReduceOp


def works_on(rank: Rank) -> None:
    mine = torch.tensor([rank.rank + 1.0])
    dist.all_reduce(mine)
    assert mine.item() == rank.world * (rank.world + 1) / 2


def meet_at_the_store(rank: Rank) -> None:
    """A client of torch's store needs 5 s now and then to connect: not part of a time-out."""
    assert rank.store is not None
    rank.sync()


def only_rank_0(call: Callable[[], object], kind: type[Exception], text: str) -> str:
    """Rank 0 alone makes the wrong call: had anything been published, the group would break."""

    def body(rank: Rank) -> str:
        rank.init()
        found = ""
        if rank.rank == 0:
            with pytest.raises(kind, match=text) as caught:
                call()
            assert type(caught.value) is kind
            found = str(caught.value)
        works_on(rank)
        return found

    return run(2, body)[0]


def test_a_rank_that_the_group_has_not_is_named() -> None:
    """As of a RANK and a WORLD_SIZE that do not belong together."""

    def body(rank: Rank) -> str:
        with pytest.raises(ValueError) as caught:
            dist.init_process_group("shmcoll", store=dist.HashStore(), rank=5, world_size=2)
        return str(caught.value)

    assert run(1, body) == ["shmcoll: rank 5 of a group of 2"]


WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "bits of floats": (
        lambda: dist.all_reduce(torch.zeros(3), Op.BXOR),
        TypeError,
        "all_reduce: bxor of float32 does not exist; possible: sum, avg, product, min, max, premul",
    ),
    "the same, asynchronously": (
        lambda: dist.all_reduce(torch.zeros(3), Op.BXOR, async_op=True),
        TypeError,
        "bxor of float32 does not exist",
    ),
    "average of truth": (
        lambda: dist.all_reduce(torch.zeros(3, dtype=torch.bool), Op.AVG),
        TypeError,
        "avg of bool does not exist; possible: sum, product, min, max, band, bor, bxor",
    ),
    "sum of what is only moved": (
        lambda: dist.all_reduce(torch.zeros(3, dtype=torch.float8_e8m0fnu)),
        TypeError,
        "all_reduce: sum of float8_e8m0fnu does not exist; possible: nothing",
    ),
    "root too large": (
        lambda: dist.group.WORLD.broadcast(torch.zeros(3), 2),
        ValueError,
        r"broadcast: root 2 is not a rank \(0 to 1\)",
    ),
    "root negative": (
        lambda: dist.group.WORLD.broadcast(torch.zeros(3), -1),
        ValueError,
        "broadcast: root -1 is not a rank",
    ),
    "too few outputs": (
        lambda: dist.all_gather([torch.zeros(3)], torch.zeros(3)),
        ValueError,
        "all_gather: a list of 1 tensors for 2 ranks",
    ),
    "too many outputs": (
        lambda: dist.all_gather([torch.zeros(3)] * 3, torch.zeros(3)),
        ValueError,
        "all_gather: a list of 3 tensors for 2 ranks",
    ),
    "sizes in a list": (
        lambda: dist.all_gather([torch.zeros(4), torch.zeros(3)], torch.zeros(3)),
        ValueError,
        "uneven all_gather: tensor 0 of the list, this rank's, has 4 elements, but there are 3",
    ),
    "sizes of the other side": (
        lambda: dist.all_gather([torch.zeros(4), torch.zeros(4)], torch.zeros(3)),
        ValueError,
        "all_gather: 2 ranks with 3 elements each, but room for 8 out",
    ),
    "coalesced gather: lists": (
        lambda: dist.all_gather_coalesced([[torch.zeros(3)]], [torch.zeros(3)]),
        ValueError,
        "all_gather_coalesced: 1 lists of outputs for 2 ranks",
    ),
    "coalesced gather: outputs": (
        lambda: dist.all_gather_coalesced([[torch.zeros(3)] * 2] * 2, [torch.zeros(3)]),
        ValueError,
        "all_gather_coalesced: 1 inputs, but a list of 2 outputs",
    ),
    "coalesced gather: sizes": (
        lambda: dist.all_gather_coalesced([[torch.zeros(3)], [torch.zeros(4)]], [torch.zeros(3)]),
        ValueError,
        "all_gather_coalesced: input 0 has 3 elements, an output for it 4",
    ),
    "coalesced gather: types": (
        lambda: dist.group.WORLD.allgather_coalesced(
            [[torch.zeros(3)] * 2] * 2, [torch.zeros(3), torch.zeros(3).int()]
        ),
        TypeError,
        "all_gather: tensors of one call differ in dtype: Float and Int",
    ),
    "flat output too small": (
        lambda: dist.all_gather_into_tensor(torch.zeros(5), torch.zeros(3)),
        ValueError,
        "all_gather: 2 ranks with 3 elements each, but room for 5 out",
    ),
    "gather: sizes": (
        lambda: dist.gather(torch.zeros(3), [torch.zeros(3), torch.zeros(4)], 0),
        ValueError,
        "gather: a tensor of 4 elements in the list, but 3",
    ),
    "gather: too few": (
        lambda: dist.gather(torch.zeros(3), [torch.zeros(3)], 0),
        ValueError,
        "gather: a list of 1 tensors for 2 ranks",
    ),
    "gather: types": (
        lambda: backend().gather([[torch.zeros(3).int()] * 2], [torch.zeros(3)], root_0()),
        TypeError,
        "gather: the list is of Int, the tensor on the other side Float",
    ),
    "scatter: sizes": (
        lambda: dist.scatter(torch.zeros(3), [torch.zeros(2), torch.zeros(3)], 0),
        ValueError,
        "scatter: a tensor of 2 elements in the list, but 3",
    ),
    "all_to_all_single: not a multiple": (
        lambda: dist.all_to_all_single(torch.zeros(5), torch.zeros(5)),
        ValueError,
        "first dimension, 5, is not a multiple of 2 ranks",
    ),
    "all_to_all_single: sum of splits": (
        lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [2, 2], [2, 1]),
        ValueError,
        "2 split sizes of 3 rows in all; the input has 4 rows",
    ),
    "all_to_all: too few tensors": (
        lambda: dist.all_to_all([torch.zeros(1)], [torch.zeros(1)]),
        ValueError,
        "all_to_all: lists of 1 inputs and 1 outputs for 2 ranks",
    ),
    "reduce_scatter: sizes": (
        lambda: dist.reduce_scatter(torch.zeros(3), [torch.zeros(2), torch.zeros(3)]),
        ValueError,
        "uneven reduce_scatter: tensor 0 of the list, this rank's, has 2 elements, but there are 3",
    ),
    "reduce_scatter: flat size": (
        lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(5)),
        ValueError,
        "reduce_scatter: 2 ranks get 3 elements each, but there are 5 in",
    ),
    "types of input and output": (
        lambda: dist.group.WORLD._allgather_base(torch.zeros(6), torch.zeros(3).double()),
        TypeError,
        "all_gather: the input is Double, the output Float",
    ),
    "types in a list": (
        lambda: dist.group.WORLD.allgather(
            [[torch.zeros(3), torch.zeros(3).double()]], [torch.zeros(3)]
        ),
        TypeError,
        "all_gather: tensors of one call differ in dtype: Float and Double",
    ),
    "types coalesced": (
        lambda: dist.group.WORLD.allreduce_coalesced([torch.zeros(3), torch.zeros(3).int()]),
        TypeError,
        "all_reduce: tensors of one call differ in dtype: Float and Int",
    ),
    "another device": (
        lambda: backend().allreduce([torch.zeros(3, device="meta")]),
        ValueError,
        "all_reduce: a tensor on meta; CPU and CUDA tensors are possible",
    ),
    "an input on another device": (
        lambda: backend()._allgather_base(torch.zeros(6), torch.zeros(3, device="meta")),
        ValueError,
        "all_gather: a tensor on meta",
    ),
    "two tensors": (
        lambda: backend().allreduce([torch.zeros(3), torch.zeros(3)]),
        ValueError,
        "all_reduce takes one tensor, not 2",
    ),
    "no tensor": (
        lambda: backend().allreduce_coalesced([]),
        ValueError,
        "all_reduce: an empty list of tensors",
    ),
    "an overlapping output": (
        lambda: dist.all_reduce(torch.zeros(1).expand(4)),
        ValueError,
        "overlap",
    ),
    "a premul sum of integers": (
        lambda: dist.all_reduce(torch.zeros(3).int(), dist._make_nccl_premul_sum(2.0)),
        TypeError,
        "premul_sum of int32 does not exist",
    ),
    "compressed sparse": (
        lambda: backend().allreduce([torch.eye(3).to_sparse_csr()]),
        TypeError,
        "all_reduce: a tensor of layout SparseCsr; dense and sparse COO tensors are possible",
    ),
    "maximum of sparse": (
        lambda: dist.all_reduce(torch.eye(3).to_sparse(), Op.MAX),
        TypeError,
        "all_reduce: max of a sparse tensor is not offered; possible: sum, avg",
    ),
    "average of sparse truth": (
        lambda: dist.all_reduce(torch.eye(3).bool().to_sparse(), Op.AVG),
        TypeError,
        "sparse all_reduce: avg of bool does not exist",
    ),
    "sparse, coalesced": (
        lambda: backend().allreduce_coalesced([torch.eye(3).to_sparse()]),
        TypeError,
        "all_reduce: a tensor of layout Sparse; dense tensors are possible",
    ),
    "sparse on another device": (
        lambda: backend().allreduce([torch.eye(3).to_sparse().to("meta")]),
        ValueError,
        "sparse all_reduce: a tensor on meta; CPU and CUDA tensors are possible",
    ),
    "sparse": (
        lambda: backend().broadcast(torch.eye(3).to_sparse(), 0),
        TypeError,
        "broadcast: a tensor of layout Sparse; dense tensors are possible",
    ),
    "a conjugate view": (
        lambda: backend().allreduce([torch.zeros(3, dtype=torch.complex64).conj()]),
        TypeError,
        r"all_reduce: a conjugate or negative view; call resolve_conj\(\) or resolve_neg\(\)",
    ),
    "a negative view": (
        lambda: backend().allreduce([torch.zeros(3, dtype=torch.complex64).conj().imag]),
        TypeError,
        "all_reduce: a conjugate or negative view",
    ),
    "send: a negative tag": (
        lambda: dist.send(torch.zeros(1), 1, tag=-1),
        ValueError,
        "send: tag -1; tags begin at 0",
    ),
    "send: no rank": (
        lambda: backend().send([torch.zeros(1)], 2, 0),
        ValueError,
        r"send: the peer 2 is not a rank \(0 to 1\)",
    ),
    "send: two tensors": (
        lambda: backend().send([torch.zeros(1), torch.zeros(1)], 1, 0),
        ValueError,
        "send takes one tensor, not 2",
    ),
    "send: sparse": (
        lambda: backend().send([torch.eye(3).to_sparse()], 1, 0),
        TypeError,
        "send: a tensor of layout Sparse",
    ),
    **{
        f"coalesced, the second of two pairs: {what}": (call, kind, text)
        for what, call, kind, text in (
            (
                "a gather's types",
                lambda: second_gathered(torch.zeros(6), torch.zeros(3).int()),
                TypeError,
                "all_gather: the input is Int, the output Float",
            ),
            (
                "a gather's sizes",
                lambda: second_gathered(torch.zeros(5), torch.zeros(3)),
                ValueError,
                "2 ranks with 3 elements each, but room for 5 out",
            ),
            (
                "a gather's output",
                lambda: second_gathered(torch.zeros(1).expand(6), torch.zeros(3)),
                ValueError,
                "overlap",
            ),
            (
                "a scatter's types",
                lambda: second_scattered(torch.zeros(3), torch.zeros(6).int()),
                TypeError,
                "reduce_scatter: the input is Int, the output Float",
            ),
            (
                "a scatter's sizes",
                lambda: second_scattered(torch.zeros(3), torch.zeros(7)),
                ValueError,
                "2 ranks get 3 elements each, but there are 7 in",
            ),
            (
                "a scatter's reduction",
                lambda: second_scattered(torch.zeros(3), torch.zeros(6), Op.BXOR),
                TypeError,
                "bxor of float32 does not exist",
            ),
        )
    },
    "recv: no rank": (
        lambda: backend().recv([torch.zeros(1)], -1, 0),
        ValueError,
        "recv: the peer -1 is not a rank",
    ),
    "recv: an overlapping output": (
        lambda: dist.irecv(torch.zeros(1).expand(4), 1),
        ValueError,
        "overlap",
    ),
    "recv: a conjugate view": (
        lambda: backend().recv_anysource([torch.zeros(3, dtype=torch.complex64).conj()], 0),
        TypeError,
        "recv: a conjugate or negative view",
    ),
}

ROW = torch.zeros(16)

# Whose memory is wrong; all in one pair of ranks.
MEMORY: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    # ---- outputs that overlap ----
    "one output for all": (
        lambda: dist.all_gather([torch.zeros(3)] * 2, torch.zeros(3)),
        ValueError,
        "all_gather: output tensors 0 and 1 overlap: one would be written over the other",
    ),
    "one output for all, asynchronously": (
        lambda: dist.all_gather([torch.zeros(3)] * 2, torch.zeros(3), async_op=True),
        ValueError,
        "all_gather: output tensors 0 and 1 overlap",
    ),
    "outputs that overlap in part": (
        lambda: dist.all_gather(list(torch.zeros(4).unfold(0, 3, 1)), torch.zeros(3)),
        ValueError,
        "all_gather: output tensors 0 and 1 overlap",
    ),
    "outputs of different sizes that overlap": (
        lambda: dist.all_gather([ROW[:3], ROW[2:4]], torch.zeros(3)),
        ValueError,
        "uneven all_gather: output tensors 0 and 1 overlap",
    ),
    "all_to_all: one output for all": (
        lambda: dist.all_to_all([torch.zeros(3)] * 2, list(torch.zeros(2, 3))),
        ValueError,
        "all_to_all: output tensors 0 and 1 overlap",
    ),
    "gather: one output for all": (
        lambda: dist.gather(torch.zeros(3), [torch.zeros(3)] * 2, 0),
        ValueError,
        "gather: output tensors 0 and 1 overlap",
    ),
    "coalesced gather: one output for all": (
        lambda: dist.all_gather_coalesced([[torch.zeros(3)]] * 2, [torch.zeros(3)]),
        ValueError,
        "all_gather: output tensors 0 and 1 overlap",
    ),
    "coalesced reduce: one tensor twice": (
        lambda: dist.group.WORLD.allreduce_coalesced([ROW, ROW]),
        ValueError,
        "all_reduce: output tensors 0 and 1 overlap",
    ),
    "coalesced flat gather: one output for all": (
        lambda: dist.group.WORLD.allgather_into_tensor_coalesced(
            [ROW[:6]] * 2, [torch.ones(3), torch.ones(3)]
        ),
        ValueError,
        "all_gather_into_tensor_coalesced: two outputs overlap",
    ),
    "coalesced flat scatter: outputs overlap": (
        lambda: dist.group.WORLD.reduce_scatter_tensor_coalesced(
            [ROW[:3], ROW[2:5]], [torch.ones(6), torch.ones(6)], dist.ReduceScatterOptions()
        ),
        ValueError,
        "reduce_scatter_tensor_coalesced: two outputs overlap",
    ),
    "an output of windows": (
        lambda: dist.all_reduce(torch.zeros(6).unfold(0, 4, 2)),
        ValueError,
        "tensor 0 overlaps itself",
    ),
    # ---- inputs that an output would be written over ----
    "the input is another's block": (
        lambda: dist.all_gather_into_tensor(ROW[:6], ROW[3:6]),
        ValueError,
        "all_gather: input tensor 0 and output tensor 0 share memory",
    ),
    "the input is a part of two blocks": (
        lambda: dist.all_gather([ROW[:3], ROW[3:6]], ROW[1:4]),
        ValueError,
        "all_gather: input tensor 0 and output tensor 0 share memory",
    ),
    "gather: the input is another's block": (
        lambda: dist.gather(ROW[3:6], [ROW[:3], ROW[3:6]], 0),
        ValueError,
        "gather: input tensor 0 and output tensor 1 share memory",
    ),
    "scatter: the output is another's block": (
        lambda: dist.scatter(ROW[3:6], [ROW[:3], ROW[3:6]], 0),
        ValueError,
        "scatter: input tensor 1 and output tensor 0 share memory",
    ),
    "reduce_scatter: the output is a part of two blocks": (
        lambda: dist.reduce_scatter_tensor(ROW[1:4], ROW[:6]),
        ValueError,
        "reduce_scatter: input tensor 0 and output tensor 0 share memory",
    ),
    "all_to_all: the output is the input, in another order": (
        lambda: dist.all_to_all([ROW[3:6], ROW[:3]], [ROW[:3], ROW[3:6]]),
        ValueError,
        "all_to_all: input tensor 0 and output tensor 1 share memory",
    ),
    # ---- tensors without their memory ----
    **{
        f"freed, {left} bytes left: {what}": (
            lambda call=call, left=left: call(freed(left)),
            ValueError,
            f"{op}: a tensor that needs a storage of 64 bytes, but its storage has {left}; it was",
        )
        for left in (0, 60)
        for what, op, call in (
            ("all_reduce", "all_reduce", lambda t: dist.all_reduce(t)),
            ("broadcast", "broadcast", lambda t: dist.broadcast(t, 0)),
            ("all_gather", "all_gather", lambda t: dist.all_gather([ROW.clone(), ROW.clone()], t)),
            ("flat output", "all_gather", lambda t: dist.all_gather_into_tensor(t, ROW[:8])),
            ("asynchronous", "all_reduce", lambda t: dist.all_reduce(t, async_op=True)),
            ("send", "send", lambda t: dist.send(t, 1)),
            ("recv", "recv", lambda t: dist.recv(t, 1)),
            (
                "values of a sparse one",
                "sparse all_reduce",
                lambda t: dist.all_reduce(
                    torch.sparse_coo_tensor(torch.arange(16)[None], t, check_invariants=False)
                ),
            ),
        )
    },
    "freed: a part of it": (
        lambda: dist.all_reduce(freed(56, slice(12, 15))),
        ValueError,
        "all_reduce: a tensor that needs a storage of 60 bytes, but its storage has 56",
    ),
    "freed: every second": (
        lambda: dist.all_reduce(freed(60, slice(1, 16, 2))),
        ValueError,
        "all_reduce: a tensor that needs a storage of 64 bytes, but its storage has 60",
    ),
}


def freed(left: int, part: slice = slice(None)) -> torch.Tensor:
    """That part of 16 elements of which the storage keeps so many bytes."""
    tensor = torch.zeros(16)
    view = tensor[part]
    tensor.untyped_storage().resize_(left)
    return view


def root_0() -> dist.GatherOptions:
    options = dist.GatherOptions()
    options.rootRank = 0
    return options


def second_gathered(output: torch.Tensor, given: torch.Tensor) -> None:
    first = torch.zeros(6)
    try:
        dist.group.WORLD.allgather_into_tensor_coalesced([first, output], [torch.ones(3), given])
    finally:
        assert first.sum() == 0


def second_scattered(output: torch.Tensor, given: torch.Tensor, op: Op = Op.SUM) -> None:
    first = torch.zeros(3, dtype=torch.int32)
    options = dist.ReduceScatterOptions()
    options.reduceOp = op
    try:
        dist.group.WORLD.reduce_scatter_tensor_coalesced(
            [first, output], [torch.ones(6, dtype=torch.int32), given], options
        )
    finally:
        assert first.sum() == 0


def backend() -> dist.Backend:
    """The backend itself, without the checks that torch does before it."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_an_error_of_its_rank_alone(name: str) -> None:
    call, kind, text = WRONG[name]
    assert only_rank_0(call, kind, text).startswith("shmcoll: ")


def test_memory_that_overlaps_or_is_gone_is_an_error_of_its_rank_alone() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for name, (call, kind, text) in MEMORY.items():
            if rank.rank == 0:
                with pytest.raises(kind) as caught:
                    call()
                assert re.match(f"shmcoll: {text}", str(caught.value)), f"{name}: {caught.value}"
            works_on(rank)
        assert ROW.sum() == 0

    run(2, body)


def test_every_reduction_that_does_not_exist_is_refused_by_name() -> None:
    def body(rank: Rank) -> int:
        rank.init()
        refused = 0
        options = dist.AllreduceOptions()
        for dtype in (*oracle.REDUCIBLE, *oracle.MOVED_ONLY):
            for name in oracle.NAMES:
                if oracle.supported(dtype, name):
                    continue
                options.reduceOp = oracle.reduce_op(name)
                mine = (
                    oracle.sample(dtype, 10, seed=1)
                    if dtype in oracle.REDUCIBLE
                    else (torch.zeros(10, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype))
                )
                before = mine.clone()
                with pytest.raises(TypeError, match=f"{name} of .* does not exist; possible: "):
                    dist.group.WORLD.allreduce([mine], options)
                assert torch.equal(oracle.bits(mine), oracle.bits(before))
                refused += 1
        works_on(rank)
        return refused

    # 8 integers without premul_sum; bool without two; 8 floats without bits; 2 complex; moved only
    assert run(2, body) == [8 + 2 + 8 * 3 + 2 * 5 + len(oracle.MOVED_ONLY) * 9] * 2


def through_torch(rank: Rank, tensor: torch.Tensor) -> str:
    """Returns what a user sees: torch may raise its own error before ours."""
    rank.init()
    try:
        dist.all_reduce(tensor)
        return str(tensor.tolist())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        works_on(rank)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.full((3,), 1 + 2j).conj(), "RuntimeError: .*resolve_conj"),
        (torch.zeros(3, device="meta"), "RuntimeError|ValueError|NotImplementedError"),
        pytest.param(
            torch.full((3,), 1 + 2j).conj().imag,
            r"\[-4.0, -4.0, -4.0\]|TypeError: .*resolve_neg",
            marks=pytest.mark.xfail(
                strict=True, reason="F1: torch's dispatcher hands a copy of a negative view to us"
            ),
        ),
    ],
    ids=["conjugate", "meta", "negative"],
)
def test_what_torch_hands_on_is_right_or_an_error(tensor: torch.Tensor, text: str) -> None:
    first, second = run(2, through_torch, tensor)
    assert first == second and re.match(text, first, re.S), first


def test_a_closed_group_is_an_error_and_another_is_not_harmed() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        group = rank.group()
        group.allreduce([torch.zeros(1)]).wait()
        rank.sync()
        group.shutdown()
        group.shutdown()
        texts = []
        for call in (
            lambda: group.allreduce([torch.zeros(1)]),
            lambda: group.barrier(),
            lambda: group.broadcast([torch.zeros(1)], dist.BroadcastOptions()),
        ):
            with pytest.raises(dist.DistBackendError) as caught:
                call().wait()
            texts.append(str(caught.value))
        works_on(rank)
        return texts

    for texts in run(2, body):
        assert all('the group "test" is closed' in text for text in texts)


@pytest.mark.parametrize(
    ("rank_number", "world", "text"),
    [(0, 257, "257.*256"), (2, 2, "rank 2 of a group of 2"), (-1, 2, "rank -1 of a group of 2")],
)
def test_a_world_that_cannot_be_is_refused_at_once(rank_number: int, world: int, text: str) -> None:
    def body(rank: Rank) -> None:
        begin = time.monotonic()
        with pytest.raises(ValueError, match=text):
            rank.group(rank=rank_number, world=world)
        assert time.monotonic() - begin < 5
        assert shmcoll.build_info()["max_world"] == "256"
        rank.init()
        works_on(rank)

    run(1, body)


def test_ranks_that_disagree_about_the_world_are_told() -> None:
    def body(rank: Rank) -> None:
        meet_at_the_store(rank)
        rank.group(world=2 + rank.rank, timeout=5)

    first, second = outcomes(2, body, limit=30)
    for outcome in (first, second):
        assert outcome.error == "DistBackendError", describe(outcome)
        assert "of the ranks 0, 1" in outcome.text and "of the ranks 0-2" in outcome.text


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_a_rendezvous_that_times_out_names_who_has_not_come(store: str) -> None:
    def body(rank: Rank) -> float:
        meet_at_the_store(rank)
        begin = time.monotonic()
        if rank.rank == 1:
            return 0.0  # never comes
        try:
            rank.init(timeout=seconds(1))
        finally:
            print(f"after {time.monotonic() - begin:.3f}")
        return 0.0

    first, second, third = outcomes(3, body, store=store, limit=30)
    for outcome in (first, third):
        assert outcome.error == "DistBackendError", describe(outcome)
        assert "rank 1 (has not come)" in outcome.text and "after 1." in outcome.text
        assert 0.5 <= float(outcome.output.split("after ")[1].split()[0]) < 6
    assert second.ok


class BrokenStore(dist.Store):
    """Fails at the k-th call."""

    def __init__(self, inner: dist.Store, good_calls: int) -> None:
        super().__init__()
        self.inner, self.left = inner, good_calls

    def _call(self, name: str, *args: object) -> object:
        self.left -= 1
        if self.left < 0:
            raise ConnectionResetError("the store is gone")
        return getattr(self.inner, name)(*args)


for _name in ("set", "get", "add", "check", "compare_set", "wait"):
    setattr(BrokenStore, _name, lambda self, *args, _n=_name: self._call(_n, *args))


@pytest.mark.parametrize("good_calls", [0, 3])
def test_what_the_store_raises_reaches_the_user_and_the_others_soon(good_calls: int) -> None:
    def body(rank: Rank) -> None:
        meet_at_the_store(rank)
        store = BrokenStore(rank.store, good_calls) if rank.rank else rank.store
        rank.group(store=store, timeout=2)

    other, fault = outcomes(2, body, limit=30)
    assert "the store is gone" in fault.text, describe(fault)
    assert other.error, describe(other)
