"""Finds past incidents similar to a case, with the reasons.

Three stages: exact signatures; reciprocal rank fusion of words and of features; and a filter: a card must share
something distinctive with the case and nothing may contradict it. The score only orders cards: wrong cards do not
score lower than right ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from whystall.knowledge_base import features as facts
from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base import text_search
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evidence import Evidence
from whystall.knowledge_base.found_cards import Card, add_records, as_match, bodies_of, cards_of, numbered
from whystall.knowledge_base.indexing import SIGNATURE
from whystall.knowledge_base.models import Match
from whystall.knowledge_base.retrieval import (
    FUSED,
    Query,
    Weights,
    by_features,
    by_words,
    counts_of,
    features_of,
    query_of,
)
from whystall.knowledge_base.times import age_days, moment

if TYPE_CHECKING:
    from sqlite3 import Connection

# 93.8 % of recurring incidents recur within 20 days (RCACopilot, EuroSys 2024): an exponential with that share has a
# mean of 20 / ln(1 / 0.062) days. An incident of yesterday gains as much as one top rank, so that recency orders equal
# cards but outweighs no evidence.
_RECENT_DAYS = 20.0 / math.log(1 / 0.062)
_RECENCY = 1 / (FUSED + 1) - 1 / (FUSED + 2)
CANDIDATES = 50  # of each list
_EXACT = 50  # cards with one signature: the latest and the first, so that a large import hides none
# Supporting features (file system, device class, period) weigh half of a distinctive one.
_SUPPORTING = 0.5
# Without a common cause, evidence is alike if what is shared is most of the shorter description, and half of the kinds
# of findings of both. With every second curated card as a case without a cause, 36 of 44 then find no card once all of
# their cause are removed (15 without this rule), and 30 instead of 31 rank one of their cause first.
_ALIKE, _ALIKE_KINDS = 0.75, 0.5
# Least confidence of a text that is the report of a known fault. In a replay of the curated incidents each of the 76
# without distinctive features has at least 0.95 for its own symptom; without their card, 14 get another one with 0.6
# to 0.97, of which seven are below this.
_SAME_FAULT = 0.9
_SHOWN = 12
_NEAREST = 3  # nearest cards shown if none is similar
_CAUSE = "cause:"
_NAMES = ("frame:", "code:", "program:", "neighbour:", "file:", "place:", "irq:", "device:", "fs:", "period:", "quota:")
_MOST = 100


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
        by_word = by_words(db, words_of(evidence), CANDIDATES, counts_of(file, db))
        by_feature = by_features(db, features, weights, CANDIDATES)
        cards = cards_of(db, dict.fromkeys([*exact, *by_word, *by_feature]))
        its = features_of(db, cards)
        for n, card in cards.items():
            card.features = frozenset(its.get(n, ()))
            card.exact = exact.get(n, [])
        overlap = _overlap(cards.values(), features, weights)
        fitting = [card for card in cards.values() if not _contradicted(card, evidence)]
        accepted = [card for card in fitting if _is_similar(card, evidence)]
        # No card is similar: return the nearest ones, marked as weak.
        shown, most = (accepted, limit) if accepted else ([c for c in fitting if c.distinctive], min(limit, _NEAREST))
        add_records(db, shown)
        _score(shown, by_word, overlap, evidence.at)
        best = sorted(shown, key=_order)[:most]
        bodies = bodies_of(file, db, best)
    found = []
    for card in best:
        shared = _shared(card)[:_SHOWN]
        match = as_match(card, bodies[card.n], "signature" if card.exact else "evidence", shared, evidence.ran)
        known = bool(accepted) and _known(card, evidence)
        update = {"known": known, "weak": not accepted, "fix": bodies[card.n].fix if known else None}
        found.append(match.model_copy(update=update))
    return numbered(found)


def similar_by_text(file: Database, evidence: Evidence, limit: int = 5) -> list[Match]:
    """Return incidents that a search for the symptom of a case without a cause finds, unless its evidence contradicts
    them.

    For a case in which `similar` finds nothing: some faults show in no finding, only in how their symptom is described.
    See `text_search.search`. Those that are less likely than `_SAME_FAULT` are `weak`.
    """
    if evidence.cause is not None:
        return []
    with file.read() as db:
        found = text_search.search(file, evidence.symptom, limit, weak=False)
        asked = "SELECT n FROM incidents WHERE id IN (SELECT value FROM json_each(?))"
        cards = cards_of(db, [n for (n,) in db.execute(asked, [json.dumps([match.incident for match in found])])])
        for n, features in features_of(db, cards).items():
            cards[n].features = frozenset(features)
    fitting = {card.id for card in cards.values() if not _contradicted(card, evidence)}
    return numbered(
        match.model_copy(update={"weak": (match.confidence or 0.0) < _SAME_FAULT})
        for match in found
        if match.incident in fitting
    )


# --- the query --------------------------------------------------------------------------------------------------------


def _features(evidence: Evidence) -> list[str]:
    cause = [f"{_CAUSE}{evidence.cause}"] if evidence.cause else []
    return list(dict.fromkeys([*cause, *evidence.features]))


def words_of(evidence: Evidence) -> Query:
    """Return the words to search for: the reported symptom, and names in the evidence that people write too."""
    names = [f.partition(":")[2] for f in evidence.features if f.startswith(("op:", "frame:", "fs:", "code:"))]
    return query_of("\n".join([evidence.symptom, *names]))


_WITH = (
    "SELECT n FROM features WHERE feature = ? ORDER BY n DESC LIMIT ?",
    "SELECT n FROM features WHERE feature = ? ORDER BY n LIMIT ?",
)


def _exact(db: Connection, signatures: Sequence[str]) -> dict[int, list[str]]:
    """Find cards with any of `signatures`, the most specific first."""
    found: dict[int, list[str]] = {}
    for signature in dict.fromkeys(signatures):
        rows = {n for asked in _WITH for (n,) in db.execute(asked, [f"{SIGNATURE}{signature}", _EXACT])}
        for n in sorted(rows, reverse=True):
            found.setdefault(n, []).append(signature)
    return found


# --- shared evidence --------------------------------------------------------------------------------------------------


def _overlap(cards: Collection[Card], features: Sequence[str], weights: Weights) -> dict[int, float]:
    """Return the weighted Jaccard index of the features of the case and of each card; set `Card.alike`."""
    everything = {*features, *(f for card in cards for f in card.features)}
    weights.load(everything)
    distinctive = {f for f in everything if facts.distinctive(f)}
    values = {f: weights.of(f) * (1.0 if f in distinctive else _SUPPORTING) for f in everything}

    def weight(some: Iterable[str]) -> float:
        return math.fsum(values[f] for f in some)  # exact, so that equal cards are equal in any order

    own, kinds = weight(frozenset(features)), _kinds(features)
    # A name that no card has does not lower the similarity.
    described = weight(
        f for f in {*features} if not f.startswith(_CAUSE) and (weights.cards(f) or not f.startswith(_NAMES))
    )
    found = {}
    for card in cards:
        shared = [f for f in features if f in card.features]
        card.distinctive = [f for f in shared if f in distinctive]
        card.supporting = [f for f in shared if f not in distinctive]
        if shared:
            both, whole = weight(shared), weight(card.features)
            found[card.n] = both / (own + whole - both)
            apart = weight(f for f in shared if not f.startswith(_CAUSE))
            shorter = min(described, weight(f for f in card.features if not f.startswith(_CAUSE)))
            its = _kinds(card.features)
            same_kinds = weight(kinds & its) / weight(kinds | its) if its else 1.0
            card.alike = apart >= _ALIKE * shorter and same_kinds >= _ALIKE_KINDS
    return found


def _kinds(features: Iterable[str]) -> frozenset[str]:
    return frozenset(f for f in features if f.startswith("kind:"))


def _is_similar(card: Card, evidence: Evidence) -> bool:
    """Return whether the card is similar: it shares an exact signature, a cause that the evidence supports, or a
    distinctive feature with evidence that is alike as a whole.
    """
    same_cause = evidence.cause is not None and card.cause == evidence.cause
    return bool(card.exact) or same_cause or (bool(card.distinctive) and card.alike)


def _contradicted(card: Card, evidence: Evidence) -> bool:
    """Return whether the evidence contradicts the card: another cause, a cause that is ruled out, or all its kinds of
    findings measured as normal.
    """
    another = card.cause is not None and card.cause != evidence.cause
    if another and (evidence.cause is not None or card.cause in evidence.ruled_out):
        return True
    kinds = {f.partition(":")[2] for f in _kinds(card.features)}
    return bool(kinds) and kinds <= evidence.normal


def _known(card: Card, evidence: Evidence) -> bool:
    """Return whether the card may be quoted as a known incident: reviewed, not flagged, with a cause that the evidence
    supports, and a shared signature that names one fault at one place.

    A system call and a cause are shared by many faults, even while only one card has them.
    """
    if card.state != "reviewed" or card.record.flagged or not evidence.sure or card.cause != evidence.cause:
        return False
    return any(keys.names_a_fault(signature) for signature in card.exact)


# --- ranking ----------------------------------------------------------------------------------------------------------


def _score(cards: Iterable[Card], words: Mapping[int, int], overlap: Mapping[int, float], at: str) -> None:
    order = sorted(set(overlap.values()), reverse=True)
    places = {value: rank for rank, value in enumerate(order, 1)}  # equals share a rank
    for card in cards:
        ranks = [words.get(card.n), places.get(overlap.get(card.n, -1.0))]
        card.score = sum(1 / (FUSED + rank) for rank in ranks if rank is not None)
        card.score += _RECENCY * _recency(card.last_seen, at)


def _recency(last_seen: str | None, at: str) -> float:
    """1 for an incident of just now, falling with the days; 0 for one that never occurred here."""
    days = age_days(last_seen or "", moment(at))
    return 0.0 if days is None else math.exp(-days / _RECENT_DAYS)


def _order(card: Card) -> tuple[int, bool, bool, float, int]:
    """Sort key: exact matches first, of those flagged cards last, then unreviewed user cards; then by score, later ones
    first.
    """
    exact = max((keys.weight(signature) for signature in card.exact), default=0)
    unreviewed = card.state == "draft" and card.origin == "user"
    return -exact, card.record.flagged, unreviewed, -card.score, -card.n


def _shared(card: Card) -> list[str]:
    """Return the shared keys, without those implied by another such as ``cause+op:...``."""
    implied = {f"{_CAUSE}{card.cause}" for key in card.exact if key.startswith("cause+op:")}
    implied |= {f"op:{key.rpartition(':')[2]}" for key in card.exact if key.startswith("cause+op:")}
    return [*card.exact, *(key for key in (*card.distinctive, *card.supporting) if key not in implied)]
