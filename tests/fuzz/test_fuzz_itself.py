# SPDX-License-Identifier: BSD-3-Clause
"""Would the differential test see a fault? Faults are planted in torch.distributed's calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
import torch.distributed as dist

import player
import pool
import ranks
import script
from hunt import hunt
from program import HOWS, KINDS, End, Program, Step
from strategies import NAMES, OPTIONS, SETTINGS, programs
from values import LAYOUTS, Cell, content

pytestmark = pytest.mark.timeout(0)


@pytest.fixture(autouse=True)
def _fresh_ranks() -> Iterator[None]:
    """Ranks that are forked after the patch, and gone before the next test."""
    pool.end_all()
    yield
    pool.end_all()


def plant(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    """wrong: takes the right call and its arguments."""
    right = getattr(dist, name)
    monkeypatch.setattr(dist, name, lambda *args, **named: wrong(right, *args, **named))


@pytest.mark.long
def test_idle_steps_go_when_hypothesis_has_no_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, "broadcast", lambda right, *args, **named: None)
    monkeypatch.setattr("hunt.SHRINK_S", 0.0)
    with pytest.raises(pool.Failure, match="was the first to fail, 1 did"):
        hunt(programs(("broadcast", "barrier")), 200, seed=2, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert [step.kind for step in script.load(path).steps] == ["broadcast"]


@pytest.mark.long
def test_a_wrong_element_is_found_made_small_and_runs_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(right: Callable[..., Any], tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        work = right(tensor, *args, **named)
        if work is None and tensor.numel() >= 100 and dist.get_rank() == 1:
            tensor.view(-1)[99:100].copy_(tensor.view(-1)[98:99])
        return work

    plant(monkeypatch, "broadcast", wrong)
    monkeypatch.setattr("hunt.SHRINK_S", 3600.0)  # a busy machine makes it no larger
    with pytest.raises(pool.Failure, match="elements, first 99") as failure:
        hunt(programs(("broadcast", "barrier")), 200, seed=1, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.read_text() in str(failure.value)
    program = script.load(path)
    (step,) = program.steps
    assert program.world == 2 and step.kind == "broadcast" and step.shapes == ((100,),)
    assert step == Step("broadcast", dtype=step.dtype, shapes=((100,),), root=step.root)

    code = path.read_text().replace("parents[2]", f"parents[0] and Path({str(script.TESTS)!r})")
    path.write_text(code)
    alone = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert alone.returncode == 0, "nothing is wrong in that process" + alone.stderr


def test_a_failing_script_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "all_reduce", lambda right, *args, **named: None)
    assert script.run(Program(2, steps=(Step("all_reduce", shapes=((9,),)),))) == 1


def test_a_hang_is_a_failure_with_the_stacks_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(right: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return right(*args, **named) if dist.get_rank() else time.sleep(3600)

    plant(monkeypatch, "barrier", never)
    monkeypatch.setattr(ranks, "native_stacks", lambda pid: "")  # the debugger takes long
    with pytest.raises(pool.Failure, match="a hang") as failure:
        pool.check(Program(2, steps=(Step("barrier"),)), limit=3)
    assert len(re.findall(r"line \d+ in never", str(failure.value))) == 2


def test_a_rank_that_dies_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "barrier", lambda right, *args, **named: os._exit(3))
    with pytest.raises(pool.Failure, match="has ended"):
        pool.check(Program(2, steps=(Step("barrier"),)))


def check_with(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any], *steps: Step) -> None:
    """Of all-reduces."""
    plant(monkeypatch, "all_reduce", wrong)
    pool.check(Program(2, steps=steps))


def test_a_write_beside_the_tensor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right: Callable[..., Any], tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        tensor.as_strided((1,), (1,), tensor.storage_offset() + 1).fill_(1)
        return right(tensor, *args, **named)

    with pytest.raises(pool.Failure, match="next to the tensor"):
        check_with(monkeypatch, wrong, Step("all_reduce", shapes=((9,),), layouts=("gaps",)))


def test_a_work_that_ends_too_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Early:
        def wait(self) -> None: ...

    def wrong(right: Callable[..., Any], tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        global _kept
        _kept = right(tensor, *args, **named)
        return Early()

    late = Step("all_reduce", shapes=((9,),), ends=(End("wait"),), delays_ms=(0, 200))
    with pytest.raises(pool.Failure, match="instead of"):
        check_with(monkeypatch, wrong, late, Step("barrier"))


_kept: Any = None


def test_a_barrier_that_does_not_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "barrier", lambda right, *args, **named: None)
    with pytest.raises(pool.Failure, match="before rank 1 came"):
        pool.check(Program(2, steps=(Step("barrier", delays_ms=(0, 300)),)))


def test_an_input_that_is_written_to_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(right: Callable[..., Any], outputs: Any, tensor: torch.Tensor, **named: Any) -> Any:
        work = right(outputs, tensor, **named)
        tensor[-1] = 3
        return work

    plant(monkeypatch, "all_gather", wrong)
    with pytest.raises(pool.Failure, match="an input was written to"):
        pool.check(Program(2, steps=(Step("all_gather", shapes=((9,),)),)))


@pytest.mark.parametrize("what", ["value", "place", "everything"])
def test_a_wrong_sparse_sum_is_seen(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def wrong(right: Callable[..., Any], tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        if what == "everything":
            return None
        work = right(tensor, *args, **named)
        (tensor._values() if what == "value" else tensor._indices())[..., -1] = 3
        return work

    plant(monkeypatch, "all_reduce", wrong)
    step = Step("all_reduce_sparse", form="coalesced", shapes=((300,), ()), counts=((9, 20),))
    with pytest.raises(pool.Failure, match="instead of"):
        pool.check(Program(2, steps=(step,)))


def test_the_smallest_failing_bits_of_nan_are_told_apart_when_bytes_are_moved() -> None:
    for dtype in (torch.float32, torch.complex128):
        values = torch.zeros(3, dtype=dtype)
        values[1] = float("nan")
        other = values.clone()
        other.view(torch.uint8)[dtype.itemsize] ^= 1  # of the NaN's low bits
        cell = Cell.make((3,), "plain", dtype, values)
        assert cell.complain(other, exact=True) and not cell.complain(other, exact=False)
        assert not cell.complain(values, exact=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_keeps_shape_and_values(layout: str) -> None:
    for shape in ((), (1,), (7,), (0,), (4, 3), (2, 3, 4)):
        count = torch.Size(shape).numel()
        values = content((1, 2), torch.float64, count)
        cell = Cell.make(shape, layout, torch.float64, values)
        assert cell.tensor.shape == shape and not cell.complain(values, exact=True)


@pytest.mark.long
def test_programs_have_everything_in_them() -> None:
    """Else the lane could pass without its work."""
    seen: Counter[object] = Counter()

    @hypothesis.settings(
        max_examples=10,  # after them come some that are much alike
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs())
    def look(program: Program) -> None:
        seen.update((program.world, program.settings, len(set(program.threads)) > 1))
        seen.update([program.options] if program.options else [])
        for step in program.steps:
            seen.update([(step.kind, step.form), step.op, step.dtype, *step.layouts])
            seen.update([end.how for end in step.ends] + [step.repeat > 1])

    for seed in range(20):
        hypothesis.seed(seed)(look)()
    wanted = [
        2,
        3,
        4,
        5,
        *SETTINGS,
        *OPTIONS[1:],
        *HOWS,
        *LAYOUTS,
        "sync",
        "premul_sum",
        "bits8",
        "qint8",
    ]
    wanted += [(name, form) for name in NAMES for form in KINDS[name].forms]
    assert [item for item in wanted if seen[item] < 3] == []


def test_a_program_is_the_text_that_makes_it() -> None:
    program = Program(3, ((0, 2),), seed=4, steps=(Step("gather", 1, ends=(End("wait", 2),)),))
    names = {"Program": Program, "Step": Step, "End": End}
    assert eval(program.text(), names) == eval(repr(program), names) == program
    assert player.TIMEOUT_S < pool.LIMIT_S
