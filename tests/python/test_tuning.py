# SPDX-License-Identifier: BSD-3-Clause
"""SHMCOLL_TUNING and the option ``tuning`` of a group."""

from __future__ import annotations

import copy
import os
import pickle
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shmcoll
from features import needs_split_group
from ranks import Rank, run, seconds

EXTREMES = (
    "chunk=4k,turn=2k,depth=2,broadcast_slot=2k,broadcast_depth=2,flag_latency=1,"
    "prefetch_up_to=never",
    "inline=0,small_of_two=0,handoff=0,all_reduce.direct_exchange=0,staging.non_temporal_from=0,"
    "output.non_temporal_from=0,prefetch_up_to=0",
    "small_of_two=8k",
)


def tuning_of(group: Any) -> dict[str, str]:
    pairs = shmcoll.describe(group, internals=True).items()
    return {key.removeprefix("tuning."): str(value) for key, value in pairs if "tuning." in key}


def total(group: Any, count: int, rank: int) -> list[float]:
    """The sum over two ranks of count elements, each of the number of the rank and its place."""
    data = torch.arange(count, dtype=torch.float32) % 100 + rank
    dist.all_reduce(data, group=group)
    return list((data - 2 * (torch.arange(count) % 100)).unique().tolist())


def test_the_variable_holds_unless_a_group_has_its_own(tmp_path: Path) -> None:
    file = tmp_path / "some.tuning"
    file.write_text("# written by hand\nturn = 4k\ndepth = 2\nprefetch_up_to = never\n")

    def body(rank: Rank) -> list[tuple[str, ...]]:
        os.environ["SHMCOLL_TUNING"] = str(file)
        rank.init()
        groups = [dist.group.WORLD]
        for options in (None, {"tuning": "turn=8k"}, shmcoll.Options(tuning="depth=4")):
            groups.append(dist.new_group(pg_options=options))
        seen = [tuning_of(group) for group in groups]
        assert all(len(tuning) == 20 for tuning in seen)
        for group in groups:
            assert total(group, 100_000, rank.rank) == [1.0]
        return [(t["turn"], t["depth"], t["prefetch_up_to"]) for t in seen]

    of_file = ("4096", "2", "never")
    for seen in run(2, body):
        assert seen[:2] == [of_file, of_file]
        assert [(turn, depth) for turn, depth, _ in seen[2:]] == [("8192", "3"), ("65536", "4")]
        assert {up_to for *_, up_to in seen[2:]} <= {"512", "32768"}  # by the processor


TWO_PHASES = "inline=0,all_reduce.two_phase_from={}"
SHARED_REDUCES = "inline=0,reduce.two_phase_from={0},reduce.scatter_gather_from={0}"
SUMS: list[tuple[torch.dtype, Any]] = [
    (torch.float32, dist.ReduceOp.SUM),
    (torch.float32, dist._make_nccl_premul_sum(0.3)),
    (torch.float16, dist.ReduceOp.AVG),
    (torch.bfloat16, dist.ReduceOp.SUM),
    (torch.int8, dist.ReduceOp.PRODUCT),
    (torch.float64, dist.ReduceOp.MIN),
    (torch.complex128, dist.ReduceOp.SUM),
]


def two_groups(settings: str) -> list[Any]:
    """Returns two groups: with a limit of 0, and with never."""
    return [
        dist.new_group(pg_options=shmcoll.Options(tuning=settings.format(value)))
        for value in ("0", "never")
    ]


def of_rank(op: Any, rank: int) -> Any:
    """A factor of each rank's own."""
    plain = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN)
    return op if op in plain else dist._make_nccl_premul_sum(0.3 + rank)


