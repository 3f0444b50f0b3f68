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
from shmcoll._describe import ALL_KEYS, USER_KEYS, parse


def test_it_says_what_a_group_uses() -> None:
    def body(rank: Rank) -> tuple[Any, Any]:
        rank.init()
        pair = dist.new_group([0, 1], pg_options=shmcoll.Options(tuning="depth=4"))
        dist.all_reduce(torch.ones(1 << 20))
        of_pair = shmcoll.describe(pair, internals=True) if rank.rank < 2 else {}
        return shmcoll.describe(), of_pair

    for r, (world, pair) in enumerate(run(3, body)):
        assert world["version"] == shmcoll.__version__
        assert world["rank"] == r and world["world_size"] == 3
        assert world["segment_bytes"] > 0 and world["arena_bytes"] > 0
        assert world["isa"] and isinstance(world["timeout_s"], float)
        assert not any(key.startswith(("cuda", "tuning")) for key in world), world
        if r < 2:
            assert pair["world_size"] == 2 and pair["tuning.depth"] == "4"
            assert pair["name"] != world["name"] and pair["biased"] in (True, False)


def test_every_key_of_the_library_is_documented_and_typed() -> None:
    def body(rank: Rank) -> tuple[Any, Any]:
        rank.init()
        return shmcoll.describe(), shmcoll.describe(internals=True)

    (users, internals), _ = run(2, body)
    families = ("tuning.", "path.")
    for family in ("path.send.", "path.all_reduce."):
        assert any(key.startswith(family) for key in users), users
    assert {k for k in users if not k.startswith(families)} == set(USER_KEYS)
    assert {k for k in internals if not k.startswith(families)} == set(ALL_KEYS)
    for key, kind in ALL_KEYS.items():
        assert type(internals[key]) is kind, key


def test_families_of_keys_are_told_apart() -> None:
    lines = ["version=1", "path.send.8=eager", "tuning.turn=64k", "biased=yes", "new=x"]
    gpu = ["cuda:0.mps=no", "cuda:0.gpus=2", "cuda:0.path.all_reduce.8=relay, 1 round"]
    users = {
        "version": "1",
        "path.send.8": "eager",
        "cuda:0.mps": False,
        "cuda:0.gpus": 2,
        "cuda:0.path.all_reduce.8": "relay, 1 round",
    }
    assert parse([*lines, *gpu], internals=False) == users
    more = {"tuning.turn": "64k", "biased": True, "new": "x"}
    assert parse([*lines, *gpu], internals=True) == users | more


def test_every_key_is_documented_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/describe.md").read_text()
    page, _, _ = page.partition("## Paths")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    keys = re.findall(r"`(\w+)`", " ".join(rows))

    def body(rank: Rank) -> list[str]:
        rank.init()
        told = shmcoll.describe(dist.group.WORLD, internals=True)
        return [key for key in told if not key.startswith(("tuning.", "path."))]

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
    def body(rank: Rank) -> int:
        rank.init(backend="cpu:gloo,cuda:shmcoll")
        return shmcoll.describe()["world_size"]

    assert run(2, body) == [2] * 2


def test_it_looks_through_torchs_debugging_wrapper() -> None:
    def body(rank: Rank) -> int:
        rank.init()
        return shmcoll.describe()["world_size"]

    assert run(2, body, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) == [2] * 2


def test_without_any_group_it_says_so() -> None:
    with pytest.raises(ValueError, match="not been initialized"):
        shmcoll.describe()
