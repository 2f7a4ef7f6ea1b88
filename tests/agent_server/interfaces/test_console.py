"""The console over real HTTP: who gets in and how far, forms, lists, actions, and what hostile text becomes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import console_server
import pytest
from console_server import HOSTILE, Console, Visitor, report, serving, token_of, write_history, write_watch

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.interfaces.web.console import site as console_site
from whystall.agent_server.interfaces.web.console.sessions import IDLE_S, LONGEST_S
from whystall.agent_server.journal.alerts import Alert
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.models import Diagnosis
from whystall.knowledge_base.ticket_models import Human, Ticket
from whystall.prompts.files import texts_of
from whystall.tools.contract.findings import Severity

RECORDED = Path(__file__).parents[2] / "recorded"


class Judging(App):
    """whystall on a host where the recording of a slow checkpoint was just made."""

    async def diagnose(self, params: DiagnoseParams, **more: Any) -> Diagnosis:
        """Judge the recording."""
        symptom = {"symptom": params.symptom, "ticket": params.ticket}
        return await super().diagnose(DiagnoseParams(**symptom), **{**more, "source": RECORDED / "checkpoint"})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHYSTALL_HOME", str(directory))
        patch.setenv("WHYSTALL_CONFIG", str(console_server.write_settings(directory)))
        yield directory


@pytest.fixture(scope="module")
def clock() -> list[float]:
    """The seconds of the sessions."""
    return [1000.0]


@pytest.fixture(scope="module")
def console(home: Path, clock: list[float]) -> Iterator[Console]:
    with serving(clock, app=Judging()) as made:
        for index in range(3):
            create(made, f"slow NFS {index}", index)
        yield made


def create(console: Console, title: str, index: int, severity: Severity = Severity.MINOR) -> None:
    """Store a ticket of a person, as it is."""
    stamp = f"2020-01-01T00:00:{index:02d}Z"
    human, key = Human(title=title), f"test:{title}"
    text = {"category": "network", "component": "rdma", "origin": "person", "dedup_key": key}
    console.kb.tickets.create(
        Ticket(id="", created=stamp, updated=stamp, severity=severity, human=human, **text), "test"
    )


def count(console: Console, table: str) -> int:
    with console.kb._file.read() as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_a_token_opens_a_session_of_a_cookie_that_scripts_and_other_sites_do_not_get(console: Console) -> None:
    visitor = console.visitor()
    asked = visitor.get("/tickets?state=all")
    assert (asked.status_code, asked.headers["location"]) == (
        303,
        "/console/login?to=%2Fconsole%2Ftickets%3Fstate%3Dall",
    )
    begun = visitor.login(token_of("root"), to="/console/tickets?state=all")
    assert (begun.status_code, begun.headers["location"]) == (303, "/console/tickets?state=all")
    cookie = begun.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    page = visitor.get("/tickets")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?! src=)|<style|\son\w+=|\sstyle=", page.text)
    entry = console.kb.audit.entries(what="console.login")[-1]
    assert (entry.by, entry.outcome) == ("token:root", "ok")
    # behind a proxy that ends TLS
    proxied = visitor.http.post("/login", data={"token": token_of("root")}, headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in proxied.headers["set-cookie"]


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/console/../x\\y", "/mcp", "javascript:1"])
def test_a_login_leads_to_no_other_place(console: Console, to: str) -> None:
    assert console.visitor().login(token_of("root"), to=to).headers["location"] == "/console"


def test_a_wrong_token_opens_nothing_and_is_noted(console: Console) -> None:
    visitor = console.visitor()
    refused = visitor.login("wrong-token-0123456789")
    assert refused.status_code == 401
    assert 'role="alert"' in refused.text
    assert "wrong-token" not in refused.text
    assert "set-cookie" not in refused.headers
    assert visitor.get("").status_code == 303
    noted = console.kb.audit.entries(what="request.refused")
    assert any(entry.target == "/console/login" for entry in noted)


def test_a_session_ends_with_time_logout_and_its_token(console: Console, home: Path, clock: list[float]) -> None:
    visitor = console.visitor("watch")
    clock[0] += IDLE_S - 1
    assert visitor.get("/diagnoses").status_code == 200
    clock[0] += IDLE_S + 1
    assert visitor.get("/diagnoses").status_code == 303

    visitor = console.visitor("watch")
    for _ in range(int(LONGEST_S / IDLE_S) + 1):
        last = visitor.get("/diagnoses").status_code
        clock[0] += IDLE_S - 1
    assert last == 200
    assert visitor.get("/diagnoses").status_code == 303

    visitor = console.visitor("watch")
    copied = visitor.http.cookies["whystall_session"]
    assert visitor.post("/logout").headers["location"] == "/console/login"
    visitor.http.cookies.set("whystall_session", copied)
    assert visitor.get("/diagnoses").status_code == 303

    visitor, file = console.visitor("watch"), home / "watch.token"
    assert visitor.get("/diagnoses").status_code == 200
    file.write_text("another-token-0123456789")
    assert visitor.get("/diagnoses").status_code == 303
    file.write_text(token_of("watch"))
    assert visitor.get("/diagnoses").status_code == 303, "a session that has ended does not begin again"


def test_pages_and_actions_need_their_scopes(console: Console) -> None:
    watch, desk = console.visitor("watch"), console.visitor("desk")
    for path in ("/tickets", "/tickets/1", "/alerts"):
        assert (watch.get(path).status_code, desk.get(path).status_code) == (403, 200), path
    for path in ("/diagnoses", "/knowledge?q=nfs"):
        assert (watch.get(path).status_code, desk.get(path).status_code) == (200, 403), path
    assert "tickets" in watch.get("/tickets").text, "the page names the scope"
    before = console.kb.tickets.get("1").revision
    for name, form in (("acknowledge", {}), ("comment", {"text": "x"}), ("resolve", {"because": "x"})):
        assert watch.post(f"/tickets/1/{name}", **form).status_code == 403
    assert console.kb.tickets.get("1").revision == before
    tasks = count(console, "client_tasks")
    assert desk.post("/diagnoses").status_code == 403
    assert watch.post("/diagnoses", ticket="1").status_code == 403
    assert count(console, "client_tasks") == tasks
    assert "/console/tickets" not in watch.get("").text


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ({}, {}),
        ({"csrf": "guessed"}, {}),
        ({"csrf": "own"}, {"Origin": "https://evil.example"}),
        ({"csrf": "own"}, {"Sec-Fetch-Site": "cross-site"}),
    ],
)
def test_a_form_of_another_page_changes_nothing(
    console: Console, form: dict[str, str], headers: dict[str, str]
) -> None:
    visitor = console.visitor("desk")
    if form.get("csrf") == "own":
        form = {"csrf": visitor.csrf()}
    before = console.kb.tickets.get("2")
    refused = visitor.http.post("/tickets/2/acknowledge", data=form, headers=headers)
    assert refused.status_code == 403
    assert console.kb.tickets.get("2") == before
    assert visitor.post("/logout").status_code == 303


def test_the_proof_of_another_session_is_refused(console: Console) -> None:
    one, other = console.visitor("desk"), console.visitor("desk")
    data = {"csrf": other.csrf()}
    assert one.http.post("/tickets/2/acknowledge", data=data).status_code == 403


def test_actions_change_the_ticket_and_the_audit_log_names_the_token(console: Console) -> None:
    service = TicketService(console.kb)
    id = service.file(report("loader hangs on node gpu40", "it hangs")).ticket.id
    visitor = console.visitor("desk")
    known = len(console.kb.audit.entries(limit=10_000, what="ticket."))
    for name, form in (
        ("acknowledge", {}),
        ("assign", {"users": "ann wang"}),
        ("comment", {"text": "第一行\nsecond"}),
        ("resolve", {"because": "restarted the loader"}),
        ("reopen", {}),
    ):
        done = visitor.post(f"/tickets/{id}/{name}", **form)
        assert (done.status_code, done.headers["location"]) == (303, f"/console/tickets/{id}?done={name}")
    assert texts_of("console", "en")["done"]["assign"] in visitor.get(f"/tickets/{id}?done=assign").text
    ticket = console.kb.tickets.get(id)
    assert ticket.state == "open"
    assert ticket.assignment is not None
    assert ticket.assignment.users == ["ann", "wang"]
    (comment,) = ticket.human.comments
    assert (comment.by, comment.text, comment.source) == ("token:desk", "第一行\nsecond", "web")
    entries = console.kb.audit.entries(limit=10_000, what="ticket.")[known:]
    assert [entry.what for entry in entries] == [
        f"ticket.{what}" for what in ("acknowledged", "assigned", "commented", "resolved", "reopened")
    ]
    assert {(e.by, e.detail["source"], e.target) for e in entries} == {("token:desk", "web", f"ticket:{id}")}
    assert [e.by for e in console.kb.tickets.events(id)[1:]] == ["token:desk"] * 5


@pytest.mark.parametrize(
    ("name", "form", "status"),
    [
        ("comment", {"text": "  "}, 400),
        ("resolve", {"because": ""}, 400),
        ("assign", {"users": "nobody-here"}, 400),
        ("assign", {"users": ""}, 400),
        ("comment", {"text": "x" * 5000}, 400),
        ("comment", {"text": "x" * 200_000}, 413),
    ],
)
def test_a_wrong_form_is_refused_with_its_reason(
    console: Console, name: str, form: dict[str, str], status: int
) -> None:
    before = console.kb.tickets.get("3")
    refused = console.visitor("desk").post(f"/tickets/3/{name}", **form)
    assert refused.status_code == status
    assert 'role="alert"' in refused.text
    assert console.kb.tickets.get("3") == before


def test_unknown_addresses_and_numbers_are_pages(console: Console) -> None:
    visitor = console.visitor("root")
    for path in ("/tickets/99999", "/tickets/x", "/nothing", "/diagnoses/none", "/runs/none", "/jobs/none"):
        missing = visitor.get(path)
        assert missing.status_code == 404, path
        assert "<html" in missing.text
    for path in ("/pages/..%2f..%2fknowledge.db", "/pages/x.folded", "/pages/none.html"):
        assert visitor.get(path).status_code == 404, path


def test_the_list_is_paged_filtered_and_searched(console: Console) -> None:
    with console.kb.transaction():
        for index in range(60):
            severity = Severity.CRITICAL if index % 2 else Severity.MINOR
            create(console, f"Paged Ticket n{index:02d} 交换机", index, severity)
    visitor = console.visitor("desk")

    def titles(path: str) -> list[str]:
        return re.findall(r"Paged Ticket (n\d\d)", visitor.get(path).text)

    found = [f"n{index:02d}" for index in reversed(range(60))]
    assert titles("/tickets?q=paged+ticket") == found[:50]
    assert titles("/tickets?q=PAGED+ticket&page=2") == found[50:]
    assert 'rel="next" href="?q=paged+ticket&amp;page=2"' in visitor.get("/tickets?q=paged+ticket").text
    assert 'rel="prev"' in visitor.get("/tickets?q=paged+ticket&page=2").text
    assert titles("/tickets?q=paged+n17+%E4%BA%A4%E6%8D%A2%E6%9C%BA") == ["n17"]
    assert titles("/tickets?q=paged&severity=critical") == [one for one in found if int(one[1:]) % 2]
    assert titles("/tickets?q=paged&state=closed") == []
    assert titles("/tickets?q=paged+100%25+_&page=1") == [], "signs of patterns are plain text"
    assert titles("/tickets?q=paged&page=99999999999") == found[:50]
    assert visitor.get("/tickets?q=paged&page=7").status_code == 200


def test_hostile_text_stays_text_on_every_page(console: Console, home: Path) -> None:
    service = TicketService(console.kb)
    id = service.file(report(f"T {HOSTILE}", f"D {HOSTILE}\nnext", node=f"L {HOSTILE}")).ticket.id
    service.comment(id, f"C {HOSTILE}", HOSTILE)
    service.assign(id, [HOSTILE], HOSTILE)
    labels = {"alertname": f"A {HOSTILE}", HOSTILE: HOSTILE}
    alert = Alert(key="k", fingerprint="f", status="firing", labels=labels, annotations={"summary": HOSTILE}, starts=1)
    console.kb.alerts.put(alert, time.time())
    write_watch(home, f"J {HOSTILE}")
    visitor = console.visitor("root")
    card = console.kb.cards.record(title=f"K {HOSTILE}", symptom=f"S {HOSTILE}", fix=f"F {HOSTILE}", by="ann")
    run = visitor.post("/diagnoses", symptom=f"Y {HOSTILE}", pid=HOSTILE)
    assert run.status_code == 400
    pages = ["", "/tickets", f"/tickets/{id}", "/alerts", "/jobs/slurm:4242", f"/knowledge/{card.id}"]
    pages += [
        f"/knowledge?q={HOSTILE[:40]}",
        f"/tickets?q={HOSTILE[:40]}&assignee={HOSTILE[:40]}",
        "/diagnoses?pid=<b>",
    ]
    shown = [visitor.get(path) for path in pages] + [run]
    for page in shown:
        assert page.status_code in (200, 400)
        assert not re.search(r"<script(?! src=)|<img src=x|<b>|\u202e", page.text), page.url
    seen = "".join(page.text for page in shown)
    for letter in "TDLCAJKSF":
        assert f"{letter} &lt;script&gt;" in seen, letter
    (home / "watch" / "status.json").unlink()


def test_without_a_watcher_the_overview_says_what_to_do(console: Console, home: Path) -> None:
    (home / "watch").mkdir(exist_ok=True)
    (home / "watch" / "status.json").unlink(missing_ok=True)
    visitor = console.visitor("watch")
    empty = visitor.get("").text
    assert "No watcher runs" in empty
    assert "<code>whystall watch</code>" in empty
    for broken in ("{}", "[1]", "{", '{"running": true}', '{"running": true, "written": 9e9, "pid": 1, "jobs": [3]}'):
        (home / "watch" / "status.json").write_text(broken)
        assert visitor.get("").status_code == 200, broken
    write_watch(home)
    watched = visitor.get("").text
    assert "No watcher runs" not in watched
    assert "1 of 4 stalled" in watched
    assert "Synchronous checkpoint write" in watched
    job = visitor.get("/jobs/slurm:4242").text
    assert "stalled for 43.2 s" in job
    assert "/console/diagnoses?pid=4102#start" in job
    assert "Nothing was recorded" in job
    write_history(home)
    job = visitor.get("/jobs/slurm:4242").text
    places = re.findall(r"<td data-label=\"What was waited for\"><span>(.*?)<small>", job)
    assert places[0] == "asleep in futex at all_reduce (train.py:212)"
    assert places[1].startswith("uninterruptible in fsync at save (checkpoint.py:88), for /scratch/run7/checkpoint.pt")
    rows = re.findall(r"<svg viewBox=\"0 0 60 10\".*?</svg>", job, re.DOTALL)
    assert len(rows) == 3
    for row in rows:
        widths = {
            kind: sum(map(int, re.findall(rf'class="{kind}" x="\d+"(?: y="[\d.]+")? width="(\d+)"', row)))
            for kind in ("gap", "cells")
        }
        assert sum(widths.values()) == 60
        assert 28 <= widths["gap"] <= 31, "the first half of the hour was not recorded"
    assert 'aria-current="true">Last hour' in job
    darkest = [max(map(float, re.findall(r'fill-opacity="([\d.]+)"', row))) for row in rows]
    assert darkest[0] > 0.6
    assert darkest[0] > max(darkest[1:]), "the longest waits"
    whole = visitor.get("/history/slurm:4242?since=6h")
    assert "all_reduce" in whole.text
    assert "sandbox allow-scripts" in whole.headers["content-security-policy"]
    assert visitor.get("/history/none").status_code == 404
    shown = visitor.get("").text
    assert re.search(r"of the waits that ended in the last 3 minutes.*: <code>fsync</code>", shown), (
        "of the stalled rank"
    )
    now = re.search(r"vllm serve.*?data-label=\"Waits now for\">(.*?)</td>", shown, re.DOTALL)
    assert now is not None
    assert re.search(r"<code>\w+</code>|it runs", now[1]), "of this process"
    (home / "watch" / "stalls.jsonl").write_text('not json\n{"job": 1}\n' + '{"at": "x"}\n')
    assert visitor.get("").status_code == 200


def test_a_diagnosis_is_started_followed_and_shown(console: Console) -> None:
    visitor, other = console.visitor("root"), console.visitor("watch")
    started = visitor.post("/diagnoses", symptom="训练停顿", duration="2", ticket="1")
    run = started.headers["location"].removeprefix("/console")
    assert other.get(run).status_code == 404, "only who started it sees it"
    assert other.get(f"{run}/events").status_code == 404
    events = []
    with visitor.http.stream("GET", f"{run}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
    assert events[-1]["state"] == "completed"
    place = events[-1]["place"].removeprefix("/console")
    assert visitor.get(run).headers["location"] == f"/console{place}"
    page = visitor.get(place).text
    assert "Synchronous checkpoint write" in page
    assert "训练停顿" in page
    assert "fsync" in page
    assert visitor.get(f"{place}/picture.svg").text.startswith("<svg")
    (frame,) = re.findall(r'<iframe src="/console([^"]+)"', page)
    flame = visitor.get(frame)
    assert "sandbox allow-scripts" in flame.headers["content-security-policy"]
    assert "fsync" in flame.text
    (ticket,) = set(re.findall(r"/console/tickets/(\d+)", page))
    assert console.kb.tickets.get(ticket).diagnosed().id == place.rpartition("/")[2]
    entry = console.kb.audit.entries(what="diagnosis.started")[-1]
    assert (entry.by, entry.detail["symptom"], entry.detail["source"]) == ("token:root", "训练停顿", "web")


@pytest.mark.parametrize("form", [{"pid": "x"}, {"duration": "1e9"}, {"duration": "nan"}, {"pid": "-4"}])
def test_a_diagnosis_with_wrong_numbers_is_not_started(console: Console, form: dict[str, str]) -> None:
    tasks = count(console, "client_tasks")
    assert console.visitor("root").post("/diagnoses", **form).status_code == 400
    assert count(console, "client_tasks") == tasks


def test_pages_are_in_the_language_of_the_browser_or_of_the_switch(console: Console) -> None:
    visitor = console.visitor("root", "fr, zh-CN;q=0.8, en;q=0.4")
    for path in ("", "/diagnoses", "/tickets", "/tickets/1", "/alerts", "/knowledge", "/nothing"):
        page = visitor.get(path).text
        assert '<html lang="zh-CN">' in page
        assert re.search(r"<h1>.*[\u4e00-\u9fff]|<h1>.*NFS", page), path
    assert visitor.get("/tickets?lang=en&q=nccl").text.count('<html lang="en">') == 1
    assert '<html lang="en">' in visitor.get("/tickets").text, "the switch lasts"
    assert 'href="?q=nccl&amp;lang=zh"' in visitor.get("/tickets?q=nccl").text
    assert '<html lang="en">' in visitor.get("/tickets?lang=xx").text


def test_a_link_from_elsewhere_comes_again_with_the_cookie(console: Console) -> None:
    visitor = console.visitor()
    page = visitor.http.get("/tickets/1", headers={"Sec-Fetch-Site": "cross-site"})
    assert page.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=/console/tickets/1">' in page.text


def test_both_languages_have_the_same_texts() -> None:
    def leaves(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
        for key, value in tree.items():
            yield from leaves(value, f"{path}{key}.") if isinstance(value, dict) else [(f"{path}{key}", value)]

    en, zh = (dict(leaves(texts_of("console", lang))) for lang in ("en", "zh"))
    assert en.keys() == zh.keys()
    blanks: Callable[[str], list[str]] = lambda text: sorted(re.findall(r"\{\w*\}", text))  # noqa: E731
    assert {key: blanks(en[key]) for key in en} == {key: blanks(zh[key]) for key in zh}


def test_its_script_is_short() -> None:
    script = Path(console_site.__file__).parent / "assets" / "console.js"
    assert len(script.read_text().splitlines()) <= 150


def test_a_token_of_the_command_line_may_do_everything(home: Path) -> None:
    with serving(lone="the-token-of-the-command-line-01") as console:
        visitor = Visitor(console.url, "en")
        assert visitor.login("the-token-of-the-command-line-01").status_code == 303
        assert visitor.get("/tickets").status_code == visitor.get("/diagnoses").status_code == 200
