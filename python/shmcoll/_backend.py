# SPDX-License-Identifier: BSD-3-Clause
"""Makes the process groups that torch asks for, and leaves them when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import multiprocessing.util
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import torch.distributed as dist

from shmcoll import _glue, _hosts, _options
from shmcoll._events import explain_end, watch_exceptions
from shmcoll._log import know_rank

if TYPE_CHECKING:  # loaded by describe() alone: it takes as long as the rest of this module
    from shmcoll._describe import Description, InternalDescription

_DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)
_SHORTEST = datetime.timedelta(milliseconds=1)
_OPTION_TYPES = {
    "timeout": datetime.timedelta,
    "tuning": str,
    "hosts": str,
    "engine": str,
    "rails": int,
    "order": str,
    "partials": str,
}
_UNREACHABLE = 6  # enum shc_status of src/shm/shmcoll.h: some ranks cannot share memory
_HOSTS_VARIABLES = ("SHMCOLL_HOSTS", "SHMCOLL_ENGINE", "SHMCOLL_RAILS", "SHMCOLL_FAKE_HOSTS")
_goodbyes: dict[int, object] = {}  # by process: of the thread that registers its goodbye

_glue.glue.shmcoll_set_main_thread(threading.main_thread().ident or 0)
os.register_at_fork(after_in_child=_glue.after_fork_in_child)


def _check_type(what: str, value: object, kind: type) -> None:
    """Raises a TypeError that names both types, and shows the value."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        name = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
        article = "an" if name[0] in "aeiou" else "a"
        raise TypeError(
            f"shmcoll: {what} must be {article} {name}, got {type(value).__name__} ({value!r})"
        )


def _make_options(options: Any, backend_options: Any) -> _glue.Options:
    """Returns torch's options, combined with the user's ``pg_options``: a shmcoll.Options or a dict.

    Options of another backend are ignored: torch hands one object to all backends of a group.
    The tuning text is not checked here: every rank of the group gets the error of the first bad one.
    """
    timeout, tuning = options.timeout, ""
    more: dict[str, Any] = {}
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
        more = {key: backend_options[key] for key in _options.HOSTS_KEYS if key in backend_options}
    elif isinstance(backend_options, _glue.Options):
        tuning = backend_options.tuning
        more = {key: getattr(backend_options, key) for key in _options.HOSTS_KEYS}
        if backend_options._timeout != _DEFAULT_TIMEOUT:
            timeout = backend_options._timeout
    elif isinstance(backend_options, str):  # no backend has such options: a tuning text, probably
        raise TypeError(
            f"shmcoll: pg_options must be a dict or a shmcoll.Options, got str ({backend_options!r})"
        )
    if timeout > datetime.timedelta(0):  # torch counts milliseconds, and 0 are no limit
        timeout = max(timeout, _SHORTEST)
    ours = _glue.Options(timeout, **more)
    ours.tuning = tuning
    ours.group_name = options.group_id
    if not dist.is_initialized():
        # torch tells descriptions only after it has made a group, and the default group's is known.
        ours.group_desc = "default_pg"
    # torch gives [] for the default group, which has all ranks.
    ours.global_ranks_in_group = job_ranks(
        options.global_ranks_in_group or range(options.group_size)
    )
    return ours


# The default group, and which ranks of the job are in it. torch counts them anew when a group has shrunk.
_world: tuple[Callable[[], Any], list[int]] | None = None
_next_world: list[int] | None = None  # the same of one that is being made


def _ranks_of_world(world: Any) -> list[int]:
    """In the job; [] if they are not known, or if nothing of shmcoll is in the default group.

    One with enable_reconfigure changes its ranks: it has no numbers but torch's.
    """
    try:
        if is_reconfigurable(world):
            return []
        text = _glue.info(find_backend("", world)[1])
    except (ValueError, RuntimeError):
        return []
    members = next(line for line in text.splitlines() if line.startswith("members="))
    return [int(number) for number in members.partition("=")[2].split(",")]


def job_ranks(ranks: Iterable[int]) -> list[int]:
    """torch's ranks, numbered as when the job began. Groups, messages and tools keep to those numbers."""
    global _world
    world: Any = dist.group.WORLD
    if world is None:
        numbers = _next_world
    else:
        if _world is None or _world[0]() is not world:
            _world = (weakref.ref(world), _ranks_of_world(world))
        numbers = _world[1]
    return [numbers[rank] for rank in ranks] if numbers else list(ranks)


