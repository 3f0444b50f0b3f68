# SPDX-License-Identifier: BSD-3-Clause
"""From torch's creator call to a process group, and the goodbye when the process ends."""

import atexit
import datetime
import multiprocessing.util
import os
import threading
from typing import Any

import torch.distributed as dist

from shmcoll import _C

_DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)
_OPTION_TYPES = {"timeout": datetime.timedelta, "tuning": str}
_goodbye_pid = 0

_C._set_main_thread(threading.main_thread().ident or 0)
os.register_at_fork(after_in_child=_C._after_fork_in_child)


def _check_type(what: str, value: object, kind: type) -> None:
    """Raises a TypeError that names both types, and shows the value."""
    if not isinstance(value, kind):
        name = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
        raise TypeError(f"shmcoll: {what} must be a {name}, got {type(value).__name__} ({value!r})")


def _make_options(options: Any, backend_options: Any) -> _C.Options:
    """torch's options, with what the user gave as ``pg_options``: a shmcoll.Options or a dict.

    Options of another backend are ignored: torch hands one object to all backends of a group.
    """
    timeout, tuning = options.timeout, ""
    if isinstance(backend_options, dict):
        unknown = set(backend_options) - set(_OPTION_TYPES)
        if unknown:
            raise ValueError(
                f"shmcoll: unknown pg_options {sorted(unknown)}; known: {', '.join(_OPTION_TYPES)}"
            )
        for key, value in backend_options.items():
            _check_type(f"pg_options[{key!r}]", value, _OPTION_TYPES[key])
        timeout = backend_options.get("timeout", timeout)
        tuning = backend_options.get("tuning", tuning)
    elif isinstance(backend_options, _C.Options):
        tuning = backend_options.tuning
        if backend_options._timeout != _DEFAULT_TIMEOUT:
            timeout = backend_options._timeout
    ours = _C.Options(timeout, tuning)
    ours.group_name = options.group_id
    # torch says [] for the default group, which has them all.
    ours.global_ranks_in_group = options.global_ranks_in_group or list(range(options.group_size))
    return ours


def _leave_child() -> None:
    """The end of a process of multiprocessing.

    It runs its finalizers first and joins the threads behind them; the interpreter's own exit does
    it the other way round. Threads may still use the groups, so they are joined here as well.
    """
    join = getattr(threading, "_shutdown", None)
    if join is not None:
        join()
    _C._leave(forget_python=False)


def _say_goodbye_at_exit() -> None:
    """A process that ends normally leaves its groups; one that does not is dead to the others.

    Processes of multiprocessing end by os._exit and run only its own finalizers, so both are used.
    """
    global _goodbye_pid
    if _goodbye_pid == os.getpid():
        return
    _goodbye_pid = os.getpid()
    atexit.register(_C._leave)
    multiprocessing.util.Finalize(None, _leave_child, exitpriority=-100)


def create_backend(options: Any, backend_options: Any) -> _C.ProcessGroupShm:
    """Called by torch.distributed for every group. Blocks until all its ranks are there."""
    _say_goodbye_at_exit()
    return _C.ProcessGroupShm(
        options.store,
        options.group_rank,
        options.group_size,
        _make_options(options, backend_options),
    )


def describe(group: dist.ProcessGroup | None = None) -> dict[str, str]:
    """What this rank's part of a group of shmcoll uses, and why.

    Keys, among others: name, rank, world_size, timeout_s, segment and arena (the kinds of memory) with their
    bytes, threads, isa, and ``tuning.<name>``. For each GPU that the group has been used on,
    behind ``cuda:<index>.``: route (slabs: memory of the GPUs that the ranks share; host), memory,
    reason (why it is not the first choice), gpus, gpu_ranks, operations. Waits for nobody.

    Raises a TypeError for what is no group, and a ValueError where the group, the default one if none is given, is not this process's or
    has no backend of shmcoll.
    """
    pg: Any = dist.distributed_c10d._get_default_group() if group is None else group
    if pg == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("shmcoll: this process is not in that group")
    _check_type("describe: group", pg, dist.ProcessGroup)
    for device in pg._device_types:
        backend = pg._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)  # under TORCH_DISTRIBUTED_DEBUG=DETAIL
        if isinstance(backend, _C.ProcessGroupShm):
            return dict(line.split("=", 1) for line in backend._info().splitlines())
    raise ValueError(f"shmcoll: the group's backend is {pg.name()}; nothing of shmcoll is in it")


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: datetime.timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """torch.distributed.monitored_barrier, which torch before 2.14 keeps for gloo.

    A barrier; if not all ranks come within the time-out (the group's, if none is given) the error
    names those that are missing, all of them whatever ``wait_all_ranks`` says, and the group has
    failed. A process that is not in the group returns at once, as in torch.
    """
    if timeout is not None:
        _check_type("monitored_barrier: timeout", timeout, datetime.timedelta)
    if dist.get_rank(group) < 0:
        return
    pg: Any = dist.group.WORLD if group is None else group  # its method is ours
    times = () if timeout is None else (timeout,)
    pg.monitored_barrier(*times, wait_all_ranks=wait_all_ranks)
