# SPDX-License-Identifier: BSD-3-Clause
"""Collectives for ranks that share one machine, as a torch.distributed backend.

    import torch.distributed as dist
    import shmcoll                       # not needed where the entry point is found

    dist.init_process_group("shmcoll")   # or "cpu:shmcoll,cuda:nccl"

The public names are ``Options``, ``build_info``, ``describe``, ``monitored_barrier`` and
``__version__``.
"""

import _shmcoll_autoload
from shmcoll._load import load_extension

_C = load_extension()

from shmcoll._backend import (  # noqa: E402  (needs the extension)
    create_backend,
    describe,
    monitored_barrier,
)
from shmcoll._C import Options  # noqa: E402  (the same)

_shmcoll_autoload.register()  # torch.distributed knows "shmcoll" from here on

__version__ = "0.1.0"
__all__ = [
    "Options",
    "build_info",
    "create_backend",
    "describe",
    "monitored_barrier",
    "__version__",
]


def build_info() -> dict[str, str]:
    """What the library was built with, and what this machine offers of it.

    Keys: version, layout, max_world, compiler, built_with_numa, built_with_uring, numa, uring (the
    run-time probes), isa (in use), isa_usable, and torch, python of the build.
    """
    from shmcoll._load import build_facts

    core = dict(line.split("=", 1) for line in _C._build_info().splitlines() if "=" in line)
    return {**build_facts(), **core}
