"""Evaluation of retrieval: queries with a known answer, and queries without one.

Five sets of queries:

* ``symptom``: the initial symptom of a card, with that card removed. Right is another card of the same cause, or
  nothing if there is none.
* ``evidence``: the same with the card's typed features and kinds of findings, without its cause and signatures.
* ``unseen``: as ``evidence``, with every card of that cause removed. Right is to find nothing.
* ``questions``: shipped questions as people on call type them. Right is one of the cards listed there, or nothing.
* ``recurrence``: the evidence of each resolved ticket. Right is the card of its fault.

Two baselines run on the same queries: ``fts``, SQLite's FTS5 with any word of the query and bm25, and ``constant``,
which returns a card of each cause, the most frequent first. The base is copied first.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal, get_args

from whystall.knowledge_base import matching, text_search
from whystall.knowledge_base.baselines import PlainFts, constant
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evaluation_queries import Query, Set, queries
from whystall.knowledge_base.indexing import put_incident
from whystall.knowledge_base.models import Incident, Lang, Match, Model
from whystall.knowledge_base.questions import Half
from whystall.knowledge_base.shares import Share, share
from whystall.knowledge_base.store import KnowledgeBase
from whystall.tools.contract.errors import ErrorCode, ToolError

Method = Literal["ours", "fts", "constant"]
MOST = 400  # default limit of cards and tickets queried
_DEPTH = 10  # ranks that count
_WANTED = 20  # right cards listed for a miss


class Row(Model):
    """Results of one method on one set in one language. `half`: for questions only.

    `hit1`, `hit3`: share of the answerable queries with a right card at rank 1, or at ranks 1 to 3, weak matches
    included. `mrr`: mean of 1 / rank of the first right card within ten ranks, 0 without one. `abstained` (recall):
    share of the unanswerable queries that got weak matches only. `right_to_abstain` (precision): share of the queries
    with weak matches only that are unanswerable; None if all are. `known`: share of the queries with a card quoted as
    known where that card is right. None: nothing to count.
    """

    set: Set
    half: Half | None = None
    lang: Lang
    method: Method
    queries: int
    hit1: Share | None
    hit3: Share | None
    mrr: float | None
    abstained: Share | None
    right_to_abstain: Share | None
    known: Share | None


class Miss(Model):
    """A failed query: `wanted` any of these cards (the first of many; empty: nothing), `got` these."""

    set: Set
    half: Half | None = None
    lang: Lang
    query: str
    wanted: list[str]
    got: list[str]


class Evaluation(Model):
    """`cards`: searchable ones; `sampled`: only a sample of the cards and tickets was queried."""

    cards: int
    sampled: bool
    rows: list[Row]
    misses: list[Miss]


@dataclass
class _Tally:
    answerable: int = 0
    hit1: int = 0
    hit3: int = 0
    reciprocal: float = 0.0
    unanswerable: int = 0
    silent: int = 0
    rightly_silent: int = 0
    quoted: int = 0
    rightly_quoted: int = 0
    misses: list[Miss] = field(default_factory=list)


def evaluate(path: Path, sets: Sequence[Set] = get_args(Set), most: int = MOST) -> Evaluation:
    """Evaluate the knowledge base `path`, created if missing, with at most `most` cards and tickets, sampled by a hash
    of their ids so that a run is reproducible.

    Raises `ToolError`: not_found without any query; as `KnowledgeBase` for the file.
    """
    KnowledgeBase(path).close()  # migrates it to this version
    with _copied(path) as file:
        known = _known(file)
        asked, sampled = queries(file, known, sets, most)
        if not asked:
            raise ToolError(
                ErrorCode.NOT_FOUND,
                f"{path} has nothing to query ({', '.join(sets)})",
                "resolve tickets or add incidents first, or evaluate another set",
            )
        with closing(PlainFts(_cards(file, known))) as fts:
            tallies = _ask(file, fts, known, asked)
    order = sorted(tallies, key=lambda key: (sets.index(key[0]), key[1] != "tune", key[2]))
    rows = [_row(*key, tallies[key]) for key in order]
    misses = [miss for key in order if key[3] == "ours" for miss in tallies[key].misses]
    return Evaluation(cards=len(known), sampled=sampled, rows=rows, misses=misses)


def _ask(
    file: Database, fts: PlainFts, known: Mapping[str, str | None], asked: Sequence[Query]
) -> dict[tuple[Set, Half | None, Lang, Method], _Tally]:
    tallies: dict[tuple[Set, Half | None, Lang, Method], _Tally] = {}
    for out, alike in groupby(sorted(asked, key=_without), key=_without):
        gone = frozenset(out)
        guess = constant(known, gone, _DEPTH)
        with without_cards(file, out):
            for query in alike:
                words = query.text
                if query.evidence is not None:
                    matches = matching.similar(file, query.evidence, _DEPTH)
                    words = "\n".join([words, *query.evidence.features])
                else:
                    matches = text_search.search(file, words, _DEPTH)
                answers: dict[Method, list[str]] = {
                    "ours": [m.incident for m in matches],
                    "fts": fts.find(words, gone, _DEPTH),
                    "constant": guess,
                }
                for method, answer in answers.items():
                    tally = tallies.setdefault((query.set, query.half, query.lang, method), _Tally())
                    _count(tally, query, answer, matches if method == "ours" else [])
    return tallies


def _without(query: Query) -> tuple[str, ...]:
    return query.without


def _count(tally: _Tally, query: Query, answer: Sequence[str], matches: Sequence[Match]) -> None:
    places = [place for place, id in enumerate(answer, 1) if id in query.right]
    silent = all(match.weak for match in matches) if matches else not answer
    if silent:
        tally.silent += 1
        tally.rightly_silent += not query.right
    if query.right:
        tally.answerable += 1
        tally.hit1 += places[:1] == [1]
        tally.hit3 += bool(places) and places[0] <= 3
        tally.reciprocal += 1 / places[0] if places else 0.0
    else:
        tally.unanswerable += 1
    quoted = [m.incident for m in matches if m.known]
    tally.quoted += bool(quoted)
    tally.rightly_quoted += bool(quoted) and query.right.issuperset(quoted)
    if silent == bool(query.right) or (query.right and places[:1] != [1]):
        wanted, got = sorted(query.right - {*query.without})[:_WANTED], [] if silent else list(answer[:3])
        tally.misses.append(
            Miss(set=query.set, half=query.half, lang=query.lang, query=query.text, wanted=wanted, got=got)
        )


def _row(name: Set, half: Half | None, lang: Lang, method: Method, tally: _Tally) -> Row:
    return Row(
        set=name,
        half=half,
        lang=lang,
        method=method,
        queries=tally.answerable + tally.unanswerable,
        hit1=share(tally.hit1, tally.answerable),
        hit3=share(tally.hit3, tally.answerable),
        mrr=round(tally.reciprocal / tally.answerable, 4) if tally.answerable else None,
        abstained=share(tally.rightly_silent, tally.unanswerable),
        right_to_abstain=share(tally.rightly_silent, tally.silent if tally.answerable else 0),
        known=share(tally.rightly_quoted, tally.quoted),
    )


@contextmanager
def _copied(path: Path) -> Iterator[Database]:
    """Yield a temporary copy of the base `path`."""
    with tempfile.TemporaryDirectory(prefix="whystall-eval-") as directory:
        copy = Path(directory) / "knowledge.db"
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        file = Database(copy)
        try:
            with file.read() as db:
                db.execute("PRAGMA synchronous = OFF")  # durability is not needed
            yield file
        finally:
            file.close()


class _RollBackError(Exception):
    """Rolls back the transaction in which cards were removed."""


@contextmanager
def without_cards(file: Database, ids: Sequence[str]) -> Iterator[None]:
    """Remove the cards `ids` from the index within the block."""
    try:
        with file.write() as db:
            for card in _cards(file, ids):
                put_incident(db, card.model_copy(update={"state": "retired"}))
            yield
            raise _RollBackError
    except _RollBackError:
        pass


def _known(file: Database) -> dict[str, str | None]:
    """Return the searchable cards with their causes."""
    with file.read() as db:
        return dict(db.execute("SELECT id, cause FROM incidents WHERE state != 'retired' ORDER BY n").fetchall())


def _cards(file: Database, ids: Iterable[str]) -> Iterator[Incident]:
    for id in ids:
        with file.read() as db:
            (body,) = db.execute("SELECT body FROM incidents WHERE id = ?", [id]).fetchone()
        yield file.record(Incident, body)
