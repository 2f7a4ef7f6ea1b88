"""Baselines for the search of incidents: BM25 over words, and TF-IDF over character n-grams.

BM25 as of Robertson and Zaragoza, The Probabilistic Relevance Framework (2009), with k1 = 1.2 and b = 0.75; TF-IDF with
sublinear term frequency and cosine, over n-grams of 3 to 5 characters within words, as scikit-learn's `TfidfVectorizer`
with ``analyzer="char_wb"``. Both read Chinese as pairs of characters, or as n-grams.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.ngrams import text_of

_TOKEN = re.compile(r"[\u3400-\u9fff]+|[^\W\u3400-\u9fff]+")
_K1, _B = 1.2, 0.75


class Baseline:
    """An inverted index of weighted terms; the score of a card is the sum of products with those of the query."""

    def __init__(self, cards: Iterable[Incident], split: Callable[[str], Iterator[str]], bm25: bool) -> None:
        texts = {card.id: Counter(split(text_of(card))) for card in cards}
        self._split, self._bm25 = split, bm25
        with_term = Counter(term for counts in texts.values() for term in counts)
        n = len(texts)
        if bm25:
            self._idf = {term: math.log1p((n - df + 0.5) / (df + 0.5)) for term, df in with_term.items()}
        else:
            self._idf = {term: math.log((1 + n) / (1 + df)) + 1 for term, df in with_term.items()}
        mean = sum(counts.total() for counts in texts.values()) / max(n, 1)
        self._postings: dict[str, list[tuple[str, float]]] = {}
        for id, counts in texts.items():
            norm = _K1 * (1 - _B + _B * counts.total() / mean)
            weights = (
                {term: tf * (_K1 + 1) / (tf + norm) for term, tf in counts.items()} if bm25 else self._vector(counts)
            )
            for term, weight in weights.items():
                self._postings.setdefault(term, []).append((id, weight))

    def find(self, text: str, without: Collection[str], limit: int) -> list[str]:
        """Return ids of at most `limit` cards that share a term with `text`, not in `without`, best first."""
        counts = Counter(self._split(text))
        asked = {term: self._idf[term] for term in counts if term in self._idf} if self._bm25 else self._vector(counts)
        scores: dict[str, float] = {}
        for term, weight in asked.items():
            for id, its in self._postings.get(term, ()):
                scores[id] = scores.get(id, 0.0) + weight * its
        order = sorted((id for id in scores if id not in without), key=lambda id: (-scores[id], id))
        return order[:limit]

    def _vector(self, counts: Counter[str]) -> dict[str, float]:
        weights = {term: (1 + math.log(tf)) * self._idf[term] for term, tf in counts.items() if term in self._idf}
        length = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
        return {term: weight / length for term, weight in weights.items()}


def words(text: str) -> Iterator[str]:
    """Yield the words of `text` in lower case, and pairs of Chinese characters."""
    for token in _TOKEN.findall(text.lower()):
        if token[0] >= "\u3400":
            yield from (token[i : i + 2] for i in range(max(len(token) - 1, 1)))
        else:
            yield token


def n_grams(text: str) -> Iterator[str]:
    """Yield the n-grams of three to five characters within the words of `text`, blanks around them included."""
    for token in _TOKEN.findall(text.lower()):
        shortest = 1 if token[0] >= "\u3400" else 3
        padded = f" {token} "
        for size in range(shortest, 6):
            yield from (padded[i : i + size] for i in range(len(padded) - size + 1))
