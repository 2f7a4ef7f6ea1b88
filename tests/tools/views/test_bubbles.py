"""The page of the worst moments: what is in it, what is left out, and that no text becomes code."""

from __future__ import annotations

import html.parser
import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from scenes import HOSTILE, MS, NEIGHBOUR, TID, bubble, page_words, timeline

from whystall.prompts.render import LANGS
from whystall.tools.views.bubble_data import Part, Timeline
from whystall.tools.views.bubble_lanes import LOOKS, MOST_LANES
from whystall.tools.views.bubbles import MOST_BUBBLES, MOST_SLICES, WORDS, bubbles_page

Json = dict[str, Any]


def drawn(*bubbles: Any, lang: str = "en", of: Any = None) -> str:
    return bubbles_page(
        of or timeline(),
        bubbles or (bubble(),),
        page_words(lang),
        lang=lang,
        heading=f"worst {HOSTILE}",
        notes=[HOSTILE],
    )


def data(page: str) -> Json:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    out: Json = json.loads(found[1])
    return out


def lane(panel: Json, title: str) -> list[Json]:
    """The slices of a lane: times in ms from the start of the bubble."""
    (one,) = (one for one in panel["lanes"] if one["title"] == title)
    keys = zip(one["at"], one["length"], one["look"], one["text"], one["more"], one["depth"], strict=True)
    return [
        {
            "at": at / MS,
            "length": length / MS,
            "look": LOOKS[look],
            "text": panel["texts"][text],
            "more": [panel["texts"][line] for line in more],
            "depth": depth,
        }
        for at, length, look, text, more, depth in keys
    ]


