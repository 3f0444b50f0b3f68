# SPDX-License-Identifier: BSD-3-Clause
"""What the bench makes of rounds that disagree, and of a machine that is busy with something else."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shmcoll.bench import cli, machine, options, plan, results
from shmcoll.bench.judge import noise
from shmcoll.bench.show import grids, page, plot, table
from shmcoll.bench.judge.noise import Activity, Watch, disagree, spread, together, words
from shmcoll.bench.results import Cell, Report, Row

pytestmark = pytest.mark.timeout(120)

QUIET = Activity(1.0, 2, own_s=1.9, busy_s=1.92, steal_s=0.0, load=2.1, runnable=0.2)
BUSY = Activity(1.0, 2, own_s=0.5, busy_s=1.9, steal_s=0.0, load=30.4, runnable=6.0)

# Of five rounds, in us. A stall in one of them, or a drift by a third, is no news.
AGREE = ([7, 7, 7, 7, 1000], [6, 7, 8, 9, 8], [5.0] * 5)
DISAGREE = ([7, 7, 1000, 1000, 1045], [7, 7, 7, 11, 12], [1, 1, 1, 90, 100])


# ---- rounds ----


def test_rounds_agree_within_half_of_the_lower_quartile() -> None:
    assert [disagree(rounds) for rounds in AGREE] == [False] * 3
    assert [disagree(rounds) for rounds in DISAGREE] == [True] * 3
    assert spread([10, 10, 12, 15, 15]) == 1.5 and not disagree([10, 10, 12, 15, 15])
    assert disagree([10, 10, 12, 15.1, 15.1])
    assert spread([3.0]) == spread([]) == 1.0  # nothing to compare
    assert disagree([0.0, 0.0, 0.0, 1.0])


# ---- the machine ----


def proc(root: Path, cpu0: str, cpu1: str, loadavg: str = "1.5 1 1 4/99 7") -> None:
    (root / "proc").mkdir(exist_ok=True)
    head = "cpu 9 9 9 9 9 9 9 9 9 9"
    (root / "proc/stat").write_text(f"{head}\ncpu0 {cpu0}\ncpu1 {cpu1}\nintr 5 6\n")
    (root / "proc/loadavg").write_text(loadavg + "\n")


def watched(root: Path, own_s: list[float], after: tuple[str, ...], **cpus: set[int]) -> Activity:
    """Returns the activity of a period in which /proc changes to this, with these times of our processes."""
    found: list[Activity] = []
    with Watch(lambda: own_s.pop(0), cpus.get("cpus", {0, 1}), root).over(found.append):
        proc(root, *after)
    return replace(found[0], seconds=2.0)


def test_others_are_what_the_cpus_did_less_our_own_time(tmp_path: Path) -> None:
    hz = os.sysconf("SC_CLK_TCK")
    # user nice system idle iowait irq softirq steal: what interrupts take may be our own sockets'.
    proc(tmp_path, "100 0 50 900 7 3 5 0 0 0", "100 0 0 0 0 0 0 0 0 0")
    after = (f"{100 + hz} {hz} {50 + hz} 900 99 999 999 {hz // 2} 0 0", "100 0 0 0 0 0 0 0 0 0")
    seen = watched(tmp_path, [10.0, 11.0], (*after, "3.25 1 1 9/99 7"))
    assert (seen.busy_s, seen.own_s, seen.steal_s) == (3.0, 1.0, 0.5)
    assert (seen.others, seen.steal) == (1.0, 0.25)  # CPUs, over two seconds
    assert (seen.load, seen.runnable) == (3.25, 5.5)  # except this process: 3, then 8
    assert seen.busy


def test_what_runs_on_other_cpus_does_not_count(tmp_path: Path) -> None:
    hz = os.sysconf("SC_CLK_TCK")
    proc(tmp_path, "1 0 0 0 0 0 0 0", "1 0 0 0 0 0 0 0")
    seen = watched(tmp_path, [0.0, 0.0], ("1 0 0 0 0 0 0 0", f"{hz} 0 0 0 0 0 0 0"), cpus={0})
    assert (seen.cpus, seen.others, seen.busy) == (1, 0.0, False)


def test_what_proc_does_not_tell_is_not_called_quiet(tmp_path: Path) -> None:
    (nothing := tmp_path / "nothing").mkdir()
    zeros = tmp_path / "zeros"
    zeros.mkdir()
    proc(zeros, "0 0 0 0 0 0 0 0", "0 0 0 0 0 0 0 0")
    for root in (nothing, zeros):
        found: list[Activity] = []
        with Watch(lambda: 1.0, {0, 1}, root).over(found.append):
            pass
        seen = replace(found[0], seconds=2.0)
        assert seen.others is None and not seen.busy
        assert words(seen).startswith("machine: unknown, /proc/stat does not tell")
    tick = Activity(0.01, 2, own_s=0.0, busy_s=0.02, steal_s=0.0)  # all of it, or next to nothing
    assert tick.others is None and not tick.busy
    assert words(tick).startswith("machine: unknown, timed too shortly to tell")
    assert words(None) == "machine: other processes were not watched"


def test_the_time_of_a_process_has_its_threads_and_no_one_elses() -> None:
    before = noise.process_s(os.getpid())
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    assert 0.02 <= noise.process_s(os.getpid()) - before <= time.process_time()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert noise.process_s(pid) == 0.0


def test_a_tenth_of_the_cpus_is_busy_and_steal_counts() -> None:
    def took(others: float, steal: float = 0.0, cpus: int = 2) -> bool:
        return Activity(900.0, cpus, 900.0, 900 * (1 + others), 900 * steal).busy

    assert [took(0.1), took(0.19), took(0.21), took(0.1, 0.12)] == [False, False, True, True]
    assert not took(1.4, cpus=16) and took(1.7, cpus=16)


def test_few_ticks_must_show_more() -> None:
    """In a row of 0.4 s on two CPUs, 80 ticks, a quiet machine may show 13 of other processes."""

    def took(others_s: float) -> bool:
        return Activity(0.4, 2, 0.6, 0.6 + others_s, 0.0).busy

    assert [took(0.1), took(0.19), took(0.25), took(0.6)] == [False, False, True, True]


def test_ticks_are_summed_before_they_are_judged() -> None:
    """A round of some ms may have more ticks or fewer than it used."""
    rounds = [Activity(0.08, 2, 0.16, busy, 0.0) for busy in (0.1, 0.22, 0.1, 0.22)]
    all_rounds = together(rounds)
    assert all_rounds is not None
    assert all_rounds.others == pytest.approx(0.0) and not all_rounds.busy
    assert together([]) is None


# ---- a run ----


def run_of(
    ours: list[list[float]], theirs: list[list[float]], machine_did: Activity | None = QUIET
) -> Report:
    """all_reduce at as many sizes as there are lists of rounds, in us."""
    last = 8 << (len(ours) - 1)
    args = ["-g", "2", "-o", "all_reduce", "-b", "8", "-e", str(last), "-f", "2", "--rounds", "5"]
    settings, _ = options.parse(args)
    points = plan.points(settings)
    report = Report(settings, machine.gather(), points=len(points))
    for point, *both in zip(points, ours, theirs):
        cells = {
            label: Cell([[int(1000 * us)] for us in rounds])
            for label, rounds in zip(settings.labels, both)
        }
        row = Row(point, 2, cells)
        row.activity = [machine_did] * 5 if machine_did else []
        report.rows.append(row)
    return report


def steady(us: float, rows: int = 4) -> list[list[float]]:
    return [[us] * 5 for _ in range(rows)]


def one_wild_row(machine_did: Activity = QUIET) -> Report:
    """As it was printed on a machine of load 30: 1045 us next to 7."""
    ours = steady(7)
    ours[1] = list(DISAGREE[0])
    return run_of(ours, steady(140), machine_did)


def line_of(report: Report, number: int) -> list[str]:
    return table.Table(report.settings.labels).line(report.rows[number]).split()


def test_a_row_that_disagrees_is_marked_and_its_ratio_in_brackets() -> None:
    report = one_wild_row()
    assert [row.noisy for row in report.rows] == [False, True, False, False]
    assert line_of(report, 0)[6:12] == ["7.00", "0.00", "140.0", "0.00", "20.0x", "0"]
    assert line_of(report, 1)[6:12] == ["~1000.0", "0.00", "140.0", "0.00", "(0.14x)", "0"]
    said = table.summary(report)
    assert "# ~ and brackets: 1 of 4 rows varied by more than 1.5x between rounds" in said
    assert (
        "# quiet machine: other processes used 0.0 of 2 CPUs (0 runnable, load average 2.1)" in said
    )


def test_a_headline_leaves_out_rows_that_disagree_and_says_so() -> None:
    (headline,) = one_wild_row().headlines()
    assert headline.mean == pytest.approx(20) and (headline.used, headline.noisy) == (3, 1)
    assert table.summary(one_wild_row())[0] == (
        "# all_reduce: time of gloo / shmcoll: 20.0x, geometric mean of 3 of 4 rows (1 varied too much)"
    )
    assert table.summary(run_of(steady(7), steady(140)))[0] == (
        "# all_reduce: time of gloo / shmcoll: 20.0x, geometric mean of 4 of 4 rows"
    )


def test_a_headline_of_less_than_half_of_its_rows_is_withheld() -> None:
    report = run_of([*steady(7, 1), *([list(DISAGREE[0])] * 3)], steady(140))
    (headline,) = report.headlines()
    assert (headline.mean, headline.used, headline.noisy) == (None, 1, 3)
    assert table.summary(report)[0] == (
        "# all_reduce: time of gloo / shmcoll: withheld, only 1 of 4 rows (3 varied too much) left"
    )


def test_rows_of_a_busy_machine_stand_in_brackets_and_make_no_headline() -> None:
    """Also where their rounds agree: all of them had the same company."""
    report = run_of(steady(7), steady(140), BUSY)
    assert all(row.noisy and not row.varied for row in report.rows) and report.busy
    assert line_of(report, 0)[6:12] == ["7.00", "0.00", "140.0", "0.00", "(20.0x)", "0"]
    report.rows[0].cells["gloo"].rounds.clear()  # as of a type that a backend does not have
    assert line_of(report, 0)[8:12] == ["-", "-", "-", "0"]
    said = table.summary(run_of(steady(7), steady(140), BUSY))
    assert said[0].endswith("withheld, only 0 of 4 rows (4 on a busy machine) left")
    assert (
        "# busy machine: other processes used 1.4 of 2 CPUs (6 runnable, load average 30.4)" in said
    )
    assert "# brackets: 4 of 4 rows were measured on a busy machine" in said
    assert all(table.note_style(line) == "bold yellow" for line in said[:3])


def test_a_headline_stands_in_brackets_if_the_run_as_a_whole_was_on_a_busy_machine() -> None:
    """Each row may be too short to tell."""
    some = Activity(0.1, 2, own_s=0.1, busy_s=0.17, steal_s=0.0)
    report = run_of(steady(7), steady(140))
    for row in report.rows:
        row.activity = [some]
    assert not any(row.busy for row in report.rows) and report.busy
    assert "20.0x on a busy machine), geometric mean of 4 of 4 rows" in table.summary(report)[0]


def test_a_drift_that_both_backends_feel_marks_times_and_no_ratio() -> None:
    drift = [[7, 7, 14, 14, 14]] * 4
    report = run_of(drift, [[20 * us for us in rounds] for rounds in drift])
    assert line_of(report, 0)[6:12] == ["~14.00", "0.00", "~280.0", "0.00", "20.0x", "0"]
    assert report.headlines()[0].used == 4


def test_a_mean_of_missing_or_interrupted_rows_says_so() -> None:
    report = run_of(steady(7), steady(140))
    report.rows[1].cells["gloo"].error = "refused"
    report.rows[2].cells["gloo"].rounds.pop()
    assert table.summary(report)[0].endswith(
        "20.0x, geometric mean of 2 of 4 rows (1 cut short, 1 without a ratio)"
    )
    report = run_of(steady(7), steady(140))
    report.rows.pop()  # Ctrl-C came before it
    assert table.summary(report)[0].endswith("geometric mean of 3 of 4 rows (1 without a ratio)")


def test_one_round_is_not_called_steady() -> None:
    report = run_of(steady(7), steady(140))
    report.settings = replace(report.settings, rounds=1)
    assert "# one round: nothing tells whether rounds agree" in table.summary(report)


def test_the_json_has_what_is_noisy_and_what_the_machine_did(tmp_path: Path) -> None:
    report = one_wild_row(BUSY)
    report.write_json(tmp_path / "x.json")
    data = json.loads((tmp_path / "x.json").read_text())
    assert [row["noisy"] for row in data["results"]] == [True] * 4
    assert [row["noisy"] for row in one_wild_row().as_json()["results"]] == [
        *(False, True, False, False)
    ]
    cells, ratios = data["results"][1]["backends"], data["results"][1]["ratios"]
    assert (cells["shmcoll"]["noisy"], cells["gloo"]["noisy"]) == (True, False)
    assert ratios["gloo"]["noisy"] is True
    assert data["results"][0]["activity"][0]["busy_s"] == 1.9
    assert data["noise"]["busy"] is True and data["noise"]["noisy_rows"] == 4
    assert data["noise"]["others_cpus"] == pytest.approx(1.4)
    assert (data["headlines"][0]["mean"], data["headlines"][0]["busy"]) == (None, 4)
    assert results.read(tmp_path / "x.json") == report


def test_the_page_and_the_picture_say_it_in_words() -> None:
    busy, calm = one_wild_row(BUSY), run_of(steady(7), steady(140))
    text = page.render(busy)
    assert '<p class="warn">Busy machine: other processes used 1.4 of 2 CPUs' in text
    assert "(0.14x)" in text and "~1000.0" in text
    assert text.count('class="c0 noisy"') == 1 and text.count('class="c1 noisy"') == 4
    assert "varied by more than 1.5x between rounds, or measured on a busy machine</title>" in text
    assert page.render(one_wild_row()).count('class="c1 noisy"') == 1
    assert "busy machine: other processes used 1.4" in " ".join(
        text.get_text() for text in plot.draw(busy).texts
    ).replace("\n", " ")
    text = page.render(calm)
    assert "usy machine:" not in text and 'noisy"' not in text


def test_the_legend_of_a_small_picture_is_not_cut() -> None:
    figure = plot.draw(one_wild_row(BUSY))
    (legend,) = figure.legends
    assert "measured on a busy machine" in legend.get_texts()[-1].get_text()
    figure.canvas.draw()  # lays the picture out
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width, box


def test_a_pair_whose_rounds_disagree_is_marked() -> None:
    settings, _ = options.parse(["-g", "2", "--matrix", "--backends", "gloo"])
    report = Report(settings, machine.gather())
    for point in plan.points(settings):
        rounds = [[int(1000 * us)] for us in (DISAGREE[0] if point.pair == (0, 1) else AGREE[0])]
        report.rows.append(Row(point, 2, {"gloo": Cell(rounds)}))
    time_grid = grids.grids(report)[0]
    assert (time_grid.text((0, 1)), time_grid.text((1, 0))) == ("~1000", "7.00")


def test_the_first_backend_that_cannot_be_used_is_no_success() -> None:
    report = run_of(steady(7), steady(140))
    assert cli._exit_code(report) == 0
    report.unusable["gloo"] = "not in this torch"
    assert cli._exit_code(report) == 0
    report.unusable = {"shmcoll": "no /dev/shm"}
    assert cli._exit_code(report) == cli.EXIT_UNUSABLE
    said = table.summary(report)
    assert "# NOTHING IS COMPARED: shmcoll, the first backend, cannot be used" in said
    assert "# shmcoll: cannot be used: no /dev/shm" in said
