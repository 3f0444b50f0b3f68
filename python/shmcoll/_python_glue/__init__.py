# SPDX-License-Identifier: BSD-3-Clause
"""The glue in Python: a process group over the core by ctypes, for CPU tensors and any torch.

It stands in for the compiled glue where an installation has none for the torch that runs. torch takes a
ProcessGroup from a creator instead of a Backend, and then calls its methods directly. Checks and texts are
those of src/backend; docs/reference/python-glue.md lists what differs.

A synchronous call runs in the calling thread. The core's threads run all others. The modules, each of
which imports only those before it: core, tensors, store, work, calls, operations, group.
"""

from typing import Any

from shmcoll._options import Options
from shmcoll._python_glue.group import ProcessGroupShm as make
from shmcoll._python_glue.work import after_fork_in_child, leave


def info(backend: Any) -> str:
    """The lines of key=value about a group."""
    text: str = backend._info()
    return text


__all__ = ["Options", "after_fork_in_child", "info", "leave", "make"]
