"""The page of ranks in a real browser: it shows figures by mouse and keyboard, and executes no foreign text."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser, executable
from scenes import HOSTILE
from test_rank_matrix import drawn, hostile

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium; .ci/install-test-packages installs it")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(drawn(hostile(), heading=HOSTILE, verdict=HOSTILE, notes=[HOSTILE]), "utf-8")
    return path


def at(page: Browser, figure: str, row: int, column: int) -> tuple[float, float]:
    """Where a cell's middle is seen."""
    x, y = page.run(f"""(() => {{
        const one = JSON.parse(document.getElementById("data").textContent).figures.{figure};
        const svg = document.getElementById("{figure}");
        svg.scrollIntoView({{block: "center"}});
        const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
        const x = one.x + ({column} + 0.5) * one.cell[0], y = one.y + ({row} + 0.5) * one.cell[1];
        return [box.left + x * scale, box.top + y * scale];
    }})()""")
    return x, y


def tip(page: Browser) -> list[str] | None:
    """The lines of the tooltip; None when it is hidden."""
    shown = 'document.getElementById("tip")'
    lines: list[str] | None = page.run(f"{shown}.hidden ? null : [...{shown}.children].map((x) => x.textContent)")
    return lines


def test_the_mouse_shows_a_cell(page: Browser) -> None:
    page.mouse("mouseMoved", *at(page, "steps", 1, 3))
    assert tip(page) == [
        "rank 1, step 3",
        "own time 130.0 ms",
        "median of its peers 115.0 ms (+13.0 %)",
        "waited 0.000 ms of a step of 135.0 ms",
    ]
    page.mouse("mouseMoved", *at(page, "waits", 0, 1))
    assert tip(page) == ["rank 0 waited for rank 1: 30.0 ms per step"]
    page.mouse("mouseMoved", 5, 5)
    assert tip(page) is None


def test_the_mouse_shows_bars_an_instant_and_a_place(page: Browser) -> None:
    page.mouse("mouseMoved", *at(page, "parts", 0, 0))
    assert tip(page) == ["rank 0, mean step", "own time: 105.0 ms (77.8 %)", "waits for other ranks: 30.0 ms (22.2 %)"]
    page.mouse("mouseMoved", *at(page, "timeline", 0, 0))  # its middle
    lines = tip(page)
    assert lines is not None
    assert lines[1:] == [f"all_reduce {HOSTILE}: 70.0 ms", "of that 30.0 ms waiting for the last rank to enter"]
    page.mouse("mouseMoved", *at(page, "places", 1, 0))
    assert tip(page) == [f"rank 1, group {HOSTILE}", "all_reduce #3", "has not entered what others of the group have"]


def test_the_keyboard_shows_a_cell(page: Browser) -> None:
    page.run('document.getElementById("steps").focus()')
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.press(key)
    assert page.run('document.getElementById("live").textContent').startswith("rank 1, step 1; own time 130.0 ms")
    page.press("End")
    assert (tip(page) or [""])[0] == "rank 1, step 5"
    page.press("Escape")
    assert tip(page) is None


def test_the_drawing_needs_no_script_and_follows_the_theme(page: Browser) -> None:
    colour = 'getComputedStyle(document.querySelector("#steps .row")).fill'
    light = page.run(colour)
    page.run('document.getElementById("theme").click()')
    assert page.run(colour) != light
    # the cells are an image that was decoded
    assert page.run('document.querySelector("#steps image.cells").getBBox().width') > 0
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
