"""Baselines that the evaluation of retrieval compares with; not used otherwise."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.ngrams import text_of

_WORD = re.compile(r"\w+")


class PlainFts:
    """SQLite's FTS5 with its default tokenizer (unicode61), over the texts of cards."""

    def __init__(self, cards: Iterable[Incident]) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE VIRTUAL TABLE cards USING fts5 (id UNINDEXED, text)")
        self._db.executemany("INSERT INTO cards VALUES (?, ?)", ((card.id, text_of(card)) for card in cards))

    def find(self, text: str, without: Collection[str], limit: int) -> list[str]:
        """Return ids of at most `limit` cards with any word of `text`, not in `without`, best first by bm25."""
        words = dict.fromkeys(_WORD.findall(text.lower()))
        if not words:
            return []
        any_of = " OR ".join(f'"{word}"' for word in words)
        rows = self._db.execute(
            "SELECT id FROM cards WHERE cards MATCH ? ORDER BY bm25(cards), rowid LIMIT ?",
            [any_of, limit + len(without)],
        )
        return [id for (id,) in rows if id not in without][:limit]

    def close(self) -> None:
        self._db.close()


def constant(known: Mapping[str, str | None], without: Collection[str], limit: int) -> list[str]:
    """Return a card per cause, the cause with most cards first, whatever the query; cards of `without` are skipped.

    `known`: card ids with their causes.
    """
    counts = Counter(cause for cause in known.values() if cause is not None)
    first: dict[str | None, str] = {}
    for id, cause in known.items():
        if id not in without:
            first.setdefault(cause, id)
    return [first[cause] for cause in sorted(counts, key=lambda c: (-counts[c], c)) if cause in first][:limit]
