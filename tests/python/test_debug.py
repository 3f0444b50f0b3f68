# SPDX-License-Identifier: BSD-3-Clause
"""Under torch's DETAIL debugging, and under its functional collectives and compiler."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo  # DDP's constructor imports this and fsdp: once, before the forks
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.fsdp
from torch.nn.parallel import DistributedDataParallel

import oracle
import shmcoll
from features import needs_wrapped_ends
from ranks import Rank, run, seconds

pytestmark = pytest.mark.timeout(180)


def detail(rank: Rank, **options: object) -> None:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    rank.init(**options)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert type(backend).__name__ == "_ProcessGroupWrapper"
    assert backend.wrapped_pg.name() == "shmcoll"


def test_collectives_work_behind_torchs_debug_wrapper() -> None:
    def body(rank: Rank) -> None:
        detail(rank)
        for asynchronous in (False, True):
            for count in (1, 1000, 50_000):
                inputs = [oracle.plain(torch.float32, count, seed=r) for r in range(2)]
                mine = inputs[rank.rank].clone()
                work = dist.all_reduce(mine, async_op=asynchronous)
                if work is not None:
                    work.wait()
                assert not oracle.differ(mine, oracle.fold(inputs, "sum"))
                dist.broadcast(mine, 0)
                outputs = [torch.zeros(count) for _ in range(2)]
                dist.all_gather(outputs, inputs[rank.rank])
                assert all(torch.equal(a, b) for a, b in zip(outputs, inputs))
        dist.barrier()
        group = dist.new_group([0, 1])
        dist.all_reduce(mine, group=group)
        objects: list[object] = [None, None]
        dist.all_gather_object(objects, rank.rank)
        assert objects == [0, 1]

    run(2, body)


def test_every_other_operation_passes_the_debug_wrapper() -> None:
    def body(rank: Rank) -> None:
        detail(rank)
        me, world = rank.rank, rank.world
        mine = torch.full((6,), me + 1.0)
        dist.reduce(mine, 0)
        assert mine[0].item() == (6.0 if me == 0 else me + 1.0)
        blocks = [torch.full((2,), 10.0 * me + r) for r in range(world)]
        got = torch.zeros(2)
        dist.scatter(got, blocks if me == 1 else None, 1)
        assert got[0].item() == 10.0 + me
        parts = [torch.zeros(2) for _ in range(world)] if me == 2 else None
        dist.gather(got, parts, 2)
        assert [p[0].item() for p in parts or []] == [10.0, 11.0, 12.0][: 3 * (me == 2)]
        dist.reduce_scatter(got, blocks)
        assert got[0].item() == 30.0 + 3 * me
        dist.reduce_scatter_tensor(got, torch.ones(6))
        assert got[0].item() == 3.0
        uneven = [torch.zeros(r + 1) for r in range(world)]
        work = dist.group.WORLD.allgather([uneven], [torch.full((me + 1,), float(me))])
        work.wait()
        assert [t[0].item() for t in uneven] == [0.0, 1.0, 2.0]
        dist.all_to_all_single(mine, torch.arange(6.0) + 10 * me)
        assert mine.tolist() == [10.0 * r + 2 * me + i for r in range(world) for i in range(2)]
        lists = [[torch.zeros(1), torch.zeros(2)] for _ in range(world)]
        dist.all_gather_coalesced(lists, [torch.full((1,), float(me)), torch.full((2,), float(me))])
        assert [pair[1][1].item() for pair in lists] == [0.0, 1.0, 2.0]
        dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
        sparse = torch.sparse_coo_tensor([[me]], [1.0], (3,))
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == [1.0] * 3
        request = dist.isend(torch.full((3,), float(me)), (me + 1) % world)
        message = torch.zeros(3)
        dist.recv(message, (me - 1) % world)
        request.wait()
        assert message[0].item() == (me - 1) % world
        dist.barrier()

    run(3, body)


@needs_wrapped_ends
def test_the_group_behind_the_debug_wrapper_can_be_ruled() -> None:
    """Time-outs, shutdown and abort reach it."""

    def body(rank: Rank) -> None:
        detail(rank)
        group = dist.new_group()
        wrapper = group._get_backend(torch.device("cpu"))
        group.set_timeout(seconds(7))
        assert wrapper.wrapped_pg.options._timeout == seconds(7)
        shmcoll.monitored_barrier(group)
        rank.sync()
        group.shutdown()
        with pytest.raises(dist.DistBackendError, match="closed"):
            wrapper.wrapped_pg.barrier(dist.BarrierOptions()).wait()
        other = dist.new_group()
        behind = other._get_backend(torch.device("cpu")).wrapped_pg
        rank.sync()
        if rank.rank == 0:
            other.abort()
        else:
            with pytest.raises(dist.DistBackendError, match="rank 0 aborted"):
                behind.barrier(dist.BarrierOptions()).wait()
        rank.sync()

    run(2, body)


def test_the_debug_wrapper_tells_calls_apart() -> None:
    def body(rank: Rank) -> str:
        detail(rank)
        dist.barrier()
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.zeros(4 + rank.rank))
        rank.sync()
        return str(caught.value)

    for text in run(2, body):
        assert "Detected mismatch between collectives" in text
        assert "SequenceNumber" in text


def test_ddp_trains_behind_the_debug_wrapper() -> None:
    def body(rank: Rank) -> list[float]:
        detail(rank)
        torch.manual_seed(rank.rank)
        model = DistributedDataParallel(torch.nn.Linear(3, 2).double())
        for step in range(3):
            model(torch.full((2, 3), 1.0 + rank.rank + step, dtype=torch.double)).sum().backward()
        return [model.module.weight.grad.mean().item(), model.module.weight.sum().item()]

    first, second = run(2, body)
    assert first == second and first[0] == pytest.approx(2 * (1.5 + 2.5 + 3.5))


def test_functional_collectives() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        mine = torch.full((3, 2), rank.rank + 1.0)
        total = funcol.all_reduce(mine, "sum", dist.group.WORLD)
        assert (total + 0).tolist() == [[3.0, 3.0]] * 3
        assert mine.tolist() == [[rank.rank + 1.0] * 2] * 3, "not in place"
        rows = funcol.all_gather_tensor(mine, 0, dist.group.WORLD)
        assert (rows + 0).tolist() == [[1.0, 1.0]] * 3 + [[2.0, 2.0]] * 3
        columns = funcol.all_gather_tensor(mine, 1, dist.group.WORLD)
        assert (columns + 0).tolist() == [[1.0, 1.0, 2.0, 2.0]] * 3
        many = funcol.all_reduce_coalesced([mine, mine * 10], "avg", dist.group.WORLD)
        assert [t[0, 0].item() for t in many] == [1.5, 15.0]
        sent = funcol.broadcast(mine, 1, dist.group.WORLD)
        assert (sent + 0).tolist() == [[2.0, 2.0]] * 3

    run(2, body)


def test_a_compiled_function_communicates() -> None:
    def body(rank: Rank) -> None:
        rank.init()

        @torch.compile(backend="aot_eager", fullgraph=True)
        def step(x: torch.Tensor) -> torch.Tensor:
            y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
            return funcol.all_gather_tensor(y + x, 0, dist.group.WORLD) + 1

        for turn in range(3):
            got = step(torch.full((2,), float(rank.rank + turn)))
            total = 2.0 * (2 * turn + 1)
            assert got.tolist() == [total + turn + 1] * 2 + [total + turn + 2] * 2

    run(2, body, limit=120)
