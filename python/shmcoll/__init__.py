# SPDX-License-Identifier: BSD-3-Clause
"""Collectives for ranks that share one machine, as a torch.distributed backend.

Example:

    import torch.distributed as dist
    import shmcoll                       # not needed where the entry point is found

    dist.init_process_group("shmcoll")   # or "cpu:shmcoll,cuda:nccl"

Every operation of ``torch.distributed`` on that group then goes through shmcoll. The names of this
module are extras, each loaded when it is first used. ``import shmcoll`` itself loads neither torch nor
the library:

    Options             options of one group, for ``pg_options=``
    describe            what a group uses, and why
    monitored_barrier   a barrier that names missing ranks
    on_late             calls a function when a rank waits too long
    shrink_group        goes on with the ranks of a group that are left, after some have died
    dump                writes the last calls of this process to a file
    use_for_gloo        from now on, groups that ask for gloo get shared memory where they can
    all_reduce, broadcast, all_gather_into, reduce_scatter_into, all_to_all, barrier
                        direct calls: as in torch.distributed, without its dispatcher
    direct              the same as methods of one group, for loops
    empty, zeros, empty_like, zeros_like, shared_memory, share, is_shared
                        tensors in memory that the ranks share
    new_window          reads and stores the tensors of other ranks, while they do something else
    build_info          how the library was built
    Description, GpuDescription, InternalDescription
                        the types of what describe() returns
"""

import sys

import _shmcoll_autoload

TYPE_CHECKING = False  # a type checker takes it for True; importing typing's own is slow
if TYPE_CHECKING:
    from shmcoll._C import Options
    from shmcoll._backend import create_backend, describe, monitored_barrier
    from shmcoll._events import on_late
    from shmcoll._direct import Direct, direct, all_reduce, broadcast, barrier
    from shmcoll._direct import all_gather_into, all_to_all, reduce_scatter_into
    from shmcoll._describe import Description, GpuDescription, InternalDescription
    from shmcoll._dump import dump
    from shmcoll._memory import empty, empty_like, zeros, zeros_like
    from shmcoll._memory import is_shared, share, shared_memory
    from shmcoll._shrink import shrink_group
    from shmcoll._window import Window, new_window

    __version__: str

__all__ = [
    "Description",
    "Direct",
    "GpuDescription",
    "InternalDescription",
    "Options",
    "Window",
    "all_gather_into",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "build_info",
    "create_backend",
    "describe",
    "direct",
    "dump",
    "empty",
    "empty_like",
    "is_shared",
    "monitored_barrier",
    "new_window",
    "on_late",
    "reduce_scatter_into",
    "share",
    "shared_memory",
    "shrink_group",
    "use_for_gloo",
    "zeros",
    "zeros_like",
    "__version__",
]


def build_info() -> dict[str, str]:
    """Returns what the library was built with, and what this machine offers.

    Keys:
        version, layout: of the library, and of its shared memory
        max_world: most ranks of a group
        compiler, torch, python: of the build
        built_with_numa, built_with_uring, built_with_probes: "yes" or "no"
        numa, uring: "yes" or "no", as this machine allows it now
        numa_use: what libnuma does, "nodes of CPUs, distances, memory", or "none": then the machine has one node
        uring_use: "none": liburing is only asked whether it would work
        futex_waitv: "yes": a rank that waits long sleeps until something happens; "no": in slices of 10 ms
        isa: instruction set of the reductions
        isa_usable: the instruction sets that this CPU has, with commas

    Raises:
        ImportError: shmcoll is not built.

    Example:
        >>> shmcoll.build_info()["max_world"]
        '256'
    """
    from shmcoll._load import build_facts, load_glue

    text: bytes = load_glue().shc_build_info()
    core = dict(line.split("=", 1) for line in text.decode().splitlines() if "=" in line)
    return {**build_facts(), **core}


def use_for_gloo(hosts: bool = False) -> None:
    """From now on, groups of this process that ask for gloo get shmcoll if all their ranks share memory.

    The other groups get real gloo. The ranks decide per group, all alike. All ranks must call it, before
    they make the same group; ``SHMCOLL_FOR_GLOO=1`` does the same at ``import torch``. Groups that exist
    stay what they are. There is no way back.

    Args:
        hosts: groups over several hosts get shmcoll, too, with gloo between the hosts;
            ``SHMCOLL_FOR_GLOO=hosts`` does the same. If ranks differ about it, what the first one of a
            group says holds for all of them.

    Raises:
        ImportError: torch is not installed, has no torch.distributed or no gloo, or shmcoll is not built
            for it.

    Example:
        >>> shmcoll.use_for_gloo()
        >>> dist.init_process_group("gloo")
    """
    from shmcoll._load import build_facts, find_glue

    build_facts()
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("shmcoll.use_for_gloo() needs torch, and this Python has none") from None
    find_glue(torch)
    if not torch.distributed.is_gloo_available():
        raise ImportError("shmcoll.use_for_gloo() needs a torch with gloo; this one has none")
    from shmcoll._for_gloo import install

    install(hosts)


# name -> the module that has it
_HOMES = {
    "Description": "_describe",
    "Direct": "_direct",
    "GpuDescription": "_describe",
    "InternalDescription": "_describe",
    "Options": "_glue",
    "Window": "_window",
    "all_gather_into": "_direct",
    "all_reduce": "_direct",
    "all_to_all": "_direct",
    "barrier": "_direct",
    "broadcast": "_direct",
    "create_backend": "_backend",
    "describe": "_backend",
    "direct": "_direct",
    "dump": "_dump",
    "empty": "_memory",
    "empty_like": "_memory",
    "is_shared": "_memory",
    "monitored_barrier": "_backend",
    "new_window": "_window",
    "on_late": "_events",
    "reduce_scatter_into": "_direct",
    "share": "_memory",
    "shared_memory": "_memory",
    "shrink_group": "_shrink",
    "zeros": "_memory",
    "zeros_like": "_memory",
}

if not TYPE_CHECKING:  # for a type checker every name would exist

    def __getattr__(name):
        if name == "__version__":
            from shmcoll._load import build_facts

            return build_facts()["version"]
        if name not in _HOMES:
            raise AttributeError(f"module 'shmcoll' has no attribute {name!r}")
        from importlib import import_module

        from shmcoll._load import load_glue

        if _HOMES[name] != "_describe":
            load_glue()  # or it says what is missing
        value = getattr(import_module(f"shmcoll.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch.distributed" in sys.modules:
    from shmcoll._load import build_facts, find_glue

    build_facts()
    find_glue(sys.modules["torch"])
_shmcoll_autoload.register_now_or_later()  # torch.distributed knows "shmcoll" from its import on
