# SPDX-License-Identifier: BSD-3-Clause
"""The calls of torch.distributed that a step stands for, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import oracle
from expected import Sight
from program import Message, Program
from values import Cell

TAG_OF_ANY = 1000  # an any-source receive has a tag that no other step uses

# torch 2.13 has new names for the flat forms.
_all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Later:
    """The works of a functional call: it gives tensors to wait for."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def wait(self) -> None:
        for tensor in self.tensors:
            torch.ops._c10d_functional.wait_tensor(tensor)


class Here(Sight):
    """A rank in a step: what it puts in, and what it has begun."""

    def __init__(
        self, program: Program, index: int, rank: int, group: dist.ProcessGroup, sync: bool
    ) -> None:
        super().__init__(program, index)
        self.members = program.members(self.step.group)
        self.me = self.members.index(rank)
        self.group = group
        self.sync = sync
        self.inputs: list[Cell] = []  # only read by the step
        self.before: list[Cell] = []  # what they were
        self.outputs: list[Cell] = []  # as expected.py has them
        self.objects: list[Any] = []
        self.sparse: list[torch.Tensor] = []  # that hold outputs when the step has ended
        self.works: list[Any] = []

    @property
    def root(self) -> int:
        return self.members[self.step.root]

    @property
    def is_root(self) -> bool:
        return self.me == self.step.root

    def shape(self, part: int = 0, first: int = 1) -> tuple[int, ...]:
        """With the first dimension so many times as long."""
        shape = self.step.shapes[part]
        return shape if first == 1 else (first * (shape[0] if shape else 1), *shape[1:])

    def row_shape(self, source: int, target: int, reshaped: bool = False) -> tuple[int, ...]:
        """Of rows(); reshaped: flat in the form of that name."""
        length = self.length(source, target)
        if reshaped and self.step.form == "reshaped":
            return (length * self.count(),)
        return (length, *self.step.shapes[0])

    def cell(self, shape: tuple[int, ...], values: torch.Tensor | None) -> Cell:
        layouts = self.step.layouts
        k = len(self.inputs) + len(self.outputs)
        dtype = self.dtype if values is None else values.dtype
        return Cell.make(shape, layouts[(self.me + k) % len(layouts)], dtype, values)

    def input(self, shape: tuple[int, ...], values: torch.Tensor) -> torch.Tensor:
        self.inputs.append(self.cell(shape, values))
        self.before.append(self.inputs[-1].copy())
        return self.inputs[-1].tensor

    def input_rows(self, target: int) -> torch.Tensor:
        return self.input(self.row_shape(self.me, target), self.rows(self.me, target))

    def output(self, shape: tuple[int, ...], values: torch.Tensor | None = None) -> torch.Tensor:
        self.outputs.append(self.cell(shape, values))
        return self.outputs[-1].tensor

    def own(self, part: int = 0) -> torch.Tensor:
        return self.values(self.me, part, self.count(part))

    def parts(self) -> range:
        return range(len(self.step.shapes))

    def op(self) -> dist.ReduceOp:
        return oracle.reduce_op(self.step.op, self.me)

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        work = function(*arguments, group=self.group, async_op=not self.sync, **named)
        if work is not None:
            self.works.append(work)

    def functional(self, name: str, *arguments: Any) -> list[torch.Tensor]:
        """Through the operators that compiled programs call; what they return."""
        call = getattr(torch.ops._c10d_functional, name)
        given = call(*arguments, self.group.group_name)
        tensors = given if isinstance(given, (list, tuple)) else [given]
        self.works.append(Later(list(tensors)))
        return list(tensors)

    def keep(self, tensors: list[torch.Tensor]) -> None:
        self.outputs += [Cell.of(tensor) for tensor in tensors]

    def keep_sparse(self) -> None:
        """Their entries have memory of their own, which was not there before."""
        for tensor in self.sparse:
            assert tensor.is_coalesced(), "a sparse sum that may have a place twice"
            self.keep([tensor._indices(), tensor._values()])

    def managed(self, one: Callable[[int], None]) -> None:
        """All parts within torch's coalescing manager."""
        with dist._coalescing_manager(self.group, async_ops=not self.sync) as manager:
            for part in self.parts():
                one(part)
        if not self.sync:
            self.works += manager.works


