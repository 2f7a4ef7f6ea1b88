"""The page and the drawing of a flame graph: what is in them, colours that can be read, and no text becomes code."""

from __future__ import annotations

import base64
import html.parser
import json
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from flames import CHANGED, STACKS, drawn, laid, picture

from whystall.prompts.render import LANGS, words
from whystall.tools.views import page as pages
from whystall.tools.views.flame_layout import FlameTree, layout
from whystall.tools.views.flame_looks import LETTERS, PATTERNS, STEPS, change_looks, columns, cut
from whystall.tools.views.flame_page import MOST_ROWS, SCRIPT_WORDS, WORDS, flame_page
from whystall.tools.views.flame_svg import SVG_WORDS
from whystall.tools.views.page import asset, page

HOSTILE = (
    '</script><script>window.executed=1</script><img src=x onerror="window.executed=1">',
    "]]></script><svg onload=window.executed=1>",
    "a\nb\r\u2028c\u202edetrever",
    "x" * 10_000,
    "'\"&amp;${window.executed=1}<!--",
    "<a xlink:href='javascript:window.executed=1'>",
)
SVG = "{http://www.w3.org/2000/svg}"


def hostile() -> list[tuple[str, float]]:
    return [(f"{name};{other}", 1 + n) for n, name in enumerate(HOSTILE) for other in HOSTILE]


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    out: dict[str, Any] = json.loads(found[1])
    return out


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize("lang", LANGS)
def test_the_page_has_its_words_and_frames(lang: str) -> None:
    text, stated = drawn(laid(), lang), words(lang)["flame_page"]
    assert f'<html lang="{lang}">' in text
    for one in ("load is slow", "100 samples", stated["frames"], stated["needs_script"], stated["kind_device"]):
        assert one in text
    tree = data(text)["tree"]
    assert {"GPU:gemm", "aten::mm", "load", "vfs_read", stated["all"]} - {"all", *tree["labels"]} <= {stated["all"]}
    assert set(data(text)["words"]) == SCRIPT_WORDS
    parent = np.frombuffer(base64.b64decode(tree["parent"]), "<i4")
    own = np.frombuffer(base64.b64decode(tree["own"][0]), "<f8")
    assert len(parent) == len(own)
    assert own.sum() == 100


def test_no_word_is_missing_or_unused() -> None:
    code = asset("flame_parts.js") + asset("flame.js")
    spoken = set(re.findall(r"words\.(\w+)", code)) | {f"kind_{kind}" for kind in LETTERS if kind != "root"}
    assert spoken == SCRIPT_WORDS
    assert SVG_WORDS <= WORDS
    for lang in LANGS:
        stated = words(lang)["flame_page"]
        assert set(stated) >= WORDS
        for word in ("matches", "total_of", "self_of", "total_two", "self_two", "amounts_two", "cut", "rows_cut"):
            assert stated[word].count("{}") == 2
        less = {key: text for key, text in stated.items() if key != "search"}
        with pytest.raises(KeyError):
            flame_page(laid(), [], less, lang=lang, heading="x", unit="samples")


def test_a_row_leads_to_its_frame_in_the_graph() -> None:
    text = drawn(laid())
    labels = data(text)["tree"]["labels"]
    found = re.findall(r'<tr data-frame="(\d+)">.*?<button[^>]*>(.*?)</button>', text)
    assert {(labels[int(number)]) == name for number, name in found} == {True}
    assert found[0][1] == "GPU:gemm"
    assert '<td class="number" data-value="0.5">50.00 %</td>' in text


def test_the_table_is_bounded() -> None:
    text = drawn(laid([(f"f{n:04}", 1) for n in range(MOST_ROWS + 5)]))
    assert text.count("<tr data-frame") == MOST_ROWS
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 5} frames are listed." in text


def test_what_is_not_drawn_is_reported() -> None:
    shown = laid(least=0.05)
    assert shown.cut == 1
    for text in (drawn(shown), picture(shown)):
        assert "Frames not drawn one by one: 1, each narrower than 5.0 %" in text
    assert "not drawn one by one" not in drawn(laid())


