"""The text of a model-driven case: checked relations, its unverified words, what was refused, why it stopped, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from whystall.knowledge_base.finding_values import value_of
from whystall.knowledge_base.models import Cause, Check, Claim, Lang, OtherProcess, Reasoning, Unverified
from whystall.prompts.escape import Safe, short
from whystall.prompts.placeholders import escaped, filled
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, fit, voice, words
from whystall.tools.contract.findings import Finding, Polarity

_NAME = 120  # characters of a value in running text
_OTHERS = 3  # findings of another process


@dataclass(frozen=True)
class Explanation:
    """`heading` and `story`: the checked relations, empty without any; `left`: number of those that did not fit.
    `apart` and `unverified`: the model's own words, empty without any.
    """

    heading: Safe = field(default_factory=Safe)
    story: list[Safe] = field(default_factory=list)
    left: int = 0
    apart: Safe = field(default_factory=Safe)
    unverified: list[Safe] = field(default_factory=list)
    notes: list[Safe] = field(default_factory=list)


def explanation(
    reasoning: Reasoning | None,
    findings: Mapping[str, Finding],
    causes: Mapping[str, Cause],
    suffix: str,
    lang: Lang,
    budget: int,
    ruled_out: Collection[tuple[str, str]] = (),
) -> Explanation:
    """Return the text of `reasoning`, with relations of at most `budget` characters; empty without a model. A relation
    with a finding that is not in `findings` (by id) is left out, and so is one that is shown elsewhere: `ruled_out`,
    finding and cause.
    """
    if reasoning is None:
        return Explanation()
    texts, form = words(lang)["reasoned"], FORMATS[suffix]
    claims = [c for c in reasoning.claims if c.relation != "rules_out" or (c.subject, c.object) not in ruled_out]
    lines = [line for claim in claims if (line := _relation(claim, findings, causes, suffix, lang))]
    story, left = fit(lines, budget)
    own = _unverified(reasoning.unverified, findings, suffix, lang)
    model = form.name(reasoning.model)
    marks = words(lang)["marks"]
    notes = []
    if reasoning.struck:
        counted = Counter(reasoning.struck)
        reasons = [f"{voice(suffix, lang).code('struck', code)} ({number})" for code, number in counted.items()]
        notes.append(Safe(texts["struck"].format(marks["semicolon"].join(reasons))))
    if reasoning.stopped is not None:
        notes.append(Safe(texts["stopped"].format(voice(suffix, lang).code("stopped", reasoning.stopped))))
    notes += [_other(other, suffix, lang) for other in reasoning.others]
    usage = reasoning.usage
    if usage.requests:
        spent = [texts["requests"].format(model=model, count=quantity(usage.requests, "count"))]
        spent.append(texts["tokens"].format(*(quantity(n, "count") for n in (usage.tokens_in, usage.tokens_out))))
        spent.append(quantity(usage.seconds, "s"))
        spent += [texts["money"].format(f"{usage.money:.4g}")] if usage.money is not None else []
        notes.append(Safe(marks["comma"].join(spent)))
    if reasoning.transcript is not None:
        notes.append(fill(form.running, texts["transcript"], form.name(reasoning.transcript)))
    heading = Safe(texts["heading"].format(model)) if story else Safe("")
    apart = Safe(texts["unverified"].format(model)) if own else Safe("")
    return Explanation(heading, story, left, apart, own, notes)


def _other(other: OtherProcess, suffix: str, lang: Lang) -> Safe:
    """Return what was found of another process, its most severe findings first."""
    texts, say, marks = words(lang)["reasoned"], voice(suffix, lang), words(lang)["marks"]
    worst = sorted((f for f in other.findings if f.polarity is Polarity.ABNORMAL), key=lambda f: -f.severity.rank)
    found = marks["semicolon"].join(say.lead(f) for f in worst[:_OTHERS]) or texts["other_nothing"]
    role = {**words(lang)["relations"]["roles"], **texts["other_roles"]}[other.role]
    tools = marks["comma"].join(FORMATS[suffix].name(tool) for tool in other.tools)
    named = {"pid": other.pid, "finding": other.finding, "role": role, "tools": tools, "found": found}
    return Safe(texts["other"].format(**named))


def _relation(
    claim: Claim, findings: Mapping[str, Finding], causes: Mapping[str, Cause], suffix: str, lang: Lang
) -> Safe | None:
    """Return a checked relation as text; None if it names a finding that is not there."""
    texts, say = words(lang)["relations"], voice(suffix, lang)

    def named(id: str) -> Safe | None:
        if id in causes:
            return Safe(causes[id].title.get(lang))
        return Safe(f"[{id}] {say.lead(findings[id])}") if id in findings else None

    subject, object = named(claim.subject), named(claim.object)
    if subject is None or object is None:
        return None
    if claim.role and claim.relation == "waits_for":
        object = Safe(texts["as"].format(object, texts["roles"][claim.role]))
    if claim.relation == "explains_share_of":
        if claim.share_pct is None:
            return Safe(texts["explains_part_of"].format(subject=subject, object=object))
        share = quantity(claim.share_pct, "pct")
        return Safe(texts["explains_share_of"].format(subject=subject, object=object, share=share))
    return Safe(texts[claim.relation].format(subject=subject, object=object))


def _unverified(own: Unverified, findings: Mapping[str, Finding], suffix: str, lang: Lang) -> list[Safe]:
    """Return the free text of a model, escaped, with the values of its placeholders."""
    form, texts, marks = FORMATS[suffix], words(lang)["reasoned"], words(lang)["marks"]

    def value(name: str) -> Safe | None:
        id, _, field = name.partition(".")
        if id not in findings:
            return None
        known = value_of(findings[id], field) if field else (id, "")
        if known is None:
            return None
        text, unit = known
        return Safe(quantity(text, unit)) if isinstance(text, float) else form.name(short(text, _NAME))

    lines = [filled(text, value, form.running) for text in (own.hypothesis, own.narrative) if text]
    if own.proposed:
        lines.append(
            Safe(texts["proposed"].format(marks["semicolon"].join(escaped(t, form.running) for t in own.proposed)))
        )
    if own.checks:
        lines.append(Safe(texts["checks"].format(marks["semicolon"].join(form.name(_call(c)) for c in own.checks))))
    return lines


def _call(check: Check) -> str:
    return f"{check.tool}({', '.join(f'{name}={_literal(value)}' for name, value in check.arguments.items())})"


def _literal(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
