"""Flame graphs in a real browser: mouse, keyboard, search and both themes; nothing of a stranger's runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, executable
from flames import CHANGED, STACKS, drawn, laid, picture
from test_flame_page import HOSTILE, hostile

pytestmark = [
    pytest.mark.skipif(executable() is None, reason="no Chromium; .ci/install-test-packages installs it"),
    pytest.mark.thorough,
]

Open = Callable[[str, str], Browser]
ROW = 19


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a text as a file; it must neither complain nor fetch, nor execute a name."""

    def opened(text: str, name: str = "page.html") -> Browser:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        browser.complaints.clear()
        browser.requests.clear()
        browser.open(path)
        return browser

    yield opened
    assert browser.complaints == []
    assert {one for one in browser.requests if not one.startswith("data:")} <= {
        path.as_uri() for path in tmp_path.iterdir()
    }
    assert browser.run("window.executed === undefined")


def chosen(page: Browser) -> Any:
    return page.run("flame.label(flame.chosen)")


def zoomed(page: Browser) -> Any:
    return page.run("flame.label(flame.zoomed)")


def tip(page: Browser) -> list[str] | None:
    shown = 'document.querySelector(".flame-tip")'
    lines: list[str] | None = page.run(f"{shown}.hidden ? null : [...{shown}.children].map((x) => x.textContent)")
    return lines


def middle(page: Browser, label: str) -> tuple[float, float]:
    """Where a frame is seen."""
    x, y = page.run(f"""(() => {{
        const node = flame.depth.findIndex((_, i) => flame.label(i) === {label!r});
        const box = flame.canvas.getBoundingClientRect(), row = flame.icicle ? flame.depth[node] : flame.rows - 1 - flame.depth[node];
        return [box.left + flame.left(node) + flame.wide(node) / 2, box.top - flame.box.scrollTop + row * {ROW} + 8];
    }})()""")  # noqa: E501
    return x, y


def click(page: Browser, x: float, y: float) -> None:
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, x, y, button="left", clickCount=1)


def texts(page: Browser, selector: str) -> list[str]:
    found: list[str] = page.run(f"[...document.querySelectorAll({selector!r})].map((x) => x.textContent)")
    return found


def colour_at(page: Browser, x: float, y: float) -> list[int]:
    found: list[int] = page.run(f"""(() => {{
        const box = flame.canvas.getBoundingClientRect(), copy = document.createElement("canvas");
        const c = copy.getContext("2d", {{ willReadFrequently: true }});
        c.drawImage(flame.canvas, box.left - {x}, box.top - {y});
        return [...c.getImageData(0, 0, 1, 1).data];
    }})()""")
    return found


def test_the_mouse_shows_and_zooms(show: Open) -> None:
    page = show(drawn(laid(), unit="ns", period=2.0), "page.html")
    page.mouse("mouseMoved", *middle(page, "load"))
    assert tip(page) == [
        "load",
        "with all it calls: 40 ns (40.0 %)",
        "itself: 0 ns (0 %)",
        "20 samples",
        "train.py:12",
        "Python",
    ]
    click(page, *middle(page, "load"))
    assert zoomed(page) == "load"
    assert texts(page, ".flame-crumbs li") == ["all", "main", "load"]
    assert page.run("flame.wide(flame.zoomed) === flame.box.clientWidth")
    page.mouse("mouseMoved", *middle(page, "read"))
    assert "75.0 % of the frame shown" in (tip(page) or [])
    click(page, *middle(page, "main"))  # a caller is still there, as wide as the picture
    assert zoomed(page) == "main"
    page.run('document.querySelector(".flame-crumbs button").click()')
    assert zoomed(page) == "all"
    page.mouse("mouseMoved", 3, 3)
    assert tip(page) is None


