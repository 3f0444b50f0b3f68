# SPDX-License-Identifier: BSD-3-Clause
"""python -m shmcoll.bench compare: how often it is right, and what it says to odd files."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path
from statistics import pstdev

import pytest

from shmcoll.bench import cli, machine, options, plan
from shmcoll.bench.judge import compare, ranktest
from shmcoll.bench.judge.compare import EQUAL, FASTER, MIN_ROUNDS, SLOWER, TOO_FEW, UNKNOWN
from shmcoll.bench.judge.noise import Activity
from shmcoll.bench.judge.ranktest import holm, p_value
from shmcoll.bench.results import Cell, Report, Row

pytestmark = pytest.mark.timeout(120)

# ---- runs that never were ----

CV = 0.10  # of a round, without the drift


class Noise:
    """A machine like those that were seen: slow drift, sudden modes, heavy tails, stalls."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._day = self._walk = self._mode = 1.0
        self._turns = [self._turn() for _ in range(20_000)]

    def _turn(self) -> float:
        """One turn in units of what it should take."""
        draw = self._random
        # Student's t with 3 degrees of freedom has a standard deviation of sqrt(3).
        tail = draw.gauss(0, 1) / (draw.gammavariate(1.5, 2) / 3) ** 0.5
        stall = draw.paretovariate(1) if draw.random() < 0.02 else 1.0
        return stall * max(0.5, 1 + CV * tail / 3**0.5)

    def another_day(self) -> None:
        """Between two runs the machine is up to three times slower or faster."""
        self._day = 3 ** self._random.uniform(-0.5, 0.5)

    def speed(self) -> float:
        """The speed of the machine now; at the next turn it is nearly equal."""
        chance = self._random.random()
        self._walk = min(2.0, max(0.5, self._walk * (0.98 + 0.04 * chance)))
        if self._random.random() < 0.003:
            self._mode = 4.0 - self._mode  # 1 or 3
        return self._day * self._walk * self._mode

    def __call__(self) -> float:
        """Returns the time of the next turn."""
        return self.speed() * self._turns[int(self._random.random() * len(self._turns))]


def simulate(noise: Noise, rounds: int = MIN_ROUNDS, args: tuple[str, ...] = ()) -> Report:
    """A run of the default rows, or of those that the arguments ask for."""
    settings, _ = options.parse(["-g", "2", "--rounds", str(rounds), *args])
    report = Report(settings, machine.gather())
    noise.another_day()
    for point in plan.points(settings):
        cells = {label: Cell() for label in settings.labels}
        for _ in range(rounds):
            for place, cell in enumerate(cells.values()):
                expected_ns = (1e5 + point.size_bytes / 4) * (1 + 8 * place)
                cell.rounds.append([int(expected_ns * noise())])
        report.rows.append(Row(point, 2, cells))
    return report


def with_time(report: Report, factor: float, rows: slice = slice(None)) -> Report:
    """Returns the run as if the first backend had taken this much longer in these rows."""

    def slowed(row: Row) -> Row:
        (label, cell), *others = row.cells.items()
        rounds = [[int(ns * factor) for ns in one] for one in cell.rounds]
        return Row(row.point, row.world_size, {label: Cell(rounds), **dict(others)})

    changed = list(report.rows)
    changed[rows] = [slowed(row) for row in report.rows[rows]]
    return dataclasses.replace(report, rows=changed)


# ---- how often it is right ----


