"""How well past incidents are found: the base is asked for what it is known to hold, and for what it does not.

Five sets of queries:

* ``symptom``: what was seen at first in the incident of a card, with that card taken out of the base. Right is another
  card of the same cause, and where there is none, to find nothing.
* ``evidence``: the same with the card's typed features and kinds of findings, but neither its cause nor its signatures.
* ``unseen``: as ``evidence``, with every card of that cause taken out. Right is to find nothing.
* ``questions``: as people on call type them, shipped with us. Right is one of the cards named there, or nothing.
* ``recurrence``: the evidence of each resolved ticket. Right is the card of its fault.

Beside our own method, in the same run and on the same queries, stand ``fts``, SQLite's FTS5 as it comes (any word of
the query, bm25), and ``constant``, which ignores the query and names a card of each cause, the most frequent one first.
Everything happens on a copy of the base.
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

from whystall.knowledge_base import matching
from whystall.knowledge_base.baselines import PlainFts, constant
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evaluation_queries import Query, Set, queries
from whystall.knowledge_base.indexing import put_incident
from whystall.knowledge_base.models import Incident, Lang, Match, Model
from whystall.knowledge_base.questions import Half
from whystall.knowledge_base.store import KnowledgeBase
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.proportion import wilson

Method = Literal["ours", "fts", "constant"]
MOST = 200  # cards and tickets that are asked for at most, unless told otherwise
_DEPTH = 10  # places of a list that count
_WANTED = 20  # right cards that a miss names


class Share(Model):
    """`hits` of `of`, with the 95 % Wilson interval; all of it in parts of 1."""

    hits: int
    of: int
    value: float
    low: float
    high: float


class Row(Model):
    """One method on one set in one language. `half` for questions only.

    `hit1`, `hit3`: of the queries that the base can answer, those with a right card at the first place, among the first
    three, weak matches too. `mrr`: mean of 1 / place of the first right card within ten places, 0 without one.
    `abstained` (recall): of the queries that the base cannot answer, those for which nothing was named but the nearest
    (weak matches). `right_to_abstain` (precision): of those for which nothing else was named, the queries that cannot
    be answered; None where all cannot. `known`: of the queries for which a card was quoted as known, those where it is
    a right one. None: there was nothing to count.
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
    """A query of ours that went wrong: `wanted` any of these cards (of many, the first; none: nothing), `got` these."""

    set: Set
    half: Half | None = None
    lang: Lang
    query: str
    wanted: list[str]
    got: list[str]


class Evaluation(Model):
    """`cards`: that can be found; `sampled`: not all cards and tickets were asked for, since there are too many."""

    cards: int
    sampled: bool
    rows: list[Row]
    misses: list[Miss]


@dataclass
class _Tally:
    """Counts of one row."""

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
    """Measure the knowledge base in the file `path`, made if missing. At most `most` cards and tickets are asked for,
    chosen by a hash of their ids, so that a run can be repeated.

    `ToolError`: not_found when there is not one query to ask; as `KnowledgeBase` for the file.
    """
    KnowledgeBase(path).close()  # brings it up to this version
    with _copied(path) as file:
        known = _known(file)
        asked, sampled = queries(file, known, sets, most)
        if not asked:
            raise ToolError(
                ErrorCode.NOT_FOUND,
                f"{path} holds nothing that could be asked for ({', '.join(sets)})",
                "resolve tickets or add incidents first, or evaluate another set",
            )
        with closing(PlainFts(_cards(file, known))) as fts:
            tallies = _ask(file, fts, known, asked)
    order = sorted(tallies, key=lambda key: (sets.index(key[0]), key[1] != "tune", key[2]))
    rows = [_row(*key, tallies[key]) for key in order]
    misses = [miss for key in order if key[3] == "ours" for miss in tallies[key].misses]
    return Evaluation(cards=len(known), sampled=sampled, rows=rows, misses=misses)


# --- how it is answered -------------------------------------------------------------------------------------------


def _ask(
    file: Database, fts: PlainFts, known: Mapping[str, str | None], asked: Sequence[Query]
) -> dict[tuple[Set, Half | None, Lang, Method], _Tally]:
    tallies: dict[tuple[Set, Half | None, Lang, Method], _Tally] = {}
    for out, alike in groupby(sorted(asked, key=_without), key=_without):
        gone = frozenset(out)
        guess = constant(known, gone, _DEPTH)
        with _taken_out(file, out):
            for query in alike:
                words = query.text
                if query.evidence is not None:
                    matches = matching.similar(file, query.evidence, _DEPTH)
                    words = "\n".join([words, *query.evidence.features])
                else:
                    matches = matching.search(file, words, _DEPTH)
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


def share(hits: int, of: int) -> Share | None:
    """`hits` of `of` with its interval, None without any."""
    if not of:
        return None
    low, high = wilson(hits, of)
    return Share(hits=hits, of=of, value=round(hits / of, 4), low=round(low, 4), high=round(high, 4))


# --- the copy -----------------------------------------------------------------------------------------------------


@contextmanager
def _copied(path: Path) -> Iterator[Database]:
    """A copy of the base `path` that goes away afterwards."""
    with tempfile.TemporaryDirectory(prefix="whystall-eval-") as directory:
        copy = Path(directory) / "knowledge.db"
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        file = Database(copy)
        try:
            with file.read() as db:
                db.execute("PRAGMA synchronous = OFF")  # nobody needs it after a crash
            yield file
        finally:
            file.close()


class _PutBackError(Exception):
    """Ends the transaction in which cards were taken out, without a trace of it."""


@contextmanager
def _taken_out(file: Database, ids: Sequence[str]) -> Iterator[None]:
    """While this lasts, the cards `ids` are found by nothing."""
    try:
        with file.write() as db:
            for card in _cards(file, ids):
                put_incident(db, card.model_copy(update={"state": "retired"}))
            yield
            raise _PutBackError
    except _PutBackError:
        pass


def _known(file: Database) -> dict[str, str | None]:
    """The cards that can be found, with their causes."""
    with file.read() as db:
        return dict(db.execute("SELECT id, cause FROM incidents WHERE state != 'retired' ORDER BY n").fetchall())


def _cards(file: Database, ids: Iterable[str]) -> Iterator[Incident]:
    for id in ids:
        with file.read() as db:
            (body,) = db.execute("SELECT body FROM incidents WHERE id = ?", [id]).fetchone()
        yield file.record(Incident, body)
