"""What is answered in a chat: looked up, looked at, asked back; never guessed, and once."""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest
from chat_jobs import job, named

from whystall.agent_server.integrations.chat import chat_task, conversation, investigations
from whystall.knowledge_base.models import Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.anyio


async def test_a_look_is_begun_told_of_and_ends_in_a_verdict_with_a_ticket(chat: Any) -> None:
    with job(**named()) as pid:
        answer = await chat.says(f"为什么 {named()['TORCHELASTIC_RUN_ID']} 卡顿")
        assert f"pid {pid}" in answer
        assert "正在查看" in answer
        await chat.look()
    assert [params.pid for params in chat.app.looked] == [pid]
    assert chat.app.looked[0].ticket
    begun, verdict = chat.told()
    assert verdict.lang == "zh"
    assert "已确认" in verdict.title
    assert "未能观测" in verdict.text
    (ticket,) = chat.kb.tickets.list()
    assert f"工单 {ticket.id}" in verdict.text
    assert begun.text != verdict.text


async def test_who_asks_for_the_same_meanwhile_gets_the_same_answer(chat: Any) -> None:
    with job(**named()) as pid:
        await chat.says(f"diagnose pid {pid}", "U1")
        second = await chat.says(f"诊断 pid {pid}", "U7", group="other")
        again = await chat.says(f"diagnose pid {pid}", "U1")
        assert "已有人问过" in second
        assert "already requested" in again
        await chat.look()
    assert len(chat.app.looked) == 1
    assert [message.lang for message in chat.told(group="g")] == ["en", "en", "en"]
    assert chat.told(group="other")[-1].lang == "zh"
    assert len(chat.told(group="other")) == 2
    assert len(chat.kb.tickets.list()) == 1


async def test_a_message_that_is_handled_twice_is_answered_once(chat: Any) -> None:
    with job(**named()) as pid:
        task = chat.queued(f"diagnose pid {pid}")
        for _ in range(2):  # killed after the transaction, and begun again
            await chat_task.handle(task, chat.app, chat.ticket_service, chat.settings)
        assert len(chat.told()) == 1
        await chat.look()
        assert len(chat.app.looked) == 1
    look = chat.kb.tasks.by_key("look:1")
    await investigations.run_task(look, chat.app, chat.settings)
    assert len(chat.app.looked) == 1


async def test_a_look_that_nobody_wants_any_more_is_stopped(chat: Any) -> None:
    chat.app.wait = True
    with job(**named()) as pid:
        await chat.says(f"diagnose pid {pid}", "U1")
        await chat.says(f"diagnose pid {pid}", "U2")
        task = chat.kb.tasks.take(["look"], "w", 2e9, 60)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(investigations.run_task, task, chat.app, chat.settings)
                while not chat.app.looked:
                    await anyio.sleep(0.01)
                assert "Stopped" in await chat.says("cancel", "U1")
                assert f"{pid}" in await chat.says("progress", "U2")
                assert "Nothing is being observed" in await chat.says("progress", "U1")
                assert "已停止" in await chat.says("取消", "U2")
    assert chat.app.cancelled == 1
    assert chat.kb.tasks.get(task.id).state == "done"
    assert chat.kb.observation_requests.running() == []
    assert chat.kb.tickets.list() == []


