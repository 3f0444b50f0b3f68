# SPDX-License-Identifier: BSD-3-Clause
"""Groups over several hosts: makes the engines that move bytes between hosts.

The ranks of a host share memory. Between hosts the group uses an engine that torch has, gloo or another one that moves
CPU tensors: one among the leaders of the hosts ("line"), one for each rail, and one among all ranks for messages ("mesh"). src/hosts/hosts.h
says who carries one.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, TCPStore

from shmcoll import _events, _glue, _options
from shmcoll._load import is_python
from shmcoll._log import say

_CPU = torch.device("cpu")
_OPERATORS: Any = torch.ops.shmcoll
_ProcessGroup: Any = ProcessGroup  # its stubs lack one form of the constructor


def _gloos_class() -> Any:
    """torch's own, also where groups that ask for gloo get shmcoll; None: this torch has none."""
    in_place = sys.modules.get("shmcoll._for_gloo")
    return in_place.real_gloo() if in_place else getattr(dist, "ProcessGroupGloo", None)


# gloo's own time-out would end all calls of an engine for ever. The group has its own.
_NEVER = datetime.timedelta(days=3650)
_NAMES = ("auto", "one")
_GLOO = "gloo"
_NO_ENGINES = ("nccl", "xccl", "shmcoll", "fake")  # which move no CPU tensors between hosts


def _setting(variable: str, pattern: str, allowed: str) -> str:
    """The value of a variable, which matches the pattern; "" if it is not set."""
    said = os.environ.get(variable, "")
    if not re.fullmatch(pattern, said):
        raise ValueError(f"shmcoll: {variable}={said} is not {allowed}")
    return said


def wants_one(options: Any = None) -> bool:
    """Are ranks that cannot share memory an error?"""
    said = _setting("SHMCOLL_HOSTS", "|".join(("", *_NAMES)), f"one of {'|'.join(_NAMES)}")
    return (getattr(options, "hosts", "") or said) == "one"


def who_wants_one(options: Any = None) -> str:
    """The option or the variable that says so, for texts."""
    return 'hosts="one"' if getattr(options, "hosts", "") else "SHMCOLL_HOSTS=one"


def _engine_name(options: Any = None) -> str:
    """What moves bytes between hosts."""
    said = _setting("SHMCOLL_ENGINE", "[A-Za-z0-9_]{0,31}", "the name of a backend")
    return (getattr(options, "engine", "") or said or _GLOO).lower()


def _rails(options: Any = None) -> int:
    """The most rails that are wanted; 0: as many as there can be."""
    said = _setting("SHMCOLL_RAILS", "[0-8]?", f"a number from 0 to {_options.MOST_RAILS}")
    return getattr(options, "rails", 0) or int(said or 0)


def late_ms() -> int:
    """The milliseconds of SHMCOLL_LATE_MS; 0 if the library ignores it, too, and has told so."""
    said = os.environ.get("SHMCOLL_LATE_MS", "")
    return int(said) if re.fullmatch("[0-9]{1,8}", said) and int(said) <= 86_400_000 else 0


def check_variables() -> None:
    """Raises a ValueError for one with a wrong value, before any rank waits for another."""
    wants_one()
    _engine_name()
    _rails()
    _fake_host(0)


# ---- which ranks may share memory ----


