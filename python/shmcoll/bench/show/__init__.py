# SPDX-License-Identifier: BSD-3-Clause
"""Shows results: as text, CSV, a picture, an HTML page.

table       rows as text; stdout: standard output whose reader may end early
csv_file    rows as CSV
outputs     which files are written, and what may prevent it
curves      what the charts show; grids: what --matrix shows
plot        the charts as a picture; plot_grids: those of --matrix   (matplotlib, only in these two)
page        one HTML page with table and charts; svg: a chart in it
units       sizes and times as text, marks of an axis
colours     one for each backend, in every chart
"""
