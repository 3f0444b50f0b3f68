# SPDX-License-Identifier: BSD-3-Clause
"""More than 2^31 elements, and more than 4 GiB. A lane of its own (make huge): it needs memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from ranks import Rank, run, seconds

pytestmark = pytest.mark.timeout(900)
LIMIT_S = 800.0
GIB = 1 << 30
ELEMENTS = (1 << 31) + 10  # of int8
WORDS = (4 * GIB + (100 << 20)) // 8  # of int64
SPARE = 2 * GIB  # for the interpreter, the staging memory, and others on the machine


def available() -> int:
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) * 1024


def need(needed: int) -> None:
    if available() < needed + SPARE:
        pytest.skip(
            f"needs {(needed + SPARE) / GIB:.1f} GiB of memory, {available() / GIB:.1f} are available"
        )


# Where an offset of 31 or 32 bits would go wrong, and both ends.
def places(count: int, size: int) -> list[int]:
    limits = [n // size for n in (1 << 31, 1 << 32) if n // size < count]
    return sorted({0, count - 1, *limits, *(n - 1 for n in limits)})


def test_more_than_2_31_elements_are_reduced() -> None:
    need(2 * ELEMENTS)

    def body(rank: Rank) -> list[int]:
        rank.init(timeout=seconds(600))
        mine = torch.full((ELEMENTS,), rank.rank + 1, dtype=torch.int8)
        for number, place in enumerate(places(ELEMENTS, 1)):
            mine[place] = 10 * rank.rank + number
        dist.all_reduce(mine)
        marks = [mine[place].item() for place in places(ELEMENTS, 1)]
        for place in places(ELEMENTS, 1):
            mine[place] = 3
        low, high = mine.aminmax()
        assert low.item() == high.item() == 3 and mine.numel() == ELEMENTS
        return marks

    marks = [10 + 2 * number for number in range(len(places(ELEMENTS, 1)))]
    assert len(marks) == 4
    assert run(2, body, limit=LIMIT_S) == [marks] * 2


def broadcast(rank: Rank, words: torch.Tensor) -> None:
    dist.broadcast(words, 0)


def uneven_gather(rank: Rank, words: torch.Tensor) -> None:
    """Rank 0's input is its own part of the output; rank 1 has a little."""
    little = torch.zeros(3, dtype=torch.int64)
    dist.all_gather([words, little], words if rank.rank == 0 else torch.tensor([7, 8, 9]))
    assert little.tolist() == [7, 8, 9]


def message(rank: Rank, words: torch.Tensor) -> None:
    if rank.rank == 0:
        dist.send(words, 1)
    else:
        dist.recv(words, 0)


def blocks(rank: Rank, words: torch.Tensor) -> None:
    """All of rank 0's input is for rank 1."""
    nothing = words.new_empty(0)
    if rank.rank == 0:
        dist.all_to_all([nothing, nothing], [nothing, words])
    else:
        dist.all_to_all([words, nothing], [nothing, nothing])


@pytest.mark.parametrize("call", [broadcast, uneven_gather, message, blocks])
def test_more_than_4_gib_arrive(call: Callable[[Rank, torch.Tensor], None]) -> None:
    need(2 * 8 * WORDS)

    def body(rank: Rank) -> None:
        rank.init(timeout=seconds(600))
        words = torch.zeros(WORDS, dtype=torch.int64)
        if rank.rank == 0:
            torch.arange(WORDS, out=words)
        call(rank, words)
        for first in range(0, WORDS, 1 << 24):  # a piece at a time: no second large tensor
            piece = words[first : first + (1 << 24)]
            want = torch.arange(first, first + piece.numel())
            assert torch.equal(piece, want), first

    run(2, body, limit=LIMIT_S)
    assert WORDS * 8 > 4 * GIB