def test_the_keyboard_goes_everywhere(show: Open) -> None:
    page = show(drawn(laid()), "page.html")
    page.run("flame.canvas.focus()")
    for key, expected in (
        ("ArrowDown", "main"),
        ("ArrowRight", "waiting"),
        ("ArrowLeft", "main"),
        ("ArrowDown", "step"),
        ("ArrowLeft", "load"),
        ("ArrowUp", "main"),
    ):
        page.press(key)
        assert chosen(page) == expected, key
    assert page.run('document.querySelector("[aria-live].unseen").textContent').startswith("main; with all it calls")
    page.press("Enter")
    assert zoomed(page) == "main"
    page.press("ArrowDown")
    page.press("Enter")
    assert zoomed(page) == "step"
    page.press("Backspace")
    assert zoomed(page) == "main"
    page.press("Escape")
    assert zoomed(page) == "all"
    page.press("?")
    assert page.run('document.getElementById("keys").open')
    page.run('document.getElementById("keys").close()')
    page.press("i")
    assert page.run("flame.icicle") is False
    page.run("flame.canvas.focus()")
    page.press("Home")
    page.press("ArrowUp")
    assert chosen(page) == "main"
    assert middle(page, "main")[1] < middle(page, "all")[1]


def test_search_marks_and_sums(show: Open) -> None:
    page = show(drawn(laid()), "page.html")
    page.press("/")
    assert page.run("document.activeElement === flame.search")
    page.write("^(load|vfs_.*)$")
    assert texts(page, ".flame-found") == ["matches: 2 (40.0 % of all)"]  # one lies within the other
    x, y = middle(page, "step")
    dim = colour_at(page, x + 20, y)
    page.press("Enter")
    assert chosen(page) == "load"
    page.press("Enter")
    assert chosen(page) == "vfs_read"
    page.press("Escape")
    assert texts(page, ".flame-found") == [""]
    assert colour_at(page, x + 20, y) != dim
    page.press("/")
    page.write("(")
    assert texts(page, ".flame-found") == ["no frame matches (not a regular expression: searched as plain text)"]
    page.run('flame.search.value = ""')
    page.write("nowhere")
    assert texts(page, ".flame-found") == ["no frame matches"]


def test_a_row_of_the_table_chooses_its_frame(show: Open) -> None:
    page = show(drawn(laid()), "page.html")
    page.run('[...document.querySelectorAll("td.name button")].find((x) => x.textContent === "read").click()')
    assert chosen(page) == "read"
    assert texts(page, "tr.chosen td.name button") == ["read"]
    assert texts(page, ".flame-found") == ["matches: 1 (30.0 % of all)"]
    page.run('[...document.querySelectorAll("th button")][1].click()')
    assert texts(page, "td.name")[0].startswith("main")
    page.run('document.querySelector("tr.chosen button").click()')
    assert texts(page, "tr.chosen") == []


def test_a_difference_is_drawn_in_both_directions(show: Open) -> None:
    page = show(drawn(laid(CHANGED, proven=["read", "gone"])), "page.html")
    pressed = '[...document.querySelectorAll(".flame-sides button")].map((x) => x.getAttribute("aria-pressed"))'
    visible = "flame.visible(flame.depth.findIndex((_, i) => flame.label(i) === 'gone'))"
    assert page.run(pressed) == ["false", "true"]
    assert page.run(visible) is False
    page.mouse("mouseMoved", *middle(page, "read"))
    assert tip(page) == [
        "read",
        "with all it calls: 20.0 % before, 50.0 % after",
        "itself: 20.0 % before, 50.0 % after",
        "20 samples before, 60 samples after",
        "+30.0 points (more than chance)",
        "native code",
    ]
    page.run('document.querySelector(".flame-sides button").click()')
    assert page.run(pressed) == ["true", "false"]
    assert page.run(visible) is True
    page.mouse("mouseMoved", *middle(page, "load"))
    assert "+10.0 points not proven" in (tip(page) or [])
    looks = page.run("Object.fromEntries([...flame.depth.keys()].map((i) => [flame.label(i), flame.lookOf(i)]))")
    assert looks["read"] == "up4"
    assert looks["gone"] == "down3"
    assert looks["load"] == looks["step"] == "unproven"
    assert texts(page, ".flame-legend li")[:2] == ["−22.5 … −30.0", "−15.0 … −22.5"]


