"""Finds past incidents similar to a text or a case, with the reasons.

Three stages: exact signatures; reciprocal rank fusion of words and of features; and, for a case, a filter: a card must
share something distinctive with the case and nothing may contradict it. The score only orders cards: wrong cards do not
score lower than right ones.
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

# Reciprocal rank fusion adds 1 / (60 + rank), the published constant (Cormack, Clarke and Buettcher, SIGIR 2009): the
# top ranks weigh alike, and no list outvotes the other.
_FUSED = 60
# 93.8 % of recurring incidents recur within 20 days (RCACopilot, EuroSys 2024): an exponential with that share has a
# mean of 20 / ln(1 / 0.062) days. An incident of yesterday gains as much as one top rank, so that recency orders equal
# cards but outweighs no evidence.
_RECENT_DAYS = 20.0 / math.log(1 / 0.062)
_RECENCY = 1 / (_FUSED + 1) - 1 / (_FUSED + 2)
CANDIDATES = 50  # of each list
_EXACT = 50  # cards with one signature: the latest and the first, so that a large import hides none
# Supporting features (file system, device class, period) weigh half of a distinctive one.
_SUPPORTING = 0.5
# Without a common cause, evidence is alike if what is shared is most of the shorter description, and half of the kinds
# of findings of both. With every second curated card as a case without a cause, 36 of 44 then find no card once all of
# their cause are removed (15 without this rule), and 30 instead of 31 rank one of their cause first.
_ALIKE, _ALIKE_KINDS = 0.75, 0.5
# A card answers a question if it shares nearly two words that only this card has: of the questions in the first half of
# the catalogue, 25 of 28 without an answer stay below this, and 75 of 81 with one reach it.
_ENOUGH = 1.75
# A short question with three significant words needs three quarters of its weight.
_SEVERAL, _MOST_OF = 3, 0.75
_SHOWN = 12
_NEAREST = 3  # nearest cards shown if none is similar
_CAUSE = "cause:"
_NAMES = ("frame:", "code:", "program:", "neighbour:", "file:", "place:", "irq:", "device:", "fs:", "period:", "quota:")
_MOST = 100
_How = Literal["signature", "evidence", "text"]


@dataclass
class _Card:
    """A candidate: its row, and what it shares with the case."""

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
    """Cache of reads shared by successive searches; valid while no card changes."""

    def __init__(self, file: Database) -> None:
        with file.read() as db:
            self.counts = Counts(db)
            self.total = Weights(db).total
        self.terms: dict[int, frozenset[str]] = {}


def search(
    file: Database, text: str, limit: int = 5, *, weak: bool = True, memory: Memory | None = None
) -> list[Match]:
    """Return incidents ranked by words in common with `text`, in either language.

    `text` is never parsed as a query language. `Match.shared` lists the words. None is `known`: words are no evidence.
    Cards that share too little to answer are `weak`, and dropped if `weak` is false. `memory`: of preceding searches.
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
        asked = sum(_term_weights(list(rare), rare).values())
        answering = {n for n in cards if _answers(common[n], rare, asked)}
        shown = [card for n, card in cards.items() if weak or n in answering]
        _add_records(db, shown)
        bodies = _bodies(file, db, shown)
    found = []
    for card in shown:
        named = [term for term in common[card.n] if term in query.words] or common[card.n]
        shared = [f"word:{term.removeprefix('c_')}" for term in named[:_SHOWN]]
        match = _match(card, bodies[card.n], "text", shared, frozenset())
        found.append(match.model_copy(update={"weak": card.n not in answering}))
    return _numbered(found)


