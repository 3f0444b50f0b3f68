# SPDX-License-Identifier: BSD-3-Clause
"""A group from its rendezvous to its end, as torch.distributed uses it: what is not an operation."""

from __future__ import annotations

import ctypes
import datetime
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from shmcoll import _options
from shmcoll._load import minor
from shmcoll._options import Options
from shmcoll._python_glue import core
from shmcoll._python_glue.operations import Operations
from shmcoll._python_glue.store import StoreBootstrap
from shmcoll._python_glue.tensors import check_timeout, group_timeout_ns
from shmcoll._python_glue.work import Group, free_groups, last_text, raise_status

_CPU = torch.device("cpu")
_ProcessGroup: Any = c10d.ProcessGroup
_SPLITS_IN_ORDER = tuple(map(int, minor(torch.__version__).split("."))) >= (2, 14)
# torch from 2.15 on attaches its flight recorder to the groups of all other backends. It asks their C++ side for
# the name, which a group without a backend of C++ does not have.
_unrecorded: set[str] = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
_unrecorded.add("shmcoll")


def _check_text(tuning: str) -> None:
    if "\0" in tuning:
        raise ValueError("shmcoll: the tuning text has a character 0 in it")


def _check_options(timeout: datetime.timedelta, tuning: str) -> None:
    check_timeout(timeout)
    _check_text(tuning)
    raise_status(core.tuning_check(tuning.encode()))


_options.check = _check_options


def _create(store: Any, rank: int, size: int, options: Any) -> Group:
    """Meets the other ranks through the store."""
    core.watch_signals()
    free_groups()
    bootstrap = StoreBootstrap(store)
    config = core.Config(rank=rank, world_size=size, interrupted=core.interrupted)
    config.name = options.group_name.encode()
    config.description = getattr(options, "group_desc", "").encode() or None
    ranks = list(options.global_ranks_in_group)
    members = (ctypes.c_int32 * len(ranks))(*ranks)
    if len(ranks) == size:
        config.global_ranks = ctypes.addressof(members)
    config.timeout_ns = group_timeout_ns(options._timeout)
    _check_text(options.tuning)
    config.tuning = options.tuning.encode() or None
    comm = ctypes.c_void_p()
    config.store = bootstrap.view()
    try:
        status = core.comm_create(ctypes.byref(config), ctypes.byref(comm))
        if status == core.STORE:
            bootstrap.rethrow(last_text())
        raise_status(status)
    finally:
        bootstrap.release()
    return Group(comm.value or 0)


def _refusal(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"shmcoll: the glue in Python does not offer {name}")

    return refuse


class ProcessGroupShm(Operations, _ProcessGroup):  # type: ignore[misc]
    """A group of ranks, as torch.distributed uses one."""

    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_time_estimate = False
    supports_reconfigure = supports_window = False
    supports_abort_hooks = supports_completion_hooks = False

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        Operations.__init__(self)
        _ProcessGroup.__init__(self, rank, size)
        self._store = store
        self._options = options
        self._timeout = options._timeout
        self._rank = rank
        self._size = size
        self._name, self._desc = options.group_name, ""
        self._group = _create(store, rank, size, options)
        self._comm = self._group.comm

    # ---- what torch asks of a group and of a backend ----

    def name(self) -> str:
        return "shmcoll"

    getBackendName = _get_backend_name = name

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> ProcessGroupShm:
        if torch.device(device).type != "cpu":
            raise RuntimeError(
                f"shmcoll: no backend for {device}: the glue in Python is for CPU tensors"
            )
        return self

    get_backend = _get_backend

    def get_group_store(self) -> Any:
        return self._store

    @property
    def group_name(self) -> Any:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._desc = description
        if description not in ("", "undefined"):
            core.comm_describe(self._comm, description.encode())

    def getGroupName(self) -> Any:
        return self._name

    def getGroupDesc(self) -> str:
        return self._desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    @property
    def options(self) -> Options:
        self._options._timeout = self._timeout  # torch and programs write there
        found: Options = self._options
        return found

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        number: int = core.comm_sequence(self._comm)
        return number

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        core.comm_set_timeout(self._comm, group_timeout_ns(timeout))
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def perform_nocolor_split(self, device: torch.device) -> None:
        pass

    def split_group(
        self,
        ranks: Any,
        timeout: Any = None,
        opts: Any = None,
        group_name: Any = None,
        group_desc: Any = None,
        *_: Any,
    ) -> Any:
        members = list(ranks)
        if not _SPLITS_IN_ORDER:
            members.sort()
        if self._rank not in members:
            return None
        options: Any = Options(timeout or self._timeout)
        options.group_name = group_name or f"{self._name}:split:{','.join(map(str, members))}"
        parents = list(self._options.global_ranks_in_group) or list(range(self._size))
        options.global_ranks_in_group = [parents[rank] for rank in members]
        options.tuning = opts.tuning if isinstance(opts, Options) else self._options.tuning
        store = c10d.PrefixStore(f"{options.group_name}/shmcoll", self._store)
        group = ProcessGroupShm(store, members.index(self._rank), len(members), options)
        group._set_group_desc(group_desc or "")
        return group

    merge_remote_group = _refusal("merge_remote_group")
    # Of newer torches. A hook would be kept, and never called.
    new_window, reconfigure = _refusal("new_window"), _refusal("reconfigure")
    get_reconfigure_handle = _refusal("get_reconfigure_handle")
    register_pre_hook = _refusal("register_pre_hook")
    register_post_hook = _refusal("register_post_hook")
    register_abort_hook = _refusal("register_abort_hook")
    unregister_pre_hook = unregister_post_hook = unregister_abort_hook = _refusal("unregister_hook")

    def get_error(self) -> Any:
        names = {core.OK: "SUCCESS", core.TIMEOUT: "TIMEOUT", core.PEER_DEAD: "REMOTE_ERROR"}
        return getattr(c10d.ErrorType, names.get(core.comm_error(self._comm), "COMM_ERROR"))

    def abort(self) -> None:
        core.comm_abort(self._comm, b"abort() was called")
        core.comm_close(self._comm)

    def shutdown(self) -> None:
        core.comm_close(self._comm)

    def _info(self) -> str:
        text = ctypes.create_string_buffer(8192)
        raise_status(core.comm_info(self._comm, text, len(text)))
        return text.value.decode()