def _fake_host(rank: int) -> int | None:
    """For tests, SHMCOLL_FAKE_HOSTS=2x3: the ranks of a job are on 2 hosts, of 3 ranks each."""
    said = os.environ.get("SHMCOLL_FAKE_HOSTS", "")
    if not said:
        return None
    match = re.fullmatch(r"(\d+)x(\d+)", said)
    if match is None or "0" in match.groups():
        raise ValueError(f"shmcoll: SHMCOLL_FAKE_HOSTS={said} is not <hosts>x<ranks of each>")
    hosts, ranks = map(int, match.groups())
    return min(rank // ranks, hosts - 1)


def are_faked(members: Sequence[int], rank: int) -> bool:
    """Are the members, ranks of the job, to be taken for ranks of several hosts? rank: this one's, in the group.

    Says so if the variable is set, and leaves the whole job on one host.
    """
    faked = len({_fake_host(member) for member in members}) > 1
    said = os.environ.get("SHMCOLL_FAKE_HOSTS")
    if said and not faked and rank == 0 and len(members) > 1 and not dist.is_initialized():
        say(
            "warn",
            f"SHMCOLL_FAKE_HOSTS={said} leaves all {len(members)} ranks of the job on one host",
        )
    return faked


def _words(rank: int) -> list[str]:
    """What ranks have in common that may share memory, the likeliest first. Nobody believes it without a proof."""
    fake = _fake_host(rank)
    if fake is not None:
        return [f"fake host {fake}"]
    boot = "?"
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = ["?", "?"]
    for index, path in enumerate(("/proc/self/ns/pid", "/dev/shm")):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            space[index] = f"{found.st_dev}:{found.st_ino}"
    return [boot, " ".join([boot, *space])]


def _why(words: Sequence[str]) -> str:
    """Why there are several hosts: what _words() of their ranks differ in."""
    if words[0].startswith("fake "):
        return "SHMCOLL_FAKE_HOSTS"
    parts = [word.split() for word in words if word.strip()]
    spaces = [part for part in parts if len(part) > 1]  # of ranks whose boot id was not enough
    what = ("boot ids differ", "pid namespaces differ", "/dev/shm differs")
    found = [{part[0] for part in parts}, *map(set, list(zip(*spaces))[1:])]
    why = [text for text, values in zip(what, found) if len(values) > 1]
    if len(parts) < len(words) or not why:
        why.append("memory cannot be mapped")
    return ", ".join(why)


# ---- engines ----


def _device(index: int) -> Any:
    """A network interface for gloo: of those that GLOO_SOCKET_IFNAME lists, the rails take turns."""
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    if names:
        return _gloos_class().create_device(interface=names[index % len(names)], lazy_init=True)
    return _gloos_class().create_default_device(lazy_init=True)


def _gloo(store: Any, rank: int, size: int, index: int, threads: int = 2) -> Any:
    """Makes gloo among `size` ranks, which are not waited for: it connects at its first call."""
    gloo = _gloos_class()
    options = gloo._Options()
    options._devices = [_device(index)]
    options._threads = threads
    options._timeout = _NEVER
    # gloo waits inside the store for addresses: on a connection of its own, where torch can make one.
    own = store.clone() if hasattr(store, "clone") else store
    return gloo(own, rank, size, options)


def _other_engine(name: str, store: Any, rank: int, size: int) -> Any:
    """Makes a backend that the program has registered with torch, among `size` ranks.

    Raises:
        ValueError: there is none of that name, or it moves no CPU tensors.
    """
    plugins: Any = dist.Backend._plugins
    if name in _NO_ENGINES:
        raise ValueError("it moves no CPU tensors between hosts")
    if name.upper() not in plugins:
        known = [_GLOO, *sorted({*map(str.lower, plugins)} - set(_NO_ENGINES))]
        raise ValueError(f"this process has none of that name; it has {', '.join(known)}")
    plugin = plugins[name.upper()]
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, _NEVER)
    c10d: Any = dist.distributed_c10d
    wanted = c10d._DistributedBackendOptions()
    wanted.store, wanted.group_rank, wanted.group_size = store, rank, size
    wanted.timeout = _NEVER
    return plugin.creator_fn(wanted, None)


def _boxed(engine: Any) -> Any:
    box: Any = _ProcessGroup(engine.rank(), engine.size())
    box._register_backend(_CPU, ProcessGroup.BackendType.CUSTOM, engine)
    return box.boxed()


