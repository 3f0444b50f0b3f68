# SPDX-License-Identifier: BSD-3-Clause
"""The ways in which python -m shmcoll.bench can measure: columns, places, caches, modes, groups."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
import ranks
import torch
import torch.distributed as dist
from bench_runs import TINY, rows_of, run_bench

from shmcoll.bench.run import rank as bench_rank
from shmcoll.bench import machine, options, plan
from shmcoll.bench.run import calls, exercise, over_torch, startline
from shmcoll.bench.show import table
from shmcoll.bench.run.buffers import Buffers
from shmcoll.bench.run.calls import Call, Context
from shmcoll.bench.run.torch_team import Team
from shmcoll.bench.run.measure import Measurement
from shmcoll.bench.ops import DTYPES, OPS
from shmcoll.bench.plan import Point
from shmcoll.bench.presets import PRESETS
from shmcoll.bench.results import Cell, Row
from shmcoll.bench.run.startline import StartLine

pytestmark = pytest.mark.timeout(120)


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that bad usage is told with."""
    with pytest.raises(SystemExit) as stop:
        options.parse(args)
    assert stop.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# ---- --columns ----


def test_the_columns_of_spread_are_those_asked_for() -> None:
    cells = {"a": Cell(rounds=[[1000, 2000], [2000, 3000]]), "b": Cell(error="refused")}
    row = Row(Point("all_reduce", "float32", 2, 8), 2, cells)
    one = table.Table(("a", "b"), ("max", "cv", "p99", "min"))
    groups, names, units = one.header()
    line = one.line(row)
    assert len(line) == len(names)
    assert names.split()[7:12] == ["time", "max", "cv", "p99", "min"]
    assert units.split().count("(%)") == 2
    # The standard deviation of 1, 2, 2, 3 is the root of 0.5.
    assert line.split()[6:12] == ["2.00", "3.00", "35.4", "3.00", "1.00", "0.00"]
    assert line.split()[12:18] == ["-"] * 6
    assert groups.index("- b -") > names.index("busbw")


def test_columns_must_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert options.parse(["--columns", "all"])[0].columns == ("p99", "min", "max", "cv")
    wrong = refusal(capsys, "--columns", "p99,p98")
    assert "--columns: no column 'p98'; did you mean p99?" in wrong


# ---- --place ----


def places(*args: str) -> list[tuple[str, str]]:
    settings, _ = options.parse(["-b", "64", "-e", "64", *args])
    return [(point.op, point.place) for point in plan.points(settings)]


def test_the_places_of_an_operation_are_those_that_torch_allows() -> None:
    ops = ("-o", "all_reduce,all_gather,all_to_all,barrier")
    assert places(*ops) == [
        ("all_reduce", "in"),
        ("all_gather", "out"),
        ("all_to_all", "out"),
        ("barrier", "-"),
    ]
    assert places("--place", "in", *ops) == [("all_reduce", "in"), ("all_gather", "in")]
    assert places("--place", "out", *ops) == [("all_gather", "out"), ("all_to_all", "out")]
    assert places("--place", "both", "-o", "reduce_scatter,barrier") == [
        ("reduce_scatter", "out"),
        ("reduce_scatter", "in"),
        ("barrier", "-"),
    ]


def test_a_place_that_no_operation_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no operation of all_to_all has it" in refusal(
        capsys, "--place", "in", "-o", "all_to_all"
    )
    assert "no place 'here'; there is natural, in, out, both" in refusal(capsys, "--place", "here")


