"""Check a model's conclusion against the evidence: refuse unsupported relations and compute the verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whystall.agent_server.diagnosis.briefing import finding_data
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.grounding.model_conclusion import OTHER, UNKNOWN, ModelConclusion, OldConclusion
from whystall.agent_server.diagnosis.grounding.relations import CaseFacts, Fault, fault
from whystall.agent_server.diagnosis.verdict import Conclusion
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.finding_values import names_of
from whystall.knowledge_base.models import CauseState, Claim, Lang, Unverified, Verdict
from whystall.prompts import placeholders
from whystall.prompts.fence import Fence
from whystall.prompts.render import words
from whystall.tools.contract.findings import Finding

_NO_CAUSE = (UNKNOWN, OTHER, "", "none", "null", "healthy", "idle")
_UNSUPPORTED = "model_unsupported"
# Faults of form: the text or remedy is left out, and the verdict stays.
_OF_FORM = ("placeholder", "literal", "remedy")
_VALID = 40  # placeholders listed


@dataclass(frozen=True)
class Struck:
    """A part of a conclusion that is refused.

    `code`: the fault (``struck`` in ``prompts/words``); `where`: number of the claim (from 1), 0 for anything else;
    `what`: data about it for the model; `text`: what is removed, for the transcript only.
    """

    code: str
    where: int
    what: Any
    text: str


@dataclass(frozen=True)
class Grounded:
    """The rest of a conclusion. `cause`: None if none is named, or none that the evidence allows. `lowers`: something
    was refused that the evidence does not support."""

    cause: str | None = None
    claims: list[Claim] = field(default_factory=list)
    unverified: Unverified = field(default_factory=Unverified)
    remedies: list[str] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    lowers: bool = False

    @property
    def codes(self) -> list[str]:
        """One code per removed part, in order."""
        return [s.code for s in self.struck]


def ground(concluded: ModelConclusion, case: Case) -> Grounded:
    """Return `concluded` without what the evidence of `case` does not support."""
    struck: list[Struck] = []
    claims: list[Claim] = []
    facts = facts_of(case)
    for number, claim in enumerate(concluded.claims, 1):
        wrong = fault(claim, facts)
        if wrong is None:
            claims.append(claim)
        else:
            struck.append(Struck(wrong.code, number, _what(claim, wrong, facts), claim.model_dump_json()))
    cause, code = _cause(concluded.cause, case)
    if code is not None:
        struck.append(Struck(code, 0, concluded.cause, concluded.cause))
    treated = cause or case.conclude().cause
    remedies = {r.id for r in case.causes[treated].remedies} if treated else set()
    named = list(dict.fromkeys(concluded.remedies))
    struck += [Struck("remedy", 0, r, r) for r in named if r not in remedies]
    unverified = concluded.unverified
    if wrong_text := _narrative(unverified.narrative, case.findings):
        struck.append(wrong_text)
        unverified = unverified.model_copy(update={"narrative": ""})
    lowers = any(one.code not in _OF_FORM for one in struck)
    if isinstance(concluded, OldConclusion):  # judged then, by other rules
        struck = [Struck(code, 0, text, text) for code, text in concluded.refused]
        lowers = bool(struck)
    return Grounded(cause, claims, unverified, [r for r in named if r in remedies], struck, lowers)


def checked(claims: Sequence[Claim], case: Case, lang: Lang) -> list[dict[str, Any]]:
    """Return each claim as data for the model: whether the findings support it, else why not, and what to see."""
    facts = facts_of(case)
    texts = words(lang)["objections"]["codes"]
    found = [(claim, fault(claim, facts)) for claim in claims]
    return [
        {**_what(claim, wrong, facts), "supported": wrong is None, **({"why": texts[wrong.code]} if wrong else {})}
        for claim, wrong in found
    ]


def _what(claim: Claim, wrong: Fault | None, facts: CaseFacts) -> dict[str, Any]:
    finding = facts.findings.get(wrong.finding) if wrong is not None else None
    return {
        "claim": claim.model_dump(exclude_defaults=True),
        **({"see": finding_data(finding)} if finding is not None else {}),
    }


def feedback(grounded: Grounded, lang: Lang, fence: Fence) -> str:
    """Return the message to the model about what was struck; empty if nothing was.

    Its own words are quoted inside `fence`, because they may be injected text.
    """
    if not grounded.struck:
        return ""
    texts = words(lang)["objections"]
    lines = [texts["intro"]]
    for one in grounded.struck:
        where = texts["claim"].format(one.where) if one.where else texts["other"]
        why = texts["codes"].get(one.code, texts["codes"]["contradicted"])
        lines.append(f"- {where}{words(lang)['marks']['colon']}{why}\n{fence.put(one.what)}")
    return "\n".join([*lines, texts["again"]])


def settle(case: Case, grounded: Grounded) -> Conclusion:
    """Return the verdict of the evidence, given the checked conclusion of the model.

    The model may prefer a cause that the evidence supports about as well; it is then at most likely. A refused relation
    or cause lowers a confirmed verdict to likely; wording never does. A verdict without a fault does not change.
    """
    found = case.conclude(grounded.cause)
    if found.verdict.no_fault or not grounded.lowers:
        return found
    verdict = Verdict.LIKELY if found.verdict is Verdict.CONFIRMED else found.verdict
    return replace(found, verdict=verdict, missing=[*found.missing, _UNSUPPORTED])


def facts_of(case: Case) -> CaseFacts:
    """Return the evidence of `case` for the checks: every cause of the catalogue counts, whatever the symptom."""
    causes = load_causes()
    reliable = set(case.reliable_tools())
    results = case.results.items()
    return CaseFacts(
        findings={f.id: f for f in case.findings},
        assessments={a.cause: a for a in (*case.assess(causes), *case.assess())},
        causes=causes,
        victim=case.victim(),
        reliable=frozenset(f.id for name, r in results if name in reliable for f in r.findings),
        window_ns={f.id: round(r.coverage.window_s * 1e9) for _, r in results for f in r.findings},
    )


def _narrative(text: str, findings: Sequence[Finding]) -> Struck | None:
    """Return what is wrong with the placeholders or numbers of a narrative."""
    known = {f.id: names_of(f) for f in findings}
    named = placeholders.names(text)
    unknown = [name for name in named if not _valid(name, known)]
    if unknown:
        ids = [id for id in dict.fromkeys(name.partition(".")[0] for name in unknown) if id in known]
        valid = [f"{id}.{name}" for id in ids for name in known[id]][:_VALID] or [f"{id}.NAME" for id in known][:_VALID]
        return Struck("placeholder", 0, {"unknown": unknown[:_VALID], "valid": valid}, text)
    if written := placeholders.numbers(text):
        return Struck("literal", 0, written[:_VALID], text)
    return None


def _valid(name: str, known: dict[str, list[str]]) -> bool:
    id, dot, value = name.partition(".")
    return id in known and (not dot or value in known[id])


def _cause(named: str, case: Case) -> tuple[str | None, str | None]:
    """Return the cause if the evidence allows it, else None and the code of the fault."""
    cause = named.strip().lower()
    if cause in _NO_CAUSE:
        return None, None
    if cause not in load_causes():
        return None, "unknown_cause"
    supported = any(a.cause == cause and a.state is CauseState.SUPPORTED for a in case.assess())
    if not supported or case.conclude(cause).cause != cause:
        return None, "contradicted"
    return cause, None
