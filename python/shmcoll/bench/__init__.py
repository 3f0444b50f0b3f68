# SPDX-License-Identifier: BSD-3-Clause
"""Times collectives of c10d backends side by side: ``shmcoll bench --help``, which is
``python -m shmcoll.bench --help``. docs/reference/formats.md describes the files it writes.

cli        the command line, and what the exit code says
plan       what is measured: settings, sizes, points
presets    operations and sizes of real programs; arguments: command lines whose errors are one line
ops        operations and dtypes on paper: counts, bus bandwidth   (no torch)
buffers    how many copies of the buffers, for cold caches
calls      the same operations with buffers and checks             (ranks only)
over_torch, over_mpi   their calls, and how a rank joins           (ranks only)
bounds     what memory allows, for the column roof             (ranks only)
exercise   how the calls are repeated and checked                  (ranks only)
startline  where ranks wait for the common start                   (ranks only)
rank       the program of one rank                                 (ranks only)
launcher   torchrun, mpirun or srun, if they started this
launch     a team: the rank processes of one backend; child: such a process, forked
mpi_team   a team that mpirun has started; mpirun: how; meeting: how its ranks find the parent
measure    rounds, alternating between backends
noise      do the rounds agree, was the machine busy? The one judgement of all programs here
results    rows, ratios, the JSON file and its reader
rebuild    dataclasses out of JSON, checked
table      rows as text; stdout: where they go until nobody reads them
outputs    which files are written, and what may keep them from it
csv_file   rows as CSV
curves     what the charts show; grids: what --matrix shows; units: sizes and times as text, marks of an axis
colours    one for each backend, wherever it is drawn
plot       the charts as a picture; plot_grids: of --matrix    (matplotlib, only here)
page       one HTML page with table and charts; svg: a chart in it
compare    the sub-command compare: two runs, row by row; ranktest: is it chance?
tune       the sub-command tune: settings for this machine; tunables: what it tries
machine    facts about the machine; topology: its CPUs, and --bind
provenance where the numbers come from: arguments, environment, commit, build, state of the machine
"""
