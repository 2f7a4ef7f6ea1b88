"""The audit log: transactional, inert, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.journal.audit import redacted
from whystall.agent_server.stores import Stores


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path / "knowledge.db") as base:
        yield base


def test_an_entry_is_of_the_transaction_it_stands_in(kb: Stores) -> None:
    with kb.transaction():
        kb.audit.put("ann", "ticket.resolved", "ticket:1")

    def change() -> None:
        with kb.transaction():
            kb.audit.put("ann", "ticket.closed", "ticket:2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change()
    assert [entry.what for entry in kb.audit.entries()] == ["ticket.resolved"]


def test_the_newest_come_last_and_are_chosen(kb: Stores) -> None:
    for n in range(5):
        kb.audit.put("ann" if n % 2 else "engine", f"sink.{'create' if n < 3 else 'update'}", f"ticket:{n}")
    assert [entry.n for entry in kb.audit.entries(limit=2)] == [4, 5]
    assert [entry.n for entry in kb.audit.entries(after=3)] == [4, 5]
    assert [entry.n for entry in kb.audit.entries(what="sink.c")] == [1, 2, 3]
    assert [entry.n for entry in kb.audit.entries(by="ann")] == [2, 4]
    assert kb.audit.entries(by="ann' OR 1=1 --") == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("POST https://oapi.dingtalk.com/robot/send?access_token=abcdef012&x=1", "POST https://oapi.dingtalk.com/robot/send?access_token=***&x=1"),
        ("x?my_access_token=abcdef012", "x?my_access_token=***"),
        ("timestamp=1700&sign=aZLLrriXgn05%3D", "timestamp=1700&sign=***"),
        ("Authorization: Bearer eyJhbGciOi.J9", "Authorization: Bearer ***"),
        ("https://ann:hunter22@example.com/x", "https://ann:***@example.com/x"),
        ("please use glpat-AbCd0123456789xyz now", "please use *** now"),
        ("xoxb-123456789012-abcdef", "***"),
        ("ghp_0123456789abcdefABCDEF", "***"),
        ("sk-proj-0123456789abcdef", "***"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "***"),
        # what only looks a little like one is kept: people need to read the log
        ("the token budget is 3000 tokens", "the token budget is 3000 tokens"),
        ("disk-0123456789abcdef is full", "disk-0123456789abcdef is full"),
        ("why is job 4711 slow? rank=3", "why is job 4711 slow? rank=3"),
        ("12:34:56 http://host:8080/x", "12:34:56 http://host:8080/x"),
        ("task-12345678", "task-12345678"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_struck(text: str, kept: str) -> None:
    assert redacted(text) == kept
    assert redacted(kept) == kept


def test_secrets_are_struck_wherever_they_stand_and_texts_are_inert(kb: Stores, tmp_path: Path) -> None:
    detail: dict[str, Any] = {
        "url": "https://example.com/hook?token=s3cret-1234",
        "headers": {"X-Gitlab-Token": "s3cret-1", "api_key": "s3cret-2", "authorization": ["s3cret-3"], "token": ""},
        "list": [{"password": "s3cret-4", "tokens": 12}, ("Bearer s3cret-5",)],
        "text": "a\x1b[31mb\u202e\n" + "x" * 5000,
        "path": tmp_path,
        "deep": [[[[[[[["s3cret-6"]]]]]]]],
    }
    kb.audit.put("ann\x1b", "message.sent", "hook?token=s3cret-7", "failed: token=s3cret-8", detail)
    entry = kb.audit.entries()[0]
    said = json.dumps(entry.model_dump(), ensure_ascii=False)
    assert "s3cret" not in said
    assert (entry.by, entry.target, entry.outcome) == ("ann\\x1b", "hook?token=***", "failed: token=***")
    assert entry.detail["list"] == [{"password": "***", "tokens": 12}, ["Bearer ***"]]
    assert entry.detail["headers"]["token"] == ""
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert len(entry.detail["text"]) == 2000
    assert entry.detail["path"] == str(tmp_path)
