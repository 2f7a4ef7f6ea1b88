"""The parts of a ticket besides its diagnosis: decisions, assignment, analysis, comments, history.

Texts of people and other programs are in blocks and code spans.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from whystall.agent_server.presentation.match_lines import command
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Cause, Lang
from whystall.knowledge_base.ticket_models import Assignment, Decision, Event, Line, Ticket
from whystall.knowledge_base.times import rfc3339
from whystall.prompts.escape import Safe, markdown_block, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, render, voice, words

if TYPE_CHECKING:
    from whystall.agent_server.journal.alerts import Alert

LABELS, LINKS, COMMENTS, EVENTS, ALERTS = 40, 40, 30, 60, 20
_CODES = 6
_VALUE = 200


def ticket_context(
    ticket: Ticket,
    causes: Mapping[str, Cause],
    lang: Lang,
    events: Sequence[Event] | None,
    alerts: Sequence[Alert] = (),
) -> dict[str, Any]:
    """Return the template context of everything but the diagnosis. `events`: its history; None omits history and
    comments, for readers that have both elsewhere. `alerts`: its alerts, latest first.
    """
    texts = _TicketTexts("md", lang)
    return {
        "state": texts.state(ticket),
        "category": texts.category(ticket.category),
        "component": texts.component(ticket.component),
        "assigned": texts.assigned(ticket.assignment),
        "decisions": texts.decisions(ticket, causes),
        "reported": texts.reported(ticket),
        "labels": texts.labels(ticket.labels),
        "alerts": texts.alerts(ticket, alerts),
        "analysis": texts.analysis(ticket),
        "prose": texts.prose(ticket),
        "prose_by": texts.prose_by(ticket),
        "links": texts.links(ticket),
        "trackers": texts.trackers(ticket),
        "comments": texts.comments(ticket) if events is not None else [],
        "history": texts.history(events or []),
    }


def tickets_text(lines: Sequence[Line], left: int, lang: Lang) -> str:
    """Return one line per ticket; `left`: how many more there are."""
    texts = _TicketTexts("txt", lang)
    rows = _aligned([texts.line(line) for line in lines])
    return render("tickets.txt", lang, lines=rows, left=left)


def _aligned(rows: Sequence[Sequence[Safe]]) -> list[Safe]:
    """Return `rows` with aligned columns; the last column is not padded."""
    widths = [max(map(_width, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    padded = (
        [f"{cell}{' ' * (width - _width(cell))}" for cell, width in zip(row[:-1], widths, strict=True)] + [row[-1]]
        for row in rows
    )
    return [Safe("  ".join(cells)) for cells in padded]


def _width(text: str) -> int:
    """Return the width of `text` on a terminal, where Chinese characters take two cells."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def history_text(events: Sequence[Event], lang: Lang) -> str:
    """Return the whole history of a ticket for a terminal."""
    return "\n".join(_TicketTexts("txt", lang).history(events, len(events)))


def history_markdown(events: Sequence[Event], lang: Lang, most: int = EVENTS) -> Sequence[str]:
    """Return the latest `most` lines of a history as Markdown."""
    return _TicketTexts("md", lang).history(events, most)


def assigned_markdown(given: Assignment, lang: Lang) -> Safe:
    """Return the assignee of a ticket and the reason as a line of Markdown."""
    return _TicketTexts("md", lang).assigned(given)


