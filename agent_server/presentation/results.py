"""Results of commands and MCP tools as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.agent_server.presentation import texts
from whystall.agent_server.presentation.cards import resolved_text
from whystall.agent_server.presentation.texts import ticket_markdown
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.tickets.life import original_of
from whystall.prompts.escape import Safe, plain, plain_code
from whystall.prompts.render import fill, fit, render, words

if TYPE_CHECKING:
    from whystall.agent_server.conversion.ftrace_capture import CaptureSummary
    from whystall.agent_server.conversion.stacks import StackConversion
    from whystall.agent_server.conversion.traces import ConversionSummary
    from whystall.agent_server.diagnosis.replay import Replay
    from whystall.agent_server.inputs.record_params import RecordSummary
    from whystall.agent_server.interfaces.incident_lookup import Hits
    from whystall.agent_server.interfaces.mcp.knowledge import Rated
    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.models import Diagnosis, Incident, Lang
    from whystall.knowledge_base.ticket_models import Event, Ticket
    from whystall.tools.hybrid_io.run import Run

_PROGRAMS = 12  # of a run, with most bytes
_EVENTS = 100_000


def diagnosis_text(diagnosis: Diagnosis, lang: Lang, limit: int | None = texts.TEXT_LIMIT) -> str:
    """Return a diagnosis: verdict, evidence, what was ruled out, similar incidents."""
    return texts.diagnosis_text(diagnosis, load_causes(), lang, limit)


def ticket_text(ticket: Ticket, lang: Lang, events: Sequence[Event] | None = None) -> str:
    """Return a ticket as Markdown; with history and comments if `events` is given."""
    return ticket_markdown(ticket, lang, load_causes(), events)


def whole_ticket_text(kb: Stores, id: str, lang: Lang) -> str:
    """Return the ticket `id` with history, comments and alerts."""
    ticket = kb.tickets.get(id)
    alerts = [stored.alert for stored in kb.alerts.find(ticket=ticket.id)] if ticket.origin == "alert" else []
    events = kb.tickets.events(ticket.id, limit=_EVENTS)
    return ticket_markdown(ticket, lang, load_causes(), events, alerts)


def incident_text(incident: Incident, lang: Lang) -> str:
    return render("incident.txt", lang, i=incident)


def hits_text(hits: Hits, lang: Lang, budget: int | None = None) -> str:
    """Return past incidents and why they match, then in full those that answer, within `budget` characters (None: all);
    or that none is known.
    """
    found = texts.hits_text([hit.match for hit in hits.hits], lang, budget, hits.notes)
    cards = [Safe(incident_text(hit.incident, lang)) for hit in hits.hits if not hit.match.weak]
    if budget is None:
        return "\n".join([found, *cards])
    kept, left = fit(cards, budget - len(found) - 100)
    more = [words(lang)["labels"]["left_out"].format(left)] if left else []
    return "\n".join([found, *kept, *more])


def done_text(kb: Stores, ticket: Ticket, what: str, other: str, lang: Lang) -> str:
    """Return the confirmation of the step `what` (a code of the texts), about `other` if it involves another ticket."""
    if what == "resolved" and ticket.card is not None:
        return resolved_text(ticket, kb.cards.get(ticket.card), lang)
    values: list[object] = [ticket.id, plain_code(other)]
    if what == "duplicate":
        original = kb.tickets.get(original_of(ticket) or other)
        values = [ticket.id, original.id, original.occurrences]
    elif what == "merged":
        values = [other, ticket.id]
    return str(fill(plain, words(lang)["tickets"]["done"][what], *values))


def rated_text(rated: Rated, lang: Lang) -> str:
    return render("rated.txt", lang, r=rated)


def capture_text(summary: CaptureSummary, lang: Lang) -> str:
    """Return a summary of a capture of scheduling events, and the next command."""
    return render("capture.txt", lang, c=summary, cpus=_cpus(summary.cpus))


def conversion_text(summary: ConversionSummary, lang: Lang) -> str:
    """Return a summary of a converted trace: content, what was lost or unreadable, alignment of the profile."""
    return render("conversion.txt", lang, c=summary, cpus=_cpus(summary.cpus))


def _cpus(cpus: Sequence[int]) -> str:
    from whystall.tools.collect.ftrace.cpus import format_cpus

    return format_cpus(cpus)


def stacks_text(summary: StackConversion, lang: Lang) -> str:
    return render("stacks.txt", lang, c=summary)


def hybrid_text(done: Run, lang: Lang) -> str:
    """Return a summary of a run with hybrid I/O: the paths of requests and why, by program and in total."""
    most = sorted(done.programs, key=lambda program: -program.bytes("read") - program.bytes("write"))[:_PROGRAMS]
    return render("hybrid.txt", lang, r=done, programs=most, left=len(done.programs) - len(most))


def replay_text(done: Replay, lang: Lang) -> str:
    """Return the result of a replay: whether it is the same, and what a model answered."""
    return render("replay.txt", lang, r=done)


def record_text(summary: RecordSummary) -> str:
    return _recording_text(summary, "recorded", "diagnose")


def gather_text(summary: RecordSummary) -> str:
    both = "ranks_before" in summary.engines
    return _recording_text(summary, "gathered", "run compare_runs" if both else "run slow_node_check")


def _recording_text(summary: RecordSummary, done: str, then: str) -> str:
    rows = ", ".join(f"{name} {count}" for name, count in summary.rows.items())
    return f"{done} {summary.window_s:.1f} s into {summary.path}\n{rows}\nnext: whystall {then} --from {summary.path}"
