"""On-call overrides: stored, and ended without changing the past."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ErrorCode, ToolError

NOW = datetime(2026, 11, 3, 12, 30, 15, 250_000, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path / "knowledge.db") as base:
        yield base


def test_it_is_read_back_as_it_was_made(kb: Stores) -> None:
    berlin = NOW.astimezone(timezone(HOUR))
    one = kb.overrides.put("main", berlin, NOW + HOUR, add="bo", remove="ann", reason="a\x1b[31m\nb" * 200, by="kim")
    two = kb.overrides.put("main", NOW, NOW + HOUR, only=["cy"])
    three = kb.overrides.put("nights", NOW, NOW + HOUR, only=[])
    assert kb.overrides.all() == [one, two, three]
    assert kb.overrides.get(two.id) == two
    assert (one.code, two.code, two.only, three.only) == ("override:1", "temporary:2", ("cy",), ())
    assert len(one.reason) == 500
    assert "\x1b" not in one.reason
    assert kb.overrides.all(schedule="main") == [one, two]
    assert kb.overrides.all(after=NOW + HOUR) == []
    assert kb.overrides.all(after=NOW + HOUR - timedelta(microseconds=1)) == [one, two, three]


def test_what_has_begun_ends_now_and_what_has_not_is_gone(kb: Stores) -> None:
    running = kb.overrides.put("main", NOW - HOUR, NOW + HOUR, add="bo")
    coming = kb.overrides.put("main", NOW + HOUR, NOW + 2 * HOUR, add="bo")
    assert kb.overrides.end(running.id, NOW).ends == NOW
    assert kb.overrides.end(coming.id, NOW) == coming
    (kept,) = kb.overrides.all()
    assert (kept.begins, kept.ends) == (NOW - HOUR, NOW)
    assert kb.overrides.all(after=NOW) == []
    with pytest.raises(ToolError, match="is over"):
        kb.overrides.end(running.id, NOW)
    for id in (coming.id, 0, -1, 2**70):
        with pytest.raises(ToolError) as caught:
            kb.overrides.end(id, NOW)
        assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_number_is_never_given_twice(kb: Stores) -> None:
    first = kb.overrides.put("main", NOW + HOUR, NOW + 2 * HOUR, add="bo")
    kb.overrides.end(first.id, NOW)
    assert kb.overrides.put("main", NOW, NOW + HOUR, add="bo").id != first.id  # the log names it by its number
