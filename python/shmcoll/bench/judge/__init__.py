# SPDX-License-Identifier: BSD-3-Clause
"""Judges results: are they noise, are they slower, what is possible?

noise       do the rounds agree, was the machine busy? The one judgement of all programs here
compare     the sub-command compare: two runs, row by row; ranktest: is a difference chance?
tune        the sub-command tune: settings for this machine; tunables: what it tries
bounds      what memory allows, for the column roof   (in a rank)
"""
