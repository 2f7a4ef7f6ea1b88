"""News of trackers: who is believed, what becomes of it, and that our own changes do not come back."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sink_scenes import HOOK, START, TRACKERS, Kind, Scene, scene

from whystall.agent_server.integrations.messages import Answered, Refused
from whystall.agent_server.integrations.trackers.apply_events import apply
from whystall.agent_server.integrations.trackers.inbound import BODY_LIMIT, receive
from whystall.agent_server.integrations.trackers.polling import TrackerPoller
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.outbound.standard_webhooks import signature_headers
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.classify.report import Report

pytestmark = pytest.mark.anyio
SECRET = "It's a Secret to Everybody"
_SECRETS: dict[Kind, dict[str, Any]] = {
    "github": {"webhook_secret": {"env": "SINK_SECRET"}},
    "gitlab": {"signing_token": {"env": "SINK_HOOK"}},
    "jira": {"webhook_secret": {"env": "SINK_SECRET"}},
    "jira_server": {"webhook_token": {"env": "SINK_SECRET"}},
    "pagerduty": {"webhook_secret": {"env": "SINK_SECRET"}},
    "webhook": {"secret": {"env": "SINK_HOOK"}},
}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINK_SECRET", SECRET)


def delivery_of(kind: Kind, said: dict[str, Any], id: str, now: float) -> tuple[dict[str, str], dict[str, str], bytes]:
    """Headers, query and body, as the vendor sends them."""
    body = json.dumps(said).encode()
    mac = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    if kind == "github":
        event = "issue_comment" if "comment" in str(said) else "issues"
        return {"x-hub-signature-256": f"sha256={mac}", "x-github-event": event, "x-github-delivery": id}, {}, body
    if kind in ("gitlab", "webhook"):
        return signature_headers(HOOK, id, str(int(now)), body), {}, body
    if kind == "jira":
        return {"x-hub-signature": f"sha256={mac}", "x-atlassian-webhook-identifier": id}, {}, body
    if kind == "jira_server":
        return {}, {"token": SECRET}, body
    return {"x-pagerduty-signature": f"v1=00,v1={mac}"}, {}, body


def state_event(s: Scene, kind: Kind, closed: bool, by: str = "bob") -> dict[str, Any]:
    """What the vendor tells once somebody has closed or reopened the issue."""
    if kind == "github":
        s.vendor.issues[0] |= {"state": "closed" if closed else "open", "updated_at": s.vendor.now()}
        action = "closed" if closed else "reopened"
        repository = {"full_name": "acme/ops"}
        return {"action": action, "issue": s.vendor.issues[0], "repository": repository, "sender": {"login": by}}
    if kind == "gitlab":
        told: list[dict[str, Any]] = []
        s.vendor._on_event = told.append
        s.vendor.act(1, "close" if closed else "reopen", by)
        return told[0]
    key = s.vendor.issues[0]["key"]
    s.vendor.walk(key, "Done" if closed else "To Do", "Won't Do")
    items = [{"field": "status", "toString": "Done" if closed else "To Do"}]
    user = {"accountId": by} if kind == "jira" else {"name": by}
    return {
        "webhookEvent": "jira:issue_updated",
        "issue": s.vendor.issues[0],
        "user": user,
        "changelog": {"items": items},
    }


def comment_event(s: Scene, kind: Kind, text: str, by: str = "bob") -> dict[str, Any]:
    if kind == "github":
        s.vendor.say("1", by, text)
        return {
            "action": "created",
            "issue": s.vendor.issues[0],
            "comment": s.vendor.comments["1"][-1],
            "repository": {"full_name": "acme/ops"},
            "sender": {"login": by},
        }
    if kind == "gitlab":
        told: list[dict[str, Any]] = []
        s.vendor._on_event = told.append
        s.vendor.act(1, "comment", by, text)
        return told[0]
    key = s.vendor.issues[0]["key"]
    s.vendor.say(key, by, text)
    return {"webhookEvent": "comment_created", "issue": s.vendor.issues[0], "comment": s.vendor.comments[key][-1]}


def hear(s: Scene, kind: Kind, said: dict[str, Any], id: str = "e1") -> int:
    """Take what the vendor tells; how many changes came of it."""
    headers, query, body = delivery_of(kind, said, id, s.now)
    sink = s.settings.sinks["s"]
    heard = receive("s", sink, headers, query, body, s.now)
    return 0 if isinstance(heard, Answered) else apply(heard, "s", sink, s.kb, s.ticket_service, s.now)


@pytest.mark.parametrize("kind", TRACKERS)
async def test_what_people_do_there_changes_the_ticket_once(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path, **_SECRETS[kind]) as s:
        s.file()
        await s.run()
        closed = state_event(s, kind, True)
        assert hear(s, kind, closed) == 1
        ticket = s.kb.tickets.get(s.ticket)
        jira = "jira" in kind
        assert (ticket.state, ticket.closed_as) == (("closed", "wont_fix") if jira else ("resolved", None))
        assert hear(s, kind, closed) == 0  # the same again
        assert hear(s, kind, closed, "e2") == 0  # ... under another id
        calls = len(s.gate.made("PUT")) + len(s.gate.made("PATCH")) + len(s.gate.made())
        await s.run()
        states = [c for c in s.gate.calls if b"state" in c.body or "transitions" in c.target]
        assert states == []  # it is closed there already
        assert len(s.gate.made()) <= calls + 1
        assert hear(s, kind, state_event(s, kind, False), "e3") == 1
        assert s.kb.tickets.get(s.ticket).state == "open"
        assert hear(s, kind, comment_event(s, kind, "look <b>here</b>\n@all /close"), "e4") == 1
        comments = s.kb.tickets.get(s.ticket).human.comments
        assert [(c.source, c.by) for c in comments] == [("sink:s", "sink:s:bob")]
        assert "look <b>here</b>" in comments[0].text
        posted = len(s.gate.made())
        await s.run()
        assert len(s.gate.made()) == posted  # what was said there is not said there again
        assert await sync(s) == 0  # what was told is not news when it is looked for


@pytest.mark.parametrize("kind", ["github", "gitlab"])
async def test_who_sets_the_label_works_on_it(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path, **_SECRETS[kind]) as s:
        s.file()
        await s.run()
        if kind == "gitlab":
            told: list[dict[str, Any]] = []
            s.vendor._on_event = told.append
            s.vendor.act(1, "label", "bob", "status::acknowledged")
            event = told[0]
        else:
            s.vendor.issues[0]["labels"].append({"name": "acknowledged"})
            event = {**state_event(s, kind, False), "action": "labeled"}
        assert hear(s, kind, event) == 1
        assert s.kb.tickets.get(s.ticket).state == "acknowledged"
        assert hear(s, kind, event, "again") == 0


@pytest.mark.parametrize("kind", TRACKERS)
async def test_our_own_changes_do_not_come_back(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path, **_SECRETS[kind]) as s:
        s.file()
        await s.run()
        s.ticket_service.resolve(s.ticket, "restarted", "ann")
        await s.run()
        echo = state_event(s, kind, True, "whystall-bot")
        s.ticket_service.reopen(s.ticket, "ann")
        assert hear(s, kind, echo, "e1") == 0
        await s.run()
        assert hear(s, kind, echo, "late") == 0  # also when it comes once we have changed it again
        assert s.kb.tickets.get(s.ticket).state == "open"
        mine = (
            next(iter(s.vendor.comments.values()))[-1]["body"]
            if kind != "gitlab"
            else s.vendor.issues[0].notes[-1]["body"]
        )
        assert hear(s, kind, comment_event(s, kind, mine), "e2") == 0
        assert hear(s, kind, comment_event(s, kind, f"> {mine.splitlines()[-1]}\nyes"), "e3") == 1


@pytest.mark.parametrize("kind", list(_SECRETS))
async def test_who_does_not_know_the_secret_is_refused(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path, **_SECRETS[kind]) as s:
        sink = s.settings.sinks["s"]
        headers, query, body = delivery_of(kind, {"a": 1}, "e1", s.now)
        receive("s", sink, headers, query, body, s.now) if kind != "webhook" else None
        wrong: list[tuple[dict[str, str], dict[str, str], bytes]] = [({}, {}, body)]
        if kind == "jira_server":
            wrong.append((headers, {"token": SECRET[:-1]}, body))
        else:
            wrong.append((headers, query, body + b" "))
            name = next(n for n in headers if "signature" in n)
            wrong.append(({**headers, name: headers[name][:-6] + "é\u20acx000"}, query, body))
        for h, q, b in wrong:
            with pytest.raises(Refused) as refused:
                receive("s", sink, h, q, b, s.now)
            assert refused.value.status == 401
        with pytest.raises(Refused) as refused:
            receive("s", sink, headers, query, b"x" * (BODY_LIMIT + 1), s.now)
        assert refused.value.code == "too_large"


@pytest.mark.parametrize("kind", ["gitlab", "webhook"])
async def test_a_signed_time_that_is_long_past_is_refused(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path, **_SECRETS[kind]) as s:
        headers, query, body = delivery_of(kind, {"ticket": "1", "action": "acknowledge"}, "e1", s.now)
        for now in (s.now + 301, s.now - 301):
            with pytest.raises(Refused) as refused:
                receive("s", s.settings.sinks["s"], headers, query, body, now)
            assert refused.value.code == "too_old"


async def test_the_vendors_own_examples_are_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries#testing-the-webhook-payload-validation
    with scene("github", tmp_path, **_SECRETS["github"]) as s:
        header = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        with pytest.raises(Refused) as refused:
            receive("s", s.settings.sinks["s"], {"x-hub-signature-256": header}, {}, b"Hello, World!", s.now)
        assert refused.value.code == "malformed"  # believed, and no JSON


@pytest.mark.parametrize("kind", list(_SECRETS))
async def test_without_a_secret_nobody_is_heard(kind: Kind, tmp_path: Path) -> None:
    off: dict[str, Any] = {"secret": None} if kind == "webhook" else {}
    with scene(kind, tmp_path, **off) as s, pytest.raises(Refused) as refused:
        receive("s", s.settings.sinks["s"], {}, {}, b"{}", s.now)
    assert refused.value.status == 404


@pytest.mark.parametrize("kind", TRACKERS)
async def test_news_of_other_projects_and_odd_bodies_concern_nobody(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path, **_SECRETS[kind]) as s:
        s.file()
        await s.run()
        event = json.dumps(state_event(s, kind, True))
        for other in ("acme/ops", "demo/training", "OPS"):
            event = event.replace(other, "elsewhere/x")
        if kind == "gitlab":
            event = event.replace('"project": {"id": 1', '"project": {"id": 2')
        assert hear(s, kind, json.loads(event)) == 0
        odd: list[Any] = [{}, [], 3, {"issue": []}, {"action": {}, "issue": {"number": "x"}}, {"object_attributes": 1}]
        for n, body in enumerate(odd):
            with contextlib.suppress(Refused):
                assert hear(s, kind, body, f"o{n}") == 0
        assert s.kb.tickets.get(s.ticket).state == "open"


def replaced(value: Any, by: Any) -> Iterator[Any]:
    """`value` with one thing in it `by` something else, for each thing in it."""
    yield by
    if isinstance(value, dict):
        yield from ({**value, key: other} for key, inner in value.items() for other in replaced(inner, by))
    elif isinstance(value, list):
        yield from ([other, *value[1:]] for other in replaced(value[0], by) if value)


@pytest.mark.parametrize("kind", TRACKERS)
async def test_no_shape_of_news_is_a_fault_of_ours(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path, **_SECRETS[kind]) as s:
        s.file()
        await s.run()
        for event in (state_event(s, kind, True), comment_event(s, kind, "x")):
            for odd in (7, 1.5, True, None, "\ud800", [[7]], {"a": [7]}):
                for n, said in enumerate(replaced(event, odd)):
                    with contextlib.suppress(Refused):
                        hear(s, kind, said, f"{odd!a}{n}")


async def test_a_number_of_a_ticket_that_is_none_concerns_nobody(tmp_path: Path) -> None:
    with scene("webhook", tmp_path, **_SECRETS["webhook"]) as s:
        s.file()
        for n, ticket in enumerate(("9" * 20, "\uff11", "\u00b2", "-1", "0")):
            assert hear(s, "webhook", {"ticket": ticket, "action": "acknowledge"}, f"o{n}") == 0


async def test_pagerduty_says_who_works_on_it(tmp_path: Path) -> None:
    with scene("pagerduty", tmp_path, **_SECRETS["pagerduty"]) as s:
        s.file()
        await s.run()

        def event(what: str, id: str) -> dict[str, Any]:
            data = {"id": "P1", "type": "incident", "incident_key": s.delivery().remote, "status": what}
            agent = {"summary": "Earline Greenholt", "type": "user_reference" if id else "service_reference"}
            at = "2027-01-15T08:00:00Z"
            return {
                "event": {"id": id, "event_type": f"incident.{what}", "occurred_at": at, "agent": agent, "data": data}
            }

        assert hear(s, "pagerduty", event("acknowledged", "")) == 0  # a timer, or our own event
        assert hear(s, "pagerduty", event("acknowledged", "1")) == 1
        assert hear(s, "pagerduty", event("acknowledged", "1")) == 0
        assert s.kb.tickets.get(s.ticket).state == "acknowledged"
        sent = len(s.gate.calls)
        await s.run()
        assert len(s.gate.calls) == sent
        assert hear(s, "pagerduty", event("resolved", "2")) == 1
        ticket = s.kb.tickets.get(s.ticket)
        assert (ticket.state, "Earline Greenholt" in ticket.resolution) == ("resolved", True)


async def test_a_program_may_answer(tmp_path: Path) -> None:
    with scene("webhook", tmp_path) as s:
        s.file()
        await s.run()
        said = {"ticket": s.ticket, "action": "resolve", "by": "runbook", "text": "restarted the\nloader"}
        assert hear(s, "webhook", said, "1") == 1
        assert hear(s, "webhook", said, "1") == 0
        assert s.kb.tickets.get(s.ticket).resolution == "restarted the loader"
        assert hear(s, "webhook", {"ticket": s.ticket, "action": "comment", "by": "x", "text": "hi"}, "2") == 1
        assert hear(s, "webhook", {"ticket": "77", "action": "resolve"}, "3") == 0
        with pytest.raises(Refused):
            hear(s, "webhook", {"ticket": s.ticket, "action": "drop"}, "4")


# --- looking for news ---------------------------------------------------------------------------------------------


async def sync(s: Scene) -> int:
    async with Client() as client:
        return await TrackerPoller(s.kb, s.settings, TicketService(s.kb, s.settings), client, lambda: s.now).sync("s")


async def test_news_are_found_though_our_clock_is_years_ahead(tmp_path: Path) -> None:
    with scene("gitlab", tmp_path) as s:
        report = Report(origin="alert", title="training hangs at step 120", created="2090-01-01T00:00:00Z")
        s.ticket = s.ticket_service.file(report).ticket.id
        await s.run()
        s.vendor.act(1, "close", "bob")
        assert await sync(s) == 1
        assert s.kb.tickets.get(s.ticket).state == "resolved"


@pytest.mark.parametrize("told", [False, True])
async def test_a_close_is_heard_though_we_changed_the_text_since(told: bool, tmp_path: Path) -> None:
    """Webhooks come late, and a look for news finds what we wrote as the last change."""
    events: list[dict[str, Any]] = []
    with scene("gitlab", tmp_path, signing_token={"env": "SINK_HOOK"}) as s:
        s.vendor._on_event = events.append
        s.file()
        await s.run()
        s.vendor.act(1, "close", "bob")
        s.ticket_service.edit(s.ticket, "ann", description="it hangs at step 130 as well")
        await s.run()
        assert (hear(s, "gitlab", events[0], "1") if told else await sync(s)) == 1
        assert s.kb.tickets.get(s.ticket).state == "resolved"


async def test_news_that_overtake_each_other_end_as_it_was(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    with scene("gitlab", tmp_path, signing_token={"env": "SINK_HOOK"}) as s:
        s.vendor._on_event = events.append
        s.file()
        await s.run()
        s.vendor.act(1, "close", "bob")
        s.vendor.act(1, "reopen", "bob")
        assert [hear(s, "gitlab", event, str(n)) for n, event in enumerate(reversed(events))] == [0, 0]
        assert s.kb.tickets.get(s.ticket).state == "open"


@pytest.mark.parametrize("kind", TRACKERS)
async def test_news_are_looked_for(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.file()
        await s.run()
        assert await sync(s) == 0
        state_event(s, kind, True)
        comment_event(s, kind, "closed it")
        assert await sync(s) == 2
        assert s.kb.tickets.get(s.ticket).state in ("resolved", "closed")
        assert await sync(s) == 0
        assert len(s.kb.tickets.get(s.ticket).human.comments) == 1
        state_event(s, kind, False)
        assert await sync(s) == 1
        assert s.kb.tickets.get(s.ticket).state == "open"
        s.ticket_service.resolve(s.ticket, "restarted", "ann")
        await s.run()
        assert await sync(s) == 0
        assert s.kb.tickets.get(s.ticket).state == "resolved"


async def test_looking_is_patient_with_a_server_that_is_down(tmp_path: Path) -> None:
    with scene("gitlab", tmp_path, poll=30) as s:
        async with Client() as client:
            syncing = TrackerPoller(s.kb, s.settings, s.ticket_service, client, lambda: s.now)
            assert await syncing.due("s") == START + 30
            s.gate.faults = lambda call: "drop"
            assert await syncing.due("s") == START + 30
            s.now += 31
            due = await syncing.due("s")
            assert due is not None
            assert due >= s.now + 30
            s.gate.faults, s.now = None, due
            assert await syncing.due("s") == due + 30
            s.now = START - 100_000  # the clock was set back
            assert await syncing.due("s") is not None
    with scene("pagerduty", tmp_path) as s:
        async with Client() as client:
            assert await TrackerPoller(s.kb, s.settings, s.ticket_service, client, lambda: s.now).due("s") is None
