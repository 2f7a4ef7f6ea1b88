"""What a tracker shall show of a ticket: the issue, and what happened as a comment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.trackers.issue import Issue, Phase
from whystall.agent_server.integrations.trackers.text import digest, one_line, quiet_title
from whystall.agent_server.presentation.texts import ticket_markdown
from whystall.agent_server.presentation.ticket_texts import history_markdown
from whystall.agent_server.settings.sections.trackers import JiraSink, TrackerSettings
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.tickets.models import LIVE, Comment, Event, Ticket
from whystall.prompts.escape import markdown, markdown_block, markdown_code
from whystall.prompts.render import fill, words

if TYPE_CHECKING:
    from whystall.agent_server.settings.sections.oncall import Person

_TOLD = (
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
_LINES = 30
_COMMENTS = 20


def phase_of(ticket: Ticket) -> Phase:
    """The state of `ticket` as trackers know it."""
    if ticket.state not in LIVE:
        return "over"
    return "acknowledged" if ticket.state == "acknowledged" else "open"


def text_of(ticket: Ticket, lang: Lang) -> tuple[str, str]:
    """Title and Markdown of `ticket`; the first line of it is the title."""
    first, _, rest = ticket_markdown(ticket, lang, load_causes()).partition("\n")
    title = ticket.human.title or re.sub(r"`+ ?| ?`+", "", first.removeprefix("# "))
    return one_line(title, 1000), f"**{first.removeprefix('# ').strip()}**\n{rest}" if rest else first


def issue_of(
    ticket: Ticket,
    name: str,
    settings: TrackerSettings,
    users: Mapping[str, Person],
    lang: Lang,
    marker: str,
    limit: int,
) -> Issue:
    """What the issue of `ticket` in the tracker `name` shall be, with a title of at most `limit` characters."""
    title, text = text_of(ticket, lang)
    phase = phase_of(ticket)
    return Issue(
        title=one_line(title if isinstance(settings, JiraSink) else quiet_title(title), limit),
        generated=text,
        digest=digest(text_of(ticket.model_copy(update={"updated": "", "remotes": []}), lang)[1]),
        marker=marker,
        labels=_labels(ticket, settings, phase),
        assignees=_assignees(ticket, name, users),
        severity=ticket.severity,
        phase=phase,
        closed_as=ticket.closed_as,
    )


def comment_of(ticket: Ticket, events: Sequence[Event], said: Sequence[Comment], sink: str, lang: Lang) -> str | None:
    """What happened to `ticket` and what people said, as Markdown; None where there is nothing to tell.

    What came from the tracker `sink` itself is not told it.
    """
    w = words(lang)["sinks"]
    own = f"sink:{sink}"
    told = [event for event in events if event.what in _TOLD and event.by != own and not event.by.startswith(f"{own}:")]
    blocks = ["\n".join(f"- {line}" for line in history_markdown(told, lang, _LINES))] if told else []
    for comment in [c for c in said if c.source != own][-_COMMENTS:]:
        who = fill(markdown, w["says"], who=markdown_code(comment.by or "-"), source=markdown_code(comment.source))
        blocks.append(f"{who}\n\n{markdown_block(comment.text)}")
    if not blocks:
        return None
    return "\n\n".join([f"{fill(markdown, w['about'], ticket.id)}", *blocks])


def note_of(ticket: Ticket, lang: Lang) -> str:
    """What is said where a ticket's text was too long for a tracker."""
    return str(fill(markdown, words(lang)["sinks"]["cut"], ticket.id))


def _labels(ticket: Ticket, settings: TrackerSettings, phase: Phase) -> tuple[str, ...]:
    labels = [*settings.labels]
    labels += [label for level, label in settings.severity_labels.items() if level == ticket.severity.value]
    if settings.category_label:
        labels.append(settings.category_label.replace("{}", ticket.category))
    if phase == "acknowledged" and not isinstance(settings, JiraSink):  # whose workflow has a state for it
        labels.append(settings.acknowledged_label)
    return tuple(dict.fromkeys(label.replace(",", " ") for label in labels))


def _assignees(ticket: Ticket, name: str, users: Mapping[str, Person]) -> tuple[str, ...]:
    if ticket.assignment is None:
        return ()
    named = [users[user].trackers.get(name, "") for user in ticket.assignment.users if user in users]
    return tuple(dict.fromkeys(n for n in named if n))[:10]
