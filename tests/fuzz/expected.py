# SPDX-License-Identifier: BSD-3-Clause
"""What every rank must hold after a step: one process, plain torch, no process group.

An expectation is a list, in the order in which calls.py lists a rank's outputs: of tensors (one
dimension, contiguous) or of objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import oracle
from program import Program, Step
from values import content


class Sight:
    """What all ranks put into a step."""

    def __init__(self, program: Program, index: int) -> None:
        self.program = program
        self.index = index
        self.step: Step = program.steps[index]
        self.dtype: torch.dtype = getattr(torch, self.step.dtype)
        self.hosts = program.hosts(self.step.group)
        self.world = len(program.members(self.step.group))

    def fold(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        wide = ("partials", "wide") in self.program.options
        return oracle.fold(inputs, self.step.op, self.hosts, wide)

    def count(self, part: int = 0) -> int:
        return math.prod(self.step.shapes[part])

    def values(self, source: int, part: int, count: int) -> torch.Tensor:
        """The part-th piece of what group rank `source` puts in."""
        return content(self._key(source, part), self.dtype, count)

    def _key(self, source: int, part: int) -> tuple[int, ...]:
        return (self.program.seed, self.index, source, part)

    def block(self, source: int, target: int, part: int = 0) -> torch.Tensor:
        """What `source` has for `target`, where every rank has a block for every rank."""
        return self.values(source, part * self.world + target, self.count(part))

    def rows(self, source: int, target: int) -> torch.Tensor:
        """The same where blocks differ in size."""
        return self.values(source, target, self.length(source, target) * self.count())

    def length(self, source: int, target: int) -> int:
        """The number of these rows."""
        counts = self.step.counts
        return counts[source % len(counts)][target]

    def entries(self, source: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a sparse tensor: the number of each one's place, and its values."""
        sizes, rest = self.step.shapes
        counts = self.step.counts[0]
        numbers = content(self._key(source, 0), torch.int64, counts[source % len(counts)])
        places = numbers % math.prod(sizes)
        if self.coalesced(source):
            places = places.unique()
        values = self.values(source, 1, len(places) * math.prod(rest))
        return places, values.reshape(len(places), *rest)

    def coalesced(self, source: int) -> bool:
        return self.step.form == "coalesced" or (self.step.form == "mixed" and source % 2 == 1)

    def indices(self, places: torch.Tensor) -> torch.Tensor:
        rows = np.unravel_index(places.numpy(), self.step.shapes[0])  # torch's imports for 0.6 s
        return torch.from_numpy(np.stack(rows))

    @property
    def beside_root(self) -> int:
        return (self.step.root + 1) % self.world

    def thing(self, source: int, which: int) -> Any:
        """An object."""
        size = self.step.counts[0][which % len(self.step.counts[0])]
        data = content(self._key(source, which), torch.uint8, size).numpy().tobytes()
        return {"of": source, "which": which, "data": data}


def _folded(sight: Sight, part: int) -> torch.Tensor:
    inputs = [sight.values(r, part, sight.count(part)) for r in range(sight.world)]
    for _ in range(sight.step.repeat):
        result = sight.fold(inputs)
        inputs = [result] * sight.world
    return result


def _broadcast(sight: Sight, me: int) -> list[torch.Tensor]:
    return [sight.values(sight.step.root, 0, sight.count())]


def _all_reduce(sight: Sight, me: int) -> list[torch.Tensor]:
    return [_folded(sight, part) for part in range(len(sight.step.shapes))]


def _all_reduce_sparse(sight: Sight, me: int) -> list[torch.Tensor]:
    """Every place that somebody has, once and in order; and the sums of dense tensors there."""
    given = [sight.entries(r) for r in range(sight.world)]
    places, rows = torch.cat([own for own, _ in given]).unique(return_inverse=True)
    parts = zip(rows.split([len(own) for own, _ in given]), given)
    dense = [oracle.sums(own, values, len(places)) for own, (_, values) in parts]
    return [sight.indices(places).reshape(-1), sight.fold(dense)]


def _reduce(sight: Sight, me: int) -> list[torch.Tensor]:
    return [_folded(sight, 0) if me == sight.step.root else sight.values(me, 0, sight.count())]


def _gathered(sight: Sight, part: int = 0) -> list[torch.Tensor]:
    return [sight.values(r, part, sight.count(part)) for r in range(sight.world)]


