"""Alerts, tickets and the knowledge base answer what names no running job; nothing is diagnosed for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import pytest
from chat_jobs import job

from whystall.agent_server.integrations.alerts.intake import Intake
from whystall.agent_server.integrations.alerts.routefile import from_text

pytestmark = pytest.mark.anyio
ROUTES = b"route: {receiver: r, group_by: [alertname, node]}\nreceivers: [{name: r}]\n"


def fire(chat: Any, *alerts: Mapping[str, str]) -> None:
    """Receive firing alerts; `alerts`: labels, and `description`."""
    body = {
        "version": "4",
        "alerts": [
            {
                "status": "firing",
                "labels": {name: value for name, value in one.items() if name != "description"},
                "annotations": {"description": one.get("description", "")},
                "startsAt": "2026-11-22T00:00:00Z",
            }
            for one in alerts
        ],
    }
    Intake(chat.kb, chat.settings, from_text(ROUTES)).receive(json.dumps(body).encode(), time.time())


XID = {"alertname": "XidErrors", "severity": "critical", "instance": "node7:9100", "description": "GPU 3: Xid 79"}
DISKS = [{"alertname": "DiskBusy", "severity": "warning", "instance": f"gpu-{n}:9100"} for n in range(30)]


async def test_a_storm_is_one_line_and_criticals_come_first(chat: Any) -> None:
    fire(chat, *DISKS, XID)
    chat.ticket("GPU idle on gpu-4")
    answer = await chat.says("what is broken")
    lines = [line for line in answer.splitlines() if line.startswith("- ")]
    assert "XidErrors" in lines[0]
    assert "node7" in lines[0]
    assert "GPU 3: Xid 79" in lines[0]
    assert "30 alerts" in lines[1]
    assert "and 27 more" in lines[1]
    assert "GPU idle on gpu-4" in lines[2]
    assert len(lines) == 3


async def test_times_are_in_the_zone_of_the_asker(chat: Any) -> None:
    fire(chat, XID)
    chat.ticket()
    assert "2026-11-22 08:00 CST" in await chat.says("which alerts fire")
    assert "2026-11-22 08:00 CST" in await chat.says("ticket 1")


async def test_a_severity_chooses_it_and_worse_ones(chat: Any) -> None:
    fire(chat, *DISKS, XID)
    answer = await chat.says("any critical alerts?")
    assert "XidErrors" in answer
    assert "DiskBusy" not in answer
    answer = await chat.says("有没有严重告警")
    assert "XidErrors" in answer
    assert "DiskBusy" not in answer


async def test_no_alert_of_a_severity_is_not_no_alert(chat: Any) -> None:
    fire(chat, *DISKS)
    assert "of other severities: 30" in await chat.says("any critical alerts?")


@pytest.mark.parametrize("question", ["what is wrong with node7", "is node7 ok?", "节点 node7 怎么了", "node7 blah"])
async def test_a_host_is_answered_with_its_alerts_and_tickets(chat: Any, question: str) -> None:
    fire(chat, *DISKS, XID)
    chat.ticket("GPU 3 of node7 is lost")
    chat.ticket("GPU idle on gpu-4")
    answer = await chat.says(question)
    assert "XidErrors" in answer
    assert "GPU 3 of node7 is lost" in answer
    assert "DiskBusy" not in answer
    assert "gpu-4" not in answer
    assert chat.kb.observation_requests.running() == []


async def test_how_to_is_answered_from_the_catalogue_and_past_incidents(chat: Any) -> None:
    answer = await chat.says("how do I fix xid 79")
    assert "restart the machine" in answer
    assert "xid-79-on-a-shared-circuit" in answer
    assert "xid-79-on-a-shared-circuit" in await chat.says("显卡掉卡怎么办")


async def test_what_is_not_understood_is_searched_and_that_is_stated(chat: Any) -> None:
    answer = await chat.says("nfs mount gone dead server")
    assert answer.startswith("I did not understand")
    assert "nfs-hard-mount-server-gone" in answer


async def test_what_nothing_is_known_of_is_stated(chat: Any) -> None:
    fire(chat, XID)
    chat.ticket()
    answer = await chat.says("banana pancake recipe")
    assert "did not understand" in answer
    assert "XidErrors" not in answer
    assert "Nothing about that" in await chat.says("how do I fix a banana pancake")


@pytest.mark.parametrize("question", ["restart everything", "kill pid 1", "把所有任务都重启", "reboot node7 now"])
async def test_no_action_on_a_machine_is_taken_or_promised(chat: Any, question: str) -> None:
    answer = await chat.says(question)
    assert "observe" in answer or "观察" in answer
    assert chat.kb.observation_requests.running() == []
    assert chat.kb.pending_commands.get("ops", "g", "U1", time.time()) is None


async def test_the_history_of_a_ticket_is_shown(chat: Any) -> None:
    chat.ticket()
    await chat.says("comment 1: the driver was reset")
    await chat.says("yes")
    for question in ("history of ticket 1", "what happened to ticket 1 since yesterday", "工单1的记录"):
        answer = await chat.says(question)
        assert "History:" in answer or "历史记录：" in answer
        assert "the driver was reset" in answer


async def test_hostile_texts_of_alerts_are_inert(chat: Any) -> None:
    fire(chat, {**XID, "description": "<!channel> [x](http://evil.example) \u202e **b**", "instance": "@all"})
    outside = "".join((await chat.says("alerts")).split("`")[::2])
    assert "](http" not in outside
    assert "@all" not in outside
    assert "\u202e" not in outside


async def test_a_running_job_that_is_only_named_is_offered(chat: Any) -> None:
    name = f"offered-{os.getpid()}"
    with job(TORCHELASTIC_RUN_ID=name, RANK="0") as pid:
        for text in (f"{name} hmm", "why is it so slow", "为啥这么慢"):
            assert f"pid {pid}" in await chat.says(text)
        assert chat.kb.observation_requests.running() == []
