# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that make different calls: every rank learns both, and no user byte changes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from ranks import Outcome, Rank, describe, outcomes, run

Tensors = list[torch.Tensor]
SIZES = (4, 1000, 50_000)  # inline, small slots, staged


@dataclasses.dataclass
class Call:
    """Returns the tensors it may write to, and runs."""

    text: str  # as the error spells it; {n} is the count
    make: Callable[[Rank, int], Tensors]
    run: Callable[[Rank, Tensors, bool], object]


def full(dtype: torch.dtype = torch.float32, more: int = 0) -> Callable[[Rank, int], Tensors]:
    return lambda rank, n: [torch.full((n + more,), 7 + rank.rank, dtype=dtype)]


def reduce(op: dist.ReduceOp = dist.ReduceOp.SUM) -> Callable[[Rank, Tensors, bool], object]:
    return lambda rank, t, a: dist.all_reduce(t[0], op, async_op=a)


def gather(rank: Rank, tensors: Tensors, asynchronous: bool) -> object:
    return dist.all_gather(tensors[:-1], tensors[-1], async_op=asynchronous)


def pieces(rank: Rank, n: int) -> Tensors:
    return [torch.full((n,), 7.0 + rank.rank) for _ in range(rank.world + 1)]


PLAIN = Call("all_reduce #1 (float32[{n}], sum)", full(), reduce())
ROOT0 = Call(
    "broadcast #1 (float32[{n}], root 0)",
    full(),
    lambda rank, t, a: dist.broadcast(t[0], 0, async_op=a),
)
GATHER = Call("all_gather #1 (float32[{n}])", pieces, gather)

PAIRS: dict[str, tuple[Call, Call]] = {
    "operation": (PLAIN, ROOT0),
    "gather": (GATHER, PLAIN),
    "barrier": (
        PLAIN,
        Call("barrier #1", lambda r, n: [], lambda r, t, a: dist.barrier(async_op=a)),
    ),
    "root of a reduce": (
        Call(
            "reduce #1 (float32[{n}], sum, root 0)",
            full(),
            lambda rank, t, a: dist.reduce(t[0], 0, async_op=a),
        ),
        Call(
            "reduce #1 (float32[{n}], sum, root 1)",
            full(),
            lambda rank, t, a: dist.reduce(t[0], 1, async_op=a),
        ),
    ),
    "reduce_scatter": (
        Call(
            "reduce_scatter #1 (float32[{n}], sum)",
            pieces,
            lambda rank, t, a: dist.reduce_scatter(t[-1], t[:-1], async_op=a),
        ),
        Call(
            "all_to_all #1 (float32)",
            lambda rank, n: [torch.full((n,), 7.0 + rank.rank) for _ in range(2 * rank.world)],
            lambda rank, t, a: dist.all_to_all(t[: rank.world], t[rank.world :], async_op=a),
        ),
    ),
    "dtype": (PLAIN, Call("all_reduce #1 (float64[{n}], sum)", full(torch.float64), reduce())),
    "dtype of one size": (
        PLAIN,
        Call("all_reduce #1 (int32[{n}], sum)", full(torch.int32), reduce()),
    ),
    "count": (PLAIN, Call("all_reduce #1 (float32[{m}], sum)", full(more=1), reduce())),
    "reduction": (
        PLAIN,
        Call("all_reduce #1 (float32[{n}], max)", full(), reduce(dist.ReduceOp.MAX)),
    ),
    "root": (
        ROOT0,
        Call(
            "broadcast #1 (float32[{n}], root 1)",
            full(),
            lambda rank, t, a: dist.broadcast(t[0], 1, async_op=a),
        ),
    ),
    "broadcast count": (
        ROOT0,
        Call("broadcast #1 (float32[{m}], root 0)", full(more=1), ROOT0.run),
    ),
    "gather count": (
        GATHER,
        Call("all_gather #1 (float32[{m}])", lambda r, n: pieces(r, n + 1), gather),
    ),
}


def different_calls(rank: Rank, pair: str, n: int, odd: int, asynchronous: bool) -> list[bool]:
    """Says which tensors have changed, and re-raises."""
    rank.init()
    call = PAIRS[pair][int(rank.rank == odd)]
    tensors = call.make(rank, n)
    before = [t.clone() for t in tensors]
    try:
        work = call.run(rank, tensors, asynchronous)
        if work is not None:
            work.wait()
    finally:
        rank.sync()  # nobody leaves before all have seen it
        same = all(torch.equal(t, old) for t, old in zip(tensors, before))
        print("unchanged" if same else "CHANGED", len(tensors))
    return []


def judge(outcome: Outcome, texts: list[str], odd: int, world: int) -> None:
    assert outcome.error == "DistBackendError", describe(outcome)
    assert "ranks made different calls" in outcome.text
    for text in texts:
        assert text in outcome.text, describe(outcome)
    assert f"rank {odd} called" in outcome.text
    assert any(f"rank {r} called" in outcome.text for r in range(world) if r != odd)
    prefix, _, reason = outcome.text.partition(" failed: ")
    own = re.search(rf"rank {outcome.rank} called (.+? #\d+)", reason)
    assert own is None or own[1] not in prefix, "its own call stands once"
    assert reason.count(" called ") == 2 and "; in rank" not in reason, "both calls, each once"
    assert "unchanged" in outcome.output and "CHANGED" not in outcome.output, describe(outcome)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("n", SIZES)