@pytest.mark.parametrize(
    ("pairs", "share"), [(20, 0.8), pytest.param(200, 0.95, marks=pytest.mark.long)]
)
def test_the_same_build_is_equal_and_a_fifth_is_found(pairs: int, share: float) -> None:
    """Each holds in at least 19 of 20 pairs of runs; few pairs may have one more that does not. The fifth
    is planted in one of 22 rows."""
    noise = Noise(seed=1)
    equal = slower = faster = 0
    for number in range(pairs):
        old, new = simulate(noise), simulate(noise)
        equal += compare.compare(old, new).verdict == EQUAL
        row = number % len(new.rows)
        place = slice(row, row + 1)
        if number % 2:
            found = compare.compare(old, with_time(new, 1.2, place))
            slower += found.verdict == found.changes[row].verdict == SLOWER
        else:
            found = compare.compare(old, with_time(new, 1 / 1.2, place))
            faster += found.verdict == found.changes[row].verdict == FASTER
    print(f"of {pairs}: {equal} equal; of {pairs // 2} each: {slower} slower, {faster} faster")
    assert equal >= share * pairs
    assert slower >= share * pairs / 2
    assert faster >= share * pairs / 2


def test_a_fifth_in_every_row_is_found_in_nearly_every_row() -> None:
    noise = Noise(seed=3)
    changes = []
    for _ in range(10):
        compared = compare.compare(simulate(noise), with_time(simulate(noise), 1.2))
        assert compared.verdict == SLOWER
        assert compared.time == pytest.approx(1.2, abs=0.03)
        changes += [change.verdict for change in compared.changes]
    assert changes.count(SLOWER) >= 0.95 * len(changes) and FASTER not in changes


def test_the_simulated_machine_is_as_bad_as_it_should_be() -> None:
    noise = Noise(seed=2)
    days, rounds = [], []
    for _ in range(1000):
        noise.another_day()
        days.append(noise._day)
        rounds += [noise() / noise(), noise() / noise()]
    assert 2.8 < max(days) / min(days) <= 3
    assert max(rounds) > 10 and min(rounds) < 0.1  # stalls, and changes of the mode
    # Two turns that vary by 10 % each; the outermost hundredths are stalls.
    assert 0.12 < pstdev(sorted(rounds)[20:-20]) < 0.2


# ---- the rank test ----


def exact_p(first: list[float], second: list[float]) -> float:
    """The share of all ways to deal the values out that are at least as uneven as this one."""

    def unevenness(chosen: tuple[int, ...]) -> float:
        mine = [values[i] for i in chosen]
        others = [values[i] for i in range(len(values)) if i not in chosen]
        wins = sum((b > a) + (b == a) / 2 for a in others for b in mine)
        return abs(wins - len(mine) * len(others) / 2)

    values = first + second
    ways = list(itertools.combinations(range(len(values)), len(second)))
    seen = unevenness(tuple(range(len(first), len(values))))
    return sum(unevenness(way) >= seen - 1e-9 for way in ways) / len(ways)


@pytest.mark.parametrize("seed", range(6))
def test_p_of_few_values_is_exact(seed: int) -> None:
    draw = random.Random(seed)
    first = [draw.gauss(0, 1) for _ in range(7)]
    second = [draw.gauss(seed / 3, 1) for _ in range(6)]
    assert p_value(first, second) == pytest.approx(exact_p(first, second))
    assert p_value(first, second) == pytest.approx(p_value(second, first))


@pytest.mark.parametrize("seed", range(6))
def test_p_of_many_values_is_close_to_the_exact_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    first = [draw.gauss(0, 1) for _ in range(18)]
    second = [draw.gauss(seed / 5, 1) for _ in range(22)]
    exact = p_value(first, second)
    monkeypatch.setattr(ranktest, "EXACT", 0)
    assert 0.9 * exact < p_value(first, second) < 2 * exact
    assert p_value(first, second) != exact


def test_p_of_values_with_ties_is_close_to_the_exact_one() -> None:
    first, second = [1.0, 1, 2, 2, 3, 3, 3], [2.0, 3, 3, 4, 4, 4]
    assert p_value(first, second) == pytest.approx(exact_p(first, second), rel=0.3)
    assert p_value([1.0] * 9, [1.0] * 9) == 1.0
    assert p_value([], [1.0]) == 1.0


