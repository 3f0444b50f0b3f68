# SPDX-License-Identifier: BSD-3-Clause
"""shmcoll.describe(): what a group uses, for people and programs that ask."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shmcoll
from ranks import Rank, run


def test_it_says_what_a_group_uses() -> None:
    def body(rank: Rank) -> tuple[dict[str, str], dict[str, str]]:
        rank.init()
        pair = dist.new_group([0, 1], pg_options=shmcoll.Options(tuning="depth=4"))
        dist.all_reduce(torch.ones(1 << 20))
        return shmcoll.describe(), shmcoll.describe(pair) if rank.rank < 2 else {}

    for r, (world, pair) in enumerate(run(3, body)):
        assert world["rank"] == str(r) and world["world_size"] == "3"
        assert int(world["segment_bytes"]) > 0 and int(world["arena_bytes"]) > 0
        assert world["isa"] and world["tuning.depth"] != "4"
        assert not any(key.startswith("cuda") for key in world), world
        if r < 2:
            assert pair["world_size"] == "2" and pair["tuning.depth"] == "4"
            assert pair["name"] != world["name"]


def test_every_key_is_documented_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/describe.md").read_text()
    page, _, _ = page.partition("## Paths")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    keys = re.findall(r"`(\w+)`", " ".join(rows))

    def body(rank: Rank) -> list[str]:
        rank.init()
        return [
            k for k in shmcoll.describe(dist.group.WORLD) if not k.startswith(("tuning.", "path."))
        ]

    assert sorted(keys) == sorted(run(1, body)[0])


def test_a_wrong_argument_is_a_type_error_that_names_both_types() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        with pytest.raises(TypeError, match=r"group must be a .*ProcessGroup, got int \(3\)"):
            shmcoll.describe(3)
        with pytest.raises(TypeError, match=r"must be a datetime.timedelta, got int \(10\)"):
            shmcoll.monitored_barrier(timeout=10)

    run(1, body)


def test_who_is_not_in_the_group_or_asks_another_backends_is_told() -> None:
    def body(rank: Rank) -> list[str]:
        rank.init()
        alone = dist.new_group([0])
        gloo = dist.new_group(backend="gloo")
        return [why(alone), why(gloo), why(None)]

    def why(group: Any) -> str:
        try:
            return str(len(shmcoll.describe(group)) > 0)
        except ValueError as error:
            return str(error)

    first, second = run(2, body)
    assert first[0] == "True" and second[0] == "shmcoll: this process is not in that group"
    for _, gloo, default in (first, second):
        assert gloo == "shmcoll: the group's backend is gloo; nothing of shmcoll is in it"
        assert default == "True"


def test_of_a_mixed_group_it_finds_its_part() -> None:
    def body(rank: Rank) -> str:
        rank.init(backend="cpu:gloo,cuda:shmcoll")
        return shmcoll.describe()["world_size"]

    assert run(2, body) == ["2"] * 2


def test_it_looks_through_torchs_debugging_wrapper() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        return shmcoll.describe()["world_size"]

    assert run(2, body, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) == ["2"] * 2


def test_without_any_group_it_says_so() -> None:
    with pytest.raises(ValueError, match="not been initialized"):
        shmcoll.describe()
