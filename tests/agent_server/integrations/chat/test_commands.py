"""What changes something: only who may, only after the same person confirmed it in the same place, and it is logged."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.agent_server.integrations.chat import chat_task, commands

pytestmark = pytest.mark.anyio


def trail(chat: Any) -> list[tuple[str, str, str]]:
    """What the log says, without what the fixture did."""
    entries = chat.kb.audit.entries()
    return [(e.by, e.what, e.outcome) for e in entries if e.what.startswith(("chat.", "ticket.", "silence."))][1:]


async def test_nothing_is_changed_before_it_is_confirmed(chat: Any) -> None:
    id = chat.ticket()
    asked = await chat.says(f"resolve {id} because we moved checkpoints to local disk")
    assert "we moved checkpoints to local disk" in asked
    assert chat.kb.tickets.get(id).state == "open"
    assert "resolved" in await chat.says("yes")
    ticket = chat.kb.tickets.get(id)
    assert (ticket.state, ticket.resolution) == ("resolved", "we moved checkpoints to local disk")
    assert chat.kb.tickets.events(id)[-1].by == "wang"  # as the settings know that person
    assert trail(chat) == [
        ("wang", "chat.asked", "to_confirm"),
        ("wang", "ticket.resolved", "ok"),
        ("wang", "chat.confirmed", "ok"),
    ]


@pytest.mark.parametrize(
    ("sender", "channel", "group"), [("U2", "ops", "g"), ("U1", "ops", "other"), ("U1", "open", "g")]
)
async def test_nobody_confirms_for_another_or_elsewhere(chat: Any, sender: str, channel: str, group: str) -> None:
    id = chat.ticket()
    await chat.says(f"ack {id}")
    assert "nothing to confirm" in (await chat.says("yes", sender, channel, group)).lower()
    assert chat.kb.tickets.get(id).state == "open"
    await chat.says("确认")
    assert chat.kb.tickets.get(id).state == "acknowledged"


async def test_a_yes_that_comes_too_late_or_twice_does_nothing(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = chat.ticket()
    await chat.says(f"comment {id}: hello")
    await chat.says("yes")
    await chat.says("yes")
    assert [comment.text for comment in chat.kb.tickets.get(id).human.comments] == ["hello"]
    monkeypatch.setattr(commands, "CONFIRM_S", -1.0)
    await chat.says(f"ack {id}")
    assert "nothing to confirm" in (await chat.says("yes")).lower()
    assert chat.kb.tickets.get(id).state == "open"


async def test_no_drops_it(chat: Any) -> None:
    id = chat.ticket()
    await chat.says(f"ack {id}")
    assert "Nothing was changed" in await chat.says("no")
    assert "nothing to confirm" in (await chat.says("yes")).lower()
    await chat.says(f"ack {id}")
    assert "Nothing was changed" in await chat.says("cancel")
    assert chat.kb.tickets.get(id).state == "open"


@pytest.mark.parametrize(("sender", "channel"), [("U9", "ops"), ("U1", "unknown")])
async def test_who_may_not_is_refused_and_logged(chat: Any, sender: str, channel: str) -> None:
    id = chat.ticket()
    assert "may not" in await chat.says(f"resolve {id} because x", sender, channel)
    assert "nothing to confirm" in (await chat.says("yes", sender, channel)).lower()
    assert chat.kb.tickets.get(id).state == "open"
    assert (f"chat:{channel}:{sender} ({sender})", "chat.asked", "not_allowed") in trail(chat)
    assert "GPU idle" in await chat.says(f"ticket {id}", sender, channel)


@pytest.mark.parametrize("called", ["wang", "engine", "sink:tracker", "U1"])
async def test_a_name_that_somebody_took_is_nobody_elses_in_the_log(chat: Any, called: str) -> None:
    """A tracker is not told what came from it itself, and the log names people by what the settings call them."""
    id = chat.ticket()
    everybody = chat.settings.chat["ops"].model_copy(update={"may_change": ["*"]})
    chat.settings.chat["ops"] = everybody
    for text in (f"ack {id}", "yes"):
        task = chat.queued(text, "U9")
        said = {**task.payload["incoming"], "sender_name": called}
        task = task.model_copy(update={"payload": {**task.payload, "incoming": said}})
        await chat_task.handle(task, chat.app, chat.ticket_service, chat.settings)
    assert chat.kb.tickets.get(id).state == "acknowledged"
    assert chat.kb.tickets.events(id)[-1].by == f"chat:ops:U9 ({called})"


async def test_a_right_that_was_withdrawn_meanwhile_counts_no_more(chat: Any) -> None:
    id = chat.ticket()
    await chat.says(f"ack {id}")
    chat.settings = chat.settings.model_copy(
        update={"chat": {"ops": chat.settings.chat["ops"].model_copy(update={"may_change": []})}}
    )
    assert "may not" in await chat.says("yes")
    assert chat.kb.tickets.get(id).state == "open"


@pytest.mark.parametrize(
    ("say", "state", "closed_as"),
    [
        ("ack 1", "acknowledged", None),
        ("认领工单 1", "acknowledged", None),
        ("close 1 as fixed: the disk was swapped", "closed", "fixed"),
        ("关闭 1 误报", "closed", "no_fault"),
        ("close 1 won't fix", "closed", "wont_fix"),
        ("close 1 as duplicate of 2", "closed", "duplicate"),
        ("关闭 1 重复 2", "closed", "duplicate"),
        ("close ticket #1 as stale", "closed", "stale"),
        ("关闭 1 无法复现", "closed", "cannot_reproduce"),
    ],
)
async def test_commands(chat: Any, say: str, state: str, closed_as: str | None) -> None:
    chat.ticket("GPU idle")
    chat.ticket("disk of the scratch file system is full")
    await chat.says(say)
    assert chat.kb.tickets.get("1").state == "open"
    await chat.says("yes")
    ticket = chat.kb.tickets.get("1")
    assert (ticket.state, ticket.closed_as) == (state, closed_as)


async def test_more_commands(chat: Any) -> None:
    chat.ticket("GPU idle")
    chat.ticket("disk of the scratch file system is full")
    for say in ("assign 1 to 王伟", "link 1 to 2", "close 2 as no fault", "reopen 2", 'silence alertname="X" for 2h'):
        await chat.says(say)
        await chat.says("yes")
    assert chat.kb.tickets.get("1").assignment.users == ["wang"]
    assert "2" in [link.ticket for link in chat.kb.tickets.get("1").links]
    assert chat.kb.tickets.get("2").state == "open"
    assert [e.what for e in chat.kb.audit.entries(what="silence.")] == ["silence.added"]


@pytest.mark.parametrize(
    ("say", "words"),
    [
        ("resolve 1", "Give the reason"),
        ("close 1", "Give the category"),
        ("close 1 as duplicate", "Give the original"),
        ("close 1 as duplicate of 1", "Give the original"),
        ("assign 1 to nobody-known", "not in the settings"),
        ("reopen 1", "open already"),
        ("ack 99", "no ticket"),
        ("link 1 to 99", "no ticket"),
        ("silence a=b for 9000 days", "Give a duration"),
        ("silence a=~( for 2h", "did not work"),
        ("silence a=~.* for 2h", "did not work"),
    ],
)
async def test_what_cannot_be_done_is_not_asked_to_be_confirmed(chat: Any, say: str, words: str) -> None:
    chat.ticket()
    assert words in await chat.says(say)
    assert "nothing to confirm" in (await chat.says("yes")).lower()
    assert chat.kb.tickets.get("1").revision == 1


async def test_what_became_impossible_meanwhile_is_told(chat: Any) -> None:
    id = chat.ticket()
    await chat.says(f"ack {id}")
    chat.ticket_service.close(id, "stale", "someone")
    assert "did not work" in await chat.says("yes")
    assert trail(chat)[-1] == ("wang", "chat.confirmed", "bad_argument")


async def test_two_people_ask_at_once_and_each_gets_their_own(chat: Any) -> None:
    one, other = chat.ticket("GPU idle"), chat.ticket("disk of the scratch file system is full")
    await chat.says(f"ack {one}", "U1")
    await chat.says(f"ack {other}", "U2")
    await chat.says("yes", "U2")
    assert [chat.kb.tickets.get(id).state for id in (one, other)] == ["open", "acknowledged"]
    await chat.says("yes", "U1")
    assert chat.kb.tickets.get(one).state == "acknowledged"
