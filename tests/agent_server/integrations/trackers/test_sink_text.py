"""Text of strangers steers no tracker, wherever it stands; ours is found again between what people wrote."""

from __future__ import annotations

import random
import re

import pytest
from sink_scenes import TOKEN
from tracker import Tracker

from whystall.agent_server.integrations.trackers.desired import comment_of, issue_of
from whystall.agent_server.integrations.trackers.issue_sync import creation
from whystall.agent_server.integrations.trackers.registry import open_tracker
from whystall.agent_server.integrations.trackers.text import Markdown, Wiki, fitted, one_line, own_comment
from whystall.agent_server.settings.sections.trackers import GitHubSink, GitLabSink, JiraSink, TrackerSettings
from whystall.knowledge_base.ticket_models import Comment, Event, Human, Ticket
from whystall.knowledge_base.tickets import human
from whystall.tools.contract.findings import Severity

MARKER = "0123456789abcdef"
AT = "2026-01-01T00:00:00Z"
BITS = (
    *("@all", "@root ", "\n/close", "/assign @root", "\n/label ~x", "\n    /close", "\n> /close", "\n- /close"),
    *("`", "``", "```", "````", "\n```\n", "\n~~~\n", "<!--", "-->", "<b>", "</pre>", "[a](http://x)", "{noformat}"),
    *("{code}", "[~admin]", "\n", "\n\n", "\r", "\u2028", "\x0b", " ", "x", "*", "_", "#1", "!2", "\\", "|", "{{7*7}}"),
)
SINKS: dict[str, TrackerSettings] = {
    "github": GitHubSink.model_validate({"kind": "github", "repository": "a/b", "token": {"env": "SINK_TOKEN"}}),
    "gitlab": GitLabSink.model_validate({"kind": "gitlab", "project": "demo/training", "token": {"env": "SINK_TOKEN"}}),
    "jira": JiraSink.model_validate(
        {"kind": "jira", "url": "https://j.test", "project": "OPS", "token": {"env": "SINK_TOKEN"}}
    ),
}


def junk(rng: random.Random, most: int = 25) -> str:
    return "".join(rng.choice(BITS) for _ in range(rng.randint(1, most)))


def hostile(rng: random.Random) -> Ticket:
    """A ticket that a stranger wrote wherever one can."""
    return Ticket(
        id="7",
        created=AT,
        updated=AT,
        origin="alert",
        state="resolved",
        dedup_key="2:x",
        severity=Severity.MAJOR,
        category="storage",
        component=human.line(junk(rng), 60),
        labels={human.line(junk(rng, 6), 60): human.line(junk(rng), 200) for _ in range(3)},
        resolution=human.line(junk(rng), 500),
        human=Human(title=human.line(junk(rng), 300), description=human.lines(junk(rng, 60), 8000)),
    )


def said(rng: random.Random, ticket: Ticket, sink: str) -> str:
    """What a comment says of it."""
    by, detail = human.line(junk(rng), 60), human.line(junk(rng), 300)
    events = [Event(n=1, ticket="7", revision=2, what="resolved", by=by, at=AT, detail=detail)]
    comments = [Comment(by=by, at=AT, text=human.lines(junk(rng, 60), 4000), source="cli")]
    text = comment_of(ticket, events, comments, sink, "en")
    assert text is not None
    return text


@pytest.mark.parametrize("kind", SINKS)
def test_nothing_a_stranger_writes_steers_a_tracker(kind: str) -> None:
    rng, settings = random.Random(7), SINKS[kind]
    tracker = open_tracker("s", settings)
    for _ in range(60):
        ticket = hostile(rng)
        issue = issue_of(ticket, tracker, {}, "en", MARKER)
        request = creation(tracker, issue, "cut", set())
        text = tracker.format.part(issue.generated, MARKER, tracker.format.limit, "cut")
        comment = tracker.format.comment(said(rng, ticket, "s"), MARKER, 3, tracker.comment_limit, "cut")
        assert own_comment(comment) == (MARKER, 3)
        merged = tracker.format.merged(f"before\n{text}\nafter", issue.generated + "\nmore", MARKER, "cut")
        assert merged is not None
        assert merged.startswith("before\n")
        assert merged.endswith("\nafter")
        assert merged.count(MARKER) == 2
        if kind == "jira":
            assert len(re.findall(r"\{(noformat|code)[:}]", text + comment, re.IGNORECASE)) == 4
            continue
        vendor = Tracker(TOKEN)
        if kind == "gitlab":
            headers = {name.lower(): value for name, value in request.headers.items()}
            target = request.url.removeprefix("https://gitlab.com")
            assert vendor.answer("POST", target, headers, request.body)[0] == 201
        else:
            vendor._create({"title": issue.title, "description": text})
        vendor._note(vendor.issues[0], "whystall-bot", comment)
        if kind == "gitlab":
            assert (vendor.issues[0].actions, vendor.issues[0].state) == ([], "opened")
        assert vendor.issues[0].mentions == []


def test_whose_comment_it_is() -> None:
    ours = Markdown(1000, actions=True).comment("done", MARKER, 12, 1000, "cut")
    assert own_comment(ours) == (MARKER, 12)
    assert own_comment(ours.replace("\n", "\r\n") + " \n") == (MARKER, 12)
    assert own_comment(Wiki(1000).comment("done", MARKER, 12, 1000, "cut")) == (MARKER, 12)
    quoted = "\n".join(f"> {line}" for line in ours.split("\n"))
    for text in ("", "done", quoted, f"{ours}\nyes", f"see <!-- whystall {MARKER} said 12 -->", "x" * 100_000):
        assert own_comment(text) is None


def test_our_part_is_found_as_trackers_give_it_back() -> None:
    wiki = Wiki(5000)
    text = wiki.part("one", MARKER, 5000, "cut")
    back = text.replace("{noformat}", "{code:java|title=x}", 1).replace("{noformat}", "{code}").replace("\n", "\r\n")
    assert wiki.merged(f"{back}\r\nbelow", "two", MARKER, "cut") == f"{wiki.part('two', MARKER, 5000, 'cut')}\nbelow"
    markdown = Markdown(5000, actions=False)
    assert markdown.merged("nothing of ours", "two", MARKER, "cut") is None
    assert markdown.merged(markdown.part("one", "f" * 16, 5000, "cut"), "two", MARKER, "cut") is None


@pytest.mark.parametrize("limit", [0, 5, 30, 200, 1000])
def test_what_is_too_long_is_cut_between_lines(limit: int) -> None:
    text = "\n".join(f"line {n}" for n in range(50))
    cut = fitted(text, limit, "and more")
    assert len(cut) <= limit
    kept = cut.removesuffix("and more").strip().split("\n")
    assert limit < 30 or limit > 500 or (cut.endswith("and more") and text.startswith("\n".join(kept) + "\n"))


def test_titles() -> None:
    assert one_line("a\n b\tc" + "d" * 50, 10) == "a b cdd..."
    markdown = Markdown(1000, actions=True)
    assert markdown.title("@all: #12 is 100 % ~x a@b") == "@\u2060all: #\u206012 is 100 % ~\u2060x a@\u2060b"
