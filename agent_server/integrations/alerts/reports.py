"""What a group of alerts is told as: the report that a ticket is made of, and the message for chats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from whystall.agent_server.integrations.alerts.matchers import written
from whystall.agent_server.integrations.alerts.related import things_of
from whystall.knowledge_base.classify.report import TEXT_LIMIT, TITLE_LIMIT, Report
from whystall.knowledge_base.classify.severities import of_word
from whystall.knowledge_base.tickets.human import line, lines
from whystall.knowledge_base.tickets.models import Decision
from whystall.knowledge_base.times import rfc3339

if TYPE_CHECKING:
    from whystall.agent_server.integrations.alerts.receivers import Receiver
    from whystall.agent_server.integrations.messages import Outgoing
    from whystall.agent_server.journal.alerts import Group, Stored

What = Literal["first", "more", "repeat", "over", "flood"]
SHOWN = 20
"""Alerts of a group that are named one by one."""
_NAMES = 3
_ALIKE = 400  # characters of what tells one alert from the others
_SEVERITIES = ("severity", "priority", "level")


@dataclass
class Summary:
    """What the alerts of a group have in common, and some of them. Filled one alert after another, so that a group may
    hold any number.
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
        """One more alert."""
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
        if len(self.shown) < SHOWN:
            self.shown.append(stored)
        if len(self.things) < 200:
            self.things.update(dict.fromkeys(things_of(alert.labels)))
        self.cut = self.cut or bool(alert.cut)


def summary_of(alerts: Iterable[Stored]) -> Summary:
    """The summary of `alerts`."""
    found = Summary()
    for stored in alerts:
        found.add(stored)
    return found


def _worse(known: str, labels: Mapping[str, str]) -> str:
    """The worse of two severities, each as its sender calls it."""
    said = next((labels[name] for name in _SEVERITIES if name in labels), "")
    one, other = of_word(known) if known else None, of_word(said) if said else None
    if other is None:
        return known or said
    return said if one is None or other.rank > one.rank else known


# --- tickets ---------------------------------------------------------------------------------------------------------


def report(group: Group, receiver: Receiver, summary: Summary, now: datetime, key: str | None = None) -> Report:
    """The report of a group that fires. `key`: of the ticket that it is counted in, if that is known."""
    began = min(summary.starts or now.timestamp(), now.timestamp())
    return Report(
        origin="alert",
        title=title(group, summary, receiver.lang),
        description=_description(group, summary, receiver.lang),
        labels={**summary.common, **group.labels},
        source_severity=line(summary.severity, 100),
        given={name: Decision(value=value, by=f"rule:receiver:{receiver.name}") for name, value in receiver.given},
        dedup_key=key or f"2:group:{group.id}",
        created=rfc3339(datetime.fromtimestamp(began, now.tzinfo)),
        receiver=receiver.name,
        schedule=receiver.schedule,
        sinks=None if receiver.sinks is None else list(receiver.sinks),
    )


def flood_report(receiver: Receiver, summary: Summary, groups: int, now: datetime) -> Report:
    """The report that all groups of a flood share."""
    words = _words(receiver.lang)
    return Report(
        origin="alert",
        title=line(words["flood_title"].format(receiver.name), TITLE_LIMIT),
        description=lines(words["flood"].format(groups, receiver.name), TEXT_LIMIT),
        labels={"receiver": receiver.name},
        source_severity=line(summary.severity, 100),
        given={name: Decision(value=value, by=f"rule:receiver:{receiver.name}") for name, value in receiver.given},
        dedup_key=f"2:flood:{receiver.name}",
        created=rfc3339(now),
        receiver=receiver.name,
        schedule=receiver.schedule,
        sinks=None if receiver.sinks is None else list(receiver.sinks),
    )


def title(group: Group, summary: Summary, lang: str) -> str:
    """What a group is called: the names of its alerts, and what they say or have in common."""
    names = sorted((name for name in summary.names if name), key=lambda name: (-summary.names[name], name))
    shown = ", ".join(names[:_NAMES])
    if len(names) > _NAMES:
        shown = _words(lang)["many"].format(shown, len(names) - _NAMES)
    said = summary.notes.get("summary") or summary.notes.get("message") or _pairs(group.labels, ("alertname",))
    return line(": ".join(part for part in (shown, said) if part) or _words(lang)["nameless"], TITLE_LIMIT)


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
    return lines("\n".join(parts), TEXT_LIMIT)


def joined(fresh: Summary, truncated: int) -> str:
    """Alerts that join those of a ticket, for its history; `truncated`: of how many more they were sent without."""
    shown = named(fresh)[:_NAMES]
    left = fresh.count - len(shown)
    parts = [*shown, *([f"+{left}"] if left > 0 else []), *([f"truncatedAlerts: {truncated}"] if truncated else [])]
    return line("; ".join(parts), _ALIKE)


def named(summary: Summary) -> list[str]:
    """A line for each alert that is shown: its name, and the labels that tell it from the others."""
    found = []
    for stored in summary.shown:
        alert = stored.alert
        rest = {k: v for k, v in alert.labels.items() if summary.common.get(k) != v and k != "alertname"}
        pairs = _pairs(rest or {k: v for k, v in alert.labels.items() if k != "alertname"}, ())
        said = "" if "summary" in summary.notes else alert.annotations.get("summary", "")
        found.append(line(" ".join(part for part in (alert.name, pairs, said) if part), _ALIKE))
    return found


def _pairs(labels: Mapping[str, str], besides: tuple[str, ...]) -> str:
    return ", ".join(written(name, value) for name, value in sorted(labels.items())[:12] if name not in besides)


def _words(lang: str) -> dict[str, Any]:
    from whystall.prompts.render import words

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
    """What a chat is told of a group. `held`: alerts that are silenced or the like; `triage`: somebody looks now."""
    from whystall.agent_server.integrations.messages import Outgoing
    from whystall.prompts.render import render

    text = render(
        "alert_group.md",
        lang,
        what=what,
        title=title(group, summary, lang),
        receiver=group.receiver,
        count=summary.count,
        lines=named(summary)[:10],
        severity=summary.severity,
        held=held,
        truncated=group.truncated,
        ticket=ticket,
        triage=triage,
    )
    head = _words(lang)["heads"][what]
    return Outgoing(title=line(f"{head}: {title(group, summary, lang)}", 200), text=text, lang=lang)
