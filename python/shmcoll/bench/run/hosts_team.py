# SPDX-License-Identifier: BSD-3-Clause
"""Ranks on several hosts, which torchrun has started: one process for each, with a group of every backend.

The first rank runs the bench, and is a rank, too. The others answer its requests, which go through a group of gloo
of the default kind. Hosts share no clock: an iteration is timed on each rank by its own, from the common start of
its loop on. Nor do they share memory for a start line, so the loops begin with a sum over that group.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import median
from time import monotonic_ns
from typing import Any

import torch
import torch.distributed as dist

from shmcoll.bench.plan import BOUNDS, RULER, Point, Settings
from shmcoll.bench.run import over_torch
from shmcoll.bench.run.mpirun import MPIS
from shmcoll.bench.run.rank import Rank, answer
from shmcoll.bench.run.torch_team import START_TIMEOUT_S, Team, judge
from shmcoll.bench.topology import NONE

Message = dict[str, Any]

_LINK_BYTES = 4 << 20
_PINGS, _STREAMS = 21, 5
_TOLD = ("hosts", "engine", "rails")  # of describe()


def is_possible(environment: Mapping[str, str]) -> bool:
    """Does torch find the other ranks by the launcher's variables?"""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    return all(name in environment for name in names)


def problem(settings: Settings, size: int) -> str | None:
    """Returns the error if the ranks of several hosts cannot do that."""
    if settings.nproc != size:
        return f"-g {settings.nproc}: the launcher has started {size} ranks"
    if settings.mode == "skew":
        return "--mode skew needs one host"
    for option, plain in (("overlap", False), ("matrix", False), ("groups", 1), ("bind", NONE)):
        if getattr(settings, option) != plain:
            return f"--{option} needs one host"
    if "roof" in settings.columns:
        return "--columns roof needs one host"
    wrong = [name for name in settings.backends if name in (*MPIS, RULER, BOUNDS)]
    return f"--backends {wrong[0]} needs one host" if wrong else None


