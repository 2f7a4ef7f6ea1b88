"""State transitions of tickets; people's texts are inert and bounded."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from whystall.knowledge_base.ticket_models import ClosedAs, Comment, Human, Link, State, Ticket
from whystall.knowledge_base.tickets import human, life
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity

AT, LATER = "2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z"
STATES: tuple[State, ...] = get_args(State)
HOSTILE = "</text> <script>alert(1)</script> @all <!channel> {{7*7}} '; DROP TABLE tickets; -- \x1b[31m\u202eevil\ud800"


def ticket(state: State = "open", **changes: Any) -> Ticket:
    values: dict[str, Any] = {
        "id": "7",
        "created": AT,
        "updated": AT,
        "dedup_key": "2:x",
        "severity": Severity.MAJOR,
        "category": "network",
        "component": "nccl",
        "origin": "alert",
        "state": state,
        "ended": None if state in ("open", "acknowledged") else AT,
        "closed_as": "stale" if state == "closed" else None,
    }
    return Ticket(**(values | changes))


def go(one: Ticket, to: State) -> Ticket:
    steps = {
        "open": life.reopened,
        "acknowledged": life.acknowledged,
        "resolved": lambda t: life.resolved(t, "moved it", LATER),
        "closed": lambda t: life.closed(t, "wont_fix", LATER),
    }
    return steps[to](one)


ALLOWED = {
    ("open", "acknowledged"),
    ("open", "resolved"),
    ("open", "closed"),
    ("acknowledged", "resolved"),
    ("acknowledged", "closed"),
    ("resolved", "closed"),
    ("resolved", "open"),
    ("closed", "open"),
}


@pytest.mark.parametrize("to", STATES)
@pytest.mark.parametrize("state", STATES)
def test_allowed_transitions_work_and_others_are_refused_with_a_reason(state: State, to: State) -> None:
    one = ticket(state)
    if (state, to) in ALLOWED:
        assert life.refusal(one, to) is None
        after = go(one, to)
        assert after.state == to
        assert life.is_live(after) == (after.ended is None)
        assert (after.closed_as is not None) == (to == "closed")
    else:
        why = life.refusal(one, to)
        assert why
        assert why.startswith("ticket 7 is ")
        with pytest.raises(ToolError) as caught:
            go(one, to)
        assert caught.value.code is ErrorCode.BAD_ARGUMENT
        assert caught.value.message == why
        over = state in ("resolved", "closed")
        assert ("reopen" in caught.value.remedy) == (over and to not in (state, "open"))


def test_what_is_over_keeps_when_it_was_over_and_forgets_it_when_it_is_not() -> None:
    done = life.resolved(ticket(), "moved the checkpoint", AT)
    assert (done.ended, done.resolution) == (AT, "moved the checkpoint")
    filed = life.closed(done, "fixed", LATER)
    assert (filed.ended, filed.closed_as, filed.resolution) == (AT, "fixed", "moved the checkpoint")
    again = life.reopened(filed)
    assert (again.state, again.ended, again.closed_as, again.resolution) == ("open", None, None, "")


@pytest.mark.parametrize("reason", get_args(ClosedAs))
def test_a_ticket_is_closed_as_something(reason: ClosedAs) -> None:
    if reason in ("fixed", "duplicate"):  # these need a reason or a link
        with pytest.raises(ToolError, match=r"needs a reason|no link"):
            life.closed(ticket(), reason, LATER)
    else:
        assert life.closed(ticket(), reason, LATER).closed_as == reason
    assert life.closed(ticket(), "fixed", LATER, "another cable").resolution == "another cable"


@pytest.mark.parametrize("reason", ["", " \n\t", "x" * (human.REASON + 1)])
def test_a_reason_is_a_sentence(reason: str) -> None:
    with pytest.raises(ToolError, match="reason"):
        life.resolved(ticket(), reason, LATER)


def test_a_comment_with_a_known_key_is_ignored() -> None:
    said = Comment(by="ann", at=AT, text="seen it", source="sink:gitlab", key="note-5")
    one = life.commented(ticket(), said)
    assert life.commented(one, said.model_copy(update={"text": "seen it, edited"})) is one
    two = life.commented(one, said.model_copy(update={"key": ""}))
    assert [c.text for c in life.commented(two, said.model_copy(update={"key": ""})).human.comments] == ["seen it"] * 3


def test_comments_and_links_are_bounded() -> None:
    said = [Comment(by="x", at=AT, text="x")] * life.COMMENTS
    with pytest.raises(ToolError, match="1000 comments"):
        life.commented(ticket(human=Human(comments=said)), said[0])
    links = [Link(kind="related", ticket=str(n), at=AT) for n in range(100, 100 + life.LINKS)]
    with pytest.raises(ToolError, match="500 links"):
        life.linked(ticket(links=links), Link(kind="related", ticket="9", at=AT))
    assert life.linked(ticket(links=links), links[3]).links == links
    with pytest.raises(ToolError, match="itself"):
        life.linked(ticket(), Link(kind="related", ticket="7", at=AT))


def test_text_of_people_is_inert_and_keeps_its_lines() -> None:
    one = life.commented(ticket(), Comment(by=HOSTILE, at=AT, text=f"first\r\n\r\n\r\n  {HOSTILE}\u2028last\x00"))
    said = one.human.comments[0]
    first, blank, hostile, last = said.text.split("\n")
    assert (first, blank, last) == ("first", "", "last\\x00")
    for text in (hostile, said.by):
        assert text.isprintable()
        assert "\\x1b[31m" in text
        assert "\\u202e" in text
    named = life.edited(ticket(), title="  two\nlines ", description="a\nb").human
    assert (named.title, named.description) == ("two lines", "a\nb")
    kept = life.edited(ticket(human=named), title="")
    assert (kept.human.title, kept.human.description) == ("", "a\nb")


@pytest.mark.parametrize("size", [human.TEXT, human.TEXT + 1])
def test_a_persons_text_is_refused_rather_than_cut(size: int) -> None:
    if size > human.TEXT:
        with pytest.raises(ToolError, match="too long"):
            life.edited(ticket(), description="x" * size)
    else:
        assert life.edited(ticket(), description="x" * size).human.description == "x" * size


@pytest.mark.parametrize("text", ["x" * 5000, "x\n" * 5000, "\n" * 5000 + "x", "\x00" * 5000, "", "…" * 5000])
def test_a_strangers_text_is_cut_with_a_mark(text: str) -> None:
    made = human.lines(text, 100)
    assert len(made) <= 100
    assert made == "" if not text else made.endswith("…")