# ---- one function for each kind ----


def broadcast(here: Here) -> None:
    values = here.own()
    if here.step.form == "functional":
        given = here.input(here.shape(), values)
        here.keep(here.functional("broadcast", given, here.step.root))
    else:
        here.call(dist.broadcast, here.output(here.shape(), values), here.root)


def all_reduce(here: Here) -> None:
    values = here.own()
    if here.step.form == "functional":
        given = here.input(here.shape(), values)
        here.keep(here.functional("all_reduce", given, here.step.op))
        return
    tensor = here.output(here.shape(), values)
    for _ in range(here.step.repeat):
        here.call(dist.all_reduce, tensor, here.op())


def all_reduce_coalesced(here: Here) -> None:
    if here.step.form == "functional":
        given = [here.input(here.shape(k), here.own(k)) for k in here.parts()]
        here.keep(here.functional("all_reduce_coalesced", given, here.step.op))
        return
    tensors = [here.output(here.shape(k), here.own(k)) for k in here.parts()]
    if here.step.form == "direct":
        here.call(dist.all_reduce_coalesced, tensors, here.op())
    else:
        here.managed(lambda k: dist.all_reduce(tensors[k], here.op(), here.group))


def all_reduce_sparse(here: Here) -> None:
    places, values = here.entries(here.me)
    indices = here.indices(places)
    tensor = torch.sparse_coo_tensor(
        here.input(tuple(indices.shape), indices),
        here.input(tuple(values.shape), values),
        (*here.step.shapes[0], *here.step.shapes[1]),
        check_invariants=False,
        is_coalesced=here.coalesced(here.me),
    )
    here.sparse.append(tensor)
    here.call(_all_reduce_within if here.dtype.is_complex else dist.all_reduce, tensor, here.op())


def _all_reduce_within(
    tensor: torch.Tensor, op: dist.ReduceOp, group: dist.ProcessGroup, async_op: bool
) -> dist.Work | None:
    """dist.all_reduce() hands on a real view of a complex tensor: the result would go there."""
    options = dist.AllreduceOptions()
    options.reduceOp, options.asyncOp = op, async_op
    return group.allreduce([tensor], options)


def reduce(here: Here) -> None:
    here.call(dist.reduce, here.output(here.shape(), here.own()), here.root, here.op())


def all_gather(here: Here) -> None:
    own = here.step.form == "own"
    outputs = [
        here.output(here.shape(), here.own() if own and r == here.me else None)
        for r in range(here.world)
    ]
    given = outputs[here.me] if own else here.input(here.shape(), here.own())
    here.call(dist.all_gather, outputs, given)


def all_gather_uneven(here: Here) -> None:
    own = here.step.form == "own"
    outputs = []
    for r in range(here.world):
        values = here.rows(r, r) if own and r == here.me else None
        outputs.append(here.output(here.row_shape(r, r, reshaped=True), values))
    given = outputs[here.me] if own else here.input_rows(here.me)
    here.call(dist.all_gather, outputs, given)


def all_gather_coalesced(here: Here) -> None:
    own, parts = here.step.form == "own", here.parts()
    outputs = []
    for r in range(here.world):
        mine = own and r == here.me
        outputs.append([here.output(here.shape(k), here.own(k) if mine else None) for k in parts])
    given = outputs[here.me] if own else [here.input(here.shape(k), here.own(k)) for k in parts]
    here.call(dist.all_gather_coalesced, outputs, given)


def all_gather_flat(here: Here) -> None:
    form, count = here.step.form, here.count()
    if form == "functional":
        given = here.input(here.shape(), here.own())
        here.keep(here.functional("all_gather_into_tensor", given, here.world))
    elif form == "own":
        whole = torch.zeros(here.world * count * here.dtype.itemsize, dtype=torch.uint8)
        block = whole.view(here.dtype)[here.me * count : (here.me + 1) * count]
        Cell.of(block).put(here.own())
        here.keep([whole.view(here.dtype)])
        here.call(_all_gather_flat, whole.view(here.dtype), block)
    else:
        given = here.input(here.shape(), here.own())
        stacked = (here.world, *here.shape())
        shape = stacked if form == "stack" else here.shape(first=here.world)
        here.call(_all_gather_flat, here.output(shape), given)


