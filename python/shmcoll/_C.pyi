# SPDX-License-Identifier: BSD-3-Clause
import datetime
from typing import Any

from torch._C._distributed_c10d import ErrorType, Store
from torch.distributed.distributed_c10d import Backend

class Options(Backend.Options):  # type: ignore[name-defined, misc]
    """Options of one group: ``pg_options`` of ``init_process_group`` and ``new_group``.

    ``timeout`` overrides the argument of that name, except where it is the default, 30 minutes.
    ``tuning`` replaces the variable ``SHMCOLL_TUNING``. A dict of these two keys does the same.
    """

    _timeout: datetime.timedelta
    group_name: str
    """The name that torch gives the group; set when the group is made."""
    global_ranks_in_group: list[int]
    """The ranks of the group, numbered as in the whole job; set when the group is made."""
    tuning: str
    """Which algorithm and which chunks for which size, as ``SHMCOLL_TUNING`` says it."""
    def __init__(self, timeout: datetime.timedelta = ..., tuning: str = ...) -> None: ...
    @staticmethod
    def _for_gloo(timeout: datetime.timedelta) -> Options: ...
    def __repr__(self) -> str: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[Any, Any]) -> Options: ...

class ProcessGroupShm(Backend):
    def __init__(self, store: Store, rank: int, size: int, options: Options) -> None: ...
    @property
    def options(self) -> Options: ...
    def get_error(self) -> ErrorType: ...
    def _info(self) -> str: ...
