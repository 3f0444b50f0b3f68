# SPDX-License-Identifier: BSD-3-Clause
"""A forked child may live while a group exists, and may not use it."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import faults
import glues
import pytest
import ranks
import torch
import torch.distributed as dist

LIMIT_S = 40.0


def in_a_child(body: Callable[[], None]) -> None:
    """Runs the body in a forked child of this rank; it must return within the run's limit."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child's output is the rank's"


def refused(call: Callable[[], Any], kind: type[Exception] = dist.DistBackendError) -> None:
    ms = faults.took_ms(lambda: check_text(faults.told(call, kind)))
    assert ms < faults.LEFT_MS


def check_text(said: str) -> None:
    assert "parent process" in said, said


@pytest.mark.timeout(60)
def test_the_group_raises_in_a_child_and_the_parent_goes_on() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)

        def child() -> None:
            for call in (faults.all_reduce, dist.barrier):
                refused(call)
            refused(lambda: dist.all_reduce(torch.ones(4), async_op=True))
            tensor = torch.ones(5)
            refused(lambda: dist.broadcast(tensor, 0))
            assert torch.all(tensor == 1)
            assert faults.took_ms(dist.destroy_process_group) < faults.LEFT_MS

        for _ in range(5):
            in_a_child(child)
            faults.all_reduce()
            dist.all_reduce(torch.ones(100000), async_op=True).wait()

    ranks.run(2, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_the_parents_work_raises_in_a_child() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        if rank.rank == 1:
            faults.wait_for(rank, faults.FREE)
            faults.all_reduce()
            return
        tensor = torch.ones(4)
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()

        def child() -> None:
            refused(work.wait)
            refused(lambda: work.get_future().wait(), glues.FUTURE_ERROR)
            refused(work.wait)

        in_a_child(child)
        rank.board[faults.FREE] = 1
        work.wait()
        assert torch.all(tensor == 2)

    ranks.run(2, body, limit=LIMIT_S)


@pytest.mark.timeout(60)
def test_the_death_of_a_child_is_not_its_parents() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                os.kill(os.getpid(), 9)
            faults.all_reduce()
            os.waitpid(pid, 0)
            faults.all_reduce()

    ranks.run(3, body, limit=LIMIT_S)


@pytest.mark.alone
@pytest.mark.timeout(60)
def test_a_child_that_outlives_its_parent_does_not_hide_the_death() -> None:
    def body(rank: ranks.Rank) -> float:
        faults.meet(rank)
        if rank.rank == 1:
            pid = os.fork()
            if pid == 0:
                import time

                time.sleep(1.0)
                os._exit(0)
            faults.mark(rank)
            os.kill(os.getpid(), 9)
        said = faults.told(faults.all_reduce)
        assert "rank 1 (pid" in said and "died" in said, said
        return faults.since_ms(rank)

    outcomes = ranks.outcomes(2, body, limit=LIMIT_S)
    assert outcomes[0].ok, ranks.describe(outcomes[0])
    assert outcomes[0].value <= faults.told_limit_ms()


@pytest.mark.timeout(60)
def test_a_child_may_make_a_group_of_its_own() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)

        def child() -> None:
            dist.destroy_process_group()
            dist.init_process_group(
                "shmcoll",
                store=dist.FileStore(str(rank.directory / "children"), 2),
                rank=rank.rank,
                world_size=2,
                timeout=ranks.seconds(10),
            )
            for _ in range(5):
                faults.all_reduce()
                dist.all_reduce(torch.ones(100000), async_op=True).wait()
            dist.destroy_process_group()

        in_a_child(child)
        faults.all_reduce()

    ranks.run(2, body, limit=LIMIT_S)


class Squares(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index * index


@pytest.mark.timeout(60)
def test_the_workers_of_a_data_loader_live_beside_the_group() -> None:
    def body(rank: ranks.Rank) -> int:
        faults.meet(rank)
        total = 0
        for _ in range(3):
            loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2)
            for batch in loader:
                work = dist.all_reduce(batch, async_op=True)
                assert work is not None
                work.wait()
                total += int(batch.sum())
        return total

    each = 3 * 2 * sum(index * index for index in range(64))
    assert ranks.run(2, body, limit=LIMIT_S) == [each, each]


@pytest.mark.timeout(60)
def test_a_process_of_multiprocessing_ends_clean_beside_the_group() -> None:
    def body(rank: ranks.Rank) -> None:
        faults.meet(rank)
        for _ in range(10):
            process = multiprocessing.get_context("fork").Process(target=check_refusal)
            process.start()
            faults.all_reduce()
            process.join(20)
            assert process.exitcode == 0
        faults.all_reduce()

    ranks.run(2, body, limit=LIMIT_S)


def check_refusal() -> None:
    refused(faults.all_reduce)
