"""Check a model's conclusion against the evidence: strike unsupported claims and compute the verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.grounding.claims import CaseFacts, fault, tidy
from whystall.agent_server.diagnosis.grounding.model_conclusion import CLAIM_LIMIT, UNKNOWN, ModelConclusion
from whystall.agent_server.diagnosis.verdict import Conclusion
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import CauseState, Claim, Lang, Verdict
from whystall.prompts.fence import Fence
from whystall.prompts.render import words

_NO_CAUSE = (UNKNOWN, "", "none", "null", "healthy", "idle")
_UNSUPPORTED = "model_unsupported"


@dataclass(frozen=True)
class Struck:
    """A part of a conclusion that nothing supports.

    `code`: the fault (``struck`` in ``prompts/words``); `where`: number of the link (from 1), 0 for the cause or a
    remedy; `what`: the words in question; `text`: all that is removed, for the transcript only.
    """

    code: str
    where: int
    what: str
    text: str


@dataclass(frozen=True)
class Grounded:
    """The supported rest of a conclusion. `cause`: None if none is named, or none that the evidence allows."""

    cause: str | None = None
    story: list[Claim] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)

    @property
    def codes(self) -> list[str]:
        """One code per removed claim, cause or remedy, in order."""
        return [s.code for s in self.struck]


def ground(concluded: ModelConclusion, case: Case) -> Grounded:
    """Return `concluded` without what the evidence of `case` does not support."""
    struck: list[Struck] = []
    story: list[Claim] = []
    known = _facts(case)
    for number, link in enumerate(concluded.chain, 1):
        text = tidy(link.claim, CLAIM_LIMIT)
        wrong = fault(text, link.findings, known)
        if wrong is None:
            story.append(Claim(text=text, findings=link.findings))
        else:
            struck.append(Struck(wrong[0], number, wrong[1], link.claim))
    cause, code = _cause(concluded.cause, case)
    if code is not None:
        struck.append(Struck(code, 0, concluded.cause, concluded.cause))
    treated = cause or case.conclude().cause
    remedies = {r.id for r in case.causes[treated].remedies} if treated else set()
    named = list(dict.fromkeys(concluded.remedies))
    struck += [Struck("remedy", 0, r, r) for r in named if r not in remedies]
    return Grounded(cause, story, [r for r in named if r in remedies], struck)


def feedback(grounded: Grounded, lang: Lang, fence: Fence) -> str:
    """Return the message to the model about what was struck; empty if nothing was.

    Its own words are quoted inside `fence`, because they may be injected text.
    """
    if not grounded.struck:
        return ""
    texts = words(lang)["objections"]
    lines = [texts["intro"]]
    for one in grounded.struck:
        where = texts["link"].format(one.where) if one.where else texts["other"]
        lines.append(f"- {where}{words(lang)['marks']['colon']}{texts['codes'][one.code]}\n{fence.put(one.what)}")
    return "\n".join([*lines, texts["again"]])


def settle(case: Case, grounded: Grounded) -> Conclusion:
    """Return the verdict of the evidence, given the checked conclusion of the model.

    The model may prefer a cause that the evidence supports about as well; it is then at most likely. Anything struck
    lowers a confirmed verdict to likely. A verdict without a fault does not change.
    """
    found = case.conclude(grounded.cause)
    if not grounded.struck or found.verdict.no_fault:
        return found
    verdict = Verdict.LIKELY if found.verdict is Verdict.CONFIRMED else found.verdict
    return replace(found, verdict=verdict, missing=[*found.missing, _UNSUPPORTED])


def _facts(case: Case) -> CaseFacts:
    return CaseFacts(
        findings={f.id: f for f in case.findings},
        kinds=frozenset(kind for name in case.reliable_tools() for kind in case.tools[name].kinds),
        victim=case.victim(),
        windows_s=[r.coverage.window_s for r in case.results.values()],
        assessments=case.assess(),
        causes=frozenset(load_causes()),
        verdict=case.conclude().verdict,
    )


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
