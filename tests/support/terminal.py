# SPDX-License-Identifier: BSD-3-Clause
"""A screen of a tool as a picture: small, the same each time, for dark and light surroundings."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

Span = tuple[str, str]  # text and its style, in the words of rich

_WIDE, _HIGH, _EDGE = 8, 18, 12  # pixels: of a character, of a line, around all
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}">
<!-- SPDX-License-Identifier: BSD-3-Clause -->
<title>{title}</title>
<style>
rect {{ fill: #fff; stroke: #ccc; }}
text {{ fill: #1b1b1b; font: 13px ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }}
.bold {{ font-weight: bold; }}
.dim {{ fill: #6a6a6a; }}
.red {{ fill: #b00000; }}
.magenta {{ fill: #a000a0; }}
@media (prefers-color-scheme: dark) {{
  rect {{ fill: #181818; stroke: #444; }}
  text {{ fill: #dcdcdc; }}
  .dim {{ fill: #9a9a9a; }}
  .red {{ fill: #ff7070; }}
  .magenta {{ fill: #e080e0; }}
}}
</style>
<rect x=".5" y=".5" width="{inner_w}" height="{inner_h}" rx="6"/>
"""


def svg(lines: Sequence[Sequence[Span]], title: str) -> str:
    columns = max(sum(len(text) for text, _ in line) for line in lines)
    w, h = 2 * _EDGE + columns * _WIDE, 2 * _EDGE + len(lines) * _HIGH
    parts = [_HEAD.format(w=w, h=h, inner_w=w - 1, inner_h=h - 1, title=escape(title))]
    for number, line in enumerate(lines):
        column = 0
        for text, style in line:
            words = text.strip(" ")
            if words:
                at = column + len(text) - len(text.lstrip(" "))
                parts.append(_text(words, style, at, number))
            column += len(text)
    return "".join([*parts, "</svg>\n"])


def _text(words: str, style: str, column: int, line: int) -> str:
    x, y = _EDGE + column * _WIDE, _EDGE + line * _HIGH + 13
    look = f' class="{style}"' if style else ""
    # textLength: columns meet with any font.
    return f'<text x="{x}" y="{y}" textLength="{len(words) * _WIDE}"{look}>{escape(words)}</text>\n'
