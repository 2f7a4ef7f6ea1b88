"""List firing alerts and silences as chat messages. Read-only, but blocking: call it in a thread.

Alerts of one name are one line however many there are, since a storm repeats one alert on many hosts; the worst
severity comes first.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from whystall.agent_server.integrations.alerts.related import SEVERITY_LABELS, severity_of, things_of
from whystall.agent_server.integrations.chat.answers import severities_of
from whystall.agent_server.integrations.chat.message_texts import clock, outgoing
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.journal.alerts import Alert
from whystall.agent_server.journal.silences import Silence, Silences
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.background import informativeness
from whystall.knowledge_base.models import Lang
from whystall.prompts.chat import name, say
from whystall.prompts.escape import Safe, markdown, short
from whystall.prompts.intents import intent_rules
from whystall.prompts.render import words
from whystall.prompts.topics import divided
from whystall.tools.contract.findings import Severity

WORD = re.compile(r"[A-Za-z0-9_](?:[\w./-]*[A-Za-z0-9_])?", re.ASCII)
"""A word that can be a name of a host, an alert or a job."""
_TELLING = 0.8
"""Least informativeness (`knowledge_base.background`) of a word that names an alert by a part of its name."""
_SHORT = 2
_NUMBER = re.compile(r"[\d.]+")
_SHOWN = 10
ALERT = "="
"""Before the name of an alert where lists hold numbers of tickets."""
_READ = 2000  # groups
_MOST = 20_000  # alerts
_TEXT = 120
_DESCRIPTION = 200
_PLACES = 3
_TICKETS = 3
_DESCRIPTIONS = ("description", "summary", "message")
# Labels that are no place and no name: a question that names their value means something else.
_GENERIC = frozenset({*SEVERITY_LABELS, "team", "env", "environment", "cluster", "prometheus", "receiver"})


@dataclass(frozen=True)
class Firing:
    """An alert that fires. `ticket`: the number of its ticket, else empty."""

    alert: Alert
    ticket: str

    @property
    def severity(self) -> Severity | None:
        """Return the sender's severity; None if it has none that is known."""
        return severity_of(self.alert.labels)

    @property
    def places(self) -> list[str]:
        """Return the host, pod or job that the alert concerns."""
        return [thing.partition(":")[2].strip("/") for thing in things_of(self.alert.labels)]

    @property
    def description(self) -> str:
        """Return what the sender wrote about it."""
        notes = self.alert.annotations
        return next((notes[note] for note in _DESCRIPTIONS if notes.get(note)), "")

    def values(self) -> set[str]:
        """Return what a message can name it by, in lower case: its name, its places and the values of its labels."""
        labels = {value for label, value in self.alert.labels.items() if label not in _GENERIC}
        return {_canonical(value) for value in (*labels, *self.places)}


@dataclass
class _Fold:
    """Alerts of one name, the worst first."""

    alerts: list[Firing] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return max(_rank(one) for one in self.alerts)


def firing(kb: Stores) -> list[Firing]:
    """Return the firing alerts, each once, the worst severity first and of these the oldest."""
    found: dict[str, Firing] = {}
    for group in kb.alerts.groups(_READ):
        numbers = [member.n for member in kb.alerts.members(group.id) if member.status == "firing"]
        for stored in kb.alerts.bodies(numbers):
            known = found.get(stored.alert.fingerprint)
            if known is None or (group.ticket and not known.ticket):
                found[stored.alert.fingerprint] = Firing(stored.alert, group.ticket or "")
        if len(found) >= _MOST:
            break
    return worst_first(found.values())


def worst_first(alerts: Iterable[Firing]) -> list[Firing]:
    """Return `alerts`, the worst severity first and of these the oldest."""
    return sorted(alerts, key=lambda one: (-_rank(one), one.alert.starts, one.places))


def named_alerts(alerts: Sequence[Firing], text: str) -> list[Firing]:
    """Return those of `alerts` that `text` names: by their name, host, pod, job or another label's value."""
    terms = terms_of(text)
    return [one for one in alerts if not terms.isdisjoint(one.values())]


def terms_of(text: str) -> set[str]:
    """Return the words of `text`, in lower case, that can be names; numbers alone are none."""
    stop = intent_rules().stop
    found = {word.casefold() for word in WORD.findall(unicodedata.normalize("NFKC", text))}
    return {_canonical(word) for word in found if len(word) > 1 and word not in stop and not _NUMBER.fullmatch(word)}


def _canonical(value: str) -> str:
    """Return a name without capitals and separators: people write gpu03 for gpu-03."""
    return re.sub(r"[-_]", "", value.casefold())


def chosen_alerts(alerts: Sequence[Firing], text: str) -> list[Firing]:
    """Return those of `alerts` that the question `text` names, of the severity in it or a worse one; else all."""
    least = min((severity.rank for severity in severities_of(text)), default=-1)
    chosen = named_alerts(alerts, text) or _called_alerts(alerts, text) or alerts
    return [one for one in chosen if _rank(one) >= least]


def _called_alerts(alerts: Sequence[Firing], text: str) -> list[Firing]:
    """Return those of `alerts` whose name has a rare word of `text`: NFS for NFSServerNotResponding."""
    asked = _parts(text)
    return [one for one in alerts if not asked.isdisjoint(_parts(divided(one.alert.name)))]


