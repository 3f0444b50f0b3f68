# SPDX-License-Identifier: BSD-3-Clause
"""DistributedDataParallel over shmcoll: the same training as one process on the whole batch.

In float64, so that a lost element or a wrong rank's gradient stands far above the rounding.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # DDP's constructor imports these two: once, before the forks
import torch.distributed as dist
import torch.distributed.fsdp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ranks import Rank, run

STEPS = 6
CLOSE = {"rtol": 1e-10, "atol": 1e-12}

State = dict[str, torch.Tensor]


class Net(nn.Module):
    """Convolution, normalization, a parameter of one element, a branch that is not always used."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)
        self.norm = nn.BatchNorm2d(5) if norm else nn.Identity()
        self.scale = nn.Parameter(torch.ones(1))
        self.wide = nn.Linear(5 * 36, 64)
        self.branch = nn.Linear(64, 64)
        self.last = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        x = self.norm(self.conv(x)).tanh().flatten(1)
        x = self.wide(x).tanh() * self.scale
        if branch:
            x = x + self.branch(x).tanh()
        return self.last(x)


def net(norm: bool = False, dtype: torch.dtype = torch.float64) -> Net:
    torch.manual_seed(3)
    return Net(norm).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(100 + step)
    x = torch.randn((12, 1, 8, 8), generator=rng).to(dtype)
    return x, torch.randint(0, 3, (12,), generator=rng)


def share(rank: Rank, step: int, dtype: torch.dtype = torch.float64) -> Iterator[Any]:
    """This rank's part of the batch."""
    return (t.chunk(rank.world)[rank.rank] for t in batch(step, dtype))


def alone(branch: Callable[[int], bool] = lambda step: True, rate: float = 0.3) -> State:
    """One process on the whole batch."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.5)
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, branch(step)), y).backward()
        optimizer.step()
    return model.state_dict()


def together(
    rank: Rank,
    hook: Callable[..., Any] | None = None,
    branch: Callable[[int], bool] = lambda step: True,
    **options: Any,
) -> State:
    rank.init()
    model = DistributedDataParallel(net(), **options)
    if hook is not None:
        hook(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.5)
    for step in range(STEPS):
        x, y = share(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, branch(step)), y).backward()
        optimizer.step()
    return model.module.state_dict()


@functools.cache
def reference(*args: Any) -> State:
    """Trains alone, in a process of its own: this process must not start torch's threads."""
    return run(1, lambda rank: alone(*args))[0]


def assert_same(states: list[State], want: State | None = None, **tolerance: float) -> None:
    for state in states:
        for name, value in state.items():
            assert torch.equal(value, states[0][name]), f"ranks differ in {name}"
            if want is not None:
                torch.testing.assert_close(value, want[name], **(tolerance or CLOSE))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.001},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.01},
        {"find_unused_parameters": True},
        {"broadcast_buffers": False, "init_sync": True},
    ],
    ids=str,
)
def test_training_equals_that_of_one_process(options: dict[str, Any]) -> None:
    for world in (2, 3):
        assert_same(run(world, lambda rank: together(rank, **options)), reference())


def test_the_comparison_sees_a_step_that_is_missing() -> None:
    assert not torch.equal(reference()["last.bias"], net().state_dict()["last.bias"])
    with pytest.raises(AssertionError):
        assert_same([reference()], run(1, lambda rank: alone(rate=0.299999))[0])


def test_parameters_that_a_step_does_not_use() -> None:
    def used(step: int) -> bool:
        return step % 3 == 1

    states = run(2, lambda rank: together(rank, branch=used, find_unused_parameters=True))
    assert_same(states, reference(used))


def test_gradients_may_be_accumulated_without_communication() -> None:
    def body(rank: Rank) -> State:
        rank.init()
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.5)
        for step in range(STEPS):
            x, y = share(rank, step)
            optimizer.zero_grad()
            with model.no_sync():
                (nn.functional.cross_entropy(model(x[::2]), y[::2]) / 2).backward()
            (nn.functional.cross_entropy(model(x[1::2]), y[1::2]) / 2).backward()
            optimizer.step()
        return model.module.state_dict()

    assert_same(run(2, body), reference())


def test_all_ranks_start_with_the_parameters_and_buffers_of_rank_0() -> None:
    def body(rank: Rank) -> State:
        rank.init()
        torch.manual_seed(rank.rank)  # DDP has to make them alike
        model = DistributedDataParallel(Net(norm=True).double())
        for step in range(3):
            x, y = share(rank, step)
            nn.functional.cross_entropy(model(x), y).backward()
        model.eval()
        x, y = share(rank, 0)
        model(x)  # forward broadcasts the buffers
        return {**model.module.state_dict(), "grad": model.module.conv.weight.grad}

    states = run(3, body)
    assert_same(states)
    assert states[0]["norm.num_batches_tracked"].item() == 3
    assert states[0]["norm.running_mean"].abs().max() > 0


