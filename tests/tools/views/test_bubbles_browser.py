"""The page in a real browser: it draws, moves, searches and shows both themes, and runs nothing of a stranger's."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser, executable
from scenes import HOSTILE, bubble, page_words, timeline

from whystall.tools.views.bubbles import bubbles_page

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium; .ci/install-test-packages installs it")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    page = bubbles_page(
        timeline(), [bubble(), bubble(7, 12)], page_words(), lang="en", heading=HOSTILE, notes=[HOSTILE]
    )
    path.write_text(page, "utf-8")
    return path


def picture(page: Browser, panel: int = 1) -> str:
    """What is drawn in a panel."""
    page.settle()
    return str(page.run(f"document.querySelector('#b{panel} canvas').toDataURL()"))


def tip(page: Browser) -> list[str]:
    """The lines of the tooltip; none when there is none."""
    lines: list[str] = page.run("tip.hidden ? [] : [...tip.children].map((line) => line.textContent)")
    return lines


def inside(page: Browser, lane: int, share: float) -> tuple[float, float]:
    """A point in the n-th lane of the first panel, at a share of its width right of the titles."""
    x, y, width = page.run(
        "(() => { const c = document.querySelector('#b1 canvas'); c.scrollIntoView({block: 'center'});"
        " const b = c.getBoundingClientRect(); return [b.left, b.top, b.width]; })()"
    )
    gutter = min(170, width * 0.24)
    return x + gutter + share * (width - gutter), y + lane


STATES = 20 + 2 * (22 + 4) + (16 + 4) + 13
"""The middle of the thread's lane: below the axis, two device lanes and the launches (heights in bubbles.js)."""


def test_nothing_of_a_strangers_is_executed(page: Browser) -> None:
    assert page.run("window.executed") is None
    assert page.run("document.images.length") == 0
    assert page.run("document.querySelector('h1').textContent") == HOSTILE
    page.press("/")
    page.write("onerror")
    page.press("Enter")
    page.press("Escape")
    for _ in range(9):
        page.press(".")
    assert page.run("window.executed") is None


def test_the_policy_stops_what_would_get_in(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.run("document.body.append(Object.assign(document.createElement('script'), {text: 'window.executed = 1'}))")
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.executed=1\">')")
    browser.settle()
    assert browser.run("window.executed") is None
    assert any("Content Security Policy" in line for line in browser.complaints)


def test_a_slice_under_the_pointer_explains_itself(page: Browser) -> None:
    # the bubble is the middle half of the panel; the thread is ready for its first half
    page.mouse("mouseMoved", *inside(page, STATES, 0.4))
    assert tip(page) == [
        "ready, waiting for a CPU",
        "lasts 3.000 ms",
        "starts at +0 ns",
        "in the queue of CPU 1",
        "woken by python3 (40)",
        "dispatch (10)",
    ]
    page.mouse("mouseMoved", *inside(page, 2, 0.4))
    assert tip(page) == []


def test_zooming_and_moving_change_the_picture_and_back(page: Browser) -> None:
    whole = picture(page)
    page.press("w")
    near = picture(page)
    page.press("d")
    moved = picture(page)
    assert len({whole, near, moved}) == 3
    page.press("0")
    assert picture(page) == whole
    page.press("s")
    assert picture(page) == whole, "there is no more than all"
    page.mouse("mouseWheel", *inside(page, STATES, 0.3), deltaX=0, deltaY=-400, modifiers=2)
    assert picture(page) != whole
    x, y = inside(page, STATES, 0.5)
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    before = picture(page)
    page.mouse("mouseMoved", x + 80, y, button="left", buttons=1)
    page.mouse("mouseReleased", x + 80, y, button="left", clickCount=1)
    assert picture(page) != before
    page.run("document.querySelector('#b1 [data-do=fit]').click()")
    assert picture(page) == whole


def test_the_pointer_stays_on_its_instant_while_zooming(page: Browser) -> None:
    point = inside(page, STATES, 0.6)
    page.mouse("mouseMoved", *point)
    before = tip(page)
    for _ in range(3):
        page.mouse("mouseWheel", *point, deltaX=0, deltaY=-300, modifiers=2)
    page.mouse("mouseMoved", point[0], point[1] + 1)
    assert tip(page) == before != []


def test_keys_go_from_slice_to_slice_and_from_panel_to_panel(page: Browser) -> None:
    page.press(".")
    assert tip(page)[0] == "ready, waiting for a CPU"
    page.press(".")
    assert tip(page)[:3] == ["running", "lasts 500.000 µs", "starts at +3.000 ms"]
    assert page.run("live.textContent").startswith("running; lasts")
    page.press(",")
    assert tip(page)[0] == "ready, waiting for a CPU"
    page.press("j")
    page.press(".")
    assert tip(page)[-1] == "dispatch (10)"
    assert page.run("document.activeElement === document.querySelector('#b2 canvas')")


def test_search_finds_names_states_and_tooltips(page: Browser) -> None:
    plain = picture(page)
    page.press("/")
    page.write("greedy")
    page.press("Enter")
    assert page.run("found.textContent") == "1 of 2"
    assert picture(page) != plain
    page.run("search.value = ''; search.dispatchEvent(new Event('input'))")
    page.write("came from")
    page.press("Enter")
    page.press("Enter")
    assert page.run("found.textContent") == "2 of 2"
    page.run("search.value = ''; search.dispatchEvent(new Event('input'))")
    page.write("no such thing")
    assert page.run("found.textContent") == "nothing found"
    page.press("Escape")
    assert picture(page) == plain


def test_both_themes(page: Browser, file: Path) -> None:
    def colours() -> tuple[str, str]:
        return page.run("getComputedStyle(document.body).backgroundColor"), picture(page)

    light = colours()
    page.press("t")
    dark = colours()
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] == "rgb(13, 17, 23)"
    assert light[1] != dark[1]
    page.press("t")
    assert colours() == light


def test_the_systems_theme_is_taken(file: Path) -> None:
    with Browser(dark=True) as browser:
        browser.open(file)
        assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"


def test_the_keys_are_listed(page: Browser) -> None:
    page.press("?")
    assert page.run("keys.open")
    assert "zoom in and out" in page.run("keys.innerText")
