"""A real browser, and the page that a test module draws into its fixture `file`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Browser]:
    """The page, freshly opened; it must neither complain nor fetch, nor execute a name."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(file)
    yield browser
    assert browser.complaints == []
    assert [one for one in browser.requests if not one.startswith("data:image/png")] == [file.as_uri()]
    assert browser.run("window.executed === undefined")
