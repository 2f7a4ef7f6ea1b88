"""Tickets as Markdown: of every origin, in both languages; people's texts are inert and separate."""

from __future__ import annotations

import re
from typing import Any

import pytest
from making import checkpoint, match
from markdown_it import MarkdownIt

from whystall.agent_server.journal.alerts import Alert
from whystall.agent_server.presentation.texts import ticket_markdown
from whystall.agent_server.presentation.ticket_texts import (
    COMMENTS,
    EVENTS,
    LABELS,
    history_text,
    tickets_text,
)
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang, Verdict
from whystall.knowledge_base.ticket_models import (
    Analysis,
    Assignment,
    Classification,
    Comment,
    Decision,
    Event,
    Human,
    Line,
    Link,
    Remote,
    Sentence,
    Ticket,
)
from whystall.knowledge_base.tickets import human, life
from whystall.knowledge_base.tickets.drafting import draft
from whystall.prompts.files import LANGS
from whystall.prompts.render import words
from whystall.tools.contract.findings import Severity

AT, LATER = "2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z"
CJK = re.compile(r"[\u4e00-\u9fff]")
HOSTILE = [
    "# Heading\n\n- item\n\n| a | b |\n|---|---|\n",
    "```\n</code> <script>alert(1)</script>\n````\n~~~\n`````",
    "@all <!channel> <@U1> [~admin] #1 !2 https://evil.example www.evil.example [x](http://evil)",
    "/close\n/assign @root\n/label ~bug",
    "{{ 7*7 }} {% raw %} ${x} #{y} {0} {by} %s",
    "'); DROP TABLE tickets; --",
    "\x1b[31m\x1b]0;title\x07\u202eevil\u2066\ud800\x00\u2028new",
    "x" * 20_000,
    "` ``",
]


def ticket(text: str = "plain", diagnosed: bool = False, **changes: Any) -> Ticket:
    """A ticket in every field of which that strangers write stands `text`."""
    name = human.line(text, human.NAME)
    why = [f"word:{name}", f"incident:{name}", name]
    told = Decision(value=name, by=f"rule:{name}", confidence=0.5, because=why, rivals=[name])
    values: dict[str, Any] = {
        "id": "7",
        "created": AT,
        "updated": LATER,
        "origin": "alert",
        "dedup_key": "2:x",
        "severity": Severity.MAJOR,
        "category": name,
        "component": name,
        "classification": Classification(
            category=told,
            component=told,
            severity=Decision(value="major", by=f"label:{name}"),
            cause=Decision(value="slow_link", by="words", because=why),
            source_severity=name,
        ),
        "assignment": Assignment(
            users=[name], rule=f"person:{name}", why=f"rotation:{name}", schedule=name, level=1, at=AT, until=AT
        ),
        "labels": {name: name},
        "human": Human(title=human.line(text, 300), description=text),
        "analysis": Analysis(
            at=AT,
            matches=[match()],
            checks=["offcputime"],
            triage=f"failed:{name}",
            model=name,
            prose=[Sentence(text=name, findings=[name])],
        ),
        "links": [Link(kind="related", ticket="3", why=why, by=name, at=AT)],
        "remotes": [Remote(sink="gitlab", ref=name, url=f"https://gitlab.example/{name}")],
    }
    made = life.inert(Ticket(**(values | changes)))
    made = life.commented(made, Comment(by=text or "x", at=AT, text=text[:4000] or "x", source=text or "x"))
    if diagnosed:
        of = draft(checkpoint(), load_causes(), AT)
        made = made.model_copy(update={"diagnosis": of.diagnosis, "resolution": name, "card": name})
    return made


def happened(text: str) -> list[Event]:
    name = human.line(text, 300)
    what = ["opened", "seen_again", "assigned", "commented", "closed", "triaged"]
    return [Event(n=n, ticket="7", revision=n, what=w, by=name, at=AT, detail=name) for n, w in enumerate(what, 1)]


def fired(text: str) -> list[Alert]:
    name = human.line(text, 300)
    return [Alert(key="k", fingerprint="f", status="firing", labels={"alertname": name, name: name}, starts=1.7e9)]


def page(text: str, lang: Lang, diagnosed: bool = False) -> str:
    return ticket_markdown(ticket(text, diagnosed), lang, load_causes(), happened(text), fired(text))


def structure(text: str) -> list[str]:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    found = []
    for token in tokens:
        found.append(token.type)
        found += [child.type for child in token.children or () if child.type not in ("text", "code_inline")]
    return found


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("diagnosed", [False, True])
@pytest.mark.parametrize("case", range(len(HOSTILE)))
def test_hostile_text_changes_no_page(case: int, diagnosed: bool, lang: Lang) -> None:
    shown = page(HOSTILE[case], lang, diagnosed)
    assert structure(shown) == structure(page("plain", lang, diagnosed))
    assert all(line.isprintable() for line in shown.split("\n"))
    for token in MarkdownIt("commonmark").parse(shown):
        for child in token.children or ():
            if child.type == "text":  # forges link addresses, names and numbers outside of code
                assert not re.search(r"://|www\.|@\w|#\d|~\w|<!|evil|\{\{", child.content), child.content
        if token.type == "fence":
            assert token.info == "text"
    terminal = tickets_text([line(HOSTILE[case])], 0, lang) + history_text(happened(HOSTILE[case]), lang)
    assert all(row.isprintable() for row in terminal.split("\n"))
    assert len(terminal.split("\n")) == 1 + len(happened("x"))


def line(text: str) -> Line:
    name = human.line(text, 200)
    return Line(
        id="7",
        state="open",
        severity=Severity.MINOR,
        category=name,
        component=name,
        origin="alert",
        created=AT,
        updated=AT,
        revision=1,
        occurrences=3,
        title=name,
        assignee=name,
    )