def test_nothing_proven_has_no_grades_of_change(show: Open) -> None:
    page = show(drawn(laid(CHANGED, proven=[])), "page.html")
    assert len(texts(page, ".flame-legend li:not(.flame-note)")) == 2  # no change, not proven


def test_other_weights_of_the_same_nodes_can_be_shown(show: Open) -> None:
    page = show(drawn(laid()), "page.html")
    ranked = page.run("""(() => {
        const own = flame.tree.own[0].map((value, i) => (flame.label(i) === "decode" ? value : 0));
        flame.show(own);
        return Flame.ranking(flame.tree, own).map((row) => [flame.tree.labels[row.frame], row.self, row.total]);
    })()""")
    assert ranked == [["decode", 10, 10], ["load", 0, 10], ["main", 0, 10]] or ranked == [
        ["decode", 10, 10],
        ["main", 0, 10],
        ["load", 0, 10],
    ]
    assert page.run(
        "flame.wide(flame.depth.findIndex((_, i) => flame.label(i) === 'decode')) === flame.box.clientWidth"
    )
    page.run("flame.show([flame.tree.own[0], flame.own[0]], {proven: (before, after) => after - before > 0.5})")
    assert page.run("flame.lookOf(flame.depth.findIndex((_, i) => flame.label(i) === 'decode'))") == "up4"


def test_a_recursion_counts_once(show: Open) -> None:
    page = show(drawn(laid([("a;b;a;b;a", 3), ("b", 1)])), "page.html")
    ranked = page.run(
        "Flame.ranking(flame.tree, flame.tree.own[0]).map((r) => [flame.tree.labels[r.frame], r.self, r.total])"
    )
    assert ranked == [["a", 3, 3], ["b", 1, 4]]


def test_light_and_dark(show: Open) -> None:
    page = show(drawn(laid()), "page.html")
    at = middle(page, "step")[0] + 40, middle(page, "step")[1] + 7
    light = colour_at(page, *at)
    assert page.run("document.documentElement.dataset.theme") == "light"
    page.run('document.getElementById("theme").click()')
    page.settle()
    dark = colour_at(page, *at)
    assert sum(dark[:3]) < sum(light[:3])
    page.press("t")
    page.settle()
    assert colour_at(page, *at) == light


