# SPDX-License-Identifier: BSD-3-Clause
"""Results as one HTML page that needs nothing else: no network, no scripts, no fonts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from shmcoll.bench import provenance
from shmcoll.bench.judge import noise
from shmcoll.bench.show import colours, curves, grids, table, units
from shmcoll.bench.results import Report
from shmcoll.bench.show.svg import Chart, Heat, Style

_TIME_HEIGHT, _RATIO_HEIGHT = 230, 150

_CSS = f"""
:root {{ color-scheme: light dark; --ground: #fff; --ink: #1b1b1b; --soft: #666; --grid: #e2e2e2;
  --panel: #f6f6f6; --good: #00703a; --bad: #c00000; --warn: #8a5a00; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ground: #14161a; --ink: #e6e6e6; --soft: #a0a0a0; --grid: #33363c; --panel: #1d2026;
    --good: #5ad08a; --bad: #ff7070; --warn: #f0b840; }}
}}
body {{ background: var(--ground); color: var(--ink); margin: 0 auto; padding: 1rem;
  max-width: 78rem; font: 15px/1.45 system-ui, sans-serif; }}
h1 {{ font-size: 1.4rem; margin: 0 0 .2rem; }}
h2 {{ font-size: 1.1rem; margin: 1.8rem 0 .6rem; }}
h3 {{ font: 600 .95rem ui-monospace, monospace; margin: 0 0 .3rem; }}
.soft, figcaption {{ color: var(--soft); font-size: .85rem; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .8rem 0; }}
dt {{ color: var(--soft); }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
ul.notes {{ margin: .6rem 0; padding-left: 1.2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font: 13px/1.5 ui-monospace, monospace; white-space: nowrap; }}
th {{ color: var(--soft); font-weight: 600; }}
th, td {{ padding: .1rem .6rem; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
th.group {{ text-align: center; color: var(--ink); border-bottom: 1px solid var(--grid); }}
tr.first td {{ border-top: 1px solid var(--grid); }}
tbody tr:hover {{ background: var(--panel); }}
.green {{ color: var(--good); }}
.bold {{ font-weight: 600; }}
.red, .wrong {{ color: var(--bad); font-weight: 700; }}
.warn {{ color: var(--warn); font-weight: 600; }}
p.warn {{ border: 1px solid var(--warn); border-radius: 6px; padding: .4rem .7rem; }}
th.group {{ color: var(--c); border-bottom: 2px solid var(--c); }}
td.time {{ color: var(--c); }}
details {{ margin: .6rem 0; }}
summary {{ cursor: pointer; color: var(--soft); }}
.charts {{ display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); }}
figure {{ background: var(--panel); border-radius: 6px; margin: 0; padding: .7rem; }}
svg {{ display: block; width: 100%; height: auto; }}
svg text {{ fill: var(--soft); font: 11px system-ui, sans-serif; }}
svg .grid {{ stroke: var(--grid); }}
svg .even {{ stroke: var(--soft); stroke-dasharray: 3 3; }}
svg .line {{ fill: none; stroke: var(--c); stroke-width: 1.8; }}
svg .thick {{ stroke-width: 6; stroke-opacity: .3; }}
svg .band {{ fill: var(--c); fill-opacity: .16; }}
svg circle {{ fill: var(--c); }}
svg circle.noisy {{ fill: var(--panel); stroke: var(--c); stroke-width: 1.5; }}
svg .heat {{ fill: var(--c); stroke: var(--panel); }}
svg .heat.wrong {{ fill: var(--bad); }}
svg .value {{ fill: var(--ink); }}
svg path.wrong {{ fill: none; stroke: var(--bad); stroke-width: 3; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0 0 .8rem; padding: 0;
  list-style: none; }}
.legend svg {{ display: inline-block; width: 28px; height: 10px; margin-right: .4rem; }}
{" ".join(f".c{i} {{ --c: {one}; }}" for i, one in enumerate(colours.PALETTE))}
.dtype {{ --c: var(--soft); }}
"""


def write(report: Report, path: Path) -> None:
    path.write_text(render(report), encoding="utf-8")


def render(report: Report) -> str:
    what, _ = curves.title(report)
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(what)}</title>",
            f"<style>{_CSS}</style>\n</head>\n<body>",
            f"<h1>{escape(what)}</h1>",
            f'<p class="soft">shmcoll.bench, {escape(report.started)}</p>',
            *_warning(report),
            *_facts(report),
            *_notes(report),
            *(_heat(report) if report.settings.matrix else _charts(report)),
            *_table(report),
            "</body>\n</html>\n",
        )
    )


_KINDS = {"bold red": ' class="wrong"', "bold yellow": ' class="warn"', "dim": ""}


def _warning(report: Report) -> Iterator[str]:
    """At the top: nobody should read a number of a busy machine without knowing it."""
    if report.busy:
        said = escape(noise.words(report.activity))
        said = said[0].upper() + said[1:]
        yield f'<p class="warn">{said}. Ratios say little here: measure again.</p>'


def _facts(report: Report) -> Iterator[str]:
    facts, settings = report.machine, report.settings
    quota = "" if facts.cpu_quota is None else f", control group grants {facts.cpu_quota:g}"
    shm = "not mounted"
    if facts.shm_free_bytes is not None and facts.shm_total_bytes is not None:
        free, total = map(units.size_text, (facts.shm_free_bytes, facts.shm_total_bytes))
        shm = f"{free} free of {total}"
    iterations = settings.iterations or f"as many as fit into {settings.point_time_s:g} s a row"
    yield "<dl>"
    for name, value in {
        "CPU": facts.cpu,
        "CPUs": f"{facts.cpus_usable} usable of {facts.cpus_online} "
        f"(affinity {facts.cpus_affinity}{quota})",
        "/dev/shm": shm,
        "kernel": f"linux {facts.kernel}",
        "python": facts.python,
        **{name: version or "-" for name, version in facts.versions.items()},
        "ranks": str(settings.nproc),
        "measured": f"{units.count(settings.rounds, 'round')}, iterations: {iterations}",
        **(provenance.lines(report.provenance) if report.provenance else {}),
    }.items():
        yield f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
    yield "</dl>"


def _notes(report: Report) -> Iterator[str]:
    lines = [line.removeprefix("# ") for line in table.summary(report)]
    lines += [f"FAILED: {label} failed: {reason}" for label, reason in report.failures.items()]
    if lines:
        yield '<ul class="notes">'
        for line in lines:
            kind = _KINDS[table.note_style(line)]
            yield f"<li{kind}>{escape(line)}</li>"
        yield "</ul>"


def _charts(report: Report) -> Iterator[str]:
    style = Style(report.settings.labels, curves.dtypes(report))
    first = escape(report.settings.labels[0])
    yield '<h2>Charts</h2>\n<ul class="legend">'
    for label in style.labels:
        yield f"<li>{_sample(style.colour(label), '')}{escape(label)}</li>"
    for dtype in style.dtypes if len(style.dtypes) > 1 else []:
        yield f"<li>{_sample('dtype', style.dashes(dtype))}{escape(dtype)}</li>"
    yield '</ul>\n<div class="charts">'
    for panel in curves.panels(report):
        yield f"<figure><h3>{escape(panel.name)}</h3><figcaption>time</figcaption>"
        yield Chart(panel, panel.times, units.time_text, _TIME_HEIGHT).svg(style)
        if panel.ratios:
            yield f"<figcaption>time / time of {first}: above 1, {first} is faster</figcaption>"
            yield Chart(panel, panel.ratios, units.ratio_text, _RATIO_HEIGHT, around=1).svg(style)
        yield "</figure>"
    yield "</div>"
    shade = "A shade is the middle half of the rounds."
    hollow = f"A hollow dot: {noise.DOUBT}."
    yield f'<p class="soft">{shade} {hollow} Point at a dot for its value.</p>'


def _heat(report: Report) -> Iterator[str]:
    style = Style(report.settings.labels, curves.dtypes(report))
    yield '<h2>Pairs of ranks</h2>\n<div class="charts">'
    found = grids.grids(report)
    for label in style.labels:
        yield f"<figure><h3>{escape(label)}</h3>"
        for grid in (grid for grid in found if grid.label == label):
            yield f"<figcaption>{escape(grid.title)}</figcaption>"
            yield Heat(grid).svg(style)
        yield "</figure>"
    yield f'</div>\n<p class="soft">{escape(grids.LEGEND)} Point at a square for its value.</p>'


def _sample(colour: str, dashes: str) -> str:
    line = f'<path class="line {colour}" d="M0 5H28" stroke-dasharray="{dashes}"/>'
    return f'<svg viewBox="0 0 28 10" aria-hidden="true">{line}</svg>'


@dataclass(frozen=True)
class _Column:
    group: str  # the backend whose column it is
    name: str
    unit: str


def _table(report: Report) -> Iterator[str]:
    if not report.rows:
        return
    text = table.Table(report.settings.labels, report.settings.shown_columns)
    columns = _columns(text.header(), [len(cell) for cell, _ in text.cells(report.rows[0])])
    yield '<h2>Table</h2>\n<div class="wide"><table>\n<thead>\n<tr>'
    style = Style(report.settings.labels, ())
    for group, width in _runs([column.group for column in columns]):
        kind = f' class="group {style.colour(group)}"' if group else ""
        yield f'<th colspan="{width}"{kind}>{escape(group)}</th>'
    yield "</tr>\n<tr>"
    for column in columns:
        yield f"<th>{escape(column.name)}<br>{escape(column.unit)}</th>"
    yield "</tr>\n</thead>\n<tbody>"
    last = None
    for row in report.rows:
        yield "<tr>" if row.point.op == last else '<tr class="first">'
        last = row.point.op
        for cell, styled in text.cells(row):
            kind = f' class="{_class_of(styled)}"' if styled else ""
            yield f"<td{kind}>{escape(cell.strip())}</td>"
        yield "</tr>"
    yield "</tbody>\n</table></div>"


def _class_of(styled: str) -> str:
    """Returns the CSS class for a style of the terminal. The colour of a backend is a class of its own."""
    if styled in colours.PALETTE:
        return f"time c{colours.PALETTE.index(styled)}"
    return escape(styled)


def _columns(header: list[str], widths: list[int]) -> list[_Column]:
    """The text table's header, cut where its cells are cut: it is the one home of the columns."""
    groups, *lines = header
    spans = [
        (match.start(), match.end(), match[1]) for match in re.finditer(r"-+ (.+?) -+", groups)
    ]
    out = []
    begin = 0
    for width in widths:
        end = begin + width
        group = next((name for start, stop, name in spans if start < end <= stop), "")
        cut = [line[begin:end].removeprefix("# " if not begin else "").strip() for line in lines]
        out.append(_Column(group, *cut))
        begin = end + 1
    return out


def _runs(names: list[str]) -> Iterator[tuple[str, int]]:
    """(name, how often in a row)."""
    begin = 0
    for i, name in enumerate(names):
        if i + 1 == len(names) or names[i + 1] != name:
            yield name, i + 1 - begin
            begin = i + 1
