"""Pages of the tool critical_path: its flame graph, and its lanes in time, in both languages."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import PID, Scene

from whystall.agent_server.presentation.pages import page_for
from whystall.prompts.files import LANGS
from whystall.prompts.render import words
from whystall.tools.host.common.path_codes import MODES, WAITS
from whystall.tools.host.critical_path import lanes
from whystall.tools.host.critical_path.lanes import Span
from whystall.tools.host.critical_path.tool import TOOL
from whystall.tools.recording.judging import judge

OTHER = 4101
GET = ("get (python3.11/queue.py:171)", "next_batch (train.py:41)")
HOSTILE = "</script><script>window.executed=1</script>"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def pages(scene: Scene, lang: Any) -> dict[str, str]:
    """Text of each artifact, by its name without the random part."""
    page = page_for(TOOL.name)
    assert page is not None
    result = judge(TOOL, scene.build(), TOOL.params(pid=PID), lambda seen, judged: page(seen, judged, lang))
    return {one.uri.rpartition("/")[2][9:]: Path(one.path).read_text("utf-8") for one in result.artifacts}


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    out: dict[str, Any] = json.loads(found[1])
    return out


def loader_scene() -> Scene:
    """A thread that waits 0.7 s of each second for one that reads a file."""
    scene = Scene().thread(user=30).thread(OTHER, "loader")
    for second in range(12):
        woken = {"waker": (PID, OTHER, "loader"), "context": "task", "runnable_ns": 0}
        scene.wait(second, 700, "futex", lock=64, user=GET, **woken)
        scene.wait(second, 690, "read", f"/data/{HOSTILE}", tid=OTHER, state="D", user=("decode (data.py:17)",))
    return scene


@pytest.mark.parametrize("lang", LANGS)
def test_the_path_is_a_flame_graph_over_the_whole_window(lang: str) -> None:
    scene = loader_scene()
    found, said = pages(scene, lang), words(lang)["path_page"]
    page = found["flame.html"]
    tree = data(page)["tree"]
    total = sum(np.frombuffer(base64.b64decode(own), "<f8").sum() for own in tree["own"])
    assert total == pytest.approx(scene.build().manifest.window_ns, rel=0.001)
    assert {"next_batch (train.py:41)", "decode (data.py:17)", f"[{said['waits']['queue']}]"} <= set(tree["labels"])
    assert HOSTILE not in page + found["lanes.html"] + found["flame.svg"]


@pytest.mark.parametrize("lang", LANGS)
def test_lanes_show_who_waited_for_whom(lang: str) -> None:
    said = words(lang)["path_page"]
    page = data(pages(loader_scene(), lang)["lanes.html"])
    (panel,) = page["panels"]
    first, second = panel["lanes"]
    assert (first["title"], second["title"]) == (f"train ({PID})", f"loader ({OTHER} of {PID})")
    looks = list(page["looks"])
    assert {looks[look] for look in first["look"]} == {"running", "handover"}
    assert "uninterruptible" in {looks[look] for look in second["look"]}
    waits = [at for at, look in enumerate(first["look"]) if looks[look] == "handover"]
    assert panel["texts"][first["text"][waits[0]]] == said["waits"]["queue"]
    more = [panel["texts"][line] for line in first["more"][waits[0]]]
    assert said["ended_by"].format(f"loader ({OTHER} of {PID})") in more
    assert len([arrow for arrow in panel["arrows"] if arrow[1:4:2] == [1, 0]]) == 12


def test_every_code_has_a_word() -> None:
    said = words("en")["path_page"]
    assert said["waits"].keys() - {"absent", "not_followed"} == WAITS.keys()
    assert said["modes"].keys() == MODES.keys()


def test_a_window_without_threads_has_no_page() -> None:
    assert set(pages(Scene(), "en")) == set()


def test_short_spans_are_joined_and_long_ones_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST_SPANS", 10)
    spans = [Span(at, at + 10, "lock" if at % 20 else "running") for at in range(0, 1000, 10)]
    spans.append(Span(1000, 2000, "file"))
    found = lanes._joined(spans, 2000)
    assert len(found) == 4
    assert found[-1] == spans[-1]
    assert sum(one.joined for one in found) == len(spans)
    assert all(one.end_ns <= after.start_ns for one, after in pairwise(found))
