# SPDX-License-Identifier: BSD-3-Clause
"""The operations as calls of mpi4py, on torch's buffers, and how a rank joins MPI.

Each function returns a call for the i-th iteration. MPI gets addresses of torch's memory with a count
and a type, as mpi4py does with every array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mpi4py
import torch

from shmcoll.bench.run.mpirun import MPIS
from shmcoll.bench.plan import Unsupported

# One thread calls MPI; what more threads cost is not what is asked for. Must be said before MPI
# starts, which is when it is imported.
mpi4py.rc.thread_level = "single"
from mpi4py import MPI  # noqa: E402

if TYPE_CHECKING:
    from shmcoll.bench.run.calls import Context

Run = Callable[[int], Any]

_TYPES = {
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "int8": MPI.INT8_T,
    "uint8": MPI.UINT8_T,
    "int16": MPI.INT16_T,
    "uint16": MPI.UINT16_T,
    "int32": MPI.INT32_T,
    "uint32": MPI.UINT32_T,
    "int64": MPI.INT64_T,
    "uint64": MPI.UINT64_T,
    "complex64": MPI.C_FLOAT_COMPLEX,
    "complex128": MPI.C_DOUBLE_COMPLEX,
    "bool": MPI.C_BOOL,
}


def join(job: dict[str, Any], groups: list[range], mine: int) -> dict[str, Any]:
    """Importing MPI has joined. Returns the communicator and ``async_op``."""
    vendor, _ = MPI.get_vendor()
    wanted = MPIS[job["backend"]].vendor
    if vendor != wanted:
        raise LookupError(f"this mpi4py uses {vendor}, not {wanted}")
    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (job["rank"], job["world_size"]):
        raise LookupError(f"{wanted} has started {world.Get_size()} ranks, not those it was to")
    comm = world if len(groups) == 1 else world.Split(mine, job["rank"])
    places = {rank: place for place, rank in enumerate(groups[mine])}  # in the communicator
    return {"comm": comm, "places": places, "async_op": job["mode"] in ("throughput", "overlap")}


def leave() -> None:
    MPI.Finalize()


def all_reduce(context: Context, data: torch.Tensor) -> Run:
    call, everything, op = _call(context, "allreduce"), _whole(data), _sum(data)
    return lambda i: call(MPI.IN_PLACE, everything, op)


def broadcast(context: Context, data: torch.Tensor) -> Run:
    call, everything, size = _call(context, "bcast"), _whole(data), context.world_size
    return lambda i: call(everything, i % size)


def reduce(context: Context, data: torch.Tensor) -> Run:
    call, everything, op = _call(context, "reduce"), _whole(data), _sum(data)
    rank, size = context.rank, context.world_size

    def run(i: int) -> Any:
        if rank == i % size:
            return call(MPI.IN_PLACE, everything, op, rank)
        return call(everything, None, op, i % size)

    return run


def all_gather(context: Context, mine: torch.Tensor, everyone: torch.Tensor) -> Run:
    call, result = _call(context, "allgather"), _blocks(everyone, context)
    given = MPI.IN_PLACE if _inside(mine, everyone) else _whole(mine)
    return lambda i: call(given, result)


def reduce_scatter(context: Context, mine: torch.Tensor, everyone: torch.Tensor) -> Run:
    if _inside(mine, everyone):
        raise Unsupported("MPI puts the result in place into the first block, not the rank's own")
    call, op = _call(context, "reduce_scatter_block"), _sum(mine)
    given, result = _blocks(everyone, context), _whole(mine)
    return lambda i: call(given, result, op)


def all_to_all(context: Context, got: torch.Tensor, given: torch.Tensor) -> Run:
    call = _call(context, "alltoall")
    theirs, ours = _blocks(got, context), _blocks(given, context)
    return lambda i: call(ours, theirs)


def gather(context: Context, mine: torch.Tensor, everyone: torch.Tensor) -> Run:
    call, given, result = _call(context, "gather"), _whole(mine), _blocks(everyone, context)
    rank, size = context.rank, context.world_size
    return lambda i: call(given, result if rank == i % size else None, i % size)


def scatter(context: Context, mine: torch.Tensor, everyone: torch.Tensor) -> Run:
    call, result, given = _call(context, "scatter"), _whole(mine), _blocks(everyone, context)
    rank, size = context.rank, context.world_size
    return lambda i: call(given if rank == i % size else None, result, i % size)


def sendrecv(
    context: Context, given: torch.Tensor, following: int, got: torch.Tensor, before: int
) -> Run:
    comm, ours, theirs = context.how["comm"], _whole(given), _whole(got)
    if not context.how["async_op"]:
        return lambda i: comm.Sendrecv(ours, following, 0, theirs, before, 0)

    def run(i: int) -> _Requests:
        return _Requests([comm.Irecv(theirs, before), comm.Isend(ours, following)])

    return run


def ping_pong(context: Context, given: torch.Tensor, got: torch.Tensor, peer: int) -> Run:
    comm, ours, theirs = context.how["comm"], _whole(given), _whole(got)
    other = context.how["places"][context.members[peer]]

    def begin(i: int) -> None:
        comm.Send(ours, other)
        comm.Recv(theirs, other)

    def answer(i: int) -> None:
        comm.Recv(theirs, other)
        comm.Send(theirs, other)

    return begin if context.rank < peer else answer


def barrier(context: Context) -> Run:
    call = _call(context, "barrier")
    return lambda i: call()


class _Requests(list[Any]):
    """Several requests that are waited for as one."""

    def wait(self) -> None:
        MPI.Request.Waitall(self)


def _call(context: Context, name: str) -> Callable[..., Any]:
    """Returns a method of the communicator. In mpi4py, methods that take buffers begin with a capital."""
    name = f"I{name}" if context.how["async_op"] else name.capitalize()
    call: Callable[..., Any] = getattr(context.how["comm"], name)
    return call


def _type(tensor: torch.Tensor) -> MPI.Datatype:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise Unsupported(f"MPI has no type for {name}")
    return _TYPES[name]


def _memory(tensor: torch.Tensor) -> MPI.buffer:
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _whole(tensor: torch.Tensor) -> list[Any]:
    return [_memory(tensor), tensor.numel(), _type(tensor)]


def _blocks(tensor: torch.Tensor, context: Context) -> list[Any]:
    """A block for each rank."""
    return [_memory(tensor), tensor.numel() // context.world_size, _type(tensor)]


def _sum(tensor: torch.Tensor) -> MPI.Op:
    """Returns the operation for a sum. For truth values it is "or", as in torch."""
    return MPI.LOR if tensor.dtype == torch.bool else MPI.SUM


def _inside(mine: torch.Tensor, everyone: torch.Tensor) -> bool:
    begin = everyone.data_ptr()
    return begin <= mine.data_ptr() < begin + everyone.numel() * everyone.element_size()