def similar(file: Database, evidence: Evidence, limit: int = 5) -> list[Match]:
    """Return past incidents similar to the case with `evidence`, best first.

    Empty if none shares an exact signature or a distinctive feature, or all that do are contradicted. If none shares
    enough to be similar, the nearest few are returned as `weak`. `Match.known` only for a reviewed card of the same
    cause that shares the signature of one fault at one place.
    """
    limit = max(1, min(limit, _MOST))
    with file.read() as db:
        weights = Weights(db)
        features = _features(evidence)
        exact = _exact(db, evidence.signatures)
        by_word = by_words(db, words_of(evidence), CANDIDATES)
        by_feature = by_features(db, features, weights, CANDIDATES)
        cards = _cards(db, dict.fromkeys([*exact, *by_word, *by_feature]))
        its = features_of(db, cards)
        for n, card in cards.items():
            card.features = frozenset(f for f in its.get(n, ()) if not f.startswith(SIGNATURE))
            card.exact = exact.get(n, [])
        overlap = _overlap(cards.values(), features, weights)
        fitting = [card for card in cards.values() if not _contradicted(card, evidence)]
        accepted = [card for card in fitting if _is_similar(card, evidence)]
        # No card is similar: return the nearest ones, marked as weak.
        shown, most = (accepted, limit) if accepted else ([c for c in fitting if c.distinctive], min(limit, _NEAREST))
        _add_records(db, shown)
        _score(shown, by_word, overlap, evidence.at)
        best = sorted(shown, key=_order)[:most]
        bodies = _bodies(file, db, best)
    found = []
    for card in best:
        shared = _shared(card)[:_SHOWN]
        match = _match(card, bodies[card.n], "signature" if card.exact else "evidence", shared, evidence.ran)
        known = bool(accepted) and _known(card, evidence)
        update = {"known": known, "weak": not accepted, "fix": bodies[card.n].fix if known else None}
        found.append(match.model_copy(update=update))
    return _numbered(found)


# --- the query --------------------------------------------------------------------------------------------------------


def _features(evidence: Evidence) -> list[str]:
    cause = [f"{_CAUSE}{evidence.cause}"] if evidence.cause else []
    return list(dict.fromkeys([*cause, *evidence.features]))


def words_of(evidence: Evidence) -> Terms:
    """Return the words to search for: the reported symptom, and names in the evidence that people write too."""
    names = [f.partition(":")[2] for f in evidence.features if f.startswith(("op:", "frame:", "fs:", "code:"))]
    return terms("\n".join([evidence.symptom, *names]))


_WITH = (
    "SELECT n FROM features WHERE feature = ? ORDER BY n DESC LIMIT ?",
    "SELECT n FROM features WHERE feature = ? ORDER BY n LIMIT ?",
)


def _exact(db: SqliteDatabase, signatures: Sequence[str]) -> dict[int, list[str]]:
    """Find cards with any of `signatures`, the most specific first."""
    found: dict[int, list[str]] = {}
    for signature in dict.fromkeys(signatures):
        rows = {n for asked in _WITH for (n,) in db.execute(asked, [f"{SIGNATURE}{signature}", _EXACT])}
        for n in sorted(rows, reverse=True):
            found.setdefault(n, []).append(signature)
    return found


# --- shared evidence --------------------------------------------------------------------------------------------------


def _overlap(cards: Collection[_Card], features: Sequence[str], weights: Weights) -> dict[int, float]:
    """Return the weighted Jaccard index of the features of the case and of each card; set `_Card.alike`."""
    everything = {*features, *(f for card in cards for f in card.features)}
    weights.load(everything)
    distinctive = {f for f in everything if facts.distinctive(f)}
    values = {f: weights.of(f) * (1.0 if f in distinctive else _SUPPORTING) for f in everything}

    def weight(some: Iterable[str]) -> float:
        return sum(values[f] for f in some)

    own, kinds = frozenset(features), _kinds(features)
    # A name that no card has does not lower the similarity.
    described = weight(f for f in own if not f.startswith(_CAUSE) and (weights.cards(f) or not f.startswith(_NAMES)))
    found = {}
    for card in cards:
        shared = [f for f in features if f in card.features]
        card.distinctive = [f for f in shared if f in distinctive]
        card.supporting = [f for f in shared if f not in distinctive]
        if shared:
            both = weight(shared)
            found[card.n] = both / weight(own | card.features)
            apart = weight(f for f in shared if not f.startswith(_CAUSE))
            shorter = min(described, weight(f for f in card.features if not f.startswith(_CAUSE)))
            its = _kinds(card.features)
            same_kinds = weight(kinds & its) / weight(kinds | its) if its else 1.0
            card.alike = apart >= _ALIKE * shorter and same_kinds >= _ALIKE_KINDS
    return found


def _kinds(features: Iterable[str]) -> frozenset[str]:
    return frozenset(f for f in features if f.startswith("kind:"))


