# SPDX-License-Identifier: BSD-3-Clause
"""torch/testing/_internal/distributed/distributed_test.py over shmcoll."""

from __future__ import annotations

import collections
import re

import pytest

import lists
import ranks
import suite


@pytest.mark.timeout(suite.LIMIT_S + 600)  # the second part is for the stacks of a hang
def test_suite(world: int, name: str, backend: str, record_property: pytest.RecordProperty) -> None:
    gate = suite.gate(suite.runnable(world)[name], world)
    excluded = lists.exclusion(name) if backend == "shmcoll" else None
    record_property("excluded" if excluded else "passed", (world, 1))
    if excluded:
        fails_as_listed(gate, name, excluded)
    else:
        suite.run(gate, name, backend)
    assert ranks.leftovers() == []


def fails_as_listed(gate: suite.Gate, name: str, excluded: lists.Exclusion) -> None:
    reason = excluded.reason()
    assert reason is not None, f"{name}: torch no longer says why it should fail"
    try:
        suite.run(gate, name)
    except ranks.Failed as failed:
        if not re.search(reason.says, str(failed)):
            raise
    else:
        pytest.fail(f"{name} passes now: take it out of tests/torch_suite/lists.py")


def test_every_skip_has_a_listed_reason(world: int, record_property: pytest.RecordProperty) -> None:
    skipped = suite.skipped(world)
    record_property("skipped", (world, len(skipped)))
    bad = {name: texts for name, texts in skipped.items() if not lists.may_skip(texts)}
    assert not bad


def test_the_gates_let_enough_through(world: int) -> None:
    assert len(suite.runnable(world)) >= lists.AT_LEAST.get(world, 110)


def test_every_listed_test_exists(world: int) -> None:
    names = [name for one in lists.EXCLUDED for name in one.tests]
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    everywhere = {name for one in lists.EXCLUDED if one.everywhere for name in one.tests}
    unknown = {*everywhere, *lists.ASKS_FOR_GLOO} - suite.refusals(world).keys()
    assert not unknown and not repeated


@pytest.mark.parametrize("one", lists.EXCLUDED, ids=lambda one: one.tests[0])
def test_torch_still_has_what_excludes_them(one: lists.Exclusion) -> None:
    said = [f"{reason.file} no longer says so: {reason.why}" for reason in one.reasons]
    assert one.reason() or not one.everywhere, "; ".join(said)
