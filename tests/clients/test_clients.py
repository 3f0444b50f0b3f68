# SPDX-License-Identifier: BSD-3-Clause
"""The clients of tests/clients/python under gloo and under shmcoll: the results are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import clients
import features
import shmcoll
from clients import Case, assert_same, case, compare, module, results
from ranks import Failed, run

CASES = (
    case("ddp", bucket_cap_mb=0.01),
    case("ddp", 3, gradient_as_bucket_view=True),
    case("ddp", unused=True, bucket_cap_mb=0.01),
    case("ddp", static_graph=True),
    case("ddp", accumulate=True),
    case("ddp", 3, broadcast_buffers=False, accumulate=True, unused=True),
    case("ddp_hooks", hook="allreduce", bucket_cap_mb=0.01),
    case("ddp_hooks", hook="fp16"),
    case("ddp_hooks", hook="bf16", bucket_cap_mb=0.01),
    case("ddp_hooks", hook="scattered", bucket_cap_mb=0.01),
    case("ddp_hooks", hook="powersgd"),
    case("ddp_hooks", hook="powersgd of fp16"),
    case("loader"),
    case("uneven", 3),
    case("uneven", divide_by_initial_world_size=False),
    case("uneven", zero=True),
    case("zero"),
    case("zero", 3, bucket_view=True),
    case("local_sgd", 4),
    case("local_sgd", 4, hierarchical=True),
    case("fsdp2"),
    case("fsdp2", groups_memory=True),
    case("fsdp2", bf16=True),
    case("fsdp2", reshard=False, accumulate=True),
    case("fsdp2", 4, replicas=2),
    case("fsdp1"),
    case("fsdp1", 3, strategy="SHARD_GRAD_OP"),
    case("fsdp1", use_orig_params=True),
    case("tensor_parallel"),
    case("dtensors", 3),
    case("dtensors", 4, rows=2),
    case("checkpoint"),
    case("checkpoint", asynchronous=True, before="fsdp", after="fsdp"),
    case("functional"),
    case("functional", 3),
    case("differentiable"),
    case("differentiable", 3),
    case("experts", 3),
    case("objects", 3),
)

# As long as several of these: the long lane has them.
LONGER = (
    case("fsdp2", 3),
    case("tensor_parallel", 4, replicas=2),
    case("checkpoint", 3, before="fsdp", after="ddp"),
)

# Those whose reduce_scatter averages.
AVERAGING = ("fsdp2", "dtensors", "checkpoint", "functional")

# Each has a function alone(), which gives in one process what all ranks together have.
POINT_TO_POINT = (
    case("ring", 3),
    case("pipeline"),
    case("pipeline", 4, replicas=2),
)
BACKENDS = ("gloo", "shmcoll")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_result_is_that_of_gloo(case: Case) -> None:
    if case.client in AVERAGING and not features.GLOO_SCATTERS:
        pytest.skip("this torch has no gloo with averages in reduce_scatter")
    compare(case)


def against_one_process(case: Case, backend: str) -> None:
    want = run(1, lambda rank: module(case).alone(case.world, **case.options))[0]
    together = {name: t for found in results(backend, case) for name, t in found.items()}
    assert_same([together], [want], {"rtol": 1e-5, "atol": 1e-6})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", POINT_TO_POINT, ids=str)
def test_the_result_is_that_of_one_process(case: Case, backend: str) -> None:
    against_one_process(case, backend)


class AlmostRight(dist.ProcessGroup):
    """shmcoll, except that the first element of every sum is wrong by `error`."""

    error = 0.0

    def __init__(self, store: dist.Store, rank: int, world: int, timeout: Any) -> None:
        super().__init__(rank, world)
        options = shmcoll.Options(timeout)  # loads shmcoll._C
        self.right = shmcoll._glue.make(store, rank, world, options)

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> dist.Work:
        work = self.right.allreduce(tensors, *options)
        work.wait()
        if tensors[0].is_floating_point():
            tensors[0].view(-1)[0] *= 1 + self.error
        return work

    def allgather(self, *arguments: Any) -> dist.Work:
        return self.right.allgather(*arguments)

    def broadcast(self, *arguments: Any) -> dist.Work:
        return self.right.broadcast(*arguments)


@pytest.mark.parametrize(("world", "error"), [(2, 0.0), (2, 2.0**-23), (3, 0.0), (3, 0.01)])
def test_the_comparison_sees_one_wrong_element(
    world: int, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest error a float32 can have; with a tolerance, one of a hundredth."""
    monkeypatch.setattr(AlmostRight, "error", error)
    monkeypatch.setattr(dist.Backend, "_plugins", dict(dist.Backend._plugins))
    dist.Backend.register_backend("almost_right", AlmostRight, devices=["cpu"])
    one = case("ddp", world, static_graph=True)
    got, want = results("almost_right", one), results("gloo", one)
    if error == 0:
        assert_same(got, want, one.tolerance)
    else:
        with pytest.raises(AssertionError, match="rank 0, "):
            assert_same(got, want, one.tolerance)


@pytest.mark.parametrize(
    ("backend", "words", "runs"),
    [
        ("gloo", clients.GLOO_ABORT, 4),
        ("gloo", "another failure", 1),
        ("shmcoll", clients.GLOO_ABORT, 1),
    ],
)
def test_only_the_abort_of_gloo_is_forgiven(
    backend: str, words: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fail(*arguments: Any) -> None:
        asked.append(arguments)
        raise Failed(f"rank 0: {words}")

    monkeypatch.setattr(clients, "run_once", fail)
    with pytest.raises(Failed, match=words):
        results(backend, case("ddp"))
    assert len(asked) == runs


# ---- what gloo refuses: compared with gloo doing the same another way ----


@features.needs_zero_that_overlaps
def test_the_optimizer_may_step_while_gradients_are_summed() -> None:
    """torch lets no gloo do that; the two first steps change nothing."""
    got = results("shmcoll", case("zero", overlap=True))
    with pytest.raises(AssertionError, match="Gloo backend using Overlapping DDP with ZeRO"):
        results("gloo", case("zero", overlap=True))
    want = results("gloo", case("zero", idle=2))
    weights = [{name: t for name, t in found.items() if "adam" not in name} for found in want]
    assert_same(got, weights, None)


@features.needs_gloo_that_scatters
def test_gradients_may_be_multiplied_before_they_are_summed() -> None:
    """PREMUL_SUM; in binary, a division by 4 before or after the sum gives equal bits."""
    got = results("shmcoll", case("fsdp2", divisor=4.0))
    with pytest.raises(AssertionError, match="PREMUL_SUM"):
        results("gloo", case("fsdp2", divisor=4.0))
    assert_same(got, results("gloo", case("fsdp2", divisor=4.0, plain_sums=True)), None)
