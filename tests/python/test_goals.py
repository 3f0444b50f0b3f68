# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/goals.py: what is met, what is not, and what nobody has measured."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import goals  # noqa: E402
import peers  # noqa: E402
import reduction_threads  # noqa: E402
from scores import parts, report, table  # noqa: E402
from scores.judge import (  # noqa: E402
    FAILED,
    MET,
    NOISY,
    NOT_MEASURED,
    NOT_MET,
    Goal,
    Judgement,
    judge,
)
from scores.rows import Row, mode_of  # noqa: E402

from shmcoll.bench.judge import noise  # noqa: E402
from shmcoll.bench.judge.noise import Activity  # noqa: E402

GOAL = Goal(
    "twice as fast", "part", "ratio", 2.0, ops=("sum",), sizes=(8, 16), rivals=("one", "other")
)


def rows(at_8: float = 3.0, at_16: float = 3.0, **fields: Any) -> list[Row]:
    """Three rounds around these ratios, for both rivals."""
    return [
        Row("ratio", "sum", size, rival=rival, values=(0.9 * mid, mid, 1.5 * mid), **fields)
        for size, mid in ((8, at_8), (16, at_16))
        for rival in ("one", "other")
    ]


def verdict(rows: list[Row], goal: Goal = GOAL, cpus: int = 2) -> Judgement:
    return judge(goal, rows, cpus)


# ---- met and not met ----


def test_every_point_on_the_bound_is_met() -> None:
    found = verdict(rows(2.0, 2.0))
    assert (found.verdict, found.points, found.missed) == (MET, 2, ())


def test_one_point_below_the_bound_is_not_met_and_is_named() -> None:
    found = verdict(rows(3.0, 1.9))
    assert found.verdict == NOT_MET
    assert [(point.row.size_bytes, point.value) for point in found.missed] == [(16, 1.9)]
    assert found.measured == "1.9x (1.8x to 2.38x) sum at 16 B compared with one"


def test_the_median_round_counts_not_the_best_or_the_mean() -> None:
    for values, expected in (((1.9, 1.9, 2.9), NOT_MET), ((1.5, 2.1, 2.1), MET)):
        assert (
            verdict([dataclasses.replace(row, values=values) for row in rows()]).verdict == expected
        )


def test_the_better_rival_counts_at_each_size() -> None:
    better = [row for row in rows(9, 9) if row.rival == "one"]
    better += [row for row in rows(1, 9) if row.rival == "other"]
    found = verdict(better)
    assert found.verdict == NOT_MET
    assert found.worst is not None and found.worst.row.rival == "other"
    assert found.worst.value == 1


def test_an_upper_bound_is_missed_by_the_largest() -> None:
    goal = dataclasses.replace(GOAL, bound=5.0, at_most=True)
    assert verdict(rows(4, 5), goal).verdict == MET
    found = verdict(rows(4, 5.1), goal)
    assert (found.verdict, len(found.missed)) == (NOT_MET, 1)
    assert found.worst is not None and found.worst.value == 5.1


def test_sizes_between_the_named_ones_count_and_those_beyond_do_not() -> None:
    between = Row("ratio", "sum", 12, rival="one", values=(1.0,))
    assert verdict([*rows(), between]).verdict == NOT_MET
    for size in (4, 32):
        beyond = dataclasses.replace(between, size_bytes=size)
        assert verdict([*rows(), beyond]).verdict == MET


def test_rows_of_something_else_do_not_count() -> None:
    bad = Row("ratio", "sum", 8, rival="one", values=(0.1,))
    for change in ({"metric": "roof"}, {"op": "barrier"}, {"ranks": 4}, {"rival": "third"}):
        assert verdict([*rows(), dataclasses.replace(bad, **change)]).verdict == MET
    assert verdict([*rows(), bad]).worst is not None  # and that one does:
    assert verdict([dataclasses.replace(bad, values=(0.1,) * 9), *rows()]).verdict == NOT_MET


