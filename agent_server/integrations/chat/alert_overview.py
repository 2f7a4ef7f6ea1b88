"""List firing alerts and silences as chat messages. Read-only, but blocking: call it in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from whystall.agent_server.integrations.chat.answers import clock
from whystall.agent_server.integrations.chat.message_texts import outgoing
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.journal.alerts import Alerts, Group
from whystall.agent_server.journal.silences import Silence, Silences
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.models import Lang
from whystall.prompts.chat import name, say
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import words

_SHOWN = 10
_READ = 200
_TEXT = 120
_LABELS = 4


def overview(kb: Stores, what: str, lang: Lang, now: datetime) -> Outgoing:
    """Return the firing ``alerts`` by group, or the active and pending ``silences``."""
    return _alerts(kb.alerts, lang) if what == "alerts" else _silences(kb.silences, lang, now)


def _alerts(alerts: Alerts, lang: Lang) -> Outgoing:
    title = say(lang, "title.alerts")
    count = alerts.counts()["firing"]
    if not count:
        return outgoing(lang, [say(lang, "alerts.none")], title)
    firing = [
        (group, fires)
        for group in alerts.groups(_READ)
        if (fires := sum(member.status == "firing" for member in alerts.members(group.id)))
    ]
    lines: list[str] = [say(lang, "alerts.head", count)]
    lines += [f"- {_line(group, fires, lang)}" for group, fires in firing[:_SHOWN]]
    if len(firing) > _SHOWN:
        lines.append(f"- {say(lang, 'ticket.more', len(firing) - _SHOWN)}")
    return outgoing(lang, lines, title)


def _line(group: Group, fires: int, lang: Lang) -> Safe:
    labels = [f"{label}={short(value, _TEXT)}" for label, value in group.labels.items() if label != "alertname"]
    ticket = say(lang, "ticket.bare", group.ticket) if group.ticket else say(lang, "alerts.no_ticket")
    return say(
        lang,
        "alerts.line",
        alert=name(short(group.labels.get("alertname") or group.receiver, _TEXT)),
        labels=Safe(f" {_all(labels[:_LABELS], lang)}" if labels else ""),
        count=say(lang, "alerts.one") if fires == 1 else say(lang, "alerts.count", fires),
        ticket=ticket,
    )


def _silences(silences: Silences, lang: Lang, now: datetime) -> Outgoing:
    title = say(lang, "title.silences")
    found = silences.list(now.timestamp())
    if not found:
        return outgoing(lang, [say(lang, "silences.none")], title)
    lines: list[str] = [f"- {_silence(silence, lang, now)}" for silence in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"- {say(lang, 'ticket.more', len(found) - _SHOWN)}")
    return outgoing(lang, lines, title)


def _silence(silence: Silence, lang: Lang, now: datetime) -> Safe:
    pending = silence.state(now.timestamp()) == "pending"
    begins = say(lang, "silences.begins", _at(silence.starts, now)) if pending else Safe("")
    return say(
        lang,
        "silences.line",
        id=silence.id,
        matchers=_all([short(matcher, _TEXT) for matcher in silence.matchers], lang),
        begins=begins,
        until=_at(silence.ends, now),
        by=name(short(silence.by, _TEXT)),
        why=say(lang, "silences.why", short(silence.comment, _TEXT)) if silence.comment else Safe(""),
    )


def _at(seconds: float, now: datetime) -> Safe:
    return Safe(clock(datetime.fromtimestamp(seconds, timezone.utc), now))


def _all(texts: Sequence[str], lang: Lang) -> Safe:
    return Safe(str(words(lang)["marks"]["comma"]).join(name(text) for text in texts))
