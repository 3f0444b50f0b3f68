# SPDX-License-Identifier: BSD-3-Clause
import datetime
from typing import Any

from torch._C._distributed_c10d import ErrorType, Store
from torch.distributed.distributed_c10d import Backend

class Options(Backend.Options):  # type: ignore[name-defined, misc]
    """Options of one group: ``pg_options`` of ``init_process_group`` and ``new_group``.

    ``timeout`` overrides the argument of that name, except where it is the default, 30 minutes.
    ``tuning`` replaces the variable ``SHMCOLL_TUNING``. The others are for groups over several hosts. A
    dict of these keys does the same.
    """

    _timeout: datetime.timedelta
    group_name: str
    """The name that torch gives the group; set when the group is made."""
    global_ranks_in_group: list[int]
    """The ranks of the group, numbered as in the whole job; set when the group is made."""
    tuning: str
    """Which algorithm and which chunks for which size, as ``SHMCOLL_TUNING`` says it."""
    hosts: str
    """"one": ranks that do not all share memory are an error; "auto"; "": what ``SHMCOLL_HOSTS`` says."""
    engine: str
    """What moves bytes between hosts: "gloo" or another backend; "": what ``SHMCOLL_ENGINE`` says, or gloo."""
    rails: int
    """How many ranks of each host move data to other hosts, 1 to 8; 0: what ``SHMCOLL_RAILS`` says, or all."""
    order: str
    """"host": the hosts' sums are added in their order; "rank": all inputs are, in the order of ranks."""
    partials: str
    """"narrow": a host's sum of bfloat16 is rounded; "wide": it goes between hosts as float32."""
    def __init__(
        self,
        timeout: datetime.timedelta = ...,
        tuning: str = ...,
        *,
        hosts: str = ...,
        engine: str = ...,
        rails: int = ...,
        order: str = ...,
        partials: str = ...,
    ) -> None: ...
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

class ReconfigurableGroup(Backend):
    def __init__(
        self, store: Store, rank: int, size: int, options: Options, host: str, pid: int
    ) -> None: ...
    @property
    def options(self) -> Options: ...
    @property
    def _current(self) -> ProcessGroupShm: ...
    def _handle(self) -> str: ...
    def _change(
        self,
        uuid: int,
        handles: list[str],
        ordered: bool = ...,
        timeout: datetime.timedelta | None = ...,
    ) -> None: ...
    def get_error(self) -> ErrorType: ...

class _Direct:
    """True: the operation is done. False: nothing is, and torch.distributed says why or does more."""

    def all_reduce(self, tensor: object, op: object, /) -> bool: ...
    def broadcast(self, tensor: object, src: object, /) -> bool: ...
    def all_gather_into(self, output: object, input: object, /) -> bool: ...
    def reduce_scatter_into(self, output: object, input: object, op: object, /) -> bool: ...
    def all_to_all(self, output: object, input: object, /) -> bool: ...
    def barrier(self) -> bool: ...

def _direct(backend: Backend, members: list[int]) -> _Direct: ...
