"""Drafts of cards, from a resolved ticket or from a person's texts. Pure functions.

The symptom of a card holds only what was known before the cause was: the reported symptom and the first findings. A
query about a new case knows no more either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whystall.knowledge_base import features as facts
from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base.card_life import ENTRIES, LINK, NAME, TEXT
from whystall.knowledge_base.faults import dedup_key
from whystall.knowledge_base.models import Cause, CauseState, Diagnosis, HistoryEntry, Incident, Lang, Words
from whystall.knowledge_base.ticket_models import LESSON, Ticket
from whystall.knowledge_base.times import moment
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.text import clean

# Codes in `Step.why` of the first observation, made before any cause is suspected.
_FIRST = frozenset({"first_look", "traces_of_ranks"})
_FINDINGS = 6


def draft_card(ticket: Ticket, causes: Mapping[str, Cause], first: Diagnosis | None = None, by: str = "") -> Incident:
    """Return a draft card for the resolved `ticket`.

    `first`: the diagnosis that opened the ticket, if its own is a later one; its findings describe the symptom before
    the cause was known. Raises `ToolError` (bad_argument) for a ticket without a diagnosis: there is no evidence to
    match.
    """
    diagnosis = ticket.diagnosed()
    cause = causes.get(diagnosis.cause or "")
    who = clean((diagnosis.victim.comm if diagnosis.victim else "") or diagnosis.target, 100)
    fix = clean(ticket.resolution, 2000)
    title = cause.title if cause else Words(en="Stall without a known cause", zh="原因未知的停顿")
    initial = first or diagnosis
    return Incident(
        id=f"{LESSON}{ticket.id}",
        title=Words(en=f"{title.en}: {who}", zh=f"{title.zh}：{who}"),
        symptom=Words(en=_symptom(initial, "en"), zh=_symptom(initial, "zh")),
        cause=diagnosis.cause if cause else None,
        root_cause=cause.summary if cause else Words(en=fix, zh=fix),
        fix=Words(en=fix, zh=fix),
        **_evidence(diagnosis),
        components=[ticket.component],
        environment=_environment(diagnosis),
        source=_source(ticket),
        origin="ticket",
        state="draft",
        created=ticket.updated,
        updated=ticket.updated,
        history=[HistoryEntry(what="drafted", by=clean(by, NAME), at=ticket.updated)],
    )


def reported_card(
    id: str, texts: Mapping[str, str], cause: Cause | None, diagnosis: Diagnosis | None, by: str, at: str
) -> Incident:
    """Return a draft card from a person's `texts` (title, symptom, fix, root_cause, in any language), with the evidence
    of `diagnosis` if given.
    """
    title, symptom, fix, why = (texts.get(name, "") for name in ("title", "symptom", "fix", "root_cause"))
    return Incident(
        id=id,
        title=Words(en=title, zh=title),
        symptom=Words(en=symptom, zh=symptom),
        fix=Words(en=fix, zh=fix),
        root_cause=cause.summary if cause is not None and not why else Words(en=why, zh=why),
        cause=cause.id if cause else None,
        **(_evidence(diagnosis) if diagnosis else {}),
        components=[cause.component] if cause else [],
        environment=_environment(diagnosis) if diagnosis else "",
        source=f"reported by {by}" + (f", diagnosis {diagnosis.id}" if diagnosis else ""),
        origin="user",
        state="draft",
        created=at,
        updated=at,
        history=[HistoryEntry(what="drafted", by=by, at=at)],
    )


def card_signatures(diagnosis: Diagnosis) -> list[str]:
    """Return the exact keys of a card made from `diagnosis`.

    Without a cause, the key of the fault names the worst finding, so that the ticket's own card is found again.
    """
    own = [] if diagnosis.cause is not None else [f"fault:{dedup_key(diagnosis)}"]
    return [*own, *keys.signatures(diagnosis)]


def first_findings(diagnosis: Diagnosis) -> list[Finding]:
    """Return the abnormal findings of the first observation of `diagnosis`, worst first.

    A later observation may have run the same tools again and replaced the findings: those count by their kinds.
    """
    step = diagnosis.steps[0] if diagnosis.steps else None
    if step is None or step.why not in _FIRST:
        return []
    ids = set(step.findings)
    found = [f for f in diagnosis.findings if f.id in ids]
    if not found:
        kinds = _kinds_of(step.tools)
        found = [f for f in diagnosis.findings if f.kind in kinds]
    bad = [f for f in found if f.polarity is Polarity.ABNORMAL]
    return sorted(bad, key=lambda f: (-f.severity.rank, -f.window_pct))


def sentences(findings: Sequence[Finding], lang: Lang) -> Iterator[str]:
    """Yield `findings` as sentences, without process ids, containers and pods, which differ every time."""
    from whystall.prompts.render import voice  # imports Jinja

    say = voice("txt", lang)
    for finding in findings:
        nameless = finding.subject.model_copy(update=dict.fromkeys(("pid", "tid", "container", "pod")))
        yield str(say.finding(finding.model_copy(update={"subject": nameless})))


def _symptom(diagnosis: Diagnosis, lang: Lang) -> str:
    from whystall.prompts.render import words

    texts = words(lang)
    symptom = clean(" ".join(diagnosis.symptom.split()), 2000)
    parts = [symptom] if symptom else []
    victim = diagnosis.victim
    if victim is not None and victim.type == "thread":
        from whystall.prompts.quantities import quantity

        names = ("lost", "blocked", "runnable", "system")
        shares = {name: quantity(getattr(victim, f"{name}_pct"), "pct") for name in names}
        parts.append(texts["cards"]["loses"].format(who=clean(victim.comm), **shares))
    parts += sentences(first_findings(diagnosis)[:_FINDINGS], lang)
    return clean(texts["marks"]["semicolon"].join(parts) or clean(diagnosis.target), TEXT)


def _kinds_of(tools: Sequence[str]) -> set[str]:
    from whystall.tools.toolbox import registry  # imports all tools

    return {kind for tool in registry().all() if tool.name in tools for kind in tool.kinds}


def _found_by(diagnosis: Diagnosis) -> list[str]:
    """Return the tools that ran and produce the kinds of the evidence."""
    kinds = {f.kind for f in keys.evidence(diagnosis)}
    ran = dict.fromkeys(tool for step in diagnosis.steps for tool in step.tools)
    return [tool for tool in ran if kinds & _kinds_of([tool])]


def _evidence(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the fields by which similar cases find a card, and the tools that found them."""
    concluded = [a for a in diagnosis.assessments if a.cause == diagnosis.cause] or [
        a for a in diagnosis.assessments if a.state is CauseState.SUPPORTED
    ]
    return {
        "signatures": card_signatures(diagnosis)[:ENTRIES],
        "kinds": sorted(keys.discriminating_kinds(diagnosis)),
        "features": [f for f in facts.of_diagnosis(diagnosis) if not f.startswith("kind:")][:ENTRIES],
        "checks": list(dict.fromkeys([*(tool for a in concluded for tool in a.by), *_found_by(diagnosis)])),
    }


