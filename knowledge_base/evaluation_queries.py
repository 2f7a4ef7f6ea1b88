"""What a knowledge base is asked to see how well it answers; see `evaluation`."""

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
from whystall.knowledge_base.tickets.models import LESSON, Ticket

Set = Literal["symptom", "evidence", "unseen", "questions", "recurrence"]
_LANGS: tuple[Lang, ...] = ("en", "zh")
_CJK = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True)
class Query:
    """`text` in `lang` is asked, with `evidence` where there is some, and with the cards of `without` taken out.
    `right`: ids of cards any of which answers it, beside those taken out; empty when nothing is to be found.
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
    """The queries of `sets` for the base `file` that holds the cards `known` (id and cause), and whether there would be
    more than the `most` cards and tickets that are asked for.
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
        # What a look would have shown; what it means (cause, signatures made of it) is what is to be found.
        told = tuple(f for f in features.of_card(card) if not f.startswith("cause:"))
        for lang in _LANGS:
            symptom = card.symptom.get(lang)
            if _in(symptom, lang):
                evidence = None if name == "symptom" else Evidence(symptom=symptom, features=told)
                wanted = right.get(card.cause or "", frozenset())
                yield Query(name, lang, symptom, wanted, evidence=evidence, without=out)


def _asked_questions(known: Mapping[str, str | None]) -> Iterator[Query]:
    """Questions whose cards are all in the base (it may be a part of ours), and those that nothing answers."""
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
    """Whether `text` is in `lang`: a user's card may say the same in both places."""
    return bool(text.strip()) and bool(_CJK.search(text)) == (lang == "zh")


def _sample(ids: Sequence[str], most: int) -> list[str]:
    if len(ids) <= most:
        return list(ids)
    return sorted(ids, key=lambda id: hashlib.sha256(id.encode()).digest())[:most]
