"""The fleet in the console: real servers on loopback, of which one stands still, one is absent, and one is hostile."""

from __future__ import annotations

import html
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import console_server
import pytest
from browser import Browser
from console_browser import Page, needs_browser
from console_fleet import ABSENT, DEADLINE_S, EVIL, STOPPED, TOKEN, WELL, Fleet, fleet_of_processes
from console_server import Console, Visitor, serving

from whystall.agent_server.interfaces.mcp import resources

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of_processes(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture
def console(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A centre that has asked nobody yet. Its own server, which lacks the resource, is the host ``old``."""
    config = console_server.write_settings(tmp_path)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    monkeypatch.setenv("WHYSTALL_CONFIG", str(config))
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    monkeypatch.setenv("WRONG_TOKEN", "wrong-token-0123456789")
    monkeypatch.setattr(resources, "WATCH", "of another version")
    config.write_text(config.read_text() + fleet.settings)
    port = _free_port()
    with config.open("a") as file:
        token = tmp_path / "root.token"
        file.write(f'[fleet.overrides.old]\nurl = "http://127.0.0.1:{port}/mcp"\ntoken = {{ file = "{token}" }}\n')
    with serving(port=port) as made:
        yield made


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def until(read: Callable[[], str], done: Callable[[str], Any]) -> str:
    """Read a page until it is as wanted."""
    deadline = time.monotonic() + DEADLINE_S
    while not done(text := read()):
        assert time.monotonic() < deadline, text
        time.sleep(0.3)
    return text


def states(page: str) -> dict[str, str]:
    """The state of each host."""
    pill = r'<td data-label="State"><span><span class="pill \w*">([^<]+)<'
    return dict(re.findall(rf'<td data-label="Host">([^<]+)</td>\s*{pill}', page))


def settled(visitor: Visitor, path: str = "/fleet") -> str:
    return until(lambda: visitor.get(path).text, lambda page: "data-pending" not in page)


def test_every_host_has_its_state_and_none_delays_the_page(console: Console, fleet: Fleet) -> None:
    visitor = console.visitor("watch")
    fleet.stop(STOPPED)
    try:
        first = visitor.get("/fleet").text
        assert set(states(first).values()) == {"being asked"}, "nobody was awaited"
        assert '<noscript><meta http-equiv="refresh"' in first
        page = settled(visitor)
        assert states(page) == {
            WELL: "reachable",
            STOPPED: "slow",
            ABSENT: "unreachable",
            EVIL: "reachable",
            "refusing": "refused",
            "elsewhere": "another host",
            "old": "too old",
        }
        assert next(iter(states(page))) == WELL, "a job that stalls comes first"
        assert "7 hosts: 2 answer, 1 of them with stalled jobs; 5 do not answer." in page
        assert "1 of 4 stalled" in page
        assert not re.search(r"<script(?! src=)|<img|\u202e", page)
        assert "J &lt;script&gt;" in page
        assert TOKEN not in page
        job = visitor.get(f"/fleet/{STOPPED}/jobs/slurm:4242").text
        assert "did not answer" in job
    finally:
        fleet.go_on(STOPPED)
    page = until(lambda: visitor.get("/fleet").text, lambda page: states(page).get(STOPPED) == "reachable")
    assert "mixtral" in page
    fleet.stop(STOPPED)
    try:
        page = until(lambda: visitor.get("/fleet").text, lambda page: states(page).get(STOPPED) == "slow")
        assert "When it last answered: mixtral, vllm serve" in page
    finally:
        fleet.go_on(STOPPED)
    found = settled(visitor, "/fleet?q=MIXTRAL")
    assert list(states(found)) == [STOPPED]
    assert "No host matches" in visitor.get("/fleet?q=zzz").text


def test_what_a_job_of_another_host_waits_for_and_its_history_are_shown(console: Console) -> None:
    visitor = console.visitor("watch")
    overview = settled(visitor, "")
    (path,) = re.findall(rf'href="/console(/fleet/{WELL}/jobs/[^"]+)">llama-7b', overview)
    assert "<code>fsync</code>" in overview, "of the stalled rank"
    job = settled(visitor, html.unescape(path))
    assert "stalled for 43.2 s" in job
    assert "asleep in futex at all_reduce (train.py:212)" in job
    assert job.count('viewBox="0 0 60 10"') == 3
    assert "/console/diagnoses?pid=" not in job, "processes of another host are not diagnosed here"
    chinese = settled(visitor, f"/fleet/{WELL}/jobs/slurm:4242?lang=zh")
    assert "睡眠" in chinese or "all_reduce" in chinese
    assert "随时间变化的等待" in chinese
    visitor.get("?lang=en")
    bare = settled(visitor, f"/fleet/{EVIL}/jobs/slurm:4242")
    assert "That host gave no history" in bare
    assert "no watch has recorded on this host" in bare
    assert not re.search(r"<script(?! src=)|<img|\u202e", bare)
    assert visitor.get("/fleet/127.0.0.9/jobs/slurm:4242").status_code == 404
    assert "not watched any more" in settled(visitor, f"/fleet/{WELL}/jobs/slurm:1")


def test_only_who_may_observe_sees_the_fleet(console: Console) -> None:
    desk = console.visitor("desk")
    overview = desk.get("").text
    assert "Hosts of the fleet" not in overview
    assert "/console/fleet" not in overview
    for path in ("/fleet", f"/fleet/{WELL}/jobs/slurm:4242"):
        assert desk.get(path).status_code == 403
    assert console.visitor().get("/fleet").status_code == 303


def in_a_browser(test: Callable[..., None]) -> Callable[..., None]:
    for mark in needs_browser:
        test = mark(test)
    return test


@in_a_browser
@pytest.mark.parametrize(
    ("looks", "lang"),
    [
        ({"width": 390, "height": 844, "dark": True}, "zh"),
        ({"width": 390, "height": 844}, "en"),
        ({"dark": True}, "en"),
        ({}, "zh"),
    ],
)
def test_pages_are_accessible_and_answers_appear_by_themselves(
    console: Console, looks: dict[str, Any], lang: str, tmp_path: Path
) -> None:
    with Browser(**looks) as browser:
        page = Page(browser, console)
        page.login("watch")
        page.open(f"/fleet?lang={lang}")
        page.run("window.before = 1")
        page.until(lambda: page.run("!document.querySelector('[data-pending]')"))
        assert page.run("window.before") == 1, "without a reload"
        jobs = [f"/fleet/{address}/jobs/slurm:4242" for address in (WELL, EVIL)]
        for number, path in enumerate(("/fleet", "", *jobs)):
            browser.complaints.clear()
            page.open(path)
            page.until(lambda: page.run("!document.querySelector('[data-pending]')"))
            page.examined()
            assert page.run("window.executed") is None
            browser.picture(tmp_path / f"{number}.png")
