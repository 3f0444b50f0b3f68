# SPDX-License-Identifier: BSD-3-Clause
"""How a point is measured: in rounds that alternate between the backends.

Round by round every backend runs the same operation for a while, A B A B ..., so that a drift of
the machine (clock, neighbours, thermal state) hits all columns alike. Ratios are taken between
the medians of adjacent rounds, and their median is what the table shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shmcoll.bench import latency
from shmcoll.bench.buffers import Buffers
from shmcoll.bench.launch import Refused, Team, TeamError
from shmcoll.bench.ops import OPS
from shmcoll.bench.plan import Point, Settings
from shmcoll.bench.results import Cell, Row

_FOREVER_NS = 10**15


class Measurement:
    """The teams of a run. A team that fails is stopped and leaves a reason in ``failures``."""

    def __init__(self, teams: list[Team], settings: Settings, buffers: Buffers) -> None:
        self._teams = teams
        self._settings = settings
        self._buffers = buffers
        self.failures: dict[str, str] = {}
        self._salt = 0
        self._budget_ns = _FOREVER_NS
        if settings.iterations is None:
            turns = len(teams) * settings.rounds
            self._budget_ns = int(settings.point_time_s * 1e9 / turns)

    @property
    def alive(self) -> list[Team]:
        return [team for team in self._teams if team.label not in self.failures]

    def start(self) -> None:
        """Starts all teams; those that cannot use their backend are in ``failures`` afterwards."""
        for step in (Team.start, Team.join):  # all start before the first is waited for
            for team in self.alive:
                try:
                    step(team)
                except (Refused, TeamError) as error:
                    self._give_up(team, str(error))

    def rows(self, points: list[Point]) -> Iterator[Row]:
        for point in points:
            if not self.alive:
                return
            yield self._row(point)

    def stop(self, at_once: bool = False) -> None:
        for team in self._teams:
            team.stop(at_once)

    def _row(self, point: Point) -> Row:
        cells = {team.label: Cell(error=self.failures.get(team.label)) for team in self._teams}
        # Of two ranks, each is the root of one of the two checks.
        self._salt += 1
        for team, cell in self._able(cells):
            with self._guard(team, cell):
                team.prepare(point, self._buffers.copies(point), self._buffers.sweep_bytes)
                cell.wrong += team.check(self._salt)
        for _ in range(self._settings.rounds):
            for team, cell in self._able(cells):
                with self._guard(team, cell):
                    self._round(team, point, cell)
        self._salt += 1
        for team, cell in self._able(cells):  # once more, now that memory has been used again
            with self._guard(team, cell):
                cell.wrong += team.check(self._salt)
        return Row(point, self._settings.world_size, cells)

    def _round(self, team: Team, point: Point, cell: Cell) -> None:
        replies = team.time(self._settings.round_iterations, self._budget_ns)
        groups, window = self._settings.groups, self._settings.window
        evaluate = latency.evaluation(self._settings.mode, OPS[point.op])
        if self._settings.overlap:
            evaluate = latency.of_started
        phases: list[list[int]] = [[] for _ in replies[0]["phases"]]
        for group in range(groups):
            of_members = zip(*(reply["phases"] for reply in replies[group::groups]))
            for times, readings in zip(phases, of_members):
                times += [ns // window for ns in evaluate(*zip(*readings))]
        cell.rounds.append(phases[0])
        if self._settings.overlap:
            cell.operation += phases[1]
            cell.computation += phases[2]

    def _able(self, cells: dict[str, Cell]) -> Iterator[tuple[Team, Cell]]:
        for team in self._teams:
            if cells[team.label].error is None:
                yield team, cells[team.label]

    @contextmanager
    def _guard(self, team: Team, cell: Cell) -> Iterator[None]:
        """An error ends this backend's part of the point, a broken team all of its points."""
        try:
            yield
        except Refused as error:
            cell.error = str(error)
        except TeamError as error:
            cell.error = str(error)
            self._give_up(team, str(error))

    def _give_up(self, team: Team, reason: str) -> None:
        self.failures[team.label] = reason
        team.stop(at_once=True)
