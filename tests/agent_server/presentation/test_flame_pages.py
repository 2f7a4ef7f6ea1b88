"""Flame graphs of tools over stack samples, as page and picture, in both languages."""

from __future__ import annotations

import base64
import json
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from recordings import FSYNC_STACK, PID, Scene

from whystall.agent_server.presentation.pages import page_for
from whystall.prompts.files import LANGS
from whystall.prompts.render import words
from whystall.tools.contract.registry import Tool
from whystall.tools.host import offcputime
from whystall.tools.profiles.cpu_profile import tool as cpu_profile
from whystall.tools.profiles.flamegraph_diff import tool as flamegraph_diff
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import recording_of

HOSTILE = "</script><script>window.executed=1</script>"
PATHS = {"load": ("main", "load", "read"), "step": ("main", "step", HOSTILE), "save": ("main", "save")}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def profile(**counts: int) -> StackProfile:
    """So many samples in each of `PATHS`, one every 10 ms of a thread, in no order."""
    made = Builder()
    event, thread = made.event("cpu-clock", "ns", 1e7), made.thread(7, 7, "python3")
    order = [name for name, count in counts.items() for _ in range(count)]
    random.Random(5).shuffle(order)
    for at, name in enumerate(order):
        frames = [made.frame(one, "/srv/train.py", 12, "python") for one in PATHS[name]]
        made.sample(made.stack(frames), event, 1e7, at_ns=at * 10_000_000, thread=thread)
    return made.profile("ebpf")


def artifacts(
    tool: Tool[Any, Any], recording: Recording, lang: Any = "en", **params: Any
) -> dict[str, tuple[str, str]]:
    """Title and text of each, by its name without the random part."""
    page = page_for(tool.name)
    assert page is not None
    result = judge(tool, recording, tool.params(**params), lambda seen, judged: page(seen, judged, lang))
    return {one.uri.rpartition("/")[2][9:]: (one.title, Path(one.path).read_text("utf-8")) for one in result.artifacts}


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    out: dict[str, Any] = json.loads(found[1])
    return out


def weights(text: str) -> list[float]:
    """The sum of each side."""
    return [float(np.frombuffer(base64.b64decode(own), "<f8").sum()) for own in data(text)["tree"]["own"]]


@pytest.mark.parametrize("lang", LANGS)
def test_cpu_time_comes_as_a_page_and_a_picture(lang: str) -> None:
    found = artifacts(cpu_profile.TOOL, recording_of(profile(load=60, step=120, save=20)), lang)
    said = words(lang)["flame_page"]
    (title, page), (picture_title, picture) = found["flame.html"], found["flame.svg"]
    assert title == said["heading_cpu"]
    assert picture_title == said["picture"].format(title)
    assert f'<html lang="{lang}">' in page
    assert (data(page)["unit"], data(page)["period"], weights(page)) == ("ns", 1e7, [2e9])
    assert "read (train.py:12)" in data(page)["tree"]["labels"]
    assert "/srv/train.py:12" in data(page)["tree"]["codes"]
    assert HOSTILE not in page
    assert HOSTILE not in picture
    ElementTree.fromstring(picture)
    assert said["total_of"].format("600 ms", "30.0 %") in picture


def test_a_difference_has_both_sides_and_what_is_proven() -> None:
    before, after = profile(load=400, step=400, save=200), profile(load=400, step=400, save=1200)
    found = artifacts(flamegraph_diff.TOOL, recording_of(after, before=before), min_pct=1.0)
    page = found["flame.html"][1]
    assert weights(page) == [1e10, 2e10]
    tree = data(page)["tree"]
    proven = np.frombuffer(base64.b64decode(tree["proven"]), "<u1")
    frame = np.frombuffer(base64.b64decode(tree["frame"]), "<i4")
    sure = {tree["labels"][int(n)] for n in frame[proven > 0]}
    assert "save (train.py)" in sure
    assert "load (train.py)" not in sure
    said = words("en")["flame_page"]
    assert page.index(said["direction_help"])
    for side in ("before_widths", "after_widths"):
        assert said[side] in found["flame.svg"][1]
    first = re.search(r"<tr data-frame.*?</tr>", page)
    assert first is not None
    assert "save (train.py)" in first[0]


def test_waiting_is_drawn_by_thread() -> None:
    scene = Scene().thread(PID, blocked=40.0)
    scene.wait(2.0, 4000.0, "fsync", "/data/a", state="D", stack=FSYNC_STACK)
    found = artifacts(offcputime.TOOL, scene.build())
    title, page = found["flame.html"]
    assert title == words("en")["flame_page"]["heading_off_cpu"]
    assert "ext4_sync_file" in data(page)["tree"]["labels"]
    assert data(page)["unit"] == "ns"


def test_who_did_not_wait_has_no_picture() -> None:
    assert set(artifacts(offcputime.TOOL, Scene().thread(PID, user=90.0).build())) == set()


def test_without_samples_there_is_nothing_to_draw() -> None:
    assert set(artifacts(cpu_profile.TOOL, Scene().thread(PID).build())) == set()
