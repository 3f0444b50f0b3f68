# SPDX-License-Identifier: BSD-3-Clause
"""The operations of the glue in Python: checks, descriptors. No algorithm is here."""

from __future__ import annotations

import ctypes
import datetime
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from shmcoll._python_glue import core
from shmcoll._python_glue.calls import Calls, SectionGuard, Tensors, describe
from shmcoll._python_glue.tensors import SparseTensor, check_outputs_apart, common_dtype, cpp_name
from shmcoll._python_glue.work import last_text, raise_status

_STRIDED = torch.strided
_Tensor = torch.Tensor


class _Given:
    """The options of a call that names them one by one."""

    asyncOp = True

    def __init__(self, op: Any = None, root: int = 0, timeout: Any = None) -> None:
        self.reduceOp = dist.ReduceOp.SUM if op is None else op
        self.rootRank = root
        self.timeout = timeout


def _check_one(tensors: Tensors, op: str, what: str = "tensor") -> None:
    if len(tensors) != 1:
        raise ValueError(f"shmcoll: {op} takes one {what}, not {len(tensors)}")


def _check_pairs(outputs: Tensors, inputs: Tensors, op: str) -> None:
    if len(outputs) != len(inputs) or not inputs:
        raise ValueError(f"shmcoll: {op}: {len(inputs)} inputs, but {len(outputs)} outputs")


def _is_even(tensors: Tensors) -> bool:
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def _options_or(options: Any, timeout: Any, op: Any = None) -> Any:
    """The options of a call; it may give a reduction or a time-out in their place."""
    if hasattr(options, "asyncOp"):
        return options
    if isinstance(options, datetime.timedelta):
        return _Given(op, timeout=options)
    return _Given(op if options is None else options, timeout=timeout)


def _in_place(tensors: Any, options: Any, timeout: Any, op: Any) -> Any:
    if type(options) is c10d.AllreduceOptions and type(tensors) is list:
        return tensors, options
    tensors = [tensors] if isinstance(tensors, _Tensor) else tensors
    return tensors, _options_or(options, timeout, op)