def test_every_rank_gets_both_calls_and_keeps_its_bytes(pair: str, n: int) -> None:
    number = list(PAIRS).index(pair) + SIZES.index(n)
    world, odd = ((2, 1), (3, 0), (3, 2))[number % 3]
    ended = outcomes(world, different_calls, pair, n, odd, number % 2 == 1)
    texts = [call.text.format(n=n, m=n + 1) for call in PAIRS[pair]]
    for outcome in ended:
        judge(outcome, texts, odd, world)


def test_two_types_that_are_only_moved_differ_too() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dtype = (torch.complex32, torch.complex32)[rank.rank]
        dist.broadcast(torch.zeros(3, dtype=dtype), 0)
        dtype = (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)[rank.rank]
        try:
            dist.broadcast(torch.zeros(3, dtype=torch.uint8).view(dtype), 0)
        finally:
            rank.sync()

    for outcome in outcomes(2, body):
        assert outcome.error == "DistBackendError" and "1-byte elements of type" in outcome.text


def test_a_group_stays_broken_and_says_the_first_reason() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        texts = []
        for n in (4 + rank.rank, 4, 4):
            with pytest.raises(dist.DistBackendError) as caught:
                dist.all_reduce(torch.zeros(n))
            texts.append(str(caught.value))
            rank.sync()
        fresh = dist.new_group()
        mine = torch.tensor([rank.rank + 1.0])
        dist.all_reduce(mine, group=fresh)
        assert mine.item() == 3.0, "another group works"
        return texts

    for outcome in outcomes(2, body):
        assert outcome.ok, describe(outcome)
        assert all("float32[4]" in t and "float32[5]" in t for t in outcome.value)


def test_works_behind_a_mismatch_fail_too() -> None:
    def body(rank: Rank) -> int:
        rank.init()
        tensors = [torch.full((5,), 1.0) for _ in range(10)]
        tensors[4] = torch.full((5 + rank.rank,), 1.0)
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        failed = 0
        for work in works:
            try:
                work.wait()
            except dist.DistBackendError as error:
                assert "different calls" in str(error)
                failed += 1
        assert [t[0].item() for t in tensors] == [2.0] * 4 + [1.0] * 6
        rank.sync()
        return failed

    for outcome in outcomes(2, body):
        assert outcome.ok, describe(outcome)
        assert outcome.value == 6


def test_a_shape_may_differ_when_the_count_does_not() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = torch.ones((2, 3) if rank.rank else (6,))
        dist.all_reduce(mine)
        assert (mine == 2.0).all()

    for outcome in outcomes(2, body):
        assert outcome.ok, describe(outcome)


EVERY: dict[str, Callable[[Rank, dist.ProcessGroup, int], object]] = {
    "barrier": lambda rank, group, n: dist.barrier(group=group),
    "broadcast": lambda rank, group, n: dist.broadcast(torch.ones(n), 0, group=group),
    "all_reduce": lambda rank, group, n: dist.all_reduce(torch.ones(n), group=group),
    "all_gather": lambda rank, group, n: dist.all_gather(pieces(rank, n)[1:], torch.ones(n), group),
    "reduce": lambda rank, group, n: dist.reduce(torch.ones(n), 0, group=group),
    "gather": lambda rank, group, n: dist.gather(
        torch.ones(n), pieces(rank, n)[1:] if rank.rank == 0 else None, 0, group
    ),
    "scatter": lambda rank, group, n: dist.scatter(
        torch.ones(n), pieces(rank, n)[1:] if rank.rank == 0 else None, 0, group
    ),
    "reduce_scatter": lambda rank, group, n: dist.reduce_scatter(
        torch.ones(n), pieces(rank, n)[1:], group=group
    ),
    "all_to_all": lambda rank, group, n: dist.all_to_all(
        pieces(rank, n)[1:], pieces(rank, n)[1:], group
    ),
}


@pytest.mark.parametrize("world", [2, 3])
def test_each_pair_of_operations_is_told_apart(world: int) -> None:
    """Rank 1 makes another call than the rest: all operations, both ways round."""
    pairs = list(itertools.permutations(EVERY, 2))

    def body(rank: Rank) -> list[str]:
        rank.init()
        said = []
        for number, pair in enumerate(pairs):
            group = dist.new_group(list(range(world)))
            with pytest.raises(dist.DistBackendError) as caught:
                EVERY[pair[int(rank.rank == 1)]](rank, group, SIZES[number % len(SIZES)])
            said.append(str(caught.value))
            rank.sync()
            dist.destroy_process_group(group)
        return said

    for texts in run(world, body):
        assert len(texts) == len(pairs)
        for (most, one), text in zip(pairs, texts):
            assert "ranks made different calls" in text, (most, one, text)
            for rank, name in ((1, one), (0, most)):
                if world == 2 or rank == 1:
                    assert f"rank {rank} called {name} #1" in text, (most, one, text)
            assert f"called {most} #1" in text, (most, one, text)