def _place(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def _engines(store: Any, rank: int, size: int, place: dict[str, str], name: str) -> Iterator[Any]:
    """The line's, the rail's and the mesh's engine of this rank, boxed; None for one that it does not carry."""

    def make_one(keys: str, rank: int, size: int, threads: int = 2) -> Any:
        prefixed = PrefixStore(f"{place['prefix']}/{keys}", store)
        if name == _GLOO:
            return _boxed(_gloo(prefixed, rank, size, local, threads))
        return _boxed(_other_engine(name, prefixed, rank, size))

    host, hosts, local = int(place["host"]), int(place["hosts"]), int(place["local"])
    yield make_one(f"line/{local}", host, hosts) if local == 0 else None
    yield make_one(f"rail/{local}", host, hosts) if local < int(place["rails"]) else None
    # (Messages need one thread of gloo's, as they do not use it.)
    yield make_one("mesh", rank, size, threads=1)


def _tell(options: Any, place: dict[str, str], engine: str) -> None:
    hosts = int(place["hosts"])
    ranks = ", ".join(f"host {host} ({place[f'ranks.{host}']})" for host in range(hosts))
    rails = f"{place['rails']} rail{'' if place['rails'] == '1' else 's'}"
    described = getattr(options, "group_desc", "")
    name = options.group_name if described in ("", "undefined") else described
    why = _why([place[f"word.{host}"] for host in range(hosts)])
    say(
        "warn",
        f'group "{name}" is on {hosts} hosts ({why}): {ranks}; {engine} between them, {rails}',
    )


def _members(size: int, options: Any) -> list[int]:
    return list(options.global_ranks_in_group) or list(range(size))


def _meet(group: Any, rank: int, members: list[int], options: Any, rails: int) -> str:
    """Meets the other ranks, and returns the lines of key=value about this rank's place; rails: -1: refuses."""
    text: str = _OPERATORS.meet_hosts(
        group.boxed(),
        _options.milliseconds(options._timeout),
        members,
        {
            "name": options.group_name,
            "tuning": options.tuning,
            "backend": options.backend,
            "engine": _engine_name(options),
            "order": options.order,
            "partials": options.partials,
        },
        _words(members[rank]),
        rails,
        late_ms(),
    )
    return text


# ---- the end of a process ----

_STORE_S = 0.2  # most that a process waits at its end for the store's machine
_stores: set[tuple[int, tuple[str, int] | None]] = set()  # by process; None: no TCP store


def _remember(store: Any) -> None:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    is_tcp = isinstance(store, TCPStore)
    _stores.add((os.getpid(), (store.host, store.port) if is_tcp else None))


def _answers(address: tuple[str, int] | None) -> bool:
    """Is the store there? torch writes to stderr if a call of one that is gone fails."""
    if address is None:
        return True
    try:
        with socket.create_connection(address, timeout=_STORE_S):
            return True
    except OSError:
        return False


def say_goodbye() -> None:
    """Closes the groups over hosts of a process that ends without it: other hosts learn that it has left.

    Not if it ends by an exception, which is to be reported before what other ranks make of it; and not if the store is
    gone.
    """
    stores = _stores.copy()  # a daemon thread may still make a group
    own = [address for pid, address in stores if pid == os.getpid()]
    if own and not _events.is_failing() and all(map(_answers, own)):
        _OPERATORS.close_hosts()


def refuse(store: Any, rank: int, size: int, options: Any) -> None:
    """Tells ranks that would make such a group that this one does not. Waits for none of them."""
    if is_python(_glue.glue):
        return
    with contextlib.suppress(RuntimeError):
        group: Any = ProcessGroup(store, rank, size)
        _meet(group, rank, _members(size, options), options, -1)


def make(store: Any, rank: int, size: int, options: Any) -> Any:
    """Makes the backend of a group whose ranks do not all share memory; blocks until all ranks are there.

    Raises:
        RuntimeError: the ranks cannot meet, or an engine cannot be made or used.
        ValueError: this installation cannot have such a group.
    """
    if is_python(_glue.glue):
        raise ValueError(
            "shmcoll: a group over several hosts needs the compiled glue, not the one in Python"
        )
    engine = _engine_name(options)
    if engine == _GLOO and _gloos_class() is None:
        raise ValueError(
            'shmcoll: a group over several hosts needs the engine "gloo", which this torch lacks'
        )
    group: Any = ProcessGroup(store, rank, size)
    members = _members(size, options)
    place = _place(_meet(group, rank, members, options, _rails(options)))
    try:
        line, rail, mesh = _engines(store, rank, size, place, engine)
    except Exception as error:
        words = re.sub(r"^\[enforce fail at [^]]*\] .*?\. ", "", str(error).splitlines()[0])
        why = f"rank {members[rank]} cannot make the engine {engine}: {words}"
        _OPERATORS.abort_hosts(group.boxed(), why)
        raise RuntimeError(f"shmcoll: {why}") from error
    _OPERATORS.connect_hosts(group.boxed(), line, rail, mesh)
    _remember(store)
    if rank == 0:
        _tell(options, place, engine)
    return _glue.keep_options(group._get_backend(_CPU), options)