class _TicketTexts:
    """Formats parts of tickets in one language and format."""

    def __init__(self, suffix: str, lang: Lang) -> None:
        self._lang: Lang = lang
        self._words: Mapping[str, Any] = words(lang)
        self._own: dict[str, Any] = self._words["tickets"]
        self._format = FORMATS[suffix]
        self._voice = voice(suffix, lang)
        marks = self._words["marks"]
        self._comma, self._colon, self._semicolon = marks["comma"], marks["colon"], marks["semicolon"]

    def line(self, line: Line) -> list[Safe]:
        """Return the cells of a row; cells of fixed width first."""
        known = [name for name in (line.category, line.component) if name != "unknown"]
        cells = [
            Safe(line.id),
            self._closed(line.state, line.closed_as),
            self._words["severities"][line.severity.value],
            Safe(line.updated),
            self._fill(self._own["line_seen"], line.occurrences),
            self._name(line.assignee or "-"),
        ]
        if line.verdict:
            cause = load_causes().get(line.cause)
            more = [Safe(self._words["verdicts"].get(line.verdict) or self._name(line.verdict))]
            more.append(Safe(cause.title.get(self._lang)) if cause else self._own["no_cause"])
            more.append(self._name(line.target))
        else:
            more = [self._name("/".join(known) or "-")]
        more += [self._name(line.title)] if line.title else []
        return [*cells, Safe("  ".join(more))]

    def state(self, ticket: Ticket) -> Safe:
        text = self._closed(ticket.state, ticket.closed_as)
        if ticket.ended is None:
            return text
        return Safe(self._semicolon.join([text, self._fill(self._own["ended"], self._name(ticket.ended))]))

    def category(self, value: str) -> Safe:
        found = self._words["categories"].get(value)
        return found if found is not None else self._name(value)

    def component(self, value: object) -> Safe:
        return self.category("unknown") if value == "unknown" else self._name(value)

    def assigned(self, given: Assignment | None) -> Safe:
        own = self._own
        if given is None:
            return Safe(own["not_assigned"])
        users = Safe(own["then"].join(self._name(user) for user in given.users)) or own["nobody"]
        facts = [users, self._coded(own["rule"], given.rule)]
        if given.schedule:
            facts.append(self._fill(own["schedule"], self._name(given.schedule)))
        if given.why:
            facts.append(self._coded(own["why"], given.why))
        if given.level:
            facts.append(self._fill(own["step"], given.level))
        if given.until:
            facts.append(self._fill(own["until"], self._name(given.until)))
        return Safe(self._semicolon.join(facts))

    def decisions(self, ticket: Ticket, causes: Mapping[str, Cause]) -> list[Safe]:
        """Return severity, category, component and, if no cause was diagnosed, the suspected one."""
        found = ticket.classification
        if found is None:
            return []
        labels, severities = self._words["labels"], self._words["severities"]
        severity = severities.get(found.severity.value) or self._name(found.severity.value)
        called = self._own["source_severity"]
        more = [self._fill(called, self._name(found.source_severity))] if found.source_severity else []
        lines = [
            self._decision(labels["severity"], severity, found.severity, self._severity, more),
            self._decision(labels["category"], self.category(found.category.value), found.category, self.category),
            self._decision(labels["component"], self.component(found.component.value), found.component, self.component),
        ]
        diagnosis = ticket.diagnosis
        if found.cause is not None and (diagnosis is None or diagnosis.cause is None):

            def title(id: object) -> Safe:
                cause = causes.get(str(id))
                return Safe(cause.title.get(self._lang)) if cause else self._name(id)

            doubt = [self._own["not_looked" if diagnosis is None else "not_shown"]]
            lines.append(self._decision(self._own["cause"], title(found.cause.value), found.cause, title, doubt))
        return lines

    def reported(self, ticket: Ticket) -> Safe | None:
        """Return the description as a block, or None."""
        return markdown_block(ticket.human.description) if ticket.human.description else None

    def labels(self, labels: Mapping[str, str]) -> Safe | None:
        return self._fill(self._own["labels"], self._labels(labels)) if labels else None

    def alerts(self, ticket: Ticket, alerts: Sequence[Alert]) -> list[Safe]:
        """Return one line per alert: start, end, and labels that the ticket does not have."""
        found = []
        for alert in alerts[:ALERTS]:
            since = rfc3339(datetime.fromtimestamp(alert.starts, timezone.utc))
            text = self._fill(
                self._own["alert"][alert.status], name=self._name(alert.name or "-"), since=self._name(since)
            )
            own = self._labels({name: v for name, v in alert.labels.items() if ticket.labels.get(name) != v})
            found.append(Safe(f"{text}{self._semicolon}{own}") if own else text)
        left = len(alerts) - len(found)
        return [*found, self._fill(self._own["left_out"], left)] if left else found

    def analysis(self, ticket: Ticket) -> list[Safe]:
        """Return the state of the automatic analysis and the checks to run; empty once there is a diagnosis."""
        own, analysis = self._own, ticket.analysis
        if ticket.diagnosis is not None:
            return []
        found: list[Safe] = []
        code = analysis.triage if analysis is not None else ""
        if code:
            kind, _, rest = code.partition(":")
            text = own["triage"].get(kind)
            found.append(self._fill(text, self._name(rest or "-")) if text is not None else self._name(code))
        if analysis is not None and analysis.checks:
            checks = self._comma.join(self._name(command(tool, None)) for tool in analysis.checks)
            found.append(self._fill(own["look"], Safe(checks)))
        if ticket.ended is None and code != "queued":
            found.append(self._fill(own["look_by_hand"], ticket.id))
        return found

    def prose(self, ticket: Ticket) -> list[Safe]:
        claims = ticket.analysis.prose if ticket.analysis is not None else []
        return [self._fill("{} ({})", c.text, Safe(self._comma.join(map(self._name, c.findings)))) for c in claims]

    def prose_by(self, ticket: Ticket) -> Safe:
        model = ticket.analysis.model if ticket.analysis is not None else ""
        return self._fill(self._own["model_note"], self._name(model or "-"))

    def links(self, ticket: Ticket) -> list[Safe]:
        found = []
        for link in ticket.links:
            text = self._fill(self._own["link"][link.kind], link.ticket)
            why = self._comma.join(self._coded(self._own["codes"], code) for code in link.why[:_CODES])
            found.append(Safe(f"{text} ({why})") if why else text)
        return self._bounded(found, LINKS)

    def trackers(self, ticket: Ticket) -> list[Safe]:
        found = []
        for remote in ticket.remotes:
            text = self._fill(self._own["tracker"], sink=self._name(remote.sink), ref=self._name(remote.ref))
            found.append(Safe(f"{text} {self._name(remote.url)}") if remote.url else text)
        return found

    def comments(self, ticket: Ticket) -> list[tuple[Safe, Safe]]:
        """Return author and time, and text as a block, of the latest comments."""
        comments = ticket.human.comments
        heads = self._own["comment"]
        shown = [
            (
                self._fill(heads, by=self._name(c.by or "-"), at=self._name(c.at), source=self._name(c.source)),
                markdown_block(c.text),
            )
            for c in comments[-COMMENTS:]
        ]
        left = len(comments) - len(shown)
        return [(self._fill(self._own["earlier"], left), Safe("")), *shown] if left else shown

    def history(self, events: Sequence[Event], most: int = EVENTS) -> list[Safe]:
        """Return one line per change, at most `most`, the latest; repetitions share a line."""
        found: list[Safe] = []
        run: list[Event] = []
        for event in events:
            if event.what == "seen_again":
                run.append(event)
                continue
            found += [*self._runs(run), self.event(event)]
            run = []
        found += self._runs(run)
        left = len(found) - most
        return [self._fill(self._own["earlier"], left), *found[left:]] if left > 0 else found

    def _runs(self, run: Sequence[Event]) -> list[Safe]:
        if len(run) < 3:
            return [self.event(event) for event in run]
        span = {"first": self._name(run[0].at), "last": self._name(run[-1].at)}
        again = self._fill(self._own["again"], n=len(run), **span)
        return [Safe(f"{self._own['events']['seen_again']}{self._colon}{again}")]

    def event(self, event: Event) -> Safe:
        what = self._own["events"][event.what]
        text = self._fill(self._own["event"], at=self._name(event.at), what=what, by=self._name(event.by or "-"))
        detail = self._detail(event)
        return Safe(f"{text}{self._semicolon}{detail}") if detail else text

    def _detail(self, event: Event) -> Safe:
        """Return the codes of a change as text, anything else as a name."""
        own, (kind, _, rest) = self._own, event.detail.partition(":")
        if kind in own["link"] and rest.isdigit():
            return self._fill(own["link"][kind], rest)
        if event.what == "closed" and kind in own["closed_as"]:
            reason = self._name(rest.strip()) if rest else Safe("")
            return Safe(self._colon.join(filter(None, [own["closed_as"][kind], reason])))
        if event.what == "triaged" and (known := event.detail.partition(" ")[0]) in own["triage"]:
            return Safe(own["triage"][known])
        return self._name(event.detail) if event.detail else Safe("")

    def _labels(self, labels: Mapping[str, str]) -> Safe:
        named = [self._name(f"{name}={short(value, _VALUE)}") for name, value in labels.items()]
        return Safe(self._comma.join(self._bounded(named, LABELS)))

    def _closed(self, state: str, as_: str | None) -> Safe:
        text = Safe(self._words["states"][state])
        return self._fill(self._own["closed"], state=text, as_=self._own["closed_as"][as_]) if as_ else text

    def _severity(self, value: object) -> Safe:
        return self._words["severities"].get(value) or self._name(value)

    def _decision(self, what: Safe, value: Safe, made: Decision, named: Any, more: Sequence[Safe] = ()) -> Safe:
        facts = [self._coded(self._own["by"], made.by), *more]
        if made.by != "default" and not made.by.startswith("label:"):
            if made.confidence < 1:
                facts.append(self._fill(self._own["sure"], Safe(quantity(100 * made.confidence, "pct"))))
            if made.because:
                codes = [self._coded(self._own["codes"], code) for code in made.because[:_CODES]]
                facts.append(self._fill(self._own["because"], Safe(self._comma.join(codes))))
        if made.rivals:
            rivals = self._comma.join(named(rival) for rival in made.rivals[:_CODES])
            facts.append(self._fill(self._own["rivals"], Safe(rivals)))
        return self._fill(self._own["decision"], what=what, value=value, how=Safe(self._semicolon.join(facts)))

    def _coded(self, group: Mapping[str, str], code: str) -> Safe:
        """Return ``KIND:VALUE`` as text of `group`; a code without a text as a name."""
        kind, _, value = code.partition(":")
        text = group.get(kind)
        return self._fill(text, self._name(short(value, _VALUE))) if text is not None else self._name(code)

    def _bounded(self, parts: Sequence[Safe], most: int) -> list[Safe]:
        left = len(parts) - most
        return [*parts[:most], self._fill(self._own["left_out"], left)] if left > 0 else list(parts)

    def _name(self, value: object) -> Safe:
        return self._format.name(value)

    def _fill(self, text: str, *values: object, **named: object) -> Safe:
        return fill(self._format.running, text, *values, **named)