def test_rounds_of_two_runs_are_rounds_of_one_row() -> None:
    one = Row("ratio", "sum", 8, rival="one", values=(2.2, 2.2))
    two = dataclasses.replace(one, values=(1.8, 1.8, 1.8))
    found = verdict([one, two, *[row for row in rows() if row.place != one.place]])
    assert found.verdict == NOT_MET
    assert found.worst is not None
    assert found.worst.row.values == (2.2, 2.2, 1.8, 1.8, 1.8)


# ---- over the sizes, over kinds ----


@pytest.mark.parametrize("at_16, expected", [(3.1, MET), (2.9, NOT_MET)])
def test_the_median_size_is_the_mean_of_the_two_in_the_middle(at_16: float, expected: str) -> None:
    goal = dataclasses.replace(GOAL, over_sizes="median", rivals=("one",))
    some = [row for row in rows(0.9, at_16) if row.rival == "one"]
    found = verdict(some, goal)
    assert (found.verdict, found.points) == (expected, 1)
    assert found.worst is not None and math.isclose(found.worst.value, (0.9 + at_16) / 2)


def test_a_median_says_nothing_without_all_sizes() -> None:
    goal = dataclasses.replace(GOAL, over_sizes="median", rivals=("one",))
    some = [row for row in rows(1, 1) if row.rival == "one"]
    assert verdict(some, goal).verdict == NOT_MET
    assert verdict(some[:1], goal).verdict == NOT_MEASURED


def test_the_median_is_taken_for_each_operation() -> None:
    goal = dataclasses.replace(GOAL, over_sizes="median", ops=("sum", "max"))
    slow = [dataclasses.replace(row, op="max") for row in rows(1, 1)]
    found = verdict([*rows(9, 9), *slow], goal)
    assert (found.verdict, found.points, len(found.missed)) == (NOT_MET, 2, 1)


def test_a_kind_with_a_reason_may_miss_and_is_told() -> None:
    goal = dataclasses.replace(GOAL, rivals=(), reasons={"float8*": "converted one by one"})
    slow = Row("ratio", "sum", 8, kind="float8 sum", values=(0.5,))
    found = verdict([*rows(), slow], goal)
    assert found.verdict == MET
    assert found.excused == ("0.5x sum float8 sum at 8 B: converted one by one",)
    other = dataclasses.replace(slow, kind="int8 sum")
    assert verdict([*rows(), other], goal).verdict == NOT_MET
    also = [dataclasses.replace(slow, size_bytes=n, values=(n / 100,)) for n in (12, 16)]
    assert verdict([*rows(), slow, *also], goal).excused == (
        "0.12x sum float8 sum at 12 B, and 2 more, 0.5x at best: converted one by one",
    )


def test_a_goal_whose_points_are_all_excused_is_not_met_by_them() -> None:
    goal = Goal("g", "part", "ratio", 2.0, reasons={"*": "a reason"})
    found = judge(goal, [Row("ratio", kind="x", values=(1.0,))], 2)
    assert found.verdict == NOT_MEASURED


# ---- not measured ----


def test_nothing_measured_is_not_met_and_not_missed() -> None:
    found = verdict([])
    assert found.verdict == NOT_MEASURED
    assert found.why.startswith(
        "not there: sum at 8 B compared with one, sum at 8 B compared with other,"
    )
    nothing_named = Goal("g", "part", "ratio", 1.0)
    assert verdict([], nothing_named).why == "not there: anything of it"
    absent = judge(GOAL, [], 2, {"part": "no MPI"})
    assert (absent.verdict, absent.why) == (NOT_MEASURED, "no MPI")


@pytest.mark.parametrize("lacks", [{"size_bytes": 16}, {"rival": "other"}])
def test_a_point_that_is_missing_keeps_a_goal_from_being_met(lacks: dict[str, Any]) -> None:
    (name, value), *_ = lacks.items()
    some = [row for row in rows() if getattr(row, name) != value]
    found = verdict(some)
    assert found.verdict == NOT_MEASURED
    assert "not there: sum at 16 B" in found.why or "compared with other" in found.why
    worse = [dataclasses.replace(row, values=(1.0,)) for row in some]
    assert verdict(worse).verdict == NOT_MET  # what there is misses it already