def test_p_of_equal_sides_is_even_where_nearly_all_values_are_ties() -> None:
    """One in twenty is below 0.05. Without the correction for ties it would be one in forty."""
    draw = random.Random(4)
    low = 0
    for _ in range(1000):
        first, second = ([float(draw.random() < 0.5) for _ in range(40)] for _ in range(2))
        low += p_value(first, second) < 0.05
    assert 35 < low < 70


def test_p_below_a_thousandth_is_not_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts with many rows. Complete separation of 10 and 10 has p = 2 / C(20, 10)."""
    first, second = [float(i) for i in range(10)], [float(i) for i in range(10, 20)]
    assert p_value(first, second) == pytest.approx(2 / 184756)
    monkeypatch.setattr(ranktest, "EXACT", 0)
    assert 2 / 184756 < p_value(first, second) < 1e-3


def test_p_sees_ranks_and_not_sizes() -> None:
    first, second = [1.0, 2, 3, 4, 5, 6, 7, 8], [5.5, 6.5, 7.5, 8.5, 9, 10, 11, 12]
    assert p_value(first, second) < 0.05
    wild = [*second[:-1], 1e9]
    assert p_value(first, wild) == p_value(first, second)


def test_holm_shares_the_level() -> None:
    assert holm([0.01, 0.5, 0.02], 0.05) == [True, False, True]
    assert holm([0.02, 0.5, 0.02], 0.05) == [False, False, False]
    assert holm([0.012, 0.9, 0.9, 0.9], 0.05) == [True, False, False, False]
    assert holm([], 0.05) == []


# ---- verdicts ----


def steady(*args: str, rounds: int = MIN_ROUNDS) -> Report:
    """A machine with hardly any noise, which sees differences of any size."""
    settings, _ = options.parse(["-g", "2", "--rounds", str(rounds), *args])
    report = Report(settings, machine.gather())
    for point in plan.points(settings):
        cells = {
            label: Cell([[10**6 * (1 + 3 * place) + 100 * one] for one in range(rounds)])
            for place, label in enumerate(settings.labels)
        }
        report.rows.append(Row(point, 2, cells))
    return report


def verdicts(comparison: compare.Comparison) -> set[str]:
    return {change.verdict for change in comparison.changes}


def test_a_small_change_is_no_news_however_sure_it_is() -> None:
    old = steady()
    assert compare.compare(old, with_time(old, 1.07)).verdict == EQUAL
    assert compare.compare(old, with_time(old, 0.94)).verdict == EQUAL
    assert compare.compare(old, with_time(old, 1.09, slice(4, 5))).verdict == EQUAL
    assert compare.compare(old, with_time(old, 1.11, slice(4, 5))).verdict == SLOWER
    assert compare.compare(old, with_time(old, 0.90, slice(4, 5))).verdict == FASTER


def test_all_rows_together_show_what_is_too_little_in_each() -> None:
    old = steady()
    for factor, verdict in ((1.09, SLOWER), (0.92, FASTER)):
        compared = compare.compare(old, with_time(old, factor))
        assert verdicts(compared) == {EQUAL}
        assert compared.together == compared.verdict == verdict


def test_what_is_found_in_a_machine_that_is_busy() -> None:
    """A sixth in all rows, where a round varies by half: no single row is sure of it."""
    noise = Noise(seed=8)
    rows = equal = slower = 0
    for _ in range(20):
        old, new = (blurred(simulate(noise), seed) for seed in (1, 2))
        equal += compare.compare(old, new).verdict == EQUAL
        found = compare.compare(old, with_time(new, 1.18))
        slower += found.verdict == SLOWER
        rows += sum(change.verdict == SLOWER for change in found.changes)
    print(f"of 20: {equal} equal, {slower} slower; {rows} rows of {20 * len(old.rows)} slower")
    assert equal >= 19 and slower >= 19 and rows < 10 * len(old.rows)


def blurred(report: Report, seed: int) -> Report:
    """Returns the run with rounds of the first backend that vary by half."""
    draw = random.Random(seed)
    for row in report.rows:
        cell = next(iter(row.cells.values()))
        cell.rounds[:] = [[int(ns * draw.uniform(0.6, 1.6)) for ns in one] for one in cell.rounds]
    return report


@pytest.mark.long
def test_a_phase_that_hits_one_backend_alone_is_no_change_of_the_build() -> None:
    """For some rounds in a row the first backend takes more or less of the reference's time in some of the
    rows: in one run for a tenth of it, in another one for more than half."""
    noise, draw = Noise(seed=9), random.Random(9)
    equal = slower = 0
    for _ in range(40):
        old, new = (phased(simulate(noise), draw) for _ in range(2))
        equal += compare.compare(old, new).verdict == EQUAL
        slower += compare.compare(old, with_time(new, 1.2)).verdict == SLOWER
    print(f"of 40: {equal} equal, {slower} slower")
    assert equal >= 38 and slower >= 38


def phased(report: Report, draw: random.Random) -> Report:
    share = draw.uniform(0.1, 0.6)
    phases: list[tuple[float, float]] = []  # of a round, and how many of the rows feel it
    while len(phases) < report.settings.rounds:
        chosen = (draw.choice((0.5, 1.4, 2.0)), 0.4) if draw.random() < share else (1.0, 0.0)
        phases += [chosen] * draw.randint(3, 8)
    for row in report.rows:
        cell, feels = next(iter(row.cells.values())), draw.random()
        factors = [phase if feels < part else 1.0 for phase, part in phases]
        cell.rounds[:] = [[int(ns * by) for ns in one] for one, by in zip(cell.rounds, factors)]
    return report


def test_what_is_slow_in_most_rounds_only_is_no_phase() -> None:
    """A row that takes a hundred times as long in two rounds of three: a wake-up that gets lost, say."""
    old = simulate(Noise(seed=10))
    new = with_time(old, 1)
    cell = new.rows[3].cells["shmcoll"]
    cell.rounds[:] = [[ns * (100 if i % 3 else 1) for ns in r] for i, r in enumerate(cell.rounds)]
    compared = compare.compare(old, new)
    assert compared.verdict == compared.changes[3].verdict == SLOWER


def test_few_rows_are_not_judged_together() -> None:
    """Their median feels each phase that one of them has."""
    old = steady("-o", "barrier")
    assert compare.compare(old, with_time(old, 1.09)).together == UNKNOWN
    assert compare.compare(old, with_time(old, 1.09)).verdict == EQUAL
    assert compare.compare(old, with_time(old, 1.2)).verdict == SLOWER


def test_one_slower_row_makes_the_whole_slower() -> None:
    old = steady()
    new = with_time(with_time(old, 0.5), 3, slice(4, 5))
    compared = compare.compare(old, new)
    assert compared.verdict == SLOWER
    assert [change.verdict for change in compared.changes].count(FASTER) == len(old.rows) - 1
    assert compared.changes[4].time == pytest.approx(1.5, rel=0.01)


def test_a_drift_of_the_machine_is_taken_out_only_by_a_reference() -> None:
    old = steady()
    drifted = with_time(old, 3)
    for row in drifted.rows:
        row.cells["gloo"] = Cell([[3 * ns for ns in one] for one in row.cells["gloo"].rounds])
    assert compare.compare(old, drifted).verdict == EQUAL
    alone = steady("--backends", "shmcoll")
    compared = compare.compare(alone, with_time(alone, 3))
    assert compared.reference is None and compared.verdict == SLOWER
    assert compared.time == pytest.approx(3, rel=0.01)


def test_the_ruler_is_the_reference_if_both_runs_have_it() -> None:
    first, second = steady("--backends", "shmcoll,ruler,gloo"), steady("--backends", "shmcoll,gloo")
    assert compare.compare(first, first).reference == "ruler"
    assert compare.compare(first, second).reference == "gloo"
    assert compare.compare(first, first, "gloo").reference == "gloo"


def test_a_build_that_is_broken_now_is_slower() -> None:
    old = steady()
    for spoil in (lambda cell: setattr(cell, "wrong", 1), lambda cell: setattr(cell, "error", "x")):
        new = with_time(old, 1)
        spoil(new.rows[2].cells["shmcoll"])
        compared = compare.compare(old, new)
        assert (compared.verdict, compared.changes[2].verdict) == (SLOWER, "BROKEN")
        assert compare.compare(new, old).changes[2].verdict == UNKNOWN


def test_a_row_that_the_reference_refuses_has_no_verdict() -> None:
    old, new = steady("-o", "barrier"), steady("-o", "barrier")
    new.rows[0].cells["gloo"].error = "not supported"
    assert compare.compare(old, new).verdict == UNKNOWN


@pytest.mark.parametrize("rounds", [1, 5, MIN_ROUNDS - 1])
def test_too_few_rounds_give_no_verdict(rounds: int) -> None:
    few, enough = steady(rounds=rounds), steady()
    for old, new in ((few, enough), (enough, few), (few, few)):
        compared = compare.compare(old, with_time(new, 2))
        assert compared.verdict == TOO_FEW and verdicts(compared) == {TOO_FEW}


# ---- the command ----


def run(tmp_path: Path, old: Report, new: Report, *args: str) -> int:
    old.write_json(tmp_path / "old.json")
    new.write_json(tmp_path / "new.json")
    return cli.main(["compare", *args, str(tmp_path / "old.json"), str(tmp_path / "new.json")])


def test_the_exit_code_is_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = steady("--backends", "shmcoll,gloo,mpi")
    assert run(tmp_path, old, old) == 0
    out = capsys.readouterr().out
    assert "mpi / shmcoll" in out and out.splitlines()[-1] == "# overall: equal"
    assert run(tmp_path, old, with_time(old, 0.5), "--reference", "gloo") == 0
    out = capsys.readouterr().out
    assert "gloo / shmcoll" in out and "-50.0 %" in out and out.endswith("# overall: faster\n")
    assert run(tmp_path, old, with_time(old, 1.5)) == 1
    out = capsys.readouterr().out
    assert f"# rows: {len(old.rows)} slower" in out and "+50.0 %" in out
    assert run(tmp_path, old, dataclasses.replace(old, rows=old.rows[1:])) == 0
    assert "# 1 row is in one file only" in capsys.readouterr().out
    assert run(tmp_path, steady(rounds=5), old, "--reference", "gloo") == 2
    out = capsys.readouterr().out
    assert f"measure both with --rounds {MIN_ROUNDS}" in out
    assert out.endswith("# overall: too few rounds\n")


def test_times_without_a_reference_come_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = steady("--backends", "shmcoll")
    assert run(tmp_path, alone, steady("--backends", "shmcoll,gloo")) == 0
    assert "the drift of the machine between the runs is NOT taken out" in capsys.readouterr().out


def test_rounds_that_disagree_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calm = busy = simulate(Noise(seed=6))
    assert run(tmp_path, calm, calm) == 0
    assert "rounds of a run" not in capsys.readouterr().out
    for row in busy.rows:
        rounds = row.cells["gloo"].rounds
        rounds[::2] = [[3 * ns for ns in one] for one in rounds[::2]]
    assert run(tmp_path, busy, busy) == 0
    out = capsys.readouterr().out
    rows = len(busy.rows)
    assert (
        f"# ~: varied by more than 1.5x between the rounds of a run: {rows} of {rows} rows" in out
    )
    assert out.count("~equal") == rows
    assert f"# time of shmcoll, mean withheld: {rows} of {rows} rows vary too much" in out


@pytest.mark.parametrize("which", ["old", "new"])
def test_a_busy_machine_is_told_and_gets_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    """Whatever the rows say, except for wrong values."""
    quiet = Activity(1.0, 2, own_s=1.9, busy_s=1.95, steal_s=0.0)
    busy = Activity(1.0, 2, own_s=0.6, busy_s=2.0, steal_s=0.0)
    runs = {"old": steady(), "new": with_time(steady(), 1.5)}
    for name, report in runs.items():
        for row in report.rows:
            row.activity = [busy if name == which else quiet]
    assert run(tmp_path, runs["old"], runs["new"]) == 2
    out = capsys.readouterr().out
    assert f"# {which}: busy machine: other processes used 1.4 of 2 CPUs" in out
    assert f"# busy machine in the {which} run: nothing is called changed; measure again" in out
    rows = len(runs["old"].rows)
    assert f"geometric mean of {rows} of {rows} rows: (+50.0 %, on a busy machine)" in out
    assert out.endswith("# overall: no verdict\n")
    runs["new"].rows[3].cells["shmcoll"].wrong = 1
    assert run(tmp_path, runs["old"], runs["new"]) == 1


def in_mode(report: Report, *speeds: float) -> Report:
    """Returns the run as if its rounds had, in turn, measured these speeds of another rank's lines."""

    def placed(row: Row) -> Row:
        if row.point.op != "all_reduce":
            return row
        rounds = len(row.cells["shmcoll"].rounds)
        return dataclasses.replace(
            row, exchange_gbs=[speeds[i % len(speeds)] for i in range(rounds)]
        )

    return dataclasses.replace(report, rows=[placed(row) for row in report.rows])


