"""Generated cards and cases for measurements of size: variations of the curated cards, the same for each seed.

A card begins as a curated one, with its phrasings. Of its words three in ten are replaced: by words of the curated
cards and of the list of plain English, drawn as often as the cards use them, one in four of these by a made-up name
(Zipf distribution over 60,000, as names of programs, functions and hosts have); numbers by other numbers. Of its
Chinese clauses three in ten are replaced by those of other cards. Seven in ten of its features are kept, and two to
five are added, some common and some rare. One card in five is a recurrence of the fault of another.
"""

from __future__ import annotations

import itertools
import random
import re
from bisect import bisect
from collections import Counter
from functools import cache

from whystall.knowledge_base.data import catalog
from whystall.knowledge_base.evidence import Evidence
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.models import Incident, Phrasings, Words
from whystall.tools.contract.kinds import KINDS

_REPLACED, _NAMES, _KEPT = 0.3, 0.25, 0.7
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u")]
_WORD = re.compile(r"[A-Za-z]{2,}|\d+")
_CLAUSE = re.compile(r"[，。；：]")


class Zipf:
    """Draw ranks 0 .. n-1 with frequencies proportional to 1 / (rank + 2.7) ** s, like words of a language."""

    def __init__(self, n: int, s: float = 1.07) -> None:
        self._sums = list(itertools.accumulate(1 / (rank + 2.7) ** s for rank in range(n)))

    def draw(self, dice: random.Random) -> int:
        return bisect(self._sums, dice.random() * self._sums[-1])


_NAME, _RARE, _COMMON = Zipf(60_000), Zipf(3_000), Zipf(12)


def card(number: int) -> Incident:
    """Return the generated card of a number."""
    dice = random.Random(number)
    base = dice.choice(_curated())
    fault = number - dice.randrange(1, 50) if dice.random() < 0.2 else number
    kept = [feature for feature in base.features if dice.random() < _KEPT]
    update = {name: _varied(dice, getattr(base, name)) for name in ("title", "symptom", "root_cause", "fix")}
    return base.model_copy(
        update={
            **update,
            "phrasings": Phrasings(
                en=[english(dice, phrase) for phrase in base.phrasings.en],
                zh=[_chinese(dice, phrase) for phrase in base.phrasings.zh],
            ),
            "id": f"card-{number}",
            "signatures": [f"fault:1:{fault}", f"finding:{fault}"],
            "features": list(dict.fromkeys([*kept, *_features(dice)])),
            "environment": english(dice, base.environment),
            "source": "generated",
            "source_url": "",
            "origin": "user",
            "created": f"2025-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}T00:00:00Z",
        }
    )


def case(number: int, cards: int) -> Evidence:
    """Return the evidence of a case: half of them are told like one of the first `cards` cards, with half of its words
    and features; the others share only words of the language with any.
    """
    dice = random.Random(-1 - number)
    own = [f"kind:{kind}" for kind in dice.sample(sorted(KINDS), 2)] + _features(dice)
    like = card(dice.randrange(cards))
    if dice.random() < 0.5:
        text = " ".join(_drawn(dice) for _ in range(25))
        return Evidence(symptom=text, cause=like.cause, features=tuple(dict.fromkeys(own)))
    words = like.symptom.en.split()
    told = sorted(dice.sample(range(len(words)), (len(words) + 1) // 2))
    kept = dice.sample(like.features, (len(like.features) + 1) // 2)
    kinds = [f"kind:{kind}" for kind in like.kinds[:1]]
    return Evidence(
        symptom=" ".join([*(words[at] for at in told), *(_drawn(dice) for _ in range(8))]),
        cause=like.cause,
        features=tuple(dict.fromkeys([*kept, *kinds, *own[:3]])),
    )


def english(dice: random.Random, text: str) -> str:
    """Return `text` with some of its words replaced."""
    return _WORD.sub(lambda found: _other(dice, found[0]) if dice.random() < _REPLACED else found[0], text)


def _varied(dice: random.Random, words: Words) -> Words:
    return Words(en=english(dice, words.en), zh=_chinese(dice, words.zh))


def _other(dice: random.Random, word: str) -> str:
    return str(dice.randrange(10 ** len(word[:6]))) if word.isdigit() else _drawn(dice)


def _drawn(dice: random.Random) -> str:
    if dice.random() < _NAMES:
        return name(_NAME.draw(dice))
    words, sums = _vocabulary()
    return words[bisect(sums, dice.random() * sums[-1])]


def name(rank: int) -> str:
    """Return the made-up name of a rank; common ones are short, as in a language."""
    parts = []
    rank += len(_SYLLABLES)
    while rank:
        rank, part = divmod(rank, len(_SYLLABLES))
        parts.append(_SYLLABLES[part])
    return "".join(parts)


def _chinese(dice: random.Random, text: str) -> str:
    clauses = _CLAUSE.split(text)
    return "，".join(dice.choice(_clauses()) if dice.random() < _REPLACED else clause for clause in clauses)


def _features(dice: random.Random) -> list[str]:
    """Return features as a diagnosis has: some common, some rare."""
    some = [f"op:{name(_RARE.draw(dice))}", f"frame:{name(_RARE.draw(dice))}_{name(_COMMON.draw(dice))}"]
    some += [f"{kind}:{name(_COMMON.draw(dice))}" for kind in ("fs", "device", "file")]
    some.append(f"code:{name(_RARE.draw(dice))}@{name(_RARE.draw(dice))}.py")
    return dice.sample(some, dice.randrange(2, 6))


@cache
def _curated() -> list[Incident]:
    return list(curated())


@cache
def _vocabulary() -> tuple[list[str], list[int]]:
    """Return the words of the curated cards and of the list of plain English, with the sums of their frequencies."""
    counts = Counter[str]()
    for one in _curated():
        for words in (one.title, one.symptom, one.root_cause, one.fix):
            counts.update(re.findall(r"[A-Za-z]{2,}", words.en.lower()))
    lines = catalog("english.txt").read_text("utf-8").splitlines()
    counts.update({word for line in lines if not line.startswith("#") for word in line.split()})
    words_, numbers = zip(*sorted(counts.items()), strict=True)
    return list(words_), list(itertools.accumulate(numbers))


@cache
def _clauses() -> list[str]:
    texts = (words.zh for one in _curated() for words in (one.symptom, one.root_cause, one.fix))
    return sorted({clause for text in texts for clause in _CLAUSE.split(text) if clause})
