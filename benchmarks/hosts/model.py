# SPDX-License-Identifier: BSD-3-Clause
"""What a call over several equal hosts costs: groups of shmcoll, and flat gloo. Used by benchmarks/hosts/sim.py.

A machine is that of LogGP, with a link for each host: a call or a message has a latency, each further message costs
CPU time, and bytes pass a host's link one after the other. What a rank's CPU does is counted in bytes that it copies
or adds, and in bytes of TCP. Chunks pass as in src/hosts/hosts_chunk.c: while one is on the link, the island has
another. Chunks, staging memory and records are the library's own arithmetic (plan.c); what an operation does with
them is written here once more, and tests/python/test_hosts_sim.py compares calls and bytes with those of real groups.

All tensors are float32 and contiguous. Ranks of a host have successive numbers; rank 0 is the root.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ELEMENT = 4
KEPT = 32 << 20  # bytes up to which malloc keeps what was freed: no new pages


@dataclass(frozen=True)
class Constants:
    """Seconds, and bytes per second. sim.py --constants says where each comes from."""

    call: float = 72e-6
    hop: float = 29e-6
    message: float = 18e-6
    island: float = 4.1e-6
    wire: float = 0.65e-9
    copy: float = 7.5e9
    clone: float = 1.95e9
    free: float = 20e9
    add: float = 6e9
    flow: float = 2.5e9
    crowd: float = 0.85
    payload: float = 0.957


@dataclass(frozen=True)
class Machine:
    """nic: payload bytes per second of a host's link, each way. burst: bytes that it makes up for after a pause.
    queue: bytes that wait for it before acknowledgements of the other direction come too late.
    share: CPUs that a rank has at a moment; limit: over a whole call. At most 1."""

    nic: float
    constants: Constants = Constants()
    burst: float = 0.0
    queue: float = inf
    share: float = 1.0
    limit: float = 1.0

    def work(self, cpu_s: float) -> float:
        """Seconds that CPU seconds of each rank take."""
        return cpu_s / self.share

    def clone(self, bytes_: float) -> float:
        """CPU seconds of a copy in new memory."""
        return bytes_ / (self.constants.clone if bytes_ > KEPT else self.constants.copy)


# ---- what the library says ----


class Plan(ctypes.Structure):
    """struct sim_plan of plan.c, and what it was made for."""

    NAMES = ("rails", "chunk", "payload", "record", "eager", "stage", "depth", "whole")
    _fields_ = [(name, ctypes.c_uint64) for name in NAMES]
    rails: int
    chunk: int
    payload: int
    record: int
    eager: int
    stage: int
    depth: int
    whole: int

    def __init__(self, hosts: int, ranks: int, rails: int = 0) -> None:
        super().__init__()
        self.hosts, self.ranks = hosts, ranks
        if _library().sim_plan(hosts, ranks, rails, ctypes.byref(self)):
            raise ValueError(f"{hosts} hosts of {ranks} ranks: no such group is possible")

    @property
    def world(self) -> int:
        return self.hosts * self.ranks

    def chunk_of(self, bytes_: int, rate: float) -> int:
        """Bytes of a chunk of a vector, over links of so many bytes per second; 0: that is not known."""
        chunk: int = _library().sim_chunk(self.hosts, int(self.rails), bytes_, int(rate))
        return chunk

    def column_of(self, width: int, longest: int, rate: float) -> int:
        """Elements of a column of blocks, of which a chunk has `width`."""
        made = _library().sim_column
        column: int = made(self.hosts, int(self.rails), width, longest, int(rate))
        return column


@functools.cache
def _library() -> ctypes.CDLL:
    """plan.c, compiled in a folder that is gone when it is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/plan.so"
        flags = "-std=gnu11 -D_GNU_SOURCE -O1 -shared -fPIC -fvisibility=hidden"
        drop = "-ffunction-sections -fdata-sections -Wl,--gc-sections"
        source = Path(__file__).with_name("plan.c")
        command = ["cc", *flags.split(), *drop.split(), f"-I{ROOT / 'src'}", str(source)]
        subprocess.run([*command, "-o", made], check=True)
        library = ctypes.CDLL(made)
    long = ctypes.c_uint64
    for function, numbers in ((library.sim_chunk, 2), (library.sim_column, 3)):
        function.argtypes = [ctypes.c_int, ctypes.c_int, *[long] * numbers]
        function.restype = long
    return library


