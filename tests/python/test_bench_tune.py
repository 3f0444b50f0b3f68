# SPDX-License-Identifier: BSD-3-Clause
"""python -m shmcoll.bench tune: settings for a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from bench_runs import run_bench

import shmcoll
from ranks import Rank, run
from shmcoll.bench import machine
from shmcoll.bench.judge import tunables, tune
from shmcoll.bench.plan import Point
from shmcoll.bench.judge.tunables import Tunable
from shmcoll.bench.judge.tune import Study, Trial, Tuner, Wrong

pytestmark = pytest.mark.timeout(120)

DEFAULTS = {
    "small": 8192.0,
    "small_of_two": 4096.0,
    "all_reduce.direct_exchange": 32768.0,
    "all_reduce.two_phase_from": 3072.0,
    "reduce.two_phase_from": 20480.0,
    "reduce.scatter_gather_from": 49152.0,
    "turn": 65536.0,
    "all_reduce.unpipelined_from": 3145728.0,
    "chunk": 262144.0,
    "depth": 3.0,
    "broadcast_slot": 65536.0,
    "broadcast_depth": 24.0,
    "flag_latency": 2048.0,
    "staging.non_temporal_from": 32768.0,
    "output.non_temporal_from": 16777216.0,
    "prefetch_up_to": 32768.0,
}

Cost = Callable[[str, Point], float]  # of a setting and a point, where the default has 1


class MadeUpTeam:
    """Takes the time that the test says, times a noise phase that lasts for a visit of a point."""

    def __init__(self, cost: Cost, wrong: str | None = None) -> None:
        self._cost = cost
        self._wrong = wrong
        self.turns: list[str] = []

    def tune(self, text: str) -> dict[str, float]:
        self._tuning = text
        return DEFAULTS

    def prepare(self, point: Point, copies: int, sweep_bytes: int) -> None:
        self._point = point

    def check(self, salt: int) -> int:
        return 3 if self._tuning == self._wrong else 0

    def time(self, iterations: int, budget_ns: int) -> list[dict[str, Any]]:
        self.turns.append(self._tuning)
        noise = 1 + 0.03 * (hash((len(self.turns), 7)) % 100 / 100 - 0.5)
        ns = int(
            1e6 * noise * (self._cost(self._tuning, self._point) if self._tuning.strip() else 1)
        )
        readings = [[k * ns for k in range(9)], [(k + 1) * ns for k in range(9)]]
        return [{"phases": [readings]}] * 2


def tuned(cost: Cost, keys: str, ranks: int = 2) -> tuple[list[Study], Tuner]:
    tuner = Tuner(MadeUpTeam(cost), ranks)  # type: ignore[arg-type]
    studies = tuner.studies(keys.split(","))
    tuner.measure([study.trials for study in studies], 0.2)
    assert tuner.rounds >= tune.MIN_ROUNDS
    tune.choose(studies)
    return studies, tuner


def chosen(studies: list[Study]) -> dict[str, str]:
    return {s.tunable.name: s.chosen.value for s in studies if s.chosen}


# ---- what is tried ----


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 256])
def test_each_key_is_tried_where_its_value_makes_a_difference(ranks: int) -> None:
    for tunable in tunables.of_world(ranks):
        default = DEFAULTS[tunable.name]
        values = tunable.values(default)
        assert values and tunables.text(default) not in values
        for value in values:
            points = tunable.points(ranks, default, tunables.number(value))
            assert points, f"{tunable.name}={value} makes no difference at the sizes there are"


def test_a_limit_concerns_the_sizes_between_the_two() -> None:
    up_to = Tunable("k", "all_reduce", "1k 2k 4k 8k", "", "up to")
    assert [p.size_bytes for p in up_to.points(2, 1024, 4096)] == [2048, 4096]
    assert [p.size_bytes for p in up_to.points(2, 4096, 1024)] == [2048, 4096]
    start = Tunable("k", "broadcast", "1k 2k 4k 8k", "", "from")
    assert [p.size_bytes for p in start.points(2, 2048, inf)] == [2048, 4096, 8192]
    free = Tunable("k", "all_gather", "1k 2k", "")
    assert [p.size_bytes for p in free.points(3, 1, 2)] == [3072, 6144]  # three blocks
    both = Tunable("k", "all_reduce reduce_scatter", "4k 8k", "", "up to")
    points = [(p.op, p.size_bytes) for p in both.points(2, 4096, 8192)]
    assert points == [("all_reduce", 8192), ("reduce_scatter", 4096)]  # whose limit is half


def test_values_are_written_as_they_are_read() -> None:
    for value in (0.0, 3.0, 100.0, 1024.0, 65536.0, 1048576.0, inf):
        assert tunables.number(tunables.text(value)) == value
    assert tunables.text(65536.0) == "64k" and tunables.text(inf) == "never"


# ---- what is chosen ----


def test_settings_take_turns_and_the_default_has_two() -> None:
    team = MadeUpTeam(lambda tuning, point: 1)
    tuner = Tuner(team, 2)  # type: ignore[arg-type]
    (study,) = tuner.studies(["depth"])
    tuner.measure([study.trials], 0.05)
    turns = ["", "depth=2", "depth=4", " "]
    points = len(study.trials[0].points)
    assert team.turns[: 4 * points] == turns * points
    assert team.turns[4 * points : 8 * points] == turns[::-1] * points
    assert all(len(t.tried) == len(t.default) == tuner.rounds for t in study.trials)


def test_what_is_better_beyond_doubt_is_chosen() -> None:
    cost = {"turn=128k": 0.9, "turn=32k": 0.92, "prefetch_up_to=never": 0.97, "depth=4": 1.3}
    studies, tuner = tuned(lambda tuning, point: cost.get(tuning, 1), "turn,prefetch_up_to,depth")
    assert chosen(studies) == {"turn": "128k"}
    together = tune.confirm(tuner, studies, 0.1)
    assert together is not None and together.tuning == "turn=128k"
    assert together.gain == pytest.approx(1 / 0.9, rel=0.03)
    assert chosen(studies) == {"turn": "128k"}


def test_a_gain_at_many_sizes_counts_more_than_a_larger_one_at_few() -> None:
    def cost(tuning: str, point: Point) -> float:
        return 0.7 if point.size_bytes == 65536 else 0.75

    studies, _ = tuned(cost, "all_reduce.direct_exchange")  # 64k: at one size, 8k and 128k: at two
    gains = {trial.value: trial.gain for trial in studies[0].trials}
    assert gains["64k"] > gains["128k"] > 1.3 and chosen(studies) == {
        "all_reduce.direct_exchange": "128k"
    }


def test_nothing_is_chosen_where_nothing_is_better() -> None:
    studies, tuner = tuned(lambda tuning, point: 1, "turn,flag_latency,depth,broadcast_slot")
    assert chosen(studies) == {}
    assert tune.confirm(tuner, studies, 0.1) is None


def test_what_loses_at_one_size_is_not_chosen() -> None:
    def cost(tuning: str, point: Point) -> float:
        return (1.1 if point.size_bytes == 131072 else 0.7) if tuning == "depth=4" else 1

    studies, _ = tuned(cost, "depth")
    assert studies[0].trials[1].gain > 1.2 and chosen(studies) == {}


def test_help_and_page_say_the_same_of_what_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tune.main(["--help"])
    page = (Path(__file__).parents[2] / "docs/operate/tuning.md").read_text()
    for text in (capsys.readouterr().out, page):
        words = " ".join(text.split())
        for said in ("if it is more than 5 ?% faster, and loses", "all together, and again lose"):
            assert re.search(f"{said} at no size by as much", words), words
        assert "of several the one that gains most over all sizes" in words


def test_what_does_not_gain_again_is_given_up() -> None:
    def cost(tuning: str, point: Point) -> float:
        return {"turn=128k": 0.8, "depth=4": 0.8, "turn=128k,depth=4": 1.05}.get(tuning, 1)

    studies, tuner = tuned(cost, "turn,depth")
    assert chosen(studies) == {"turn": "128k", "depth": "4"}
    assert tune.confirm(tuner, studies, 0.1) is not None
    assert chosen(studies) == {}


def test_few_rounds_have_no_say() -> None:
    (study,) = Tuner(MadeUpTeam(lambda t, p: 1), 2).studies(["depth"])  # type: ignore[arg-type]
    for trial in study.trials:
        for _ in range(tune.MIN_ROUNDS - 1):
            trial.default.append([100.0] * len(trial.points))
            trial.again.append([100.0] * len(trial.points))
            trial.tried.append([50.0] * len(trial.points))
    tune.choose([study])
    assert study.chosen is None


def test_wrong_values_end_the_run() -> None:
    team = MadeUpTeam(lambda tuning, point: 1, wrong="depth=4")
    tuner = Tuner(team, 2)  # type: ignore[arg-type]
    with pytest.raises(Wrong, match="depth=4: 3 wrong elements"):
        tuner.measure([study.trials for study in tuner.studies(["depth"])], 0.1)


# ---- the file ----


def test_the_file_is_what_the_variable_reads(tmp_path: Path) -> None:
    file = tmp_path / "some.tuning"
    trial = Trial("turn=128k", [], "128k", [[2.0]], [[2.0]], [[1.0]])
    of_name = {tunable.name: tunable for tunable in tunables.TUNABLES}
    studies = [
        Study(of_name["turn"], DEFAULTS["turn"], [trial], trial),
        Study(of_name["depth"], DEFAULTS["depth"], [Trial("depth=2", [], "2")]),
    ]
    text = tune.file_text(studies, machine.gather(), 2, file)
    file.write_text(text)
    assert "turn = 128k  # faster by 2.00x than 64k" in text and "# depth = 3" in text
    assert f"export SHMCOLL_TUNING={file}" in text and machine.gather().cpu in text

    def body(rank: Rank) -> tuple[str, ...]:
        os.environ["SHMCOLL_TUNING"] = str(file)
        rank.init()
        told = shmcoll.describe(internals=True)
        return str(told.get("tuning.turn")), str(told.get("tuning.depth"))

    assert run(2, body) == [("131072", "3")] * 2


def test_a_run_writes_a_file_and_says_how_to_use_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.tuning"
    args = ("tune", "--time", "1.5", "--keys", "flag_latency,depth", "-o", str(file))
    done = run_bench(tmp_path, *args)
    assert done.returncode == 0, done.stderr
    assert f"export SHMCOLL_TUNING={file}" in done.stdout
    assert re.search(r"^  flag_latency +2k +\S+  512 \d+\.\d\d  1k ", done.stdout, re.M), (
        done.stdout
    )
    assert re.search(r"^  depth +3 +\S+  2 \d+\.\d\d  4 \d+\.\d\d$", done.stdout, re.M), done.stdout
    first = file.read_text()
    assert "flag_latency = " in first and "depth = " in first

    again = run_bench(tmp_path, *args)
    assert again.returncode == 2 and "exists; --force" in again.stderr
    assert file.read_text() == first


def test_the_defaults_are_compared_whatever_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHMCOLL_TUNING", "depth=4")
    file = tmp_path / "mine.tuning"
    file.write_text("old")
    options = ("-g", "3", "--keys", "depth", "-o", str(file), "--force")
    done = run_bench(tmp_path, "tune", "--time", "0.3", *options)
    assert done.returncode == 0, done.stderr
    assert "SHMCOLL_TUNING is set" in done.stdout and "depth = 3" in file.read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--keys speed", "--keys speed: with 2 ranks there is small_of_two, "),
        ("-g 3 --keys turn", "--keys turn: with 3 ranks there is"),
        ("-g 1", "not a number of ranks from 2 to 256"),
        ("--time -1", "not seconds from above 0"),
        ("-o .", "is a directory"),
        ("-o no/where", "there is no no"),
    ],
)
def test_bad_usage_is_told_before_anything_runs(
    args: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = tune.main(args.split())
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2 and said in capsys.readouterr().err
