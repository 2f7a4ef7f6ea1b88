"""Heat maps in both languages, from real recordings, also of cpu_profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from heat_scenes import every, profile_of, recorded_with_samples, rest_of

from whystall.agent_server.presentation.heat_pages import heat_pages, sample_heat_pages
from whystall.agent_server.presentation.pages import page_for
from whystall.tools.contract.registry import Judgement
from whystall.tools.profiles.heat_map import tool as heat_map
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.recorded import recording_of


@dataclass
class Counted:
    """What another tool judged: this event."""

    event: str


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_checkpoint_stall_as_page_and_picture(lang: Literal["en", "zh"]) -> None:
    recording = recorded_with_samples("checkpoint")
    judged = heat_map.judge(recording, heat_map.Params())
    page, picture = heat_pages(recording, judged, lang)
    assert (page.name, page.media_type) == ("heat.html", "text/html")
    assert (picture.name, picture.media_type) == ("heat.svg", "image/svg+xml")
    for text in (page.text, picture.text):
        assert "1.34 s" in text
        assert "806 ms" in text
    assert "fsync" in page.text
    assert ("quiet every" in page.text) == (lang == "en")


def test_nothing_sampled_has_no_page() -> None:
    recording = recorded_with_samples("hang")
    assert heat_pages(recording, heat_map.judge(recording, heat_map.Params()), "en") == []


def test_beside_another_tool_only_where_there_is_time() -> None:
    timed = recording_of(profile_of(rest_of(every(1.0, 0.3, 8, 0), 8), 8))
    judged = Judgement(findings=[], data=Counted("cpu-clock"), seen=1)
    assert [one.name for one in sample_heat_pages(timed, judged, "en")] == ["heat.html", "heat.svg"]
    made = Builder()
    made.sample(made.stack([made.frame("main")]), made.event("samples"), 3)
    untimed = recording_of(made.profile("folded"))
    assert sample_heat_pages(untimed, Judgement(findings=[], data=Counted("samples"), seen=1), "en") == []
    short = recording_of(profile_of([(0, 0.04)], 0.04))
    assert sample_heat_pages(short, judged, "en") == []


def test_the_tools_have_their_pages() -> None:
    recording = recorded_with_samples("checkpoint")
    draw = page_for("heat_map")
    assert draw is not None
    judged = heat_map.judge(recording, heat_map.Params())
    assert [one.name for one in draw(recording, judged, "en")] == ["heat.html", "heat.svg"]
