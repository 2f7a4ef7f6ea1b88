"""The values that templates of results, diagnoses and tickets show, in one format and language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whystall.agent_server.presentation.account_lines import account_text, compared_lines, other_causes
from whystall.agent_server.presentation.defect_lines import defect_text
from whystall.agent_server.presentation.match_lines import match_texts
from whystall.agent_server.presentation.reasoning_lines import explanation
from whystall.agent_server.presentation.serving_lines import slowest_stage
from whystall.knowledge_base.causes import ranked_remedies
from whystall.knowledge_base.models import (
    CRASHED,
    Actor,
    Assessment,
    Awaited,
    Cause,
    CauseState,
    Culprit,
    Diagnosis,
    Lang,
    Verdict,
    Victim,
)
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, fit, voice, words
from whystall.prompts.sentences import Voice
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.result import BlindSpot, Coverage, ToolResult
from whystall.tools.node.containers import place

ALL = 1_000_000
"""Characters of a text without a limit."""
TITLES = 3
"""Causes that were not examined, named in a short text."""
_ACCOUNT = 1600
# Characters of what was ruled out, in one line.
_LINE = 500
_STORY = 20_000
_REMEDIES = 8
# A thread with this share of user time is limited by its own code.
_BUSY_PCT = 50.0


class TemplateValues:
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
        return Safe(f"{tag(finding)}{mark}{self._say.finding(self._without_place(finding))}")

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
            "known": self._known(d, "relevant"),
            "maybe": self._known(d, "possible"),
            "window_s": max((c.window_s for c in d.coverage), default=0.0),
            "victim": self._victim(d.victim) if d.victim else "",
            "busy": self._busy(d),
            "stages": [self.finding(finding) for finding in slowest_stage(d.findings)],
            "account": account,
            "compared": compared_lines(d.compared, self._lang, d.findings) if self._suffix == "txt" else [],
            "where": self._where(d.culprit) if d.culprit else "",
            "how_long": self._how_long(d.culprit) if d.culprit else "",
            "actors": [self._actor(actor) for actor in d.culprit.actors] if d.culprit else [],
            "gains": [self.finding(f) for f in d.findings if _gain(f)],
            "evidence": evidence,
            "evidence_left": left,
            "chain": [Safe(tag(finding) + self._say.lead(self._without_place(finding))) for finding in chain],
            "ruled_out": self._ruled_out(
                state(CauseState.RULED_OUT), causes, by_id, shown, ALL if budget is None else _LINE
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

    def _known(self, d: Diagnosis, standing: str) -> list[Safe]:
        return [defect_text(row, self._suffix, self._lang) for row in d.known_fixes if row.standing == standing]

    def normal(self, findings: Sequence[Finding], budget: int) -> list[Safe]:
        """Return normal findings in few words: the first of each kind, and how many more there are of it."""
        kinds: dict[str, list[Finding]] = {}
        for one in findings:
            kinds.setdefault(one.kind, []).append(one)
        parts = []
        for of_kind in kinds.values():
            more = f" (+{len(of_kind) - 1})" if len(of_kind) > 1 else ""
            parts.append(Safe(f"{tag(of_kind[0])}{self._say.finding(self._without_place(of_kind[0]), 1)}{more}"))
        return self._line(parts, budget)

    def _line(self, parts: list[Safe], budget: int) -> list[Safe]:
        """Return `parts` as one line within about `budget` characters; empty without any."""
        kept, left = fit(parts, budget)
        shown = [*kept, *([self.fill(self._labels["left_out"], left)] if left else [])]
        return [Safe(self._marks["semicolon"].join(shown))] if shown else []

    def _some(self, titles: list[Safe], budget: int | None) -> list[Safe]:
        left = len(titles) - TITLES
        return titles if budget is None or left <= 0 else [*titles[:TITLES], self.fill(self._labels["left_out"], left)]

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
                bare = Safe(tag(against) + self._say.finding(self._without_place(against), 4))
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
        if victim.rank is None and victim.chosen_by != CRASHED:
            return self.fill(self._labels["victim_job"], **known)
        where = [self._format.name(victim.host)] if victim.host else []
        where += [Safe(f"pid {victim.pid}")] if victim.pid else []
        rank = Safe(words(self._lang)["ranks"]["rank"].format(victim.rank))
        at = Safe(f" ({self._marks['comma'].join(where)})" if where else "")
        if victim.chosen_by == CRASHED:  # by a log, which shows no time
            who = Safe(self._labels["job"]) if victim.rank is None else rank
            return self.fill(self._labels["victim_crashed"], who=who, where=at, chosen_by=known["chosen_by"])
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


def tag(finding: Finding) -> str:
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
