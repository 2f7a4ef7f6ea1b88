"""Likeness of a text and of cards by character n-grams, which match inflections, compounds and Chinese without a list
of words.

TF-IDF with sublinear term frequency and cosine (Salton and Buckley, Term-weighting approaches in automatic text
retrieval, 1988). The document frequency is counted in the compared texts only: what all candidates of a search have in
common does not distinguish them, and no table of n-grams has to be kept.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.tokens import plain

_RUN = re.compile(r"[\u3400-\u9fff]+|[a-z0-9_]+")
_LATIN = 4  # characters of an n-gram in a word, blanks around the word included
_CHINESE = (2, 3)
_FEW = 10  # n-grams of a text whose likeness counts half
_READ = 20_000  # characters read of a text


def likeness(text: str, others: Sequence[str]) -> list[float]:
    """Return the cosine, 0 to 1, of `text` and each of `others`, lower for a text of few n-grams: they prove little."""
    grams = n_grams(text)
    certain = len(grams) / (len(grams) + _FEW)
    counted = [n_grams(other) for other in others]
    with_gram = Counter(gram for counts in counted for gram in counts)
    known = math.log(1 + len(others)) + 1
    idf = {gram: known - math.log(1 + number) for gram, number in with_gram.items()}
    asked = {gram: _often(often) * idf[gram] for gram, often in grams.items() if gram in idf}
    length = _length(asked.values())
    found = []
    for counts in counted:
        own = _length(_often(often) * idf[gram] for gram, often in counts.items())
        shared = math.fsum(
            weight * _often(counts[gram]) * idf[gram] for gram, weight in asked.items() if gram in counts
        )
        found.append(certain * shared / (length * own) if shared else 0.0)
    return found


def text_of(card: Incident) -> str:
    """Return the text of `card` that is compared: everything that people write, in both languages."""
    words = (card.title, card.symptom, card.root_cause, card.fix)
    names = [card.cause or "", *card.components, *card.kinds, *card.features]
    phrasings = [*card.phrasings.en, *card.phrasings.zh]
    return "\n".join([*(part.en for part in words), *(part.zh for part in words), *phrasings, *names])


@lru_cache(maxsize=300)  # some 30 MiB: the cards of successive searches are the same
def n_grams(text: str) -> dict[str, int]:
    """Return how often `text` has each n-gram: of four characters in words, of two and three in runs of Chinese."""
    found: Counter[str] = Counter()
    for run in _RUN.findall(plain(text[:_READ])):
        if run[0] >= "\u3400":
            for size in _CHINESE:
                found.update([run[at : at + size] for at in range(len(run) - size + 1)])
        else:
            padded = f" {run} "
            found.update([padded[at : at + _LATIN] for at in range(max(len(padded) - _LATIN + 1, 1))])
    return found


@lru_cache(maxsize=1_000)
def _often(count: int) -> float:
    return 1 + math.log(count)


def _length(weights: Iterable[float]) -> float:
    return math.sqrt(math.fsum(weight * weight for weight in weights)) or 1.0