async def test_progress_is_told_seldom_and_failures_always(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(investigations, "_FIRST_S", 0.02)
    monkeypatch.setattr(investigations, "_TICK_S", 0.02)
    chat.app.wait = True
    with job(**named()) as pid:
        await chat.says(f"diagnose pid {pid}")
        task = chat.kb.tasks.take(["look"], "w", 2e9, 60)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(investigations.run_task, task, chat.app, chat.settings)
                while len(chat.told()) < 3:
                    await anyio.sleep(0.01)
                chat.app.error = ToolError(ErrorCode.NO_PRIVILEGE, "no", "be root")
                chat.app.wait = False
    texts = [message.text for message in chat.told()]
    assert "host_snapshot" in texts[1]
    assert len(texts) < 12  # each comes after twice the time of the one before
    assert "be root" in texts[-1]
    assert chat.kb.observation_requests.running() == []


async def test_a_process_that_ended_is_not_mistaken_for_another(chat: Any) -> None:
    with job(**named()) as pid:
        await chat.says(f"diagnose pid {pid}")
    task = chat.kb.tasks.take(["look"], "w", 2e9, 60)
    await investigations.run_task(task, chat.app, chat.settings)
    assert chat.app.looked == []
    assert "ended" in chat.told()[-1].text


async def test_an_inquiry_whose_task_was_given_up_does_not_hold_others_up(chat: Any) -> None:
    with job(**named()) as pid:
        await chat.says(f"diagnose pid {pid}")
        chat.kb.tasks.failed(chat.kb.tasks.by_key("look:1").id, "again and again")
        assert "Observing" in await chat.says(f"diagnose pid {pid}")
        assert chat.kb.tasks.by_key("look:2").state == "queued"


async def test_too_many_looks_are_refused(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(investigations, "WAITING", 1)
    with job(**named(1)) as one, job(**named(2)) as other:
        await chat.says(f"diagnose pid {one}")
        assert "queued already" in await chat.says(f"diagnose pid {other}")
        assert "already requested" in await chat.says(f"diagnose pid {one}")


async def test_several_jobs_are_asked_about_and_one_is_chosen(chat: Any) -> None:
    name = f"twin-{os.getpid()}"
    with job(TORCHELASTIC_RUN_ID=f"{name}-a", RANK="0") as one, job(TORCHELASTIC_RUN_ID=f"{name}-b", RANK="0") as other:
        asked = await chat.says(f"why is {name} slow")
        assert "Which one?" in asked
        assert str(one) in asked
        assert str(other) in asked
        assert chat.kb.observation_requests.running() == []
        assert "did not understand" in await chat.says("2", "U2")  # another person chooses nothing
        assert "Observing" in await chat.says("2")
        (inquiry,) = chat.kb.observation_requests.running()
        assert inquiry.pid in (one, other)
        assert inquiry.symptom == f"why is {name} slow"
    assert "asked that" not in await chat.says("1")


async def test_a_job_that_is_not_here_is_not_guessed(chat: Any) -> None:
    answer = await chat.says("why is unheard-of-7b slow")
    assert "unheard-of-7b" in answer
    assert "No job" in answer
    assert chat.kb.tasks.by_key("look:1") is None


@pytest.mark.parametrize("question", ["training is stuck", "my job is slow", "我的任务卡住了咋办", "为什么训练卡顿"])
async def test_without_a_name_nothing_is_diagnosed(chat: Any, question: str) -> None:
    with job(**named(3)) as pid:  # asked about even if it is the only one
        answer = await chat.says(question)
        assert f"pid {pid}" in answer
        assert chat.kb.observation_requests.running() == []
        assert chat.kb.tickets.list() == []


async def test_a_rank_without_a_job_is_asked_about_and_kept(chat: Any) -> None:
    run = f"ranked-{os.getpid()}"
    with job(TORCHELASTIC_RUN_ID=run, RANK="70"), job(TORCHELASTIC_RUN_ID=run, RANK="71") as second:
        assert run in await chat.says("rank 71 is stuck")
        assert chat.kb.observation_requests.running() == []
        await chat.says("1")
        (request,) = chat.kb.observation_requests.running()
        assert (request.pid, request.rank) == (second, 71)


async def test_this_machine_is_diagnosed_if_it_is_named(chat: Any) -> None:
    chat.app.diagnosis = chat.app.diagnosis.model_copy(update={"verdict": Verdict.HEALTHY, "cause": None})
    assert "this machine" in await chat.says("why is this machine slow")
    await chat.look()
    assert chat.app.looked[0].pid is None
    assert "HEALTHY" in chat.told()[-1].text
    assert chat.kb.tickets.list() == []


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("who is on call", ("network", "li", "storage", "王伟")),
        ("谁值班", ("network", "storage", "现在")),
        ("who's on call tomorrow 9am for storage", ("storage", "09:00", "王伟")),
        ("存储明天早上九点谁值班", ("storage", "09:00", "王伟")),
        ("who is on call for netwrok", ("network",)),  # nothing changes: a letter may be wrong
        ("who is on call for billing", ("No schedule", "billing", "storage")),
        ("open tickets", ("1", "GPU idle")),
        ("有哪些未处理的工单", ("GPU idle",)),
        ("closed tickets", ("no such",)),
        ("ticket 1", ("GPU idle", "not examined yet")),
        ("ticket 77", ("no ticket",)),
        ("similar: nccl timeout after checkpoint", ("nccl",)),
        ("similar incidents", ("Similar to what",)),
        ("help", ("acknowledge 12",)),
        ("thanks", ("welcome",)),
        ("the weather is nice", ("did not understand",)),
        ("progress", ("Nothing is being observed",)),
    ],
)
async def test_what_is_looked_up(chat: Any, question: str, words: tuple[str, ...]) -> None:
    chat.ticket()
    answer = (await chat.says(question)).lower()
    assert [word for word in words if word.lower() not in answer] == []


async def test_text_of_strangers_is_inert(chat: Any) -> None:
    hostile = "@all <!channel> [x](http://evil.example) **b** \u202e /close"
    id = chat.ticket(hostile)
    for question in (f"ticket {id}", "open tickets", f"ack {id}", "why is `@all` slow"):
        answer = await chat.says(question)
        for mark in ("@all", "<!channel>", "](http"):
            outside = "".join(answer.split("`")[::2])
            assert mark not in outside
        assert "\u202e" not in answer


async def test_an_unforeseen_fault_is_told_and_not_explained(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(conversation, "understand", broken)
    answer = await chat.says("help")
    assert "secret" not in answer
    assert "internal error" in answer


@pytest.mark.parametrize(
    ("question", "asks"),
    [
        ("training is stuck, sloooow", True),  # a slip of the pen names nobody
        ("why is job sloooow stuck", False),
        ("why is sloooow-7b stuck", False),
        ('why is "sloooow" stuck', False),
    ],
)
async def test_a_word_that_is_only_unknown_hides_no_job(chat: Any, question: str, asks: bool) -> None:
    with job(**named(4)) as pid:
        answer = await chat.says(question)
    assert (f"pid {pid}" in answer) is asks, answer
    assert chat.kb.observation_requests.running() == []


async def test_a_number_is_answered_in_the_language_of_the_question(chat: Any) -> None:
    name = f"pair-{os.getpid()}"
    with job(TORCHELASTIC_RUN_ID=f"{name}-a", RANK="0"), job(TORCHELASTIC_RUN_ID=f"{name}-b", RANK="0"):
        assert "是哪一个" in await chat.says(f"{name} 为什么慢")
        assert "正在查看" in await chat.says("1")
