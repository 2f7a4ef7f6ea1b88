"""The console in a real browser, for tests: clicks, keys, waiting, and what axe-core finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, executable
from console_server import Console, token_of

AXE = Path(__file__).parents[1] / ".setup/accessibility/node_modules/axe-core/axe.min.js"
needs_browser = [
    pytest.mark.skipif(executable() is None, reason="no Chromium; .ci/install-test-packages installs it"),
    pytest.mark.skipif(not AXE.exists(), reason="no axe-core; make .setup/accessibility/installed"),
]
DEADLINE_S = 90


class Page:
    """A browser that shows the console."""

    def __init__(self, browser: Browser, console: Console) -> None:
        self.browser = browser
        self.console = console

    def open(self, path: str) -> None:
        self.browser.open(self.console.url + path)

    def run(self, script: str) -> Any:
        return self.browser.run(script)

    def until(self, done: Callable[[], Any]) -> Any:
        """Wait until `done` returns a true value, and return it."""
        return self.browser.until(done, DEADLINE_S)

    def leads(self, script: str) -> None:
        """Do what leads to another page, and wait for that."""
        self.run("window.before = 1")
        self.run(script)
        self.until(lambda: self.run("window.before === undefined && document.readyState === 'complete'"))

    def click(self, text: str, within: str = "main") -> None:
        """Click the link or button with this text by the mouse."""
        find = f"""[...document.querySelectorAll('{within} a, {within} button')]
            .find((one) => one.textContent.trim() === {json.dumps(text)})"""
        self.run(f"{find}.scrollIntoView({{block: 'center'}})")
        box = self.run(f"(({{x, y, width, height}}) => [x, y, width, height])({find}.getBoundingClientRect())")
        assert box[2] > 0, text
        place = {"x": box[0] + box[2] / 2, "y": box[1] + box[3] / 2, "button": "left", "clickCount": 1}
        self.run("window.before = 1")
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.call("Input.dispatchMouseEvent", type=kind, **place)
        self.until(lambda: self.run("window.before === undefined && document.readyState === 'complete'"))

    def fill(self, field: str, text: str) -> None:
        """Type into a field."""
        self.run(f"document.getElementById({field!r}).focus(); document.getElementById({field!r}).select?.()")
        self.browser.write(text)

    def login(self, name: str = "root") -> None:
        """Log in by the keyboard: the field has the focus."""
        self.open("/login")
        self.browser.write(token_of(name))
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r", windowsVirtualKeyCode=13)
        self.until(lambda: self.run("document.readyState === 'complete' && location.pathname === '/console'"))

    def arrived(self, place: str) -> None:
        """Wait until a page whose path begins with `place` is there."""
        self.until(lambda: self.run("document.readyState === 'complete' ? location.pathname : ''").startswith(place))

    def violations(self) -> list[str]:
        """Return what axe-core finds of serious or critical impact."""
        self.run(AXE.read_text("utf-8") + "; 1")
        found = self.run("axe.run(document, {resultTypes: ['violations'], iframes: false}).then((r) => r.violations)")
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in serious]

    def examined(self) -> None:
        """Assert that the page is accessible, is not wider than the window, and has nothing to complain of."""
        assert self.violations() == []
        assert self.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert self.browser.complaints == []
