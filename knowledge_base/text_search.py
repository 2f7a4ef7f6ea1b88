"""Finds past incidents by a text in either language, with the reasons and how likely they are right.

Words, character n-grams and references (codes and names) choose candidates from inverted indexes. A candidate is
judged by the information of the text that it covers: a term counts by its rarity in the cards and in technical
English, and a long text is searched passage by passage, so that length creates no match. Their order also counts how
alike text and card are in character n-grams (see `ngrams`). Cards near in meaning (see `embeddings`), if a caller has
them, are fused with this order; how likely a card is right is decided without them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from whystall.knowledge_base.background import informativeness
from whystall.knowledge_base.confidence import Signals, answers, confidence
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.embeddings import Near
from whystall.knowledge_base.found_cards import Card, add_records, as_match, bodies_of, cards_of, numbered
from whystall.knowledge_base.indexing import PHRASED, REFERENCE
from whystall.knowledge_base.models import Incident, Match
from whystall.knowledge_base.ngrams import likeness, text_of
from whystall.knowledge_base.passages import Passage, passages
from whystall.knowledge_base.references import is_code, is_specific
from whystall.knowledge_base.retrieval import (
    FUSED,
    Query,
    Weights,
    by_words,
    counts_of,
    query_of,
    query_pieces,
    rareness,
)
from whystall.knowledge_base.tokens import CONCEPT, EVERYDAY, cjk, has_particle

if TYPE_CHECKING:
    from sqlite3 import Connection

# Weights are relative to a word that one card has. They were chosen on the first half of the shipped questions and on
# public reports in own words; hit@1 changes by less than 0.03 if one of them is halved or doubled.
_GENERAL = 0.35  # exponent of the general informativeness of a word
_UNKNOWN = 0.5  # of a term that no card has
_PAIR = 0.8  # of a pair of Chinese characters
_EVERYDAY = 0.4  # of a group of everyday words
_PHRASED = 1.0  # of a term that only the phrasings of a card have
_PARTICLE = 0.6  # of one with a particle, relative to another
_PIECE = 0.13  # of a character n-gram
_NAME, _CODE, _SPECIFIC = 0.7, 1.5, 4.0  # of references
_BOTH = 1.35  # a term in the symptom as well as in the explanation, as bm25 values a second occurrence
_LENGTH = 0.3  # normalization by the length of a card, as b of bm25
# Weight of the likeness in character n-grams, relative to the share of the information that is covered. Chosen as that
# with the highest likelihood of the right cards (softmax over the candidates) on reports and questions.
_ALIKE = 2.0
CANDIDATES = 40
"""Cards per passage that are compared; of each list that is fused."""
MEANING = "meaning:"  # before a cosine, among what text and card share
_REFERENCED = 20  # latest cards of a reference
_COUNTED = 300  # terms of a passage that are weighed
_ALL = 0.95  # coverage of a text that is covered completely
_CHINESE = 0.2  # share of Chinese characters
_MOST = 100
_SHOWN = 12


class _Terms(NamedTuple):
    """Index terms of a card."""

    reported: frozenset[str]
    later: frozenset[str]
    phrased: frozenset[str]
    pieces: str  # with a blank around each: only a few of many are looked for


class Memory:
    """Cache of reads shared by successive searches; valid while no card changes."""

    def __init__(self, file: Database) -> None:
        self.file = file
        with file.read() as db:
            self.counts = counts_of(file, db)
            self.weights = Weights(db)
        self.terms: dict[int, _Terms] = {}
        self.texts: dict[int, str] = {}


@dataclass
class _Candidate:
    """What a card shares with a passage. `covered`: information, `phrased`: what only its phrasings have of it;
    `score`: for the order; `alike`: likeness in character n-grams.
    """

    card: Card
    covered: float = 0.0
    phrased: float = 0.0
    score: float = 0.0
    alike: float = 0.0
    length: int = 0
    codes: int = 0
    shared: dict[str, float] = field(default_factory=dict)


class Ranked(NamedTuple):
    """A card that shares terms with a passage, why, and how likely it is right."""

    card: Card
    shared: list[str]
    signals: Signals
    confidence: float


class _Found(NamedTuple):
    card: Card
    shared: list[str]
    confidence: float


def search(
    file: Database,
    text: str,
    limit: int = 5,
    *,
    weak: bool = True,
    memory: Memory | None = None,
    near: Sequence[Near] = (),
) -> list[Match]:
    """Return incidents that cover the information of `text`, in either language, best first.

    `text` is never parsed as a query language. `Match.shared` lists codes and words, `Match.confidence` how likely the
    card is right. None is `known`: words are no evidence. Cards that are not likely enough to answer are `weak`, and
    dropped if `weak` is false. `memory`: of preceding searches. `near`: cards near in meaning, nearest first; one that
    shares no words with `text` has the confidence 0.
    """
    limit = max(1, min(limit, _MOST))
    with file.read() as db:
        ranked = rank(db, text, max(limit, CANDIDATES) if near else limit, memory or Memory(file))
        found = [_Found(one.card, one.shared[:_SHOWN], one.confidence) for one in ranked]
        found = _fused(db, found, near) if near else found
        shown = [one for one in found if weak or answers(one.confidence)][:limit]
        cards = [one.card for one in shown]
        add_records(db, cards)
        bodies = bodies_of(file, db, cards)
    matches = []
    for one in shown:
        match = as_match(one.card, bodies[one.card.n], "text", one.shared, frozenset())
        sure = {"weak": not answers(one.confidence), "confidence": round(one.confidence, 2)}
        matches.append(match.model_copy(update=sure))
    return numbered(matches)


def _fused(db: Connection, found: Sequence[_Found], near: Sequence[Near]) -> list[_Found]:
    """Return `found` and the cards `near` in meaning by reciprocal rank fusion, after those of `found` that answer.

    The confidence stays that of the words: a place among the nearest was not calibrated, so that it makes no answer.
    """
    by_row = {one.card.n: one for one in found}
    others = cards_of(db, [one.n for one in near if one.n not in by_row])
    by_row |= {n: _Found(card, [], 0.0) for n, card in others.items()}
    scores = dict.fromkeys(by_row, 0.0)
    for place, one in enumerate(found, 1):
        scores[one.card.n] += 1 / (FUSED + place)
    for place, card in enumerate(near, 1):
        if card.n in by_row:
            scores[card.n] += 1 / (FUSED + place)
            held = by_row[card.n]
            by_row[card.n] = held._replace(shared=[*held.shared, f"{MEANING}{card.cosine:.2f}"])
    order = sorted(by_row, key=lambda n: (not answers(by_row[n].confidence), -scores[n]))
    return [by_row[n] for n in order]


def rank(db: Connection, text: str, limit: int, memory: Memory) -> list[Ranked]:
    """Return cards that share terms with `text`, best first: the best of each passage, then the others."""
    lists = sorted(by_passage(db, text, limit, memory), key=lambda found: -found[0].confidence)
    order = [found[0] for found in lists] + [one for found in lists for one in found[1:]]
    best: dict[int, Ranked] = {}
    for one in order:
        best.setdefault(one.card.n, one)
    return list(best.values())


def by_passage(db: Connection, text: str, limit: int, memory: Memory) -> list[list[Ranked]]:
    """Return the cards that share terms with each passage of `text`, best first; passages without any are left out."""
    found = (_judged(db, passage, at > 0, limit, memory) for at, passage in enumerate(passages(text)))
    return [cards for cards in found if cards]


def _judged(db: Connection, passage: Passage, later: bool, limit: int, memory: Memory) -> list[Ranked]:
    query = query_of(passage.text)
    asked = _term_weights(query, memory)
    held = _holders(db, passage.references, memory)
    referred = {reference: _reference_weight(reference, memory) for reference in passage.references}
    found = _candidates(db, query, asked, held, referred, max(CANDIDATES, limit), memory)
    total = sum(weight for weight, _ in asked.values()) + sum(referred.values())
    found = _with_likeness(db, passage.text, found, total, memory)
    codes = [reference for reference in passage.references if is_code(reference)]
    unknown = sum(reference not in held for reference in passage.references if not is_code(reference))
    chinese = float(cjk(passage.text) > _CHINESE * len(passage.text))
    ranked: list[Ranked] = []
    for one in found:
        rival = next((other.score for other in found if _rivals(one.card, other.card)), 0.0)
        signals = Signals(
            coverage=min(one.covered / total, 1.0),
            complete=float(one.covered > _ALL * total and len(asked) > 1),
            information=math.log1p(one.covered),
            alike=one.alike,
            lead=math.sqrt(max(1 - rival / max(one.score, 1e-9), 0.0)),
            code_held=float(one.codes > 0),
            code_missed=float(not one.codes and any(code in held for code in codes)),
            code_unknown=float(bool(codes) and not any(code in held for code in codes)),
            names_unknown=min(unknown / 3, 1.0),
            phrased=one.phrased / max(one.covered, 1e-9),
            later=float(later),
            chinese=chinese,
        )
        sure = min([confidence(signals), *(before.confidence for before in ranked[-1:])])  # falls with the rank
        ranked.append(Ranked(one.card, list(one.shared), signals, sure))
    return ranked


def _candidates(
    db: Connection,
    query: Query,
    asked: Mapping[str, tuple[float, str]],
    held: Mapping[str, frozenset[int]],
    referred: Mapping[str, float],
    limit: int,
    memory: Memory,
) -> list[_Candidate]:
    """Return the cards that share terms or references with the query, best first."""
    counts, total = memory.counts, memory.weights.total
    cut = {
        piece: _PIECE * rareness(counts.of(piece), total) for piece in query_pieces(query, counts) if counts.of(piece)
    }
    rows = by_words(db, query, limit, counts)
    found = []
    for card in cards_of(db, dict.fromkeys([*rows, *(n for its in held.values() for n in its)])).values():
        its = _terms_of(db, card.n, memory)
        one = _Candidate(card, length=len(its.reported) + len(its.later))
        for reference, holders in held.items():
            if card.n in holders:
                one.shared[reference] = math.inf
                one.codes += is_code(reference)
                one.covered += referred[reference]
        one.score = one.covered + sum(weight for piece, weight in cut.items() if f" {piece} " in its.pieces)
        for term, (weight, name) in asked.items():
            first, again = term in its.reported, term in its.later
            if not (first or again) and term in its.phrased:
                one.phrased += weight * _PHRASED
                one.covered += weight * _PHRASED
                one.score += weight * _PHRASED
                one.shared[f"word:{name}"] = max(one.shared.get(f"word:{name}", 0.0), weight * _PHRASED)
            elif first or again:
                one.covered += weight
                one.score += weight * (_BOTH if first and again else 1.0)
                one.shared[f"word:{name}"] = max(one.shared.get(f"word:{name}", 0.0), weight)
        if one.shared:
            one.shared = dict(sorted(one.shared.items(), key=lambda item: -item[1]))
            found.append(one)
    mean = sum(one.length for one in found) / max(len(found), 1)
    for one in found:
        one.score /= 1 - _LENGTH + _LENGTH * one.length / mean
    return sorted(found, key=lambda one: (-one.score, -one.card.n))


def _with_likeness(
    db: Connection, text: str, found: Sequence[_Candidate], total: float, memory: Memory
) -> list[_Candidate]:
    """Return the candidates in the order of their scores with their likeness in character n-grams."""
    alike = likeness(text, [_text_of(db, one.card.n, memory) for one in found])
    for one, value in zip(found, alike, strict=True):
        one.alike = value
        one.score += _ALIKE * value * total
    return sorted(found, key=lambda one: (-one.score, -one.card.n))


def _text_of(db: Connection, n: int, memory: Memory) -> str:
    if n not in memory.texts:
        (body,) = db.execute("SELECT body FROM incidents WHERE n = ?", [n]).fetchone()
        memory.texts[n] = text_of(memory.file.record(Incident, body))
    return memory.texts[n]


def _rivals(one: Card, other: Card) -> bool:
    return one.n != other.n and (one.cause is None or one.cause != other.cause)


def _term_weights(query: Query, memory: Memory) -> dict[str, tuple[float, str]]:
    """Return the weight of each term of `query`, and its name."""
    counts, total = memory.counts, memory.weights.total
    found = {}
    for term in [*query.words, *query.grams][:_COUNTED]:
        cards = counts.of(term)
        weight = rareness(cards, total) * (1.0 if cards else _UNKNOWN)
        if term not in query.names:
            weight *= _PAIR * (_PARTICLE if has_particle(term) else 1.0)
        elif term.startswith(EVERYDAY):
            weight *= _EVERYDAY
        elif not term.startswith(CONCEPT):
            weight *= informativeness(term) ** _GENERAL
        found[term] = weight, query.names.get(term, term)
    return found


def _reference_weight(reference: str, memory: Memory) -> float:
    weight = _SPECIFIC if is_specific(reference) else _CODE if is_code(reference) else _NAME
    return weight * rareness(memory.weights.cards(f"{REFERENCE}{reference}"), memory.weights.total)


def _holders(db: Connection, references: Sequence[str], memory: Memory) -> dict[str, frozenset[int]]:
    """Return the cards of each of `references` that any card has."""
    memory.weights.load(f"{REFERENCE}{reference}" for reference in references)
    found = {}
    for reference in references:
        feature = f"{REFERENCE}{reference}"
        if memory.weights.cards(feature):
            asked = "SELECT n FROM features WHERE feature = ? ORDER BY n DESC LIMIT ?"
            found[reference] = frozenset(n for (n,) in db.execute(asked, [feature, _REFERENCED]).fetchall())
    return found


def _terms_of(db: Connection, n: int, memory: Memory) -> _Terms:
    if n not in memory.terms:
        asked = "SELECT symptom || ' ' || concepts || ' ' || grams, later, pieces FROM incidents WHERE n = ?"
        reported, later, cut = db.execute(asked, [n]).fetchone()
        later, _, phrased = f" {later}".partition(f" {PHRASED} ")
        first, again, other = (frozenset(column.split(" ")) for column in (reported, later, phrased))
        memory.terms[n] = _Terms(first, again, other, f" {cut} ")
    return memory.terms[n]
