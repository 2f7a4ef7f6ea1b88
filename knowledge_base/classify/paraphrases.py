"""Likeness of two reports that may be about one fault in other words: by concepts, rules, rare words and places.

The traits of a text are words of the catalogue in either language, rules that match it, its other words, and what it
names: hosts, cards, Xid codes, devices, a path. Two texts are alike by the weighted share of common traits (Dice's
coefficient with inverse document frequency, over the shipped work orders), of common rules, and by common names. If
both name a thing of one kind and none is common, they are not alike: another host has a fault of its own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache

from whystall.knowledge_base.classify.centroids import work_orders
from whystall.knowledge_base.classify.dedup_keys import narrow_places
from whystall.knowledge_base.classify.rules import judge, rule_weights, vocabulary
from whystall.knowledge_base.classify.severities import xids
from whystall.knowledge_base.tokens import plain, terms

ALIKE = 0.55
"""Least likeness of a suggestion. Of 16 pairs of reports of one fault, in either language, 14 reach it; of 28 pairs of
similar reports of different faults 4 (``benchmarks/classification.py``).
"""
_READ = 2000  # characters of a text
_MOST = 200  # traits
# Weights of concepts, words, and pairs of Chinese characters, which overlap.
_CONCEPT, _WORD, _PAIR = 1.5, 0.7, 0.4
_RULES, _NAME, _NAMES = 0.35, 0.1, 2
_SPECIFIC, _VAGUE = 0.05, -0.1  # a common rule names a fault, or none does
_FAULT = 3  # weight of such rules
_APART = (0.0, 0.1, 0.3)  # none, one, or both of the texts name a fault that the other does not
_HOST = re.compile(
    r"(?<![\w/.-])(?:[a-z]+[-_])*(?:node|host|server|login|srv|gpu|npu|cn|compute|worker|machine|dgx|hgx)[-_]?\d[a-z0-9-]*"
    r"|\b(?:node|host|server|machine) \d{1,5}\b|(?:节点|主机|机器) ?\d{1,5}"
)
_CARD = re.compile(r"\b(?:gpu|npu|card|device)\s*#?\s?(?P<a>\d{1,2})\b(?!\s*(?:gb|gib|%|x))|(?P<b>\d{1,2})\s*号卡")
_PART = re.compile(r"\b(?:nvme\d+n\d+|sd[a-z]\d?|ib\d+|eth\d+|bond\d+|mlx5_\d+|ost ?\d+)\b")
_CODE = re.compile(r"\b(?:errno|exit code|error code|状态码|退出码)\s*:?\s*(?P<code>-?\d{1,4})\b")
_PATH = re.compile(r"(?<![\w:/.])/[\w.-]+(?:/[\w.-]+)*")


def traits(text: str, labels: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the traits of a text: ``=CONCEPT``, ``~RULE``, ``@KIND:NAME``, and words; none contains a blank.

    `labels`: of an alert, or columns of a work order; those of a place count as named.
    """
    text = text[:_READ]
    found = dict.fromkeys(f"@{kind}:{name.replace(' ', '')}" for kind, name in _names(plain(text), labels or {}))
    found |= dict.fromkeys(f"={name}" for name in vocabulary().find(text))
    found |= dict.fromkeys(f"~{hit.rule.id}" for score in judge(text) for hit in score.hits)
    known = terms(text)
    found |= dict.fromkeys([*(word for word in known.words if not word.startswith("c_")), *known.grams])
    return frozenset(list(found)[:_MOST])


def likeness(one: frozenset[str], other: frozenset[str]) -> float:
    """Return how alike two texts with these traits are: 0 if they contradict each other, `ALIKE` and more if they may
    be about one fault.
    """
    common = one & other
    names = _by_kind(one), _by_kind(other)
    if any(not names[0][kind] & names[1][kind] for kind in names[0].keys() & names[1].keys()):
        return 0.0
    words = _dice(common, one, other, _words_weight)
    rules = _dice(common, one, other, _rules_weight)
    named = min(sum(trait[0] == "@" for trait in common), _NAMES)
    specific = _SPECIFIC if _faults(common) else _VAGUE
    apart = [bool(_faults(one - common)), bool(_faults(other - common))]
    score = words + _RULES * rules + _NAME * named + specific - _APART[sum(apart)]
    return max(0.0, score)


def _faults(some: frozenset[str]) -> list[str]:
    weights = rule_weights()
    return [trait for trait in some if trait[0] == "~" and weights.get(trait[1:], 0) >= _FAULT]


def _dice(common: frozenset[str], one: frozenset[str], other: frozenset[str], weight: Callable[[str], float]) -> float:
    total = sum(map(weight, one)) + sum(map(weight, other))
    return 2 * sum(map(weight, common)) / total if total else 0.0


@lru_cache(maxsize=20_000)
def _words_weight(trait: str) -> float:
    if trait[0] in "@~":
        return 0.0
    share = _CONCEPT if trait[0] == "=" else _PAIR if trait[0] >= "\u3400" else _WORD
    return share * _rareness(trait)


@lru_cache(maxsize=1_000)
def _rules_weight(trait: str) -> float:
    return _rareness(trait) * rule_weights().get(trait[1:], 0) if trait[0] == "~" else 0.0


def _names(text: str, labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    yield from narrow_places(labels)
    for kind, pattern in (("host", _HOST), ("part", _PART)):
        for match in pattern.finditer(text):
            yield kind, match[0]
    for match in _CARD.finditer(text):
        yield "card", match["a"] or match["b"]
    for match in _CODE.finditer(text):
        yield "code", match["code"]
    for code in xids(text):
        yield "xid", str(code)
    paths = set(_PATH.findall(text))
    if len(paths) == 1:  # several are mostly of programs and logs
        yield "path", paths.pop()


def _by_kind(some: frozenset[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for trait in some:
        if trait[0] == "@":
            kind, _, name = trait[1:].partition(":")
            found.setdefault(kind, set()).add(name)
    return found


def _rareness(trait: str) -> float:
    """Return 1 for a trait of no shipped work order, 0 for one of all."""
    counts, total = _counted()
    return math.log((total + 1) / (counts[trait] + 1)) / math.log(total + 1)


@cache
def _counted() -> tuple[Counter[str], int]:
    orders = [order.text for lang in ("en", "zh") for order in (*work_orders(lang).tuned, *work_orders(lang).held_out)]
    return Counter(trait for text in orders for trait in traits(text)), len(orders)
