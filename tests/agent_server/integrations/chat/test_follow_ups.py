"""What people go on to ask: of the ticket that was shown, of a list, of two things at once, of alerts and silences."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def test_what_was_shown_is_meant_by_its_place_and_by_it(chat: Any) -> None:
    first, second = chat.ticket(), chat.ticket("disk full")
    shown = await chat.says("open tickets")
    assert shown.index(f"**{second}**") < shown.index(f"**{first}**")
    assert f"ticket {first} " in await chat.says("show me the second one")
    assert f"ticket {first} " in await chat.says("who has it?")
    assert f"工单 {second}（" in await chat.says("第一个")
    assert "Which ticket" in await chat.says("the fifth one")
    assert "Which ticket" in await chat.says("tell me more", "U7")


async def test_a_question_about_a_ticket_starts_no_look(chat: Any) -> None:
    id = chat.ticket()
    for text in (f"why did ticket {id} go to wang?", f"工单 {id} 为什么派给 wang"):
        assert f" {id}" in (await chat.says(text)).splitlines()[0]
    await chat.says(f"mute TrainingSlow {id}")
    assert chat.kb.observation_requests.running() == []


async def test_what_is_like_a_ticket_is_what_the_ticket_says_itself(chat: Any) -> None:
    id = chat.ticket("the coffee machine is empty")
    analysis = chat.kb.tickets.get(id).analysis
    assert analysis is None or not analysis.matches
    for text in (f"similar incidents to ticket {id}", f"和工单 {id} 类似的案例"):
        assert (await chat.says(text)).splitlines()[0] in ("I know of no incident like that.", "没有这样的已知事件。")
    assert "There is no ticket `77`" in await chat.says("similar incidents to ticket 77")


async def test_tickets_are_told_by_severity_and_by_who_has_them(chat: Any) -> None:
    id = chat.ticket()
    other = "critical" if chat.kb.tickets.get(id).severity.value != "critical" else "minor"
    assert "no such tickets" in await chat.says(f"any {other} tickets?")
    assert "do not know who you are" in await chat.says("my tickets", "U7")
    assert "no such tickets" in await chat.says("tickets assigned to li")


async def test_two_questions_are_both_answered(chat: Any) -> None:
    id = chat.ticket()
    told = await chat.says(f"who is on call for storage and show ticket {id}")
    assert "王伟" in told
    assert f"ticket {id} (" in told
    told = await chat.says("why is pid 1 so slow and who is on call for storage?")
    assert "pid 1" in told
    assert "王伟" in told
    assert len(chat.kb.observation_requests.running()) == 1
    told = await chat.says(f"storage 谁值班，再看下工单{id}")
    assert "王伟" in told
    assert f"工单 {id}（" in told


async def test_alerts_and_silences_are_listed(chat: Any) -> None:
    assert "No alerts fire" in await chat.says("what alerts are firing?")
    assert "没有静默" in await chat.says("有哪些静默")
    await chat.says("静默 LustreOstSlow 2小时")
    await chat.says("好")
    assert '`alertname="LustreOstSlow"`' in await chat.says("silences")


async def test_when_somebody_is_on_call_next(chat: Any) -> None:
    assert "`storage`, now: **`王伟 (wang), +86 10 5555 0100`**" in await chat.says("when does my shift start?")
    assert "不知道您是谁" in await chat.says("我什么时候值班", "U7")
