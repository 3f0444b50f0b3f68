# SPDX-License-Identifier: BSD-3-Clause
"""What a distributed program is: data, printed as the Python text that makes it again.

All ranks read the same program. A step names a group and says what each member does there, so both
sides of every exchange are in one step, and the steps of a group come in the same order on all its
ranks. Nothing that is in flight is waited for before the step that all its members have reached: no
program can block itself. A new kind of step is a row of KINDS, a call in calls.py and an
expectation in expected.py.
"""

from __future__ import annotations

import dataclasses

MAX_WORLD = 5
HOWS = ("wait", "future", "then", "thread", "poll", "drop")


class _Text:
    """repr() leaves out values that are the default."""

    def __repr__(self) -> str:
        parts = []
        for i, field in enumerate(dataclasses.fields(self)):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(repr(value) if i == 0 else f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclasses.dataclass(frozen=True, repr=False)
class End(_Text):
    """How a rank ends its part of a step: "sync" (the call itself does), or one of HOWS."""

    how: str = "sync"
    lag: int = 0  # so many steps of this thread later


@dataclasses.dataclass(frozen=True, repr=False)
class Message(_Text):
    """One tensor from a group rank to another."""

    src: int
    dst: int
    count: int
    tag: int = 0


@dataclasses.dataclass(frozen=True, repr=False)
class Step(_Text):
    """What the members of a group do together. Ranks are group ranks.

    Rank r has layouts[(r + k) % len] for its k-th tensor, ends[r % len], delays_ms[r % len].
    """

    kind: str
    group: int = 0
    form: str = "direct"
    dtype: str = "float32"
    # Coalesced: of each tensor; sparse: what is indexed, and the rest; else of the one block.
    shapes: tuple[tuple[int, ...], ...] = ((1,),)
    op: str = "sum"
    root: int = 0
    # Rows from i to j, which is [i % len][j]. Of [0]: sizes of objects; entries of ranks.
    counts: tuple[tuple[int, ...], ...] = ()
    messages: tuple[Message, ...] = ()
    layouts: tuple[str, ...] = ("plain",)
    ends: tuple[End, ...] = (End(),)
    delays_ms: tuple[float, ...] = (0,)
    repeat: int = 1  # so often in place, without waiting in between


@dataclasses.dataclass(frozen=True, repr=False)
class Program(_Text):
    world: int
    groups: tuple[tuple[int, ...], ...] = ()  # besides group 0, which has all ranks
    threads: tuple[int, ...] = (0,)  # group g belongs to thread threads[g % len] of each rank
    settings: tuple[tuple[str, str], ...] = ()  # of the environment
    seed: int = 0  # of all values
    options: tuple[tuple[str, str], ...] = ()  # of all groups
    steps: tuple[Step, ...] = ()

    def members(self, group: int) -> tuple[int, ...]:
        return self.groups[group - 1] if group else tuple(range(self.world))

    def hosts(self, group: int) -> list[int]:
        """The host of each member, as SHMCOLL_FAKE_HOSTS has it, if it matters for the bits of sums."""
        if ("order", "rank") in self.options:
            return []
        fake = dict(self.settings).get("SHMCOLL_FAKE_HOSTS", f"1x{MAX_WORLD}")
        hosts, ranks = map(int, fake.split("x"))
        return [min(rank // ranks, hosts - 1) for rank in self.members(group)]

    def thread_of(self, group: int) -> int:
        return self.threads[group % len(self.threads)]

    def drops(self, group: int) -> bool:
        """Whether somebody leaves a work of this group alone: it ends with a barrier then."""
        return any(
            end.how == "drop" for step in self.steps if step.group == group for end in step.ends
        )

    def text(self) -> str:
        lines = ["Program("]
        for field in dataclasses.fields(self)[:-1]:
            lines.append(f"    {field.name}={getattr(self, field.name)!r},")
        lines += ["    steps=(", *(f"        {step!r}," for step in self.steps), "    ),", ")"]
        return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class Kind:
    forms: tuple[str, ...] = ("direct",)
    reduces: bool = False
    rooted: bool = False
    blocks: bool = False  # a rank has a block for each rank
    tensors: int = 1  # at most, in one call
    repeats: bool = False
    asynchronous: bool = True
    # "shape", "counts", "lengths", "entries", "objects", "messages", "none": what a step carries
    size: str = "shape"


KINDS = {
    "broadcast": Kind(("direct", "functional"), rooted=True),
    "all_reduce": Kind(("direct", "functional"), reduces=True, repeats=True),
    "all_reduce_coalesced": Kind(("direct", "manager", "functional"), reduces=True, tensors=4),
    "all_reduce_sparse": Kind(("direct", "coalesced", "mixed"), reduces=True, size="entries"),
    "reduce": Kind(reduces=True, rooted=True),
    "all_gather": Kind(("direct", "own"), blocks=True),
    "all_gather_uneven": Kind(("direct", "own", "reshaped"), blocks=True, size="lengths"),
    "all_gather_coalesced": Kind(("direct", "own"), blocks=True, tensors=3),
    "all_gather_flat": Kind(("direct", "stack", "own", "functional"), blocks=True),
    "all_gather_flat_coalesced": Kind(("manager", "functional"), blocks=True, tensors=3),
    "gather": Kind(rooted=True, blocks=True),
    "scatter": Kind(rooted=True, blocks=True),
    "reduce_scatter": Kind(reduces=True, blocks=True),
    "reduce_scatter_uneven": Kind(
        ("direct", "reshaped"), reduces=True, blocks=True, size="lengths"
    ),
    "reduce_scatter_flat": Kind(("direct", "stack", "functional"), reduces=True, blocks=True),
    "reduce_scatter_flat_coalesced": Kind(
        ("manager", "functional"), reduces=True, blocks=True, tensors=3
    ),
    "all_to_all": Kind(("direct", "reshaped"), blocks=True, size="counts"),
    "all_to_all_single": Kind(("direct", "functional"), blocks=True, size="counts"),
    "all_to_all_even": Kind(("direct",), blocks=True),
    "barrier": Kind(size="none"),
    "broadcast_objects": Kind(rooted=True, asynchronous=False, size="objects"),
    "all_gather_objects": Kind(asynchronous=False, size="objects"),
    "gather_objects": Kind(rooted=True, asynchronous=False, size="objects"),
    "scatter_objects": Kind(rooted=True, asynchronous=False, size="objects"),
    "send_objects": Kind(rooted=True, asynchronous=False, size="objects"),
    "exchange": Kind(("blocking", "posted", "batch", "any"), size="messages"),
}
