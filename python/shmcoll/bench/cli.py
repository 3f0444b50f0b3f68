# SPDX-License-Identifier: BSD-3-Clause
"""A run of the benchmark from the command line to the exit code."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shmcoll.bench import machine, options, plan, provenance, topology
from shmcoll.bench.judge import compare, noise, tune
from shmcoll.bench.run import started_by
from shmcoll.bench.show.outputs import Outputs
from shmcoll.bench.show import grids, stdout, table, units
from shmcoll.bench.run.buffers import Buffers
from shmcoll.bench.run.torch_team import Team
from shmcoll.bench.machine import Machine
from shmcoll.bench.run.measure import Measurement
from shmcoll.bench.run.mpi_team import MpiTeam
from shmcoll.bench.run.mpirun import MPIS
from shmcoll.bench.plan import Point, Settings
from shmcoll.bench.provenance import Provenance
from shmcoll.bench.results import Report

if TYPE_CHECKING:
    from shmcoll.bench.run import hosts_team

EXIT_OK = 0
EXIT_FAILED = 1  # wrong values, a backend that failed on the way, a file not written
EXIT_UNUSABLE = 2  # bad usage, or the first or every backend cannot be used
EXIT_INTERRUPTED = 130
EXIT_CLOSED = 141  # as a shell shows a tool that SIGPIPE has ended


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    with stdout.watched() as output:
        try:
            code = _main(words, output)
        except KeyboardInterrupt:  # before there was a rank
            code = EXIT_INTERRUPTED
    return code or (EXIT_CLOSED if output.closed_by_reader else EXIT_OK)


def _main(words: list[str], output: stdout.Output) -> int:
    if words[:1] == ["compare"]:
        return compare.main(words[1:])
    if words[:1] == ["tune"]:
        return tune.main(words[1:])
    launched = started_by.find(os.environ)
    if launched is not None:
        if launched.local_size != launched.size:
            return _over_hosts(words, output, launched)
        if launched.rank > 0:
            return EXIT_OK  # the first process starts all ranks
        started_by.take_cpus()
    settings, outputs = options.parse(words, launched.size if launched else None)
    return _measure_all(words, output, settings, outputs)


def _over_hosts(words: list[str], output: stdout.Output, launched: started_by.Launched) -> int:
    """Every process is a rank, and the first one runs the bench."""
    from shmcoll.bench.run import hosts_team  # imports torch, which takes a second

    if not hosts_team.is_possible(os.environ):
        if launched.rank > 0:
            return EXIT_OK  # the first process says it
        many = f"{launched.size} ranks on several hosts"
        print(f"shmcoll.bench: {many}: start them with torchrun", file=sys.stderr)
        return EXIT_UNUSABLE
    settings, outputs = options.parse(words, launched.size)
    if problem := hosts_team.problem(settings, launched.size):
        if launched.rank == 0:
            print(f"shmcoll.bench: {problem}", file=sys.stderr)
        return EXIT_UNUSABLE
    workers = hosts_team.Workers(settings, launched.local_size or 1)
    if launched.rank > 0:
        return workers.serve()
    try:
        return _measure_all(words, output, settings, outputs, workers)
    finally:
        workers.end()


def _measure_all(
    words: list[str],
    output: stdout.Output,
    settings: Settings,
    outputs: Outputs,
    workers: hosts_team.Workers | None = None,
) -> int:
    points = plan.points(settings)
    found = provenance.gather(settings, words)
    report = Report(settings, machine.gather(), points=len(points), provenance=found)
    buffers = Buffers(settings, report.machine)
    shown = table.Table(settings.labels, settings.shown_columns)
    screen = table.make_screen(shown, outputs.quiet, rows=not settings.matrix)
    for line in _header(report.machine, settings, found, workers):
        screen.note(line)
    for line in buffers.notes(points):
        screen.note(line)
    ended = _run(report, screen, points, buffers, output, workers)
    for cells in grids.lines(report) if settings.matrix else []:
        screen.styled(cells)
    for line in table.summary(report):
        screen.note(line)
    written = outputs.write(report)
    return ended or _exit_code(report) or (EXIT_OK if written else EXIT_FAILED)


def _run(
    report: Report,
    screen: table.Screen,
    points: list[Point],
    buffers: Buffers,
    output: stdout.Output,
    workers: hosts_team.Workers | None,
) -> int:
    """Fills the report. Ctrl-C (or SIGTERM), or a reader that is gone, ends it early and leaves it
    with what there is; then the exit code is that."""
    settings = report.settings
    on_term = signal.signal(signal.SIGTERM, signal.default_int_handler)
    on_int = signal.getsignal(signal.SIGINT)
    try:
        with tempfile.TemporaryDirectory(prefix="shmcoll-bench-") as scratch:
            teams = _teams(settings, Path(scratch), workers)
            roof = plan.ROOF in settings.columns
            bounds = Team(plan.BOUNDS, plan.BOUNDS, settings, Path(scratch)) if roof else None
            all_teams = teams + ([bounds] if bounds else [])
            watch = noise.Watch(
                lambda: noise.process_s(os.getpid()) + sum(team.cpu_s() for team in all_teams),
                _watched_cpus(settings),
            )
            measurement = Measurement(teams, settings, buffers, bounds, watch)
            try:
                measurement.start()
                _tell(measurement.failures, report.unusable, {}, "cannot be used")
                if workers and measurement.alive:
                    for line in workers.notes(measurement.alive):
                        screen.note(line)
                if measurement.alive:
                    _measure(report, measurement, screen, points, output)
                measurement.stop()
            finally:  # also on Ctrl-C, and a second one then must not leave ranks running
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                measurement.stop(at_once=True)
    except KeyboardInterrupt:
        report.interrupted = True
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, on_int)
        signal.signal(signal.SIGTERM, on_term)
    return EXIT_CLOSED if report.interrupted else EXIT_OK


def _teams(settings: Settings, scratch: Path, workers: hosts_team.Workers | None) -> list[Team]:
    named = list(zip(settings.labels, settings.backends))
    if workers:
        return [workers.team(label, backend, settings) for label, backend in named]
    return [
        (MpiTeam if backend in MPIS else Team)(label, backend, settings, scratch)
        for label, backend in named
    ]


def _watched_cpus(settings: Settings) -> set[int]:
    """Returns the CPUs that any rank may run on."""
    places = topology.placement(settings.bind, settings.nproc, os.sched_getaffinity(0))
    return {cpu for cpus in places for cpu in cpus}


def _measure(
    report: Report,
    measurement: Measurement,
    screen: table.Screen,
    points: list[Point],
    output: stdout.Output,
) -> None:
    screen.begin(len(points), report.settings.rounds)
    try:
        for row, complete in measurement.rows(points):
            if complete:
                report.rows.append(row)
                screen.row(row)
            else:
                screen.preview(row)
            _tell(measurement.failures, report.failures, report.unusable, "failed")
            if output.closed_by_reader and len(report.rows) < len(points):
                report.interrupted = True  # as SIGPIPE ends other tools, but with files
                break
    finally:  # also on Ctrl-C, and then some rows have fewer rounds
        for row in measurement.measured()[len(report.rows) :]:
            report.rows.append(row)
            screen.row(row)
        screen.end()


def _tell(found: dict[str, str], told: dict[str, str], before: dict[str, str], what: str) -> None:
    """One line for each backend that has ended since the last time."""
    for label, reason in found.items():
        if label not in told and label not in before:
            told[label] = reason
            print(f"shmcoll.bench: backend {label!r} {what}: {reason}", file=sys.stderr, flush=True)


def _exit_code(report: Report) -> int:
    if not report.rows or report.first_is_unusable:
        return EXIT_UNUSABLE
    return EXIT_FAILED if report.failed else EXIT_OK


def _header(
    facts: Machine, settings: Settings, found: Provenance, workers: hosts_team.Workers | None
) -> list[str]:
    versions = ", ".join(f"{name} {version or '-'}" for name, version in facts.versions.items())
    usable = f"{facts.cpus_usable} usable of {facts.cpus_online}"
    quota = "" if facts.cpu_quota is None else f", cgroup quota {facts.cpu_quota:g}"
    ranks = units.count(settings.nproc, "rank")
    if settings.groups > 1:
        ranks += f" in {settings.groups} groups"
    where = "several hosts, of which this is the first" if workers else "this host"
    built = f", commit {found.commit}" if found.commit else ""
    governor = f", governor {found.governor}" if found.governor else ""
    lines = [
        f"# shmcoll.bench: {', '.join(settings.labels)}; {ranks} on {where}",
        f"# {versions}{built}, python {facts.python}, linux {facts.kernel}",
        f"# {facts.cpu}; CPUs: {usable} (affinity {facts.cpus_affinity}{quota}){governor}",
        f"# {found.topology.text()}",
        f"# bind {found.bind}: {_binding(found)}",
        f"# load average {', '.join(f'{one:.2f}' for one in found.load) or 'not known'}",
        f"# /dev/shm: {_shm(facts)}",
    ]
    if ways := [way for way in settings.ways if not way.startswith("bind ")]:
        lines.append(f"# {', '.join(ways)}")
    if settings.matrix:
        lines.append(
            f"# {units.count(len(plan.pairs(settings)), 'pair')}, "
            f"{units.figure(1e3 * settings.point_time_s, 3)} ms for each "
            "and size, all backends and rounds together; the other ranks sleep"
        )
    here = workers.ranks_here if workers else settings.nproc
    if (2 if settings.matrix else here) > facts.cpus_usable:
        lines.append(
            f"# WARNING: {units.count(here, 'rank')} share "
            f"{units.count(facts.cpus_usable, 'usable CPU')}: ranks take turns, and the times show "
            "the scheduler more than the backend"
        )
    return lines


def _binding(found: Provenance) -> str:
    said = topology.BINDING_WORDS[found.bind]
    return f"{said} (CPUs of ranks: {provenance.placement_text(found.placement)})"


def _shm(facts: Machine) -> str:
    if facts.shm_free_bytes is None or facts.shm_total_bytes is None:
        return "not mounted"
    return f"{facts.shm_free_bytes >> 20} MiB free of {facts.shm_total_bytes >> 20} MiB"
