"""Errors in the language of the chat: those of tools, of commands, of looks, and of the server itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from whystall.agent_server.integrations.chat.conversation import Conversation
from whystall.agent_server.integrations.chat.message_texts import no_look_message
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.anyio
CJK = re.compile(r"[\u4e00-\u9fff]")
ENGLISH = re.compile(r"[A-Za-z]{3,}(?: [A-Za-z']{2,}){3,}")


def english(text: str) -> list[str]:
    """Runs of English words that are no code."""
    return ENGLISH.findall(re.sub(r"`[^`]*`", "", text))


async def test_a_look_that_fails_is_told_in_the_language_of_the_chat(chat: Any) -> None:
    chat.app.error = ToolError(ErrorCode.NO_PRIVILEGE, "the kernel loads no BPF program of ours", "run as root")
    await chat.says("这台机器为什么慢")
    await chat.look()
    told = chat.told()[-1].text
    assert "权限不足" in told
    assert "`no_privilege`" in told
    assert "`the kernel loads no BPF program of ours (run as root)`" in told  # the original, in quotes
    assert english(told) == []


async def test_errors_of_commands_are_chinese(chat: Any) -> None:
    for text in ("认领 99", "静默 =x 2小时", "关闭 99 误报"):
        answer = await chat.says(text)
        assert CJK.search(answer)
        assert english(answer) == [], text
    assert "没有工单" in await chat.says("认领 99")
    assert "there is no ticket" in await chat.says("ack 99")


@pytest.mark.parametrize(("first", "second", "chinese"), [("谁值班", "2", True), ("who is on call", "2", False)])
async def test_a_fault_of_the_server_is_told_in_the_language_of_the_question(
    chat: Any, monkeypatch: pytest.MonkeyPatch, first: str, second: str, chinese: bool
) -> None:
    await chat.says(first)

    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("text of the fault")

    monkeypatch.setattr(Conversation, "turn", broken)
    for text in (first, second):  # the second has no words: the language is that of the one before
        answer = await chat.says(text)
        assert bool(CJK.search(answer)) is chinese
        assert "text of the fault" not in answer


@pytest.mark.parametrize("code", [*(f"failed:{one.value}" for one in ErrorCode), "failed:internal", "vanished"])
async def test_why_nothing_was_diagnosed_is_chinese(chat: Any, code: str) -> None:
    ticket = chat.kb.tickets.get(chat.ticket())
    said = no_look_message(ticket, code, [], "zh").text
    reason = said.partition("：")[2]
    assert CJK.search(reason)
    assert english(said) == []
