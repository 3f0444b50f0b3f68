# SPDX-License-Identifier: BSD-3-Clause
"""What must hold for CUDA tensors: names, and a function of a team that says what is wrong ("": all
is right).

Most make the same call on CPU tensors and on the device's, over the same group: the bits must be the
same. `cuda` ones are about streams, and make no sense elsewhere.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import oracle
import ranks

COUNTS = (0, 1, 1000, 100_003)
LARGE = 5_000_001
TIMEOUT_S = 15.0
DTYPES = (*oracle.REDUCIBLE, *oracle.MOVED_ONLY)

Tensors = list[torch.Tensor]


@dataclass
class Team:
    """One rank as a case sees it."""

    rank: ranks.Rank
    device: torch.device
    renewals: int = 0

    @property
    def me(self) -> int:
        return self.rank.rank

    @property
    def world(self) -> int:
        return self.rank.world

    def init(self) -> None:
        store = dist.PrefixStore(f"group{self.renewals}", self.rank.store)
        self.rank.init(store=store, timeout=ranks.seconds(TIMEOUT_S))

    def renew(self) -> None:
        """A new group, in the place of one that has failed."""
        dist.destroy_process_group()
        self.renewals += 1
        self.init()

    def ones(self, count: int = 1000) -> torch.Tensor:
        return torch.ones(count, device=self.device)

    def usable(self) -> str:
        t = self.ones()
        dist.all_reduce(t)
        return "" if (t == self.world).all() else "the group gives wrong sums afterwards"


@dataclass(frozen=True)
class Case:
    run: Callable[[Team], str]
    cuda: bool = False
    waits: bool = False  # streams of a rank wait for one another by way of other ranks


CASES: dict[str, Case] = {}


def case(
    name: str, cuda: bool = False, waits: bool = False
) -> Callable[[Callable[[Team], str]], Any]:
    def add(run: Callable[[Team], str]) -> Callable[[Team], str]:
        CASES[name] = Case(run, cuda, waits)
        return run

    return add


def both(team: Team, inputs: Tensors, call: Callable[[Tensors], Tensors]) -> str:
    """The call on CPU tensors, then on the device's. Its results are what it returns."""
    want = call([t.clone() for t in inputs])
    on_device = [t.to(team.device) for t in inputs]
    got = call(on_device)
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        if one.device != on_device[0].device:
            return f"result {number} is on {one.device}"
        difference = oracle.differ(one.cpu(), other)
        if difference:
            return f"result {number}: {difference}"
    return ""


