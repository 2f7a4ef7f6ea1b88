"""The heat map as a page and a picture: bounded, self-contained, and nothing of a stranger's is markup."""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scenes import HOSTILE

from whystall.prompts.render import words
from whystall.tools.views.flame_layout import FlameTree
from whystall.tools.views.heat_drawing import UNKNOWN, Bands, Heat, heat_figure, scale_of
from whystall.tools.views.heat_page import WORDS, Stacks, heat_page, heat_svg

SECOND = 1_000_000_000
CELL = 20_000_000


def heat(columns: int = 6, *, label: str = "quiet every 1 s") -> Heat:
    """Quiet from 600 to 900 ms of each second; the last half second was not observed."""
    value = np.ones((columns, 50))
    value[:, 30:45] = 0
    value[-1, 25:] = np.nan
    starts = np.arange(columns - 1) * SECOND + 600_000_000
    band = Bands(label, starts, starts + 300_000_000, [HOSTILE] if label == HOSTILE else ["waits in fsync"])
    return Heat(np.arange(columns) * SECOND, CELL, value, 1.0, [band])


def stacks(columns: int = 6, *, name: str = "step") -> Stacks:
    """main calls `name` while busy, and save in the first cell of each second."""
    tree = FlameTree(
        parent=np.array([-1, 0, 0]),
        depth=np.array([0, 1, 1]),
        frame=np.array([0, 1, 2]),
        own=np.array([[0.0, 69.0 * columns, 30.0 * columns]]),
        total=np.array([[99.0 * columns, 69.0 * columns, 30.0 * columns]]),
        labels=["main", name, "save"],
        kinds=["python", "python", "native"],
        codes=["train.py:1", "train.py:9", ""],
    )
    cell = np.repeat(np.arange(columns) * 50, 2) + np.tile([0, 10], columns)
    node, weight = np.tile([2, 1], columns), np.tile([30.0, 69.0], columns)
    return Stacks(tree, cell, node, weight, 1, "samples", 1.0, 1.0)


def drawn(shown: Heat | None = None, held: Stacks | None = None, *, lang: str = "en", **more: Any) -> str:
    text = words("zh" if lang == "zh" else "en")
    options = {"heading": "Activity", "verdict": "stops", "notes": ["one"], **more}
    return heat_page(shown or heat(), held or stacks(), text["heat_page"], text["flame_page"], lang=lang, **options)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


def test_levels_tell_quiet_from_not_observed() -> None:
    levels = heat().levels
    assert levels[0, 0] == UNKNOWN - 1
    assert levels[0, 35] == 0
    assert levels[5, 30] == UNKNOWN


def test_the_scale_is_round_and_no_larger_than_needed() -> None:
    assert scale_of(np.array([0.0, 0.043, np.nan])) == 0.05
    assert scale_of(np.array([0.999])) == 1.0
    assert scale_of(np.array([np.nan])) > 0


def test_the_page_holds_what_the_script_reads() -> None:
    data = data_of(drawn())
    assert data["map"]["rows"] == 50
    assert len(base64.b64decode(data["map"]["levels"])) == 300
    entries = data["stacks"]
    node = np.frombuffer(base64.b64decode(entries["node"]), "<i4")
    weight = np.frombuffer(base64.b64decode(entries["weight"]), "<f4")
    tree = entries["tree"]
    labels = [tree["labels"][at] for at in np.frombuffer(base64.b64decode(tree["frame"]), "<i4")]
    summed = {label: float(weight[node == at].sum()) for at, label in enumerate(labels)}
    assert summed == {"all": 0.0, "main": 0.0, "save": 180.0, "step": 414.0}


def test_what_is_too_small_to_draw_keeps_its_weight() -> None:
    tree = FlameTree(
        parent=np.array([-1, -1, 1]),
        depth=np.array([0, 0, 1]),
        frame=np.array([0, 1, 2]),
        own=np.array([[1e6, 0.0, 1.0]]),
        total=np.array([[1e6, 1.0, 1.0]]),
        labels=["big", "rare", "rarer"],
        kinds=["native"] * 3,
        codes=[""] * 3,
    )
    held = Stacks(tree, np.array([0, 7]), np.array([0, 2]), np.array([1e6, 1.0]), 1, "samples", 1.0, 1.0)
    entries = data_of(drawn(held=held))["stacks"]
    node = np.frombuffer(base64.b64decode(entries["node"]), "<i4")
    frame = np.frombuffer(base64.b64decode(entries["tree"]["frame"]), "<i4")
    assert [entries["tree"]["kinds"][frame[at]] for at in node] == ["native", "rest"]


def test_names_are_text() -> None:
    page = drawn(heat(label=HOSTILE), stacks(name=HOSTILE), heading=HOSTILE, verdict=HOSTILE, notes=[HOSTILE])
    assert HOSTILE not in page
    assert page.count("<script") == 4  # the data, the flame graph's, ours
    svg = heat_svg(heat(label=HOSTILE), words("en")["heat_page"], heading=HOSTILE, notes=[HOSTILE])
    assert {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}.isdisjoint(
        {"script", "img"}
    )


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_both_languages_have_every_word(lang: str) -> None:
    page = drawn(lang=lang)
    assert f'<html lang="{lang}">' in page
    assert set(words("en" if lang == "en" else "zh")["heat_page"]) >= WORDS


def test_the_picture_is_bounded() -> None:
    many = heat(2000)
    svg = heat_svg(many, words("en")["heat_page"], heading="Activity")
    assert len(svg) < 400_000
    assert ElementTree.fromstring(svg) is not None
    assert len(drawn(many)) < 2_000_000


def test_bands_are_outlined_and_cut_at_the_end_of_a_column() -> None:
    starts = np.array([700_000_000])
    one = Heat(np.arange(3) * SECOND, CELL, np.ones((3, 50)), 1.0, [Bands("b", starts, starts + 600_000_000)])
    content = heat_figure(one, words("en")["heat_page"]).content
    path = re.search(r'class="band band1" d="([^"]+)"', content)
    assert path is not None
    assert path[1].count("z") == 2


def test_time_that_was_cut_out_is_marked() -> None:
    gap = Heat(np.array([0, SECOND, 90 * SECOND]), CELL, np.ones((3, 50)), 1.0)
    assert gap.gaps == [2]
    content = heat_figure(gap, words("en")["heat_page"]).content
    assert content.count('class="cut"') == 1
    assert ">90<" in content
