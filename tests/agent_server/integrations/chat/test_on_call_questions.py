"""What people on call ask without names and numbers of ours: what it means, what happened, who has it, whom to call."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from chat_alerts import DISK, NFS, SLOW, XID, fire

from whystall.agent_server.integrations.chat.silence_words import matcher_of
from whystall.agent_server.integrations.chat.times import period
from whystall.agent_server.settings.sections.oncall import Schedule
from whystall.prompts.topics import divided, topics, topics_of

pytestmark = pytest.mark.anyio


def number(chat: Any, title: str) -> str:
    return next(str(one.id) for one in chat.kb.tickets.list() if title in one.human.title)


def pending(chat: Any) -> dict[str, Any]:
    """The slots of the command that waits for a confirmation; empty without one."""
    body = chat.kb.pending_commands.get("ops", "g", "U1", time.time()) or {}
    slots: dict[str, Any] = body.get("slots", {})
    return slots


# --- commands by words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "title"),
    [
        ("I'll take the NFS one", "NFS"),
        ("ack the disk latency alert", "NodeDisk"),
        ("NFS那个我来处理", "NFS"),
        ("close the checkpoint ticket as no fault", "Checkpoint"),
        ("把xid那个转给li", "Xid"),
        ("给NFS那个工单加个备注：厂商已联系", "NFS"),
        ("resolve the ticket 1 because of a new disk", ""),
        ("node12的告警解决了，换了盘", "NodeDisk"),
    ],
)
async def test_a_ticket_is_named_by_words(chat: Any, say: str, title: str) -> None:
    fire(chat, NFS, XID, DISK, SLOW)
    id = number(chat, title) if title else "1"
    answer = await chat.says(say)
    assert pending(chat)["id"] == id
    assert f" {id} " in answer.replace("（", " ")
    assert all(one.state == "open" for one in chat.kb.tickets.list())


async def test_a_ticket_is_named_by_its_place_in_what_was_shown(chat: Any) -> None:
    fire(chat, NFS, XID, DISK)
    shown = [line for line in (await chat.says("anything on fire?")).splitlines() if line.startswith("- ")]
    assert "NodeDisk" in shown[2]
    await chat.says("我来处理第三个")
    assert pending(chat)["id"] == number(chat, "NodeDisk")
    await chat.says("assign it to li")  # the same one
    assert pending(chat) == {"id": number(chat, "NodeDisk"), "to": "li"}


@pytest.mark.parametrize(
    "say",
    [
        "I'll take the node8 one",  # two fit
        "close the coffee ticket as no fault",
        "I'll take it",  # nothing was shown
        "第二个我来",
        "ack the ticket",
        "don't close the NFS ticket",
        "should I close the NFS ticket?",
        "不要关闭NFS那个工单",
        "NFS那个工单关了吗",
    ],
)
async def test_no_ticket_is_guessed(chat: Any, say: str) -> None:
    fire(chat, NFS, SLOW)
    await chat.says(say)
    assert pending(chat) == {}
    assert "nothing to confirm" in (await chat.says("yes")).lower()


async def test_which_ticket_is_asked_with_a_list(chat: Any) -> None:
    fire(chat, NFS, SLOW)
    assert "Several tickets fit" in await chat.says("I'll take the node8 one")
    await chat.says("ack the first one")
    assert pending(chat)["id"] in (number(chat, "NFS"), number(chat, "Checkpoint"))


@pytest.mark.parametrize(
    ("words", "matcher"),
    [
        ("node7", 'instance=~"node7(:[0-9]+)?"'),
        ("NFS", 'alertname="NFSServerNotResponding"'),
        ("disk latency", 'alertname="NodeDiskLatencyHigh"'),
        ("checkpointslow", 'alertname="CheckpointSlow"'),
        ("GpuTempHigh", 'alertname="GpuTempHigh"'),  # before it fires
        ("node", None),  # no whole name
        ("node99", None),
        ("it", None),
        ("everything", None),
    ],
)
async def test_a_silence_by_words_fits_one_thing(chat: Any, words: str, matcher: str | None) -> None:
    from whystall.agent_server.integrations.chat.alert_overview import firing

    fire(chat, NFS, XID, DISK, SLOW, ("NodeDown", "critical", "node9", "x"))
    assert matcher_of(words, firing(chat.kb)) == matcher
    for say in (f"mute {words} for 2h", f"静默 {words} 的告警 2小时"):
        answer = await chat.says(say)
        assert pending(chat).get("matchers") == matcher, answer
        await chat.says("no")


# --- questions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("say", ["any critical ones?", "有没有critical的", "现在有什么紧急的问题吗"])
async def test_criticals_are_chosen(chat: Any, say: str) -> None:
    fire(chat, NFS, XID, DISK)
    answer = await chat.says(say)
    assert "XidErrors" in answer
    assert "NFSServer" in answer
    assert "NodeDisk" not in answer


@pytest.mark.parametrize("say", ["how many hosts are affected", "影响了多少台机器"])
async def test_affected_hosts_are_counted(chat: Any, say: str) -> None:
    fire(chat, NFS, SLOW, XID, DISK)
    first = (await chat.says(say)).splitlines()[0]
    assert "3 hosts" in first or "3 台" in first


@pytest.mark.parametrize(
    ("say", "words"),
    [
        ("checkpoint takes 10 min, is that normal?", "GB/s"),
        ("检查点要10分钟，正常吗", "GB/s"),
        ("whats a stragler", "slower than the others"),
        ("什么是掉队", "拖慢整个作业"),
        ("训练被OOM kill了怎么处理", "dmesg"),
        ("is NCCL timeout a network problem or a gpu problem?", "hang --pid"),
        ("where do I start with a slow dataloader", "num_workers"),
        ("how do I run a diagnosis", "diagnose --pid"),
        ("怎么静默告警", "静默 NodeDiskLatencyHigh 2小时"),
        ("what does BogusThingDown mean", "No alert named"),
        ("what does KubePodCrashLooping mean", "logs POD --previous"),
        ("exit code 137, now what", "without an OOM kill in the kernel log"),
    ],
)
async def test_terms_and_faults_are_explained(chat: Any, say: str, words: str) -> None:
    assert words in await chat.says(say)
    assert chat.kb.observation_requests.running() == []


@pytest.mark.parametrize("say", ["what does NodeDiskLatencyHigh mean?", "NodeDiskLatencyHigh是什么意思"])
async def test_the_name_of_an_alert_is_explained(chat: Any, say: str) -> None:
    assert "iostat" in await chat.says(say)
    fire(chat, DISK)
    answer = await chat.says(say)
    assert "write latency 85 ms" in answer
    assert "runbooks.example" in answer
    assert "diagnose --pid" in answer  # on that host
    fire(chat, DISK, ended=True)
    assert "write latency 85 ms" in await chat.says(say)


async def test_escalation_names_people_with_contacts(chat: Any) -> None:
    steps = Schedule.model_validate(
        {
            "timezone": "Asia/Shanghai",
            "layers": [{"users": ["li"]}],
            "escalation": [{"after": "15m", "users": ["wang"]}],
        }
    )
    chat.settings.oncall.schedules["network"] = steps
    for say in ("who do I escalate to for network", "network 升级给谁？"):
        answer = await chat.says(say)
        assert "`li`" in answer
        assert "15 min" in answer
        assert "+86 10 5555 0100" in answer
    assert "No escalation is set up" in await chat.says("who do I escalate to for storage")
    assert "escalat" not in await chat.says("who is on call for network")


@pytest.mark.parametrize("say", ["any update on the NFS ticket?", "NFS的告警现在什么情况"])
async def test_a_ticket_described_by_words_is_shown(chat: Any, say: str) -> None:
    fire(chat, NFS, XID)
    answer = await chat.says(say)
    assert "14 tasks in D state" in answer
    assert "Xid" not in answer


@pytest.mark.parametrize("say", ["王伟的电话多少", "how do I reach wang?"])
async def test_contacts_of_a_person_are_shown(chat: Any, say: str) -> None:
    assert "+86 10 5555 0100" in await chat.says(say)


async def test_a_follow_up_asks_the_same_of_something_else(chat: Any) -> None:
    fire(chat, NFS, XID)
    assert "王伟" in await chat.says("who is on call for storage")
    assert "`network`" in await chat.says("and network?")
    await chat.says("node7 怎么了")
    answer = await chat.says("那node8呢")
    assert "NFSServer" in answer
    assert "XidErrors" not in answer
    assert "没有听懂" not in answer
    assert "XidErrors" not in await chat.says("and node99?")  # nothing is known of it


@pytest.mark.parametrize("say", ["is anyone looking at the NFS alert?", "NFS的告警有人在看吗"])
async def test_who_works_on_it_is_answered(chat: Any, say: str) -> None:
    fire(chat, NFS, XID)
    id = number(chat, "NFS")
    assert "XidErrors" not in await chat.says(say)
    chat.ticket_service.acknowledge(id, "li", "test")
    answer = await chat.says(say)
    assert "`li`" in answer
    assert "acknowledged by" in answer or "认领" in answer


@pytest.mark.parametrize("say", ["what changed in the last 3 hours", "过去3小时发生了什么"])
async def test_a_past_period_is_summed_up(chat: Any, say: str) -> None:
    fire(chat, XID, hours=2)
    fire(chat, DISK, hours=30)
    answer = await chat.says(say)
    assert "XidErrors" in answer
    assert "30 h" not in answer
    began = answer.split("\n")[2]
    assert "NodeDisk" not in began
    about = await chat.says(f"{say} on node12")
    assert "XidErrors" not in about


@pytest.mark.parametrize(
    "say", ["summarise the last 3 hours please", "recap of the last 24h", "what changed in the last 3 hours on node99"]
)
async def test_words_that_name_nothing_recorded_leave_nothing_out(chat: Any, say: str) -> None:
    fire(chat, XID)
    answer = await chat.says(say)
    assert "Alerts that began: 1" in answer
    assert "No alert" not in answer
    assert ("node99" in answer) == ("node99" in say)


async def test_a_past_period_of_one_host(chat: Any) -> None:
    fire(chat, XID)
    fire(chat, NFS)
    assert "Alerts that began: 1" in await chat.says("what changed in the last 3 hours on node7")


async def test_past_tickets_answer_whether_it_happened_before(chat: Any) -> None:
    fire(chat, XID)
    chat.ticket_service.resolve(number(chat, "Xid"), "reseated the GPU", "wang")
    for say in ("has this happened before on node7?", "node7以前出过这个问题吗"):
        assert "reseated the GPU" in await chat.says(say)


@pytest.mark.parametrize("say", ["is it ok to reboot node7?", "node7能重启吗"])
async def test_whether_a_machine_may_be_restarted_is_left_to_a_person(chat: Any, say: str) -> None:
    fire(chat, XID)
    answer = await chat.says(say)
    assert "XidErrors" in answer
    assert "王伟" in answer
    assert "I cannot decide" in answer or "由人决定" in answer
    assert pending(chat) == {}


async def test_a_ticket_of_another_host_states_what_to_run_there(chat: Any) -> None:
    fire(chat, XID)
    id = number(chat, "Xid")
    for say in ("what is wrong with node7", f"ticket {id}"):
        answer = await chat.says(say)
        assert "diagnose --pid" in answer
        assert "node7" in answer


async def test_times_are_in_the_zone_of_the_person(chat: Any) -> None:
    fire(chat, XID)
    chat.settings.users["wang"] = chat.settings.users["wang"].model_copy(update={"timezone": "Europe/Berlin"})
    assert " CE" in await chat.says("alerts")
    assert " CST" in await chat.says("alerts", "U7")


# --- pure parts -----------------------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 29, 3, 10, tzinfo=timezone.utc)  # a Sunday


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("what happened last night", datetime(2026, 11, 28, 18, tzinfo=timezone.utc), NOW),
        ("昨天有什么", datetime(2026, 11, 28, tzinfo=timezone.utc), datetime(2026, 11, 29, tzinfo=timezone.utc)),
        ("since yesterday", datetime(2026, 11, 28, tzinfo=timezone.utc), NOW),
        ("过去6小时", NOW - timedelta(hours=6), NOW),
        ("last 90 minutes", NOW - timedelta(minutes=90), NOW),
        ("上周", NOW - timedelta(days=7), NOW),
        ("what changed", NOW - timedelta(days=1), NOW),
    ],
)
def test_past_periods(text: str, begin: datetime, end: datetime) -> None:
    assert period(text, NOW) == (begin, end)


def test_topics_are_complete_and_the_longest_match_counts() -> None:
    assert len({one.id for one in topics()}) == len(topics())
    for one in topics():
        assert one.means["en"]
        assert one.means["zh"]
    assert divided("NFSServerDown gpu_temp GPUThermalThrottle") == "NFS Server Down gpu temp GPU Thermal Throttle"
    assert topics_of("the nccl watchdog timed out")[0].id == "nccl_timeout"
    assert [one.id for one in topics_of("GPUThermalThrottle")] == ["gpu_heat"]
    assert topics_of("banana pancake") == []