def all_gather_flat_coalesced(here: Here) -> None:
    given = [here.input(here.shape(k), here.own(k)) for k in here.parts()]
    if here.step.form == "functional":
        here.keep(here.functional("all_gather_into_tensor_coalesced", given, here.world))
        return
    outputs = [here.output(here.shape(k, here.world)) for k in here.parts()]
    here.managed(lambda k: _all_gather_flat(outputs[k], given[k], here.group))


def gather(here: Here) -> None:
    given = here.input(here.shape(), here.own())
    outputs = [here.output(here.shape()) for _ in here.members] if here.is_root else None
    here.call(dist.gather, given, outputs, here.root)


def scatter(here: Here) -> None:
    blocks = None
    if here.is_root:
        blocks = [here.input(here.shape(), here.block(here.me, r)) for r in range(here.world)]
    here.call(dist.scatter, here.output(here.shape()), blocks, here.root)


def reduce_scatter(here: Here) -> None:
    blocks = [here.input(here.shape(), here.block(here.me, r)) for r in range(here.world)]
    here.call(dist.reduce_scatter, here.output(here.shape()), blocks, here.op())


def reduce_scatter_uneven(here: Here) -> None:
    blocks = [here.input_rows(r) for r in range(here.world)]
    output = here.output(here.row_shape(here.me, here.me, reshaped=True))
    here.call(dist.reduce_scatter, output, blocks, here.op())


def _whole(here: Here, part: int = 0) -> torch.Tensor:
    """This rank's blocks for all ranks, one after the other."""
    blocks = [here.block(here.me, r, part).view(torch.uint8) for r in range(here.world)]
    return torch.cat(blocks).view(here.dtype)


def reduce_scatter_flat(here: Here) -> None:
    stacked = (here.world, *here.shape())
    shape = stacked if here.step.form == "stack" else here.shape(first=here.world)
    given = here.input(shape, _whole(here))
    if here.step.form == "functional":
        here.keep(here.functional("reduce_scatter_tensor", given, here.step.op, here.world))
    else:
        here.call(_reduce_scatter_flat, here.output(here.shape()), given, here.op())


def reduce_scatter_flat_coalesced(here: Here) -> None:
    given = [here.input(here.shape(k, here.world), _whole(here, k)) for k in here.parts()]
    if here.step.form == "functional":
        name = "reduce_scatter_tensor_coalesced"
        here.keep(here.functional(name, given, here.step.op, here.world))
        return
    outputs = [here.output(here.shape(k)) for k in here.parts()]
    here.managed(lambda k: _reduce_scatter_flat(outputs[k], given[k], here.op(), here.group))


def all_to_all(here: Here) -> None:
    given = [here.input_rows(r) for r in range(here.world)]
    shapes = [here.row_shape(r, here.me, reshaped=True) for r in range(here.world)]
    here.call(dist.all_to_all, [here.output(shape) for shape in shapes], given)


def all_to_all_single(here: Here) -> None:
    inner, me = here.step.shapes[0], here.me
    sent = [here.length(me, r) for r in range(here.world)]
    got = [here.length(r, me) for r in range(here.world)]
    rows = [here.rows(me, r).view(torch.uint8) for r in range(here.world)]
    given = here.input((sum(sent), *inner), torch.cat(rows).view(here.dtype))
    if here.step.form == "functional":
        here.keep(here.functional("all_to_all_single", given, got, sent))
    else:
        here.call(dist.all_to_all_single, here.output((sum(got), *inner)), given, got, sent)


def all_to_all_even(here: Here) -> None:
    shape = here.shape(first=here.world)
    given = here.input(shape or (1,), _whole(here))
    here.call(dist.all_to_all_single, here.output(shape or (1,)), given)


