"""Results as texts, from the rooms that hold the words; those are imported only when a text is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from whystall.agent_server.presentation import texts as present
from whystall.agent_server.presentation.texts import ticket_markdown
from whystall.agent_server.presentation.ticket_texts import lines_text
from whystall.knowledge_base.causes import load_causes
from whystall.prompts.escape import Safe
from whystall.prompts.render import fit, render, words
from whystall.tools.collect.ftrace.cpus import format_cpus

if TYPE_CHECKING:
    from whystall.agent_server.app import RecordSummary
    from whystall.agent_server.conversion.ftrace_capture import CaptureSummary
    from whystall.agent_server.conversion.stacks import StackConversion
    from whystall.agent_server.conversion.traces import ConversionSummary
    from whystall.agent_server.diagnosis.replay import Replay
    from whystall.agent_server.interfaces.incident_lookup import Hits
    from whystall.agent_server.interfaces.mcp.knowledge import Rated
    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.models import Diagnosis, Incident, Lang
    from whystall.knowledge_base.tickets.models import Event, Line, Ticket
    from whystall.tools.contract.result import ToolResult
    from whystall.tools.hybrid_io.run import Run

_PROGRAMS = 12  # of one run, those that moved most
_EVENTS = 100_000  # a flood is told as one line


def result_text(result: ToolResult[Any], lang: Lang) -> str:
    """A tool's answer."""
    return present.result_text(result, lang)


def diagnosis_text(diagnosis: Diagnosis, lang: Lang) -> str:
    """A diagnosis: verdict, evidence, what was ruled out, similar incidents."""
    return present.diagnosis_text(diagnosis, load_causes(), lang)


def ticket_text(ticket: Ticket, lang: Lang, events: Sequence[Event] | None = None) -> str:
    """A ticket as Markdown; with its history `events` and what people said of it, where they are given."""
    return ticket_markdown(ticket, lang, load_causes(), events)


def whole_ticket_text(kb: Stores, id: str, lang: Lang) -> str:
    """The ticket `id` with everything that is known of it: its history, its comments, the alerts in it."""
    ticket = kb.tickets.get(id)
    alerts = [stored.alert for stored in kb.alerts.find(ticket=ticket.id)] if ticket.origin == "alert" else []
    events = kb.tickets.events(ticket.id, limit=_EVENTS)
    return ticket_markdown(ticket, lang, load_causes(), events, alerts)


def tickets_text(lines: Sequence[Line], left: int, lang: Lang) -> str:
    """One line for each ticket; `left`: how many more there are."""
    return lines_text(lines, left, lang)


def incident_text(incident: Incident, lang: Lang) -> str:
    """A past incident: symptom, root cause, fix, source."""
    return render("incident.txt", lang, i=incident)


def hits_text(hits: Hits, lang: Lang, budget: int | None = None) -> str:
    """Past incidents and why they were found, then in full those that are an answer, as far as `budget` characters
    hold them (None: all); or that none is known.
    """
    found = present.hits_text([hit.match for hit in hits.hits], lang)
    cards = [Safe(incident_text(hit.incident, lang)) for hit in hits.hits if not hit.match.weak]
    if budget is None:
        return "\n".join([found, *cards])
    kept, left = fit(cards, budget - len(found) - 100)
    more = [words(lang)["labels"]["left_out"].format(left)] if left else []
    return "\n".join([found, *kept, *more])


def rated_text(rated: Rated, lang: Lang) -> str:
    """A match that was rated, and the record of its card."""
    return render("rated.txt", lang, r=rated)


def capture_text(summary: CaptureSummary, lang: Lang) -> str:
    """A capture of scheduling events: where it is, what was lost, and how to go on."""
    return render("capture.txt", lang, c=summary, cpus=format_cpus(summary.cpus))


def conversion_text(summary: ConversionSummary, lang: Lang) -> str:
    """A trace that was converted: what is in it, what was lost or could not be read, how the profile was placed."""
    return render("conversion.txt", lang, c=summary, cpus=format_cpus(summary.cpus))


def stacks_text(summary: StackConversion, lang: Lang) -> str:
    """Stack samples that were converted: what is in them, and what could not be read."""
    return render("stacks.txt", lang, c=summary)


def hybrid_text(done: Run, lang: Lang) -> str:
    """A run with hybrid I/O below it: which way requests went and why, by program and in all, and what passed it by."""
    most = sorted(done.programs, key=lambda program: -program.bytes("read") - program.bytes("write"))[:_PROGRAMS]
    return render("hybrid.txt", lang, r=done, programs=most, left=len(done.programs) - len(most))


def replay_text(done: Replay, lang: Lang) -> str:
    """A diagnosis that was followed again: whether it came to the same, and what a model said of it."""
    return render("replay.txt", lang, r=done)


def record_text(summary: RecordSummary) -> str:
    """What was recorded, and how to go on."""
    return _recording_text(summary, "recorded", "diagnose")


def gather_text(summary: RecordSummary) -> str:
    """What was gathered from the traces of ranks, and how to go on."""
    both = "ranks_before" in summary.engines
    return _recording_text(summary, "gathered", "run compare_runs" if both else "run slow_node_check")


def _recording_text(summary: RecordSummary, done: str, then: str) -> str:
    rows = ", ".join(f"{name} {count}" for name, count in summary.rows.items())
    return f"{done} {summary.window_s:.1f} s into {summary.path}\n{rows}\nnext: whystall {then} --from {summary.path}"