@contextlib.contextmanager
def numbering(numbers: list[int]) -> Iterator[None]:
    """In it a default group of these ranks of the job is made."""
    global _next_world
    _next_world = numbers
    try:
        yield
    finally:
        _next_world = None


def _leave_child() -> None:
    """Leaves the groups at the end of a process of multiprocessing.

    Such a process runs its finalizers before it joins its threads. The interpreter's own exit joins
    first. Threads may still use the groups, so they are joined here.
    """
    explain_end(sys.exc_info()[1])  # finalizers run while the exception goes on
    join = getattr(threading, "_shutdown", None)
    if join is not None:
        join()
    _hosts.say_goodbye()
    _glue.leave(forget_python=False)


def _leave() -> None:
    _hosts.say_goodbye()
    _glue.leave()


def _say_goodbye_at_exit() -> None:
    """Makes a process that ends normally leave its groups. Without that, other ranks see a death.

    A process of multiprocessing ends by os._exit, which runs only the finalizers of multiprocessing.
    So the goodbye is registered in both places.
    """
    mine = object()
    if os.getpid() in _goodbyes or _goodbyes.setdefault(os.getpid(), mine) is not mine:
        return
    if len(_goodbyes) == 1:  # a forked child has its parent's hook
        watch_exceptions()
    atexit.register(_leave)
    multiprocessing.util.Finalize(None, _leave_child, exitpriority=-100)


def _prepare(rank: int, options: _glue.Options) -> None:
    """What a process does before it makes a group."""
    _say_goodbye_at_exit()
    members = options.global_ranks_in_group
    # A rank that is not in the group gets the core's error.
    know_rank(members[rank] if rank < len(members) else rank)


def make(store: Any, rank: int, size: int, options: _glue.Options) -> Any:
    """Makes a backend of ranks that share memory; blocks until all ranks are there."""
    _prepare(rank, options)
    return _glue.make(store, rank, size, options)


def make_over_hosts(
    store: Any, rank: int, size: int, options: _glue.Options, why: Exception | None = None
) -> Any:
    """Makes a backend of ranks that do not all share memory; blocks until all ranks are there.

    why: the error that says so; None: SHMCOLL_FAKE_HOSTS does.
    """
    _prepare(rank, options)
    if _hosts.wants_one(options):
        _hosts.refuse(store, rank, size, options)
        said = f"{_hosts.who_wants_one(options)} refuses a group over several hosts"
        if why is None:
            raise RuntimeError(f"shmcoll: {said}, which SHMCOLL_FAKE_HOSTS makes")
        why.args = (f"{why}; {said}",)
        raise why
    if why is None:
        return _hosts.make(store, rank, size, options)
    try:
        return _hosts.make(store, rank, size, options)
    except Exception as error:
        raise error from why


def make_anywhere(store: Any, rank: int, size: int, options: _glue.Options) -> Any:
    """Makes a backend of ranks of one host, or of several; blocks until all ranks are there.

    Ranks that do not all share memory find that out together: the error is the same on all.
    """
    if any(name in os.environ for name in _HOSTS_VARIABLES):
        _hosts.check_variables()
        if _hosts.are_faked(options.global_ranks_in_group or range(size), rank):
            return make_over_hosts(store, rank, size, options)
    try:
        return make(store, rank, size, options)
    except RuntimeError as error:
        if _glue.glue.shc_error_status() != _UNREACHABLE:
            raise
        why = error.with_traceback(None)  # whose frames would keep the group alive
    return make_over_hosts(store, rank, size, options, why)


def make_reconfigurable(store: Any, rank: int, size: int, options: _glue.Options) -> Any:
    """Makes a backend without ranks, which gets them by reconfigure(); waits for nobody."""
    if _glue.make_reconfigurable is None:
        raise RuntimeError(
            "shmcoll: the glue in Python has no enable_reconfigure; SHMCOLL_GLUE=build compiles a glue "
            "for this torch"
        )
    _prepare(rank, options)
    return _glue.make_reconfigurable(store, rank, size, options, socket.gethostname(), os.getpid())


def create_backend(options: Any, backend_options: Any) -> Any:
    """Makes the backend of a group. torch.distributed calls it; it blocks until all ranks are there."""
    ours = _make_options(options, backend_options)
    if getattr(options, "enable_reconfigure", False):
        return make_reconfigurable(options.store, options.group_rank, options.group_size, ours)
    return make_anywhere(options.store, options.group_rank, options.group_size, ours)


