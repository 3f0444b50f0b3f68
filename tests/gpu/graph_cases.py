# SPDX-License-Identifier: BSD-3-Clause
"""What must hold for calls that a CUDA graph captures: more of cases.py, on a GPU alone.

A capture is made once, replayed with changing input, and every replay is compared with the same calls
made at once, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from cases import Team, Tensors, case

REPLAYS = 8
COUNTS = (1, 1000, 3_000_001)  # the last: many rounds

Calls = Callable[[torch.Tensor], Tensors]


def sums(team: Team, t: torch.Tensor) -> Tensors:
    out = t * 2
    dist.all_reduce(out)
    return [out + 1]


def forked(team: Team, t: torch.Tensor) -> Tensors:
    """Two asynchronous calls, and one between them that is not."""
    a, b, c = t * 2, t * 3, t * 5
    first = dist.all_reduce(a, async_op=True)
    dist.all_reduce(b, op=dist.ReduceOp.MAX)
    second = dist.all_reduce(c, async_op=True)
    assert first is not None and second is not None
    first.wait()
    second.wait()
    return [a + b, c]


def all_kinds(team: Team, t: torch.Tensor) -> Tensors:
    n, me = team.world, team.me
    gathered = t.new_empty(n * t.numel())
    scattered = t.new_empty(t.numel())
    exchanged = torch.empty_like(gathered)
    sent = t.clone()
    dist.all_gather_into_tensor(gathered, t)
    dist.reduce_scatter_tensor(scattered, gathered * (me + 1))
    dist.all_to_all_single(exchanged, gathered + me)
    dist.broadcast(sent, src=n - 1)
    return [gathered, scattered, exchanged, sent]


def captured(team: Team, t: torch.Tensor, calls: Calls) -> tuple[torch.cuda.CUDAGraph, Tensors]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # whatever is made late is made
        calls(t)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = calls(t)
    return graph, outputs


def compare(team: Team, calls: Callable[[Team, torch.Tensor], Tensors]) -> str:
    for count in COUNTS:
        t = torch.zeros(count, device=team.device)
        graph, outputs = captured(team, t, lambda one: calls(team, one))
        for turn in range(REPLAYS):
            t.copy_(torch.arange(count, device=team.device) % (turn + 7) + team.me + 0.25 * turn)
            graph.replay()
            at_once = calls(team, t)
            for i, (replayed, eager) in enumerate(zip(outputs, at_once)):
                if not torch.equal(replayed, eager):
                    return f"{count} elements, replay {turn}, output {i}: not what the calls give"
        del graph
    dist.barrier()
    return ""


for _name, _calls in (("a sum", sums), ("forks", forked), ("all kinds", all_kinds)):
    case(f"graphs: {_name}", cuda=True)(lambda team, calls=_calls: compare(team, calls))


@case("graphs: two, replayed in any order", cuda=True)
def two_graphs(team: Team) -> str:
    a, b = team.ones(), team.ones(77_777)
    one, [sum_a] = captured(team, a, lambda t: sums(team, t))
    two, [sum_b] = captured(team, b, lambda t: sums(team, t))
    for turn, graph in enumerate((one, two, two, one, one, two)):
        a.fill_(turn)
        b.fill_(turn + 10)
        graph.replay()
        if graph is one and (sum_a != 2 * turn * team.world + 1).any():
            return f"replay {turn}: {sum_a[0].item()}"
        if graph is two and (sum_b != 2 * (turn + 10) * team.world + 1).any():
            return f"replay {turn}: {sum_b[0].item()}"
    dist.barrier()
    return ""


@case("graphs: what cannot be captured is refused", cuda=True)
def refused(team: Team) -> str:
    t = team.ones()
    dist.all_reduce(t)
    torch.cuda.synchronize()
    for call in (
        dist.barrier,
        lambda: dist.all_reduce(t, op=dist._make_nccl_premul_sum(2.0)),
    ):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                call()
        except TypeError as error:
            if "captured" not in str(error):
                return str(error)
        else:
            return "not refused"
    torch.cuda.synchronize()
    return team.usable()