def test_runs_in_different_modes_of_the_machine_get_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = simulate(Noise(seed=6))
    slower = with_time(calm, 1.3)
    near, far = in_mode(calm, 75.0, 70.0, 80.0), in_mode(slower, 36.0, 34.0, 75.0)
    assert run(tmp_path, near, far) == 2
    out = capsys.readouterr().out
    assert "at 75 GB/s, then at 36; measure both again" in out and "overall: no verdict" in out
    assert {change.verdict for change in compare.compare(near, far).changes} == {UNKNOWN}
    # One mode, or nobody has looked.
    for before in (in_mode(calm, 70.0, 75.0, 80.0), calm):
        for mode in ((), (65.0, 70.0, 36.0)):
            after = in_mode(slower, *mode) if mode else slower
            assert run(tmp_path, before, after) == 1
            assert "overall: slower" in capsys.readouterr().out
    # What is wrong is so in every mode.
    far.rows[3].cells["shmcoll"].wrong = 1
    assert run(tmp_path, near, far) == 1


@pytest.mark.parametrize(
    ("other", "args", "said"),
    [
        (("--backends", "gloo,shmcoll"), (), "the first backends differ: shmcoll and gloo"),
        (("-g", "3"), (), "nproc differs: 2 and 3"),
        (("--cache", "cold"), (), "cache differs: hot and cold"),
        (("-o", "scatter"), (), "the two files have no row (operation, size, dtype) in common"),
        ((), ("--reference", "mpi"), "--reference mpi: not measured with shmcoll in both files"),
        (
            (),
            ("--reference", "shmcoll"),
            "--reference shmcoll: not measured with shmcoll in both files",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_one_clear_line(
    other: tuple[str, ...],
    args: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, steady(), steady(*other), *args) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert err.startswith(f"shmcoll.bench compare: {said}")


def test_a_file_that_cannot_be_read_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steady().write_json(tmp_path / "old.json")
    assert cli.main(["compare", str(tmp_path / "old.json"), str(tmp_path / "no.json")]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"shmcoll.bench compare: {tmp_path}/no.json: No such file or directory\n",
    )


def test_help_says_how_many_rounds_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", "--help"])
    assert stop.value.code == 0
    assert f"--rounds {MIN_ROUNDS} or more" in capsys.readouterr().out