class Elements(html.parser.HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_thread_shows_why_it_waited_and_who_woke_it() -> None:
    (panel,) = data(drawn())["panels"]
    slices = lane(panel, "dispatch (10)")
    assert [(one["at"], one["look"]) for one in slices] == [
        (-2, "sleeping"),
        (0, "runnable"),
        (3, "running"),
        (3.5, "runnable"),
        (5, "running"),
        (5.5, "uninterruptible"),
    ]
    assert slices[0]["more"] == ["left CPU 1", "began before the recording"]
    assert slices[1]["more"] == ["in the queue of CPU 1", "woken by python3 (40)"]
    assert slices[5]["more"] == ["left CPU 0", "woken by an interrupt"]
    assert slices[3]["more"] == ["in the queue of CPU 1", f"preempted by {HOSTILE} (30)"]
    assert slices[4]["more"] == ["on CPU 0", "came from CPU 1"]
    (panel,) = data(drawn(bubble(12, 13)))["panels"]
    assert [one["more"] for one in lane(panel, "dispatch (10)") if one["look"] == "unknown"] == [
        ["a bound is estimated"]
    ]


def test_lanes_are_those_of_the_thread_and_the_device() -> None:
    (panel,) = data(drawn())["panels"]
    assert [one["title"] for one in panel["lanes"]] == [
        "device 0, stream 7",
        "device 0, stream 9",
        "launches",
        "dispatch (10)",
        "CPU 0",
        "CPU 1",
        "interrupts, CPU 1",
    ]
    assert [one["text"] for one in lane(panel, "launches")] == ["cudaLaunchKernel"]
    assert [(one["text"], one["look"]) for one in lane(panel, "CPU 0")] == [
        ("python3 (40)", "thread_b"),
        ("not known", "unknown"),
        ("dispatch (10)", "running"),
    ]
    holders = lane(panel, "CPU 1")
    assert [one["text"] for one in holders[:2]] == ["greedy-neighbor (20)", "dispatch (10)"]
    assert (holders[-1]["look"], holders[-1]["at"], holders[-1]["more"]) == ("hole", 2, ["12 events lost"])
    assert [(one["look"], one["depth"]) for one in lane(panel, "interrupts, CPU 1")] == [
        ("softirq", 0),
        ("interrupt", 1),
    ]


def test_arrows_lead_from_the_cause_to_the_effect() -> None:
    (panel,) = data(drawn())["panels"]
    titles = [one["title"] for one in panel["lanes"]]
    arrows = [(kind, titles[a], at / MS, titles[b], to / MS) for kind, a, at, b, to in panel["arrows"]]
    assert arrows == [
        ("migration", "CPU 1", 5, "CPU 0", 5),
        ("wake", "CPU 0", 0, "dispatch (10)", 0),
        ("launch", "launches", 5.45, "device 0, stream 7", 6),
    ]


def test_times_are_exact_however_far_from_zero() -> None:
    (panel,) = data(drawn(bubble(2.000001, 8)))["panels"]
    assert lane(panel, "dispatch (10)")[2]["at"] == pytest.approx(2.999999, abs=1e-9)
    assert (panel["low"], panel["high"], panel["length"]) == (-2999999, 8999998, 5999999)


def test_without_a_device_there_are_late_wakes_to_show() -> None:
    (panel,) = data(drawn(of=timeline(device=False)))["panels"]
    assert [one["sort"] for one in panel["lanes"]] == ["thread", "cpu", "cpu", "interrupts"]


def test_threads_and_cpus_are_enough() -> None:
    whole = timeline()
    (panel,) = data(drawn(of=Timeline(whole.threads, whole.cpus)))["panels"]
    assert [one["title"] for one in panel["lanes"]] == [" (10)", "CPU 0", "CPU 1"]
    assert lane(panel, "CPU 1")[0]["text"] == "? (20)"
    (panel,) = data(drawn(bubble(300, 301), of=whole))["panels"]
    assert [one["at"] for one in panel["lanes"]] == [[]], "a moment that the trace does not cover"


def test_other_threads_that_matter_have_lanes_too() -> None:
    (panel,) = data(drawn(bubble(tids=(TID, NEIGHBOUR))))["panels"]
    assert [one["title"] for one in panel["lanes"] if one["sort"] == "thread"] == [
        "dispatch (10)",
        "greedy-neighbor (20)",
    ]
    looks = {one["text"]: one["look"] for one in lane(panel, "CPU 1")}
    assert (looks["dispatch (10)"], looks["greedy-neighbor (20)"]) == ("running", "thread_c"), "one stands out"
    assert [one["title"] for one in panel["lanes"] if one["sort"] == "cpu"] == ["CPU 0", "CPU 1"], "not CPU 5"


def test_nothing_to_show_is_reported() -> None:
    page = bubbles_page(timeline(), [], page_words(), lang="en", heading="x")
    assert "There is no moment to show." in page
    assert data(page)["panels"] == []


def test_no_text_becomes_markup() -> None:
    page = drawn()
    elements = Elements(page).found
    assert {tag for tag, _ in elements}.isdisjoint({"img", "link", "iframe", "object", "base", "form action"})
    assert sum(tag == "script" for tag, _ in elements) == 2
    for tag, attributes in elements:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes), (tag, attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert HOSTILE in data(page)["panels"][0]["texts"]


def test_nothing_is_fetched_and_only_our_script_runs() -> None:
    page = drawn()
    policy = next(a["content"] for tag, a in Elements(page).found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http:" not in page
    assert "https:" not in page


@pytest.mark.parametrize("lang", LANGS)
def test_all_words_are_handed_in(lang: str) -> None:
    assert set(page_words(lang)) == WORDS
    marked = {key: f"[{text}]" for key, text in page_words(lang).items()}
    page = bubbles_page(timeline(), [bubble()] * (MOST_BUBBLES + 1), marked, lang=lang, heading="x")
    assert f'<html lang="{lang}">' in page
    text = re.sub(r"<(script|style|svg|title|kbd).*?</\1>", " ", page, flags=re.DOTALL)
    left = re.sub(r"\[.*?\]|<.*?>", " ", text.replace(html.escape(HOSTILE), " "), flags=re.DOTALL)
    assert set(re.findall(r"[^\W\d_]+", left)) == {"x", "s", "ms"}
    script = re.sub(r"//.*", "", page.rpartition("<script>")[2])
    assert not re.findall(r'textContent\s*=\s*"[^"]', script)
    with pytest.raises(KeyError):
        bubbles_page(timeline(), [], {"start": ""}, lang=lang, heading="x")


def test_its_size_is_bounded_and_what_is_cut_is_reported() -> None:
    many = [{"start": 13 + i / 1e4, "end": 13 + (i + 1) / 1e4, "state": "running"} for i in range(10_000)]
    long = {"start": 14, "end": 14.1, "state": "uninterruptible"}
    streams = timeline().activities
    assert streams is not None
    rows = [streams[-1].with_columns(pl.lit(n, pl.Int64).alias("stream")) for n in range(MOST_LANES + 3)]
    scene = replace(timeline(more_threads=[*many, long]), activities=pl.concat(rows))
    page = drawn(*[bubble(13, 15)] * 60, of=scene)
    panels = data(page)["panels"]
    assert len(panels) == MOST_BUBBLES
    assert "10 more moments are not drawn." in page
    assert "3 more lanes are not drawn." in drawn(bubble(), of=scene)
    assert sum(len(one["at"]) for panel in panels for one in panel["lanes"]) <= MOST_SLICES
    assert len(page) < 4_000_000
    slices = lane(panels[0], "dispatch (10)")
    merged = [int(line.split()[0]) for one in slices for line in one["more"] if "drawn as one" in line]
    assert sum(merged) + sum(one["look"] == "running" for one in slices) - len(merged) == 10_000
    assert [one["at"] for one in slices if one["look"] == "uninterruptible"] == [1], "what is long stays itself"
    # no time is left out where there was something
    running = sorted((one["at"], one["at"] + one["length"]) for one in slices if one["look"] == "running")
    assert (running[0][0], running[-1][1]) == (0, 1)
    assert all(end == pytest.approx(start, abs=1e-6) for (_, end), (start, _) in pairwise(running))


def test_a_look_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError):
        drawn(replace(bubble(), parts=(Part("x", 1, "red"),)))
