# SPDX-License-Identifier: BSD-3-Clause
"""Collectives for ranks that share one machine, as a torch.distributed backend.

Example:

    import torch.distributed as dist
    import shmcoll                       # not needed where the entry point is found

    dist.init_process_group("shmcoll")   # or "cpu:shmcoll,cuda:nccl"

Every operation of ``torch.distributed`` on that group then goes through shmcoll. The names of this
module are extras:

    Options             options of one group, for ``pg_options=``
    describe            what a group uses, and why
    monitored_barrier   a barrier that names missing ranks
    build_info          how the library was built
    Description, GpuDescription, InternalDescription
                        the types of what describe() returns
"""

import _shmcoll_autoload
from shmcoll._load import build_facts, load_extension

load_extension()

# These need the extension.
from shmcoll import _C  # noqa: E402
from shmcoll._C import Options  # noqa: E402
from shmcoll._backend import create_backend, describe, monitored_barrier  # noqa: E402
from shmcoll._describe import (  # noqa: E402
    Description,
    GpuDescription,
    InternalDescription,
)

_shmcoll_autoload.register()  # from here on torch.distributed knows "shmcoll"

__version__ = "0.1.0"
__all__ = [
    "Description",
    "GpuDescription",
    "InternalDescription",
    "Options",
    "build_info",
    "create_backend",
    "describe",
    "monitored_barrier",
    "__version__",
]


def build_info() -> dict[str, str]:
    """Returns what the library was built with, and what this machine offers.

    Keys:
        version, layout: of the library, and of its shared memory
        max_world: most ranks of a group
        compiler, torch, python: of the build
        built_with_numa, built_with_uring: "yes" or "no"
        numa, uring: "yes" or "no", as this machine allows it now
        isa: instruction set of the reductions
        isa_usable: the instruction sets that this CPU has, with commas

    Raises:
        ImportError: shmcoll is not built.

    Example:
        >>> shmcoll.build_info()["max_world"]
        '256'
    """
    core = dict(line.split("=", 1) for line in _C._build_info().splitlines() if "=" in line)
    return {**build_facts(), **core}
