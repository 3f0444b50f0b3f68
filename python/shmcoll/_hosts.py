# SPDX-License-Identifier: BSD-3-Clause
"""Groups over several hosts: makes the engines that move bytes between hosts.

The ranks of a host share memory. Between hosts the group uses an engine that torch has, which is gloo: one among the
leaders of the hosts ("line"), one for each rail, and one among all ranks for messages ("mesh"). src/hosts/hosts.h
says who carries one.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroup

from shmcoll import _glue
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


def wants_one() -> bool:
    """SHMCOLL_HOSTS=one: are ranks that cannot share memory an error?"""
    said = os.environ.get("SHMCOLL_HOSTS", "") or "auto"
    if said not in _NAMES:
        raise ValueError(f"shmcoll: SHMCOLL_HOSTS={said} is not one of {'|'.join(_NAMES)}")
    return said == "one"


def _rails() -> int:
    """The most rails that SHMCOLL_RAILS asks for; 0 if it is not set."""
    said = os.environ.get("SHMCOLL_RAILS", "") or "0"
    if not re.fullmatch("[0-8]", said):
        raise ValueError(f"shmcoll: SHMCOLL_RAILS={said} is not a number from 0 to 8")
    return int(said)


def _late_ms() -> int:
    """The milliseconds of SHMCOLL_LATE_MS; 0 if the library ignores it, too, and has told so."""
    said = os.environ.get("SHMCOLL_LATE_MS", "")
    return int(said) if re.fullmatch("[0-9]{1,8}", said) and int(said) <= 86_400_000 else 0


def check_variables() -> None:
    """Raises a ValueError for one with a wrong value, before any rank waits for another."""
    wants_one()
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


def are_faked(members: Sequence[int]) -> bool:
    """Are the members, ranks of the job, to be taken for ranks of several hosts?"""
    return len({_fake_host(rank) for rank in members}) > 1


def _words(rank: int) -> list[str]:
    """What ranks have in common that may share memory, the likeliest first. Nobody believes it without a proof."""
    fake = _fake_host(rank)
    if fake is not None:
        return [f"fake host {fake}"]
    boot = ""
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = []
    for path in ("/proc/self/ns/pid", "/dev/shm"):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            space.append(f"{found.st_dev}:{found.st_ino}")
    return [boot, " ".join([boot, *space])]


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


def _boxed(engine: Any) -> Any:
    box: Any = _ProcessGroup(engine.rank(), engine.size())
    box._register_backend(_CPU, ProcessGroup.BackendType.CUSTOM, engine)
    return box.boxed()


def _place(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def _engines(store: Any, rank: int, size: int, place: dict[str, str]) -> Iterator[Any]:
    """The line's, the rail's and the mesh's engine of this rank, boxed; None for one that it does not carry."""
    host, hosts, local = int(place["host"]), int(place["hosts"]), int(place["local"])
    for name, carries in (("line", local == 0), ("rail", local < int(place["rails"]))):
        if not carries:
            yield None
            continue
        keys = PrefixStore(f"{place['prefix']}/{name}/{local}", store)
        yield _boxed(_gloo(keys, host, hosts, local))
    # (Messages need one thread of gloo's, as they do not use it.)
    yield _boxed(_gloo(PrefixStore(f"{place['prefix']}/mesh", store), rank, size, local, threads=1))


def _tell(options: Any, place: dict[str, str]) -> None:
    hosts = int(place["hosts"])
    ranks = ", ".join(f"host {host} ({place[f'ranks.{host}']})" for host in range(hosts))
    rails = f"{place['rails']} rail{'' if place['rails'] == '1' else 's'}"
    say(
        "warn",
        f'group "{options.group_name}" is on {hosts} hosts: {ranks}; gloo between them, {rails}',
    )


def _members(size: int, options: Any) -> list[int]:
    return list(options.global_ranks_in_group) or list(range(size))


def _meet(group: Any, rank: int, members: list[int], options: Any, rails: int) -> str:
    """Meets the other ranks, and returns the lines of key=value about this rank's place; rails: -1: refuses."""
    text: str = _OPERATORS.meet_hosts(
        group.boxed(),
        options._timeout // datetime.timedelta(milliseconds=1),
        members,
        {"name": options.group_name, "tuning": options.tuning, "backend": options.backend},
        _words(members[rank]),
        rails,
        _late_ms(),
    )
    return text


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
    if _gloos_class() is None:
        raise ValueError(
            'shmcoll: a group over several hosts needs the engine "gloo", which this torch lacks'
        )
    group: Any = ProcessGroup(store, rank, size)
    members = _members(size, options)
    place = _place(_meet(group, rank, members, options, _rails()))
    try:
        line, rail, mesh = _engines(store, rank, size, place)
    except Exception as error:
        words = re.sub(r"^\[enforce fail at [^]]*\] .*?\. ", "", str(error).splitlines()[0])
        why = f"rank {members[rank]} cannot make the engine gloo: {words}"
        _OPERATORS.abort_hosts(group.boxed(), why)
        raise RuntimeError(f"shmcoll: {why}") from error
    _OPERATORS.connect_hosts(group.boxed(), line, rail, mesh)
    if rank == 0:
        _tell(options, place)
    return group._get_backend(_CPU)
