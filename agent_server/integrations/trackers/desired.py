"""What a tracker should show of a ticket: the issue, and a comment with what happened. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.trackers.issue import Issue, Phase
from whystall.agent_server.integrations.trackers.text import digest, one_line
from whystall.agent_server.integrations.trackers.tracker import Tracker
from whystall.agent_server.presentation.texts import ticket_markdown
from whystall.agent_server.presentation.ticket_texts import history_markdown
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import LIVE, Comment, Event, Ticket
from whystall.prompts.escape import markdown, markdown_block, markdown_code
from whystall.prompts.render import fill, words

if TYPE_CHECKING:
    from whystall.agent_server.settings.sections.oncall import Person

_REPORTED = (
    "acknowledged",
    "resolved",
    "closed",
    "reopened",
    "assigned",
    "escalated",
    "diagnosed",
    "linked",
    "verified",
    "triaged",
)
_EVENT_LIMIT = 30
_COMMENT_LIMIT = 20


def phase_of(ticket: Ticket) -> Phase:
    """Return the state of `ticket` as trackers name it."""
    if ticket.state not in LIVE:
        return "over"
    return "acknowledged" if ticket.state == "acknowledged" else "open"


def text_of(ticket: Ticket, lang: Lang) -> tuple[str, str]:
    """Return title and Markdown of `ticket`; the Markdown's first line is the title."""
    first, _, rest = ticket_markdown(ticket, lang, load_causes()).partition("\n")
    title = ticket.human.title or re.sub(r"`+ ?| ?`+", "", first.removeprefix("# "))
    return one_line(title, 1000), f"**{first.removeprefix('# ').strip()}**\n{rest}" if rest else first


def issue_of(ticket: Ticket, tracker: Tracker, users: Mapping[str, Person], lang: Lang, marker: str) -> Issue:
    """Return the issue of `ticket` as it should be in `tracker`, with assignees by name."""
    title, text = text_of(ticket, lang)
    phase = phase_of(ticket)
    return Issue(
        title=one_line(tracker.format.title(title), tracker.title_limit),
        generated=text,
        digest=digest(text_of(ticket.model_copy(update={"updated": "", "remotes": []}), lang)[1]),
        marker=marker,
        labels=_labels(ticket, tracker, phase),
        assignees=_assignees(ticket, tracker.name, users),
        severity=ticket.severity,
        phase=phase,
        closed_as=ticket.closed_as,
    )


def comment_of(
    ticket: Ticket, events: Sequence[Event], comments: Sequence[Comment], sink: str, lang: Lang
) -> str | None:
    """Return `events` and people's `comments` as Markdown, without those that came from the tracker `sink`.

    None: nothing to report.
    """
    w = words(lang)["sinks"]
    own = f"sink:{sink}"
    reported = [e for e in events if e.what in _REPORTED and e.by != own and not e.by.startswith(f"{own}:")]
    blocks = ["\n".join(f"- {line}" for line in history_markdown(reported, lang, _EVENT_LIMIT))] if reported else []
    for comment in [c for c in comments if c.source != own][-_COMMENT_LIMIT:]:
        author = fill(markdown, w["says"], who=markdown_code(comment.by or "-"), source=markdown_code(comment.source))
        blocks.append(f"{author}\n\n{markdown_block(comment.text)}")
    if not blocks:
        return None
    return "\n\n".join([f"{fill(markdown, w['about'], ticket.id)}", *blocks])


def note_of(ticket: Ticket, lang: Lang) -> str:
    """Return the note at the end of a text that was cut."""
    return str(fill(markdown, words(lang)["sinks"]["cut"], ticket.id))


def _labels(ticket: Ticket, tracker: Tracker, phase: Phase) -> tuple[str, ...]:
    settings = tracker.settings
    labels = [*settings.labels]
    labels += [label for level, label in settings.severity_labels.items() if level == ticket.severity.value]
    if settings.category_label:
        labels.append(settings.category_label.replace("{}", ticket.category))
    if phase == "acknowledged" and tracker.acknowledged_label is not None:
        labels.append(tracker.acknowledged_label)
    return tuple(dict.fromkeys(label.replace(",", " ") for label in labels))


def _assignees(ticket: Ticket, name: str, users: Mapping[str, Person]) -> tuple[str, ...]:
    if ticket.assignment is None:
        return ()
    named = [users[user].trackers.get(name, "") for user in ticket.assignment.users if user in users]
    return tuple(dict.fromkeys(n for n in named if n))[:10]
