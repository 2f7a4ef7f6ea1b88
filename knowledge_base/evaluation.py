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

import hashlib
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeVar, get_args

from whystall.knowledge_base import features, matching
from whystall.knowledge_base.baselines import PlainFts, constant
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evidence import Evidence, evidence_of
from whystall.knowledge_base.indexing import put_incident
from whystall.knowledge_base.models import Incident, Lang, Match, Model, Ticket
from whystall.knowledge_base.questions import Half, questions
from whystall.knowledge_base.store import KnowledgeBase
from whystall.knowledge_base.tickets import LESSON
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.proportion import wilson

Set = Literal["symptom", "evidence", "unseen", "questions", "recurrence"]
Method = Literal["ours", "fts", "constant"]
MOST = 500  # cards and tickets that are asked for at most, unless told otherwise
_DEPTH = 10  # places of a list that count
_LANGS: tuple[Lang, ...] = ("en", "zh")
_CJK = re.compile(r"[\u4e00-\u9fff]")
_R = TypeVar("_R", Incident, Ticket)


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
    be answered. `known`: of the queries for which a card was quoted as known, those where it is a right one. None:
    there was nothing to count.
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
    """A query of ours that went wrong: `wanted` any of these cards (none: nothing), `got` these, best first."""

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


@dataclass(frozen=True)
class _Query:
    """`without`: the cards that are taken out for it. `right`: empty when nothing is to be found."""

    set: Set
    lang: Lang
    text: str
    right: frozenset[str]
    half: Half | None = None
    evidence: Evidence | None = None
    without: tuple[Incident, ...] = ()


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
        cards = _cards(file)
        asked, sampled = _queries(file, cards, sets, most)
        if not asked:
            raise ToolError(
                ErrorCode.NOT_FOUND,
                f"{path} holds nothing that could be asked for ({', '.join(sets)})",
                "resolve tickets or add incidents first, or evaluate another set",
            )
        with closing(PlainFts(cards)) as fts:
            tallies = _ask(file, fts, cards, asked)
    order = sorted(tallies, key=lambda key: (sets.index(key[0]), key[1] != "tune", key[2]))
    rows = [_row(*key, tallies[key]) for key in order]
    misses = [miss for key in order if key[3] == "ours" for miss in tallies[key].misses]
    return Evaluation(cards=len(cards), sampled=sampled, rows=rows, misses=misses)


# --- what is asked ------------------------------------------------------------------------------------------------


def _queries(file: Database, cards: Sequence[Incident], sets: Sequence[Set], most: int) -> tuple[list[_Query], bool]:
    chosen = _sample(cards, most)
    tickets = _tickets(file) if "recurrence" in sets else []
    found: list[_Query] = []
    for name in sets:
        if name == "questions":
            found += _asked_questions({card.id for card in cards})
        elif name == "recurrence":
            found += _recurrences(_sample(tickets, most), file)
        else:
            found += _left_out(name, chosen, cards)
    return found, len(chosen) < len(cards) or len(tickets) > most


def _left_out(name: Set, chosen: Iterable[Incident], cards: Sequence[Incident]) -> Iterator[_Query]:
    by_cause: dict[str | None, list[Incident]] = {}
    for card in cards:
        by_cause.setdefault(card.cause, []).append(card)
    for card in sorted(chosen, key=lambda c: c.cause or ""):
        alike = by_cause[card.cause] if card.cause is not None else [card]
        right = frozenset(other.id for other in alike if other.id != card.id) if name != "unseen" else frozenset()
        without = tuple(alike) if name == "unseen" else (card,)
        # What a look would have shown; what it means (cause, signatures made of it) is what is to be found.
        told = tuple(f for f in features.of_card(card) if not f.startswith("cause:"))
        for lang in _LANGS:
            symptom = card.symptom.get(lang)
            if _in(symptom, lang):
                evidence = None if name == "symptom" else Evidence(symptom=symptom, features=told)
                yield _Query(name, lang, symptom, right, evidence=evidence, without=without)


def _asked_questions(known: set[str]) -> Iterator[_Query]:
    """Questions whose cards are all in the base (it may be a part of ours), and those that nothing answers."""
    for lang in _LANGS:
        for half, asked in questions(lang).items():
            for question in asked:
                if known.issuperset(question.cards):
                    yield _Query("questions", lang, question.ask, frozenset(question.cards), half)