def test_nothing_sampled_is_reported() -> None:
    nothing = words("en")["flame_page"]["nothing"]
    assert nothing in drawn(None)
    assert data(drawn(None))["tree"] is None
    ElementTree.fromstring(picture(None))
    assert nothing in picture(None)


def test_hostile_text_stays_text() -> None:
    shown = laid(hostile())
    text = drawn(shown, heading=HOSTILE[0], verdict=HOSTILE[1], notes=HOSTILE[2:])
    found = Elements(text)
    assert [tag for tag, _ in found.found if tag in ("script", "img", "svg", "a")] == ["script"] * 4
    assert not any(name.startswith("on") for _, attributes in found.found for name in attributes)
    assert HOSTILE[0] in found.texts
    assert len(text) < 400_000
    svg = picture(shown, heading=HOSTILE[0], notes=HOSTILE)
    tree = ElementTree.fromstring(svg)
    assert [one.tag for one in tree.iter() if one.tag in (f"{SVG}script", f"{SVG}a", f"{SVG}image")] == [f"{SVG}script"]
    assert not any(name.startswith("on") for one in tree.iter() for name in one.attrib)
    assert len(svg) < 200_000


def test_the_policy_names_every_script() -> None:
    text = page(lang="en", title="x", body="", data=1, name="flame_page", also=("flame",), scripts=("flame",))
    policy = re.search(r"script-src ([^;]*);", text)
    assert policy is not None
    assert policy[1].split() == [pages._hash(asset("flame.js")), pages._hash(asset("flame_page.js"))]
    assert text.index(asset("flame.js")) < text.index(asset("flame_page.js"))
    for name in ("flame_parts.js", "flame.js", "flame_page.js", "flame_svg.js"):
        assert "</script" not in asset(name)
        assert "]]>" not in asset(name)


@pytest.mark.parametrize("lang", LANGS)
def test_the_drawing_is_whole_without_script(lang: str) -> None:
    shown = laid()
    tree = ElementTree.fromstring(picture(shown, lang, unit="ns"))
    graph = next(one for one in tree.iter(f"{SVG}g") if one.get("class") == "graph")
    assert len(graph) == len(shown)
    stated = words(lang)["flame_page"]
    titles = {title.text.split("\n")[0]: title.text for title in graph.iter(f"{SVG}title") if title.text}
    assert titles["load"].split("\n")[1:] == [
        stated["total_of"].format("40 ns", "40.0 %"),
        stated["self_of"].format("0 ns", "0 %"),
        "train.py:12",
    ]
    assert stated["kind_operator"] in "".join(tree.itertext())
    for one in graph:
        bar = one.find(f"{SVG}rect")
        assert bar is not None
        assert float(bar.get("x", "0")) + float(bar.get("width", "0")) <= 1190.01


def test_labels_stay_within_their_bars() -> None:
    shown = laid([("kernel:" + "漢字" * 30, 30), ("b" * 80, 30), ("narrow", 0.4)])
    graph = ElementTree.fromstring(picture(shown)).iter(f"{SVG}g")
    checked = 0
    for one in graph:
        bar, text = one.find(f"{SVG}rect"), one.find(f"{SVG}text")
        if bar is not None and text is not None and text.text and one.find(f"{SVG}title") is not None:
            assert columns(text.text) * 0.602 * 12 + 3 <= float(bar.get("width", "0"))
            checked += 1
    assert checked == 3
    assert cut("漢字漢字", 5) == "漢字…"
    assert cut("abcdef", 5) == "abcd…"
    assert cut("abcdef", 2) == ""


