"""The heat map in a real browser: a span is chosen by mouse and keyboard, and its flame graph follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import Browser, executable
from scenes import HOSTILE
from test_heat_page import drawn, heat, stacks

pytestmark = [
    pytest.mark.skipif(executable() is None, reason="no Chromium; .ci/install-test-packages installs it"),
    pytest.mark.thorough,
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    shown, held = heat(label=HOSTILE), stacks(name=HOSTILE)
    path.write_text(drawn(shown, held, heading=HOSTILE, verdict=HOSTILE, notes=[HOSTILE]), "utf-8")
    return path


def at(page: Browser, column: int, row: int) -> tuple[float, float]:
    """Where a cell's middle is seen."""
    x, y = page.run(f"""(() => {{
        const one = JSON.parse(document.getElementById("data").textContent).map, svg = document.getElementById("map");
        svg.scrollIntoView({{block: "center"}});
        const box = svg.getBoundingClientRect();
        return [box.left + one.x + ({column} + 0.5) * one.cell[0], box.top + one.y + ({row} + 0.5) * one.cell[1]];
    }})()""")
    return x, y


def text(page: Browser, key: str) -> Any:
    return page.run(f'document.getElementById("{key}").textContent')


def shift(page: Browser, key: str) -> None:
    """Press a key with Shift."""
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8)
    page.settle()


def pixels(page: Browser, key: str) -> Any:
    """The drawing of a flame graph."""
    return page.run(f'document.querySelector("#{key} canvas").toDataURL()')


def test_the_mouse_shows_a_cell(page: Browser) -> None:
    page.mouse("mouseMoved", *at(page, 2, 10))
    assert text(page, "tip") == "2.20 s to 2.22 sbusy 100 %"
    page.mouse("mouseMoved", *at(page, 2, 35))
    assert text(page, "tip").endswith("busy 0 %")
    page.mouse("mouseMoved", *at(page, 5, 40))
    assert text(page, "tip").endswith("not observed")


def test_a_span_is_dragged_over_columns_and_its_flame_graph_drawn(page: Browser) -> None:
    before = pixels(page, "flame")
    page.mouse("mousePressed", *at(page, 1, 5), button="left", clickCount=1)
    page.mouse("mouseMoved", *at(page, 3, 20), button="left", buttons=1)
    page.mouse("mouseReleased", *at(page, 3, 20), button="left", clickCount=1)
    # steps of three seconds, saves of two: 3 * 69 + 2 * 30 of 594
    assert text(page, "chosen") == "1.10 s to 3.42 s: 45 % of all samples; busy 74 %"
    assert text(page, "flame-title") == "Flame graph of the chosen span"
    assert pixels(page, "flame") != before
    assert page.run('document.getElementById("beside").hidden') is False
    page.run('document.getElementById("clear").click()')
    page.settle()
    assert pixels(page, "flame") == before
    assert page.run('document.getElementById("beside").hidden')


def test_the_keyboard_chooses_and_extends(page: Browser) -> None:
    page.run('document.getElementById("map").focus()')
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.press("Enter")
    assert text(page, "chosen").startswith("1.00 s to 1.02 s: 5.1 % of all samples")
    for _ in range(12):
        shift(page, "ArrowDown")
    assert text(page, "chosen").startswith("1.00 s to 1.26 s: 17 % of all samples")
    shift(page, "ArrowRight")
    assert text(page, "chosen").startswith("1.00 s to 2.26 s: 33 % of all samples")
    page.press("Escape")
    assert text(page, "chosen").startswith("Nothing is chosen")


def test_the_bands_of_a_period_are_chosen_at_once(page: Browser) -> None:
    page.run('document.querySelector("[data-band]").click()')
    page.settle()
    assert text(page, "chosen") == "5 spans: 0 % of all samples (few samples: read the shares with care)"
    assert page.run('document.querySelector("[data-band]").getAttribute("aria-pressed")') == "true"
    page.run('document.querySelector("[data-band]").click()')
    assert text(page, "chosen").startswith("Nothing is chosen")


def test_only_what_chance_does_not_explain_is_coloured(page: Browser) -> None:
    page.run('document.getElementById("map").focus()')
    page.press("ArrowRight")
    page.press("Enter")  # the first cell: saves alone, 30 samples
    legend = '[...document.querySelectorAll("#difference .flame-legend li")].map((one) => one.textContent).join("|")'
    seen = page.run(legend)
    assert "not proven" in seen
    assert "points" in page.run('document.getElementById("difference").textContent')
    assert "0.00" not in seen.split("|")[0]  # something is proven: the colours have a scale


@pytest.mark.parametrize("width", [375, 1280, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_window(file: Path, width: int, dark: bool) -> None:
    with Browser(width=width, dark=dark) as one:
        one.open(file)
        assert one.run("document.documentElement.scrollWidth <= innerWidth")
        assert one.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert one.complaints == []
