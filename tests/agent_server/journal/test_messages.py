"""The queue of messages: order within a conversation, leases, clocks that jump, and transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.agent_server.journal.messages import FARTHEST
from whystall.agent_server.stores import Stores

NOW = 1_800_000_000.0


@pytest.fixture
def kb(tmp_path: Path):
    with Stores(tmp_path / "knowledge.db") as opened:
        yield opened


def _put(kb: Stores, key: str, conversation: str = "room", channel: str = "ops", due: float = 0.0) -> int:
    number = kb.messages.put(key, channel, {"channel": channel, "conversation": conversation}, {"text": key}, due)
    assert number is not None
    return number


def _key(kb: Stores, now: float = NOW, **other: object) -> str | None:
    taken = kb.messages.take(now, 60.0, **other)  # type: ignore[arg-type]
    return None if taken is None else taken.key


def test_a_message_comes_back_as_it_was_put(kb: Stores) -> None:
    kb.messages.put("k", "运维", {"conversation": "群", "thread": "1.2"}, {"title": "t", "text": "卡住 <!channel>"})
    taken = kb.messages.take(NOW, 60.0)
    assert taken is not None
    assert (taken.channel, taken.conversation, taken.attempts) == ("运维", "群", 1)
    assert taken.place == {"conversation": "群", "thread": "1.2"}
    assert taken.message == {"title": "t", "text": "卡住 <!channel>"}


def test_the_same_key_is_put_once_also_after_it_was_sent(kb: Stores) -> None:
    number = _put(kb, "k")
    assert kb.messages.put("k", "ops", {}, {}) is None
    kb.messages.take(NOW, 60.0)
    kb.messages.sent(number)
    assert kb.messages.put("k", "ops", {}, {}) is None
    assert _key(kb) is None


def test_messages_of_a_conversation_go_in_order_and_others_do_not_wait(kb: Stores) -> None:
    first, _, _ = _put(kb, "a1", "a"), _put(kb, "a2", "a"), _put(kb, "b1", "b")
    assert _key(kb) == "a1"
    assert _key(kb) == "b1"  # a2 is held up by a1, which is not sent yet
    assert _key(kb) is None
    kb.messages.retry(first, NOW + 30, "busy")
    assert _key(kb) is None
    assert kb.messages.next_due() == NOW + 30
    assert _key(kb, NOW + 31) == "a1"
    kb.messages.sent(first)
    assert _key(kb, NOW + 31) == "a2"


def test_one_that_fails_no_longer_holds_up_the_next(kb: Stores) -> None:
    first = _put(kb, "a1")
    _put(kb, "a2")
    kb.messages.take(NOW, 60.0)
    kb.messages.failed(first, "gone")
    assert _key(kb) == "a2"
    failed = kb.messages.by_key("a1")
    assert failed is not None
    assert (failed.state, failed.error) == ("failed", "gone")


def test_the_same_conversation_of_another_channel_is_another(kb: Stores) -> None:
    _put(kb, "a", "room", "ops")
    _put(kb, "b", "room", "dev")
    assert {_key(kb), _key(kb)} == {"a", "b"}


def test_one_channel_is_asked_for(kb: Stores) -> None:
    _put(kb, "a", channel="ops", due=NOW + 10)
    _put(kb, "b", channel="dev")
    assert kb.messages.waiting() == ["dev", "ops"]
    assert kb.messages.next_due("ops") == NOW + 10
    assert _key(kb, channel="ops") is None
    assert _key(kb, channel="dev") == "b"
    assert kb.messages.next_due("none") is None


def test_a_lease_that_ran_out_is_given_again_and_one_that_holds_is_not(kb: Stores) -> None:
    _put(kb, "a")
    assert _key(kb) == "a"
    assert _key(kb, NOW + 59) is None
    taken = kb.messages.take(NOW + 60, 60.0)
    assert taken is not None
    assert taken.attempts == 2


@pytest.mark.parametrize("back", [86_400.0, 10 * 365 * 86_400.0])
def test_a_clock_set_back_keeps_nothing_waiting(kb: Stores, back: float) -> None:
    taken_before, put_off = _put(kb, "a", "a"), _put(kb, "b", "b")
    kb.messages.take(NOW, 60.0)
    kb.messages.take(NOW, 60.0)
    kb.messages.retry(put_off, NOW + 30, "busy")
    assert {_key(kb, NOW - back), _key(kb, NOW - back)} == {"a", "b"}
    kb.messages.sent(taken_before)


def test_within_the_bound_a_message_does_wait(kb: Stores) -> None:
    _put(kb, "a", due=NOW + FARTHEST)
    assert _key(kb) is None
    assert _key(kb, NOW + FARTHEST) == "a"


def test_who_starts_anew_takes_what_a_dead_one_had(kb: Stores) -> None:
    _put(kb, "a")
    kb.messages.take(NOW, 3600.0)
    assert kb.messages.release(NOW) == 1
    assert _key(kb) == "a"


def test_a_message_is_stored_with_its_transaction_or_not_at_all(kb: Stores) -> None:
    def fails() -> None:
        with kb.transaction():
            _put(kb, "a")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert kb.messages.by_key("a") is None
    assert _key(kb) is None


def test_only_what_is_done_is_forgotten(kb: Stores) -> None:
    done = _put(kb, "done")
    kb.messages.take(NOW, 60.0)
    kb.messages.sent(done)
    _put(kb, "waits")
    assert kb.messages.forget("2999-01-01T00:00:00Z") == 1
    assert [m.key for m in kb.messages.latest()] == ["waits"]


def test_the_newest_are_listed_oldest_first(kb: Stores) -> None:
    for key in "abc":
        _put(kb, key, key, "ops" if key != "b" else "dev")
    assert [m.key for m in kb.messages.latest(2)] == ["b", "c"]
    assert [m.key for m in kb.messages.latest(channel="ops")] == ["a", "c"]


def test_sent_and_blocked_messages_cost_little(kb: Stores) -> None:
    steps: list[int] = []

    def cost(key: str) -> int:
        _put(kb, key)
        before = len(steps)
        taken = kb.messages.take(NOW, 60.0, "ops")
        assert taken is not None
        kb.messages.retry(taken.n, 0.0, "")
        assert kb.messages.next_due("ops") == 0.0
        return len(steps) - before

    with kb.transaction(), kb._file.read() as db:
        db.set_progress_handler(lambda: steps.append(1), 1)  # called for each instruction of SQLite
        first = cost("first")
        for number in range(300):
            sent = _put(kb, f"sent {number}")
            kb.messages.sent(sent)
        assert cost("after 300 that are sent") < 2 * first
        for number in range(300):
            _put(kb, f"behind {number}")
        assert cost("beside 300 that wait") < 300 * first  # each of them looked at all before it