def test_an_operation_or_a_kind_that_is_missing_is_named() -> None:
    found = verdict(rows(), dataclasses.replace(GOAL, ops=("sum", "max"), sizes=(), rivals=()))
    assert (found.verdict, found.why) == (NOT_MEASURED, "not there: max")
    found = verdict(rows(), dataclasses.replace(GOAL, ops=(), sizes=(), rivals=(), kinds=("m*",)))
    assert found.verdict == NOT_MEASURED


def test_a_small_machine_measures_no_goal_of_a_large_one() -> None:
    goal = dataclasses.replace(GOAL, cpus=16)
    found = verdict(rows(), goal)
    assert found.verdict == NOT_MEASURED
    assert found.why == "needs a machine of 16 CPUs, this one has 2"
    assert verdict(rows(), goal, cpus=16).verdict == MET


# ---- noise ----

BUSY = Activity(60.0, 2, own_s=40.0, busy_s=118.0, steal_s=0.0, load=9.0, runnable=5.0)


def test_rounds_that_disagree_about_a_goal_neither_meet_nor_miss_it() -> None:
    around = [dataclasses.replace(row, values=(1.0, 2.1, 4.0)) for row in rows()]
    found = verdict(around)
    assert found.verdict == NOISY
    assert found.why.startswith("rounds disagree by more than 1.5x, on both sides of >= 2x: ~2.1x")
    # Another point misses it for sure.
    sure = [dataclasses.replace(row, values=(1.0, 1.0, 1.0)) for row in rows()[:2]]
    assert verdict([*sure, *around[2:]]).verdict == NOT_MET


def test_rounds_that_disagree_on_one_side_of_the_bound_decide() -> None:
    for values, expected in (((85.0, 474.0, 750.0), MET), ((0.2, 0.9, 1.1), NOT_MET)):
        found = verdict([dataclasses.replace(row, values=values) for row in rows()])
        assert found.verdict == expected and found.measured.startswith("~")


