"""Pasted logs: read as files are, answered with class, first failure and action; hostile; no ticket, no look."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from whystall.agent_server.integrations.chat import chat_task
from whystall.agent_server.integrations.chat.pasted_log import log_of
from whystall.agent_server.integrations.chat_vendors.callback_checks import message_lines, message_text
from whystall.agent_server.integrations.messages import LINES_LIMIT, Incoming, Place

pytestmark = pytest.mark.anyio
PANIC = """\
[   50.000001] BUG: kernel NULL pointer dereference, address: 0000000000000008
[   50.000002] CPU: 1 PID: 77 Comm: loader Not tainted 6.1.0-test #1
[   50.000003] RIP: 0010:demo_take+0x10/0x20
[   50.000004] Call Trace:
[   50.000005]  demo_poll+0x1/0x2
[   50.000006] Kernel panic - not syncing: Fatal exception
"""
XID = "[12345.678] NVRM: Xid (PCI:0000:05:00): 79, pid=4711, name=python3, GPU has fallen off the bus.\n"
KILL = "node7 kernel: [   90.000002] Out of memory: Killed process 102 (python3) total-vm:2kB, anon-rss:1kB\n"
RANKS = """\
[rank3]:[E1129 09:30:31.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=12, OpType=ALLREDUCE)
[rank2]: Traceback (most recent call last):
[rank2]:   File "/srv/train.py", line 41, in step
[rank2]: ValueError: bad `batch` [click](http://evil) *x*
"""
CODES = """\
[0]:
  time      : 2026-01-12_03:04:09
  host      : gpu-7
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 102)
[1]:
  time      : 2026-01-12_03:04:10
  host      : gpu-7
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 100)
"""


def incoming(text: str) -> Incoming:
    place = Place(channel="ops", conversation="g")
    return Incoming(event="e", place=place, sender="U1", text=message_text(text), lines=message_lines(text))


async def says(chat: Any, text: str) -> str:
    """The answer to a message of several lines, as a vendor's callback gives it."""
    task = chat.queued(message_text(text))
    task.payload["incoming"]["lines"] = message_lines(text)
    await chat_task.handle(task, chat.app, chat.ticket_service, chat.settings)
    assert chat.app.looked == []
    assert chat.kb.tasks.waiting("look") == 0
    assert list(chat.kb.tickets.list()) == []
    return str(chat.kb.messages.by_key(f"answer:{task.key}").message["text"])


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        (PANIC, ("null_dereference", "demo_take", "loader")),
        (XID, ("Xid 79", "0000:05:00.0", "python3 (4711)")),
        (KILL, ("out of memory: killed python3", "`oom`")),
        (RANKS, ("`rank 2`", "ValueError in step", "collective_timeout")),
        (CODES, ("`rank 2`", "SIGKILL", "gpu-7")),
    ],
    ids=["panic", "xid", "oom", "ranks", "codes"],
)
@pytest.mark.parametrize(
    "form",
    ["{}", "帮我看看这个\n{}", "can you look at this:\n```\n{}```", "```text\n{}```\n", "what happened? {}"],
)
async def test_a_pasted_log_is_read(chat: Any, log: str, wanted: tuple[str, ...], form: str) -> None:
    quiet = log in (RANKS, CODES, KILL) and form == "what happened? {}"  # their first line has no time stamp to cut at
    answer = await says(chat, form.format(log))
    assert all(one in answer for one in (wanted[:1] if quiet else wanted)), answer
    assert ("粘贴" in answer) is ("帮我" in form)


async def test_what_nvidia_asks_for_and_incidents_are_told(chat: Any) -> None:
    answer = await says(chat, f"看看\n{XID}")
    assert "NVIDIA 要求：重启机器" in answer
    assert "以往的事件" in answer


async def test_a_log_without_own_words_is_answered_in_the_language_before(chat: Any) -> None:
    await chat.says("谁值班")
    assert "粘贴" in await says(chat, PANIC)


async def test_the_text_of_a_log_is_no_markup(chat: Any) -> None:
    answer = await says(chat, RANKS)
    assert "[click](http" not in re.sub(r"(`+).*?\1", "", answer)


@pytest.mark.parametrize(
    "text", ["x" * 200_000 + "\nKernel panic - not syncing: " + "A" * 90_000, PANIC * 500, "\x00\x1b[31m\n" + PANIC]
)
async def test_long_and_odd_logs_are_bounded(chat: Any, text: str) -> None:
    assert len(message_lines(text)) <= LINES_LIMIT
    assert len(await says(chat, text)) < 4000


@pytest.mark.parametrize(
    "text",
    [
        "who is on call",
        "is xid 79 bad?",
        "rank 5 died",
        "为什么 OOM 了",
        "a\nb\nc",
        "INFO: all good",
        "BUG in my code?",
    ],
)
async def test_a_question_is_no_log(chat: Any, text: str) -> None:
    answer = await says(chat, text)
    assert "was pasted" not in answer
    assert "粘贴" not in answer


async def test_a_command_that_quotes_a_log_stays_a_command(chat: Any) -> None:
    id = chat.ticket()
    await chat.says(f"comment {id}: Kernel panic - not syncing: Fatal exception")
    waiting = chat.kb.pending_commands.get("ops", "g", "U1", time.time())
    assert waiting["command"] == "comment"


def test_fences_and_quotation_marks_are_no_part_of_the_log() -> None:
    quoted = "".join(f"> {line}\n" for line in PANIC.splitlines())
    assert log_of(incoming(quoted)) == PANIC
    assert log_of(incoming(f"```\n{PANIC}```")) == PANIC
    assert log_of(incoming("who is on call")) == ""
