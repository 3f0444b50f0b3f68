# SPDX-License-Identifier: BSD-3-Clause
"""Times collectives of c10d backends on one host, and compares them: ``shmcoll bench --help``.

``python -m shmcoll.bench`` is the same program. docs/reference/formats.md describes the files it writes.
``shmcoll.bench.results.read(path)`` reads them.

cli         the command line, and what the exit code says
options     the options; arguments: parsers whose errors are one line
presets     operations and sizes of real programs
plan        what is measured: settings, sizes, points
ops         operations and dtypes on paper: counts, bus bandwidth
results     rows, ratios, the JSON file and its reader; rebuild: dataclasses out of JSON, checked
machine     facts about the machine; topology: its CPUs, and --bind
provenance  where the numbers come from: arguments, environment, commit, build, state of the machine

run/        starts processes and measures
show/       prints, draws and writes results
judge/      compares runs, finds noise, tunes
"""