def _recurrences(tickets: Iterable[Ticket], file: Database) -> Iterator[_Query]:
    for ticket in tickets:
        with file.read() as db:
            rows = db.execute(
                "SELECT id FROM incidents WHERE state != 'retired' AND (id = ? OR id IN"
                " (SELECT incident FROM occurrences WHERE key = ?))",
                [f"{LESSON}{ticket.id}", f"ticket:{ticket.id}"],
            ).fetchall()
        if rows:
            symptom = ticket.diagnosis.symptom
            lang: Lang = "zh" if _in(symptom, "zh") else "en"
            right = frozenset(id for (id,) in rows)
            yield _Query("recurrence", lang, symptom, right, evidence=evidence_of(ticket.diagnosis))


def _in(text: str, lang: Lang) -> bool:
    """Whether `text` is in `lang`: a user's card may say the same in both places."""
    return bool(text.strip()) and bool(_CJK.search(text)) == (lang == "zh")


def _sample(records: Sequence[_R], most: int) -> list[_R]:
    if len(records) <= most:
        return list(records)
    return sorted(records, key=lambda record: hashlib.sha256(record.id.encode()).digest())[:most]


# --- how it is answered -------------------------------------------------------------------------------------------


def _ask(
    file: Database, fts: PlainFts, cards: Sequence[Incident], asked: Sequence[_Query]
) -> dict[tuple[Set, Half | None, Lang, Method], _Tally]:
    tallies: dict[tuple[Set, Half | None, Lang, Method], _Tally] = {}
    for out, queries in groupby(sorted(asked, key=_taken), key=_taken):
        with _taken_out(file, [card for card in cards if card.id in out]):
            for query in queries:
                words = query.text
                if query.evidence is not None:
                    matches = matching.similar(file, query.evidence, _DEPTH)
                    words = "\n".join([words, *query.evidence.features])
                else:
                    matches = matching.search(file, words, _DEPTH)
                answers: dict[Method, list[str]] = {
                    "ours": [m.incident for m in matches],
                    "fts": fts.find(words, out, _DEPTH),
                    "constant": constant(cards, out, _DEPTH),
                }
                for method, answer in answers.items():
                    tally = tallies.setdefault((query.set, query.half, query.lang, method), _Tally())
                    _count(tally, query, answer, matches if method == "ours" else [])
    return tallies


def _taken(query: _Query) -> tuple[str, ...]:
    return tuple(card.id for card in query.without)


def _count(tally: _Tally, query: _Query, answer: Sequence[str], matches: Sequence[Match]) -> None:
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
        wanted, got = sorted(query.right), [] if silent else list(answer[:3])
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
        hit1=_share(tally.hit1, tally.answerable),
        hit3=_share(tally.hit3, tally.answerable),
        mrr=round(tally.reciprocal / tally.answerable, 4) if tally.answerable else None,
        abstained=_share(tally.rightly_silent, tally.unanswerable),
        right_to_abstain=_share(tally.rightly_silent, tally.silent),
        known=_share(tally.rightly_quoted, tally.quoted),
    )


def _share(hits: int, of: int) -> Share | None:
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


@contextmanager
def _taken_out(file: Database, cards: Sequence[Incident]) -> Iterator[None]:
    """While this lasts, `cards` are found by nothing."""
    if not cards:
        yield
        return
    _put(file, [card.model_copy(update={"state": "retired"}) for card in cards])
    try:
        yield
    finally:
        _put(file, cards)


def _put(file: Database, cards: Iterable[Incident]) -> None:
    with file.write() as db:
        for card in cards:
            put_incident(db, card)


def _cards(file: Database) -> list[Incident]:
    with file.read() as db:
        bodies = [row[0] for row in db.execute("SELECT body FROM incidents WHERE state != 'retired' ORDER BY n")]
    return [file.record(Incident, body) for body in bodies]


def _tickets(file: Database) -> list[Ticket]:
    with file.read() as db:
        bodies = [row[0] for row in db.execute("SELECT body FROM tickets WHERE state = 'resolved' ORDER BY id")]
    return [file.record(Ticket, body) for body in bodies]