def barrier(here: Here) -> None:
    here.call(dist.barrier)


def broadcast_objects(here: Here) -> None:
    count = len(here.step.counts[0])
    here.objects = [here.thing(here.me, i) if here.is_root else None for i in range(count)]
    dist.broadcast_object_list(here.objects, here.root, here.group)


def send_objects(here: Here) -> None:
    """Sends from the root to the rank next to it."""
    count, target = len(here.step.counts[0]), here.members[here.beside_root]
    if target == here.root:
        return
    if here.is_root:
        things = [here.thing(here.me, i) for i in range(count)]
        dist.send_object_list(things, target, here.group)
    elif here.me == here.beside_root:
        here.objects = [None] * count
        told = dist.recv_object_list(here.objects, here.root, here.group)
        assert told == here.root, f"recv_object_list() says that rank {told} has sent it"


def all_gather_objects(here: Here) -> None:
    here.objects = [None] * here.world
    dist.all_gather_object(here.objects, here.thing(here.me, here.me), here.group)


def gather_objects(here: Here) -> None:
    here.objects = [None] * here.world if here.is_root else []
    mine = here.thing(here.me, here.me)
    dist.gather_object(mine, here.objects if here.is_root else None, here.root, here.group)


def scatter_objects(here: Here) -> None:
    here.objects = [None]
    things = [here.thing(here.me, r) for r in range(here.world)] if here.is_root else None
    dist.scatter_object_list(here.objects, things, here.root, here.group)


def exchange(here: Here) -> None:
    """All messages of this rank are begun before one is waited for; but the one message of a
    "blocking" step may be sent and received by calls that return when it has gone."""
    sends = [(k, m) for k, m in enumerate(here.step.messages) if m.src == here.me]
    receives = [(k, m) for k, m in enumerate(here.step.messages) if m.dst == here.me]
    batch = []
    for _, message in receives:
        batch += _receive(here, message, here.output((message.count,)))
    for k, message in sends:
        values = here.values(here.me, k, message.count)
        batch += _send(here, message, here.input((message.count,), values))
    if batch:
        here.works += dist.batch_isend_irecv(batch)


def _tag(here: Here, message: Message) -> int:
    return TAG_OF_ANY + here.index if here.step.form == "any" else message.tag


def _receive(here: Here, message: Message, tensor: torch.Tensor) -> list[dist.P2POp]:
    source = here.members[message.src]
    tag = _tag(here, message)
    if here.step.form == "batch":
        return [dist.P2POp(dist.irecv, tensor, source, here.group, tag)]
    if here.step.form == "posted":
        here.works.append(dist.irecv(tensor, source, here.group, tag))
        return []
    asked = None if here.step.form == "any" else source
    told = dist.recv(tensor, asked, here.group, tag)
    assert told == source, f"recv() says that rank {told} has sent it, it was rank {source}"
    return []


def _send(here: Here, message: Message, tensor: torch.Tensor) -> list[dist.P2POp]:
    target = here.members[message.dst]
    tag = _tag(here, message)
    if here.step.form == "batch":
        return [dist.P2POp(dist.isend, tensor, target, here.group, tag)]
    if here.step.form == "posted":
        here.works.append(dist.isend(tensor, target, here.group, tag))
    else:
        dist.send(tensor, target, here.group, tag)
    return []


CALLS: dict[str, Callable[[Here], None]] = {
    call.__name__: call
    for call in (
        *(broadcast, all_reduce, all_reduce_coalesced, all_reduce_sparse, reduce),
        *(all_gather, all_gather_uneven, all_gather_coalesced),
        *(all_gather_flat, all_gather_flat_coalesced, gather, scatter),
        *(reduce_scatter, reduce_scatter_uneven),
        *(reduce_scatter_flat, reduce_scatter_flat_coalesced),
        *(all_to_all, all_to_all_single, all_to_all_even, barrier),
        *(broadcast_objects, all_gather_objects, gather_objects, scatter_objects),
        *(send_objects, exchange),
    )
}
