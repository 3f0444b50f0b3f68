# SPDX-License-Identifier: BSD-3-Clause
"""torch's own distributed_test.py, run against a backend whose name it does not know.

Its decorators decide at import, by the name in BACKEND and by WORLD_SIZE, which tests may run. So
the module is loaded once for each gate, a name that they know, and gets our name when they have
decided. A test runs when one of the gates lets it through.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import multiprocessing
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch.distributed
import torch.distributed.fsdp  # noqa: F401  # DDP's constructor imports it: once, before the forks
from torch.testing._internal import common_distributed

import lists
import ranks
import shmcoll

SUITE = "torch.testing._internal.distributed.distributed_test"
GATES = ("gloo", "mpi")
LIMIT_S = 150.0  # of one test; its groups wait for 60 s, in one test for 300
GRACE_S = 5.0  # for the other ranks when one has failed
BARRIER_S = 60  # of the suite's own barrier: files in a directory

Module = types.ModuleType


@dataclasses.dataclass(frozen=True)
class Gate:
    """The suite as it looks to a backend of this name in a world of this size."""

    name: str
    world: int
    module: Module
    case: type[unittest.TestCase]


class TwoNames(str):
    """Our name, which also equals "gloo"."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    __hash__ = str.__hash__


@functools.cache
def gate(name: str, world: int) -> Gate:
    found = importlib.util.find_spec(SUITE)
    assert found is not None and found.origin is not None
    spec = importlib.util.spec_from_file_location(f"torch_suite_{name}_{world}", found.origin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its objects are pickled by this name
    seen = {"BACKEND": name, "WORLD_SIZE": str(world), "INIT_METHOD": "file://"}
    with mock.patch.dict(os.environ, seen):
        spec.loader.exec_module(module)
    bases = (module.TestDistBackend, module.DistributedTest._DistTestBase)
    return Gate(name, world, module, type("Suite", bases, {}))


# ---- what the gates let through ----


class _Reached(BaseException):
    """A test's decorators called its body."""


def refusal(gate: Gate, name: str) -> str:
    """Why the decorators skip the test; "" when they do not. Its body is not run."""
    method = getattr(gate.case, name)
    if getattr(method, "__unittest_skip__", False):
        return str(method.__unittest_skip_why__)
    body = inspect.unwrap(method).__code__

    def stop(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is body:
            raise _Reached

    test = gate.case(name)
    test.rank = 0  # type: ignore[attr-defined]
    sys.setprofile(stop)
    try:
        getattr(test, name)()
    except _Reached:
        return ""
    except unittest.SkipTest as skip:
        return str(skip)
    except SystemExit as end:
        texts = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
        return texts[end.code]
    finally:
        sys.setprofile(None)
    raise AssertionError(f"{name}: its decorators neither skip it nor run it")


def refusals_here(world: int) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for each in [gate(name, world) for name in GATES]:
        os.environ.update(BACKEND=each.name, WORLD_SIZE=str(world))
        for name in unittest.TestLoader().getTestCaseNames(each.case):
            found.setdefault(name, {})[each.name] = refusal(each, name)
    return found


@functools.cache
def refusals(world: int) -> dict[str, dict[str, str]]:
    """By test, then by gate. In a fork: the decorators change torch's debug level."""
    for name in GATES:
        gate(name, world)
    (found,) = ranks.run(1, lambda _: refusals_here(world), store="file")
    return dict(found)


def runnable(world: int) -> dict[str, str]:
    """The tests that some gate lets through, and the first such gate."""
    return {
        name: next(gate for gate in GATES if not reasons[gate])
        for name, reasons in refusals(world).items()
        if not all(reasons.values())
    }


def skipped(world: int) -> dict[str, list[str]]:
    """The tests that no gate lets through, and why: what is not a matter of the gate's name."""
    return {
        name: [text for text in reasons.values() if not lists.is_about_the_name(text)]
        for name, reasons in refusals(world).items()
        if all(reasons.values())
    }


# ---- one test ----


def name_for(test: str, backend: str) -> str:
    if backend in ("for-gloo", "over-hosts"):
        return "gloo"
    return TwoNames(backend) if test in lists.ASKS_FOR_GLOO else backend


def prepare(module: Module, backend: str) -> None:
    """What the suite keeps lists of names for."""
    module.BACKEND = backend
    if os.environ.get("SHMCOLL_GLUE") != "python":  # which the profiler does not see
        for names in (
            module.PROFILING_SUPPORTED_BACKENDS,
            module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
            module.CUDA_PROFILING_SUPPORTED_BACKENDS,
        ):
            names.append(str(backend))
    module.Barrier.sync.__func__.__defaults__ = (None, BARRIER_S)


def be_rank(rank: ranks.Rank, gate: Gate, test: str, backend: str) -> None:
    """What the suite's own processes do, which end by sys.exit: 0 is a passed test."""
    scratch = rank.directory / "scratch"
    for folder in (scratch, scratch / "barrier", scratch / "test_dir"):
        folder.mkdir(exist_ok=True)
    tempfile.tempdir = str(scratch)
    os.environ.update(
        BACKEND=gate.name,
        WORLD_SIZE=str(gate.world),
        MASTER_ADDR="127.0.0.1",
        TEMP_DIR=str(scratch),
    )
    if backend == "for-gloo":
        shmcoll.use_for_gloo()
    if backend == "over-hosts":
        os.environ.update(SHMCOLL_FAKE_HOSTS=f"2x{(gate.world + 1) // 2}", GLOO_SOCKET_IFNAME="lo")
        shmcoll.use_for_gloo(hosts=True)
    prepare(gate.module, name_for(test, backend))
    gate.module.INIT_METHOD = f"file://{scratch / 'again'}"
    _, pipe = multiprocessing.Pipe()
    try:
        gate.case._run(rank.rank, test, str(scratch / "first"), pipe)  # type: ignore[attr-defined]
    except SystemExit as end:
        if end.code == 0:
            return
        raise
    raise AssertionError("the test has not ended as the suite's tests do")


def run(gate: Gate, test: str, backend: str = "shmcoll") -> None:
    ranks.run(gate.world, be_rank, gate, test, backend, store="file", limit=LIMIT_S, grace=GRACE_S)