def test_both_directions_of_a_difference_are_drawn() -> None:
    shown = laid(CHANGED, proven=["read", "gone"])
    assert dict(zip((shown.labels[n] for n in shown.frame), change_looks(shown), strict=True)) == {
        "all": "same",
        "main": "same",
        "load": "unproven",
        "step": "unproven",
        "read": f"up{STEPS}",
        "gone": "down3",
    }
    tree = ElementTree.fromstring(picture(shown))
    graphs = [one for one in tree.iter(f"{SVG}g") if one.get("class") == "graph"]
    first = [[title.text.split("\n")[0] for title in one.iter(f"{SVG}title") if title.text] for one in graphs]
    assert ["gone" in one for one in first] == [False, True]  # after, before
    text = drawn(shown)
    assert "▲ +30.00" in text
    assert "▼ −20.00" in text
    assert words("en")["flame_page"]["direction_help"] in text
    assert len(data(text)["tree"]["own"]) == 2


def test_what_the_script_and_the_drawing_know_of_looks_is_the_same() -> None:
    code = asset("flame_parts.js")
    letters = re.search(r"const LETTERS = \{(.*?)\};", code, re.DOTALL)
    patterns = re.search(r"const PATTERNS = \{(.*?)\};", code, re.DOTALL)
    assert letters is not None
    assert patterns is not None
    assert dict(re.findall(r'(\w+): "(.)"', letters[1])) == LETTERS
    assert dict(re.findall(r'(\w+): "(\w+)"', patterns[1])) == PATTERNS
    assert f"STEPS = {STEPS}" in code


def colours() -> list[dict[str, str]]:
    """Of each theme: light, dark where the system is, dark by the switch."""
    blocks = re.findall(r"\{([^{}]*)\}", asset("flame_colours.css"))
    return [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def mixed(one: str, other: str, share: float) -> str:
    parts = (round(int(one[at : at + 2], 16) * (1 - share) + int(other[at : at + 2], 16) * share) for at in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in parts)


def test_labels_can_be_read_on_every_bar() -> None:
    light, dark, switched = colours()
    assert dark == switched
    bars = {*LETTERS, "same", "unproven", *(f"{way}{n}" for way in ("up", "down") for n in range(1, STEPS + 1))}
    for theme in (light, dark):
        for bar in bars:
            grounds = [theme[bar], mixed(theme[bar], theme["page"], 0.28)]  # the palest shade
            if bar in PATTERNS:
                grounds += [mixed(one, theme["ink"], 0.13) for one in grounds]
            assert min(contrast(one, theme["ink"]) for one in grounds) >= 4.5, bar
        assert contrast(theme["dim"], theme["quiet"]) >= 4.5
        for text in ("quiet", "found", "edge", "link"):
            assert contrast(theme["page"], theme[text]) >= 4.5, text


def test_nothing_proven_has_no_grades_of_change_in_the_legend() -> None:
    text = picture(laid(CHANGED, proven=[]))
    assert "0.00 … " not in text
    assert words("en")["flame_page"]["not_proven"] in text


def test_grades_of_a_change_differ_in_lightness() -> None:
    for theme in colours():
        for way in ("up", "down"):
            steps = [luminance(theme[f"{way}{n}"]) for n in range(1, STEPS + 1)]
            assert all(abs(one - other) > 0.004 for one, other in pairwise(steps))
            assert steps in (sorted(steps), sorted(steps, reverse=True))


def test_the_same_columns_give_the_same_page() -> None:
    assert drawn(laid()) == drawn(laid(STACKS[::-1]))
    assert picture(laid()) == picture(laid(STACKS[::-1]))


@pytest.mark.thorough
def test_many_nodes_make_a_page_of_bounded_size() -> None:
    count = 60_000
    wide = FlameTree(
        parent=np.full(count, -1),
        depth=np.zeros(count, int),
        frame=np.arange(count),
        own=np.linspace(1, 2, count)[None, :],
        total=np.linspace(1, 2, count)[None, :],
        labels=[f"void at::native::kernel_{n}<float, {n % 7}>" for n in range(count)],
        kinds=["native"] * count,
        codes=[""] * count,
    )
    shown = layout(wide, root="all", rest="rest", least=0)
    assert shown is not None
    assert len(drawn(shown)) < 6_000_000
    assert shown.own.sum() == pytest.approx(wide.own.sum())
