"""Results, diagnoses and tickets as text for people and models.

Texts of results and diagnoses have at most `TEXT_LIMIT` characters and give the number of parts left out; structured
values are always complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from whystall.agent_server.presentation.account_lines import path_rows
from whystall.agent_server.presentation.defect_lines import upgrade_plan
from whystall.agent_server.presentation.headlines import headline
from whystall.agent_server.presentation.match_lines import MatchText, match_texts, note_texts
from whystall.agent_server.presentation.path_change_lines import CHANGE
from whystall.agent_server.presentation.profile_lines import COLUMNS
from whystall.agent_server.presentation.template_values import ALL, TITLES, TemplateValues
from whystall.agent_server.presentation.ticket_texts import ticket_context
from whystall.knowledge_base.models import (
    Cause,
    CauseState,
    Diagnosis,
    Lang,
    Match,
)
from whystall.knowledge_base.ticket_models import Event, Ticket
from whystall.prompts.escape import Safe
from whystall.prompts.render import FORMATS, fill, fit, render, words
from whystall.prompts.tables import record, shared, table
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.result import CollectorCoverage, Coverage, ToolResult

if TYPE_CHECKING:
    from whystall.agent_server.incident_search.search import SearchNote
    from whystall.agent_server.journal.alerts import Alert

TEXT_LIMIT = 6000
_EVIDENCE = 2000
# What has the time, which is neither normal nor abnormal; a table lists all of it.
_NEUTRAL = ("profile.", "thread.time")
_FIRST = 3
# Parts of a diagnosis, and how much of them a text with a limit has.
_SHOWN = {"not_examined": TITLES, "matches": 3, "fixes": 3}
# How much of them is kept if it is still too long; what matters least comes first.
_LESS = (("not_examined", 0), ("blind", 3), ("matches", 2), ("ruled_out", 0), ("fixes", 2), ("evidence", 3))
_FILES = ("samples", "device_log", "crashes")  # collectors that a file may hold alone
_OTHERS = 40
_ARTIFACTS = 5
_HEADING = 130


def result_text(result: ToolResult[Any], lang: Lang, limit: int | None = TEXT_LIMIT) -> str:
    """Return a tool's result in at most `limit` characters (None: all): status, verdict, a sentence per abnormal
    finding (severe ones first), a line of what is normal, tables, and blind spots. Findings take precedence over rows
    if not all fits.
    """
    limit = ALL if limit is None else limit
    view = TemplateValues("txt", lang, result.coverage.target)
    blind = view.blind([result.coverage])
    artifacts = result.artifacts[:_ARTIFACTS]
    remedies = view.remedies(result)
    first = headline(result, lang)

    def text(findings: Sequence[Safe], left: int, tables: Sequence[Safe] = ()) -> str:
        return render(
            "result.txt",
            lang,
            r=result,
            headline=first,
            job=any(collector.name == "ranks" for collector in result.coverage.collectors),
            read=not result.coverage.host and any(c.name in _FILES for c in result.coverage.collectors),
            findings=findings,
            left=left,
            normal=normal,
            tables=tables,
            blind=blind,
            artifacts=artifacts,
            remedies=remedies,
        )

    rows_of = path_rows(result.data, result.findings) if result.tool == "critical_path" else []
    others = [f for f in _worst_first(result.findings) if f not in rows_of and f.kind != CHANGE]
    calm = [f for f in others if f.polarity is Polarity.NORMAL]
    normal = view.normal([f for f in calm if not f.kind.startswith(_NEUTRAL)], limit // 4)
    stated = [f for f in others if f.polarity is Polarity.ABNORMAL]
    stated += [f for f in calm if f.kind.startswith(_NEUTRAL)][:_FIRST]
    lines = [view.finding(f) for f in stated]
    # A list item is a dash, a blank and a line end longer than its sentence; 100 for the note of what was left out.
    budget = limit - len(text([], 0)) - 100 - 2 * len(lines)
    rows = _tables(result, lang, budget // 2)
    kept, left = fit(lines, budget - sum(len(line) + 1 for line in rows))
    return text(kept, left, _tables(result, lang, limit - len(text(kept, left)) - 1))


def _tables(result: ToolResult[Any], lang: Lang, budget: int) -> list[Safe]:
    """Return the tables of the result within `budget` characters, each with its name and the number of rows shown."""
    lines: list[Safe] = []
    notes: dict[str, str] = words(lang)["table_notes"].get(result.tool, {})
    for name, value in result.data.model_dump(mode="json", exclude={"remedies", "compared"}).items():
        if isinstance(value, dict) and value:
            shown = [Safe(f"{name}: {record(value)}")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            columns = COLUMNS.get((result.tool, name))
            if columns == ():
                continue
            kept = [{c: row[c] for c in columns} for row in value] if columns else value
            same = shared(kept)
            note = f"; {record(same)}" if same else ""
            rows, count = table([{c: v for c, v in row.items() if c not in same} for row in kept], budget - _HEADING)
            total = max(result.totals.get(name, 0), len(value))
            note += f"; {notes[name]}" if name in notes else ""
            shown = [Safe(f"{name} ({count}/{total}{note}):"), *rows] if count else [Safe(f"{name} (0/{total})")]
        else:
            continue
        size = sum(len(line) + 1 for line in shown)
        if shown and size <= budget:
            budget -= size
            lines += shown
    return lines


def diagnosis_text(
    diagnosis: Diagnosis, causes: Mapping[str, Cause], lang: Lang, limit: int | None = TEXT_LIMIT
) -> str:
    """Return a diagnosis: verdict, victim, where and how long, evidence, causes ruled out, blind spots, similar
    incidents, fixes, and how to verify; within `limit` characters, less of what matters less (None: all).
    """
    view = TemplateValues("txt", lang, diagnosis.target)
    context = view.diagnosis(diagnosis, causes, None if limit is None else min(_EVIDENCE, limit // 3))
    end = "\n" + render("diagnosis_end.txt", lang, **context)
    text = render("diagnosis.txt", lang, **context)
    if limit is None:
        return text + end
    whole = {name: context[name] for name in dict(_LESS)}
    whole["ruled_out"] = [Safe("")] * sum(a.state is CauseState.RULED_OUT for a in diagnosis.assessments)
    whole["evidence"] = [*whole["evidence"], *[Safe("")] * context["evidence_left"]]
    for name, most in _SHOWN.items():
        context[name] = _cut(whole[name], most, lang)
    text = render("diagnosis.txt", lang, **context)
    for name, most in _LESS:
        if len(text) + len(end) <= limit:
            return text + end
        context[name] = _cut(whole[name], most, lang)
        if name == "evidence":
            context["evidence_left"] = 0  # counted by the cut
        text = render("diagnosis.txt", lang, **context)
    lines = [Safe(line) for line in text.splitlines()]
    kept, left_out = fit(lines, limit - len(end) - 100)
    return "\n".join([*kept, view.fill(words(lang)["labels"]["left_out"], left_out)]) + "\n" + end


def _cut(parts: Sequence[Any], most: int, lang: Lang) -> list[Any]:
    """Return at most `most` of `parts` (lines, or texts of matches), and a last one that counts the others."""
    if len(parts) <= most:
        return list(parts)
    left = fill(FORMATS["txt"].running, words(lang)["labels"]["left_out"], Safe(str(len(parts) - most)))
    return [*parts[:most], MatchText(left, []) if isinstance(parts[0], MatchText) else left]


def brief(diagnosis: Diagnosis, causes: Mapping[str, Cause], lang: Lang) -> dict[str, Any]:
    """Return the context of a diagnosis for the templates of chat messages, as Markdown."""
    return TemplateValues("md", lang, diagnosis.target).diagnosis(diagnosis, causes, _EVIDENCE)


def ticket_markdown(
    ticket: Ticket,
    lang: Lang,
    causes: Mapping[str, Cause],
    events: Sequence[Event] | None = None,
    alerts: Sequence[Alert] = (),
) -> str:
    """Return `ticket` as Markdown, with foreign text escaped: names in code spans, people's texts in blocks.

    Args:
        events: its history; None omits history and comments, for readers that have both elsewhere.
        alerts: its alerts, the latest first.
    """
    d = ticket.diagnosis
    view = TemplateValues("md", lang, d.target if d else "")
    known = ticket.analysis.matches if ticket.analysis else []
    without = {"d": None, "cause": None, "matches": match_texts(known, "md", lang)}
    context: dict[str, Any] = view.diagnosis(d, causes, None) if d else without
    cause = context["cause"]
    others = (
        [view.finding(f) for f in _worst_first([f for f in d.findings if f.polarity is Polarity.ABNORMAL])] if d else []
    )
    return render(
        "ticket.md",
        lang,
        k=ticket,
        title=ticket.human.title or view.title(d, cause),
        named=view.title(d, cause),
        others=others[:_OTHERS],
        others_left=max(len(others) - _OTHERS, 0),
        collectors=_collectors(d.coverage) if d else [],
        plan=upgrade_plan(d, lang) if d else "",
        **context,
        **ticket_context(ticket, causes, lang, events, alerts),
    )


def hits_text(matches: Sequence[Match], lang: Lang, budget: int | None = None, notes: Sequence[SearchNote] = ()) -> str:
    """Return past incidents found by a search and why, or that none is known; beyond `budget` characters their first
    lines only. `notes`: how they were searched for."""
    answered = any(not match.weak for match in matches)
    shown = match_texts(matches, "txt", lang)
    left = (ALL if budget is None else budget) - sum(len(match.head) + 5 for match in shown)
    for at, match in enumerate(shown):
        left -= sum(len(line) + 4 for line in match.more)
        if left < 0:
            shown[at] = replace(match, more=[])
    return render("hits.txt", lang, matches=shown, answered=answered, notes=note_texts(notes, "txt", lang))


def _worst_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: (f.polarity is Polarity.NORMAL, -f.severity.rank, -f.window_pct))


def _collectors(coverage: Sequence[Coverage]) -> list[CollectorCoverage]:
    """Return the collectors of all observations; each from the longest one."""
    found: dict[str, CollectorCoverage] = {}
    for one in sorted(coverage, key=lambda c: c.window_s):
        found |= {c.name: c for c in one.collectors}
    return [found[name] for name in sorted(found)]