def data(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    if dtype in oracle.MOVED_ONLY:
        return oracle.sample(torch.uint8, count * dtype.itemsize, seed).view(dtype)
    return oracle.sample(dtype, count, seed)


def room(like: torch.Tensor, count: int) -> torch.Tensor:
    """For so many elements, and not what is expected in them."""
    raw = torch.full((count * like.dtype.itemsize,), 1, dtype=torch.uint8, device=like.device)
    return raw.view(like.dtype)


# Of any dtype on any device: not every dtype has roll and cat everywhere.
def rolled(t: torch.Tensor, by: int) -> torch.Tensor:
    return t.view(torch.uint8).roll(by * t.dtype.itemsize).view(t.dtype)


def joined(tensors: Tensors) -> torch.Tensor:
    return torch.cat([t.view(torch.uint8) for t in tensors]).view(tensors[0].dtype)


# ---- what is moved ----


def broadcast(team: Team, t: torch.Tensor) -> Tensors:
    dist.broadcast(t, team.world - 1)
    return [t]


def all_gather(team: Team, t: torch.Tensor) -> Tensors:
    out = [room(t, t.numel()) for _ in range(team.world)]
    dist.all_gather(out, t)
    return [*out, t]


def all_gather_uneven(team: Team, t: torch.Tensor) -> Tensors:
    counts = [max(0, t.numel() - r) for r in range(team.world)]
    out = [room(t, count) for count in counts]
    dist.all_gather(out, t[: counts[team.me]])
    return out


def all_gather_flat(team: Team, t: torch.Tensor) -> Tensors:
    out = room(t, t.numel() * team.world)
    dist.all_gather_into_tensor(out, t)
    return [out]


def all_gather_own_block(team: Team, t: torch.Tensor) -> Tensors:
    out = room(t, t.numel() * team.world)
    block = out[team.me * t.numel() : (team.me + 1) * t.numel()]
    block.copy_(t)
    dist.all_gather_into_tensor(out, block)
    return [out]


def gather(team: Team, t: torch.Tensor) -> Tensors:
    out = [room(t, t.numel()) for _ in range(team.world)] if team.me == 0 else None
    dist.gather(t, out, 0)
    return out or [t]


def scatter(team: Team, t: torch.Tensor) -> Tensors:
    root, out = team.world - 1, room(t, t.numel())
    pieces = [rolled(t, r) for r in range(team.world)]
    dist.scatter(out, pieces if team.me == root else None, root)
    return [out]


def all_to_all(team: Team, t: torch.Tensor) -> Tensors:
    counts = [min(t.numel(), 3 * r + 1) for r in range(team.world)]
    out = [room(t, counts[team.me]) for _ in range(team.world)]
    dist.all_to_all(out, [t[:count].clone() for count in counts])
    return out


def all_to_all_single(team: Team, t: torch.Tensor) -> Tensors:
    whole = joined([t] * team.world)
    out = room(t, whole.numel())
    dist.all_to_all_single(out, whole)
    return [out]


def all_to_all_splits(team: Team, t: torch.Tensor) -> Tensors:
    sent = [min(t.numel(), team.me * r) for r in range(team.world)]
    got = [min(t.numel(), r * team.me) for r in range(team.world)]
    out = room(t, sum(got))
    whole = joined([t[:count] for count in sent])
    dist.all_to_all_single(out, whole, got, sent)
    return [out]


def send_recv(team: Team, t: torch.Tensor) -> Tensors:
    out = room(t, t.numel())
    after, before = (team.me + 1) % team.world, (team.me - 1) % team.world
    work = dist.isend(t, after, tag=3)
    dist.recv(out, before, tag=3)
    if work is not None:
        work.wait()
    return [out]


def batched(team: Team, t: torch.Tensor) -> Tensors:
    out = room(t, t.numel())
    after, before = (team.me + 1) % team.world, (team.me - 1) % team.world
    calls = [dist.P2POp(dist.isend, t, after), dist.P2POp(dist.irecv, out, before)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return [out]


MOVES = (
    broadcast,
    all_gather,
    all_gather_uneven,
    all_gather_flat,
    all_gather_own_block,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    all_to_all_splits,
    send_recv,
    batched,
)


def move_case(move: Callable[[Team, torch.Tensor], Tensors], dtype: torch.dtype) -> None:
    @case(f"{move.__name__} {str(dtype)[6:]}")
    def run(team: Team) -> str:
        for count in COUNTS:
            mine = data(dtype, count, seed=team.me)
            wrong = both(team, [mine], lambda tensors: move(team, tensors[0]))
            if wrong:
                return f"{count} elements: {wrong}"
        return ""


# ---- what is reduced ----


def all_reduce(team: Team, t: torch.Tensor, op: Any) -> Tensors:
    dist.all_reduce(t, op)
    return [t]


def all_reduce_coalesced(team: Team, t: torch.Tensor, op: Any) -> Tensors:
    tensors = [t, t[: t.numel() // 3].clone(), rolled(t, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises something that not every backend has
        dist.all_reduce_coalesced(tensors, op)
    return tensors


def reduce(team: Team, t: torch.Tensor, op: Any) -> Tensors:
    dist.reduce(t, team.world - 1, op)
    return [t] if team.me == team.world - 1 else []


def reduce_scatter(team: Team, t: torch.Tensor, op: Any) -> Tensors:
    out = room(t, t.numel())
    dist.reduce_scatter(out, [rolled(t, r) for r in range(team.world)], op)
    return [out]


def reduce_scatter_flat(team: Team, t: torch.Tensor, op: Any) -> Tensors:
    out = room(t, t.numel())
    dist.reduce_scatter_tensor(out, joined([t] * team.world), op)
    return [out]


REDUCTIONS = (all_reduce, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_flat)


def reduce_case(call: Callable[..., Tensors], dtype: torch.dtype) -> None:
    names = [name for name in oracle.NAMES if oracle.supported(dtype, name)]
    if call is all_reduce_coalesced or dtype in oracle.COMPLEX:
        names = [name for name in names if name in ("sum", "avg")]

    @case(f"{call.__name__} {str(dtype)[6:]}")
    def run(team: Team) -> str:
        for name in names:
            for count in COUNTS:
                mine = data(dtype, count, seed=team.me)
                op = oracle.reduce_op(name, team.me)
                wrong = both(team, [mine], lambda tensors: call(team, tensors[0], op))
                if wrong:
                    return f"{name}, {count} elements: {wrong}"
        return ""


for _dtype in DTYPES:
    for _move in MOVES:
        move_case(_move, _dtype)
for _dtype in oracle.REDUCIBLE:
    for _call in REDUCTIONS:
        reduce_case(_call, _dtype)


@case("all_reduce large float32 and bfloat16")
def large(team: Team) -> str:
    for dtype in (torch.float32, torch.bfloat16):
        mine = oracle.plain(dtype, LARGE, seed=team.me)
        wrong = both(team, [mine], lambda tensors: all_reduce(team, tensors[0], dist.ReduceOp.SUM))
        if wrong:
            return f"{dtype}: {wrong}"
    return ""


@case("messages: larger than what finds room, both ways at once", waits=True)
def large_messages(team: Team) -> str:
    def exchange(tensors: Tensors) -> Tensors:
        other = team.world - 1 - team.me
        if other == team.me:
            return []
        out = room(tensors[0], tensors[0].numel())
        work = dist.isend(tensors[0], other)
        dist.recv(out, other)
        work.wait()
        return [out]

    return both(team, [oracle.plain(torch.float32, LARGE, seed=team.me)], exchange)


# ---- layouts and groups ----


@case("layouts: columns, steps, offsets, no dimension")
def layouts(team: Team) -> str:
    mine = oracle.plain(torch.float32, 40 * 50, seed=team.me).reshape(40, 50)
    views: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda t: t.t(),
        lambda t: t[:, ::3],
        lambda t: t[7:9, 3:],
        lambda t: t[3, 4],
    )
    for number, view in enumerate(views):

        def call(tensors: Tensors, view: Any = view) -> Tensors:
            dist.all_reduce(view(tensors[0]))
            return [tensors[0]]

        there = mine.to(team.device)
        if there.is_cuda and not view(there).is_contiguous():  # is not offered, as with NCCL

            def alone(view: Any = view, there: torch.Tensor = there) -> None:
                dist.all_reduce(view(there))

            wrong = refused((TypeError,), alone)
        else:
            wrong = both(team, [mine], call)
        if wrong:
            return f"view {number}: {wrong}"
    return ""


@case("groups: subgroups, two at once, barrier")
def groups(team: Team) -> str:
    halves = [dist.new_group(list(range(start, team.world, 2))) for start in range(2)]
    own = halves[team.me % 2]
    t, everyone = team.ones() * (team.me + 1), team.ones()
    dist.all_reduce(t, group=own)
    dist.all_reduce(everyone)
    dist.barrier()
    want = sum(r + 1 for r in range(team.me % 2, team.world, 2))
    if (t != want).any() or (everyone != team.world).any():
        return f"{t[0].item()} instead of {want}, {everyone[0].item()} of {team.world}"
    return ""


@case("objects of tensors")
def objects(team: Team) -> str:
    got: list[Any] = [None] * team.world
    dist.all_gather_object(got, {"rank": team.me, "tensor": team.ones(3) * team.me})
    right = all(one["rank"] == r and (one["tensor"] == r).all() for r, one in enumerate(got))
    return "" if right else f"{got}"


# ---- async, futures ----


@case("async: wait, then use")
def asynchronous(team: Team) -> str:
    tensors = [team.ones() * k for k in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    wrong = [k for k, t in enumerate(tensors) if (t != k * team.world).any()]
    return f"wrong: {wrong}" if wrong else ""


@case("future: then, value")
def future(team: Team) -> str:
    t = team.ones()
    doubled = dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    got = doubled.wait()
    return "" if (got == 2 * team.world).all() else f"{got[0].item()}"


@case("async: the caller lets go of its tensors")
def lifetime(team: Team) -> str:
    works = []
    for _ in range(20):
        works.append((dist.all_reduce(team.ones(100_000), async_op=True)))
        team.ones(100_000).fill_(7.0)  # takes the memory, if it is free
    gc.collect()
    for work in works:
        work.wait()
    return team.usable()


# ---- streams: CUDA alone ----

SECOND = 1_500_000_000  # cycles, about


@case("streams: a call takes its turn on its stream", cuda=True)
def stream_order(team: Team) -> str:
    stream = torch.cuda.Stream()
    t = torch.zeros(100_000, device=team.device)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SECOND // 20)
        t.fill_(team.me + 1)
        dist.all_reduce(t)
        out = t + 0
    stream.synchronize()
    want = team.world * (team.world + 1) / 2
    return "" if (out == want).all() else f"{out[0].item()} instead of {want}"


@case("streams: a later use waits, also with async", cuda=True)
def use_waits(team: Team) -> str:
    for asynchronously in (False, True):
        t = torch.zeros(100_000, device=team.device)
        if team.me == team.world - 1:
            torch.cuda._sleep(SECOND // 20)
        t.fill_(team.me + 1)
        work = dist.all_reduce(t, async_op=asynchronously)
        if work is not None:
            work.wait()
        out = t * 1
        want = team.world * (team.world + 1) / 2
        if (out != want).any():
            return f"async {asynchronously}: {out[0].item()} instead of {want}"
    return ""


@case("streams: neither a call nor wait() blocks the host", cuda=True)
def host_goes_on(team: Team) -> str:
    t = team.ones(100_000)
    dist.all_reduce(t)  # whatever is made late is made
    torch.cuda.synchronize()
    team.rank.sync()
    torch.cuda._sleep(SECOND)
    begun = time.monotonic()
    dist.all_reduce(t, async_op=True).wait()
    took = time.monotonic() - begun
    pending = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    if took > 0.4 or not pending:
        return f"the host was held for {took:.2f} s of the second that the stream had to do"
    return ""


@case("streams: a receive holds up neither the host nor a collective", cuda=True, waits=True)
def receive_waits(team: Team) -> str:
    out, last = torch.zeros(1000, device=team.device), team.world - 1
    waiting = dist.irecv(out, last) if team.me == 0 else None
    wrong = team.usable()  # also waits for the GPU
    early = waiting is not None and waiting.is_completed()
    team.rank.sync()
    if team.me == last:
        dist.send(team.ones() * 5, 0)
    if waiting is not None:
        waiting.wait()
    if wrong or early:
        return wrong or "complete before anything was sent"
    return "" if team.me != 0 or (out == 5).all() else f"{out[0].item()} instead of 5"


@case("streams: two groups on two streams, crossing", cuda=True, waits=True)
def crossing(team: Team) -> str:
    other = dist.new_group()
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    a, b = team.ones(100_000), team.ones(100_000) * 2
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(one):
            dist.all_reduce(a, op=dist.ReduceOp.MAX)
        with torch.cuda.stream(two):
            dist.all_reduce(b, op=dist.ReduceOp.MAX, group=other)
    torch.cuda.synchronize()
    return "" if (a == 1).all() and (b == 2).all() else f"{a[0].item()}, {b[0].item()}"


@case("streams: events of the caller order calls", cuda=True)
def events(team: Team) -> str:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    t = team.ones()
    dist.all_reduce(t)
    event.record()
    with torch.cuda.stream(side):
        side.wait_event(event)
        out = t + 0
    side.synchronize()
    return "" if (out == team.world).all() else f"{out[0].item()}"


# ---- training ----


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))


@case("DDP: steps of a small network")
def ddp(team: Team) -> str:
    model = network().to(team.device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    lone = network().to(team.device)
    torch.manual_seed(team.me + 1)
    inputs = torch.randn(32, 64).to(team.device)
    for step in range(3):
        lone.load_state_dict(model.state_dict())
        for one in (wrapped, lone):
            one.zero_grad()
            one(inputs).square().mean().backward()
        for mine, shared in zip(lone.parameters(), model.parameters()):
            want = mine.grad.cpu()
            dist.all_reduce(want)
            if not torch.allclose(shared.grad.cpu(), want / team.world, rtol=1e-4, atol=1e-6):
                return f"step {step}: a gradient is not the mean"
        optimizer.step()
    same = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).cpu()
    first = same.clone()
    dist.broadcast(first, 0)
    return "" if torch.equal(same, first) else "the ranks' parameters differ"


# ---- bad input: named, and the group lives on ----


def refused(kinds: tuple[type[BaseException], ...], call: Callable[[], object]) -> str:
    try:
        call()
    except kinds as error:
        return "" if str(error).strip() else "an error without a text"
    except Exception as error:
        return f"{type(error).__name__} instead: {error}"
    return "no error"


WRONG = (ValueError, TypeError)


@case("bad input: a reduction that the dtype has not")
def no_such_reduction(team: Team) -> str:
    t = torch.ones(4, dtype=torch.bool, device=team.device)
    return refused(WRONG, lambda: dist.all_reduce(t, dist.ReduceOp.AVG)) or team.usable()


@case("bad input: an output that overlaps itself")
def overlapping(team: Team) -> str:
    t = team.ones(1).expand(5)
    return refused(WRONG, lambda: dist.all_reduce(t)) or team.usable()


@case("bad input: an output of another size")
def wrong_size(team: Team) -> str:
    out = team.ones(10 * team.world + 1)
    call = lambda: dist.all_gather_into_tensor(out, team.ones(10))  # noqa: E731
    return refused((*WRONG, RuntimeError), call) or team.usable()


@case("bad input: CPU and CUDA tensors in one call", cuda=True)
def mixed(team: Team) -> str:
    out = [torch.ones(10) for _ in range(team.world)]
    call = lambda: dist.all_gather(out, team.ones(10))  # noqa: E731
    return refused((*WRONG, RuntimeError), call) or team.usable()


@case("bad input: a message from any rank", cuda=True)
def from_any_rank(team: Team) -> str:
    return refused((TypeError,), lambda: dist.recv(team.ones())) or team.usable()


@case("bad input: ranks that call different things")
def mismatch(team: Team) -> str:
    t = team.ones(10 + team.me)

    def call() -> None:
        dist.all_reduce(t)
        if t.is_cuda:
            torch.cuda.synchronize()
        dist.barrier()

    wrong = refused((dist.DistBackendError,), call)
    team.renew()
    return wrong or team.usable()
