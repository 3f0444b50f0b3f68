# SPDX-License-Identifier: BSD-3-Clause
"""The goals of the project, and how a run is judged by them (benchmarks/goals.py).

rows      what programs measured, in one form
table     the goals, as data
judge     rows and a goal -> a verdict; no machine, no files
parts     which programs run, and what rows their output amounts to
report    the verdicts on a terminal, as JSON and as Markdown
"""
