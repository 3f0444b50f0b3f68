# SPDX-License-Identifier: BSD-3-Clause
"""Clients that take longer: compilers, more ranks, more stages, and one as its own program."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from clients import FOLDER, LOOPBACK, Case, case, compare
from test_clients import BACKENDS, LONGER, against_one_process

LIMIT_S = 300.0  # a compiler of C++ runs in every rank

pytestmark = pytest.mark.timeout(2 * LIMIT_S + 60)

CASES = (
    *LONGER,
    case("functional", compiler="aot_eager"),
    case("functional", compiler="inductor"),
    case("functional", 3, compiler="inductor"),
    case("ddp", compiler="aot_eager"),
    case("ddp", compiler="inductor", static_graph=True),
    case("ddp", 8, bucket_cap_mb=0.01, unused=True),
    case("uneven", 7),
    case("zero", 5, steps=20),
    case("local_sgd", 8, hierarchical=True, steps=12),
    case("fsdp2", 4, bf16=True, accumulate=True),
    case("fsdp2", 8, replicas=2),
    case("fsdp1", 5),
    case("tensor_parallel", 4),
    case("tensor_parallel", 8, replicas=4),
    case("dtensors", 6, rows=3),
    case("checkpoint", 5, asynchronous=True, before="fsdp", after="fsdp"),
    case("functional", 8),
    case("differentiable", 7),
    case("experts", 8, steps=20),
    case("objects", 8),
    case("loader", 4),
)

POINT_TO_POINT = (
    case("ring", 2),
    case("ring", 8),
    case("ring", 3, rows=60_000),
    case("pipeline", 2, schedule="GPipe"),
    case("pipeline", 4),
    case("pipeline", 4, microbatches=9),
    case("pipeline", 3, width=500),
    case("pipeline", 6, replicas=2),
    case("pipeline", 3, schedule="Interleaved1F1B", per_rank=2, microbatches=6),
    case("pipeline", 3, schedule="LoopedBFS", per_rank=2),
    case("pipeline", 2, schedule="InterleavedZeroBubble", per_rank=2),
    case("pipeline", 2, schedule="ZBVZeroBubble", per_rank=2),
    case("pipeline", 2, schedule="DualPipeV", per_rank=2),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_result_is_that_of_gloo(case: Case) -> None:
    compare(case, LIMIT_S)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", POINT_TO_POINT, ids=str)
def test_the_result_is_that_of_one_process(case: Case, backend: str) -> None:
    against_one_process(case, backend)


def test_under_torchrun_only_the_name_changes() -> None:
    """No client imports shmcoll: torch finds it by its name."""
    said = []
    for backend in ("shmcoll", "gloo"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", str(FOLDER / "ddp.py"), backend]
        done = subprocess.run(
            command,
            env={**os.environ, **LOOPBACK, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(sorted(re.findall(r"tensor\([^)]*\)", done.stdout)))
    assert said[0] == said[1] and len(said[0]) == 2
