# SPDX-License-Identifier: BSD-3-Clause
"""How points are measured: in sweeps over all of them, with backends that take turns.

A sweep is one round of every point: each backend runs the operation for a while, A B A B ...  So a
drift of the machine (clock, neighbours, thermal state) hits all columns alike. The rounds of a point are
spread over the whole run. Machine speed drifts over seconds: back-to-back rounds would all see the same
phase, and two runs would differ for that reason alone. Each round has buffers of its own, because the
place of memory is luck too. Ratios are taken between the medians of a round, and the table shows their
median.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from statistics import median

from shmcoll.bench.run import latency
from shmcoll.bench.run.buffers import Buffers
from shmcoll.bench.run.torch_team import CannotDo, Refused, Team, TeamError
from shmcoll.bench.judge.noise import Watch
from shmcoll.bench.ops import OPS
from shmcoll.bench.plan import Point, Settings
from shmcoll.bench.results import Cell, Row
from shmcoll.bench.run.startline import BLOCK_BYTES

_FOREVER_NS = 10**15


class Measurement:
    """The teams of a run. A team that fails is stopped and leaves a reason in ``failures``."""

    def __init__(
        self,
        teams: list[Team],
        settings: Settings,
        buffers: Buffers,
        bounds: Team | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._teams = teams
        self._settings = settings
        self._buffers = buffers
        self._bounds = bounds
        self._watch = watch
        self.failures: dict[str, str] = {}
        self._rows: list[Row] = []
        self._budget_ns = _FOREVER_NS
        if settings.iterations is None:
            turns = len(teams) * settings.rounds
            self._budget_ns = int(settings.point_time_s * 1e9 / turns)

    @property
    def alive(self) -> list[Team]:
        return [team for team in self._teams if team.label not in self.failures]

    @property
    def _starting(self) -> list[Team]:
        bounds = [] if self._bounds is None else [self._bounds]
        return self.alive + [team for team in bounds if team.label not in self.failures]

    def start(self) -> None:
        """Starts all teams; those that cannot use their backend are in ``failures`` afterwards."""
        for step in ("start", "join"):  # all start before the first is waited for
            for team in self._starting:
                try:
                    getattr(team, step)()
                except (Refused, TeamError) as error:
                    self._give_up(team, str(error))

    def rows(self, points: list[Point]) -> Iterator[tuple[Row, bool]]:
        """Each point's row after each of its rounds, and whether that was the last one."""
        world_size, labels = self._settings.world_size, [team.label for team in self._teams]
        self._rows = [Row(p, world_size, {label: Cell() for label in labels}) for p in points]
        for sweep in range(1, self._settings.rounds + 1):
            for index, row in enumerate(self._rows):
                if self.alive:
                    self._visit(index, row, first=sweep == 1, last=sweep == self._settings.rounds)
                if self.alive or row.measured:
                    yield self._explained(row), sweep == self._settings.rounds

    def measured(self) -> list[Row]:
        """Returns the measured rows, also if rows() has not come to its end."""
        return [self._explained(row) for row in self._rows if row.measured]

    def stop(self, at_once: bool = False) -> None:
        for team in [*self._teams, *([self._bounds] if self._bounds else [])]:
            team.stop(at_once)

    def _visit(self, index: int, row: Row, first: bool, last: bool) -> None:
        point, cells = row.point, row.cells
        for team, cell in self._able(cells):
            with self._guard(team, cell):
                team.prepare(point, self._buffers.copies(point), self._buffers.sweep_bytes)
                if first:
                    cell.wrong += team.check(2 * index + 1)
        self._visit_bounds(row)
        with self._watch.over(row.activity.append) if self._watch else nullcontext():
            for team, cell in self._able(cells):
                with self._guard(team, cell):
                    self._round(team, point, cell)
        if not last:
            return
        # Once more, now that memory has been used again. Of two ranks, each is the root of one of
        # the two checks.
        for team, cell in self._able(cells):
            with self._guard(team, cell):
                cell.wrong += team.check(2 * index + 2)

    def _visit_bounds(self, row: Row) -> None:
        """Measures the bounds in the round of the operation, so that both see the same phase of the machine."""
        team = self._bounds
        if team is None or team.label in self.failures or row.point.op != "all_reduce":
            return
        try:
            replies = team.bounds(row.point.size_bytes)
        except (Refused, TeamError) as error:
            self._give_up(team, str(error))
            return
        scale, exchange = (
            median(map(max, zip(*(reply[name] for reply in replies))))
            for name in ("scale", "exchange")
        )
        row.scale_us.append(scale / 1e3)
        row.exchange_gbs.append(BLOCK_BYTES / exchange)

    def _explained(self, row: Row) -> Row:
        """A backend that has ended keeps what it had, and says why it has no more."""
        for label, cell in row.cells.items():
            if not cell.rounds and cell.error is None:
                cell.error = self.failures.get(label)
        return row

    def _round(self, team: Team, point: Point, cell: Cell) -> None:
        replies = team.time(self._settings.round_iterations, self._budget_ns)
        groups, runs = self._settings.groups, self._settings.window * OPS[point.op].trips
        evaluate = latency.evaluation(self._settings.mode, OPS[point.op])
        if self._settings.overlap:
            evaluate = latency.of_started
        if team.own_clocks:
            evaluate = latency.of_own_clocks
        phases: list[list[int]] = [[] for _ in replies[0]["phases"]]
        for group in range(groups):
            of_members = zip(*(reply["phases"] for reply in replies[group::groups]))
            for times, readings in zip(phases, of_members):
                times += [ns // runs for ns in evaluate(*zip(*readings))]
        cell.rounds.append(phases[0])
        if self._settings.overlap:
            cell.operation.append(phases[1])
            cell.computation.append(phases[2])

    def _able(self, cells: dict[str, Cell]) -> Iterator[tuple[Team, Cell]]:
        for team in self._teams:
            if team.label not in self.failures and cells[team.label].error is None:
                yield team, cells[team.label]

    @contextmanager
    def _guard(self, team: Team, cell: Cell) -> Iterator[None]:
        """An error ends this backend's part of the point, a broken team all of its points."""
        try:
            yield
        except Refused as error:
            cell.error = str(error)
            cell.unsupported = isinstance(error, CannotDo)
        except TeamError as error:
            cell.error = str(error)
            self._give_up(team, str(error))

    def _give_up(self, team: Team, reason: str) -> None:
        self.failures[team.label] = reason
        team.stop(at_once=True)