@pytest.mark.parametrize("at_8", [9.0, 1.0])
def test_a_busy_machine_meets_and_misses_no_goal(
    tmp_path: Path,
    one_part: dict[str, Any],
    at_8: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(noise, "together", lambda seen: BUSY)
    one_part["rows"] = rows(at_8)
    code, data, page = run(tmp_path)
    said = "busy machine: other processes used 1.3 of 2 CPUs (5 runnable, load average 9.0)"
    assert (code, data["goals"][0]["verdict"], data["goals"][0]["noisy"]) == (0, NOISY, True)
    assert data["goals"][0]["why"] == said and data["parts"][0]["activity"]["busy_s"] == 118.0
    assert f"| {said} |" in page and "| **noisy** |" in page
    assert capsys.readouterr().out.count(said) >= 3  # where it ran, of the goal, and at the end
    assert run(tmp_path, "--report")[1]["goals"] == data["goals"]
    one_part["rows"] = rows(at_8, wrong="1 wrong elements")
    assert run(tmp_path)[1]["goals"][0]["verdict"] == FAILED


# ---- wrong values ----


def test_wrong_values_are_a_failure_however_fast() -> None:
    good = rows(9, 9)
    bad = [dataclasses.replace(good[0], wrong="7 wrong elements"), *good[1:]]
    found = verdict(bad)
    assert (found.verdict, found.why) == (FAILED, "7 wrong elements sum at 8 B compared with one")
    assert report.Report({}, [], [found]).failed
    assert not report.Report({}, [], [verdict(rows(1, 1))]).failed


def test_wrong_values_of_one_run_stay_wrong_beside_a_right_one() -> None:
    right = rows()
    assert verdict([*right, dataclasses.replace(right[0], wrong="x")]).verdict == FAILED


# ---- what is out of reach ----

LIMITED = dataclasses.replace(GOAL, rivals=(), limit="most", limit_of="a bare loop")


def limited(at_8: float, most_at_8: float, **fields: Any) -> Judgement:
    points = [Row("ratio", "sum", size, values=(value,)) for size, value in ((8, at_8), (16, 3.0))]
    return verdict([*points, Row("most", "sum", 8, values=(most_at_8,), **fields)], LIMITED)


def test_a_missed_point_tells_what_is_out_of_reach_and_stays_missed() -> None:
    found = limited(1.5, 1.8)
    assert (found.verdict, found.points) == (NOT_MET, 2)
    assert found.beyond == ("1.8x sum at 8 B for a bare loop",)
    assert "1 of 1 out of reach here: 1.8x sum at 8 B for a bare loop" in report.notes(found)


def test_a_limit_that_allows_more_excuses_nothing() -> None:
    found = limited(1.5, 2.5)
    assert (found.verdict, found.beyond) == (NOT_MET, ())


def test_a_limit_of_another_place_or_of_a_point_that_holds_says_nothing() -> None:
    assert limited(2.5, 1.8).beyond == ()
    assert limited(1.5, 1.8, kind="other").beyond == ()
    assert limited(1.5, 1.8, ranks=4).beyond == ()


def test_a_median_has_the_median_of_all_limits() -> None:
    goal = dataclasses.replace(
        GOAL, rivals=("one",), over_sizes="median", limit="most", limit_of="a bare loop"
    )
    points = [row for row in rows(1.0, 2.0) if row.rival == "one"]
    most = [dataclasses.replace(row, metric="most", values=(1.9,)) for row in points]
    assert verdict([*points, *most], goal).beyond == (
        "1.9x sum at 8 B compared with one for a bare loop",
    )
    assert verdict([*points, most[0]], goal).beyond == ()
    wide = dataclasses.replace(most[0], values=(2.5,))
    assert verdict([*points, wide, most[1]], goal).beyond == ()


def test_a_limit_counts_in_the_same_rounds_as_its_goal() -> None:
    goal = dataclasses.replace(NEAR_GOAL, rounds=1, limit="most", limit_of="a bare loop")
    most = [Row("most", "sum", values=(0.5, 0.9), modes=("far", "near"))]
    assert judge(goal, near_rows("near near", 0.8, 0.8) + most, 2).beyond == ()
    most = [Row("most", "sum", values=(0.9, 0.84), modes=("far", "near"))]
    assert judge(goal, near_rows("near near", 0.8, 0.8) + most, 2).beyond != ()


# ---- the machine's modes ----

NEAR_GOAL = Goal("near", "part", "scale", 0.85, ops=("sum",), near=True, rounds=2)


def near_rows(modes: str, *values: float) -> list[Row]:
    return [Row("scale", "sum", values=values, modes=tuple(modes.split()))]


def test_modes() -> None:
    assert [mode_of(x) for x in ([60, 28], [240, 300], [60, 240], [])] == [
        "near",
        "far",
        "mixed",
        "unknown",
    ]


def test_of_mixed_rounds_only_the_near_ones_count() -> None:
    found = judge(NEAR_GOAL, near_rows("near far near", 0.9, 0.1, 0.9), 2)
    assert (found.verdict, found.modes) == (MET, ("near",))
    assert found.worst is not None and found.worst.row.values == (0.9, 0.9)
    found = judge(NEAR_GOAL, near_rows("near far near", 0.8, 0.9, 0.8), 2)
    assert found.verdict == NOT_MET


def test_too_few_near_rounds_measure_nothing() -> None:
    found = judge(NEAR_GOAL, near_rows("near far mixed", 0.1, 0.1, 0.1), 2)
    assert (found.verdict, found.why) == (NOT_MEASURED, "1 rounds that count, 2 needed")
    found = judge(NEAR_GOAL, near_rows("far far", 0.9, 0.9), 2)
    assert (found.verdict, found.why) == (NOT_MEASURED, "the CPUs shared no L3 (far)")


def test_a_mode_that_nobody_looked_at_is_not_near() -> None:
    found = judge(NEAR_GOAL, near_rows("", 0.9, 0.9, 0.9), 2)
    assert (found.verdict, found.why) == (NOT_MEASURED, "the CPUs shared no L3 (unknown)")


@pytest.mark.parametrize(
    "hops, mode", [((70.0, 30.0), "near"), ((70.0, 260.0), "mixed"), ((), "unknown")]
)
def test_what_was_seen_before_and_after_is_the_mode_of_all_rounds(
    hops: tuple[float, ...], mode: str
) -> None:
    assert parts.around(hops, (1.0, 2.0)) == (mode, mode)


def test_of_several_runs_only_the_near_ones_count() -> None:
    some = near_rows("near near near", 0.9, 0.9, 0.9)
    for other in ("mixed mixed", ""):
        assert judge(NEAR_GOAL, some + near_rows(other, 0.1, 0.1), 2).verdict == MET
    slow = near_rows("near near near near", 0.8, 0.8, 0.8, 0.8)
    assert judge(NEAR_GOAL, some + slow, 2).verdict == NOT_MET


def test_all_modes_are_told() -> None:
    assert verdict(rows(modes=("near", "far", "near"))).modes == ("near", "far")


# ---- the table ----


def test_each_goal_is_measured_by_a_part_and_has_its_own_name() -> None:
    assert {goal.part for goal in table.GOALS} == set(parts.PARTS)
    names = [goal.name for goal in table.GOALS]
    assert len(set(names)) == len(names)


def test_powers_reach_the_last_one() -> None:
    assert table.powers(8, 64) == (8, 16, 32, 64)
    assert table.powers(1, 64, 4) == (1, 4, 16, 64)


# ---- from what programs write ----

PEERS = {
    "runs": [
        {
            "other": "mpich",
            "ranks": 2,
            "rows": [
                {
                    "op": "all_reduce",
                    "bytes": size,
                    "dtype": "float32",
                    "redop": "sum",
                    "right": True,
                    "ours_us": [10.0 * scale, 20.0],
                    "theirs_us": [30.0, 20.0],
                    "exchange_gbs": [50.0, 20.0],
                    "scale_us": [5.0, 5.0],
                    "bare_us": [8.0, 10.0],
                    "hop_us": [0.06, 0.26],
                }
                for size, scale in ((100_000, 1), (200_000, 2))
            ],
        }
    ]
}


def chosen(found: list[Row], metric: str) -> Row:
    return next(row for row in found if row.metric == metric)


def test_rows_of_the_peers() -> None:
    found = parts.c_rows(PEERS)
    ratio = chosen(found, "ratio")
    assert ratio == Row("ratio", "all_reduce", 100_000, 2, "mpich", "", (3.0, 1.0), ("near", "far"))
    assert chosen(found, "scale").values == (0.5, 0.25)
    # 100 kB at 50 GB/s take 2 us, at 20 GB/s 5 us.
    assert chosen(found, "roof").values == pytest.approx((0.7, 0.5))
    assert chosen(found, "roof limit").values == pytest.approx((7 / 8, 1.0))
    assert chosen(found, "scale limit").values == pytest.approx((5 / 8, 0.5))
    assert not [row for row in found if row.metric == "hops"]
    growth = chosen(found, "growth")
    assert (growth.size_bytes, growth.values) == (200_000, (2.0, 1.0))


def test_bare_loops_limit_the_ratio() -> None:
    data = json.loads(json.dumps(PEERS))
    one, other = data["runs"][0]["rows"]
    del one["scale_us"], other["bare_us"]
    one |= {"op": "stream", "bare_us": [12.0, 10.0]}
    limits = [row for row in parts.c_rows(data) if row.metric == "ratio limit"]
    assert [(row.op, row.rival, row.values) for row in limits] == [("stream", "mpich", (2.5, 2.0))]


def test_a_barrier_is_told_in_ways_of_a_flag() -> None:
    data = json.loads(json.dumps(PEERS))
    data["runs"][0]["rows"] = data["runs"][0]["rows"][:1]
    data["runs"][0]["rows"][0] |= {"op": "barrier", "ours_us": [0.09, 0.39]}
    assert chosen(parts.c_rows(data), "hops").values == pytest.approx((1.5, 1.5))


def test_more_ranks_do_not_tell_whether_an_l3_is_shared() -> None:
    data = json.loads(json.dumps(PEERS))
    data["runs"][0]["ranks"] = 4
    assert {row.modes for row in parts.c_rows(data)} == {()}


def test_wrong_rows_of_the_peers_stay_wrong() -> None:
    data = json.loads(json.dumps(PEERS))
    data["runs"][0]["rows"][0]["right"] = False
    assert {row.wrong for row in parts.c_rows(data) if row.size_bytes == 100_000} == {
        "wrong values"
    }


def test_rows_beside_ourselves_are_of_dtypes() -> None:
    data = json.loads(json.dumps(PEERS))
    data["runs"][0]["other"] = "itself"
    assert parts.c_rows(data)[0].kind == "float32 sum"
    assert parts.c_rows(data)[0].metric == "of float32"


FLOOR = {
    "bytes": 8,
    "us": {"shmcoll": [6.0], "null": [3.0], "bare": [5.0], "core": [1.0], "gloo": [100.0]},
    "wrong": 0,
}
COPIES = {"op": "x", "bytes": 8, "ours_us": [3.0], "copy_us": [2.0], "wrong": 1}


def test_rows_of_the_bench() -> None:
    cell = {"wrong": 0, "error": None}
    one = {"op": "barrier", "size_bytes": 0, "world_size": 2, "ratios": {"gloo": {"rounds": [2.0]}}}
    gloo = {"time_us": {"round_p50": [12.0]}}
    good = {"results": [{**one, "backends": {"shmcoll": cell, "gloo": gloo}}]}
    rows = [Row("gloo ratio", "barrier", values=(2.0,), modes=("near",))]
    assert parts.bench_rows(good, (50.0,), parts.Bare({("barrier", 8): 4.0})) == rows
    rows.append(Row("gloo bare limit", "barrier", values=(3.0,), modes=("mixed",)))
    bare = parts.Bare({("barrier", 0): 4.0}, (300.0,))
    assert parts.bench_rows(good, (50.0,), bare) == rows
    bad = parts.bench_rows(
        {"results": [{**one, "backends": {"shmcoll": {**cell, "wrong": 3}}}]}, (), parts.Bare()
    )
    assert bad[0].wrong == "3 wrong elements"


def test_bare_times_are_the_least_of_what_has_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []

    def script(lab: parts.Lab, *options: str) -> dict[str, Any]:
        asked.append(options)
        return {"runs": [{"hop_ns": 50.0 * len(asked), "rows": rows}]}

    rows: list[dict[str, Any]] = [
        {"op": "broadcast", "bytes": 4, "bare_us": [9.0, 1.0, 2.0]},
        {"op": "reduce", "bytes": 4, "bare_us": []},
        {"op": "gather", "bytes": 4},
    ]
    monkeypatch.setattr(parts.Lab, "script", script)
    lab, bare = parts.Lab(tmp_path, "part"), parts.Bare()
    monkeypatch.setattr(parts, "mpis", lambda: [])
    bare.look(lab, 4, 16)
    assert (bare, asked) == (parts.Bare(), [])
    monkeypatch.setattr(parts, "mpis", lambda: ["mpich"])
    bare.look(lab, 4, 16)
    rows[0]["bare_us"] = [3.0]
    bare.look(lab, 4, 16)
    assert bare == parts.Bare({("broadcast", 4): 1.0}, (50.0, 100.0))
    ops = ",".join(table.MESSAGES_TOO)
    assert asked[0][:11] == (
        *("peers.py", "--mpi", "mpich", "-o", ops),
        *("-b", "4", "-e", "16", "-f", "2"),
    )


STEP = {
    "model": "m",
    "bucket_mib": 4,
    "step_ms": {"shmcoll": [2.0], "gloo": [3.0], "compute": [1.0], "alone": [1.75]},
    "wrong": 0,
}


def test_each_cell_beside_hogs_counts_by_itself() -> None:
    cells = [
        {"op": "barrier", "pinned": pinned, "barrier": "gloo", "us": {"shmcoll": 2.0, "gloo": us}}
        for pinned, us in ((False, 8.0), (True, 1.0))
    ]
    rows = parts.hog_rows({"ranks": 4, "cells": cells})
    assert [(row.values, row.kind) for row in rows] == [
        ((4.0,), "cell 0, not pinned, gloo's barrier before"),
        ((0.5,), "cell 1, pinned, gloo's barrier before"),
    ]
    (goal,) = (goal for goal in table.GOALS if goal.part == "hogs" and goal.ranks == 4)
    found = judge(goal, rows, cpus=2)
    assert (found.verdict, found.points, len(found.missed)) == (NOT_MET, 2, 1)


def test_rows_of_the_floor_the_copies_and_ddp() -> None:
    floor, bare, gloo = parts.floor_rows(FLOOR)
    assert (floor.values, floor.wrong) == ((1.5,), "")
    assert (bare.metric, bare.values) == ("over floor limit", (1.25,))
    assert (gloo.metric, gloo.values) == ("gloo limit", (25.0,))
    copy, least = parts.copy_rows(COPIES, (), parts.Bare({("x", 8): 1.0}))
    assert (copy.values, copy.wrong) == ((1.5,), "1 wrong elements")
    assert (least.metric, least.values) == ("over copy limit", (0.5,))
    assert parts.copy_rows(COPIES, (), parts.Bare()) == [copy]
    over_gloo, over_compute, nobody = parts.ddp_rows(STEP, ())
    assert (over_gloo.values, over_compute.values) == ((1.5,), (2.0,))
    assert (nobody.metric, nobody.values) == ("over compute limit", (1.75,))
    assert (over_gloo.size_bytes, over_gloo.kind) == (4 << 20, "m")


def test_every_limit_is_something_that_parts_measure() -> None:
    bare = parts.Bare({("x", 8): 1.0})
    cell = {"wrong": 0, "error": None, "time_us": {"round_p50": [12.0]}}
    ratios = {"gloo": {"rounds": [2.0]}}
    one = {"op": "x", "size_bytes": 8, "world_size": 2, "ratios": ratios}
    rows = [
        *parts.c_rows(PEERS),
        *parts.floor_rows(FLOOR),
        *parts.bench_rows(
            {"results": [{**one, "backends": {"shmcoll": cell, "gloo": cell}}]}, (), bare
        ),
        *parts.copy_rows(COPIES, (), bare),
        *parts.ddp_rows(STEP, ()),
    ]
    wanted = {goal.limit for goal in table.GOALS if goal.limit}
    assert wanted <= {row.metric for row in rows}


# ---- a run ----


@pytest.fixture
def one_part(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A part that measures what it is told to."""
    does: dict[str, Any] = {"rows": []}

    def part(lab: parts.Lab) -> list[Row]:
        if "raises" in does:
            raise does["raises"]
        return does["rows"]

    monkeypatch.setattr(goals, "PARTS", {"part": part})
    monkeypatch.setattr(goals, "GOALS", (GOAL,))
    monkeypatch.setattr(noise, "together", lambda seen: None)  # whatever else runs here
    return does


def run(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    code = goals.main(["--folder", str(folder), *options])
    page = (folder / "goals.md").read_text()
    return code, json.loads((folder / "goals.json").read_text()), page


@pytest.mark.parametrize("at_8, expected", [(9.0, MET), (1.0, NOT_MET)])
def test_a_run_that_misses_a_goal_ends_well(
    tmp_path: Path, one_part: dict[str, Any], at_8: float, expected: str
) -> None:
    one_part["rows"] = rows(at_8)
    code, data, page = run(tmp_path)
    assert code == 0
    assert [goal["verdict"] for goal in data["goals"]] == [expected]
    assert "| twice as fast | >= 2x |" in page


def test_wrong_values_and_failures_end_a_run_with_1(
    tmp_path: Path, one_part: dict[str, Any]
) -> None:
    one_part["rows"] = rows(wrong="1 wrong elements")
    assert run(tmp_path)[0] == 1
    one_part["raises"] = parts.Failed("it fell over")
    code, data, page = run(tmp_path)
    assert (code, data["goals"][0]["why"]) == (1, "failed: it fell over")
    assert "it fell over" in page
    one_part["raises"] = KeyError("rows")
    assert run(tmp_path)[1]["goals"][0]["why"] == "failed: KeyError: 'rows'"


def test_what_a_machine_has_not_got_is_no_failure(tmp_path: Path, one_part: dict[str, Any]) -> None:
    one_part["raises"] = parts.Absent("no MPI")
    code, data, _ = run(tmp_path)
    assert (code, data["goals"][0]["verdict"]) == (0, NOT_MEASURED)


def test_a_report_is_of_what_was_left_there(tmp_path: Path, one_part: dict[str, Any]) -> None:
    one_part["rows"] = rows(9.0)
    _, first, page = run(tmp_path)
    one_part["raises"] = AssertionError("--report runs nothing")
    code, again, same_page = run(tmp_path, "--report")
    assert (code, again["goals"], again["parts"]) == (0, first["goals"], first["parts"])
    assert same_page == page


def test_a_program_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    lab = parts.Lab(tmp_path, "part")
    with pytest.raises(parts.Failed, match=r"-c .* ended with 3; see .*part.log"):
        lab.python("-c", "print('last words'); exit(3)")
    assert "last words" in (tmp_path / "part.log").read_text()


# ---- benchmarks/reduction_threads.py ----


def test_scenes_are_those_that_the_cpus_allow() -> None:
    def scenes(ranks: int, cores: list[list[int]]) -> dict[str, tuple[list[list[int]], int]]:
        cpus = sorted(cpu for core in cores for cpu in core)
        found = reduction_threads.scenes_of(ranks, cpus, cores)
        return {scene.name: (scene.cpus, scene.threads) for scene in found}

    twins = scenes(2, [[0, 4], [1, 5], [2, 6], [3, 7]])
    halves = [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert twins == {
        "idle": ([list(range(8))] * 2, 1),
        "busy": ([list(range(8))] * 2, 4),
        "pinned": (halves, 4),
        "siblings": (halves, 2),
    }
    assert scenes(2, [[0], [1]])["pinned"] == ([[0], [1]], 1)
    assert list(scenes(4, [[0], [1]])) == ["idle", "busy"]


def test_auto_loses_where_it_is_slower_nearly_each_time() -> None:
    def row(threads: int, *auto_us: float) -> reduction_threads.Row:
        times = {"0": [100.0] * len(auto_us), "auto": list(auto_us)}
        return reduction_threads.Row("busy", 2, 8, threads, times)

    gains, loses, by_chance = row(3, 80, 90), row(3, 120, 110), row(3, 120, 110, 90)
    no_threads = row(0, 120, 110)
    assert reduction_threads.verdict([gains, by_chance]) == ("auto loses 0 of 2 rows", 0)
    assert reduction_threads.verdict([gains, loses, no_threads]) == ("auto loses 1 of 2 rows", 1)
    assert reduction_threads.verdict([no_threads])[1] == 3


# ---- oneCCL, which Intel MPI starts ----


def test_oneccl_is_a_peer_where_both_wheels_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    launcher = tmp_path / "bin" / "mpiexec.hydra"
    launcher.parent.mkdir()
    launcher.write_text("#!/bin/sh\necho 'Intel(R) MPI Library for Linux* OS'\n")
    launcher.chmod(0o755)
    needed = ("include/mpi.h", "include/oneapi/ccl.hpp", "lib/libccl.so")
    for name in needed:
        assert peers.compiler_of(peers.ONECCL) is None, name
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = peers.compiler_of(peers.ONECCL)
    assert found is not None and {"-DPEERS_ONECCL", "-lccl"} <= set(found)
    launch, env = peers.launch_of(peers.ONECCL, 2)
    assert launch is not None and launch[0] == str(launcher)
    assert env["CCL_WORKER_OFFLOAD"] == "0"
    assert "CCL_WORKER_OFFLOAD" not in peers.launch_of("intelmpi", 2)[1]