@pytest.mark.parametrize(
    ("name", "tolerance"), [("fp16_compress_hook", 1e-2), ("bf16_compress_hook", 6e-2)]
)
def test_gradients_may_travel_in_half_the_bytes(name: str, tolerance: float) -> None:
    def hook(state, bucket):  # DDP lets the bf16 hook itself pass on NCCL only
        return getattr(default_hooks, name)(state, bucket)

    def register(model: DistributedDataParallel) -> None:
        model.register_comm_hook(None, hook)

    states = run(2, lambda rank: together(rank, register))
    want = reference()
    assert_same(states, want, rtol=tolerance, atol=tolerance)
    with pytest.raises(AssertionError):
        assert_same(states, want)  # they did go through the narrow type


def test_an_own_hook_gets_the_bucket_and_its_future() -> None:
    def hook(state, bucket):  # DDP does not read annotations that are strings
        state.append(bucket.index())
        tensor = bucket.buffer().div_(dist.get_world_size())
        future = dist.all_reduce(tensor, async_op=True).get_future()
        return future.then(lambda f: f.value()[0])

    def body(rank: Rank) -> State:
        seen: list[int] = []
        state = together(rank, lambda model: model.register_comm_hook(seen, hook))
        assert len(seen) >= STEPS
        return state

    assert_same(run(2, body), reference())


def test_powersgd_trains_with_one_bucket() -> None:
    """Its callback runs another collective and waits for it."""

    def body(rank: Rank) -> tuple[State, list[float], int]:
        rank.init()
        model = DistributedDataParallel(net(), bucket_cap_mb=100)
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=2,
            start_powerSGD_iter=2,
            min_compression_rate=1,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), 0.3)
        losses = []
        for _ in range(40):
            x, y = share(rank, 0)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model.module.state_dict(), losses, len(state.p_memory_dict)

    ended = run(2, body)
    assert_same([state for state, _, _ in ended])
    for _, losses, compressed_buckets in ended:
        assert losses[-1] < 0.2 * losses[0]
        assert compressed_buckets == 1


def test_ranks_may_have_different_numbers_of_batches() -> None:
    def body(rank: Rank) -> State:
        rank.init()
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        steps = 0
        with model.join(divide_by_initial_world_size=False):
            for step in range(4 + 3 * rank.rank):
                x, y = share(rank, step)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                steps += 1
        assert steps == 4 + 3 * rank.rank
        dist.barrier()
        return model.module.state_dict()

    states = run(3, body)
    assert_same(states)
    assert not torch.equal(states[0]["last.bias"], net().state_dict()["last.bias"])


def test_join_averages_over_those_who_are_still_there() -> None:
    def body(rank: Rank) -> list[float]:
        rank.init()
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        nn.init.zeros_(model.module.weight)
        grads = []
        with model.join(divide_by_initial_world_size=False):
            for step in range(2 + rank.rank):
                model.zero_grad()
                model(torch.full((1, 1), 10.0**rank.rank)).sum().backward()
                grads.append(model.module.weight.grad.item())
        return grads

    assert run(2, body) == [[5.5, 5.5], [5.5, 5.5, 10.0]]


def test_zero_redundancy_shards_the_state_and_trains_the_same() -> None:
    def body(rank: Rank) -> tuple[State, int]:
        rank.init()
        model = DistributedDataParallel(net())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=0.3, momentum=0.5
        )
        for step in range(STEPS):
            x, y = share(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model.module.state_dict(), len(optimizer.optim.state)

    ended = run(2, body)
    assert_same([state for state, _ in ended], reference())
    count = len(list(net().parameters()))
    assert sum(held for _, held in ended) == count and all(held < count for _, held in ended)


def test_zero_redundancy_and_ddp_join_together() -> None:
    def body(rank: Rank) -> State:
        rank.init()
        model = DistributedDataParallel(net())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        with Join([model, optimizer]):
            for step in range(3 + rank.rank):
                x, y = share(rank, step)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        return copy.deepcopy(model.module.state_dict())

    assert_same(run(2, body))


def test_models_that_differ_are_found_before_training() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        with pytest.raises(RuntimeError) as caught:
            DistributedDataParallel(nn.Linear(3 + rank.rank, 2))
        dist.destroy_process_group()  # rank 0 cannot know, and waits until rank 1 leaves
        return str(caught.value)

    first, second = run(2, body)
    assert "appears not to match" in second
    assert "rank 1" in first and "left" in first
