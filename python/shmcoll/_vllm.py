# SPDX-License-Identifier: BSD-3-Clause
"""The general plugin "shmcoll" of vLLM: its CPU platform gets our backend, if SHMCOLL_FOR_VLLM=1.

vLLM calls register() in each of its processes, perhaps more than once. Without the variable nothing changes.
"""

import os
import sys

TRIED = ("0.32",)  # minor versions of vLLM whose CPU communicator was read, and run with ours
COMMUNICATOR = "shmcoll._vllm_communicator.Communicator"


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(f"shmcoll: {text}", file=sys.stderr, flush=True)


def register() -> None:
    """The entry point in the group vllm.general_plugins."""
    value = os.environ.get("SHMCOLL_FOR_VLLM") or "0"
    if value not in ("0", "1"):
        _say(f"SHMCOLL_FOR_VLLM={value} is not one of 0|1; ignored")
    if value != "1":
        return
    import vllm

    version = ".".join(vllm.__version__.split(".")[:2])
    if version not in TRIED:
        tried = ", ".join(TRIED)
        _say(
            f"SHMCOLL_FOR_VLLM=1 has no effect with vLLM {vllm.__version__}: shmcoll has been tried with "
            f"vLLM {tried} only. vLLM runs unchanged"
        )
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        _say(f"SHMCOLL_FOR_VLLM=1 has no effect on {current_platform.device_name}: it is for CPUs")
        return
    from shmcoll._load import load_glue

    load_glue()  # or it says what is missing, here and not in the middle of vLLM's start
    platform = type(current_platform)
    platform.dist_backend = "shmcoll"
    platform.get_device_communicator_cls = classmethod(lambda cls: COMMUNICATOR)
