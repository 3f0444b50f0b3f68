# SPDX-License-Identifier: BSD-3-Clause
"""Gives groups that ask for gloo shared memory, where their ranks have it: SHMCOLL_FOR_GLOO.

torch makes such a group by calling ``ProcessGroupGloo(store, rank, size, timeout)``, and so do programs.
A subclass takes that name. Its call makes a group of shmcoll whose backend says "gloo", or returns a
real ProcessGroupGloo. Its ``isinstance`` takes both.

The ranks decide together: by what they all know (the arguments), or by the rendezvous of shmcoll, whose
outcome is the same on all ranks. docs/internals/adr/0021-gloos-place.md has the reasons.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import inspect
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore

import _shmcoll_autoload
from shmcoll._load import is_python
from shmcoll._log import say

_c10d: Any = dist.distributed_c10d
_Real: Any = _c10d.ProcessGroupGloo

# enum shc_status of src/shm/shmcoll.h: memory that the ranks share cannot be had. Real gloo needs none.
_NOSPACE, _SYSTEM, _UNREACHABLE, _MISMATCH = 3, 4, 6, 10
_WITHOUT_MEMORY = (_NOSPACE, _SYSTEM, _UNREACHABLE)

# Real gloo of a fall-back. A rank that does not know of it writes its keys elsewhere, and is found there.
_PREFIX = "for_gloo"

# The address of a rank, as gloo reads it out of the store: no host, no address. gloo refuses it at once.
_NO_ADDRESS = struct.pack("=QQ", 0, 0)

# Where ranks agree whether groups over several hosts are shmcoll's: the first one that comes says it.
_MODE, _ON_ONE_HOST, _ON_ANY_HOSTS = f"{_PREFIX}/mode", "1", "hosts"

_mode = _ON_ONE_HOST
_now = threading.local()  # .name and .ranks of the group that torch makes in this thread
_has_told = False


@dataclasses.dataclass(frozen=True)
class _Wish:
    """A group that somebody wants."""

    store: Any
    rank: int
    size: int
    timeout: datetime.timedelta
    name: str
    ranks: list[int]  # of the whole job


def _tell(wish: _Wish, got: str, is_news: bool = False) -> None:
    """Says what the group got. By default only its rank 0 does, if that is news or the first group."""
    global _has_told
    is_news = wish.rank == 0 and (is_news or not _has_told)
    _has_told = True
    name = f'group "{wish.name}"' if wish.name else "a group without a name"
    say("warn" if is_news else "info", f"{name} asked for gloo; its {wish.size} ranks get {got}")


def _real_gloo(wish: _Wish, why: str) -> Any:
    _tell(wish, f"real gloo, because {why}", is_news=True)
    return _Real(PrefixStore(_PREFIX, wish.store), wish.rank, wish.size, timeout=wish.timeout)


def _tell_outsiders(wish: _Wish) -> None:
    """Ranks without the switch wait inside gloo for the addresses of those that have it."""
    others = [f"0/{rank}" for rank in range(wish.size) if rank != wish.rank]
    with contextlib.suppress(Exception):  # the mixed setting is what is reported
        if any(wish.store.check([key]) for key in others):
            wish.store.compare_set(f"0/{wish.rank}", "", _NO_ADDRESS)


def _cannot_load(wish: _Wish, error: Exception) -> str:
    """The other ranks are told, and get real gloo, too."""
    options = type("Options", (), {})()
    options.store, options.global_ranks_in_group = wish.store, wish.ranks
    options.group_rank, options.group_size = wish.rank, wish.size
    why = _shmcoll_autoload.cannot_load(options, error)
    _shmcoll_autoload.tell_others(options, why)
    return why


def _over_hosts(wish: _Wish, options: Any, why: str) -> Any:
    """Makes a group whose ranks do not all share memory, as the first of them says that it should be."""
    from shmcoll import _backend

    mode = wish.store.compare_set(_MODE, "", _mode).decode()
    if mode != _mode:
        say("warn", f'group "{wish.name}": the ranks differ about SHMCOLL_FOR_GLOO; {mode} holds')
    if mode != _ON_ANY_HOSTS:
        return _real_gloo(wish, why)
    made = _backend.make_over_hosts(wish.store, wish.rank, wish.size, options)
    _tell(wish, "shmcoll, over several hosts")
    return made


def _make(wish: _Wish) -> Any:
    try:
        from shmcoll import _backend, _glue, _hosts

        if is_python(_glue.glue):
            raise ImportError("the glue in Python cannot take gloo's place")
        options: Any = _glue.Options._for_gloo(wish.timeout)
    except (ImportError, AttributeError) as error:
        return _real_gloo(wish, _cannot_load(wish, error))
    options.group_name = wish.name
    options.global_ranks_in_group = _backend.job_ranks(wish.ranks)
    if _hosts.are_faked(wish.ranks, wish.rank):
        return _over_hosts(wish, options, "SHMCOLL_FAKE_HOSTS says that it is on several hosts")
    try:
        made = _backend.make(wish.store, wish.rank, wish.size, options)
    except RuntimeError as error:
        status = _glue.glue.shc_error_status()
        why = str(error).splitlines()[0].removeprefix("shmcoll: ")
        if status == _MISMATCH:
            _tell_outsiders(wish)
        if status not in _WITHOUT_MEMORY:
            raise
        if status != _UNREACHABLE:
            return _real_gloo(wish, why)
    else:
        _tell(wish, "shmcoll")
        return made
    return _over_hosts(wish, options, why)


def _most_ranks() -> int:
    from shmcoll import build_info

    return int(build_info()["max_world"])


def _wish(
    store: Any, rank: int, size: int, timeout: datetime.timedelta, enable_reconfigure: bool
) -> _Wish | None:
    """None: real gloo, as all ranks see."""
    if enable_reconfigure:
        return None
    name, ranks = getattr(_now, "name", ""), getattr(_now, "ranks", [])
    if not isinstance(timeout, datetime.timedelta) or not 0 <= rank < size:
        return None
    wish = _Wish(store, rank, size, timeout, name, ranks if len(ranks) == size else [*range(size)])
    if _mode == _ON_ANY_HOSTS:
        return wish
    with contextlib.suppress(ImportError):  # then _make() tells the others
        if size > _most_ranks():
            _tell(
                wish,
                f"real gloo, because shmcoll takes {_most_ranks()} ranks at most",
                is_news=True,
            )
            return None
    return wish


_DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)
_ARGUMENTS = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in (
            *dict.fromkeys(("store", "rank", "size"), inspect.Parameter.empty).items(),
            ("timeout", _DEFAULT_TIMEOUT),
            ("enable_reconfigure", False),  # from torch 2.14 on
        )
    ]
)


class _Chooser(type(_Real)):  # type: ignore[misc]
    """The type of the class in gloo's place. Subclasses of that class are real gloo."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not ProcessGroupGloo:
            return super().__call__(*args, **kwargs)
        try:
            bound = _ARGUMENTS.bind(*args, **kwargs)
        except TypeError:  # options with devices, or what a later torch takes
            return _Real(*args, **kwargs)
        bound.apply_defaults()
        wish = _wish(**bound.arguments)
        return _Real(*args, **kwargs) if wish is None else _make(wish)

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls is not ProcessGroupGloo:
            return bool(super().__instancecheck__(instance))
        return isinstance(instance, _Real) or is_in_gloos_place(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        if cls is not ProcessGroupGloo:
            return bool(super().__subclasscheck__(subclass))
        return issubclass(subclass, _Real)


class ProcessGroupGloo(_Real, metaclass=_Chooser):  # type: ignore[misc]
    __doc__ = _Real.__doc__
    __module__ = _Real.__module__  # where pickle finds it


def is_in_gloos_place(backend: Any) -> bool:
    wrapper = getattr(_c10d, "_ProcessGroupWrapper", ())  # has the name of what it wraps
    if not isinstance(backend, Backend) or isinstance(backend, (_Real, wrapper)):
        return False
    return bool(backend.name() == "gloo")


@contextlib.contextmanager
def _named(name: str, ranks: list[int]) -> Iterator[None]:
    before = dict(vars(_now))
    _now.name, _now.ranks = name, ranks
    try:
        yield
    finally:
        vars(_now).clear()
        vars(_now).update(before)


def _knowing_names(helper: Callable[..., Any]) -> Callable[..., Any]:
    """torch gives a gloo group its name and ranks only when it is made."""
    signature = inspect.signature(helper)

    @functools.wraps(helper)
    def with_names(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs).arguments
        ranks = list(given.get("global_ranks_in_group") or [])
        with _named(str(given.get("group_name") or ""), ranks):
            return helper(*args, **kwargs)

    return with_names


def real_gloo() -> Any:
    """torch's own class."""
    return _Real


def install(hosts: bool) -> None:
    """Takes gloo's place in this process, with `hosts` also for groups over several hosts."""
    global _mode
    if hosts:
        _mode = _ON_ANY_HOSTS
    if _c10d.ProcessGroupGloo is ProcessGroupGloo:
        return
    for module in (_c10d, dist, sys.modules["torch._C._distributed_c10d"]):
        setattr(module, "ProcessGroupGloo", ProcessGroupGloo)
    _c10d._new_process_group_helper = _knowing_names(_c10d._new_process_group_helper)