@pytest.mark.parametrize("lang", LANGS)
def test_words_of_people_stand_apart_from_what_whystall_made(lang: Lang) -> None:
    said = words(lang)["tickets"]
    text = "the loss of packets began\nwith the new switch"
    shown = page(text, lang)
    sections = dict(re.findall(r"^## (.+)\n\n((?:(?!^## ).*\n)*)", shown, re.MULTILINE))
    block = f"```text\n{text}\n```"
    assert block in sections[said["reported"]]
    assert said["reported_note"] in sections[said["reported"]]
    assert block in sections[said["comments"]]
    for name in (said["analysis"], said["decided"]):
        assert "```" not in sections[name]
    assert said["analysis_note"] in sections[said["analysis"]]


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("origin", ["diagnosis", "alert", "work_order", "person"])
def test_a_ticket_page_shows_decisions_and_assignment(origin: str, lang: Lang) -> None:
    shown = ticket_markdown(ticket("nccl", origin=origin), lang, load_causes(), [])
    said = words(lang)["tickets"]
    assert said["origins"][origin] in shown
    for code in ("**{}**".format(words(lang)["severities"]["major"]), "50 %", "`nccl`", said["not_looked"]):
        assert code in shown
    assert load_causes()["slow_link"].title.get(lang) in shown
    assert said["rule"]["person"].format("`nccl`") in shown
    assert said["why"]["rotation"].format("`nccl`") in shown
    assert (CJK.search(re.sub(r"`[^`]*`", "", shown)) is not None) == (lang == "zh")


@pytest.mark.parametrize("lang", LANGS)
def test_a_bare_ticket_shows_what_is_unknown(lang: Lang) -> None:
    bare = Ticket(
        id="7",
        created=AT,
        updated=AT,
        origin="person",
        dedup_key="2:x",
        severity=Severity.MINOR,
        category="unknown",
        component="unknown",
    )
    shown = ticket_markdown(bare, lang, load_causes(), [])
    said = words(lang)["tickets"]
    assert said["untitled"] in shown.splitlines()[0]
    assert said["not_assigned"] in shown
    assert words(lang)["labels"]["no_match"] in shown
    assert "tickets attach 7" in shown
    for absent in (
        said["reported"],
        said["decided"],
        said["comments"],
        said["history"],
        words(lang)["labels"]["verify"],
    ):
        assert f"## {absent}" not in shown
    nobody = bare.model_copy(update={"assignment": Assignment(rule="none", at=AT)})
    assert said["nobody"] in ticket_markdown(nobody, lang, load_causes())
    assert "None" not in shown


def test_a_diagnosis_takes_the_place_of_what_was_guessed() -> None:
    shown = page("nccl", "en", diagnosed=True)
    assert "- Diagnosis: Synchronous checkpoint write" in shown
    assert "## What happens" in shown
    assert "The observation failed" not in shown
    assert "Likely cause" not in shown


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.HEALTHY])
def test_a_diagnosis_without_cause_keeps_the_suspected_one_with_a_note(verdict: Verdict) -> None:
    looked = checkpoint(cause=None, culprit=None, verdict=verdict)
    shown = ticket_markdown(ticket("nccl").model_copy(update={"diagnosis": looked}), "en", load_causes())
    guess = next(row for row in shown.split("\n") if row.startswith("- Likely cause"))
    assert "the diagnosis does not show it" in guess
    assert ("Stall without a known cause" in shown) == (verdict is Verdict.INCONCLUSIVE)


def test_comments_and_history_are_not_sent_to_trackers() -> None:
    shown = ticket_markdown(ticket("nccl"), "en", load_causes())
    assert "## Comments" not in shown
    assert "## History" not in shown
    assert "## As reported" in shown


def test_the_history_has_texts_and_merges_repetitions() -> None:
    def event(n: int, what: str, detail: str = "") -> Event:
        return Event.model_validate(
            {"n": n, "ticket": "7", "revision": n, "what": what, "by": "ann", "at": AT, "detail": detail}
        )

    events = [event(1, "opened"), *(event(n, "seen_again") for n in range(2, 50))]
    events += [event(50, "closed", "duplicate:3"), event(51, "unlinked", "duplicated_by:8")]
    events += [
        event(52, "closed", "wont_fix: too: old"),
        event(53, "triaged", "no_process pod"),
        event(54, "closed", "x"),
    ]
    assert history_text(events, "zh").split("\n") == [
        f"{AT} 创建：ann",
        f"再次出现：48 次，从 {AT} 到 {AT}",
        f"{AT} 已关闭：ann；与工单 3 重复",
        f"{AT} 取消关联：ann；工单 8 与本工单重复",
        f'{AT} 已关闭：ann；不予修复："too: old"',
        f"{AT} 未作诊断：ann；本机上没有找到对应的进程，因此没有观测。",
        f"{AT} 已关闭：ann；x",
    ]


def test_pages_are_bounded_and_say_what_they_leave_out() -> None:
    said = [Comment(by="ann", at=AT, text=f"comment {n}") for n in range(COMMENTS + 5)]
    many = ticket("nccl", labels={f"l{n}": "x" for n in range(LABELS + 7)}).model_copy(
        update={"human": Human(title="t", comments=said)}
    )
    events = [e.model_copy(update={"n": n, "what": "edited"}) for n, e in enumerate(happened("x") * 20)]
    shown = ticket_markdown(many, "en", load_causes(), events)
    assert "5 earlier ones are left out" in shown
    assert "comment 4\n" not in shown
    assert f"comment {COMMENTS + 4}\n" in shown
    assert "and 7 more" in shown
    assert f"{len(events) - EVENTS} earlier ones are left out" in shown
