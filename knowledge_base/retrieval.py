"""Finds cards by their words: ranked lists, which say nothing yet about whether a card fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.indexing import text_of
from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.tokens import Terms, terms

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase

# A long ticket text has hundreds of words: the rarest find it, and the time of a query grows with the others.
_QUERY_TERMS = 32
_COUNTED = 2000  # distinct terms whose rarity is looked up; no ticket or log excerpt has more
# Chinese pairs are rare in a base that is half English, so bm25 overrates them beside words and concepts.
_GRAM_WEIGHT = 0.25


def ranked(db: SqliteDatabase, query: Terms, limit: int) -> list[str]:
    """The stored bodies of at most `limit` cards that share words with `query`, best first."""
    expression = _expression(db, query)
    if not expression:
        return []
    rows = db.execute(
        "SELECT body FROM incidents_fts JOIN incidents ON incidents.n = incidents_fts.rowid"
        " WHERE incidents_fts MATCH ? ORDER BY bm25(incidents_fts, 1.0, ?), incidents.n LIMIT ?",
        [expression, _GRAM_WEIGHT, limit],
    ).fetchall()
    return [row[0] for row in rows]


def _expression(db: SqliteDatabase, query: Terms) -> str:
    """An FTS5 expression for any of the rarest terms of `query`; empty when it has none.

    Terms hold only letters, digits, underscores and Chinese characters; quoting makes ``and`` or ``near`` a
    word.
    """
    quoted = [f'"{term}"' for term in (*query.words, *query.grams)][:_COUNTED]
    if len(quoted) > _QUERY_TERMS:
        count = "SELECT count(*) FROM incidents_fts WHERE incidents_fts MATCH ?"
        quoted.sort(key=lambda term: db.execute(count, [term]).fetchone()[0] or float("inf"))
    return " OR ".join(quoted[:_QUERY_TERMS])


def common(query: Terms, incident: Incident) -> list[str]:
    """Words of `query` that `incident` has too; pairs of Chinese characters only where there is no word."""
    its = terms(text_of(incident))
    return [w for w in query.words if w in its.words] or [g for g in query.grams if g in its.grams]
