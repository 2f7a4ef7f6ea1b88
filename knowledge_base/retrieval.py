"""Ranks cards by their words and by their features; whether a card fits is decided in `matching`.

Both read postings of the rarest terms and features first, within a budget, so that query time grows slowly with the
number of cards.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from whystall.knowledge_base.tokens import Terms

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase

# A long ticket text has hundreds of words: the rarest suffice, and query time grows with the others.
_QUERY_TERMS = 32
_COUNTED = 500  # distinct terms whose frequency is read; few texts have more
# Total postings of the terms of a query; the remaining terms are too common to distinguish cards.
_TERM_POSTINGS = 10_000
_COMMON = 2_500  # cards with a term, above which it is not counted further
_FEWEST = 3  # terms searched however common they are
_FEATURE_POSTINGS = 1_000
# bm25 weights of symptom, concepts, later, grams. Chinese pairs are rare in a base that is half English, so that bm25
# overrates them.
_WEIGHTS = (1.0, 1.5, 1.0, 0.5)
# Weight of a pair of Chinese characters relative to a word. Of 0.5 to 1, the largest that lets no more unanswerable
# questions be answered (first half of the catalogue: 1 of 13).
_PAIR = 0.8


class Counts:
    """Number of cards per term, counted up to `_COMMON` and cached."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._db = db
        self._cards: dict[str, int] = {}

    def of(self, term: str) -> int:
        """Return how many cards have `term`."""
        if term not in self._cards:
            counted = "SELECT count(*) FROM (SELECT 1 FROM incidents_fts WHERE incidents_fts MATCH ? LIMIT ?)"
            self._cards[term] = int(self._db.execute(counted, [f'"{term}"', _COMMON]).fetchone()[0])
        return self._cards[term]


def by_words(db: SqliteDatabase, query: Terms, limit: int, counts: Counts | None = None) -> list[int]:
    """Return rows of at most `limit` cards that share words with `query`, best first."""
    expression = match_expression(query, counts or Counts(db))
    if not expression:
        return []
    rows = db.execute(
        "SELECT rowid FROM incidents_fts WHERE incidents_fts MATCH ?"
        " ORDER BY bm25(incidents_fts, ?, ?, ?, ?), rowid LIMIT ?",
        [expression, *_WEIGHTS, limit],
    ).fetchall()
    return [row[0] for row in rows]


def match_expression(query: Terms, counted: Counts) -> str:
    """Return an FTS5 expression for any of the rarest terms of `query`; empty if no card has any.

    Terms contain only letters, digits, underscores and Chinese characters; quoting makes ``and`` or ``near`` a word.
    """
    asked = [*query.words, *query.grams][:_COUNTED]
    counts = [(counted.of(term), f'"{term}"') for term in asked]
    chosen: list[str] = []
    postings = 0
    for cards, term in sorted(counts, key=lambda pair: pair[0]):
        if not cards:
            continue
        postings += cards if cards < _COMMON else _TERM_POSTINGS
        if len(chosen) >= _FEWEST and (postings > _TERM_POSTINGS or len(chosen) == _QUERY_TERMS):
            break
        chosen.append(term)
    return " OR ".join(chosen)


def rareness(query: Terms, total: int, counts: Counts) -> dict[str, float]:
    """Return the weight of each term of `query` among `total` cards: 1 for a term of at most one card, absent for
    common ones; times `_PAIR` for a pair of Chinese characters.
    """
    alone = _idf(1, total)
    found = {}
    for term in [*query.words, *query.grams][:_COUNTED]:
        cards = counts.of(term)
        if cards < _COMMON:
            found[term] = _idf(max(cards, 1), total) / alone * (_PAIR if term in query.grams else 1.0)
    return found


def _idf(cards: int, total: int) -> float:
    return math.log1p((max(total - cards, 0) + 0.5) / (cards + 0.5))


class Weights:
    """Inverse document frequency of features, from stored counts."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._db = db
        self._cards: dict[str, int] = {}
        self.load([""])
        self.total = self._cards[""]

    def load(self, features: Iterable[str]) -> None:
        """Read the counts of `features`."""
        missing = [f for f in dict.fromkeys(features) if f not in self._cards]
        self._cards |= dict.fromkeys(missing, 0)
        asked = "SELECT feature, cards FROM feature_counts WHERE feature IN (SELECT value FROM json_each(?))"
        for feature, cards in self._db.execute(asked, [json.dumps(missing)]).fetchall():
            self._cards[feature] = cards

    def cards(self, feature: str) -> int:
        """Return how many cards have `feature`, which must have been read."""
        return self._cards[feature]

    def of(self, feature: str) -> float:
        """Return the weight of `feature` (above 0), which must have been read."""
        return _idf(self._cards[feature], self.total)


def by_features(db: SqliteDatabase, features: Sequence[str], weights: Weights, limit: int) -> list[int]:
    """Return rows of at most `limit` cards that share the rarest of `features`, largest weight first.

    Of a very common feature only the latest cards are read.
    """
    weights.load(features)
    left = _FEATURE_POSTINGS
    found: dict[int, float] = {}
    for feature in sorted(features, key=lambda f: (weights.cards(f), f)):
        if left <= 0:
            break
        rows = db.execute("SELECT n FROM features WHERE feature = ? ORDER BY n DESC LIMIT ?", [feature, left])
        weight = weights.of(feature)
        for (n,) in rows.fetchall():
            found[n] = found.get(n, 0.0) + weight
            left -= 1
    return heapq.nlargest(limit, found, key=lambda n: (found[n], n))


def features_of(db: SqliteDatabase, rows: Iterable[int]) -> dict[int, list[str]]:
    """Return the features of the cards in `rows`; cards without features are absent."""
    found: dict[int, list[str]] = {}
    asked = "SELECT n, feature FROM features WHERE n IN (SELECT value FROM json_each(?))"
    for n, feature in db.execute(asked, [json.dumps(list(rows))]).fetchall():
        found.setdefault(n, []).append(feature)
    return found