# ---- what a call is made of ----


@dataclass(frozen=True)
class Send:
    """A call of an engine by each rail, or by the leader."""

    handed: int  # bytes that a rank hands to the engine
    out: float  # bytes that leave the host, of all rails
    wait_s: float  # besides the bytes on the link
    flows: int  # rails
    cpu_s: float = 0.0  # of all messages but one


@dataclass(frozen=True)
class Chunk:
    """CPU seconds of a rank before, between and after the sends."""

    begin_s: float
    sends: tuple[Send, ...]
    finish_s: float
    between_s: float = 0.0


@dataclass
class Cost:
    """Of one call. calls, handed: calls of the engine by the leader, and the bytes handed to them; out: bytes that
    leave the host that sends most."""

    path_s: float = 0.0  # the longest chain of waits and work
    link_s: float = 0.0  # while the link is busy
    cpu_s: float = 0.0  # of a rank, with bytes and messages of TCP
    calls: int = 0
    handed: int = 0
    out: float = 0.0
    memory: float = 0.0  # bytes besides the tensors, of a rank

    def seconds(self, machine: Machine) -> float:
        """A link that was idle makes up for that with its burst. CPUs that ranks share are a limit, too."""
        path = max(self.link_s, self.path_s - machine.burst / machine.nic)
        return max(path, self.cpu_s / machine.limit)