def _environment(diagnosis: Diagnosis) -> str:
    """Return kernels, hosts, file systems, devices and engines of the diagnosis, in no language."""
    evidence = keys.evidence(diagnosis)
    hosts = {c.host for c in diagnosis.coverage} | {f.subject.host for f in evidence if f.subject.host}
    groups = {
        "kernel": [c.kernel for c in diagnosis.coverage],
        "hosts": [str(len(hosts))] if hosts else [],
        "fs": [f.attributes.get("filesystem", "") for f in evidence],
        "device": [f.subject.device or "" for f in evidence],
        "engine": [x.engine for c in diagnosis.coverage for x in c.collectors],
    }
    facts_told = []
    for name, values in groups.items():
        if known := [clean(v, 60) for v in dict.fromkeys(values) if v][:4]:
            facts_told.append(f"{name} {', '.join(known)}")
    return clean("; ".join(facts_told), LINK)


def _source(ticket: Ticket) -> str:
    """Return where a card comes from: the ticket, its host, how long it was open, whether the fix was verified."""
    coverage = ticket.diagnosed().coverage
    where = f" on {clean(coverage[0].host, NAME)}" if coverage else ""
    begun, ended = moment(ticket.created), moment(ticket.updated)
    hours = (ended - begun).total_seconds() / 3600 if begun and ended else None
    after = f", open for {hours:.1f} h" if hours is not None and hours >= 0 else ""
    solved = next((v.solved for v in reversed(ticket.verifications) if v.solved is not None), None)
    return f"ticket {ticket.id}{where}{after}" + {True: ", fix verified", False: ", fix not verified", None: ""}[solved]
