# SPDX-License-Identifier: BSD-3-Clause
"""One call of the glue in Python: its descriptor, and the way to a result."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from shmcoll._python_glue import core
from shmcoll._python_glue.tensors import Views, dtype_of, elements, redop_of, timeout_ns
from shmcoll._python_glue.work import Done, Flight, Group, WorkAll, WorkShm, raise_status

DONE = Done()
_spare: list[Any] = []  # descriptors that no call uses

Tensors = Sequence[torch.Tensor]


def describe(
    op: str,
    kind: int,
    dtype: torch.dtype | None,
    inputs: Tensors,
    outputs: Tensors,
    timeout: Any,
    reduce_op: Any = None,
    root: int = 0,
) -> Any:
    """A descriptor of the operation; it refers to the tensors' memory."""
    try:
        operation = _spare.pop()
    except IndexError:
        operation = core.Operation()
    code = elem_bytes = dtype_number = redop = 0
    factor = 0.0
    if dtype is not None:
        known = dtype_of(dtype)
        code, elem_bytes, dtype_number, _ = known
        if reduce_op is not None:
            redop, factor = redop_of(reduce_op, kind, dtype, known)
    in_at, in_count, in_elements, in_data, operation.keep_input = _view(
        inputs, op, operation.input_at
    )
    if outputs is inputs:
        out_at, out_count = in_at, in_count
    else:
        out_at, out_count, out_elements, out_data, operation.keep_output = _view(
            outputs, op, operation.output_at
        )
        core.pack_output(operation, core.OUTPUT, out_elements, out_data)
    core.pack_operation(
        operation,
        0,
        kind,
        code,
        elem_bytes,
        dtype_number,
        redop,
        root,
        0,
        0,
        factor,
        timeout_ns(timeout),
        in_at,
        in_count,
        out_at,
        out_count,
        0,
        in_elements,
        in_data,
    )
    return operation


def _view(tensors: Tensors, op: str, one_at: int) -> tuple[int, int, int, int, Any]:
    """Where the core finds the tensors, how many; of one that is contiguous its elements and address."""
    if len(tensors) == 1:
        count = elements(tensors[0], op)
        if count >= 0:
            return one_at, 1, count, tensors[0].data_ptr(), None
    elif not tensors:
        return one_at, 0, 0, 0, None
    views = Views(tensors, op)
    return views.pointer, views.count, 0, 0, views


class _Section:
    """The calls of one thread since _start_coalescing()."""

    def __init__(self) -> None:
        self.works: list[Any] = []
        self.error: Exception | None = None  # of the first message that was refused


class _Sections(threading.local):
    current: _Section | None = None


class Calls:
    """How a group runs what it has described."""

    _group: Group
    _comm: Any

    def __init__(self) -> None:
        self._sections = _Sections()
        self._open_sections = 0  # how many, at least; most calls only look here
        self._counting = threading.Lock()  # guards its changes

    def _run(
        self, operation: Any, options: Any, inputs: Tensors, outputs: Tensors, finish: Any = None
    ) -> Any:
        """Runs a collective, or starts it. `finish`: its last step, if it succeeds."""
        if self._open_sections and self._sections.current:
            return self._run_inside(operation, options, inputs, outputs, finish)
        if options.asyncOp:
            return self._start(operation, inputs, outputs, finish)
        status = core.run(self._comm, operation.pointer)
        if status:
            raise_status(status)
        _spare.append(operation)
        if finish:
            finish()
        return DONE

    def _start(self, operation: Any, inputs: Tensors, outputs: Tensors, finish: Any = None) -> Any:
        flight = Flight((inputs, outputs), outputs, finish)
        return WorkShm(self._group, flight, operation)

    def _run_inside(
        self, operation: Any, options: Any, inputs: Tensors, outputs: Tensors, finish: Any
    ) -> Any:
        section = self._sections.current
        self._sections.current = None
        try:
            work = self._run(operation, options, inputs, outputs, finish)
        except BaseException:
            self._count(-1)  # the section has ended: torch does not call _end_coalescing()
            raise
        self._sections.current = section
        if section and work is not DONE:
            section.works.append(work)
        return work

    def close_section(self) -> _Section | None:
        section = self._sections.current
        if section:
            self._sections.current = None
            self._count(-1)
        return section

    def _count(self, change: int) -> None:
        with self._counting:
            self._open_sections += change

    def _start_coalescing(self, device: Any = None) -> None:
        self.close_section()  # if this thread has left one open
        self._sections.current = _Section()
        self._count(1)

    def _end_coalescing(self, device: Any = None) -> Any:
        section = self.close_section()
        if not section:
            raise dist.DistBackendError(
                "shmcoll: endCoalescing: there is no start, or a call since then has failed"
            )
        if section.error:
            raise section.error
        if len(section.works) > 1:
            return WorkAll(section.works)
        return section.works[0] if section.works else None

    def _run_all(self, describe_one: Any, options: Any, outputs: Tensors, inputs: Tensors) -> Any:
        """Several collectives in one call: the first begins after all have been checked."""
        try:
            descriptors = []
            for output, one in zip(outputs, inputs):
                operation = describe_one(output, [one], options)
                raise_status(core.check(self._comm, operation.pointer))
                descriptors.append((operation, output, one))
        except BaseException:
            self.close_section()
            raise
        work = None
        for operation, output, one in descriptors:
            work = self._run(operation, options, [one], [output])
        return work  # operations end in order


class SectionGuard:
    """Ends the thread's section if a call in it raises: then torch does not call _end_coalescing()."""

    def __init__(self, group: Calls) -> None:
        self._group = group

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._group.close_section()
