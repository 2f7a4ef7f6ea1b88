"""Questions about crashes and accelerators: found by their host, with what to run there; one's own job is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from chat_alerts import NFS, SLOW, XID, fire

from whystall.agent_server.integrations.chat.intents import understand
from whystall.agent_server.settings.model import Settings
from whystall.prompts.topics import topics

pytestmark = pytest.mark.anyio
KERNEL, GPU, RANK = (
    "whystall diagnose --log boot.json",
    "`whystall run gpu_health`",
    "whystall run crash_analyse --log LOGS",
)


@pytest.mark.parametrize(
    ("text", "host", "command"),
    [
        ("node7 panicked last night", "node7", KERNEL),
        ("node7 昨晚宕机了", "node7", KERNEL),
        ("did node8 crash or was it rebooted by someone?", "node8", KERNEL),
        ("node8 是崩溃了还是被人重启了", "node8", KERNEL),
        ("GPU fell off the bus on node3", "node3", GPU),
        ("gpu-07 少了一张卡", "gpu-07", GPU),
        ("ECC errors on node8, replace or keep?", "node8", GPU),
        ("显卡掉卡", "", GPU),
        ("rank 5 died", "", RANK),
        ("作业 4471 里最先挂的是哪个 rank", "", RANK),
        ("为什么 OOM 了", "", "crash_analyse --log kernel.json"),
        ("the pod got OOMKilled twice tonight", "", "crash_analyse --log kernel.json"),
    ],
)
async def test_a_crash_names_what_to_run_and_where(chat: Any, text: str, host: str, command: str) -> None:
    fire(chat, NFS, XID, SLOW)
    tickets = len(chat.kb.tickets.list())
    answer = await chat.says(text)
    last = answer.splitlines()[-1]
    assert command in last
    assert f"`{host}`" in last if host else "that host" in last or "该主机" in last
    assert ("XidErrors" in answer) is (host == "node7")
    assert chat.app.looked == []
    assert len(chat.kb.tickets.list()) == tickets


async def test_a_fleet_is_pointed_to_where_there_is_one(chat: Any) -> None:
    fire(chat, XID)
    assert "fleet run" not in await chat.says("node7 掉卡了")
    fleet = {"hosts": "node[1-9]"}
    chat.settings = Settings.model_validate({**chat.settings.model_dump(exclude_unset=True), "fleet": fleet})
    assert "`whystall fleet run gpu_health --hosts node7`" in await chat.says("node7 掉卡了")


@pytest.mark.parametrize("text", ["why is rank 3 slow", "rank 3 为什么慢", "what's blocking rank 0 of my job"])
async def test_a_question_about_a_rank_is_no_question_for_the_definition(chat: Any, text: str) -> None:
    answer = await chat.says(text)
    assert "world size" not in answer
    assert "whystall diagnose --pid PID" in answer
    assert chat.app.looked == []


@pytest.mark.parametrize("text", ["what is a rank", "rank 是什么意思"])
async def test_a_definition_is_given_to_who_asks_for_it(chat: Any, text: str) -> None:
    assert "world size" in await chat.says(text)


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("restart node7", "observes_only"),
        ("重启 node7", "observes_only"),
        ("把 node7 重启一下", "observes_only"),
        ("kill the trainer", "observes_only"),
        ("can I reboot node7?", "may_act"),
        ("what crashed last night", "recent"),
        ("is anyone looking at the crash of node7", "handled"),
        ("who handles crashes", "on_call"),
        ("why was I woken up", "state"),
        ("为什么给我打电话", "state"),
        ("is the NFS outage still ongoing?", "about"),
        ("hand this over to wang, I'm going off", "assign"),
        ("don't close 3 because it is not fixed", "none"),
    ],
)
def test_what_else_is_meant(text: str, intent: str) -> None:
    assert understand(text).name == intent


async def test_what_is_affected_is_found_by_a_part_of_the_name(chat: Any) -> None:
    fire(chat, NFS, XID, SLOW)
    answer = (await chat.says("how many nodes are affected by the NFS problem")).partition("\nOpen tickets")[0]
    assert "NFSServer" in answer
    assert "XidErrors" not in answer


def test_commands_of_topics_observe_only() -> None:
    commands = [command for topic in topics() for command in topic.run]
    assert len(commands) > 8
    allowed = ("whystall run ", "whystall diagnose ", "journalctl ", "nvidia-smi -L", "nvidia-smi -q ")
    assert [command for command in commands if not command.startswith(allowed)] == []
