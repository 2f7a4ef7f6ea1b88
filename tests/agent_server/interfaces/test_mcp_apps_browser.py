"""MCP Apps in a real browser: the pages of results inside the page of a host, over the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from apps_host.server import Host, hosted
from browser import Browser, executable
from recordings import Scene
from scheduled import TID, write

from whystall.agent_server.app import App

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(executable() is None, reason="no Chromium; .ci/install-test-packages installs it"),
]
RECORDED = Path(__file__).parents[2] / "recorded"
CHECKPOINT = {"recording": str(RECORDED / "checkpoint")}
HOSTILE = "**a** <img src=x onerror=window.executed=1> `b`"
DEADLINE_S = 60
# A page is drawn when what it consists of has a size.
DRAWN = {
    "critical_path": "#graph",
    "flame_graph": "#graph",
    "slow_node_check": "svg#waits",
    "host_bound": "section.panel canvas",
}
SIZE = "(({{ width, height }}) => [width, height])(document.querySelector('{}').getBoundingClientRect())"
DARK = "rgb(13, 17, 23)"  # of the dark pages


@dataclass
class Place:
    """A host whose page is in a browser."""

    host: Host
    url: str
    browser: Browser

    def open(self, *calls: tuple[str, dict[str, Any]], theme: str = "light", locale: str = "en-US") -> None:
        """Let the host make these calls and open their views."""
        self.host.calls, self.host.theme, self.host.locale = calls, theme, locale
        self.browser.complaints.clear()
        self.browser.requests.clear()
        self.browser.open(self.url)
        self.until(lambda: len(self.views()) == len(calls))

    def views(self) -> list[tuple[str, list[Any]]]:
        """The views, each in its sandbox: id, and the frames in it."""
        return [view for _, inner in self.browser.frames() for view in inner]

    def view(self, script: str, index: int = 0) -> Any:
        """The value of an expression in a view."""
        return self.browser.run(script, self.views()[index][0])

    def page(self, script: str, index: int = 0) -> Any:
        """The value of an expression in the page of a result in a view; None before it is there."""
        inner = self.views()[index][1]
        return self.browser.run(f"document.readyState === 'complete' ? {script} : null", inner[0][0]) if inner else None

    def until(self, done: Callable[[], Any]) -> Any:
        """Wait until `done` returns a true value, and return it."""
        return self.browser.until(done, DEADLINE_S)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The host, connected to the server, and a browser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHYSTALL_HOME", str(tmp_path_factory.mktemp("home")))
        with (
            App().closing() as app,
            hosted(app) as (host, url),
            Browser(width=1100, height=2600, frames=True) as browser,
        ):
            yield Place(host, url, browser)


@pytest.fixture
def place(started: Place) -> Iterator[Place]:
    """The same; no page complains, fetches from elsewhere or executes a name."""
    yield started
    own = started.url.removesuffix("host")
    other = own.replace("127.0.0.1", "localhost")
    assert started.browser.complaints == []
    assert [one for one in started.browser.requests if not one.startswith((own, other, "data:", "about:srcdoc"))] == []
    everywhere = [frame for view, inner in started.views() for frame in (view, *(one for one, _ in inner))]
    assert all(started.browser.run("window.executed === undefined", frame) for frame in everywhere)


def test_results_are_shown_as_pages(place: Place, tmp_path: Path) -> None:
    trace, profile = write(tmp_path)
    calls = {
        "critical_path": CHECKPOINT,
        "flame_graph": CHECKPOINT,
        "slow_node_check": {"traces": str(RECORDED / "ranks/compute")},
        "host_bound": {"recording": str(trace), "profile": str(profile), "pid": TID},
    }
    place.open(*calls.items())
    for index, name in enumerate(calls):
        width, height = place.until(partial(place.page, SIZE.format(DRAWN[name]), index))
        assert width > 300, name
        assert height > 60, name
        assert place.page("document.documentElement.dataset.theme", index) == "light"
        assert place.view("document.getElementById('note').textContent", index) == ""
        # a frame without an origin: neither storage nor the page around it can be reached
        assert place.page("self.origin", index) == "null"
    assert place.browser.run("[...document.querySelectorAll('iframe')].every((one) => one.clientHeight > 500)")
    assert all("resources/read" in methods for methods in place.browser.run("window.seen"))
    place.browser.run("change({ theme: 'dark' })")
    for index in range(len(calls)):
        place.until(lambda index=index: place.page("getComputedStyle(document.body).backgroundColor", index) == DARK)


def test_a_ticket_is_shown_whole(place: Place, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    scene = Scene(window_s=12).thread(user=80, blocked=30)
    for second in range(0, 12, 2):
        scene.call(second + 0.5, 600, "fsync", f"/ckpt/{HOSTILE}", waits=99)
    scene.build(without=("ranks", "crashes")).save(recording)

    async def diagnosed() -> str:
        async with place.host.client() as client:
            result = await client.call_tool("diagnose", {"recording": str(recording)})
            return str((result.structured_content or {})["id"])

    place.open(("ticket_draft", {"diagnosis": anyio.run(diagnosed)}), locale="zh-CN")
    place.until(lambda: place.view("document.querySelector('article h1')?.textContent.startsWith('Ticket ')"))
    assert place.view("document.querySelectorAll('article h2').length") > 3
    assert place.view("document.querySelectorAll('article li').length") > 10
    codes = place.view("[...document.querySelectorAll('article code')].map((one) => one.textContent)")
    assert any(HOSTILE in code for code in codes)  # as it is, in a code span
    assert place.view("document.querySelectorAll('article img').length") == 0
    assert place.view("document.documentElement.lang") == "zh"


def closes_its_dialog(place: Place) -> None:
    """The page's list of keys opens and closes, in a frame that may not submit forms."""
    place.page("document.getElementById('help').click()")
    assert place.page("document.querySelector('dialog').open")
    place.page("document.querySelector('dialog button').click()")
    assert place.page("document.querySelector('dialog').open") is False