class Shmcoll:
    """Operations of a group over hosts. Bytes are those of the vector; of a block for all_gather, reduce_scatter and
    all_to_all. measured: the group knows the rate of the links, as after its first calls."""

    def __init__(
        self, machine: Machine, hosts: int, ranks: int, rails: int = 0, measured: bool = True
    ) -> None:
        self.machine, self.c = machine, machine.constants
        self.plan = Plan(hosts, ranks, rails)
        self.rate = machine.nic if measured else 0.0
        self.carried = ceil(ranks / self.plan.rails)  # ranks of a host, by rail

    def cost(self, operation: str, bytes_: int) -> Cost:
        if self.plan.hosts == 1:
            raise ValueError("a group on one host sends nothing")
        cost: Cost = getattr(self, operation)(bytes_)
        cost.memory = self.plan.stage
        return cost

    # ---- parts ----

    def _exchange(self, handed: int, to_each: float, flows: int) -> Send:
        """Blocks for all other hosts at once."""
        others = self.plan.hosts - 1
        cpu_s = (others - 1) * self.c.message
        wait_s = self.c.call + self.machine.work(cpu_s)
        return Send(handed, to_each * others * flows, wait_s, flows, cpu_s)

    def _gather(self, block: int, flows: int) -> Send:
        """A ring, in two halves; two hosts exchange."""
        hosts = self.plan.hosts
        if hosts == 2:
            return self._exchange(block, block, flows)
        half_s = block * flows / 2 / self.machine.nic
        wait_s = self.c.call + (hosts - 2) * max(0.0, self.c.hop - half_s)
        return Send(block, block * (hosts - 1) * flows, wait_s, flows)

    def _tree(self, block: int, flows: int) -> Send:
        """Of the root's host."""
        depth = ceil_log2(self.plan.hosts)
        wait_s = self.c.call + (depth - 1) * self.c.hop
        return Send(block, block * depth * flows, wait_s, flows)

    def _record(self) -> tuple[Chunk, Send]:
        """All hosts' at once; two hosts hand over one, others one for each host."""
        record, hosts = self.plan.record, self.plan.hosts
        send = self._exchange(record if hosts == 2 else record * hosts, record, 1)
        return Chunk(2 * self.c.island, (send,), 0.0), send

    def _copied(self, bytes_: float) -> float:
        return self.c.island + bytes_ / self.c.copy

    # ---- a pass ----

    def _pass(self, chunks: list[Chunk], two_sides: bool = False) -> Cost:
        """The record, and then all chunks. two_sides: the root's host begins them, and others finish them."""
        record, send = self._record()
        cost = Cost(calls=1, handed=send.handed)
        link = self._send(cost, send, self.machine.work(record.begin_s), 0.0)
        begins = finishes = link[1]
        depth, ends = self.plan.depth, {}
        for turn in range(len(chunks) + depth - 1):
            for step in range(depth):
                index = turn - step
                if not 0 <= index < len(chunks):
                    continue
                chunk = chunks[index]
                if step == 0:
                    begins += self.machine.work(chunk.begin_s)
                    link = ends[index] = self._send(cost, chunk.sends[0], begins, link[0])
                elif step == 1 and len(chunk.sends) == 2:
                    begins = max(begins, ends[index][1]) + self.machine.work(chunk.between_s)
                    link = ends[index] = self._send(cost, chunk.sends[1], begins, link[0])
                elif step == depth - 1:
                    before = finishes if two_sides else begins
                    finishes = max(before, ends[index][1]) + self.machine.work(chunk.finish_s)
                    begins = begins if two_sides else finishes
        cost.path_s = max(begins, finishes)
        for chunk in chunks:
            cost.calls += len(chunk.sends)
            cost.handed += sum(one.handed for one in chunk.sends)
            sides = max(chunk.begin_s, chunk.finish_s) if two_sides else chunk.begin_s
            cost.cpu_s += sides + chunk.between_s + (0.0 if two_sides else chunk.finish_s)
            cost.cpu_s += sum(one.cpu_s for one in chunk.sends)
        cost.cpu_s += record.begin_s + cost.out / self.plan.ranks * self.c.wire
        return cost

    def _send(self, cost: Cost, send: Send, now: float, free: float) -> tuple[float, float]:
        """When the link is free again, and when the call has ended."""
        rate = min(self.machine.nic, send.flows * self.c.flow)
        begun = max(now, free)
        cost.out += send.out
        cost.link_s += send.out / rate
        return begun + send.out / rate, begun + send.out / rate + send.wait_s

    def _short(self, bytes_: int, told: int, islands: int) -> Cost:
        """All of it is in the record. told: bytes that each rank of a host gets with the verdict."""
        cost = self._pass([])
        more_s = islands * self.c.island + (bytes_ + told) / self.c.copy
        cost.path_s += self.machine.work(more_s)
        cost.cpu_s += more_s
        return cost

    def _eager(self, bytes_: int, staged: int, told: int, takes: bool = True) -> Cost:
        """A message for each other host goes along with the record. staged: bytes that a rank copies or adds before."""
        cost = self._short(staged, told, 1)
        others = self.plan.hosts - 1
        cost.calls += 2 * others if takes else others
        cost.handed += others * bytes_
        cost.out += others * bytes_
        cost.link_s += others * bytes_ / self.machine.nic
        cost.path_s += others * bytes_ / self.machine.nic
        cost.cpu_s += others * (self.c.message + bytes_ / self.plan.ranks * self.c.wire)
        return cost

    # ---- operations ----

    def _parts(self, bytes_: int, rate: float = 0.0) -> list[int]:
        """Chunks of a vector."""
        chunk = self.plan.chunk_of(bytes_, rate)
        whole, rest = divmod(bytes_, chunk)
        return [chunk] * whole + [rest] * (rest > 0)

    def all_reduce(self, bytes_: int) -> Cost:
        plan = self.plan
        if bytes_ <= plan.payload:
            return self._short(bytes_, bytes_, 1)
        if bytes_ <= plan.eager:
            return self._eager(bytes_, bytes_, bytes_)
        return self._pass([self._summed(part) for part in self._parts(bytes_, self.rate)])

    def _summed(self, part: int) -> Chunk:
        plan, c = self.plan, self.c
        slice_ = elements(part, plan.rails)
        begin_s = self._copied(part) + plan.ranks * slice_ / c.add
        collect_s = self._copied(slice_ + part)
        if plan.whole:
            sends = (self._gather(slice_, plan.rails),)
            return Chunk(begin_s + slice_ / c.copy, sends, plan.hosts * slice_ / c.add + collect_s)
        piece = elements(slice_, plan.hosts)
        there = self._exchange(piece * plan.hosts, piece, plan.rails)
        return Chunk(
            begin_s,
            (there, self._gather(piece, plan.rails)),
            collect_s,
            plan.hosts * piece / c.add,
        )

    def broadcast(self, bytes_: int) -> Cost:
        plan = self.plan
        if bytes_ <= plan.payload:
            return self._short(bytes_, bytes_, 0)
        if bytes_ <= plan.eager:
            return self._eager(bytes_, 0, bytes_, takes=False)
        chunks = []
        for part in self._parts(bytes_):
            slice_ = elements(part, plan.rails)
            sends = (self._tree(slice_, plan.rails),)
            chunks.append(Chunk(self._copied(part + slice_), sends, self._copied(slice_ + part)))
        return self._pass(chunks, two_sides=True)

    def _columns(self, block: int, load: int, rate: float = 0.0) -> list[int]:
        """Bytes of a block in each column. load: elements that a rail has room for, for each element of the width."""
        room = self.plan.chunk // self.plan.rails
        width, longest = room // (load * ELEMENT), block // ELEMENT
        if width == 0:
            raise ValueError("no element fits the staging memory")
        width = min(self.plan.column_of(width, longest, rate), longest) * ELEMENT
        whole, rest = divmod(block, width)
        return [width] * whole + [rest] * (rest > 0)

    def all_gather(self, bytes_: int) -> Cost:
        plan = self.plan
        if plan.ranks * bytes_ <= plan.payload:
            return self._short(bytes_, plan.world * bytes_, 1)
        if plan.ranks * bytes_ <= plan.eager:
            return self._eager(plan.ranks * bytes_, bytes_, plan.world * bytes_)
        chunks = []
        for width in self._columns(bytes_, self.carried * plan.hosts):
            block = self.carried * width
            brought = width if plan.ranks == plan.rails else 2 * (width + block)
            sends = (self._gather(block, plan.rails),)
            finish_s = self._copied(plan.hosts * block + plan.world * width)
            chunks.append(Chunk(self._copied(brought), sends, finish_s))
        return self._pass(chunks)

    def reduce_scatter(self, bytes_: int) -> Cost:
        plan, c = self.plan, self.c
        if plan.world * bytes_ <= plan.payload:
            return self._short(plan.world * bytes_, plan.ranks * bytes_, 1)
        if plan.ranks * bytes_ <= plan.eager:
            return self._eager(plan.ranks * bytes_, plan.world * bytes_, plan.ranks * bytes_)
        chunks = []
        for width in self._columns(bytes_, self.carried * plan.hosts):
            block = self.carried * width
            column = plan.world * width
            begin_s = self._copied(2 * column) + plan.ranks * plan.hosts * block / c.add
            handed_on = 0.0 if plan.ranks == plan.rails else self._copied(block + width)
            finish_s = plan.hosts * block / c.add + handed_on + width / c.copy
            sends = (self._exchange(plan.hosts * block, block, plan.rails),)
            chunks.append(Chunk(begin_s, sends, finish_s))
        return self._pass(chunks)

    def all_to_all(self, bytes_: int) -> Cost:
        plan, c = self.plan, self.c
        foreign = plan.world - plan.ranks
        at_home_s = self._copied(2 * plan.ranks * bytes_)
        pair = plan.ranks * plan.ranks * bytes_  # of two hosts
        leaving = pair * (plan.hosts - 1)
        if ELEMENT * plan.hosts + leaving <= plan.payload:
            cost = self._short(foreign * bytes_, leaving, 1)
        elif pair <= plan.eager:
            cost = self._eager(pair, foreign * bytes_, leaving)
        else:
            chunks = []
            load = plan.ranks * self.carried * (plan.hosts - 1)
            for width in self._columns(bytes_, load, self.rate):
                given = plan.ranks * self.carried * width  # by a rail to one host
                rail = given * (plan.hosts - 1)
                swapped = 0 if plan.ranks == plan.rails else 2 * (rail + foreign * width)
                begin_s = self._copied(2 * foreign * width + 2 * rail)
                finish_s = (foreign * width + swapped) / c.copy
                chunks.append(Chunk(begin_s, (self._exchange(rail, given, plan.rails),), finish_s))
            cost = self._pass(chunks)
        cost.path_s += self.machine.work(at_home_s)
        cost.cpu_s += at_home_s
        return cost


