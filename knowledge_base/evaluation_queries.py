"""Queries for the evaluation of a knowledge base; see `evaluation`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from whystall.knowledge_base import features
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evidence import Evidence, evidence_of
from whystall.knowledge_base.models import Incident, Lang
from whystall.knowledge_base.questions import Half, questions
from whystall.knowledge_base.ticket_models import LESSON, Ticket

Set = Literal["symptom", "evidence", "unseen", "questions", "recurrence"]
_LANGS: tuple[Lang, ...] = ("en", "zh")
_CJK = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True)
class Query:
    """Query `text` in `lang`, with `evidence` if given, and with the cards of `without` removed. `right`: ids of cards
    of which any answers it; empty if nothing should be found.
    """

    set: Set
    lang: Lang
    text: str
    right: frozenset[str]
    half: Half | None = None
    evidence: Evidence | None = None
    without: tuple[str, ...] = ()


def queries(
    file: Database, known: Mapping[str, str | None], sets: Sequence[Set], most: int
) -> tuple[list[Query], bool]:
    """Return the queries of `sets` for the base `file` with the cards `known` (id and cause), and whether `most`
    limited the cards and tickets queried.
    """
    chosen = _sample(list(known), most)
    tickets = _resolved(file) if "recurrence" in sets else []
    found: list[Query] = []
    for name in sets:
        if name == "questions":
            found += _asked_questions(known)
        elif name == "recurrence":
            found += _recurrences(file, _sample(tickets, most))
        else:
            found += _left_out(file, name, chosen, known)
    return found, len(chosen) < len(known) or len(tickets) > most


def _left_out(file: Database, name: Set, chosen: Iterable[str], known: Mapping[str, str | None]) -> Iterator[Query]:
    by_cause: dict[str | None, list[str]] = {}
    for id, cause in known.items():
        by_cause.setdefault(cause, []).append(id)
    alike = {cause: tuple(ids) for cause, ids in by_cause.items() if cause is not None}
    right = {cause: frozenset(ids) for cause, ids in alike.items() if len(ids) > 1 and name != "unseen"}
    for id in chosen:
        with file.read() as db:
            (body,) = db.execute("SELECT body FROM incidents WHERE id = ?", [id]).fetchone()
        card = file.record(Incident, body)
        out = alike[card.cause] if name == "unseen" and card.cause is not None else (id,)
        # Only observable features: the cause and signatures derived from it are what is to be found.
        observed = tuple(f for f in features.of_card(card) if not f.startswith("cause:"))
        for lang in _LANGS:
            symptom = card.symptom.get(lang)
            if _in(symptom, lang):
                evidence = None if name == "symptom" else Evidence(symptom=symptom, features=observed)
                wanted = right.get(card.cause or "", frozenset())
                yield Query(name, lang, symptom, wanted, evidence=evidence, without=out)


def _asked_questions(known: Mapping[str, str | None]) -> Iterator[Query]:
    """Yield questions whose cards are all in the base, and those without an answer."""
    for lang in _LANGS:
        for half, asked in questions(lang).items():
            for question in asked:
                if all(id in known for id in question.cards):
                    yield Query("questions", lang, question.ask, frozenset(question.cards), half)


def _recurrences(file: Database, tickets: Iterable[str]) -> Iterator[Query]:
    for number in tickets:
        with file.read() as db:
            (body,) = db.execute("SELECT body FROM tickets WHERE id = ?", [int(number)]).fetchone()
            rows = db.execute(
                "SELECT id FROM incidents WHERE state != 'retired' AND (id = ? OR id IN"
                " (SELECT incident FROM occurrences WHERE key = ?))",
                [f"{LESSON}{number}", f"ticket:{number}"],
            ).fetchall()
        diagnosis = file.record(Ticket, body).diagnosis
        if rows and diagnosis is not None:
            lang: Lang = "zh" if _in(diagnosis.symptom, "zh") else "en"
            right = frozenset(id for (id,) in rows)
            yield Query("recurrence", lang, diagnosis.symptom, right, evidence=evidence_of(diagnosis))


def _resolved(file: Database) -> list[str]:
    with file.read() as db:
        return [str(id) for (id,) in db.execute("SELECT id FROM tickets WHERE state = 'resolved' ORDER BY id")]


def _in(text: str, lang: Lang) -> bool:
    """Return whether `text` is in `lang`: a user's card may have the same text for both."""
    return bool(text.strip()) and bool(_CJK.search(text)) == (lang == "zh")


def _sample(ids: Sequence[str], most: int) -> list[str]:
    if len(ids) <= most:
        return list(ids)
    return sorted(ids, key=lambda id: hashlib.sha256(id.encode()).digest())[:most]
