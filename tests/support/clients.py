# SPDX-License-Identifier: BSD-3-Clause
"""Runs a client of tests/clients/python under any backend, and compares what it gives.

A client is a program of a user: its train(backend, ...) knows nothing of shmcoll, calls
init_process_group(backend) and returns tensors. In the ranks that are forked here that call finds
its store and its rank.

With two ranks a + b is b + a, so any two backends give the same bits. With more, gloo adds in another
order; ROUNDING says how far float32 may then be away.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported once, before the forks, like what the clients import
import torch.distributed as dist

import oracle
import shmcoll
from ranks import Failed, Rank, run, seconds

FOLDER = Path(__file__).resolve().parents[1] / "clients" / "python"
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
LIMIT_S = 60.0
# gloo's last words when one of its threads joins itself: about one run in 200 ends in that abort.
GLOO_ABORT = "Resource deadlock avoided"

Tensors = dict[str, torch.Tensor]

if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))


@dataclasses.dataclass
class Case:
    client: str  # a file of FOLDER
    world: int
    options: dict[str, Any]  # of its train()
    hosts: int = 1  # that shmcoll takes the ranks for

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([self.client, str(self.world), *said])

    @property
    def tolerance(self) -> dict[str, float] | None:
        """None: the same bits."""
        return ROUNDING if self.world > 2 else None

    @property
    def environment(self) -> dict[str, str]:
        if self.hosts == 1:
            return LOOPBACK
        each = -(-self.world // self.hosts)
        return {**LOOPBACK, "SHMCOLL_FAKE_HOSTS": f"{self.hosts}x{each}", "SHMCOLL_LOG": "off"}


def case(client: str, world: int = 2, **options: Any) -> Case:
    return Case(client, world, options)


def module(case: Case) -> Any:
    return importlib.import_module(case.client)


def results(backend: str, case: Case, limit: float = LIMIT_S) -> list[Tensors]:
    """Returns the results of a client on each rank. gloo is tried again if it has aborted, up to 3 times."""
    for _ in range(3):
        try:
            return run_once(backend, case, limit)
        except Failed as failure:
            if backend != "gloo" or GLOO_ABORT not in str(failure):
                raise
            print(f"gloo aborted under {case}, and runs again")
    return run_once(backend, case, limit)


def run_once(backend: str, case: Case, limit: float) -> list[Tensors]:
    client: Callable[..., Tensors] = module(case).train

    def body(rank: Rank) -> Tensors:
        make = dist.init_process_group

        def init(name: str) -> None:
            place = {"rank": rank.rank, "world_size": rank.world, "store": rank.store}
            make(name, timeout=seconds(limit), **place)

        dist.init_process_group = init
        found = client(backend, **case.options)
        assert dist.get_backend() == backend
        if case.hosts > 1:
            about: Any = shmcoll.describe()
            assert about["hosts"] == case.hosts
        return {name: tensor.clone() for name, tensor in found.items()}

    return run(case.world, body, limit=limit, env=case.environment)


def assert_same(
    got: list[Tensors], want: list[Tensors], tolerance: dict[str, float] | None
) -> None:
    for rank, (mine, other) in enumerate(zip(got, want, strict=True)):
        assert mine.keys() == other.keys() and mine
        for name, tensor in mine.items():
            where = f"rank {rank}, {name}: "
            assert tensor.isfinite().all(), where + "not finite"
            if tolerance is None:
                wrong = oracle.differ(tensor, other[name])
                assert not wrong, where + wrong
            else:
                torch.testing.assert_close(
                    tensor, other[name], msg=lambda text, where=where: where + text, **tolerance
                )


def compare(case: Case, limit: float = LIMIT_S) -> None:
    """shmcoll with gloo."""
    assert_same(results("shmcoll", case, limit), results("gloo", case, limit), case.tolerance)