@pytest.mark.parametrize("place", ["in", "out"])
def test_in_place_the_own_block_lies_in_the_large_tensor(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    found, held = [], []

    def all_gather(everyone: torch.Tensor, mine: torch.Tensor) -> None:
        held.extend([everyone, mine])
        found.append(mine.data_ptr() == everyone.data_ptr() + 100 * 4)
        for rank, block in enumerate(everyone.chunk(3)):
            block.copy_(calls.pattern(rank, 100, 7, DTYPES["float32"]))

    def reduce_scatter(mine: torch.Tensor, everyone: torch.Tensor) -> None:
        held.extend([everyone, mine])
        found.append(mine.data_ptr() == everyone.data_ptr() + 100 * 4)
        parts = [calls.pattern(r, 300, 7, DTYPES["float32"], addends=3) for r in range(3)]
        mine.copy_(sum(parts)[100:200])

    monkeypatch.setattr(f"torch.distributed.{over_torch.ALL_GATHER}", all_gather)
    monkeypatch.setattr(f"torch.distributed.{over_torch.REDUCE_SCATTER}", reduce_scatter)
    for op in ("all_gather", "reduce_scatter"):
        point = Point(op, "float32", 100, 1200, place)
        context = Context(1, range(3), StartLine(startline.create(3), 1, 3))
        call = calls.prepare(point, context)
        task = exercise.Latency([call], context)
        assert task.check(7) == 0
        assert task.check(8) > 80  # the values of 7 are not those of 8
    assert found == [place == "in"] * 4
    assert not any(tensor.any() for tensor in held)  # what is timed adds zeros


# ---- --cache ----


def buffers_of(*args: str, cache: int | None = 1 << 20, memory: int = 1 << 32) -> Buffers:
    facts = replace(machine.gather(), cache_bytes=cache, memory_available_bytes=memory)
    return Buffers(options.parse(["--backends", "a,b", "-g", "2", *args])[0], facts)


def copies(buffers: Buffers, *sizes: int) -> list[int]:
    return [buffers.copies(Point("all_reduce", "float32", size // 4, size)) for size in sizes]


def test_cold_buffers_are_twice_the_cache_or_last_for_a_round() -> None:
    assert copies(buffers_of(), 8, 1 << 30) == [1, 1]
    assert buffers_of().sweep_bytes == 0
    cold = buffers_of("--cache", "cold")
    assert cold.sweep_bytes == 2 << 20
    assert copies(cold, 8, 65536, 65540, 1 << 20, 1 << 24) == [500, 32, 32, 2, 2]
    assert copies(buffers_of("--cache", "cold", "-n", "20"), 8, 65536, 1 << 20) == [20, 20, 2]
    assert cold.copies(Point("barrier", None, 0, 0)) == 1
    assert cold.notes([Point("all_reduce", "float32", 1, 4)]) == []


def test_cold_buffers_take_half_the_memory_and_say_when_that_is_too_little() -> None:
    points = [Point("all_reduce", "float32", size // 4, size) for size in (8, 1 << 16, 1 << 18)]
    # 8 MiB, half of it for 4 ranks: 1 MiB each, half of it for copies that count twice.
    short = buffers_of("--cache", "cold", memory=8 << 20)
    assert [short.copies(point) for point in points] == [500, 4, 2]
    first, second = short.notes(points)
    assert "not cold: twice the last level cache is too much for 1 MiB" in first
    assert "not all cold from 65536 bytes to 262144" in second
    (unknown,) = buffers_of("--cache", "cold", cache=None, memory=1 << 40).notes(points)
    assert "not in /sys; 64 MiB assumed" in unknown


def test_the_cache_is_the_largest_and_the_memory_the_least(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert machine.cache_bytes(tmp_path) is None
    write("sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n")
    write("sys/devices/system/cpu/cpu1/cache/index3/size", "32768K\n")
    write("sys/devices/system/cpu/cpufreq/size", "99999K\n")
    assert machine.cache_bytes(tmp_path) == 32 << 20

    write("proc/meminfo", "MemFree: 5 kB\nMemAvailable:   4096 kB\n")
    assert machine.memory_available_bytes(tmp_path) == 4 << 20
    write("proc/self/cgroup", "0::/a/b\n")
    write("sys/fs/cgroup/a/b/memory.max", "max\n")
    write("sys/fs/cgroup/a/b/memory.current", "1\n")
    assert machine.memory_available_bytes(tmp_path) == 4 << 20
    write("sys/fs/cgroup/a/memory.max", "3000\n")
    write("sys/fs/cgroup/a/memory.current", "1000\n")
    assert machine.memory_available_bytes(tmp_path) == 2000
    write("proc/self/cgroup", "4:memory:/x\n")
    write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "500\n")
    write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "600\n")
    assert machine.memory_available_bytes(tmp_path) == 0


class Notes:
    """Calls that note what is done to them; an operation may be asynchronous."""

    def __init__(self, count: int, wrong: int | None = None) -> None:
        self.done: list[tuple[str, int, int]] = []  # what, to which call, with which number
        self.calls = [self._call(k, wrong) for k in range(count)]

    def _call(self, k: int, wrong: int | None) -> Call:
        def note(what: str, number: int) -> None:
            self.done.append((what, k, number))

        def run(number: int) -> SimpleNamespace:
            note("run", number)
            return SimpleNamespace(wait=lambda: note("wait", number))

        def take(number: int) -> int:
            note("take", number)
            return int(k == wrong)

        return Call(run, lambda number: note("give", number), take)

    def all(self, what: str) -> list[tuple[int, int]]:
        return [(k, number) for name, k, number in self.done if name == what]


def alone() -> Context:
    return Context(0, range(1), StartLine(startline.create(1), 0, 1))


def test_operations_take_turns_over_the_copies_and_all_are_checked() -> None:
    notes = Notes(3, wrong=2)
    task = exercise.Latency(notes.calls, alone())
    (readings,) = task.time(7, 10**12)
    assert notes.all("run") == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5), (0, 6)]
    assert [len(times) for times in readings] == [7, 7]
    notes.done.clear()
    assert task.check(5) == 1
    numbers = [(0, 5), (1, 5 + (1 << 16)), (2, 5 + (2 << 16))]
    assert [notes.all(what) for what in ("give", "run", "wait", "take")] == [numbers] * 4


# ---- --mode ----


def test_a_window_of_operations_is_under_way_and_checked_so() -> None:
    notes = Notes(9)
    task = exercise.Throughput(notes.calls, alone())
    (readings,) = task.time(2, 10**12)
    assert [len(times) for times in readings] == [2, 2]
    taken = [(i % 9, i) for i in range(16)]
    assert notes.all("run") == notes.all("wait") == taken
    order = [what for what, _, _ in notes.done]
    assert order == (["run"] * 8 + ["wait"] * 8) * 2
    notes.done.clear()
    assert task.check(1) == 0
    order = [what for what, _, _ in notes.done]
    steps = ("give", "run", "wait", "take")
    assert order == [what for what in steps for _ in range(8)] + list(steps)


def test_another_rank_is_late_in_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(exercise, "monotonic_ns", lambda: next(clock))
    notes = Notes(2)
    task = exercise.Skew(notes.calls, replace(alone(), rank=1, members=range(3)), 50_000)
    ((called, returned),) = task.time(7, 10**12)
    # From one return to the next call the clock is looked at three times, and until the end of
    # what a late rank waits.
    gaps = [call - before for before, call in zip(returned, called[1:])]
    assert [gap >= 50_000 for gap in gaps] == [True, False, False, True, False, False]
    assert [after - before for before, after in zip(called, returned)] == [1000] * 7
    assert notes.all("run") == [(0, 0), (1, 0), (0, 0), (1, 1), (0, 1), (1, 1), (0, 2)]


class Canned:
    """A team whose ranks read their clocks as told."""

    label = "canned"
    own_clocks = False

    def __init__(self, *phases: list[list[list[int]]]) -> None:
        self._replies = [{"phases": list(of_rank)} for of_rank in phases]

    def prepare(self, point: Point, copies: int, sweep_bytes: int) -> None:
        pass

    def check(self, salt: int) -> int:
        return 0

    def time(self, iterations: int, budget_ns: int) -> list[dict[str, list[list[list[int]]]]]:
        return self._replies


def cell_of(team: Canned, op: str, *args: str) -> Cell:
    settings, _ = options.parse(["--backends", "x", "--rounds", "1", *args])
    measurement = Measurement([team], settings, buffers_of())
    ((row, complete),) = measurement.rows([Point(op, "float32", 1, 4)])
    assert complete
    return row.cells[team.label]


def test_time_is_that_of_a_window_by_its_operations_or_from_the_late_call() -> None:
    team = Canned([[[0, 820], [800, 1600]]], [[[10, 830], [790, 1616]]])
    assert cell_of(team, "broadcast", "-g", "2", "--mode", "throughput").rounds == [[100, 99]]
    # Rank 0 is late, then rank 1.
    assert cell_of(team, "all_reduce", "-g", "2", "--mode", "skew").rounds == [[800, 786]]
    assert cell_of(team, "all_reduce", "-g", "2").rounds == [[800, 796]]
    assert cell_of(team, "broadcast", "-g", "2").rounds == [[800, 786]]
    assert cell_of(team, "ping_pong", "-g", "2").rounds == [[400, 398]]  # one way of it


def test_a_ping_that_does_not_come_back_as_it_went_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = []

    def send(tensor: torch.Tensor, to: int, group: object) -> None:
        done.append(("send", to, int(tensor.ne(0).sum())))

    def recv(tensor: torch.Tensor, of: int, group: object) -> None:
        done.append(("recv", of, 0))
        tensor.copy_(calls.pattern(come, 100, 7, DTYPES["float32"]))

    monkeypatch.setattr("torch.distributed.send", send)
    monkeypatch.setattr("torch.distributed.recv", recv)
    for rank, come, wrong in ((2, 2, False), (2, 3, True), (3, 2, False), (3, 3, True)):
        context = Context(rank, range(5), StartLine(startline.create(5), rank, 5))
        call = calls.prepare(Point("ping_pong", "float32", 100, 400, "out"), context)
        assert (exercise.Latency([call], context).check(7) > 90) == wrong
    assert [what for what, _, _ in done] == ["send", "recv"] * 2 + ["recv", "send"] * 2
    assert [peer for _, peer, _ in done] == [3] * 4 + [2] * 4
    assert all(filled > 90 for what, _, filled in done if what == "send")
    context = Context(4, range(5), StartLine(startline.create(5), 4, 5))
    alone = calls.prepare(Point("ping_pong", "float32", 100, 400, "out"), context)
    assert exercise.Latency([alone], context).check(7) == 0 and len(done) == 8


FUNCTIONS = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": over_torch.ALL_GATHER,
    "reduce_scatter": over_torch.REDUCE_SCATTER,
    "all_to_all": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_every_operation_is_called_as_the_context_says(
    monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    found = []

    def call(*args: object, **how: object) -> str:
        found.append(how)
        return "its work"

    monkeypatch.setattr(f"torch.distributed.{FUNCTIONS[op]}", call)
    how = {"async_op": True}
    ready = calls.prepare(Point(op, "float32", 2, 8), replace(alone(), how=how))
    assert ready.run(0) == "its work"
    assert found == [how]


def test_messages_are_waited_for_unless_they_are_asynchronous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = []
    works = [SimpleNamespace(wait=lambda k=k: waited.append(k)) for k in range(2)]
    monkeypatch.setattr("torch.distributed.P2POp", lambda *args: args)
    monkeypatch.setattr("torch.distributed.batch_isend_irecv", lambda ops: works)
    point = Point("sendrecv", "float32", 2, 8)
    assert calls.prepare(point, alone()).run(0) is None
    assert waited == [0, 1]
    work = calls.prepare(point, replace(alone(), how={"async_op": True})).run(0)
    assert waited == [0, 1]
    work.wait()
    assert waited == [0, 1, 0, 1]


def test_skew_is_some_microseconds_of_the_mode_skew(capsys: pytest.CaptureFixture[str]) -> None:
    assert options.parse(["--mode", "skew"])[0].skew_us == 100.0
    assert options.parse(["--mode", "skew", "--skew-us", "2.5"])[0].skew_us == 2.5
    assert "--skew-us goes with --mode skew" in refusal(capsys, "--skew-us", "5")
    for text in ("0", "-1", "nan", "x", "2e6"):
        assert "not microseconds" in refusal(capsys, "--mode", "skew", "--skew-us", text)


# ---- --overlap ----


def test_both_together_and_each_alone_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(exercise, "monotonic_ns", lambda: next(clock))
    notes = Notes(3)
    task = exercise.Overlap(notes.calls, alone(), lambda n: notes.done.append(("compute", 0, n)))
    assert [len(called) for called, _ in task.time(2, 10**12)] == [2, 2, 2]
    # An operation and 32 units of the computation took one tick each: 32 units are its length.
    calibration = [*(["run", "wait", "compute"] * 8)]
    order = [what for what, _, _ in notes.done]
    assert order == calibration + ["run", "compute", "wait", "run", "wait", "compute"] * 2
    assert notes.all("compute") == [(0, 32)] * 12
    assert notes.all("run")[8:] == [(0, 0), (1, 0), (2, 1), (0, 1)]
    notes.done.clear()
    task.time(1, 10**12)  # the amount stays
    assert notes.all("compute") == [(0, 32)] * 2


def test_the_hidden_share_is_that_of_the_shorter_one() -> None:
    both = [[[0, 100], [10, 112]], [[0, 105], [13, 111]]]
    phases = [[phase] * 3 for phase in both]
    assert cell_of(Canned(*phases), "all_reduce", "-g", "2", "--overlap").overlap() == {
        "op": 0.0125,
        "compute": 0.0125,
        "hidden": 1.0,
    }
    # Round by round: 0.5, 0.25 and nothing. Of the medians it would be 0.5.
    both, operation, computation = (
        [[4000], [9000], [5000]],
        [[3000], [6000], [3000]],
        [[2000], [4000], [2000]],
    )
    cell = Cell(rounds=both, operation=operation, computation=computation)
    assert cell.overlap() == {"op": 3.0, "compute": 2.0, "hidden": 0.25}
    cell = Cell(rounds=[[6000]], operation=[[3000]], computation=[[2000]])
    assert cell.overlap()["hidden"] == -0.5  # worse than one after the other
    row = Row(Point("all_reduce", "float32", 2, 8), 2, {"a": cell})
    line = table.Table(("a",), ("op", "compute", "hidden")).line(row)
    assert line.split()[6:12] == ["6.00", "3.00", "2.00", "-50.0", "-", "0"]
    assert Cell(rounds=[[1]]).overlap() == {}


def test_overlap_has_no_other_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--overlap has no --mode skew" in refusal(capsys, "--overlap", "--mode", "skew")


# ---- --groups ----


def test_a_group_is_the_world_of_an_operation() -> None:
    settings, _ = options.parse(["-g", "6", "--groups", "2", "-o", "all_gather", "-b", "48"])
    assert settings.world_size == 3
    assert plan.points(settings)[0] == Point("all_gather", "float32", 4, 48, "out")
    team = Canned(*[[[[rank, 10 + rank], [9 + rank, 30 + rank]]] for rank in range(6)])
    # Ranks 0, 2, 4 and then ranks 1, 3, 5: each from the end of the iteration before.
    cell = cell_of(team, "all_gather", "-g", "6", "--groups", "2")
    assert cell.rounds == [[13 - 0, 34 - 13, 14 - 1, 35 - 14]]


def test_ranks_make_equal_groups_of_two_and_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert "-g 5 is not a multiple of it" in refusal(capsys, "-g", "5", "--groups", "2")
    assert "at least 2 ranks each, so -g 8" in refusal(capsys, "-g", "4", "--groups", "4")
    assert "not a whole number above 0" in refusal(capsys, "--groups", "0")


# ---- --preset ----


def test_a_preset_is_operations_dtypes_and_sizes() -> None:
    def of(*args: str) -> list[tuple[str, str | None, int]]:
        settings, _ = options.parse(["-g", "2", *args])
        return [(p.op, p.dtype, p.size_bytes) for p in plan.points(settings)]

    assert of("--preset", "ddp") == [
        ("all_reduce", "float32", 1 << 20),
        ("all_reduce", "float32", 25 << 20),
    ]
    assert of("--preset", "fsdp", "-d", "float16", "-e", "4M") == [
        ("all_gather", "float16", 1 << 20),
        ("all_gather", "float16", 4 << 20),
        ("reduce_scatter", "float16", 1 << 20),
        ("reduce_scatter", "float16", 4 << 20),
    ]
    assert of("-f", "8", "--preset", "cpu-tp-decode", "-o", "all_gather") == [
        ("all_gather", "bfloat16", 8 << 10),
        ("all_gather", "bfloat16", 64 << 10),
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_ask_for_what_there_is(name: str) -> None:
    settings, _ = options.parse(["--preset", name])
    assert set(settings.ops) <= set(OPS) and set(settings.dtypes) <= set(DTYPES)
    assert plan.sizes(settings)[-1] == settings.max_bytes
    assert settings.preset == name


def test_a_preset_is_known_and_its_sizes_are_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no preset 'dpp'; did you mean ddp?" in refusal(capsys, "--preset", "dpp")
    wrong = refusal(capsys, "--preset", "cpu-tp-decode", "-b", "1M")
    assert "-b, 1048576 bytes, is larger than -e, 65536" in wrong


# ---- all of it, on ranks ----


@dataclass
class Answer:
    """One rank's, for a point."""

    point: Point
    wrong: int
    phases: list[tuple[list[int], list[int]]]  # readings
    how: list[dict[str, object]]  # of each call


def play(tmp_path: Path, *args: str, spoil: Callable[[], None] = lambda: None) -> list[Answer]:
    """Returns the answers of all ranks to the requests of a run. Forked ranks need not import torch."""
    settings, _ = options.parse(["-n", "3", *TINY, *args])
    buffers = Buffers(settings, replace(machine.gather(), cache_bytes=1 << 20))
    team = Team("team", settings.backends[0], settings, tmp_path)
    (tmp_path / "team").mkdir()
    line_fd = startline.create(settings.nproc)

    def body(forked: ranks.Rank) -> list[Answer]:
        spoil()
        rank = bench_rank.Rank(team.job(forked.rank, line_fd))
        assert rank.init() == {"pid": os.getpid()}
        answers = []
        true_prepare = calls.prepare

        def prepare(point: Point, context: Context) -> Call:
            how.append(dict(context.how, group=None))
            return true_prepare(point, context)

        calls.prepare = prepare
        for point in plan.points(settings):
            how: list[dict[str, object]] = []
            rank.prepare(asdict(point), buffers.copies(point), buffers.sweep_bytes)
            wrong = rank.check(1)["wrong"]
            phases = rank.time(settings.round_iterations, 10**15)["phases"]
            answers.append(Answer(point, wrong + rank.check(2)["wrong"], phases, how))
        rank.leave()
        return answers

    try:
        return sum(ranks.run(settings.nproc, body), [])
    finally:
        os.close(line_fd)


MODES = {
    "throughput": ("--mode", "throughput"),
    "skew": ("--mode", "skew"),
    "overlap": ("--overlap",),
    "cold": ("--cache", "cold"),
    "cold windows": ("--cache", "cold", "--mode", "throughput"),
    "both places": ("--place", "both"),
    "groups": ("-g", "4", "--groups", "2"),
    "windows of groups": ("-g", "4", "--groups", "2", "--mode", "throughput"),
}


@pytest.mark.parametrize("backend", ["shmcoll", pytest.param("gloo", marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", MODES)
def test_every_operation_is_right(tmp_path: Path, backend: str, mode: str) -> None:
    args = ("--backends", backend, "-g", "2", "-o", "all", *MODES[mode])
    answers = play(tmp_path, *args)
    assert {answer.point.op for answer in answers} == set(OPS)
    copies = {"throughput": 8, "cold": 3, "cold windows": 24, "windows of groups": 8}.get(mode, 1)
    more = {"async_op": True} if mode == "overlap" or "throughput" in MODES[mode] else {}
    for answer in answers:
        assert (answer.point, answer.wrong) == (answer.point, 0)
        assert len(answer.phases) == (3 if mode == "overlap" else 1)
        assert all(len(times) == 3 for readings in answer.phases for times in readings)
        assert len(answer.how) == (copies if answer.point.size_bytes else 1)
        assert all(how == {"group": None, **more} for how in answer.how)


def test_the_values_of_another_group_are_wrong(tmp_path: Path) -> None:
    def take_from_the_other_group() -> None:
        true_broadcast = dist.broadcast

        def broadcast(tensor: torch.Tensor, root: int, group: dist.ProcessGroup) -> None:
            true_broadcast(tensor, root, group=group)
            everyone = tensor.repeat(4)
            dist.all_gather_into_tensor(everyone, tensor)
            tensor.copy_(everyone.chunk(4)[dist.get_rank() ^ 1])

        dist.broadcast = broadcast

    args = ("--backends", "shmcoll", "-g", "4", "--groups", "2", "-o", "broadcast", "-b", "4K")
    answers = play(tmp_path, *args, spoil=take_from_the_other_group)
    assert [answer.wrong > 2000 for answer in answers] == [True] * 4  # of two checks of 1024


@pytest.mark.long
def test_a_run_has_all_that_was_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    args = ["--backends", "shmcoll", "-g", "4", "--groups", "2", "-o", "all_gather,barrier"]
    args += ["--mode", "throughput", "--cache", "cold", "--place", "both", "--columns", "cv,p99"]
    done = run_bench(tmp_path, *args, "-n", "3", "--json", str(out), *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "; 4 ranks in 2 groups on this host" in done.stdout
    assert "# mode throughput, cache cold\n" in done.stdout
    assert "# wrong values: 0 OK" in done.stdout
    rows = rows_of(done.stdout)
    assert [row[5] for row in rows] == ["out", "in", "out", "in", "-"]
    report = json.loads(out.read_text())
    assert [result["place"] for result in report["results"]] == ["out", "in", "out", "in", "-"]
    for row, result in zip(rows, report["results"]):
        cell = result["backends"]["shmcoll"]
        assert cell["iterations"] == 3 * 2 * 2  # a round, of two, of each group
        assert float(row[7]) == pytest.approx(100 * cell["cv"], abs=0.06)
        assert float(row[8]) == pytest.approx(cell["time_us"]["p99"], rel=0.01)


def test_a_run_with_overlap_has_its_columns(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    args = ("--backends", "gloo", "-g", "2", "-o", "all_reduce", "-b", "4K", "--overlap")
    done = run_bench(tmp_path, *args, "-n", "3", "--json", str(out), *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = rows_of(done.stdout)
    (result,) = json.loads(out.read_text())["results"]
    cell = result["backends"]["gloo"]
    phases = zip(
        *([median(one) for one in cell[k]] for k in ("rounds", "operation", "computation"))
    )
    hidden = median((op + comp - both) / min(op, comp) for both, op, comp in phases)
    assert len(cell["rounds"]) == 2 and cell["overlap"]["hidden"] == pytest.approx(hidden)
    assert float(row[9]) == pytest.approx(100 * hidden, abs=0.06)
    assert row[10] == "-" and "busbw_gbs" not in cell
