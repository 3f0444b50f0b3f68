# SPDX-License-Identifier: BSD-3-Clause
"""The keys of describe(), and their types."""

from __future__ import annotations

from typing import TypedDict, get_type_hints


class Description(TypedDict, total=False):
    """What describe() returns: one flat dictionary.

    The keys below are always there. Families of keys come after them:

    ``path.<operation>.<size>``
        str: how CPU tensors of that size go, as in ``path.all_reduce.1m``; ``send`` is a message.
    ``host.<index>``
        str: the ranks of the job that are on that host, if the group is on several: "ranks 0-3, 6".
    ``cuda:<index>.<key>``
        The keys of :class:`GpuDescription`, for each GPU that the group has been used on.

    A type checker knows the keys below only. Read a family with ``.get(key)`` or ``.items()``.
    """

    version: str
    """Version of the library, as in "0.1.0"."""
    glue: str
    """The torch that the compiled glue was built for, and whether the module shmcoll._C is used; or "Python"."""
    name: str
    """Name of the group, which torch makes."""
    desc: str
    """The words that messages have for the group: torch's ``group_desc``, or the name."""
    rank: int
    """Rank of this process in the group."""
    global_rank: int
    """Rank of this process in the job."""
    members: str
    """The ranks of the job that are in the group, in the group's order, as in "2,5,7"."""
    gone: str
    """The ranks of the group that this rank knows to have died or left, as in "1,3"; over several hosts, of its own."""
    world_size: int
    """Ranks in the group."""
    hosts: int
    """How many hosts the group is on."""
    host: int
    """The number of this rank's host among them."""
    rails: int
    """How many ranks of each host move data to other hosts; 0 on one host."""
    engine: str
    """What moves bytes between the hosts, "gloo" by default; "none" on one host."""
    order: str
    """In which order sums are added: "rank" (always on one host), or "host": each host's, and then the hosts'."""
    partials: str
    """Are sums of bfloat16 rounded on each host ("narrow"), or once ("wide", always on one host)?"""
    timeout_s: float
    """Time limit of each operation, in seconds."""
    segment: str
    """Kind of the memory that all ranks share."""
    segment_bytes: int
    """Size of the segment in bytes."""
    arena: str
    """Kind of the memory for large tensors, or "not yet", or "none"."""
    arena_bytes: int
    """Size of the arena in bytes; 0 as long as there is none."""
    heap_bytes: int
    """Memory of this process for tensors that ranks can share, in bytes; 0 before the first one."""
    heap_used_bytes: int
    """How much of it tensors have now, in bytes."""
    pushed: int
    """How many all_reduces of this group had their tensors in such memory on all ranks, and were reduced there."""
    threads: int
    """Reduction threads of this process."""
    threads_from: str
    """Why the process has that number of threads."""
    isa: str
    """Instruction set of the reductions: base, avx2, avx512 or another one."""
    cma: bool
    """May the kernel copy large blocks from process to process?"""


class InternalDescription(Description, total=False):
    """What describe(internals=True) returns: more keys, which may change with any version.

    ``tuning.<key>`` (str) is one more family: the values of ``SHMCOLL_TUNING`` that hold here.
    """

    engine_calls: int
    """Calls of this rank's engines between hosts so far, without those for messages."""
    engine_bytes: int
    """Bytes that it has handed to them to be sent."""
    id: str
    """A text that is the same on all ranks of the group, and that no other group has."""
    unsure: str
    """The ranks of a host whose connection to this host has ended: they may have died."""
    cell_bytes: int
    """Size of a cell of the arena."""
    depth: int
    """Exchange slots of the arena for each pair of ranks."""
    bcast_slot_bytes: int
    """Size of a slot for broadcasts."""
    heap_blocks: int
    """Tensors' blocks in the heap of this process."""
    heaps_attached: int
    """Heaps of other processes that this one has mapped."""
    spins: int
    """How often a call looks before it sleeps."""
    spins_engine: int
    """How often the progress thread looks before it sleeps."""
    migrations: int
    """How often a thread moved to another CPU, away from another rank."""
    threads_jobs: int
    """Jobs handed to the reduction threads so far."""
    threads_of_all: int
    """Reduction threads that every rank has at least."""
    life_words: bool
    """Does the kernel mark the death of a process in shared memory?"""
    single_copies: int
    """Blocks that the kernel has copied."""
    biased: bool
    """Does one thread run operations without a locked instruction?"""
    biased_messages: bool
    """Does one thread take the lock of messages without a locked instruction?"""


class GpuDescription(TypedDict, total=False):
    """The keys after ``cuda:<index>.``; ``path.<operation>.<bytes>`` (str) is a family here too."""

    route: str
    """"slabs" (memory of the GPUs that the ranks share) or "host" (host memory)."""
    memory: str
    """Kind of that GPU memory."""
    reason: str
    """Why the route is not the first choice; "" if it is."""
    half_bytes: int
    """Size of one of the two buffers of a rank."""
    gpu: str
    """Name of the GPU."""
    mps: bool
    """Does an MPS server run the kernels?"""
    gpus: int
    """How many GPUs the ranks of the group use."""
    gpu_ranks: str
    """Ranks that share a GPU; "0-1; 2-3" is two GPUs of two ranks each."""
    operations: int
    """Collectives so far."""
    relayed: int
    """Operations that went through host memory, without a kernel."""
    relay_backoffs: int
    """How often kernels took over for a while, because they were faster."""
    relay_bytes: int
    """The largest operation that goes through host memory."""
    relay_reason: str
    """Why no operation goes that way; "" if some do."""
    messages: int
    """Sends and receives so far."""
    relayed_messages: int
    """Messages that went through host memory."""
    captured: int
    """Operations in CUDA graphs."""
    nvtx: bool
    """Was the library built with NVTX ranges?"""


Value = str | int | float | bool

USER_KEYS = get_type_hints(Description)
ALL_KEYS = get_type_hints(InternalDescription)
GPU_KEYS = get_type_hints(GpuDescription)


def _typed(kind: type, text: str) -> Value:
    if kind is bool:
        return text in ("yes", "on")
    value: Value = kind(text)
    return value


def parse(lines: list[str], internals: bool) -> dict[str, Value]:
    """The lines ``key=value`` of the library as typed values, without internals if those are not wanted."""
    found: dict[str, Value] = {}
    for key, text in (line.split("=", 1) for line in lines):
        if key.startswith("cuda"):
            found[key] = _typed(GPU_KEYS.get(key.partition(".")[2], str), text)
        elif internals or key in USER_KEYS or key.startswith(("path.", "host.")):
            found[key] = _typed(ALL_KEYS.get(key, str), text)
    return found
