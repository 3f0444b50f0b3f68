# SPDX-License-Identifier: BSD-3-Clause
"""Barriers that name who is missing; what a group says of its own state, and its end by abort."""

from __future__ import annotations

import re
import time

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import features
import shmcoll
from ranks import Rank, run, seconds


def ours(group: dist.ProcessGroup | None = None) -> shmcoll._C.ProcessGroupShm:
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_monitored_barrier_names_everybody_who_is_missing(all_ranks: bool) -> None:
    def body(rank: Rank) -> str:
        rank.init()
        shmcoll.monitored_barrier()
        shmcoll.monitored_barrier(timeout=seconds(10), wait_all_ranks=all_ranks)
        text = ""
        if rank.rank in (0, 2):
            begin = time.monotonic()
            with pytest.raises(dist.DistBackendError) as caught:
                shmcoll.monitored_barrier(timeout=seconds(0.3), wait_all_ranks=all_ranks)
            assert 0.25 <= time.monotonic() - begin < 5
            text = str(caught.value)
        rank.sync()
        return text

    texts = run(4, body)
    for text in (texts[0], texts[2]):
        waited = re.search(r"Timed out after (\d+\.\d+) s", text)
        assert "barrier #3" in text and waited and float(waited[1]) >= 0.3, text
        assert "rank 1 (pid" in text and "rank 3 (pid" in text


def test_nobody_passes_a_monitored_barrier_alone() -> None:
    def body(rank: Rank) -> tuple[float, float]:
        rank.init()
        time.sleep(0.1 * rank.rank)
        come = time.monotonic()
        shmcoll.monitored_barrier()
        return come, time.monotonic()

    come, left = zip(*run(3, body))
    assert min(left) >= max(come)


def test_a_monitored_barrier_of_a_part_of_the_ranks() -> None:
    def body(rank: Rank) -> int:
        rank.init()
        part = dist.new_group([0, 2])
        shmcoll.monitored_barrier(part, wait_all_ranks=True)  # rank 1 returns at once
        return 0 if rank.rank == 1 else ours(part)._get_sequence_number_for_group()

    assert run(3, body) == [1, 0, 1]


def test_the_methods_of_group_and_backend_are_the_same_barrier() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.group.WORLD.monitored_barrier(seconds(5))
        dist.group.WORLD.monitored_barrier(seconds(5), wait_all_ranks=True)
        came = ours()._get_sequence_number_for_group()
        if not features.MONITORS_ALL:
            with pytest.raises(ValueError, match="only implemented for GLOO"):
                dist.monitored_barrier()
        else:
            dist.monitored_barrier(timeout=seconds(5))
            came += 1
        assert ours()._get_sequence_number_for_group() == came

    run(2, body)


def test_a_group_says_how_it_is() -> None:
    def body(rank: Rank) -> list[ErrorType]:
        rank.init()
        late, aborted, left = dist.new_group(), dist.new_group(), dist.new_group()
        found = [ours().get_error()]
        with pytest.raises(dist.DistBackendError):
            if rank.rank == 0:
                shmcoll.monitored_barrier(late, seconds(0.2))
            else:
                rank.sync()
                dist.barrier(late)
        if rank.rank == 0:
            rank.sync()
            aborted.abort()
        rank.sync()
        ours(left).shutdown()
        found += [ours(group).get_error() for group in (late, aborted, left)]
        found.append(ours().get_error())
        dist.barrier()
        return found

    for found in run(2, body):
        good, late, aborted, left, still = found
        assert good == still == ErrorType.SUCCESS
        assert late in (ErrorType.TIMEOUT, ErrorType.COMM_ERROR)
        assert aborted == left == ErrorType.COMM_ERROR


def test_an_abort_ends_what_is_in_flight_everywhere_and_names_its_rank() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        doomed = dist.new_group()
        texts = []
        if rank.rank == 0:
            rank.sync()
            doomed.abort()
            with pytest.raises(dist.DistBackendError) as caught:
                dist.barrier(doomed)
            texts.append(str(caught.value))
        else:
            works = [dist.all_reduce(torch.ones(n), group=doomed, async_op=True) for n in (1, 9000)]
            rank.sync()
            for work in works:
                with pytest.raises(dist.DistBackendError) as caught:
                    work.wait()
                texts.append(str(caught.value))
        mine = torch.ones(1)
        dist.all_reduce(mine)  # another group is not harmed
        assert mine.item() == 3.0
        return texts

    zero, one, two = run(3, body)
    assert "closed" in zero[0] or "abort" in zero[0]
    assert len(one) == len(two) == 2
    for text in one + two:
        assert "rank 0 aborted the group: abort() was called" in text
