# SPDX-License-Identifier: BSD-3-Clause
"""The page of `shmcoll bench --html` in a browser: asks the network for nothing, fits a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from shmcoll.bench.show import page, table
from shmcoll.bench.results import Report
from test_bench_report import made_up, spoiled

pytestmark = pytest.mark.timeout(120)

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PROBE = """<script>
addEventListener("load", () => {
  document.documentElement.style.width = "WIDTHpx";  // windows have a least width
  const asked = performance.getEntriesByType("resource").map(entry => entry.name);
  document.title = [document.body.scrollWidth, ...asked].join(" ");
});
</script></body>"""


class Loaded:
    """A page in a browser that has no network: every host needs a proxy that is not there."""

    def __init__(self, html: str, width: int, tmp_path: Path) -> None:
        assert BROWSER is not None, "needs a browser: apt-get install chromium"
        file = tmp_path / "page.html"
        file.write_text(html.replace("</body>", PROBE.replace("WIDTH", str(width))))
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
        command += ["--proxy-server=127.0.0.1:9", "--proxy-bypass-list=<-loopback>"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,900"]
        command += ["--dump-dom", file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        self.document = done.stdout
        title = re.search("<title>(.*)</title>", done.stdout)
        assert title is not None
        self.width, self.asked = int(title[1].split()[0]), title[1].split()[1:]


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("make", [made_up, spoiled])
def test_the_page_asks_for_nothing_and_fits_the_window(
    make: Callable[[], Report], width: int, tmp_path: Path
) -> None:
    report = make()
    html = page.render(report)
    loaded = Loaded(html, width, tmp_path)
    assert loaded.asked == []
    shown = table.Table(report.settings.labels, report.settings.shown_columns)
    assert loaded.document.count("<td") == sum(len(shown.cells(row)) for row in report.rows)
    assert loaded.document.count("<circle") == html.count("<circle") > 0
    assert 0 < loaded.width <= width


def test_what_the_test_looks_for_would_be_seen(tmp_path: Path) -> None:
    picture = '<img src="http://elsewhere.invalid/x.png"><hr style="width: 3000px"></body>'
    loaded = Loaded(page.render(made_up()).replace("</body>", picture), 1200, tmp_path)
    assert loaded.asked == ["http://elsewhere.invalid/x.png"]
    assert loaded.width > 2900
