# SPDX-License-Identifier: BSD-3-Clause
"""Lets hypothesis write programs until one fails, makes that one small, and keeps it."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

import pool
import script
from program import Program

SHRINK_S = 60.0  # then the smallest one known must do

_SETTINGS = hypothesis.settings(
    database=None,  # tests/fuzz/regressions is what we keep
    deadline=None,
    derandomize=False,
    phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(hypothesis.HealthCheck),
)


class _Enough(BaseException):
    """Not an Exception: hypothesis lets it pass."""


def hunt(
    wanted: st.SearchStrategy[Program],
    count: int,
    seed: int,
    folder: Path = script.REGRESSIONS,
    limit: float = pool.LIMIT_S,
) -> int:
    """Returns how many programs ran. Raises Failure with the smallest failing one as a script,
    which it has written into the folder."""
    ran = 0
    failed: list[tuple[Program, str]] = []
    first = 0
    since = 0.0

    @hypothesis.seed(seed)
    @hypothesis.settings(_SETTINGS, max_examples=count)
    @hypothesis.given(wanted)
    def one(program: Program) -> None:
        nonlocal ran, first, since
        ran += 1
        if failed and time.monotonic() > since + SHRINK_S:
            raise _Enough
        try:
            pool.check(program, limit)
        except pool.Failure as failure:
            if not failed:
                first, since = ran, time.monotonic()
            failed.append((program, str(failure)))
            raise

    try:
        one()
    except (_Enough, pool.Failure, hypothesis.errors.Flaky):
        raise pool.Failure(_keep(failed, first, seed, folder, limit)) from None
    return ran


def _shorten(program: Program, text: str, limit: float) -> tuple[Program, str]:
    """Without the steps that it does not need to fail; hypothesis may have run out of time."""
    for index in reversed(range(len(program.steps))):
        steps = program.steps[:index] + program.steps[index + 1 :]
        less = dataclasses.replace(program, steps=steps)
        try:
            pool.check(less, limit)
        except pool.Failure as failure:
            program, text = less, str(failure)
    return program, text


def _keep(
    failed: list[tuple[Program, str]], first: int, seed: int, folder: Path, limit: float
) -> str:
    smallest = min(failed, key=lambda one: (len(one[0].steps), len(one[0].text())))
    program, text = _shorten(*smallest, limit)
    title = text.splitlines()[0][:80]
    path = folder / script.name_of(program)
    path.write_text(script.text_of(program, "Found by tests/fuzz."))
    return (
        f"{title}\nprogram {first} of seed {seed} was the first to fail, {len(failed)} did until "
        f"it was small. It is in {path}:\n\n{path.read_text()}\n{text}"
    )