def _parts(text: str) -> set[str]:
    """Return the rare words of `text`, in lower case."""
    found = {word.casefold() for word in WORD.findall(unicodedata.normalize("NFKC", text))}
    return {word for word in found if len(word) > _SHORT and informativeness(word) >= _TELLING}


def alerts_message(kb: Stores, text: str, lang: Lang, now: datetime) -> Outgoing:
    """Return the firing alerts that the question `text` chooses; see `chosen_alerts`."""
    title = say(lang, "title.alerts")
    found = firing(kb)
    chosen = chosen_alerts(found, text)
    if not found:
        return outgoing(lang, [say(lang, "alerts.none")], title)
    if not chosen:
        return outgoing(lang, [say(lang, "alerts.none_of_severity", len(found))], title)
    return outgoing(lang, [_head(chosen, lang), *alert_lines(chosen, lang, now)], title)


def _head(alerts: Sequence[Firing], lang: Lang) -> Safe:
    """Return how many alerts fire, on how many hosts, by severity."""
    hosts = {thing for one in alerts for thing in things_of(one.alert.labels) if thing.startswith("node:")}
    counts = Counter(one.severity for one in alerts if one.severity is not None)
    known = words(lang)["severities"]
    shown = [f"{known[one.value]} {counts[one]}" for one in sorted(counts, key=lambda one: -one.rank)]
    return Safe(
        say(lang, "alerts.head", len(alerts))
        + (say(lang, "alerts.hosts", len(hosts)) if len(hosts) > 1 else say(lang, "alerts.host") if hosts else "")
        + (say(lang, "alerts.by_severity", Safe(_comma(lang).join(shown))) if len(counts) > 1 else "")
    )


def _folded(alerts: Sequence[Firing]) -> list[tuple[str, _Fold]]:
    """Return the alerts by name, the worst first."""
    folds: dict[str, _Fold] = {}
    for one in alerts:
        folds.setdefault(one.alert.name, _Fold()).alerts.append(one)
    return sorted(folds.items(), key=lambda item: -item[1].rank)


def listed_tickets(alerts: Sequence[Firing]) -> list[str]:
    """Return the ticket of each line of `alert_lines`; of a line without just one `ALERT` and the alerts' name."""
    found = [(fold, {one.ticket for one in fold.alerts if one.ticket}) for _, fold in _folded(alerts)[:_SHOWN]]
    return [min(held) if len(held) == 1 else f"{ALERT}{fold.alerts[0].alert.name}" for fold, held in found]


def alert_lines(alerts: Sequence[Firing], lang: Lang, now: datetime) -> list[str]:
    """Return a line per name of an alert, the worst first, at most `_SHOWN`, and how many names were left out."""
    ordered = _folded(alerts)
    lines = [f"- {_line(title, fold, lang, now)}" for title, fold in ordered[:_SHOWN]]
    if len(ordered) > _SHOWN:
        lines.append(f"- {say(lang, 'ticket.more', len(ordered) - _SHOWN)}")
    return lines


def _line(title: str, fold: _Fold, lang: Lang, now: datetime) -> Safe:
    first = fold.alerts[0]
    severity = first.severity
    places = list(dict.fromkeys(one.places[0] for one in fold.alerts if one.places))
    tickets = list(dict.fromkeys(one.ticket for one in fold.alerts if one.ticket))
    shown = [name(short(place, _TEXT)) for place in places[:_PLACES]]
    more = [say(lang, "ticket.more", len(places) - _PLACES)] if len(places) > _PLACES else []
    numbers = Safe(_comma(lang).join(say(lang, "ticket.bare", ticket) for ticket in tickets[:_TICKETS]))
    return say(
        lang,
        "alerts.line",
        alert=name(short(title or "-", _TEXT)),
        severity=say(lang, "alerts.severity", words(lang)["severities"][severity.value]) if severity else Safe(""),
        places=say(lang, "alerts.on", Safe(_comma(lang).join([*shown, *more]))) if shown else Safe(""),
        count=say(lang, "alerts.one") if len(fold.alerts) == 1 else say(lang, "alerts.count", len(fold.alerts)),
        since=at_time(min(one.alert.starts for one in fold.alerts), now),
        ticket=numbers or say(lang, "alerts.no_ticket"),
        what=say(lang, "alerts.what", markdown(short(first.description, _DESCRIPTION)))
        if first.description
        else Safe(""),
    )


def _rank(one: Firing) -> int:
    severity = one.severity
    return severity.rank if severity is not None else -1


def silences_message(silences: Silences, lang: Lang, now: datetime) -> Outgoing:
    """Return the active and pending silences."""
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
    begins = say(lang, "silences.begins", at_time(silence.starts, now)) if pending else Safe("")
    return say(
        lang,
        "silences.line",
        id=silence.id,
        matchers=Safe(_comma(lang).join(name(short(matcher, _TEXT)) for matcher in silence.matchers)),
        begins=begins,
        until=at_time(silence.ends, now),
        by=name(short(silence.by, _TEXT)),
        why=say(lang, "silences.why", short(silence.comment, _TEXT)) if silence.comment else Safe(""),
    )


def at_time(seconds: float, now: datetime) -> Safe:
    """Return Unix seconds as a time in the zone of `now`."""
    return Safe(clock(datetime.fromtimestamp(seconds, timezone.utc), now))


def _comma(lang: Lang) -> str:
    return str(words(lang)["marks"]["comma"])
