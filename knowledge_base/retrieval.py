"""Ranks cards by their words and by their features; whether a card fits is decided in `matching`.

Both read postings of the rarest terms and features first, within a budget, so that query time grows slowly with the
number of cards.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from whystall.knowledge_base.indexing import REFERENCE, SIGNATURE
from whystall.knowledge_base.tokens import CONCEPT, is_group, pieces, stem, terms

if TYPE_CHECKING:
    from sqlite3 import Connection

    from whystall.knowledge_base.database import Database

FUSED = 60
"""Reciprocal rank fusion adds 1 / (60 + rank), the published constant (Cormack, Clarke and Buettcher, SIGIR 2009): the
top ranks weigh alike, and no list outvotes the other.
"""
# A long ticket text has hundreds of words: the rarest suffice, and query time grows with the others.
_QUERY_TERMS = 32
_COUNTED = 300  # distinct terms whose frequency is read; few texts have more
# Total postings of the terms of a query; the remaining terms are too common to distinguish cards.
_TERM_POSTINGS = 10_000
_COMMON = 2_500  # cards with a term, above which it is not counted further
_FEWEST = 3  # terms searched however common they are
_FEATURE_POSTINGS = 1_000
_KEPT = 100_000  # counts kept between queries, some 15 MiB
_PIECE_WORDS, _PIECES, _PIECE_POSTINGS = 12, 24, 3_000  # rarest words that are cut; their n-grams searched
# bm25 weights of symptom, concepts, later, grams, pieces. Chinese pairs are rare in a base that is half English, so
# that bm25 overrates them.
_COLUMNS = (1.0, 1.0, 0.8, 0.5, 0.2)


class Query(NamedTuple):
    """Search terms of a text. `words`: stems and concepts; `grams`: pairs of Chinese characters; `names`: the word as
    typed, by stem.
    """

    words: list[str]
    grams: list[str]
    names: dict[str, str]


def query_of(text: str) -> Query:
    """Return the search terms of any `text`."""
    found = terms(text, everyday=True)
    names: dict[str, str] = {}
    for word in found.words:
        if is_group(word):
            names.setdefault(word, word[len(CONCEPT) :])
        else:
            names.setdefault(stem(word), word)
    return Query(list(names), found.grams, names)


class Counts:
    """Number of cards per term, counted up to `_COMMON` and cached while the index is unchanged."""

    def __init__(self, db: Connection, cards: dict[str, int] | None = None) -> None:
        self._db = db
        self._cards: dict[str, int] = {} if cards is None else cards

    def of(self, term: str) -> int:
        """Return how many cards have `term`."""
        if term not in self._cards:
            counted = "SELECT count(*) FROM (SELECT 1 FROM incidents_fts WHERE incidents_fts MATCH ? LIMIT ?)"
            self._cards[term] = int(self._db.execute(counted, [f'"{term}"', _COMMON]).fetchone()[0])
        return self._cards[term]


# Counts of terms by open file, with the state of the index that they are of.
_KNOWN: WeakKeyDictionary[Database, tuple[tuple[bytes, ...], dict[str, int]]] = WeakKeyDictionary()


def counts_of(file: Database, db: Connection) -> Counts:
    """Return the counts of `file`, with those of earlier queries while no card was changed, by any process."""
    if db.in_transaction:  # our own changes reach the stored index only with the commit
        return Counts(db)
    # The records of averages and of segments of FTS5: every change of the index writes new segments.
    stored = "SELECT block FROM incidents_fts_data WHERE id IN (1, 10) ORDER BY id"
    state = tuple(block for (block,) in db.execute(stored).fetchall())
    known = _KNOWN.get(file)
    if known is None or known[0] != state or len(known[1]) > _KEPT:
        known = _KNOWN[file] = state, {}
    return Counts(db, known[1])


def by_words(db: Connection, query: Query, limit: int, counts: Counts | None = None) -> dict[int, int]:
    """Return rows of at most `limit` cards that share words with `query`, best first, with their places: from 1, equals
    share one.
    """
    counted = counts or Counts(db)
    asked = [*query.words, *query.grams][:_COUNTED]
    chosen = _rarest(asked, counted, _QUERY_TERMS, _TERM_POSTINGS, _FEWEST)
    chosen += _rarest(query_pieces(query, counted), counted, _PIECES, _PIECE_POSTINGS, 0)
    if not chosen:
        return {}
    rows = db.execute(
        "SELECT rowid, bm25(incidents_fts, ?, ?, ?, ?, ?) AS score FROM incidents_fts WHERE incidents_fts MATCH ?"
        " ORDER BY score, rowid LIMIT ?",
        [*_COLUMNS, " OR ".join(f'"{term}"' for term in chosen), limit],
    ).fetchall()
    places = {score: place for place, score in enumerate(dict.fromkeys(round(score, 6) for _, score in rows), 1)}
    return {row: places[round(score, 6)] for row, score in rows}


def query_pieces(query: Query, counted: Counts) -> list[str]:
    """Return the character n-grams of the rarest words of `query`: of unknown ones too, which may be a known one in
    another form.
    """
    own = [term for term in query.words[:_COUNTED] if not is_group(term)]
    return pieces(query.names[term] for term in sorted(own, key=counted.of)[:_PIECE_WORDS])


def _rarest(asked: Iterable[str], counted: Counts, most: int, postings: int, fewest: int) -> list[str]:
    """Return the rarest of `asked` that any card has: at most `most`, and beyond the first `fewest` with at most
    `postings` in total.

    Terms contain only letters, digits, underscores and Chinese characters, so that each can be quoted.
    """
    chosen: list[str] = []
    left = postings
    for cards, term in sorted((counted.of(term), term) for term in asked):
        if not cards:
            continue
        left -= cards if cards < _COMMON else postings
        if len(chosen) >= fewest and (left < 0 or len(chosen) == most):
            break
        chosen.append(term)
    return chosen


def rareness(cards: int, total: int) -> float:
    """Return the inverse document frequency of a term in units of one that a single card has: 0 to 1."""
    return 0.0 if cards >= _COMMON else min(_idf(max(cards, 1), total) / _idf(1, total), 1.0)


def _idf(cards: int, total: int) -> float:
    return math.log1p((max(total - cards, 0) + 0.5) / (cards + 0.5))


class Weights:
    """Inverse document frequency of features, from stored counts."""

    def __init__(self, db: Connection) -> None:
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


def by_features(db: Connection, features: Sequence[str], weights: Weights, limit: int) -> list[int]:
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


def features_of(db: Connection, rows: Iterable[int]) -> dict[int, list[str]]:
    """Return the typed features of the cards in `rows`, without signatures and references; cards without features are
    absent.
    """
    found: dict[int, list[str]] = {}
    # Most entries of a card are references, which are filtered before they become Python objects.
    asked = (
        "SELECT n, feature FROM features WHERE n IN (SELECT value FROM json_each(?))"
        " AND feature NOT GLOB ? AND feature NOT GLOB ?"
    )
    for n, feature in db.execute(asked, [json.dumps(list(rows)), f"{SIGNATURE}*", f"{REFERENCE}*"]).fetchall():
        found.setdefault(n, []).append(feature)
    return found
