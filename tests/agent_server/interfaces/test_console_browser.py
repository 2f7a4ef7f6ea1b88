"""The console in a real browser: pages and actions by clicks and keys, accessibility, looks, and without scripts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import console_server
import pytest
from browser import Browser
from console_browser import Page, needs_browser
from console_server import Console, file_tickets, serving, token_of, write_history, write_watch

from whystall.agent_server.journal.alerts import Alert

pytestmark = [pytest.mark.thorough, *needs_browser]
# It writes and waits for the disk, so that there is something to find.
WRITES = """
import os, time
file = open("written", "wb", buffering=0)
while True:
    file.write(b"x" * 100_000)
    os.fsync(file.fileno())
    time.sleep(0.002)
"""
PAGES = ("", "/jobs/slurm:4242", "/diagnoses", "/tickets", "/tickets/3", "/alerts", "/knowledge?q=slow+nfs", "/nothing")


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHYSTALL_HOME", str(home))
        patch.setenv("WHYSTALL_CONFIG", str(console_server.write_settings(home)))
        with serving() as made:
            file_tickets(made.kb, 6)
            write_watch(home)
            write_history(home)
            labels = {"alertname": "GpuFellOffBus", "node": "gpu05", "severity": "critical"}
            for status in ("firing", "resolved"):
                made.kb.alerts.put(Alert(key=status, fingerprint="f", status=status, labels=labels, starts=1e9), 2e9)
            yield made


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A process that writes."""
    with subprocess.Popen([sys.executable, "-c", WRITES], cwd=tmp_path_factory.mktemp("target")) as process:
        yield process.pid
        process.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(width=1280, height=900) as made:
        yield made


@pytest.fixture
def page(browser: Browser, console: Console) -> Page:
    browser.call("Network.clearBrowserCookies")
    browser.complaints.clear()
    return Page(browser, console)


def test_every_page_is_reached_by_links_and_accessible(page: Page) -> None:
    page.open("/login")
    page.examined()
    page.login()
    page.examined()
    for link in ("Diagnoses", "Tickets", "Alerts", "Incidents", "Overview"):
        page.click(link, "header")
        assert page.run("document.querySelector('nav a[aria-current]').textContent") == link
        page.examined()
    page.click("llama-7b")
    assert page.run("document.querySelector('h1').textContent") == "llama-7b"
    page.examined()
    page.click("Incidents", "header")
    page.fill("q", "checkpoint stalls nfs")
    page.click("Search")
    page.leads("document.querySelector('.hits a').click()")
    assert page.run("location.pathname").startswith("/console/knowledge/")
    page.examined()
    page.click("Log out", "header")
    assert page.run("location.pathname") == "/console/login"


def test_tickets_are_searched_and_every_action_works(page: Page) -> None:
    page.login("desk")
    page.click("Tickets", "header")
    page.fill("q", "bus")
    page.click("Filter")
    assert page.run("document.querySelectorAll('tbody tr').length") == 1
    page.click("GPU 5 fell off the bus")
    id = page.run("location.pathname").rpartition("/")[2]
    page.click("Acknowledge")
    assert page.run("document.querySelector('[role=status]').textContent") == "Acknowledged."
    page.examined()
    page.fill("users", "wang")
    page.click("Assign")
    page.fill("text", "card <b>replaced</b>")
    page.click("Comment")
    assert page.run("[...document.querySelectorAll('.comment pre')].at(-1).textContent") == "card <b>replaced</b>"
    page.fill("because", "the card was replaced")
    page.click("Resolve")
    page.examined()
    page.click("Reopen")
    ticket = page.console.kb.tickets.get(id)
    assert ticket.state == "open"
    assert ticket.assignment is not None
    assert ticket.assignment.users == ["wang"]
    events = page.console.kb.tickets.events(id)[-5:]
    assert events[3].detail == "the card was replaced"
    assert [event.what for event in events] == ["acknowledged", "assigned", "commented", "resolved", "reopened"]
    assert page.browser.complaints == []


def test_a_diagnosis_shows_its_progress_and_then_its_result(page: Page, target: int) -> None:
    page.login("watch")
    page.open(f"/diagnoses?pid={target}#start")
    assert page.run("document.getElementById('pid').value") == str(target)
    page.fill("duration", "3")
    page.fill("symptom", "it stalls")
    page.click("Diagnose")
    assert page.run("location.pathname").startswith("/console/runs/")
    page.examined()
    first = page.run("document.getElementById('step').textContent")
    page.until(lambda: page.run("document.getElementById('step').textContent") != first)
    page.arrived("/console/diagnoses/")
    page.until(lambda: page.run("document.querySelector('figure img').complete"))
    assert page.run("document.querySelector('figure img').naturalWidth") > 100
    assert page.run("document.querySelector('main').textContent").count("it stalls") == 1
    page.examined()


@pytest.mark.parametrize(
    ("looks", "lang"),
    [
        ({"width": 390, "height": 844}, "en"),
        ({"width": 390, "height": 844, "dark": True}, "zh"),
        ({"dark": True}, "en"),
        ({}, "zh"),
    ],
)
def test_pages_suit_phones_dark_rooms_and_chinese_readers(
    console: Console, looks: dict[str, Any], lang: str, tmp_path: Path
) -> None:
    with Browser(**looks) as browser:
        page = Page(browser, console)
        page.login()
        page.open(f"?lang={lang}")
        for number, path in enumerate(PAGES):
            browser.complaints.clear()
            page.open(path)
            assert page.run("document.documentElement.lang") == ("zh-CN" if lang == "zh" else "en")
            if path == "/nothing":
                browser.complaints.clear()  # of the status 404
            page.examined()
            light = page.run("getComputedStyle(document.body).backgroundColor")
            assert (light == "rgb(13, 17, 23)") is looks.get("dark", False)
            browser.picture(tmp_path / f"{number}.png")


def test_everything_works_without_scripts(console: Console, target: int) -> None:
    with Browser() as browser:
        page = Page(browser, console)
        browser.call("Emulation.setScriptExecutionDisabled", value=True)

        def enter(path: str, field: str, text: str) -> None:
            """Fill in a form, and send it by the keyboard."""
            browser.call("Page.navigate", url=console.url + path)
            page.until(lambda: page.run(f"document.readyState === 'complete' && !!document.getElementById({field!r})"))
            page.run(f"document.getElementById({field!r}).value = {text!r}; document.getElementById({field!r}).focus()")
            browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r", windowsVirtualKeyCode=13)

        enter("/login", "token", token_of("root"))
        page.until(lambda: page.run("!!document.querySelector('nav a')"))
        enter(f"/diagnoses?pid={target}", "duration", "1")
        page.arrived("/console/runs/")
        page.arrived("/console/diagnoses/")
        assert page.run("document.querySelectorAll('section').length") > 3
