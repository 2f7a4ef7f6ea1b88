"""The tracker that newcomers start: strict about what it takes, obedient to text as GitLab is, safe to look at."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracker import Tracker
from tracker_http import Hook
from tracker_page import rendered

TRACKER = Path(__file__).parents[2] / "examples" / "tracker.py"


def ask(tracker: Tracker, method: str, path: str, value: Any = None, token: str = "t") -> tuple[int, Any]:
    headers = {"private-token": token, "content-type": "application/json"}
    body = b"" if value is None else json.dumps(value).encode()
    status, _, answer = tracker.answer(method, f"/api/v4{path}", headers, body)
    return status, json.loads(answer)


ISSUES = "/projects/demo%2Ftraining/issues"


@pytest.fixture
def tracker() -> Tracker:
    return Tracker("t")


@pytest.mark.parametrize(
    ("method", "path", "value", "status"),
    [
        ("POST", ISSUES, {"title": "x"}, 201),
        ("POST", ISSUES, {"title": ""}, 400),
        ("POST", ISSUES, {"titel": "x"}, 400),
        ("POST", ISSUES, {"title": 3}, 400),
        ("POST", ISSUES, {"title": "x", "labels": ["a"]}, 400),
        ("POST", ISSUES, {"title": "x", "assignee_ids": [99]}, 400),
        ("POST", ISSUES, {"title": "x" * 256}, 400),
        ("POST", ISSUES, ["x"], 400),
        ("GET", f"{ISSUES}?sort=asc&order_by=updated_at", None, 200),
        ("GET", f"{ISSUES}?sortt=asc", None, 400),
        ("GET", f"{ISSUES}?per_page=101", None, 400),
        ("GET", f"{ISSUES}?updated_after=yesterday", None, 400),
        ("GET", f"{ISSUES}/7", None, 404),
        ("GET", "/projects/other", None, 404),
        ("GET", "/projects/1", None, 200),
        ("DELETE", ISSUES, None, 405),
    ],
)
def test_it_takes_what_is_documented(tracker: Tracker, method: str, path: str, value: Any, status: int) -> None:
    assert ask(tracker, method, path, value)[0] == status


def test_who_has_no_token_learns_nothing(tracker: Tracker) -> None:
    assert ask(tracker, "GET", ISSUES, token="") == (401, {"message": "401 Unauthorized"})


def test_an_issue_lives(tracker: Tracker) -> None:
    ask(tracker, "POST", ISSUES, {"title": "x", "labels": "a,b"})
    changed = ask(tracker, "PUT", f"{ISSUES}/1", {"add_labels": "c", "remove_labels": "a", "state_event": "close"})[1]
    assert (changed["state"], changed["labels"]) == ("closed", ["b", "c"])
    assert ask(tracker, "PUT", f"{ISSUES}/1", {"state_event": "open"})[0] == 400
    ask(tracker, "POST", f"{ISSUES}/1/notes", {"body": "hello"})
    assert [n["body"] for n in ask(tracker, "GET", f"{ISSUES}/1/notes?sort=desc")[1]] == ["hello"]
    assert [i["iid"] for i in ask(tracker, "GET", f"{ISSUES}?state=closed")[1]] == [1]


def test_text_steers_it_where_it_would_steer_gitlab(tracker: Tracker) -> None:
    ask(tracker, "POST", ISSUES, {"title": "x", "description": "`@a` hi\n```\n/close\n@b\n```\n<!-- /close -->"})
    assert (tracker.issues[0].actions, tracker.issues[0].mentions, tracker.issues[0].state) == ([], [], "opened")
    ask(tracker, "POST", f"{ISSUES}/1/notes", {"body": "look @all\n/close"})
    assert (tracker.issues[0].actions, tracker.issues[0].mentions) == (["/close"], ["all"])
    assert tracker.issues[0].state == "closed"


def test_its_pages_show_text_as_text(tracker: Tracker) -> None:
    hostile = "<script>alert(1)</script> **b** `<i>` ![x](http://x) </code>"
    ask(tracker, "POST", ISSUES, {"title": hostile, "description": f"# {hostile}\n- {hostile}\n```\n{hostile}\n```"})
    for page in (tracker.page(), tracker.page(1)):
        assert page is not None
        assert "<script" not in page
        assert "<i>" not in page
        assert "<img" not in page
    assert tracker.page(2) is None
    assert rendered("a **b `c` d** `**e**`") == "<p>a <b>b <code>c</code> d</b> <code>**e**</code></p>"


def test_a_hook_signs_as_gitlab_does() -> None:
    from whystall.agent_server.outbound.standard_webhooks import matches

    secret = "whsec_c2VjcmV0c2VjcmV0"
    headers = Hook("http://127.0.0.1:1/", "t", secret).headers({"object_kind": "issue"}, b"{}", "id", 1000.5)
    assert headers["X-Gitlab-Token"] == "t"
    assert matches(headers["webhook-signature"], secret, "id", headers["webhook-timestamp"], b"{}")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[str]:
    """The program itself, as a newcomer starts it; its address."""
    process = subprocess.Popen([sys.executable, str(TRACKER), "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"tracker: (http://127\.0\.0\.1:\d+)/demo/training/-/issues\n", process.stdout.readline())
        assert found is not None
        assert process.stdout.readline().startswith("token: glpat-")
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_it_is_started_and_looked_at(started: str) -> None:
    with urllib.request.urlopen(f"{started}/", timeout=20) as page:
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert b"No issues yet" in page.read()
    act = f"{started}/demo/training/-/issues/1/act"
    elsewhere = urllib.request.Request(act, b"what=close", {"Sec-Fetch-Site": "cross-site"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(elsewhere, timeout=20)
    refused.value.close()
    assert refused.value.code == 404