def _is_ours(backend: Any) -> bool:
    if backend.name() == "shmcoll":
        return True
    in_place = sys.modules.get("shmcoll._for_gloo")
    return in_place is not None and in_place.is_in_gloos_place(backend)


def is_reconfigurable(group: Any) -> bool:
    """Was this group of shmcoll made with enable_reconfigure?"""
    return bool(getattr(_find(group), "supports_reconfigure", False))


def _find(pg: Any) -> Any:
    """The group's backend of shmcoll; None if it has none."""
    for device in pg._device_types:
        backend = pg._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)  # under TORCH_DISTRIBUTED_DEBUG=DETAIL
        if _is_ours(backend):
            return backend
    return None


def find_backend(what: str, group: dist.ProcessGroup | None) -> tuple[Any, Any]:
    """Returns the group, by default the default group, and its backend of shmcoll; or raises what `what` raises.

    Of a group with enable_reconfigure that is the backend of now.
    """
    pg: Any = dist.distributed_c10d._get_default_group() if group is None else group
    if pg == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("shmcoll: this process is not in that group")
    _check_type(f"{what}: group", pg, dist.ProcessGroup)
    backend = _find(pg)
    if backend is not None:
        return pg, getattr(backend, "_current", backend)
    raise ValueError(f"shmcoll: the group's backend is {pg.name()}; nothing of shmcoll is in it")


@overload
def describe(
    group: dist.ProcessGroup | None = None, internals: Literal[False] = False
) -> Description: ...


@overload
def describe(
    group: dist.ProcessGroup | None = None, *, internals: Literal[True]
) -> InternalDescription: ...


def describe(group: dist.ProcessGroup | None = None, internals: bool = False) -> Description:
    """Returns what a group uses on this rank, and why, as a dictionary with typed values.

    Args:
        group: a process group that has shmcoll for one of its devices; the default group if None.
        internals: also return the keys for developers, which may change with any version.

    The keys for users are those of ``shmcoll.Description``: version, glue, name, rank, world_size, hosts, engine,
    timeout_s, segment, arena and heap (shared memory, with sizes in bytes), threads, threads_from, isa, cma.
    For each GPU that the group has been used on, those of ``shmcoll.GpuDescription`` come after the
    prefix ``cuda:<index>.``. The keys for developers are those of ``shmcoll.InternalDescription``,
    and ``tuning.<key>``.

    The call waits for no other rank.

    Raises:
        TypeError: ``group`` is not a process group.
        ValueError: this process is not in the group, the group has no shmcoll backend, or there is
            no default group.

    Example:
        >>> shmcoll.describe()["world_size"]
        2
        >>> shmcoll.describe(internals=True)["tuning.depth"]
        '3'
    """
    from shmcoll._describe import parse
    from shmcoll._memory import info as heap_info

    _, backend = find_backend("describe", group)
    # Where the group does not say more.
    lines = ["hosts=1", "host=0", "rails=0", "engine=none", "order=rank", "partials=wide"]
    lines += ["engine_calls=0", "engine_bytes=0", "unsure="]
    lines += [*_glue.core_info()[:1], *_glue.info(backend).splitlines()]
    lines += [f"glue={_glue.NAME}", *heap_info()]
    return cast("Description", parse(lines, internals))


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: datetime.timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Waits until all ranks of the group have called it, and names the ranks that do not come.

    ``torch.distributed.monitored_barrier`` does the same. torch before 2.14 offers that one to gloo only.

    Args:
        group: the process group; the default group if None.
        timeout: how long to wait; the time-out of the group if None.
        wait_all_ranks: no effect. The error always names all missing ranks.

    Returns at once in a process that is not in the group, as in torch. After an error the group has
    failed.

    Raises:
        TypeError: ``timeout`` is not a ``datetime.timedelta``.
        torch.distributed.DistBackendError: some ranks did not come within the time-out, or the group
            has failed.

    Example:
        >>> shmcoll.monitored_barrier(timeout=datetime.timedelta(seconds=10))
    """
    if timeout is not None:
        _check_type("monitored_barrier: timeout", timeout, datetime.timedelta)
    if dist.get_rank(group) < 0:
        return
    pg: Any = dist.group.WORLD if group is None else group  # its method is ours
    times = () if timeout is None else (timeout,)
    pg.monitored_barrier(*times, wait_all_ranks=wait_all_ranks)
