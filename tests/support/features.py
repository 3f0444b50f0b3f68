# SPDX-License-Identifier: BSD-3-Clause
"""What older versions of torch lack: a test of that alone is skipped, and says so."""

from __future__ import annotations

import inspect
import pathlib

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))

# A group's methods, from torch 2.9 on.
SET_TIMEOUT = hasattr(dist.ProcessGroup, "set_timeout")
SPLIT_GROUP = hasattr(dist.ProcessGroup, "split_group")
# From torch 2.11 on; without it shmcoll takes no CUDA tensors.
STREAM_HANDLES = hasattr(torch.Stream, "native_handle")
# Older ones have the method, which always raises a TypeError: they cannot convert what it returns.
WORK_EXCEPTION = "exception_ptr" not in (dist.Work.exception.__doc__ or "")
# From torch 2.12 on its analyser of flight records takes those of gloo.
ANALYSES_GLOO = VERSION >= (2, 12)
# From torch 2.14 on: the flat gather, monitored_barrier for every backend, and members of a part in the order in
# which they are named.
GATHER_SINGLE = hasattr(dist, "gather_single")
MONITORS_ALL = "only implemented for GLOO" not in inspect.getsource(dist.monitored_barrier)
SPLITS_IN_ORDER = VERSION >= (2, 14)
# Older gloos take each reduction for a sum in reduce_scatter, and say nothing.
GLOO_SCATTERS = VERSION >= (2, 9)
# Older headers do not let a backend outside torch write the event of NCCL's traces.
PARAM_COMMS = VERSION >= (2, 9)
# An older one cannot say its name, and so be no engine.
FAKE_GROUP = hasattr(FakeProcessGroup, "_create_internal")
# Older hooks of ZeRO let no backend but NCCL's sum gradients while the optimizer steps.
ZERO_OVERLAPS = "currently requires" not in inspect.getsource(ddp_zero_hook)

# The debug wrapper's set_timeout, shutdown and abort, which older ones do not pass on to the wrapped backend.
_WRAPPER = "include/torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp"
WRAPPED_ENDS = "shutdown()" in (pathlib.Path(torch.__file__).parent / _WRAPPER).read_text()


def needs(there: bool, what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there, reason=f"this torch has no {what}")


needs_set_timeout = needs(SET_TIMEOUT, "ProcessGroup.set_timeout")
needs_split_group = needs(SPLIT_GROUP, "ProcessGroup.split_group")
needs_stream_handles = needs(STREAM_HANDLES, "Stream.native_handle")
needs_gather_single = needs(GATHER_SINGLE, "gather_single")
needs_work_exception = needs(WORK_EXCEPTION, "Work.exception that works")
needs_wrapped_ends = needs(WRAPPED_ENDS, "shutdown in its debug wrapper")
needs_gloo_that_scatters = needs(GLOO_SCATTERS, "gloo with averages in reduce_scatter")
needs_param_comms = needs(PARAM_COMMS, "record_param_comms for a backend outside it")
needs_fake_group = needs(FAKE_GROUP, "fake group with a name")
needs_zero_that_overlaps = needs(ZERO_OVERLAPS, "overlap of ZeRO with other backends")