def _is_similar(card: _Card, evidence: Evidence) -> bool:
    """Return whether the card is similar: it shares an exact signature, a cause that the evidence supports, or a
    distinctive feature with evidence that is alike as a whole.
    """
    same_cause = evidence.cause is not None and card.cause == evidence.cause
    return bool(card.exact) or same_cause or (bool(card.distinctive) and card.alike)


def _contradicted(card: _Card, evidence: Evidence) -> bool:
    """Return whether the evidence contradicts the card: another cause, a cause that is ruled out, or all its kinds of
    findings measured as normal.
    """
    another = card.cause is not None and card.cause != evidence.cause
    if another and (evidence.cause is not None or card.cause in evidence.ruled_out):
        return True
    kinds = {f.partition(":")[2] for f in _kinds(card.features)}
    return bool(kinds) and kinds <= evidence.normal


def _known(card: _Card, evidence: Evidence) -> bool:
    """Return whether the card may be quoted as a known incident: reviewed, not flagged, with a cause that the evidence
    supports, and a shared signature that names one fault at one place.

    A system call and a cause are shared by many faults, even while only one card has them.
    """
    if card.state != "reviewed" or card.record.flagged or not evidence.sure or card.cause != evidence.cause:
        return False
    return any(keys.names_a_fault(signature) for signature in card.exact)


# --- ranking ----------------------------------------------------------------------------------------------------------


def _score(cards: Iterable[_Card], by_word: Sequence[int], overlap: Mapping[int, float], at: str) -> None:
    words = {n: rank for rank, n in enumerate(by_word, 1)}
    order = sorted(set(overlap.values()), reverse=True)
    places = {value: rank for rank, value in enumerate(order, 1)}  # equals share a rank
    for card in cards:
        ranks = [words.get(card.n), places.get(overlap.get(card.n, -1.0))]
        card.score = sum(1 / (_FUSED + rank) for rank in ranks if rank is not None)
        card.score += _RECENCY * _recency(card.last_seen, at)


def _recency(last_seen: str | None, at: str) -> float:
    """1 for an incident of just now, falling with the days; 0 for one that never occurred here."""
    days = age_days(last_seen or "", moment(at))
    return 0.0 if days is None else math.exp(-days / _RECENT_DAYS)


def _order(card: _Card) -> tuple[int, bool, bool, float, int]:
    """Sort key: exact matches first, of those flagged cards last, then unreviewed user cards; then by score, later ones
    first.
    """
    exact = max((keys.weight(signature) for signature in card.exact), default=0)
    unreviewed = card.state == "draft" and card.origin == "user"
    return -exact, card.record.flagged, unreviewed, -card.score, -card.n


def _cards(db: SqliteDatabase, rows: Iterable[int]) -> dict[int, _Card]:
    wanted = list(rows)
    asked = "SELECT n, id, state, cause, origin FROM incidents WHERE n IN (SELECT value FROM json_each(?))"
    found = {row[0]: _Card(*row) for row in db.execute(asked, [json.dumps(wanted)]).fetchall()}
    return {n: found[n] for n in wanted if n in found}  # the index of a damaged file may name others


def _add_records(db: SqliteDatabase, cards: Iterable[_Card]) -> None:
    """Set how often and when the incidents of `cards` recurred, and how well they matched."""
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
    """Return the stored index terms of `cards`, separated by blanks."""
    asked = "SELECT symptom, concepts, later, grams FROM incidents WHERE n = ?"
    return {card.n: frozenset(" ".join(db.execute(asked, [card.n]).fetchone()).split(" ")) for card in cards}


def _shared(card: _Card) -> list[str]:
    """Return the shared keys, without those implied by another such as ``cause+op:...``."""
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
    """Return whether the shared terms `common` weigh enough of the question (`asked`): in total, or most of a short
    question with several words.
    """
    shared = _term_weights(common, rare)
    worth = sum(shared.values())
    return worth >= _ENOUGH or (len(shared) >= _SEVERAL and worth >= _MOST_OF * asked)


def _term_weights(some: Sequence[str], rare: Mapping[str, float]) -> dict[str, float]:
    """Weight of `some` terms, in units of a word that only one card has; terms of one concept count once."""
    found: dict[str, float] = {}
    for term in some:
        meant = concept_of(term) or term
        found[meant] = max(found.get(meant, 0.0), rare.get(term, 0.0))
    return found
