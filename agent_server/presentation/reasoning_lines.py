"""The text of a model-driven case: story with citations, removed claims, why it stopped, cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from whystall.knowledge_base.models import Claim, Lang, Reasoning
from whystall.prompts.escape import Safe
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, fit, voice, words

# Splits a text into runs of ASCII, blanks, and other characters one by one; punctuation around a run is separated.
# Only blanks and numbers need no escaping.
_PART = re.compile(r"[!-~]+|\s+|[^\s!-~]+")
_AROUND = re.compile(r"([('\"]*)(.*?)([.,;:!?'\")]*)", re.DOTALL)
_PLAIN = re.compile(r"\s+|\d[\d.,]*%?")


@dataclass(frozen=True)
class Explanation:
    """`heading` and `story`: empty without a story; `left`: number of claims that did not fit."""

    heading: Safe = field(default_factory=Safe)
    story: list[Safe] = field(default_factory=list)
    left: int = 0
    notes: list[Safe] = field(default_factory=list)


def explanation(
    reasoning: Reasoning | None, known: Collection[str], suffix: str, lang: Lang, budget: int
) -> Explanation:
    """Return the text of `reasoning`, with a story of at most `budget` characters; empty without a model. Citations not
    in `known` (ids of findings) are dropped.
    """
    if reasoning is None:
        return Explanation()
    texts, form = words(lang)["reasoned"], FORMATS[suffix]
    lines = [_claim(claim, known, suffix) for claim in reasoning.story]
    story, left = fit(lines, budget)
    model = form.name(reasoning.model)
    marks = words(lang)["marks"]
    notes = []
    if reasoning.struck:
        counted = Counter(reasoning.struck)
        reasons = [f"{voice(suffix, lang).code('struck', code)} ({number})" for code, number in counted.items()]
        notes.append(Safe(texts["struck"].format(marks["semicolon"].join(reasons))))
    if reasoning.stopped is not None:
        notes.append(Safe(texts["stopped"].format(voice(suffix, lang).code("stopped", reasoning.stopped))))
    usage = reasoning.usage
    if usage.requests:
        spent = [texts["requests"].format(model=model, count=quantity(usage.requests, "count"))]
        spent.append(texts["tokens"].format(*(quantity(n, "count") for n in (usage.tokens_in, usage.tokens_out))))
        spent.append(quantity(usage.seconds, "s"))
        spent += [texts["money"].format(f"{usage.money:.4g}")] if usage.money is not None else []
        notes.append(Safe(marks["comma"].join(spent)))
    if reasoning.transcript is not None:
        notes.append(fill(form.running, texts["transcript"], form.name(reasoning.transcript)))
    return Explanation(Safe(texts["heading"].format(model)) if story else Safe(""), story, left, notes)


def _claim(claim: Claim, known: Collection[str], suffix: str) -> Safe:
    """Return a claim with every part that could be markup escaped as a name."""
    running = FORMATS[suffix].running
    parts = [_AROUND.fullmatch(part) for part in _PART.findall(claim.text)]
    pieces = [piece for part in parts if part for piece in part.groups() if piece]
    text = "".join(piece if _PLAIN.fullmatch(piece) else running(piece) for piece in pieces)
    cited = [i for i in claim.findings if i in known]
    return Safe(f"{text} ({', '.join(cited)})" if cited else text)