@pytest.mark.parametrize("width", [375, 1600])
def test_the_page_fits_any_width(width: int, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    stacks = [*STACKS, (";".join(f"level_{n}" for n in range(200)), 5)]
    path.write_text(drawn(laid(stacks), "zh", heading="x" * 200), "utf-8")
    with Browser(width=width, height=800, dark=True) as page:
        page.open(path)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.run("document.documentElement.dataset.theme") == "dark"
        assert page.run("flame.box.scrollHeight > flame.box.clientHeight")  # 200 levels scroll in a box of their own
        assert page.run("flame.canvas.height < 1000")
        page.run("flame.canvas.focus()")
        for _ in range(3):
            page.press("i")
        for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp"):
            page.press(key)
        assert page.complaints == []


def test_hostile_names_stay_names(show: Open) -> None:
    page = show(drawn(laid(hostile()), heading=HOSTILE[0], verdict=HOSTILE[1], notes=HOSTILE), "page.html")
    page.run("flame.canvas.focus()")
    for key in ("ArrowDown", "Enter", "ArrowDown", "Enter", "i"):
        page.press(key)
    page.run('for (const one of [...document.querySelectorAll("td.name button")].slice(0, 8)) one.click()')
    page.run("flame.search.focus()")
    page.write("<img src=x onerror=window.executed=1>")
    assert page.run("document.querySelectorAll('img, main svg, main a').length") == 0
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_fifty_thousand_nodes_are_drawn_as_far_as_they_are_visible(show: Open) -> None:
    stacks = [(f"a{n % 40};b{n % 1000};c{n}", 1.0) for n in range(36_000)]
    page = show(drawn(laid(stacks, least=0)), "page.html")
    assert page.run("flame.depth.length") > 36_000
    assert page.run("flame.drawn") < 4_000
    page.run("flame.zoom(1)")
    assert page.run("flame.drawn") > 500
    page.run('flame.search.value = "c1"; flame.seek("c1")')
    assert "matches: " in texts(page, ".flame-found")[0]


def test_a_page_without_samples_reports_it(show: Open) -> None:
    page = show(drawn(None), "page.html")
    assert "There are no samples" in texts(page, ".nothing")[0]
    page.press("?")
    assert page.run('document.getElementById("keys").open')


def test_paper_shows_every_row(show: Open) -> None:
    stacks = [*STACKS, (";".join(f"level_{n}" for n in range(120)), 5)]
    page = show(drawn(laid(stacks)), "page.html")
    page.run('document.documentElement.dataset.theme = "dark"; dispatchEvent(new Event("beforeprint"))')
    assert page.run("flame.canvas.clientHeight") == 121 * ROW + 2
    assert page.run("document.documentElement.dataset.theme") == "light"
    page.run('dispatchEvent(new Event("afterprint"))')
    assert page.run("flame.canvas.clientHeight") < 121 * ROW
    assert page.run("document.documentElement.dataset.theme") == "dark"


def bars(page: Browser) -> dict[str, list[float]]:
    found: dict[str, list[float]] = (
        page.run("""Object.fromEntries([...document.querySelectorAll(".graph > g:not(.gone)")].map((one) => [
        one.querySelector("title").textContent.split("\\n")[0],
        ["x", "y", "width"].map((name) => Number(one.querySelector("rect").getAttribute(name)))]))""")
    )
    return found


def test_the_drawing_zooms_searches_and_turns(show: Open) -> None:
    page = show(picture(laid()), "flame.svg")
    assert bars(page)["load"][2] == pytest.approx(0.4 * 1180)
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "Enter"):
        page.press(key)
    assert bars(page)["load"][2] == pytest.approx(1180)
    assert "step" not in bars(page)
    assert set(bars(page)) >= {"all", "main", "read", "decode"}
    page.press("Escape")
    assert bars(page)["load"][2] == pytest.approx(0.4 * 1180)
    high = bars(page)["all"][1]
    page.press("i")
    assert bars(page)["all"][1] > high
    page.press("/")
    page.write("^(load|vfs_.*)$")
    assert texts(page, ".found") == ["matches: 2 (40.0 % of all)"]
    assert page.run('document.querySelectorAll(".hit").length') == 2


def test_the_drawing_follows_the_theme_and_stands_in_a_page(show: Open, tmp_path: Path) -> None:
    (tmp_path / "flame.svg").write_text(picture(laid(hostile()), heading=HOSTILE[0]), "utf-8")
    page = show('<meta charset="utf-8"><img src="flame.svg">', "page.html")
    assert page.run("document.querySelector('img').naturalWidth") == 1200
    page = show((tmp_path / "flame.svg").read_text("utf-8"), "other.svg")
    light = page.run('getComputedStyle(document.querySelector(".ground")).fill')
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.run('getComputedStyle(document.querySelector(".ground")).fill') != light
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    page.press("/")
    page.write("img")
    assert page.run("document.querySelectorAll('image, a, svg svg').length") == 0


def test_the_drawing_of_a_difference_zooms_each_direction_by_itself(show: Open) -> None:
    page = show(picture(laid(CHANGED, proven=["read"])), "flame.svg")
    wide = "[...document.querySelectorAll('.graph')].map((one) => [...one.children].find((g) => g.querySelector('title').textContent.startsWith('read')).querySelector('rect').getAttribute('width'))"  # noqa: E501
    assert [float(one) for one in page.run(wide)] == pytest.approx([0.5 * 1180, 0.2 * 1180])
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Enter"):
        page.press(key)
    assert [float(one) for one in page.run(wide)] == pytest.approx([1180, 0.2 * 1180])
