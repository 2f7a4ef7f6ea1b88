"""Describe a group of alerts: the report for its ticket and the message for chats."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from whystall.agent_server.integrations.alerts.checks import check_lines, check_of
from whystall.agent_server.integrations.alerts.matchers import format_matcher
from whystall.agent_server.integrations.alerts.receivers import Receiver
from whystall.agent_server.integrations.alerts.related import (
    hosts_of,
    other_hosts,
    severity_of,
    severity_word,
    things_of,
)
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.journal.alerts import Group, Stored
from whystall.agent_server.presentation.xid_lines import xid_lines
from whystall.agent_server.ticketing.stall_tickets import is_alert_on_stall
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.classify.report import TEXT_LIMIT, TITLE_LIMIT, Given, Report
from whystall.knowledge_base.classify.severities import severity_of_word
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import Decision
from whystall.knowledge_base.tickets.human import line, lines
from whystall.knowledge_base.times import rfc3339
from whystall.prompts.render import render, words

What = Literal["first", "more", "repeat", "over", "flood"]
SHOWN = 20
"""Maximum alerts of a group that are listed."""
_NAMES = 3
_LIKELY = 0.7  # as of a diagnosis (knowledge_base/classify/classifier.py)
_LINE = 400  # characters of a listed alert
_ABOUT = 600  # of the description in a message


@dataclass
class Summary:
    """What the alerts of a group have in common, and `SHOWN` of them, the worst severity first.

    It is filled one alert at a time, so that its size does not grow with the group.
    """

    count: int = 0
    names: dict[str, int] = field(default_factory=dict)
    common: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    severity: str = ""
    starts: float | None = None
    shown: list[Stored] = field(default_factory=list)
    things: dict[str, None] = field(default_factory=dict)
    cut: bool = False

    def add(self, stored: Stored) -> None:
        alert = stored.alert
        if self.count:
            self.common = {k: v for k, v in self.common.items() if alert.labels.get(k) == v}
            self.notes = {k: v for k, v in self.notes.items() if alert.annotations.get(k) == v}
        else:
            self.common, self.notes = dict(alert.labels), dict(alert.annotations)
        self.count += 1
        if alert.name in self.names or len(self.names) < 1000:
            self.names[alert.name] = self.names.get(alert.name, 0) + 1
        self.severity = _worse(self.severity, alert.labels)
        self.starts = alert.starts if self.starts is None else min(self.starts, alert.starts)
        insort(self.shown, stored, key=lambda one: -_rank(one.alert.labels))  # of equal ones the earlier first
        del self.shown[SHOWN:]
        if len(self.things) < 200:
            self.things.update(dict.fromkeys(things_of(alert.labels)))
        self.cut = self.cut or bool(alert.cut)


def summary_of(alerts: Iterable[Stored]) -> Summary:
    summary = Summary()
    for stored in alerts:
        summary.add(stored)
    return summary


def _rank(labels: Mapping[str, str]) -> int:
    severity = severity_of(labels)
    return severity.rank if severity is not None else -1


def _worse(known: str, labels: Mapping[str, str]) -> str:
    """Return the worse of `known` and the severity in `labels`, in the sender's words."""
    word, other = severity_word(labels), severity_of(labels)
    one = severity_of_word(known) if known else None
    if other is None:
        return known or word
    return word if one is None or other.rank > one.rank else known


# --- tickets ---------------------------------------------------------------------------------------------------------


def report(group: Group, receiver: Receiver, summary: Summary, now: datetime, key: str | None = None) -> Report:
    """Return the report of a firing group. `key`: deduplication key of the ticket that it already has."""
    began = min(summary.starts or now.timestamp(), now.timestamp())
    heading, text = title(group, summary, receiver.lang or "en"), _description(group, summary, receiver.lang or "en")
    known: Lang = "zh" if receiver.lang == "zh" else "en"
    advice = check_lines(check_of(summary.names, _stated(summary)), hosts_of(summary.things), known)
    labels = {**summary.common, **group.labels}
    started = datetime.fromtimestamp(began, now.tzinfo)
    made = _report(receiver, summary, heading, text, labels, key or f"2:group:{group.id}", started)
    return made.model_copy(update={"advice": lines("\n".join(advice), TEXT_LIMIT)})


def _of_cause(labels: Mapping[str, str]) -> dict[Given, Decision]:
    """Return what follows from the cause that an alert on a stall names: the watcher's, which is at least likely."""
    cause = load_causes().get(labels.get("cause", "")) if is_alert_on_stall(labels) else None
    if cause is None or cause.category == "none":
        return {}
    given: dict[Given, str] = {"category": cause.category, "component": cause.component, "cause": cause.id}
    return {name: Decision(value=value, by="label:cause", confidence=_LIKELY) for name, value in given.items()}


def flood_report(receiver: Receiver, summary: Summary, groups: int, now: datetime) -> Report:
    """Return the report that all groups of a flood share."""
    words = _words(receiver.lang or "en")
    heading = line(words["flood_title"].format(receiver.name), TITLE_LIMIT)
    text = lines(words["flood"].format(groups, receiver.name), TEXT_LIMIT)
    labels = {"receiver": receiver.name}
    return _report(receiver, summary, heading, text, labels, f"2:flood:{receiver.name}", now)


