"""Tickets are brought into trackers, once, and kept in step with them, through everything that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from sink_scenes import HOOK, HOSTILE, KINDS, ROUTING, START, TOKEN, TRACKERS, Kind, Scene, scene
from tracker_servers import Call, reply

from whystall.agent_server.integrations.trackers import issue_sync
from whystall.agent_server.stores import Stores

pytestmark = pytest.mark.anyio


def text_of(issue: Any) -> str:
    """The description of an issue, in whichever vendor's form."""
    if hasattr(issue, "description"):
        return str(issue.description)
    return str(issue.get("body") or issue.get("fields", {}).get("description") or issue.get("text"))


def state_of(issue: Any) -> str:
    if hasattr(issue, "state"):
        return "over" if issue.state == "closed" else "open"
    if "fields" in issue:
        return {"done": "over", "indeterminate": "acknowledged"}.get(
            issue["fields"]["status"]["statusCategory"]["key"], "open"
        )
    return "over" if issue["state"] in ("closed", "resolve") else "open"


def labels_of(issue: Any) -> list[str]:
    if hasattr(issue, "labels"):
        return list(issue.labels)
    return issue["fields"]["labels"] if "fields" in issue else [label["name"] for label in issue["labels"]]


def comments_of(s: Scene) -> list[str]:
    if hasattr(s.vendor, "comments"):
        return [comment["body"] for comments in s.vendor.comments.values() for comment in comments]
    return [note["body"] for issue in s.vendor.issues for note in issue.notes]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_ticket_becomes_one_issue(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.file()
        assert await s.run() is None
        assert len(s.issues) == 1
        ticket, delivery = s.kb.tickets.get(s.ticket), s.delivery()
        assert delivery.delivered == delivery.wanted == ticket.revision
        assert [remote.sink for remote in ticket.remotes] == ["s"]
        assert ticket.remotes[0].ref == delivery.remote
        count = len(s.gate.calls)
        assert await s.run() is None
        assert len(s.gate.calls) == count  # that the tracker has it is nothing to tell it


@pytest.mark.parametrize("kind", TRACKERS)
async def test_what_the_issue_holds(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.file()
        await s.run()
        issue = s.issues[0]
        created = next(call for call in s.gate.made() if call.status == 201).json
        assert "training hangs at step 120" in json.dumps(created)
        assert {"whystall", "severity::critical"} <= set(labels_of(issue))
        if kind == "gitlab":
            assert (issue.assignees, issue.actions, issue.mentions) == ([3], [], [])
        elif kind == "github":
            assert [user["login"] for user in issue["assignees"]] == ["alice"]
        else:
            fields = issue["fields"]
            name = "accountId" if kind == "jira" else "name"
            assert (fields["priority"], fields["assignee"]) == ({"name": "Highest"}, {name: "5b10a"})
            assert fields["description"].startswith("{noformat}")
            assert fields["description"].count("{noformat}") == 2


@pytest.mark.parametrize("kind", TRACKERS)
async def test_it_is_changed_closed_and_reopened_with_the_ticket(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.file()
        await s.run()
        s.ticket_service.acknowledge(s.ticket, "ann")
        await s.run()
        assert (
            state_of(s.issues[0]) == "acknowledged"
            if "jira" in kind
            else any("acknowledged" in label for label in labels_of(s.issues[0]))
        )
        s.ticket_service.resolve(s.ticket, "restarted @all the loader", "ann")
        await s.run()
        assert state_of(s.issues[0]) == "over"
        s.ticket_service.reopen(s.ticket, "ann")
        await s.run()
        assert state_of(s.issues[0]) != "over"
        s.ticket_service.close(s.ticket, "wont_fix", "ann")
        await s.run()
        assert state_of(s.issues[0]) == "over"
        if kind == "github":
            assert s.issues[0]["state_reason"] == "not_planned"
        assert len(s.issues) == 1
        told = comments_of(s)
        assert len(told) == 4
        assert "restarted @all the loader" in told[1]
        if kind == "gitlab":
            assert (s.issues[0].mentions, s.issues[0].actions) == ([], [])


@pytest.mark.parametrize("kind", TRACKERS)
async def test_what_people_wrote_there_stays(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.file()
        await s.run()
        issue = s.issues[0]
        human = f"before\n{text_of(issue)}\nafter, by a person"
        if kind == "gitlab":
            issue.description, issue.title = human, "our name for it"
            issue.labels.append("team")
        elif kind == "github":
            issue |= {"body": human, "title": "our name for it"}
            issue["labels"].append({"name": "team"})
        else:
            issue["fields"] |= {"description": human, "summary": "our name for it"}
            issue["fields"]["labels"].append("team")
        s.ticket_service.comment(s.ticket, "seen it, too: @all", "ben")
        s.kb.tickets.seen_again(s.ticket, "engine")
        s.ticket_service.acknowledge(s.ticket, "ann")
        await s.run()
        text = text_of(s.issues[0])
        assert text.startswith("before\n")
        assert text.endswith("\nafter, by a person")
        assert text != human
        assert "team" in labels_of(s.issues[0])
        assert "our name for it" in json.dumps(s.issues[0], default=vars)
        assert sum("seen it, too" in comment for comment in comments_of(s)) == 1


@pytest.mark.parametrize("kind", ["github", "gitlab"])
async def test_whom_people_assign_stays_assigned(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.file()
        await s.run()
        if kind == "gitlab":
            s.issues[0].assignees.append(4)
        else:
            s.issues[0]["assignees"].append({"login": "bob"})
        s.ticket_service.assign(s.ticket, ["ben"], "ann")  # who is not known there
        await s.run()
        there = s.issues[0].assignees if kind == "gitlab" else [who["login"] for who in s.issues[0]["assignees"]]
        assert there == ([4] if kind == "gitlab" else ["bob"])


@pytest.mark.parametrize("kind", TRACKERS)
async def test_who_takes_the_marks_away_keeps_the_text(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.file()
        await s.run()
        if kind == "gitlab":
            s.issues[0].description = "mine"
        elif kind == "github":
            s.issues[0]["body"] = "mine"
        else:
            s.issues[0]["fields"]["description"] = "mine"
        for _ in range(2):
            s.kb.tickets.seen_again(s.ticket, "engine")
            s.ticket_service.comment(s.ticket, "still there", "ben")
            await s.run()
        assert text_of(s.issues[0]) == "mine"
        assert len(comments_of(s)) == 2


# --- what fails -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *((kind, fault) for kind in KINDS for fault in ("drop", "lost")),
        *(("gitlab", fault) for fault in ("garbage", "huge", "silent")),
    ],
)
async def test_a_lost_answer_leaves_one_issue(kind: Kind, fault: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"timeout": 1} if fault == "silent" else {}
    with scene(kind, tmp_path, **more) as s:
        s.gate.faults = lambda call: fault if call.method == "POST" and len(s.gate.made()) == 1 else None
        s.file()
        due = await s.run()
        assert due is not None
        assert due > s.now
        assert s.delivery().error
        await s.settle()
        assert len(s.issues) == 1
        assert (s.delivery().error, s.delivery().pending) == ("", False)
        s.ticket_service.acknowledge(s.ticket, "ann")
        await s.settle()
        assert len(s.issues) == (2 if kind == "webhook" else 1)  # whom each change is told


async def test_what_jira_does_not_find_at_once_is_looked_for_again(tmp_path: Path) -> None:
    with scene("jira", tmp_path) as s:
        s.vendor.lag = 1
        s.gate.faults = lambda call: "lost" if len(s.gate.made()) == 1 and call.method == "POST" else None
        s.file()
        await s.settle()
        assert len(s.issues) == 1
        assert s.now >= START + 120


def _loses_the_first(s: Scene) -> None:
    s.gate.faults = lambda call: "lost" if call.method == "POST" and len(s.gate.made()) == 1 else None


async def test_where_it_cannot_be_told_a_person_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issue_sync, "PAGES", 1)
    with scene("github", tmp_path) as s:
        _loses_the_first(s)
        s.file()
        await s.run()
        for n in range(60):  # others write more issues meanwhile than are looked through
            s.vendor.create({"title": f"other {n}"})
        await s.settle()
        assert s.delivery().error.startswith("unclear: ")
        assert (s.delivery().parked, len(s.issues)) == (True, 61)
        monkeypatch.setattr(issue_sync, "PAGES", 5)
        s.kb.deliveries.unpark("s")
        await s.settle()
        assert (s.delivery().remote, len(s.issues)) == ("1", 61)


async def test_a_clock_set_back_makes_no_second_issue(tmp_path: Path) -> None:
    with scene("gitlab", tmp_path) as s:
        _loses_the_first(s)
        s.file()
        await s.run()
        s.now -= 30 * 86_400
        assert await s.run() == s.now + 10  # how long ago it was is not known: it is waited again
        await s.settle()
        assert len(s.issues) == 1
        assert not s.delivery().pending


@pytest.mark.parametrize("kind", KINDS)
async def test_a_busy_server_is_asked_again_when_it_says(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        busy = reply(429, {"message": "slow down"}, Retry_After="77")
        s.gate.faults = lambda call: busy if len(s.gate.calls) < 2 else None
        s.file()
        due = await s.run()
        assert due == pytest.approx(s.now + 77, abs=1)
        assert await s.run() == due
        assert len(s.gate.calls) == 1
        await s.settle()
        assert len(s.issues) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_who_lets_us_not_in_is_told_to_a_person(kind: Kind, tmp_path: Path) -> None:
    secret = {"pagerduty": ROUTING, "webhook": HOOK}.get(kind, TOKEN)
    with scene(kind, tmp_path) as s:
        s.gate.faults = lambda call: reply(401, {"message": f"bad token {secret}"})
        first, second = s.file(), s.file("another one: no space left on device")
        assert await s.run() is None
        assert len(s.gate.calls) == 1
        errors = [d.error for d in s.kb.deliveries.troubled("s")]
        assert [error.partition(":")[0] for error in errors] == ["unauthorised", "unauthorised"]
        assert secret[-12:] not in str(errors)
        s.gate.faults = None
        s.ticket_service.acknowledge(first, "ann")
        assert await s.run() is None
        assert len(s.gate.calls) == 1  # nothing is tried until a person says so
        assert s.kb.deliveries.unpark("s") == 2
        await s.settle()
        assert {r.sink for t in (first, second) for r in s.kb.tickets.get(t).remotes} == {"s"}


@pytest.mark.parametrize("kind", TRACKERS)
async def test_a_redirect_is_not_followed_and_a_gone_issue_not_made_again(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.gate.faults = lambda call: reply(302, None, Location="http://127.0.0.1:1/")
        s.file()
        await s.run()
        assert s.delivery().parked
        assert "redirects" in s.delivery().error
        s.gate.faults = None
        s.kb.deliveries.unpark("s")
        await s.settle()
        s.vendor.issues.clear()
        s.ticket_service.acknowledge(s.ticket, "ann")
        await s.run()
        assert "is gone" in s.delivery().error
        assert s.issues == []


async def test_one_that_is_down_is_tried_with_one_ticket(tmp_path: Path) -> None:
    with scene("gitlab", tmp_path) as s:
        s.gate.faults = lambda call: "drop"
        for n in range(5):
            s.file(f"{['disk', 'network', 'memory', 'cpu', 'lock'][n]} trouble")
        due = await s.run()
        assert len(s.gate.calls) == 1
        assert due is not None
        s.gate.faults = None
        await s.settle()
        assert len(s.issues) == 5


@pytest.mark.parametrize("kind", ["github", "jira", "jira_server"])
async def test_an_optional_field_that_is_refused_is_left_out(kind: Kind, tmp_path: Path) -> None:
    with scene(kind, tmp_path) as s:
        s.vendor.people = ()
        if "jira" in kind:
            s.vendor.priorities = []
        s.file()
        await s.run()
        assert len(s.issues) == 1
        assert "assignee" in s.delivery().memory["left_out"][-1]
        s.ticket_service.acknowledge(s.ticket, "ann")
        assert await s.run() is None
        assert s.delivery().error == ""


@pytest.mark.parametrize("kind", TRACKERS)
async def test_a_text_too_long_is_cut_and_says_so(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whystall.agent_server.integrations.trackers import desired

    whole = "".join(f"line {n} of the evidence\n" for n in range(60_000))
    monkeypatch.setattr(desired, "ticket_markdown", lambda *_: f"# {'long ' * 200}\n{whole}")
    with scene(kind, tmp_path) as s:
        s.file()
        await s.run()
        assert len(s.issues) == 1
        assert f"whystall tickets show {s.ticket}" in text_of(s.issues[0])
        s.kb.tickets.seen_again(s.ticket, "engine")
        assert await s.run() is None
        assert s.delivery().error == ""


async def test_a_comment_whose_answer_was_lost_stands_once(tmp_path: Path) -> None:
    for kind in TRACKERS:
        (tmp_path / kind).mkdir()
        with scene(kind, tmp_path / kind) as s:
            s.file()
            await s.run()
            lost: list[Call] = []

            def fault(call: Call, lost: list[Call] = lost) -> str | None:
                if call.method == "POST" and ("note" in call.target or "comment" in call.target) and not lost:
                    lost.append(call)
                    return "lost"
                return None

            s.gate.faults = fault
            s.ticket_service.comment(s.ticket, "look at this", "ben")
            await s.run()
            s.ticket_service.comment(s.ticket, "and at that", "ben")
            await s.settle()
            assert lost
            told = "\n".join(comments_of(s))
            assert (told.count("look at this"), told.count("and at that")) == (1, 1)


async def test_pagerduty_rings_for_what_is_severe_and_not_over(tmp_path: Path) -> None:
    with scene("pagerduty", tmp_path, min_severity="critical") as s:
        mild = s.ticket_service.file(_mild()).ticket.id
        over = s.file()
        s.ticket_service.resolve(over, "restarted", "ann")
        await s.run()
        assert s.gate.calls == []
        s.ticket_service.reopen(over, "ann")
        s.ticket_service.acknowledge(over, "ann")
        await s.run()
        assert [call.json["event_action"] for call in s.gate.calls] == ["trigger", "acknowledge"]
        s.ticket_service.resolve(over, "restarted", "ann")
        await s.run()
        assert [alert["state"] for alert in s.issues] == ["resolve"]
        delivery = s.kb.deliveries.get("s", mild)
        assert delivery is not None
        assert not delivery.pending


def _mild() -> Any:
    from whystall.knowledge_base.classify.report import Report

    return Report(origin="alert", title="slow", created="2026-01-01T00:00:00Z", source_severity="info")


async def test_a_webhook_is_signed_and_says_what_happened(tmp_path: Path) -> None:
    from whystall.agent_server.outbound.standard_webhooks import matches

    with scene("webhook", tmp_path) as s:
        s.file()
        await s.run()
        s.ticket_service.acknowledge(s.ticket, "ann")
        await s.run()
        first, second = s.gate.calls
        for call in (first, second):
            h = call.headers
            assert h["idempotency-key"] == h["webhook-id"]
            assert matches(h["webhook-signature"], HOOK, h["webhook-id"], h["webhook-timestamp"], call.body)
        assert first.headers["webhook-id"] != second.headers["webhook-id"]
        assert (first.json["type"], second.json["type"]) == ("ticket.opened", "ticket.changed")
        assert [e["what"] for e in second.json["events"]] == ["acknowledged"]
        assert second.json["ticket"]["state"] == "acknowledged"


async def test_two_processes_make_one_issue(tmp_path: Path) -> None:
    with scene("gitlab", tmp_path) as s, Stores(tmp_path / "knowledge.db") as other:
        s.file()
        twin = Scene(other, s.settings, s.vendor, s.gate)
        async with anyio.create_task_group() as group:
            group.start_soon(s.run)
            group.start_soon(twin.run)
        await s.settle()
        assert len(s.issues) == 1


async def test_who_is_told_to_stop_leaves_it_to_the_next(tmp_path: Path) -> None:
    with scene("gitlab", tmp_path) as s:
        s.gate.faults = lambda call: "silent"
        s.file()
        with anyio.move_on_after(0.3) as stopped:
            await s.run()
        assert stopped.cancelled_caught
        s.gate.faults = None
        assert s.delivery().owner == ""
        await s.settle()
        assert len(s.issues) == 1


async def test_hostile_text_is_text(tmp_path: Path) -> None:
    with scene("gitlab", tmp_path) as s:
        s.file(title="/close @all <b>x</b>", labels={"alertname": "/assign @root", "a`b": HOSTILE[:100]})
        s.ticket_service.comment(s.ticket, "/close\n@root `x` ``` /label ~x\n```\n/close", "/close @mallory")
        await s.run()
        issue = s.issues[0]
        assert (issue.state, issue.actions, issue.mentions) == ("opened", [], [])
        assert issue.title.replace("\u2060", "").startswith("/close @all <b>x</b>")


async def test_without_a_secret_a_person_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SINK_TOKEN")
    with scene("gitlab", tmp_path) as s:
        s.file()
        await s.run()
        assert s.gate.calls == []
        assert "SINK_TOKEN" in s.delivery().error