def _all_gather(sight: Sight, me: int) -> list[torch.Tensor]:
    return _gathered(sight)


def _all_gather_coalesced(sight: Sight, me: int) -> list[torch.Tensor]:
    parts = range(len(sight.step.shapes))
    return [sight.values(r, k, sight.count(k)) for r in range(sight.world) for k in parts]


def _all_gather_uneven(sight: Sight, me: int) -> list[torch.Tensor]:
    return [sight.rows(r, r) for r in range(sight.world)]


def _all_gather_flat(sight: Sight, me: int) -> list[torch.Tensor]:
    return [torch.cat(_as_bits(_gathered(sight, k))) for k in range(len(sight.step.shapes))]


def _as_bits(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """torch.cat knows few dtypes."""
    return [tensor.view(torch.uint8) for tensor in tensors]


def _gather(sight: Sight, me: int) -> list[torch.Tensor]:
    return _gathered(sight) if me == sight.step.root else []


def _scatter(sight: Sight, me: int) -> list[torch.Tensor]:
    return [sight.block(sight.step.root, me)]


def _reduce_scatter(sight: Sight, me: int) -> list[torch.Tensor]:
    parts = range(len(sight.step.shapes))
    inputs = [[sight.block(r, me, part) for r in range(sight.world)] for part in parts]
    return [sight.fold(blocks) for blocks in inputs]


def _reduce_scatter_uneven(sight: Sight, me: int) -> list[torch.Tensor]:
    return [sight.fold([sight.rows(r, me) for r in range(sight.world)])]


def _all_to_all(sight: Sight, me: int) -> list[torch.Tensor]:
    return [sight.rows(r, me) for r in range(sight.world)]


def _all_to_all_single(sight: Sight, me: int) -> list[torch.Tensor]:
    return [torch.cat(_as_bits(_all_to_all(sight, me)))]


def _all_to_all_even(sight: Sight, me: int) -> list[torch.Tensor]:
    return [torch.cat(_as_bits([sight.block(r, me) for r in range(sight.world)]))]


def _broadcast_objects(sight: Sight, me: int) -> list[Any]:
    return [sight.thing(sight.step.root, i) for i in range(len(sight.step.counts[0]))]


def _all_gather_objects(sight: Sight, me: int) -> list[Any]:
    return [sight.thing(r, r) for r in range(sight.world)]


def _gather_objects(sight: Sight, me: int) -> list[Any]:
    return _all_gather_objects(sight, me) if me == sight.step.root else []


def _scatter_objects(sight: Sight, me: int) -> list[Any]:
    return [sight.thing(sight.step.root, me)]


def _send_objects(sight: Sight, me: int) -> list[Any]:
    told = me == sight.beside_root and sight.world > 1
    return _broadcast_objects(sight, me) if told else []


def _exchange(sight: Sight, me: int) -> list[torch.Tensor]:
    return [
        sight.values(message.src, k, message.count)
        for k, message in enumerate(sight.step.messages)
        if message.dst == me
    ]


_EXPECT: dict[str, Callable[[Sight, int], list[Any]]] = {
    "broadcast": _broadcast,
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "all_reduce_sparse": _all_reduce_sparse,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "all_gather_uneven": _all_gather_uneven,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_flat": _all_gather_flat,
    "all_gather_flat_coalesced": _all_gather_flat,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_uneven": _reduce_scatter_uneven,
    "reduce_scatter_flat": _reduce_scatter,
    "reduce_scatter_flat_coalesced": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "all_to_all_even": _all_to_all_even,
    "barrier": lambda sight, me: [],
    "broadcast_objects": _broadcast_objects,
    "all_gather_objects": _all_gather_objects,
    "gather_objects": _gather_objects,
    "scatter_objects": _scatter_objects,
    "send_objects": _send_objects,
    "exchange": _exchange,
}


def expected(program: Program, index: int, me: int) -> list[Any]:
    """Returns what group rank `me` must hold after step `index`."""
    sight = Sight(program, index)
    wanted = _EXPECT[sight.step.kind](sight, me)
    return [t.view(sight.dtype) if _is_bytes(t) else t for t in wanted]


def _is_bytes(one: Any) -> bool:
    """Of any dtype; but the indices of a sparse tensor are no bytes of its own."""
    return isinstance(one, torch.Tensor) and one.dtype == torch.uint8