def _report(
    receiver: Receiver, summary: Summary, heading: str, text: str, labels: dict[str, str], key: str, started: datetime
) -> Report:
    return Report(
        origin="alert",
        title=heading,
        description=text,
        labels=labels,
        source_severity=line(summary.severity, 100),
        given={
            **_of_cause(labels),
            **{name: Decision(value=value, by=f"rule:receiver:{receiver.name}") for name, value in receiver.given},
        },
        dedup_key=key,
        created=rfc3339(started),
        receiver=receiver.name,
        schedule=receiver.schedule,
        sinks=None if receiver.sinks is None else list(receiver.sinks),
    )


def title(group: Group, summary: Summary, lang: str) -> str:
    """Return the names of a group's alerts and their common summary, or the labels of the group."""
    names = sorted((name for name in summary.names if name), key=lambda name: (-summary.names[name], name))
    shown = ", ".join(names[:_NAMES])
    if len(names) > _NAMES:
        shown = _words(lang)["many"].format(shown, len(names) - _NAMES)
    text = summary.notes.get("summary") or summary.notes.get("message") or _pairs(group.labels, ("alertname",))
    return line(": ".join(part for part in (shown, text) if part) or _words(lang)["nameless"], TITLE_LIMIT)


def _description(group: Group, summary: Summary, lang: str) -> str:
    words = _words(lang)
    parts = [
        summary.notes[name] for name in ("summary", "message", "description", "runbook_url") if name in summary.notes
    ]
    parts += [words["listed"].format(summary.count), *(f"- {text}" for text in named(summary))]
    if summary.count > len(summary.shown):
        parts.append(words["more"].format(summary.count - len(summary.shown)))
    if group.truncated:
        parts.append(words["truncated"].format(group.truncated))
    if summary.cut:
        parts.append(words["cut"])
    parts += xid_lines(_stated(summary), "zh" if lang == "zh" else "en")
    return lines("\n".join(parts), TEXT_LIMIT)


def _stated(summary: Summary) -> str:
    """Return what the alerts say of themselves, in which an Xid may be named."""
    found = [*summary.notes.values(), *(f"{key}={value}" for key, value in summary.common.items())]
    for stored in summary.shown:
        found += [stored.alert.name, *stored.alert.annotations.values()]
        found += [f"{key}={value}" for key, value in stored.alert.labels.items()]
    return "; ".join(found)


def joined(new: Summary, truncated: int) -> str:
    """Return a line for the history of a ticket that `new` alerts join; `truncated`: left out by the sender."""
    shown = named(new)[:_NAMES]
    more = new.count - len(shown)
    parts = [*shown, *([f"+{more}"] if more > 0 else []), *([f"truncatedAlerts: {truncated}"] if truncated else [])]
    return line("; ".join(parts), _LINE)


def named(summary: Summary) -> list[str]:
    """Return a line per listed alert: its name, the labels that distinguish it, and its summary."""
    found = []
    for stored in summary.shown:
        alert = stored.alert
        rest = {k: v for k, v in alert.labels.items() if summary.common.get(k) != v and k != "alertname"}
        pairs = _pairs(rest or {k: v for k, v in alert.labels.items() if k != "alertname"}, ())
        text = "" if "summary" in summary.notes else alert.annotations.get("summary", "")
        found.append(line(" ".join(part for part in (alert.name, pairs, text) if part), _LINE))
    return found


def about(summary: Summary) -> str:
    """Return the description that the alerts share, else that of the worst one; empty if the title has it."""
    first = summary.shown[0].alert.annotations if summary.shown else {}
    text = summary.notes.get("description") or first.get("description") or first.get("message", "")
    return "" if text in (summary.notes.get("summary"), summary.notes.get("message")) else line(text, _ABOUT)


def _pairs(labels: Mapping[str, str], besides: tuple[str, ...]) -> str:
    return ", ".join(format_matcher(name, value) for name, value in sorted(labels.items())[:12] if name not in besides)


def _words(lang: str) -> dict[str, Any]:
    found: dict[str, Any] = words(lang)["alerts"]
    return found


# --- chats -----------------------------------------------------------------------------------------------------------


def message(
    what: What,
    group: Group,
    summary: Summary,
    lang: Literal["en", "zh"],
    *,
    held: int = 0,
    ticket: str | None = None,
    triage: bool = False,
) -> Outgoing:
    """Return the chat message about a group. `held`: number of muted alerts; `triage`: a diagnosis was started."""
    text = render(
        "alert_group.md",
        lang,
        what=what,
        title=title(group, summary, lang),
        receiver=group.receiver,
        count=summary.count,
        about=about(summary),
        lines=named(summary)[:10],
        severity=summary.severity,
        held=held,
        truncated=group.truncated,
        ticket=ticket,
        triage=triage,
        advice=xid_lines(_stated(summary), lang) if what in ("first", "more") else [],
        elsewhere=other_hosts(summary.things)[:_NAMES] if what in ("first", "more") and not triage else [],
    )
    head = _words(lang)["heads"][what]
    return Outgoing(title=line(f"{head}: {title(group, summary, lang)}", 200), text=text, lang=lang)