class Operations(Calls):
    """The methods of a process group that are operations."""

    _rank: int
    _size: int
    _options: Any

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Any:
        tensors, opts = _in_place(tensors, opts, timeout, op)
        _check_one(tensors, "all_reduce")
        if tensors[0].layout is not _STRIDED:
            return self.allreduce_sparse(tensors, opts)
        return self._reduce_all(tensors, opts)

    def _reduce_all(self, tensors: Tensors, opts: Any) -> Any:
        dtype = common_dtype(tensors, "all_reduce")
        operation = describe(
            "all_reduce", core.ALL_REDUCE, dtype, tensors, tensors, opts.timeout, opts.reduceOp
        )
        return self._run(operation, opts, (), tensors)

    def allreduce_sparse(self, tensors: Any, opts: Any) -> Any:
        _check_one(tensors, "all_reduce")
        sparse = SparseTensor(tensors[0])
        operation = describe(
            "all_reduce",
            core.ALL_REDUCE_SPARSE,
            tensors[0].dtype,
            (),
            (),
            opts.timeout,
            opts.reduceOp,
        )
        operation.sparse = ctypes.addressof(sparse.view)
        return self._run(operation, opts, (), tensors, sparse.store_sum)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        with SectionGuard(self):
            return self._reduce_all(tensors, opts or _Given())

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None, root: int = 0) -> Any:
        if isinstance(tensors, _Tensor):
            tensors, opts = [tensors], _Given(None, root if opts is None else opts, timeout)
        opts = opts or _Given()
        _check_one(tensors, "broadcast")
        operation = describe(
            "broadcast",
            core.BROADCAST,
            tensors[0].dtype,
            tensors,
            tensors,
            opts.timeout,
            None,
            opts.rootRank,
        )
        return self._run(operation, opts, (), tensors)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None, root: int = 0
    ) -> Any:
        if isinstance(tensors, _Tensor):
            tensors, opts = [tensors], _Given(op, root if opts is None else opts, timeout)
        opts = opts or _Given()
        _check_one(tensors, "reduce")
        operation = describe(
            "reduce",
            core.REDUCE,
            tensors[0].dtype,
            tensors,
            tensors,
            opts.timeout,
            opts.reduceOp,
            opts.rootRank,
        )
        return self._run(operation, opts, (), tensors)

    # ---- all_gather ----

    def _describe_gather_all(
        self, outputs: Tensors, inputs: Tensors, opts: Any, kind: int = core.ALL_GATHER
    ) -> Any:
        dtype, given = common_dtype(outputs, "all_gather"), common_dtype(inputs, "all_gather")
        if dtype is not given:
            raise TypeError(
                f"shmcoll: all_gather: the input is {cpp_name(given)}, the output {cpp_name(dtype)}"
            )
        return describe("all_gather", kind, dtype, inputs, outputs, opts.timeout)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        if isinstance(inputs, _Tensor):
            outputs, inputs, opts = [outputs], [inputs], _Given(timeout=opts or timeout)
        opts = opts or _Given()
        if len(inputs) != 1 or len(outputs) != 1:
            raise ValueError(
                "shmcoll: all_gather takes one input and one list of outputs, not "
                f"{len(inputs)} and {len(outputs)}"
            )
        self._check_count(outputs[0], "all_gather")
        kind = core.ALL_GATHER if _is_even(outputs[0]) else core.ALL_GATHER_UNEVEN
        operation = self._describe_gather_all(outputs[0], inputs, opts, kind)
        return self._run(operation, opts, inputs, outputs[0])

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or _Given()
        if len(outputs) != self._size:
            raise ValueError(
                f"shmcoll: all_gather_coalesced: {len(outputs)} lists of outputs for {self._size} ranks"
            )
        everything: list[torch.Tensor] = []
        for group in outputs:
            if len(group) != len(inputs):
                raise ValueError(
                    f"shmcoll: all_gather_coalesced: {len(inputs)} inputs, but a list of {len(group)} "
                    "outputs"
                )
            for index, (output, one) in enumerate(zip(group, inputs)):
                if output.numel() != one.numel():
                    raise ValueError(
                        f"shmcoll: all_gather_coalesced: input {index} has {one.numel()} elements, an "
                        f"output for it {output.numel()}"
                    )
            everything += group
        return self._run(
            self._describe_gather_all(everything, inputs, opts), opts, inputs, everything
        )

    def _allgather_base(self, output: Any, one: Any, opts: Any = None, timeout: Any = None) -> Any:
        opts = _options_or(opts, timeout)
        operation = self._describe_gather_all([output], [one], opts)
        return self._run(operation, opts, [one], [output])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts, op = opts or _Given(), "all_gather_into_tensor_coalesced"
        with SectionGuard(self):
            _check_pairs(outputs, inputs, op)
            check_outputs_apart(outputs, op)
        return self._run_all(
            lambda output, one, options: self._describe_gather_all([output], one, options),
            opts,
            outputs,
            inputs,
        )

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    # ---- gather and scatter ----

    def _check_count(self, tensors: Tensors, op: str) -> None:
        if len(tensors) != self._size:
            raise ValueError(
                f"shmcoll: {op}: a list of {len(tensors)} tensors for {self._size} ranks"
            )

    def _global_rank(self, rank: int) -> int:
        ranks = self._options.global_ranks_in_group
        return int(ranks[rank]) if rank < len(ranks) else rank

    def _roots_list(self, lists: Any, one: torch.Tensor, root: int, op: str) -> Tensors:
        """The list of gather or scatter: the root's; the others have none."""
        is_root = root == self._rank
        if len(lists) != int(is_root) and (is_root or lists[0]):
            raise ValueError(
                f"shmcoll: {op}: a list of tensors is for the root only; rank "
                f"{self._global_rank(self._rank)} has {len(lists)}, the root is rank "
                f"{self._global_rank(root)}"
            )
        if not is_root:
            return ()
        found: Tensors = lists[0]
        self._check_count(found, op)
        for tensor in found:
            if tensor.numel() != one.numel():
                raise ValueError(
                    f"shmcoll: {op}: a tensor of {tensor.numel()} elements in the list, but "
                    f"{one.numel()} elements on the other side"
                )
        dtype = common_dtype(found, op)
        if dtype is not one.dtype:
            raise TypeError(
                f"shmcoll: {op}: the list is of {cpp_name(dtype)}, the tensor on the other side "
                f"{cpp_name(one.dtype)}"
            )
        return found

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: int = 0
    ) -> Any:
        if isinstance(inputs, _Tensor):
            opts = _Given(None, root if opts is None else opts, timeout)
            outputs, inputs = [outputs] if outputs else [], [inputs]
        opts = opts or _Given()
        if len(inputs) != 1:
            raise ValueError(f"shmcoll: gather takes one input, not {len(inputs)}")
        found = self._roots_list(outputs, inputs[0], opts.rootRank, "gather")
        operation = describe(
            "gather",
            core.GATHER,
            inputs[0].dtype,
            inputs,
            found,
            opts.timeout,
            None,
            opts.rootRank,
        )
        return self._run(operation, opts, inputs, found)

    def gather_single(self, output: torch.Tensor, one: torch.Tensor, opts: Any = None) -> Any:
        """On a rank that is not the root, torch passes an empty tensor as the output."""
        opts = opts or _Given()
        found: Tensors = [output] if opts.rootRank == self._rank else []
        if found and output.dtype is not one.dtype:
            raise TypeError(
                f"shmcoll: gather_single: the input is {cpp_name(one.dtype)}, the output "
                f"{cpp_name(output.dtype)}"
            )
        operation = describe(
            "gather", core.GATHER, one.dtype, [one], found, opts.timeout, None, opts.rootRank
        )
        return self._run(operation, opts, [one], found)

    gather_into_tensor = gather_single

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, root: int = 0
    ) -> Any:
        if isinstance(outputs, _Tensor):
            opts = _Given(None, root if opts is None else opts, timeout)
            outputs, inputs = [outputs], [inputs] if inputs else []
        opts = opts or _Given()
        _check_one(outputs, "scatter", "output")
        found = self._roots_list(inputs, outputs[0], opts.rootRank, "scatter")
        operation = describe(
            "scatter",
            core.SCATTER,
            outputs[0].dtype,
            found,
            outputs,
            opts.timeout,
            None,
            opts.rootRank,
        )
        return self._run(operation, opts, found, outputs)

    # ---- reduce_scatter ----

    def _describe_reduce_scatter(
        self, output: torch.Tensor, inputs: Tensors, opts: Any, kind: int = core.REDUCE_SCATTER
    ) -> Any:
        dtype = common_dtype(inputs, "reduce_scatter")
        if dtype is not output.dtype:
            raise TypeError(
                f"shmcoll: reduce_scatter: the input is {cpp_name(dtype)}, the output "
                f"{cpp_name(output.dtype)}"
            )
        return describe(
            "reduce_scatter", kind, dtype, inputs, [output], opts.timeout, opts.reduceOp
        )

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None, op: Any = None
    ) -> Any:
        if isinstance(outputs, _Tensor):
            outputs, inputs = [outputs], [inputs]
            opts = _Given(op if opts is None else opts, timeout=timeout)
        opts = opts or _Given()
        if len(inputs) != 1 or len(outputs) != 1:
            raise ValueError(
                "shmcoll: reduce_scatter takes one list of inputs and one output, not "
                f"{len(inputs)} and {len(outputs)}"
            )
        self._check_count(inputs[0], "reduce_scatter")
        even = _is_even(inputs[0])
        kind = core.REDUCE_SCATTER if even else core.REDUCE_SCATTER_UNEVEN
        operation = self._describe_reduce_scatter(outputs[0], inputs[0], opts, kind)
        return self._run(operation, opts, inputs[0], outputs)

    def _reduce_scatter_base(
        self, output: Any, one: Any, opts: Any = None, timeout: Any = None, op: Any = None
    ) -> Any:
        opts = _options_or(opts, timeout, op)
        operation = self._describe_reduce_scatter(output, [one], opts)
        return self._run(operation, opts, [one], [output])

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts, op = opts or _Given(), "reduce_scatter_tensor_coalesced"
        with SectionGuard(self):
            _check_pairs(outputs, inputs, op)
            check_outputs_apart(outputs, op)
        return self._run_all(self._describe_reduce_scatter, opts, outputs, inputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # ---- all_to_all ----

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or _Given()
        if len(inputs) != self._size or len(outputs) != self._size:
            raise ValueError(
                f"shmcoll: all_to_all: lists of {len(inputs)} inputs and {len(outputs)} outputs for "
                f"{self._size} ranks"
            )
        dtype, found = common_dtype(inputs, "all_to_all"), common_dtype(outputs, "all_to_all")
        if dtype is not found:
            raise TypeError(
                f"shmcoll: all_to_all: the inputs are {cpp_name(dtype)}, the outputs {cpp_name(found)}"
            )
        operation = describe("all_to_all", core.ALL_TO_ALL, dtype, inputs, outputs, opts.timeout)
        return self._run(operation, opts, inputs, outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        one: torch.Tensor,
        output_splits: Any,
        input_splits: Any,
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        inputs = self._rows_of(one, input_splits, "input")
        outputs = self._rows_of(output, output_splits, "output")
        return self.alltoall(outputs, inputs, _options_or(opts, timeout))

    all_to_all_single = alltoall_base

    def _rows_of(self, tensor: torch.Tensor, splits: Any, which: str) -> Tensors:
        """The rows of dimension 0 that belong to each rank; without splits, equally many."""
        op = "all_to_all_single"
        if tensor.dim() == 0:
            raise ValueError(f"shmcoll: {op}: the {which} has no dimension that could be split")
        length, rows = tensor.size(0), list(splits)
        if not rows:
            if length % self._size:
                raise ValueError(
                    f"shmcoll: {op}: the {which}'s first dimension, {length}, is not a multiple of "
                    f"{self._size} ranks, and there are no split sizes"
                )
            rows = [length // self._size] * self._size
        for count in rows:
            if count < 0:
                raise ValueError(f"shmcoll: {op}: a split size of {count}")
        if len(rows) != self._size or sum(rows) != length:
            raise ValueError(
                f"shmcoll: {op}: {len(rows)} split sizes of {sum(rows)} rows in all; the {which} has "
                f"{length} rows, and there are {self._size} ranks"
            )
        with torch.no_grad():
            return tensor.split_with_sizes(rows, 0)

    # ---- barriers and messages ----

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        opts = _options_or(opts, timeout)
        operation = describe("barrier", core.BARRIER, None, (), (), opts.timeout)
        return self._run(operation, opts, (), ())

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        operation = describe("barrier", core.BARRIER, None, (), (), timeout)
        if timeout is not None and not timeout:
            operation.timeout_ns = 1  # elsewhere no limit of its own; here, as in gloo, no time
        status = core.run(self._comm, operation.pointer)
        if status == core.TIMEOUT:  # first the words for which programs look that expect gloo
            raise dist.DistBackendError(
                f"shmcoll: Rank {self._global_rank(self._rank)} timed out in monitoredBarrier: "
                f"{last_text()}"
            )
        raise_status(status)

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        return self._transfer(core.SEND, tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:
        return self._transfer(core.RECV, tensors, srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._transfer(core.RECV, tensors, core.ANY_SOURCE, tag, True)

    def _transfer(self, kind: int, tensors: Any, *rest: Any) -> Any:
        section = self._sections.current if self._open_sections else None
        if section is None:
            return self._message(kind, tensors, *rest)
        # One that is refused in a section raises at the section's end, and no later one begins.
        if section.error is None:
            try:
                section.works.append(self._message(kind, tensors, *rest))
                return section.works[-1]
            except Exception as error:
                section.error = error
        return None

    def _message(self, kind: int, tensors: Any, peer: int, tag: int, from_any: bool = False) -> Any:
        name = "send" if kind == core.SEND else "recv"
        _check_one(tensors, name)
        if tag < 0:
            raise ValueError(f"shmcoll: {name}: tag {tag}; tags begin at 0")
        if kind == core.RECV and not from_any and peer < 0:
            raise ValueError(f"shmcoll: recv: the peer {peer} is not a rank")
        inputs, outputs = (tensors, ()) if kind == core.SEND else ((), tensors)
        operation = describe(name, kind, tensors[0].dtype, inputs, outputs, None)
        operation.peer = peer
        operation.tag = tag
        return self._start(operation, inputs, outputs)
