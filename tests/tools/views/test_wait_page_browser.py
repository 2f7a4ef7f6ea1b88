"""The page of waits over time in a real browser: figures of cells by mouse and keyboard, and nothing is executed or
fetched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser import Browser, executable
from scenes import HOSTILE

from whystall.prompts.render import words
from whystall.tools.views.topology_page import Table
from whystall.tools.views.wait_drawing import WaitMap, WaitRow, most_of
from whystall.tools.views.wait_page import wait_page

pytestmark = [
    pytest.mark.skipif(executable() is None, reason="no Chromium; .ci/install-test-packages installs it"),
    pytest.mark.thorough,
]
S = 1_000_000_000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rate = np.array([[0.25, np.nan, 1.0], [0.0, np.nan, 12.5]])
    rows = [WaitRow(HOSTILE, HOSTILE, f"first {HOSTILE}", "1 s", [(10 * S, 20 * S, HOSTILE)])]
    rows.append(WaitRow("second", "", "second", "2 s"))
    waits = WaitMap(rows, 0, 10 * S, rate, most_of(rate))
    texts = {key: str(text) for key, text in words("en")["history"]["page"].items()}
    table = Table(HOSTILE, (HOSTILE,), [(HOSTILE,)])
    path = tmp_path_factory.mktemp("page") / "page.html"
    page = wait_page([(HOSTILE, waits)], [table], texts, lang="en", heading=HOSTILE, verdict=HOSTILE, notes=[HOSTILE])
    path.write_text(page, "utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True])
def test_cells_have_their_figures(file: Path, dark: bool) -> None:
    with Browser(dark=dark) as page:
        page.open(file)
        assert page.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        page.run('document.getElementById("map0").focus()')
        tip = 'document.getElementById("tip").textContent'
        page.press("ArrowDown")
        assert "0.250 s/s" in page.run(tip)
        assert f"first {HOSTILE}" in page.run(tip)
        page.press("ArrowRight")
        assert "not recorded" in page.run(tip)
        page.press("ArrowRight")
        page.press("ArrowDown")
        assert page.run(tip).startswith("12.5 s/s1970-01-01 00:00:20 to 1970-01-01 00:00:30 UTCsecond")
        page.press("Escape")
        assert page.run('document.getElementById("tip").hidden')
        assert not page.complaints
        assert all(one.startswith(("file:", "data:")) for one in page.requests)
