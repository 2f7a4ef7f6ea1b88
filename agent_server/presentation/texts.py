"""Results, diagnoses and tickets as text for people and models.

Texts of results and diagnoses have at most `TEXT_LIMIT` characters and give the number of parts left out; structured
values are always complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from whystall.agent_server.presentation.account_lines import account_text, other_causes, path_rows
from whystall.agent_server.presentation.headlines import headline
from whystall.agent_server.presentation.match_lines import MatchText, match_texts
from whystall.agent_server.presentation.profile_lines import COLUMNS
from whystall.agent_server.presentation.reasoning_lines import explanation
from whystall.agent_server.presentation.ticket_texts import ticket_context
from whystall.knowledge_base.causes import ranked_remedies
from whystall.knowledge_base.models import (
    Actor,
    Assessment,
    Awaited,
    Cause,
    CauseState,
    Culprit,
    Diagnosis,
    Lang,
    Match,
    Verdict,
    Victim,
)
from whystall.knowledge_base.ticket_models import Event, Ticket
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, fit, render, voice, words
from whystall.prompts.sentences import Voice
from whystall.prompts.tables import record, shared, table
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.result import BlindSpot, CollectorCoverage, Coverage, ToolResult
from whystall.tools.node.containers import place

if TYPE_CHECKING:
    from whystall.agent_server.journal.alerts import Alert

TEXT_LIMIT = 6000
_ALL = 1_000_000
_EVIDENCE, _ACCOUNT = 2000, 1600
_TITLES = 3
# What has the time, which is neither normal nor abnormal; a table lists all of it.
_NEUTRAL = ("profile.", "thread.time")
_FIRST = 3
# Characters of what was ruled out, in one line.
_LINE = 500
# Parts of a diagnosis, and how much of them a text with a limit has.
_SHOWN = {"not_examined": _TITLES, "matches": 3, "fixes": 3}
# How much of them is kept if it is still too long; what matters least comes first.
_LESS = (("not_examined", 0), ("blind", 3), ("matches", 2), ("ruled_out", 0), ("fixes", 2), ("evidence", 3))
_STORY = 20_000
_OTHERS = 40
_ARTIFACTS = 5
_REMEDIES = 8
_HEADING = 130
# A thread with this share of user time is limited by its own code.
_BUSY_PCT = 50.0


def result_text(result: ToolResult[Any], lang: Lang, limit: int | None = TEXT_LIMIT) -> str:
    """Return a tool's result in at most `limit` characters (None: all): status, verdict, a sentence per abnormal
    finding (severe ones first), a line of what is normal, tables, and blind spots. Findings take precedence over rows
    if not all fits.
    """
    limit = _ALL if limit is None else limit
    view = _View("txt", lang, result.coverage.target)
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
            read=not result.coverage.host and any(c.name == "samples" for c in result.coverage.collectors),
            findings=findings,
            left=left,
            normal=normal,
            tables=tables,
            blind=blind,
            artifacts=artifacts,
            remedies=remedies,
        )

    rows_of = path_rows(result.data, result.findings) if result.tool == "critical_path" else []
    others = [f for f in _worst_first(result.findings) if f not in rows_of]
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
    for name, value in result.data.model_dump(mode="json", exclude={"remedies"}).items():
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
    view = _View("txt", lang, diagnosis.target)
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
    return _View("md", lang, diagnosis.target).diagnosis(diagnosis, causes, _EVIDENCE)


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
    view = _View("md", lang, d.target if d else "")
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
        **context,
        **ticket_context(ticket, causes, lang, events, alerts),
    )


def hits_text(matches: Sequence[Match], lang: Lang, budget: int | None = None) -> str:
    """Return past incidents found by a search and why, or that none is known; beyond `budget` characters their first
    lines only."""
    answered = any(not match.weak for match in matches)
    shown = match_texts(matches, "txt", lang)
    left = (_ALL if budget is None else budget) - sum(len(match.head) + 5 for match in shown)
    for at, match in enumerate(shown):
        left -= sum(len(line) + 4 for line in match.more)
        if left < 0:
            shown[at] = replace(match, more=[])
    return render("hits.txt", lang, matches=shown, answered=answered)


class _View:
    """Prepares the values of templates in one format and language."""

    def __init__(self, suffix: str, lang: Lang, target: str = "") -> None:
        self._suffix = suffix
        self._target = target
        self._lang: Lang = lang
        self._say: Voice = voice(suffix, lang)
        self._format = FORMATS[suffix]
        self._labels: dict[str, Safe] = words(lang)["labels"]
        self._marks: dict[str, Safe] = words(lang)["marks"]

    def fill(self, text: str, *values: object, **named: object) -> Safe:
        return fill(self._format.running, text, *values, **named)

    def finding(self, finding: Finding) -> Safe:
        severity = words(self._lang)["severities"][finding.severity.value]
        mark = severity + self._marks["colon"] if finding.polarity is Polarity.ABNORMAL else ""
        return Safe(f"{_tag(finding)}{mark}{self._say.finding(self._without_place(finding))}")

    def _without_place(self, finding: Finding) -> Finding:
        """Return `finding` without the place of its subject if the target names it."""
        subject = finding.subject
        if (where := place(subject.container, subject.pod)) and self._target_names(where):
            bare = subject.model_copy(update={"container": None, "pod": None})
            return finding.model_copy(update={"subject": bare})
        return finding

    def _target_names(self, where: str) -> bool:
        """Return whether the target ends with this place (pod ml/train-1, not pod ml/train-10)."""
        return self._target.endswith(f", {where}")

    def remedies(self, result: ToolResult[Any]) -> list[Safe]:
        """Return the remedies of the tool itself: codes with numbers in its ``remedies``."""
        return [self._say.remedy(remedy) for remedy in getattr(result.data, "remedies", [])[:_REMEDIES]]

    def blind(self, coverage: Sequence[Coverage]) -> list[Safe]:
        """Return the distinct blind spots of all observations."""
        spots: dict[tuple[str, str], BlindSpot] = {(s.code, s.detail): s for c in coverage for s in c.not_seen}
        return [self._say.blind(spot) for spot in spots.values()]

    def diagnosis(self, d: Diagnosis, causes: Mapping[str, Cause], budget: int | None) -> dict[str, Any]:
        """Return the context of a diagnosis for all templates; `budget`: characters for the evidence, None for all."""
        by_id = {f.id: f for f in d.findings}
        cause = causes.get(d.cause or "")
        chain = [by_id[i] for i in d.chain if i in by_id]
        account = account_text(d, self._suffix, self._lang, _ACCOUNT if budget is not None else None)
        in_rows = {row.finding for row in d.account[: len(account.rows)]} if self._suffix == "txt" else set()
        proof = [self.finding(finding) for finding in chain if finding.id not in in_rows]
        evidence, left = fit(proof, budget) if budget is not None else (proof, 0)
        state = _by_state(d.assessments)
        shown = set(d.chain[: len(evidence)])
        not_examined = [self._title(a.cause, causes) for a in state(CauseState.NOT_EXAMINED)]
        return {
            "d": d,
            "cause": cause,
            "headline": self.title(d, cause) if cause else Safe(""),
            "fixes": _remedies(cause, d, self._lang) if cause else [],
            "window_s": max((c.window_s for c in d.coverage), default=0.0),
            "victim": self._victim(d.victim) if d.victim else "",
            "busy": self._busy(d),
            "account": account,
            "where": self._where(d.culprit) if d.culprit else "",
            "how_long": self._how_long(d.culprit) if d.culprit else "",
            "actors": [self._actor(actor) for actor in d.culprit.actors] if d.culprit else [],
            "gains": [self.finding(f) for f in d.findings if _gain(f)],
            "evidence": evidence,
            "evidence_left": left,
            "chain": [Safe(_tag(finding) + self._say.lead(self._without_place(finding))) for finding in chain],
            "ruled_out": self._ruled_out(
                state(CauseState.RULED_OUT), causes, by_id, shown, _ALL if budget is None else _LINE
            ),
            "rivals": other_causes(d, causes, self._suffix, self._lang),
            "not_examined": not_examined if self._suffix == "txt" else self._some(not_examined, budget),
            "blind": self.blind(d.coverage),
            "reasoned": explanation(
                d.reasoning,
                by_id,
                causes,
                self._suffix,
                self._lang,
                budget // 2 if budget else _STORY,
                {(id, a.cause) for a in d.assessments for id in a.against},
            ),
            "matches": match_texts(d.matches, self._suffix, self._lang, d.victim),
            "answered": not d.matches or any(not match.weak for match in d.matches),
        }

    def normal(self, findings: Sequence[Finding], budget: int) -> list[Safe]:
        """Return normal findings in few words: the first of each kind, and how many more there are of it."""
        kinds: dict[str, list[Finding]] = {}
        for one in findings:
            kinds.setdefault(one.kind, []).append(one)
        parts = []
        for of_kind in kinds.values():
            more = f" (+{len(of_kind) - 1})" if len(of_kind) > 1 else ""
            parts.append(Safe(f"{_tag(of_kind[0])}{self._say.finding(self._without_place(of_kind[0]), 1)}{more}"))
        return self._line(parts, budget)

    def _line(self, parts: list[Safe], budget: int) -> list[Safe]:
        """Return `parts` as one line within about `budget` characters; empty without any."""
        kept, left = fit(parts, budget)
        shown = [*kept, *([self.fill(self._labels["left_out"], left)] if left else [])]
        return [Safe(self._marks["semicolon"].join(shown))] if shown else []

    def _some(self, titles: list[Safe], budget: int | None) -> list[Safe]:
        left = len(titles) - _TITLES
        return titles if budget is None or left <= 0 else [*titles[:_TITLES], self.fill(self._labels["left_out"], left)]

    def title(self, d: Diagnosis | None, cause: Cause | None) -> Safe:
        """Return the default title of a ticket. A cause without enough evidence is a candidate."""
        if cause is not None:
            title = Safe(cause.title.get(self._lang))
            weak = d is not None and d.verdict is Verdict.INCONCLUSIVE
            return self.fill(self._labels["candidate"], title) if weak else title
        return self._labels["no_cause"] if d is not None else words(self._lang)["tickets"]["untitled"]

    def _title(self, cause: str, causes: Mapping[str, Cause]) -> Safe:
        found = causes.get(cause)
        return Safe(found.title.get(self._lang)) if found else self._format.name(cause)

    def _ruled_out(
        self,
        found: Sequence[Assessment],
        causes: Mapping[str, Cause],
        by_id: Mapping[str, Finding],
        shown: set[str],
        budget: int,
    ) -> list[Safe]:
        """Return a line for each finding that rules causes out, with these; on terminals one line of about `budget`
        characters. `shown`: findings already shown in full; only their first number is repeated."""
        groups: dict[str, list[Assessment]] = {}
        for a in found:
            groups.setdefault(next((i for i in a.against if i in by_id), ", ".join(a.by)), []).append(a)
        if self._suffix == "txt":
            parts = [
                f"{self._marks['semicolon'].join(self._title(a.cause, causes) for a in group)} [{number}]"
                for number, group in groups.items()
            ]
            return self._line([Safe(part) for part in parts], budget)
        lines = []
        for number, group in groups.items():
            titles = Safe(self._marks["semicolon"].join(self._title(a.cause, causes) for a in group))
            by = self.fill(self._labels["ruled_out_by"], ", ".join(dict.fromkeys(tool for a in group for tool in a.by)))
            parts = [by]
            if against := by_id.get(number):
                bare = Safe(_tag(against) + self._say.finding(self._without_place(against), 4))
                parts.append(bare if against.id in shown else self.finding(against))
            lines.append(Safe(f"{titles}{self._marks['colon']}{self._marks['semicolon'].join(parts)}"))
        return lines

    def _victim(self, victim: Victim) -> Safe:
        if victim.type != "thread":
            return self._late(victim)
        shares = {
            name: Safe(quantity(getattr(victim, f"{name}_pct"), "pct"))
            for name in ("lost", "blocked", "runnable", "system", "user", "idle")
        }
        return self.fill(
            self._labels["victim"],
            comm=self._format.name(victim.comm),
            pid=victim.pid,
            tid=victim.tid,
            chosen_by=self._say.code("chosen_by", victim.chosen_by),
            **shares,
        )

    def _busy(self, d: Diagnosis) -> Safe:
        """Return the advice for a victim that mostly runs and is not delayed: how to find its code, unless the account
        of its time has it.
        """
        victim = d.victim
        unblamed = d.verdict in (Verdict.HEALTHY, Verdict.INCONCLUSIVE) and d.cause is None
        if victim is None or victim.type != "thread" or victim.user_pct < _BUSY_PCT or not unblamed or d.account:
            return Safe("")
        return self.fill(self._labels["busy"], pct=Safe(quantity(victim.user_pct, "pct")), pid=victim.pid)

    def _late(self, victim: Victim) -> Safe:
        """Return the accused rank, or the job if no single rank is accused."""
        known = {
            "lost": Safe(quantity(victim.lost_pct, "pct")),
            "chosen_by": self._say.code("chosen_by", victim.chosen_by),
        }
        if victim.rank is None:
            return self.fill(self._labels["victim_job"], **known)
        where = [self._format.name(victim.host)] if victim.host else []
        where += [Safe(f"pid {victim.pid}")] if victim.pid else []
        rank = Safe(words(self._lang)["ranks"]["rank"].format(victim.rank))
        at = Safe(f" ({self._marks['comma'].join(where)})" if where else "")
        return self.fill(self._labels["victim_rank"], rank=rank, where=at, **known)

    def _where(self, culprit: Culprit) -> Safe:
        places = [p for p in (culprit.path, culprit.device, culprit.cgroup) if p]
        parts = [self._format.name(short(place, 4 * self._format.name_limit)) for place in places]
        if culprit.rank is not None:
            parts.insert(0, Safe(words(self._lang)["ranks"]["rank"].format(culprit.rank)))
        if culprit.host:
            parts.append(Safe(f"{self._labels['host']} {self._format.name(culprit.host)}"))
        if culprit.name:
            parts.append(self.fill(self._labels["mostly"], self._format.name(short(culprit.name, 200))))
        if culprit.code and not culprit.awaited:
            parts.append(self.fill(self._labels["at_code"], self._say.place(culprit.code)))
        calls = culprit.operations or culprit.syscall
        if calls:
            parts.append(self.fill(self._labels["in_calls"], self._format.name(calls)))
        if culprit.kernel_path and self._suffix != "txt":  # the evidence has it
            path = self._format.name(short(culprit.kernel_path, self._format.name_limit))
            parts.append(self.fill(self._labels["through"], path))
        text = Safe(self._marks["comma"].join(parts))
        return self._awaited(culprit, culprit.awaited, text) if culprit.awaited else text

    def _awaited(self, culprit: Culprit, awaited: Awaited, waits: Safe) -> Safe:
        """Return the thread that the victim waits for and its place, then the place where the victim waits."""
        parts = [self._say.path.thread(awaited.thread)]
        if awaited.code:
            parts.append(self.fill(self._labels["at_code"], self._say.place(awaited.code)))
        if awaited.object:
            parts.append(self._format.name(short(awaited.object, self._format.name_limit)))
        if culprit.code:
            parts.append(self.fill(self._labels["waits_at"], culprit.comm or "?", self._say.place(culprit.code)))
        return Safe(self._marks["comma"].join([*parts, *([waits] if waits else [])]))

    def _actor(self, actor: Actor) -> Safe:
        """Return a process that delays the victim, its line, file and rate."""
        who = self._format.name(actor.comm or "?")
        parts = [Safe(f"{who} (pid {actor.pid})") if actor.pid is not None else who]
        if (where := place(actor.container, actor.pod)) and not self._target_names(where):
            parts.append(self._say.place_of(actor.container, actor.pod))
        parts += [self.fill(self._labels["at_code"], self._say.place(actor.code))] if actor.code else []
        parts += [self._format.name(short(actor.path, 4 * self._format.name_limit))] if actor.path else []
        parts += [Safe(quantity(actor.rate, "bytes/s"))] if actor.rate is not None else []
        return Safe(self._marks["comma"].join(parts))

    def _how_long(self, culprit: Culprit) -> Safe:
        once = culprit.count == 1
        # In older diagnoses `max_ms` may be of a part only.
        longest = None if once or (culprit.max_ms or 0) < (culprit.latency_ms or 0) else culprit.max_ms
        measured: list[tuple[str, float | None, str]] = [
            ("took" if once else "each", culprit.latency_ms, "ms"),
            ("longest", longest, "ms"),
            ("once" if once else "count", culprit.count, "count"),
            ("every", culprit.period_s, "s"),
            ("per_step", culprit.per_step_ms, "ms"),
            ("share", culprit.window_pct, "pct"),
        ]
        parts = [self.fill(self._labels[name], Safe(quantity(v, unit))) for name, v, unit in measured if v is not None]
        return Safe(self._marks["comma"].join(parts))


def _tag(finding: Finding) -> str:
    return f"[{finding.id}] " if finding.id else ""


def _remedies(cause: Cause, d: Diagnosis, lang: Lang) -> list[Safe]:
    """Return the texts of the remedies, those chosen by the model first, then best first."""
    first = d.reasoning.remedies if d.reasoning else []
    ranked = ranked_remedies(cause, [finding for finding in d.findings if finding.id in d.chain])
    ordered = sorted(ranked, key=lambda r: first.index(r.id) if r.id in first else len(first))
    return [Safe(remedy.text.get(lang)) for remedy in ordered]


def _gain(finding: Finding) -> bool:
    """Return whether it measures the gain of a change by a trial on this host."""
    return finding.kind == "io.advice" and finding.polarity is Polarity.ABNORMAL and "ratio" in finding.metrics


def _by_state(assessments: Sequence[Assessment]) -> Callable[[CauseState], list[Assessment]]:
    return lambda state: [a for a in assessments if a.state is state]


def _worst_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: (f.polarity is Polarity.NORMAL, -f.severity.rank, -f.window_pct))


def _collectors(coverage: Sequence[Coverage]) -> list[CollectorCoverage]:
    """Return the collectors of all observations; each from the longest one."""
    found: dict[str, CollectorCoverage] = {}
    for one in sorted(coverage, key=lambda c: c.window_s):
        found |= {c.name: c for c in one.collectors}
    return [found[name] for name in sorted(found)]