def test_a_result_has_several_pages_in_the_theme_and_language_of_the_host(place: Place) -> None:
    place.open(("critical_path", CHECKPOINT), theme="dark")
    place.until(lambda: place.page("document.getElementById('graph') !== null"))
    assert place.page("getComputedStyle(document.body).backgroundColor") == DARK
    assert place.view("document.getElementById('summary').textContent") == "Text of the result"
    closes_its_dialog(place)
    assert "fsync" in place.view("document.getElementById('text').textContent")
    place.view("document.querySelectorAll('#pages button')[1].click()")
    place.until(lambda: place.page("document.querySelector('section.panel') !== null"))
    assert place.view("document.querySelector('#pages [aria-pressed=true]') === pages.lastChild")
    place.browser.run("change({ theme: 'light', locale: 'zh-Hans-CN' })")
    place.until(lambda: place.page("document.documentElement.dataset.theme") == "light")
    assert place.view("document.getElementById('summary').textContent") == "结果的文本"
    assert place.page("document.querySelector('section.panel') !== null")  # the chosen page stays
    closes_its_dialog(place)


@pytest.mark.parametrize("capabilities", [{"serverTools": {}}, {}], ids=["tools", "nothing"])
def test_a_host_that_passes_on_less(
    place: Place, monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, Any]
) -> None:
    monkeypatch.setattr(place.host, "capabilities", capabilities)
    place.open(("flame_graph", CHECKPOINT))
    if capabilities:
        place.until(lambda: place.page("document.getElementById('graph') !== null"))
        (methods,) = place.browser.run("window.seen")
        assert methods.count("tools/call") > 1  # in parts
        assert "resources/read" not in methods
    else:
        place.until(lambda: place.view("document.getElementById('whole').open"))
        assert place.view("document.getElementById('note').textContent").startswith("The page could not be read.")
        assert "flame.html" in place.view("document.getElementById('text').textContent")


def test_a_failed_call_is_shown_as_its_text(place: Place) -> None:
    place.open(("flame_graph", {"recording": f"/{HOSTILE}"}))
    place.until(lambda: place.view("document.getElementById('whole').open"))
    assert place.view("document.getElementById('note').textContent") == "The call failed."
    assert HOSTILE in place.view("document.getElementById('text').textContent")
