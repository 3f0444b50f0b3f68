# SPDX-License-Identifier: BSD-3-Clause
"""Flat gloo over the hosts: can a job run there, and does it see what is done to them?"""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from hosts import Hosts
from job import Job, Rank, wait_for


def total(rank: Rank) -> tuple[list[float], str]:
    rank.init()
    t = torch.full((1000,), float(rank.rank + 1))
    dist.all_reduce(t)
    return t.unique().tolist(), dist.get_backend()


@pytest.mark.parametrize("ipv6", [False, True])
def test_ranks_of_two_hosts_add_up(ipv6: bool) -> None:
    with Hosts(2, ipv6=ipv6) as hosts:
        assert Job(hosts, [0, 0, 1, 1]).run(total) == [([10.0], "gloo")] * 4


def sums(rank: Rank, count: int, mebibytes: int) -> float:
    """Seconds of these sums."""
    rank.init()
    t = torch.ones(mebibytes << 18)
    dist.barrier()
    begun = time.monotonic()
    for _ in range(count):
        dist.all_reduce(t)
    return time.monotonic() - begun


def test_sums_are_as_slow_as_the_links() -> None:
    """A sum of two ranks sends its bytes once each way."""
    with Hosts(2, rate="100mbit") as hosts:
        took = Job(hosts, [0, 1]).run(sums, 1, 4)
    assert min(took) > (4 - 1.1) * 2**20 * 8 / 100e6


def sum_on(rank: Rank, timeout_s: float) -> int:
    """Sums, until an error."""
    rank.init(timeout_s=timeout_s)
    t = torch.zeros(1000)
    for number in range(10**9):
        dist.all_reduce(t)
        if number % 100 == 10:
            print("under way", flush=True)
    return 0


def summing(job: Job, timeout_s: float) -> None:
    job.start(sum_on, timeout_s)
    wait_for(lambda: min(progress(job)) > 0)


def progress(job: Job) -> list[int]:
    return [process.output().count("under way") for process in job.processes]


def test_a_dead_link_is_a_timeout() -> None:
    with Hosts(2) as hosts:
        job = Job(hosts, [0, 1])
        summing(job, 2.0)
        hosts.link_down(1)
        for outcome in job.outcomes():
            assert outcome.error == "RuntimeError" and "Timed out" in outcome.text, outcome


def test_a_stopped_host_is_waited_for_and_a_killed_one_is_an_error() -> None:
    with Hosts(2) as hosts:
        job = Job(hosts, [0, 1])
        summing(job, 30.0)
        hosts.stop(1)
        before = progress(job)
        time.sleep(0.3)
        assert max(progress(job)) <= max(before) + 1
        hosts.cont(1)
        wait_for(lambda: min(progress(job)) > max(before) + 1)
        hosts.kill(1)
        first, second = job.outcomes()
        assert first.error == "RuntimeError" and "by peer" in first.text, first
        assert second.exit == -9
