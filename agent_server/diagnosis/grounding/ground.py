"""What a model concluded, held against what was found. Claims that nothing supports are struck, and the verdict is
computed from the evidence. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from whystall.agent_server.diagnosis.grounding.claims import CaseFacts, fault, tidy
from whystall.agent_server.diagnosis.grounding.model_conclusion import CLAIM_LIMIT, UNKNOWN, ModelConclusion
from whystall.agent_server.diagnosis.verdict import Conclusion
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import CauseState, Claim, Lang, Verdict
from whystall.prompts.render import words
from whystall.tools.contract.result import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.agent_server.diagnosis.case import Case
    from whystall.prompts.fence import Fence

_NO_CAUSE = (UNKNOWN, "", "none", "null", "healthy")
_UNSUPPORTED = "model_unsupported"


@dataclass(frozen=True)
class Struck:
    """Something that nothing supports. `code`: what is wrong (``struck`` in ``prompts/words``); `where`: number of the
    link (from 1), 0 for the cause or a remedy; `what`: the words in question; `text`: all that is taken out, for the
    transcript only.
    """

    code: str
    where: int
    what: str
    text: str


@dataclass(frozen=True)
class Grounded:
    """What is left. `cause`: None where the model names none, or none that the evidence allows. `remedies`: ids."""

    cause: str | None = None
    story: list[Claim] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)

    @property
    def codes(self) -> list[str]:
        """One code per claim, cause or remedy taken out, in order."""
        return [s.code for s in self.struck]


@dataclass(frozen=True)
class Settled:
    """The verdict of a case with what a model adds to it; see `Grounded`."""

    conclusion: Conclusion
    story: list[Claim]
    remedies: list[str]
    struck: list[str]


def ground(concluded: ModelConclusion, case: Case) -> Grounded:
    """`concluded` without what the evidence of `case` does not support."""
    struck: list[Struck] = []
    story: list[Claim] = []
    surroundings = _surroundings(case)
    for number, link in enumerate(concluded.chain, 1):
        text = tidy(link.claim, CLAIM_LIMIT)
        found = fault(text, link.findings, surroundings)
        if found is None:
            story.append(Claim(text=text, findings=link.findings))
        else:
            struck.append(Struck(found[0], number, found[1], link.claim))
    cause, wrong = _cause(concluded.cause, case)
    if wrong is not None:
        struck.append(Struck(wrong, 0, concluded.cause, concluded.cause))
    known = {r.id for r in case.causes[cause].remedies} if cause else _own_remedies(case)
    remedies = [r for r in dict.fromkeys(concluded.remedies) if r in known]
    struck += [Struck("remedy", 0, r, r) for r in dict.fromkeys(concluded.remedies) if r not in known]
    return Grounded(cause, story, remedies, struck)


def told(grounded: Grounded, lang: Lang, fence: Fence) -> str:
    """What the model is told about what was struck; empty where nothing was. Its own words may be those of a stranger
    and come back inside `fence`.
    """
    if not grounded.struck:
        return ""
    said = words(lang)["told"]
    lines = [said["intro"]]
    for one in grounded.struck:
        where = said["link"].format(one.where) if one.where else said["other"]
        lines.append(f"- {where}{words(lang)['marks']['colon']}{said['codes'][one.code]}\n{fence.put(one.what)}")
    return "\n".join([*lines, said["again"]])


def settle(case: Case, grounded: Grounded) -> Settled:
    """The verdict that the evidence carries, with what is left of the model's explanation.

    The model may prefer a cause that the evidence supports about as well; it is then at most likely. What was struck
    lowers a confirmed verdict to likely. A healthy one stays as it is.
    """
    found = case.conclude(grounded.cause)
    if not grounded.struck or found.verdict is Verdict.HEALTHY:
        return Settled(found, grounded.story, grounded.remedies, grounded.codes)
    verdict = Verdict.LIKELY if found.verdict is Verdict.CONFIRMED else found.verdict
    lowered = Conclusion(
        verdict, found.cause, found.explained_pct, found.severity, found.chain, [*found.missing, _UNSUPPORTED]
    )
    return Settled(lowered, grounded.story, grounded.remedies, grounded.codes)


def _surroundings(case: Case) -> CaseFacts:
    """What `fault` needs of `case`: only what tools found that were alive counts as examined."""
    results = case.results.values()
    alive = [r.tool for r in results if r.status is not Status.PARTIAL or all(c.proven for c in r.coverage.collectors)]
    return CaseFacts(
        findings={f.id: f for f in case.findings},
        kinds=frozenset(kind for name in alive for kind in case.tools[name].kinds),
        victim=case.victim(),
        windows_s=[r.coverage.window_s for r in results],
        assessments=case.assess(),
        causes=frozenset(load_causes()),
        verdict=case.conclude().verdict,
    )


def _cause(named: str, case: Case) -> tuple[str | None, str | None]:
    """The cause that stays, and the code of what is wrong with one that does not."""
    cause = named.strip().lower()
    if cause in _NO_CAUSE:
        return None, None
    if cause not in load_causes():
        return None, "unknown_cause"
    allowed: Sequence[str] = [a.cause for a in case.assess() if a.state is CauseState.SUPPORTED]
    if cause not in allowed or case.conclude(cause).cause != cause:
        return None, "contradicted"
    return cause, None


def _own_remedies(case: Case) -> set[str]:
    own = case.conclude().cause
    return {r.id for r in case.causes[own].remedies} if own else set()
