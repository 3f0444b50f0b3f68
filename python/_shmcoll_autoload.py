# SPDX-License-Identifier: BSD-3-Clause
"""Makes the name "shmcoll" known to torch.distributed, with and without ``import shmcoll``.

Two entry points lead here: ``torch.distributed.backends`` (torch >= 2.14, asked for by name) and
``torch.backends`` (before, run at the end of every ``import torch``). Both must never fail, load
nothing and take no time, so this module stands outside the package: importing it does not import
shmcoll. ``SHMCOLL_AUTOLOAD=0`` turns the second one off.

``import shmcoll`` registers as well, without importing torch: see :func:`register_now_or_later`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own would take four fifths of the time of `import shmcoll`
if TYPE_CHECKING:
    from typing import Any

LAYOUT = 43  # the library's SHC_LAYOUT_VERSION (src/shm/proto/layout.h)


def create(options: Any, backend_options: object) -> object:
    """The creator torch calls: loads shmcoll on first use. Tells the other ranks if it cannot."""
    try:
        from shmcoll import create_backend
    except ImportError as error:
        tell_others(options, cannot_load(options, error))
        raise
    return create_backend(options, backend_options)


def cannot_load(options: Any, error: Exception) -> str:
    """Names the rank of the job, as all messages do."""
    members, rank = options.global_ranks_in_group, options.group_rank
    return f"rank {members[rank] if members else rank} cannot load shmcoll: {error}"


def tell_others(options: Any, text: str) -> None:
    """Decides this rank's generation of the group as failed, as src/shm/comm/rendezvous.c would.

    docs/internals/protocol.md, RDV-11; the record is struct shc_verdict of src/shm/comm/record.h.
    """
    import struct

    members = options.global_ranks_in_group or range(options.group_size)
    members_hash = 0xCBF29CE484222325  # FNV-1a
    for byte in struct.pack(f"={options.group_size}i", *members):
        members_hash = (members_hash ^ byte) * 0x100000001B3 % 2**64
    try:
        mine = members[options.group_rank]
        generation = options.store.add(f"{members_hash:016x}/n/{mine}", 1)
        verdict = struct.pack(
            "=QIIQqiiIi512s",
            *(0x006C6C6F636D6873, LAYOUT, 3, members_hash, generation, 0, options.group_rank),
            *(4, os.getpid(), text.encode(errors="replace")[:511]),  # SHC_ERR_SYSTEM
        )
        options.store.compare_set(f"{members_hash:016x}/{generation}/d", b"", verdict)
    except Exception as error:  # the load failure is what matters
        print(f"shmcoll: the other ranks cannot be told: {error}", file=sys.stderr, flush=True)


def register() -> None:
    """Registers the creator with torch.distributed; once it is known, does nothing."""
    from torch.distributed import Backend

    if "SHMCOLL" not in Backend._plugins:
        Backend.register_backend("shmcoll", create, extended_api=True, devices=["cpu", "cuda"])


def _enter() -> None:
    """Registers, and takes gloo's place if SHMCOLL_FOR_GLOO asks for it."""
    register()
    take_gloos_place_if_asked()


def _is_on(variable: str, default: str) -> bool:
    return _value(variable, default, "0", "1") == "1"


def _value(variable: str, default: str, *values: str) -> str:
    """A wrong value is ignored, and said, as the library does it with other variables."""
    said = os.environ.get(variable) or default
    if said not in values:
        if variable not in _complained_of:
            _complain(f"{variable}={said} is not one of {'|'.join(values)}; ignored")
        _complained_of.add(variable)
        said = default
    return said


_complained_of: set[str] = set()


def _complain(text: str) -> None:
    if sys.stderr is not None:
        print(f"shmcoll: {text}", file=sys.stderr, flush=True)


def take_gloos_place_if_asked() -> None:
    """SHMCOLL_FOR_GLOO=1, or hosts. What is wrong with that is said; it must break no import."""
    mode = _value("SHMCOLL_FOR_GLOO", "0", "0", "1", "hosts")
    if mode == "0":
        return
    try:
        from shmcoll import use_for_gloo

        use_for_gloo(hosts=mode == "hosts")
    except Exception as error:
        _complain(f"SHMCOLL_FOR_GLOO={mode} has no effect: {error}")


class _Watch:
    """A finder in ``sys.meta_path`` that registers as soon as torch.distributed has been executed.

    It finds the module by the other finders, once, and adds a step to the module's loader.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != "torch.distributed":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec: Any = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: object) -> None:
                execute(module)
                try:
                    torch: Any = sys.modules["torch"]
                    torch.distributed = module  # as the import does next
                    _enter()
                except Exception:  # as in autoload()
                    pass

            spec.loader.exec_module = execute_and_register
        return spec


def register_now_or_later() -> None:
    """Registers if torch.distributed has been imported, otherwise when it is; imports nothing itself."""
    if "torch.distributed" in sys.modules:
        _enter()
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def autoload() -> None:
    """The ``torch.backends`` hook: a failure here would break ``import torch`` itself."""
    try:
        if not _is_on("SHMCOLL_AUTOLOAD", "1"):
            return
        from torch.distributed import Backend

        if not hasattr(Backend, "_ensure_backend_registered"):  # else torch finds us by name
            register()
        take_gloos_place_if_asked()
    except Exception:  # torch without distributed, or one we do not know: then import shmcoll says
        pass