def test_sums_in_two_phases_have_the_bits_of_others() -> None:
    """For all layouts, and with a factor of each rank's own."""

    def body(rank: Rank) -> int:
        rank.init()
        groups = two_groups(TWO_PHASES)
        torch.manual_seed(rank.rank)
        different = 0
        for dtype, op in SUMS:
            op = of_rank(op, rank.rank)
            for count in (1, 3, 65, 500):
                given = (torch.randn(2 * count, dtype=torch.float64) * 10).to(dtype)
                for make in (
                    lambda t: [t[:count].clone()],
                    lambda t: [t.clone()[::2]],
                    lambda t: [t[: count // 2].clone(), t[count:].clone()],
                ):
                    one, two = make(given), make(given)
                    for tensors, group in zip((one, two), groups):
                        if len(tensors) == 1:
                            dist.all_reduce(tensors[0], op=op, group=group)
                        else:
                            dist.all_reduce_coalesced(tensors, op=op, group=group)
                    different += sum(not torch.equal(a, b) for a, b in zip(one, two))
                    different += sum(not torch.isfinite(a).all() for a in one)
        return different

    assert run(3, body) == [0] * 3


def test_reduces_that_all_ranks_share_have_the_bits_of_others() -> None:
    """Over small slots and cells, to each root, which alone has a result."""

    def body(rank: Rank) -> int:
        rank.init()
        groups = two_groups(SHARED_REDUCES)
        torch.manual_seed(rank.rank)
        different = 0
        for dtype, op in SUMS:
            op = of_rank(op, rank.rank)
            for root, count in enumerate((3, 500, 20_000, 200_001)):
                given = (torch.randn(2 * count, dtype=torch.float64) * 10).to(dtype)
                for make in (lambda t: t[:count].clone(), lambda t: t.clone()[::2]):
                    results = [make(given), make(given)]
                    for tensor, group in zip(results, groups):
                        dist.reduce(tensor, root, op=op, group=group)
                    different += not torch.equal(*results)
                    if rank.rank != root:
                        different += not torch.equal(results[0], make(given))
        return different

    assert run(4, body) == [0] * 4


@needs_split_group
def test_a_group_that_is_split_off_has_the_tuning_of_its_parent() -> None:
    def body(rank: Rank) -> str:
        rank.init(pg_options=shmcoll.Options(tuning="turn=8k"))
        half = dist.group.WORLD.split_group([1, 0], seconds(20), None, "half")
        return tuning_of(half)["turn"]

    assert run(2, body) == ["8192"] * 2


@pytest.mark.parametrize(
    ("tunings", "said"),
    [
        (["turns=64k"] * 2, 'SHMCOLL_TUNING: "turns" is not a key'),
        (
            ["lockstep_from=1m"] * 2,
            'SHMCOLL_TUNING: "lockstep_from" is retired; use all_reduce.unpipelined_from instead',
        ),
        (["", "chunk=256k"], "rank 1: tuning differs: chunk is 262144, on rank 0 it is auto"),
        (["turn=1"] * 2, '"turn=1" is not a multiple of 128 from 2048 to 131072'),
        (["/nowhere"] * 2, "cannot read /nowhere: No such file or directory"),
        (["depth=9", "depth=2"], '"depth=9" is not a number from 2 to 4'),
        (["", "turn=8k"], "rank 1: tuning differs: turn is 8192, on rank 0 it is 65536"),
        (["turn=8k", ""], "rank 1: tuning differs: turn is 65536, on rank 0 it is 8192"),
        ([os.fsdecode(b"a\xff\xfe")] * 2, 'SHMCOLL_TUNING: "a??" is not key=value'),
        (["\u20ac" * 50] * 2, 'SHMCOLL_TUNING: "\u20ac\u20ac'),  # cut in a character
    ],
)
def test_what_is_wrong_is_an_error_on_all_ranks(tunings: list[str], said: str) -> None:
    def body(rank: Rank) -> str:
        os.environ["SHMCOLL_TUNING"] = tunings[rank.rank]
        with pytest.raises((ValueError, dist.DistBackendError)) as caught:
            rank.init()
        return str(caught.value)

    for text in run(2, body):
        assert said in text.replace("\ufffd", "?")  # as the glue in Python has it


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("turn=1", """the group's option tuning: "turn=1" is not a multiple of 128"""),
        ("@nowhere", "the group's option tuning: cannot read nowhere"),
        (
            "@some.tuning",
            """the group's option tuning, line 2 of some.tuning: "turns" is not a key""",
        ),
    ],
)
def test_an_error_names_the_option_where_no_variable_is_set(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some.tuning").write_text("# one line\nturns = 8k\n")

    def body(rank: Rank) -> str:
        with pytest.raises(ValueError) as caught:
            rank.init(pg_options={"tuning": text})
        return str(caught.value)

    for error in run(2, body):
        assert said in error and "SHMCOLL_TUNING" not in error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 3}, r"pg_options\['timeout'\] must be a datetime.timedelta, got int \(3\)"),
        (
            {"timeout": None},
            r"pg_options\['timeout'\] must be a datetime.timedelta, got NoneType \(None\)",
        ),
        (
            {"tuning": Path("x")},
            r"pg_options\['tuning'\] must be a str, got PosixPath \(PosixPath\('x'\)\)",
        ),
        ({"rails": True}, r"pg_options\['rails'\] must be an int, got bool \(True\)"),
        ("turn=8k", r"pg_options must be a dict or a shmcoll.Options, got str \('turn=8k'\)"),
    ],
)
def test_an_option_of_another_type_is_named(options: object, said: str) -> None:
    def body(rank: Rank) -> None:
        with pytest.raises(TypeError, match=f"^shmcoll: {said}$"):
            rank.init(pg_options=options)

    run(1, body)


