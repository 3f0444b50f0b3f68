# SPDX-License-Identifier: BSD-3-Clause
"""Messages that wait for one another on many streams: more of cases.py.

Streams of one process share hardware queues, eight of them where CUDA_DEVICE_MAX_CONNECTIONS says
nothing. A stream that waits for another rank can hold up a later stream, and every rank that waits
for that one: what fails here is run again with 32 of them, the most there are.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist

from cases import Team, case

COUNTS = (1000, 1_000_003)  # the larger: many pieces, so a sender waits for its receiver
TURNS = 3


def exchange(team: Team, own_streams: bool) -> str:
    """Everybody sends to all, and only then receives from all."""
    others = [(team.me + step) % team.world for step in range(1, team.world)]
    sides: dict[tuple[str, int], Any] = {
        (way, peer): torch.cuda.Stream() if own_streams else None
        for way in ("to", "from")
        for peer in others
    }

    def on(way: str, peer: int) -> contextlib.AbstractContextManager[Any]:
        side = sides[way, peer]
        return torch.cuda.stream(side) if side else contextlib.nullcontext()

    for turn in range(TURNS):
        for count in COUNTS:
            sent, got, works = [], {}, []
            for peer in others:
                with on("to", peer):
                    value = float(team.me * 100 + peer * 10 + turn)
                    sent.append(torch.full((count,), value, device=team.device))
                    works.append(("to", peer, dist.isend(sent[-1], peer)))
            for peer in others:
                with on("from", peer):
                    got[peer] = torch.zeros(count, device=team.device)
                    works.append(("from", peer, dist.irecv(got[peer], peer)))
            for way, peer, work in works:
                with on(way, peer):
                    work.wait()
            if own_streams:
                torch.cuda.synchronize()
            for peer, one in got.items():
                if (one != peer * 100 + team.me * 10 + turn).any():
                    return f"turn {turn}, {count} elements of rank {peer}: {one[0].item()}"
    return team.usable()


@case("messages: all ranks to all, sends first", waits=True)
def sends_first(team: Team) -> str:
    return exchange(team, own_streams=False)


@case("messages: all ranks to all, one batch")
def one_batch(team: Team) -> str:
    """On one stream of each rank: so eight hardware queues are enough for it."""
    others = [(team.me + step) % team.world for step in range(1, team.world)]
    team.usable()  # in the first operation all meet
    for turn in range(TURNS):
        for count in COUNTS:
            calls, got = [], {}
            for peer in others:
                value = float(team.me * 100 + peer * 10 + turn)
                sent = torch.full((count,), value, device=team.device)
                got[peer] = torch.zeros(count, device=team.device)
                calls.append(dist.P2POp(dist.isend, sent, peer))
                calls.append(dist.P2POp(dist.irecv, got[peer], peer))
            calls.sort(key=lambda call: (call.op is dist.isend) == (turn % 2 == 1))
            for work in dist.batch_isend_irecv(calls):
                work.wait()
            for peer, one in got.items():
                if (one != peer * 100 + team.me * 10 + turn).any():
                    return f"turn {turn}, {count} elements of rank {peer}: {one[0].item()}"
    return team.usable()


@case("messages: both ways, each on a stream of the caller's", cuda=True, waits=True)
def many_streams(team: Team) -> str:
    return exchange(team, own_streams=True)


@case("streams: messages and collectives of two groups, interleaved", cuda=True, waits=True)
def interleaved(team: Team) -> str:
    other = dist.new_group()
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    after, before = (team.me + 1) % team.world, (team.me - 1) % team.world
    sums, out = team.ones(100_000), torch.zeros(100_000, device=team.device)
    mine = team.ones(100_000) * team.me
    dist.all_reduce(team.ones(), group=other)
    torch.cuda.synchronize()
    for _ in range(TURNS):
        with torch.cuda.stream(one):
            receives = dist.irecv(out, before)
        with torch.cuda.stream(two):
            dist.all_reduce(sums, op=dist.ReduceOp.MAX, group=other)
            sends = dist.isend(mine, after)
        with torch.cuda.stream(one):
            receives.wait()
        with torch.cuda.stream(two):
            sends.wait()
    torch.cuda.synchronize()
    if (out != before).any() or (sums != 1).any():
        return f"{out[0].item()} of rank {before}, {sums[0].item()}"
    return ""
