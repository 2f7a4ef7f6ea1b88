"""How a model drove a case, for readers: its story with citations, what was struck, why it stopped, what it cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from whystall.knowledge_base.models import Claim, Lang, Reasoning
from whystall.prompts.escape import Safe
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, fit, voice, words

# Blanks and numbers are no markup; a run of ASCII, without the punctuation around it, and whatever else, one by one.
_PART = re.compile(r"[!-~]+|\s+|[^\s!-~]+")
_AROUND = re.compile(r"([('\"]*)(.*?)([.,;:!?'\")]*)", re.DOTALL)
_PLAIN = re.compile(r"\s+|\d[\d.,]*%?")


@dataclass(frozen=True)
class Explained:
    """`heading` and `story` are empty where nothing of a model's story is left; `left`: claims that did not fit."""

    heading: Safe = field(default_factory=Safe)
    story: list[Safe] = field(default_factory=list)
    left: int = 0
    notes: list[Safe] = field(default_factory=list)


def explained(reasoning: Reasoning | None, known: Collection[str], suffix: str, lang: Lang, budget: int) -> Explained:
    """`reasoning` in words, the story within `budget` characters; nothing where no model drove. Citations that are not
    among `known` (ids of findings) are left out.
    """
    if reasoning is None:
        return Explained()
    said, form = words(lang)["reasoned"], FORMATS[suffix]
    lines = [_claim(claim, known, suffix) for claim in reasoning.story]
    story, left = fit(lines, budget)
    model = form.name(reasoning.model)
    marks = words(lang)["marks"]
    notes = []
    if reasoning.struck:
        counted = Counter(reasoning.struck)
        reasons = [f"{voice(suffix, lang).code('struck', code)} ({number})" for code, number in counted.items()]
        notes.append(Safe(said["struck"].format(marks["semicolon"].join(reasons))))
    if reasoning.stopped is not None:
        notes.append(Safe(said["stopped"].format(voice(suffix, lang).code("stopped", reasoning.stopped))))
    usage = reasoning.usage
    if usage.requests:
        spent = [said["requests"].format(model=model, count=quantity(usage.requests, "count"))]
        spent.append(said["tokens"].format(*(quantity(n, "count") for n in (usage.tokens_in, usage.tokens_out))))
        spent.append(quantity(usage.seconds, "s"))
        spent += [said["money"].format(f"{usage.money:.4g}")] if usage.money is not None else []
        notes.append(Safe(marks["comma"].join(spent)))
    if reasoning.transcript is not None:
        notes.append(fill(form.running, said["transcript"], form.name(reasoning.transcript)))
    return Explained(Safe(said["heading"].format(model)) if story else Safe(""), story, left, notes)


def _claim(claim: Claim, known: Collection[str], suffix: str) -> Safe:
    """A sentence as it is, but for what could be markup: that stands as a name of its own."""
    running = FORMATS[suffix].running
    parts = [_AROUND.fullmatch(part) for part in _PART.findall(claim.text)]
    pieces = [piece for part in parts if part for piece in part.groups() if piece]
    text = "".join(piece if _PLAIN.fullmatch(piece) else running(piece) for piece in pieces)
    cited = [i for i in claim.findings if i in known]
    return Safe(f"{text} ({', '.join(cited)})" if cited else text)