class Gloo:
    """Flat gloo, as torch calls it. Ring: bytes go over one connection between two hosts."""

    def __init__(self, machine: Machine, hosts: int, ranks: int) -> None:
        self.machine, self.c = machine, machine.constants
        self.hosts, self.ranks, self.world = hosts, ranks, hosts * ranks
        self.flow = min(machine.nic, self.c.flow)

    def cost(self, operation: str, bytes_: int) -> Cost:
        cost: Cost = getattr(self, operation)(bytes_)
        return cost

    def _ring(self, block: float) -> Cost:
        """Blocks go round once, in two halves: one goes while the other comes."""
        steps = self.world - 1
        sent = steps * block
        step_s = max(block / self.flow, self.c.hop + block / 2 / self.flow)
        cpu_s = sent * self.c.wire
        return Cost(steps * step_s, sent / self.flow, cpu_s, out=sent)

    def all_gather(self, bytes_: int) -> Cost:
        """torch gathers into a tensor that it makes, and copies that."""
        cost = self._ring(bytes_)
        all_ = self.world * bytes_
        cost.cpu_s += self.machine.clone(all_) - all_ / self.c.copy  # new pages, while bytes come
        freed_s = all_ / self.c.free if all_ > KEPT else 0.0
        return self._around(cost, all_ / self.c.copy + freed_s, all_)

    def all_reduce(self, bytes_: int) -> Cost:
        block = max(bytes_ / self.world, min(bytes_, ELEMENT))
        one = self._ring(block)
        add_s = (self.world - 1) * block / self.c.add
        path_s = 2 * one.path_s + self.machine.work(block / 2 / self.c.add)
        return Cost(path_s, 2 * one.link_s, 2 * one.cpu_s + add_s, out=2 * one.out)

    def reduce_scatter(self, bytes_: int) -> Cost:
        """torch sums a copy of the whole input, and copies the block."""
        all_ = self.world * bytes_
        own_s = self.machine.clone(all_) + bytes_ / self.c.copy
        return self._around(self.all_reduce(all_), own_s, all_)

    def _around(self, cost: Cost, own_s: float, memory: float) -> Cost:
        cost.path_s += self.machine.work(own_s)
        cost.cpu_s += own_s
        cost.memory = memory
        return cost

    def broadcast(self, bytes_: int) -> Cost:
        """A binomial tree over ranks: its last rounds go between hosts, and all ranks of a host send in them."""
        rounds = ceil_log2(self.world)
        inside = ceil_log2(self.ranks)
        crossing = sum(
            1
            for rank in range(self.ranks)
            for turn in range(rounds)
            if rank < 1 << turn and self.ranks <= rank + (1 << turn) < self.world
        )
        out = float(bytes_ * crossing)
        link_s = out / min(self.machine.nic, self.ranks * self.c.flow)
        sent = rounds * bytes_  # by the root
        local_s = inside * bytes_ * self.machine.work(self.c.wire)
        alone_s = bytes_ / min(self.machine.nic, self.c.flow)  # the root's own goes at once
        path_s = rounds * self.c.hop + max(0.0, local_s - alone_s) + link_s
        return Cost(path_s, link_s, sent * self.c.wire / 2, out=out)

    def all_to_all(self, bytes_: int) -> Cost:
        """Every rank sends to all others at once, more than a link's queue holds if blocks are long."""
        others = self.world - 1
        out = float(self.ranks * (self.world - self.ranks) * bytes_)
        too_many = max(0.0, out - self.machine.queue)
        link_s = out / min(self.machine.nic, self.ranks * self.c.flow)
        link_s += too_many / self.machine.nic * (1 / self.c.crowd - 1)
        wait_s = self.c.call + self.machine.work((others - 1) * self.c.message)
        cpu_s = others * (bytes_ * self.c.wire + self.c.message) + bytes_ / self.c.copy
        return Cost(wait_s + link_s, link_s, cpu_s, out=out)


def ceil_log2(n: int) -> int:
    return (n - 1).bit_length()


def elements(bytes_: int, parts: int) -> int:
    """Bytes of the first of so many parts, which is the longest."""
    return ceil(bytes_ / ELEMENT / parts) * ELEMENT