def test_a_text_does_not_end_in_its_middle() -> None:
    def body(rank: Rank) -> str:
        with pytest.raises(ValueError) as caught:
            rank.init(pg_options=shmcoll.Options(tuning="turn=8k\0,depth=9"))
        return str(caught.value)

    assert "character 0" in run(1, body)[0]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"tuning": "turns=8k"}, ValueError, 'option tuning: "turns" is not a key'),
        ({"tuning": "depth=9"}, ValueError, '"depth=9" is not a number from 2 to 4'),
        ({"tuning": "@nowhere"}, ValueError, "cannot read nowhere: No such file"),
        ({"timeout": timedelta(seconds=-1)}, ValueError, "a time-out of -1000 ms is negative"),
        ({"hosts": "two"}, ValueError, "hosts='two' is not one of auto|one"),
        ({"engine": "a b"}, ValueError, "engine='a b' is not the name of a backend"),
        ({"rails": 9}, ValueError, "rails=9 is not a number from 0 to 8"),
        ({"order": "any"}, ValueError, "order='any' is not one of host|rank"),
        ({"partials": ""}, ValueError, "partials='' is not one of narrow|wide"),
        ({"rails": "1"}, TypeError, "incompatible constructor arguments"),
        ({"rails": True}, TypeError, "incompatible constructor arguments"),
        ({"rails": 1 << 40}, TypeError, "incompatible constructor arguments"),
        ({"tuning": 3}, TypeError, "incompatible constructor arguments"),
        ({"turning": ""}, TypeError, "incompatible constructor arguments"),
    ],
)
def test_bad_options_are_refused_when_they_are_made(
    given: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=re.escape(said)):
        shmcoll.Options(**given)


def test_options_show_what_they_are() -> None:
    options = shmcoll.Options(timedelta(seconds=5), "depth=4")
    assert repr(options) == (
        "shmcoll.Options(timeout=datetime.timedelta(seconds=5), tuning='depth=4')"
    )
    assert "tuning='', engine='other', rails=2)" in repr(shmcoll.Options(rails=2, engine="other"))


def test_options_keep_their_tuning_when_they_are_copied() -> None:
    options = shmcoll.Options(tuning="turn=8k", order="rank", rails=3)
    for twin in (copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert twin.tuning == "turn=8k" and twin.order == "rank" and twin.rails == 3
        twin.tuning = ""
    assert options.tuning == "turn=8k" and shmcoll.Options().tuning == ""


@pytest.mark.parametrize("tuning", EXTREMES)
def test_no_setting_changes_a_result(tuning: str) -> None:
    def body(rank: Rank) -> None:
        os.environ["SHMCOLL_TUNING"] = tuning
        rank.init()
        for count in (1, 8, 100, 1000, 10_000, 300_001):
            assert total(None, count, rank.rank) == [1.0]
            mine = torch.full((count,), float(rank.rank))
            both = torch.empty(2 * count)
            dist.all_gather_into_tensor(both, mine)
            assert both.view(2, count).unique(dim=1).tolist() == [[0.0], [1.0]]
            part = torch.empty(count)
            dist.reduce_scatter_tensor(part, both + rank.rank)
            assert part.unique().tolist() == [2.0 * rank.rank + 1]
            for root in range(2):
                moved = torch.full((count,), float(rank.rank))
                dist.broadcast(moved, root)
                assert moved.unique().tolist() == [float(root)]
            if rank.rank == 0:
                dist.send(mine + 7, 1)
            else:
                dist.recv(mine, 0)
                assert mine.unique().tolist() == [7.0]

    run(2, body)
