# SPDX-License-Identifier: BSD-3-Clause
"""Ranks of one job on several hosts.

    def total(rank):
        rank.init()
        t = torch.ones(4)
        dist.all_reduce(t)
        return t.tolist()

    with Hosts(2) as hosts:
        assert Job(hosts, [0, 0, 1, 1]).run(total) == [[4.0] * 4] * 4

A rank is a fork of the test's process, as in tests/support/ranks.py; but its body is a function of a module,
not a closure. The store is a process of its own on host 0.
"""

from __future__ import annotations

import dataclasses
import datetime
import faulthandler
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ranks
import torch
import torch.distributed as dist
from hosts import Hang, Hosts, Process

PORT = 29500
LIMIT_S = 60.0  # of one run
TIMEOUT_S = 30.0  # of the groups' operations
INTERFACE = {"GLOO_SOCKET_IFNAME": "eth0"}


@dataclasses.dataclass
class Rank:
    """What a body gets."""

    rank: int
    world: int
    host: int
    local: int
    address: str  # of the store
    backend: str

    def store(self) -> dist.Store:
        """A client. Waits until the store's process is there."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return dist.TCPStore(
                    self.address, PORT, is_master=False, timeout=ranks.seconds(TIMEOUT_S)
                )
            except dist.DistNetworkError:
                if time.monotonic() > deadline:
                    raise

    def init(self, backend: str = "", timeout_s: float = TIMEOUT_S, **options: Any) -> None:
        dist.init_process_group(
            backend or self.backend,
            store=self.store(),
            rank=self.rank,
            world_size=self.world,
            timeout=datetime.timedelta(seconds=timeout_s),
            **options,
        )


def serve_store(address: str) -> None:
    store = dist.TCPStore(address, PORT, is_master=True, wait_for_workers=False)
    while store:
        signal.pause()


def be_rank(rank: Rank, body: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)
    torch.set_num_threads(1)
    value = body(rank, *arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    return value


class Job:
    """layout: the host of each rank. env: variables of all ranks; env_of: of the ranks of one host."""

    def __init__(
        self,
        hosts: Hosts,
        layout: Sequence[int],
        backend: str = "gloo",
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self.hosts = hosts
        self.layout = list(layout)
        self.backend = backend
        self.env = {**INTERFACE, **(env or {})}
        self.env_of = env_of or {}
        self.processes: list[Process] = []
        self.store = hosts.call(0, serve_store, hosts.address(0))

    def start(self, body: Callable[..., Any], *arguments: Any) -> "Job":
        for number, host in enumerate(self.layout):
            local = self.layout[:number].count(host)
            address = self.hosts.address(0)
            rank = Rank(number, len(self.layout), host, local, address, self.backend)
            env = {**self.env, **self.env_of.get(host, {})}
            process = self.hosts.call(host, be_rank, rank, body, arguments, env=env)
            self.processes.append(process)
        return self

    def outcomes(self, limit_s: float = LIMIT_S) -> list[ranks.Outcome]:
        """How each rank ended. Raises Hang, with all stacks, if one has not ended within the limit."""
        deadline = time.monotonic() + limit_s
        try:
            for process in self.processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except Hang:
            raise Hang(f"not done after {limit_s} s\n{self.stacks()}") from None
        return [self.outcome(number) for number in range(len(self.processes))]

    def outcome(self, number: int) -> ranks.Outcome:
        process = self.processes[number]
        value, error, text = process.said()
        code = process.poll()
        error = "" if error == "Ended" else error
        return ranks.Outcome(number, value, error, text=text, exit=code, output=process.output())

    def stacks(self) -> str:
        alive = [process for process in self.processes if process.poll() is None]
        for process in alive:
            for number in (signal.SIGCONT, signal.SIGUSR2):
                process.signal(number)
        time.sleep(0.5)
        return "".join(
            f"---- rank {number} on host {self.layout[number]}, "
            f"{'running' if process in alive else f'exit {process.poll()}'} ----\n{process.output()}"
            for number, process in enumerate(self.processes)
        )

    def run(self, body: Callable[..., Any], *arguments: Any, limit_s: float = LIMIT_S) -> list[Any]:
        """What the ranks returned; all must end well."""
        ended = self.start(body, *arguments).outcomes(limit_s)
        bad = [outcome for outcome in ended if not outcome.ok]
        if bad:
            raise ranks.Failed("\n".join(ranks.describe(outcome) for outcome in bad))
        return [outcome.value for outcome in ended]


def leftovers(hosts: Hosts, host: int) -> list[str]:
    """What the library has left in a host's /dev/shm, after a moment."""
    process = hosts.call(host, ranks.leftovers)
    assert process.wait(LIMIT_S) == 0, process.output()
    names: list[str] = process.value()
    return names


def wait_for(there: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not there():
        if time.monotonic() > deadline:
            raise Hang(f"not there after {limit_s} s")
        time.sleep(0.005)
