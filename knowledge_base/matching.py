"""Which past incidents a text or a case resembles, and why.

Three stages: exact signatures; the ranks of words and of features fused; and then, for a case, a card is similar only
if both share something that tells one problem from another, and nothing contradicts. A score decides the order, never
whether a card is similar: scores of wrong cards are not lower than those of right ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from whystall.knowledge_base import features as facts
from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evidence import Evidence
from whystall.knowledge_base.feedback import records
from whystall.knowledge_base.indexing import SIGNATURE
from whystall.knowledge_base.models import Incident, Match, Record
from whystall.knowledge_base.occurrences import recurrences
from whystall.knowledge_base.retrieval import Counts, Weights, by_features, by_words, features_of, rareness
from whystall.knowledge_base.times import age_days, moment
from whystall.knowledge_base.tokens import Terms, concept_of, terms

if TYPE_CHECKING:
    from sqlite_utils import Database as SqliteDatabase

# Reciprocal ranks are added as 1 / (60 + rank), the constant with which the method was published (Cormack, Clarke and
# Buettcher, SIGIR 2009): the first places of a list weigh much alike, and no list can outvote the other alone.
_FUSED = 60
# 93.8 % of recurring incidents recur within 20 days (RCACopilot, EuroSys 2024): an exponential with that share has a
# mean of 20 / ln(1 / 0.062) days. Yesterday's incident gains what one place at the top of one list is worth, so that
# recency orders what is otherwise equal, and outweighs no evidence.
_RECENT_DAYS = 20.0 / math.log(1 / 0.062)
_RECENCY = 1 / (_FUSED + 1) - 1 / (_FUSED + 2)
CANDIDATES = 50  # of each list
_EXACT = 50  # cards with one signature: the latest of them, and the first, so that a large import hides none
# Features that only support (file system, device class, period) weigh half of one that tells.
_SUPPORTING = 0.5
# Without a common cause, evidence is alike if what is shared is most of what the shorter account tells, and half of the
# kinds of findings that either has. Of every second curated card taken as a case without a cause, 36 of 44 then find no
# card once all of their cause are taken out (15 without), and 30 instead of 31 find one of their cause first.
_ALIKE, _ALIKE_KINDS = 0.75, 0.5
# A question is answered by a card that shares with it what nearly two words say that only this card has: of the first
# half of the questions in the catalogue, 25 of 28 without an answer stay below it, and 75 of 81 with one reach it.
_ENOUGH = 1.75
# ... or, where a short question has three words that mean something, three quarters of what it says.
_SEVERAL, _MOST_OF = 3, 0.75
_SHOWN = 12
_NEAREST = 3  # cards that are named though none is like the case
_CAUSE = "cause:"
_NAMES = ("frame:", "code:", "program:", "neighbour:", "file:", "place:", "irq:", "device:", "fs:", "period:", "quota:")
_MOST = 100
_How = Literal["signature", "evidence", "text"]


@dataclass
class _Card:
    """A card that may fit: its row, and what it shares with the case."""

    n: int
    id: str
    state: str
    cause: str | None
    origin: str
    features: frozenset[str] = frozenset()
    exact: list[str] = field(default_factory=list)
    distinctive: list[str] = field(default_factory=list)
    supporting: list[str] = field(default_factory=list)
    alike: bool = False
    score: float = 0.0
    occurrences: int = 1
    last_seen: str | None = None
    record: Record = field(default_factory=Record)


class Memory:
    """What searches have read, for the next ones; for as long as no card changes."""

    def __init__(self, file: Database) -> None:
        with file.read() as db:
            self.counts = Counts(db)
            self.total = Weights(db).total
        self.terms: dict[int, frozenset[str]] = {}


def search(
    file: Database, text: str, limit: int = 5, *, weak: bool = True, memory: Memory | None = None
) -> list[Match]:
    """Incidents ranked by their words in common with `text`, in either language; empty when there are none.

    Any text is allowed: it is never read as a query language. `Match.shared` lists the words. None is `known`: words
    are no evidence; those that share too little with the question to answer it are `weak`, and left out where `weak` is
    false. `memory`: of searches just before.
    """
    query = terms(text)
    limit = max(1, min(limit, _MOST))
    memory = memory or Memory(file)
    with file.read() as db:
        cards = _cards(db, by_words(db, query, limit, memory.counts))
        its = memory.terms
        its |= _terms_of(db, (card for n, card in cards.items() if n not in its))
        rare = rareness(query, memory.total, memory.counts) if cards else {}
        common = {n: [term for term in (*query.words, *query.grams) if term in its[n]] for n in cards}
        asked = sum(_meant(list(rare), rare).values())
        answering = {n for n in cards if _answers(common[n], rare, asked)}
        shown = [card for n, card in cards.items() if weak or n in answering]
        _remember(db, shown)
        bodies = _bodies(file, db, shown)
    found = []
    for card in shown:
        said = [term for term in common[card.n] if term in query.words] or common[card.n]
        shared = [f"word:{term.removeprefix('c_')}" for term in said[:_SHOWN]]
        match = _match(card, bodies[card.n], "text", shared, frozenset())
        found.append(match.model_copy(update={"weak": card.n not in answering}))
    return _numbered(found)


def similar(file: Database, evidence: Evidence, limit: int = 5) -> list[Match]:
    """Past incidents that resemble the case of which `evidence` is known, best first.

    Empty when none shares an exact signature or a distinctive feature with it, or all that do contradict it.
    Where all that do share too little to be called similar, a few of them are given as `weak`: the nearest, no answer.
    `Match.known` only for a reviewed card of the same cause that shares the signature of one fault at one place.
    """
    limit = max(1, min(limit, _MOST))
    with file.read() as db:
        weights = Weights(db)
        mine = _features(evidence)
        exact = _exact(db, evidence.signatures)
        by_word = by_words(db, words_of(evidence), CANDIDATES)
        by_feature = by_features(db, mine, weights, CANDIDATES)
        cards = _cards(db, dict.fromkeys([*exact, *by_word, *by_feature]))
        its = features_of(db, cards)
        for n, card in cards.items():
            card.features = frozenset(f for f in its.get(n, ()) if not f.startswith(SIGNATURE))
            card.exact = exact.get(n, [])
        overlap = _overlap(cards.values(), mine, weights)
        fitting = [card for card in cards.values() if not _contradicted(card, evidence)]
        accepted = [card for card in fitting if _alike(card, evidence)]
        # Where nothing is like the case, the nearest are named as no more than that.
        shown, most = (accepted, limit) if accepted else ([c for c in fitting if c.distinctive], min(limit, _NEAREST))
        _remember(db, shown)
        _score(shown, by_word, overlap, evidence.at)
        best = sorted(shown, key=_order)[:most]
        bodies = _bodies(file, db, best)
    found = []
    for card in best:
        shared = _said(card)[:_SHOWN]
        match = _match(card, bodies[card.n], "signature" if card.exact else "evidence", shared, evidence.ran)
        known = bool(accepted) and _known(card, evidence)
        told = {"known": known, "weak": not accepted, "fix": bodies[card.n].fix if known else None}
        found.append(match.model_copy(update=told))
    return _numbered(found)


# --- what is asked ------------------------------------------------------------------------------------------------


def _features(evidence: Evidence) -> list[str]:
    cause = [f"{_CAUSE}{evidence.cause}"] if evidence.cause else []
    return list(dict.fromkeys([*cause, *evidence.features]))


def words_of(evidence: Evidence) -> Terms:
    """What is looked for among words: the symptom as told, and names in the evidence that people write too."""
    names = [f.partition(":")[2] for f in evidence.features if f.startswith(("op:", "frame:", "fs:", "code:"))]
    return terms("\n".join([evidence.symptom, *names]))


_WITH = (
    "SELECT n FROM features WHERE feature = ? ORDER BY n DESC LIMIT ?",
    "SELECT n FROM features WHERE feature = ? ORDER BY n LIMIT ?",
)


def _exact(db: SqliteDatabase, signatures: Sequence[str]) -> dict[int, list[str]]:
    """Cards that hold any of `signatures`, with those they hold, the most distinctive first."""
    found: dict[int, list[str]] = {}
    for signature in dict.fromkeys(signatures):
        rows = {n for asked in _WITH for (n,) in db.execute(asked, [f"{SIGNATURE}{signature}", _EXACT])}
        for n in sorted(rows, reverse=True):
            found.setdefault(n, []).append(signature)
    return found


# --- what is shared -----------------------------------------------------------------------------------------------


def _overlap(cards: Collection[_Card], mine: Sequence[str], weights: Weights) -> dict[int, float]:
    """Jaccard's index of the features of the case and of each card that shares any, by weight; and how alike they are
    (`_Card.alike`).
    """
    everything = {*mine, *(f for card in cards for f in card.features)}
    weights.known(everything)
    distinctive = {f for f in everything if facts.distinctive(f)}
    values = {f: weights.of(f) * (1.0 if f in distinctive else _SUPPORTING) for f in everything}

    def weight(features: Iterable[str]) -> float:
        return sum(values[f] for f in features)

    own, kinds = frozenset(mine), _kinds(mine)
    # A name that no card has makes the case no less like those that are there.
    told = weight(f for f in own if not f.startswith(_CAUSE) and (weights.cards(f) or not f.startswith(_NAMES)))
    found = {}
    for card in cards:
        shared = [f for f in mine if f in card.features]
        card.distinctive = [f for f in shared if f in distinctive]
        card.supporting = [f for f in shared if f not in distinctive]
        if shared:
            both = weight(shared)
            found[card.n] = both / weight(own | card.features)
            apart = weight(f for f in shared if not f.startswith(_CAUSE))
            shorter = min(told, weight(f for f in card.features if not f.startswith(_CAUSE)))
            its = _kinds(card.features)
            same_kinds = weight(kinds & its) / weight(kinds | its) if its else 1.0
            card.alike = apart >= _ALIKE * shorter and same_kinds >= _ALIKE_KINDS
    return found


def _kinds(features: Iterable[str]) -> frozenset[str]:
    return frozenset(f for f in features if f.startswith("kind:"))


def _alike(card: _Card, evidence: Evidence) -> bool:
    """Whether what is shared is a reason to call the card similar: an exact signature, a cause that the evidence
    supports, or something distinctive where the evidence is alike as a whole.
    """
    same_cause = evidence.cause is not None and card.cause == evidence.cause
    return bool(card.exact) or same_cause or (bool(card.distinctive) and card.alike)


def _contradicted(card: _Card, evidence: Evidence) -> bool:
    """Whether something speaks against the card: a case of another cause, one whose cause the case rules out, and one
    all of whose kinds of findings were measured here and found normal.
    """
    another = card.cause is not None and card.cause != evidence.cause
    if another and (evidence.cause is not None or card.cause in evidence.ruled_out):
        return True
    kinds = {f.partition(":")[2] for f in _kinds(card.features)}
    return bool(kinds) and kinds <= evidence.normal


def _known(card: _Card, evidence: Evidence) -> bool:
    """Whether the card may be quoted as a known incident: somebody answers for it, its matches were not rejected again
    and again, its cause is the one the evidence supports, and what is shared names one fault at one place. A system
    call and a cause are of many faults, even while only one card tells of them.
    """
    if card.state != "reviewed" or card.record.flagged or not evidence.sure or card.cause != evidence.cause:
        return False
    return any(keys.names_a_fault(signature) for signature in card.exact)


# --- the order ----------------------------------------------------------------------------------------------------


def _score(cards: Iterable[_Card], by_word: Sequence[int], overlap: Mapping[int, float], at: str) -> None:
    words = {n: rank for rank, n in enumerate(by_word, 1)}
    order = sorted(set(overlap.values()), reverse=True)
    places = {value: rank for rank, value in enumerate(order, 1)}  # equals share a place: others tell them apart
    for card in cards:
        ranks = [words.get(card.n), places.get(overlap.get(card.n, -1.0))]
        card.score = sum(1 / (_FUSED + rank) for rank in ranks if rank is not None)
        card.score += _RECENCY * _recency(card.last_seen, at)


def _recency(last_seen: str | None, at: str) -> float:
    """1 for what was seen just now, falling with the days; 0 for what only the literature saw."""
    days = age_days(last_seen or "", moment(at))
    return 0.0 if days is None else math.exp(-days / _RECENT_DAYS)


def _order(card: _Card) -> tuple[int, bool, bool, float, int]:
    """Exact ones first; of equally exact ones those last that were rejected again and again, before them what was told
    or imported and nobody has read; then by score, and the later one.
    """
    exact = max((keys.weight(signature) for signature in card.exact), default=0)
    told = card.state == "draft" and card.origin == "user"
    return -exact, card.record.flagged, told, -card.score, -card.n


# --- cards --------------------------------------------------------------------------------------------------------


def _cards(db: SqliteDatabase, rows: Iterable[int]) -> dict[int, _Card]:
    wanted = list(rows)
    asked = "SELECT n, id, state, cause, origin FROM incidents WHERE n IN (SELECT value FROM json_each(?))"
    found = {row[0]: _Card(*row) for row in db.execute(asked, [json.dumps(wanted)]).fetchall()}
    return {n: found[n] for n in wanted if n in found}  # the index of a damaged file may name others


def _remember(db: SqliteDatabase, cards: Iterable[_Card]) -> None:
    """How often and when the incidents of `cards` were seen, and how well they matched."""
    by_id = {card.id: card for card in cards}
    often, well = recurrences(db, by_id), records(db, by_id)
    for id, card in by_id.items():
        card.occurrences, card.last_seen, card.record = often[id].count, often[id].last, well[id]


def _bodies(file: Database, db: SqliteDatabase, cards: Iterable[_Card]) -> dict[int, Incident]:
    found = {}
    for card in cards:
        (body,) = db.execute("SELECT body FROM incidents WHERE n = ?", [card.n]).fetchone()
        found[card.n] = file.record(Incident, body)
    return found


def _terms_of(db: SqliteDatabase, cards: Iterable[_Card]) -> dict[int, frozenset[str]]:
    """What `cards` are found by, as it is stored with them: terms, separated by blanks."""
    asked = "SELECT symptom, concepts, later, grams FROM incidents WHERE n = ?"
    return {card.n: frozenset(" ".join(db.execute(asked, [card.n]).fetchone()).split(" ")) for card in cards}


def _said(card: _Card) -> list[str]:
    """What is shared, without what another of its keys says as well: a cause and a system call in ``cause+op:...``."""
    implied = {f"{_CAUSE}{card.cause}" for key in card.exact if key.startswith("cause+op:")}
    implied |= {f"op:{key.rpartition(':')[2]}" for key in card.exact if key.startswith("cause+op:")}
    return [*card.exact, *(key for key in (*card.distinctive, *card.supporting) if key not in implied)]


def _match(card: _Card, incident: Incident, how: _How, shared: list[str], ran: frozenset[str]) -> Match:
    return Match(
        incident=incident.id,
        title=incident.title,
        how=how,
        shared=shared,
        rank=1,
        state=incident.state,
        unchecked=[name for name in incident.checks if name not in ran],
        occurrences=card.occurrences,
        last_seen=card.last_seen,
        record=card.record,
    )


def _numbered(matches: Sequence[Match]) -> list[Match]:
    return [match.model_copy(update={"rank": rank}) for rank, match in enumerate(matches, 1)]


def _answers(common: Sequence[str], rare: Mapping[str, float], asked: float) -> bool:
    """Whether a card that shares the terms `common` of a question says enough of what it asks (`asked`, in the same
    measure): much, or, of a short question with several words, most.
    """
    shared = _meant(common, rare)
    worth = sum(shared.values())
    return worth >= _ENOUGH or (len(shared) >= _SEVERAL and worth >= _MOST_OF * asked)


def _meant(some: Sequence[str], rare: Mapping[str, float]) -> dict[str, float]:
    """What `some` terms say, in words that one card alone has; those of one concept count once."""
    found: dict[str, float] = {}
    for term in some:
        meant = concept_of(term) or term
        found[meant] = max(found.get(meant, 0.0), rare.get(term, 0.0))
    return found