class Line:
    """A start line of ranks that share no memory."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def wait(self, count: int = 0) -> int:
        """Until all ranks wait. Returns the count of rank 0."""
        told = torch.tensor([count if self._rank == 0 else 0])
        dist.all_reduce(told)
        return int(told)

    def enter(self) -> None:
        """That a rank has come to a barrier is not told."""

    def missing(self, members: object) -> int:
        """Nor is it known who has not."""
        return 0


class HostsRank(Rank):
    """A rank of one backend; those of all backends are in one process."""

    def __init__(self, backend: str, settings: Settings) -> None:
        self._job = {"backend": backend, "mode": settings.mode}
        self._settings = settings
        self._rank = dist.get_rank()
        self._world_size = dist.get_world_size()
        self._line: Any = Line(self._rank)
        self._exercise = None
        self._sweep = b""
        self._group = 0
        self._members = [range(self._world_size)]
        self._how = {}
        self._ruler = None
        self._over = None

    def init(self) -> Message:
        torch.set_num_threads(1)
        for module in self._settings.imports:
            importlib.import_module(module)
        backend = self._job["backend"]
        if "shmcoll" in backend and not dist.is_backend_available("shmcoll"):
            importlib.import_module("shmcoll")
        for name in (part.rpartition(":")[2] for part in backend.split(",")):
            if not dist.is_backend_available(name):
                return {"error": f"this torch ({torch.__version__}) has no backend of that name"}
        timeout = timedelta(seconds=self._settings.timeout_s)
        self._how["group"] = dist.new_group(backend=backend, timeout=timeout)
        if self._job["mode"] == "throughput":
            self._how["async_op"] = True
        self._over = over_torch
        said: Message = {"pid": os.getpid(), "node": os.environ["GROUP_RANK"]}
        if backend == "shmcoll":
            about = importlib.import_module("shmcoll").describe(self._how["group"])
            said["about"] = {key: about[key] for key in _TOLD}
        return said


@dataclass(frozen=True)
class Link:
    """What gloo alone moves between rank 0 and a rank of another host, on one connection."""

    rank: int
    latency_us: float  # one way of 8 bytes
    gigabytes_per_s: float


def _exchange(rank: int, peer: int, data: torch.Tensor) -> None:
    """There and back."""
    for sender in (0, peer):
        (dist.send if rank == sender else dist.recv)(data, peer if rank == 0 else 0)


def _measure_link(rank: int, peer: int) -> Message:
    """In all ranks; these two have something to do."""
    if rank not in (0, peer):
        return {}
    times: list[list[float]] = []
    for count, repeats in ((8, _PINGS), (_LINK_BYTES, _STREAMS)):
        data = torch.zeros(count, dtype=torch.uint8)
        times.append([])
        for _ in range(repeats):
            before = monotonic_ns()
            _exchange(rank, peer, data)
            times[-1].append((monotonic_ns() - before) / 2)
    return {"latency_us": median(times[0]) / 1e3, "gbs": _LINK_BYTES / min(times[1])}


class Workers:
    """All ranks of the job. The first one asks, and each answers, the first one too."""

    def __init__(self, settings: Settings, ranks_here: int) -> None:
        self.ranks_here = ranks_here
        timeout = timedelta(seconds=settings.timeout_s + START_TIMEOUT_S)
        dist.init_process_group("gloo", timeout=timeout)
        labels = zip(settings.labels, settings.backends)
        self._ranks = {label: HostsRank(backend, settings) for label, backend in labels}
        self._has_ended = False

    def ask(self, label: str, request: Message) -> list[Message]:
        """The answers of all ranks."""
        dist.broadcast_object_list([(label, request)], 0)
        return self._answer(label, request)

    def serve(self) -> int:
        """What a rank other than the first one does, until that ends."""
        while True:
            said: list[Any] = [None]
            dist.broadcast_object_list(said, 0)
            label, request = said[0]
            if request["do"] == "end":
                self._leave()
                return 0
            self._answer(label, request)

    def team(self, label: str, backend: str, settings: Settings) -> Team:
        return HostsTeam(label, backend, settings, self)

    def notes(self, teams: Sequence[Team]) -> list[str]:
        """Lines about the hosts, and what lies between them."""
        return _notes([team for team in teams if isinstance(team, HostsTeam)], self)

    def end(self) -> None:
        if not self._has_ended:
            dist.broadcast_object_list([("", {"do": "end"})], 0)
            self._leave()

    def _answer(self, label: str, request: Message) -> list[Message]:
        own = dict(request)
        if own["do"] == "link":
            reply = _measure_link(dist.get_rank(), own["peer"])
        else:
            reply = answer(self._ranks[label], own)
        replies: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(replies, reply)
        return replies

    def _leave(self) -> None:
        self._has_ended = True
        dist.destroy_process_group()


class HostsTeam(Team):
    """One backend of the workers."""

    own_clocks = True

    def __init__(self, label: str, backend: str, settings: Settings, workers: Workers) -> None:
        self.label = label
        self.backend = backend
        self._settings = settings
        self._workers = workers
        self._pids = []
        self.places: list[str] = []  # of each rank: its host, as the launcher numbers them
        self.about: Message = {}  # what a group of shmcoll says of itself

    def start(self) -> None:
        """The processes are there."""

    def join(self) -> None:
        replies = self._ask({"do": "init"})
        self.places = [reply["node"] for reply in replies]
        self.about = replies[0].get("about", {})
        here = [reply["pid"] for reply in replies[1:] if reply["node"] == replies[0]["node"]]
        self._pids = here if self.label == self._settings.labels[0] else []  # all have the same

    def prepare(self, point: Point, copies: int, sweep_bytes: int) -> None:
        request = {"do": "prepare", "copies": copies, "sweep_bytes": sweep_bytes}
        self._ask({**request, "point": asdict(point)})

    def stop(self, at_once: bool = False) -> None:
        """The workers go on, with another backend."""

    def _ask(self, request: Message) -> list[Message]:
        replies = self._workers.ask(self.label, request)
        return judge(dict(enumerate(replies)), range(len(replies)))


def _notes(teams: Sequence[HostsTeam], workers: Workers) -> list[str]:
    places = teams[0].places
    hosts = list(dict.fromkeys(places))
    counts = [places.count(host) for host in hosts]
    even = len(set(counts)) == 1
    shape = f"{len(hosts)} x {counts[0]}" if even else "+".join(map(str, counts))
    lines = [f"# hosts x ranks: {shape}; times are those of the slowest rank, by its own clock"]
    for team in teams:
        if team.about:
            about = team.about
            lines.append(
                f"# {team.label}: {about['hosts']} hosts that share no memory, engine {about['engine']}, "
                f"{about['rails']} rails"
            )
    for host in hosts[1:]:
        peer = places.index(host)
        said = workers.ask("", {"do": "link", "peer": peer})[0]
        link = Link(peer, said["latency_us"], said["gbs"])
        lines.append(
            f"# link: rank 0 to rank {link.rank}: {link.gigabytes_per_s:.3g} GB/s "
            f"({8 * link.gigabytes_per_s:.3g} Gbit/s), 8 bytes in {link.latency_us:.0f} us; one "
            "connection of gloo"
        )
    return lines
