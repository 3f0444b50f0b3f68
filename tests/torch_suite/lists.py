# SPDX-License-Identifier: BSD-3-Clause
"""Which tests of torch's suite do not run or cannot pass, and why. Nothing else may skip or fail."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

import torch

# How many of torch's tests run, or are excluded below, by world size. Torch 2.13 has 116, 119, 124.
AT_LEAST = {3: 114, 4: 117, 8: 122}

# What a decorator says when it refuses a backend of this name: the other gate may let it through.
_ABOUT_THE_NAME = re.compile(
    r"The mpi backend does not support|mpi does not support|MPI doesn't support"
    r"|Only (MPI|[Gg]loo) |Only Gloo and N|Only Nccl & Gloo|GLOO Batch Send Recv"
    r"|Test requires backend \w+ to be one of \{(?!'nccl'\})"
)

# Why a test may run under no gate: what its decorators say, and what that means.
SKIPS = {
    # In torch 2.15 they want an accelerator, of which CUDA is one.
    r"Need at least \d (CUDA|accelerator) devices"
    r"|(CUDA|accelerator) is not available": "its tensors are on GPUs",
    r"Only N(ccl|CCL) (supports|backend supports) |NCCL (Batch )?Send Recv Only"
    r"|one of \{'nccl'\}|tests with NCCL only|^Tests nccl metadata primarily\.$": "NCCL's, on GPUs",
    r"^https://github.com/pytorch/pytorch/issues/\d+$"
    r"|^Test is failing, (see|tracking issue at) https://github.com/"
    r"|^Skipped due to flakiness$"
    r"|^Currently failing in NVIDIA internal CI$": "torch does not run it for any backend",
    r"^no torchvision$": "wants a package that nothing else here needs",
    r"^Skipped due to small world size": "the gates let it through with 8 ranks only",
    r"^Test requires (a world|an exact world|world) size": "wants another number of ranks",
}


def is_about_the_name(text: str) -> bool:
    return bool(_ABOUT_THE_NAME.search(text))


def may_skip(texts: list[str]) -> bool:
    """All that both gates said; nothing but names means that a third gate is missing."""
    return bool(texts) and all(any(re.search(one, text) for one in SKIPS) for text in texts)


# The body asks `if BACKEND == "mpi" or BACKEND == "gloo"` before it makes its model, and has no
# `else` (_test_accumulate_gradients_no_sync, line 5308 in torch 2.13): for any other name it ends
# in an UnboundLocalError. So these run with a name that equals both.
ASKS_FOR_GLOO = (
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
)


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why no backend of another name than gloo can pass a test."""

    why: str
    file: str  # of torch, which decides it
    line: int  # in torch 2.13, or in the first one that has it
    code: str  # what is found there where this is the reason
    says: str  # what the test must fail with

    def holds(self) -> bool:
        text = (pathlib.Path(torch.__file__).parent / self.file).read_text()
        return re.search(self.code, text) is not None


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """Tests that cannot be passed, and why: one reason after the other, as torch grew older."""

    tests: tuple[str, ...]
    reasons: tuple[Reason, ...]
    everywhere: bool = True  # every torch has them
    compiled_glue: bool = False  # with the glue in Python they pass

    def reason(self) -> Reason | None:
        """The first that the torch that is installed bears out."""
        return next((one for one in self.reasons if one.holds()), None)


EXCLUDED = (
    Exclusion(
        (
            "test_monitored_barrier_gloo",
            "test_monitored_barrier_gloo_subgroup",
            "test_monitored_barrier_failure_order",
            "test_monitored_barrier_wait_all_ranks",
        ),
        (
            Reason(
                why="dist.monitored_barrier refuses every group whose backend is not called gloo",
                file="distributed/distributed_c10d.py",
                line=5418,
                code=r"if get_backend\(group\) != Backend.GLOO:\s+raise ValueError\("
                r'"monitored_barrier is only implemented for GLOO backend',
                says="monitored_barrier is only implemented for GLOO backend",
            ),
            Reason(
                why="the barrier names who is missing, but not in gloo's words, which tell of "
                "messages from rank 0; torch 2.14 hands it to every backend",
                file="testing/_internal/distributed/distributed_test.py",
                line=8849,
                code=r"successfully reached monitoredBarrier,\"\s+"
                r'f" but received errors while waiting for send/recv from rank"',
                says=r'" does not match "shmcoll: Rank \d+ timed out in monitoredBarrier: ',
            ),
        ),
    ),
    Exclusion(
        ("test_barrier_timeout_arg",),
        (
            Reason(
                why="it waits for gloo's words, and the other ranks may have left by then; torch 2.13 "
                "runs it for no backend",
                file="testing/_internal/distributed/distributed_test.py",
                line=915,
                code=r'"Timed out waiting 1ms"',
                says=r'"Timed out waiting 1ms" does not match "shmcoll: rank 0: barrier #1 on ',
            ),
        ),
        everywhere=False,
    ),
    Exclusion(
        ("test_ddp_logging_data_cpu",),
        (
            Reason(
                why="DDP's log has the name of the group's type, which is 'custom' for every plugin",
                file="testing/_internal/distributed/distributed_test.py",
                line=6278,
                code=r'ddp_logging_data.get\("backend_name"\), dist.get_backend\(',
                says="'custom' != 'shmcoll'",
            ),
        ),
        compiled_glue=True,
    ),
)


def exclusion(test: str) -> Exclusion | None:
    in_python = os.environ.get("SHMCOLL_GLUE") == "python"
    lists = (one for one in EXCLUDED if not (in_python and one.compiled_glue))
    return next((one for one in lists if test in one.tests), None)
