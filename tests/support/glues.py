# SPDX-License-Identifier: BSD-3-Clause
"""Which glue a rank uses, and what the glue in Python does not do as the compiled one."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

import shmcoll

# Test -> why it cannot pass with SHMCOLL_GLUE=python. docs/reference/python-glue.md says the same to users.
DIFFERENT = {
    "test_a_profile_has_the_names_and_shapes_of_operations": "no events of the profiler",
    "test_a_trace_has_what_nccls_traces_say_of_each_operation": "no events of the profiler",
    "test_point_to_point_counts_in_no_sequence_and_shows_in_the_profile": "no events of the profiler",
    "test_torch_itself_stops_quantized_tensors": "torch's dispatcher is not asked",
    "test_what_torch_hands_on_is_right_or_an_error[negative]": "torch's dispatcher makes no copy",
    "test_collectives_work_behind_torchs_debug_wrapper": "there is no wrapper",
    "test_every_other_operation_passes_the_debug_wrapper": "there is no wrapper",
    "test_the_group_behind_the_debug_wrapper_can_be_ruled": "there is no wrapper",
    "test_the_debug_wrapper_tells_calls_apart": "there is no wrapper",
    "test_ddp_trains_behind_the_debug_wrapper": "there is no wrapper",
    "test_tensors_of_a_dropped_work_live_until_it_is_done_and_not_longer": "small results live on",
    "test_peers_are_not_delayed[new_group]": "its calls of the store need Python's lock",
    "test_with_gloos_place_each_group_gets_what_its_ranks_can_have": "it cannot take gloo's place",
}

# What a future raises whose operation has failed; its text names the DistBackendError.
FUTURE_ERROR: type[Exception] = (
    RuntimeError if os.environ.get("SHMCOLL_GLUE") == "python" else dist.DistBackendError
)


def use_python() -> None:
    """In a forked rank that has made no group: the glue in Python instead of the one that is loaded."""
    os.environ["SHMCOLL_GLUE"] = "python"
    for name in ("_glue", "_backend", "_options", "_operators", "_direct", "_graph", "_memory"):
        sys.modules.pop(f"shmcoll.{name}", None)
        vars(shmcoll).pop(name, None)
    for name in shmcoll._HOMES:
        vars(shmcoll).pop(name, None)
    shmcoll._load.load_glue.cache_clear()
