# SPDX-License-Identifier: BSD-3-Clause
"""Kills in a job on two hosts of two ranks: who finds out, what they say, and how long that takes.

Each round has hosts and a job of its own. Ranks sum in a loop until something is killed, and then all survivors of all
hosts must raise, name what was killed, and end with 0; nothing may be left. In the kind "alone" host 1 has one rank, and
the others wait for its first message.
"""

from __future__ import annotations

import random
import re
import signal
import time
from dataclasses import dataclass, field

import ranks
import test_groups as groups
from hosts import Hosts
from job import Job, leftovers

TIMEOUT_S = 10.0
DEADLINE_S = 2.0  # where nothing but the time-out can tell
SIZES = (8, 1000, 70_000, groups.BIG)


@dataclass
class Round:
    kind: str
    seed: int
    took_ms: dict[int, float] = field(default_factory=dict)  # until each survivor raised
    wrong: list[str] = field(default_factory=list)


# By kind: the time-out, and what every survivor says. {rank} and {host} are those that are killed.
KINDS = {
    "follower": (TIMEOUT_S, r"host {host} .*rank {rank} \(pid \d+\) died"),
    "leader": (TIMEOUT_S, r"host {host} .*rank {rank} \(pid \d+\) died"),
    "host": (TIMEOUT_S, r"(joins|waiting for) .*host 1|host 1 "),
    "alone": (TIMEOUT_S, r"host {host} \(rank {rank}\): rank {rank} has died"),
    "store": (TIMEOUT_S, r"the store of .* is gone|the engine between the hosts of .* failed"),
    "link": (DEADLINE_S, r"(?i)timed out"),
    "stop": (DEADLINE_S, r"(?i)timed out|host \d"),
}
# How often, of 22.
SHARES = (
    ["follower"] * 7
    + ["leader"] * 7
    + ["host"] * 2
    + ["alone"] * 2
    + ["store"] * 2
    + ["link", "stop"]
)


def _strike(kind: str, hosts: Hosts, job: Job, victim: int) -> list[int]:
    """Returns the ranks that are dead."""
    if kind in ("follower", "leader", "alone"):
        job.processes[victim].signal(signal.SIGKILL)
        return [victim]
    if kind == "host":
        hosts.kill(1)
        return [2, 3]
    if kind == "store":
        job.store.signal(signal.SIGKILL)
    if kind == "link":
        hosts.link_down(1)
    if kind == "stop":
        hosts.stop(1)
        for process in job.processes[:2]:
            assert process.wait(groups.IN_TIME_S) == 0
        hosts.cont(1)
    return []


def one(kind: str, seed: int) -> Round:
    chance = random.Random(seed)
    done = Round(kind, seed)
    timeout_s, words = KINDS[kind]
    victim = chance.choice({"follower": (1, 3), "leader": (0, 2)}.get(kind, (2,)))
    with Hosts(2) as hosts:
        size = chance.choice(SIZES)
        alone = kind == "alone"
        job = (
            groups.receiving(hosts, timeout_s) if alone else groups.summing(hosts, timeout_s, size)
        )
        time.sleep(chance.random() * 0.02)
        struck = time.time()
        dead = _strike(kind, hosts, job, victim)
        for outcome in job.outcomes(groups.IN_TIME_S):
            if outcome.rank in dead:
                continue
            if not outcome.ok or not outcome.value[0]:
                done.wrong.append(f"rank {outcome.rank}: {ranks.describe(outcome)}")
                continue
            _, text, when = outcome.value
            done.took_ms[outcome.rank] = (when - struck) * 1e3
            if not re.search(words.format(rank=victim, host=victim // 2), text):
                done.wrong.append(f"rank {outcome.rank} says: {text}")
        for host in (0, 1):
            if (kind != "host" or host == 0) and (left := leftovers(hosts, host)):
                done.wrong.append(f"host {host} has {left}")
    return done


def kinds(count: int, seed: int) -> list[tuple[str, int]]:
    """Kinds and seeds of so many rounds."""
    chance = random.Random(seed)
    return [(chance.choice(SHARES), chance.randrange(1 << 30)) for _ in range(count)]


def summary(rounds: list[Round]) -> list[str]:
    """Of each kind: how many, and how long it took until the last survivor had raised."""
    lines = [
        f"{'killed':>9} {'rounds':>7} {'p50 ms':>8} {'p90 ms':>8} {'max ms':>8} {'in 150':>7} wrong"
    ]
    for kind in KINDS:
        of_kind = [one for one in rounds if one.kind == kind]
        last = sorted(max(one.took_ms.values()) for one in of_kind if one.took_ms)
        if not last:
            continue
        p50, p90 = last[len(last) // 2], last[min(len(last) - 1, len(last) * 9 // 10)]
        soon = sum(ms <= 150 for ms in last)
        wrong = sum(bool(one.wrong) for one in of_kind)
        lines.append(
            f"{kind:>9} {len(of_kind):>7} {p50:>8.1f} {p90:>8.1f} {last[-1]:>8.1f} {soon:>7} {wrong:>5}"
        )
    return lines
