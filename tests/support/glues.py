# SPDX-License-Identifier: BSD-3-Clause
"""Which glue a rank uses, and what the glue in Python does not do as the compiled one."""

from __future__ import annotations

import importlib.util
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
    "test_ranks_of_several_hosts_go_on": "a group over several hosts needs the compiled glue",
    "test_what_other_hosts_say_is_checked": "a group over several hosts needs the compiled glue",
    "test_a_group_in_gloos_place_shrinks": "it cannot take gloo's place",
    "test_the_example_trains_on": "an error of a future is a RuntimeError",
    "test_torchs_own_function_shrinks_too": "it does not offer that",
    "test_two_groups_become_one": "it does not offer that",
    "test_hooks.py": "it does not offer that",
    "test_reconfigure.py": "it does not offer that",
    "test_window.py": "it does not offer that",
    "test_with_gloos_place_each_group_gets_what_its_ranks_can_have": "it cannot take gloo's place",
}

# Test -> why it cannot pass without shmcoll._C (`--without-module`).
WITHOUT_MODULE = {
    "test_the_errors_are_torchs_or_the_backends": "Python words what it says of wrong arguments",
    "test_a_group_says_how_it_is": "torch's class of backends has no get_error()",
    "test_options_may_be_given_for_each_group": "a backend that is made has no options",
    "test_torchs_own_way_to_a_new_time_out_works_too": "a backend that is made has no options",
    "test_what_torch_writes_into_a_groups_options_stays_there": "a backend that is made has none",
    "test_the_group_behind_the_debug_wrapper_can_be_ruled": "a backend that is made has no options",
    "test_probes_see_the_same_with_the_switch": "a backend that is made has no options",
    "test_closed_groups_and_forked_children_do_not_show": "a group has no words of the user's",
    "test_lines_go_to_a_file_with_date_rank_and_pid": "a group has no words of the user's",
    "test_a_log_file_that_cannot_be_opened_costs_no_line": "a group has no words of the user's",
    "test_a_log_file_that_is_a_pipe_without_a_reader_holds_up_no_rank": "a group has no words",
    "test_hooks.py": "a backend that is made has no hooks",
    "test_reconfigure.py": "a backend that is made cannot be reconfigured",
}

# The type of a backend as torch shows it.
BACKEND = "ProcessGroupShm" if importlib.util.find_spec("shmcoll._C") else "Backend"

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
