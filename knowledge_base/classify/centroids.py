"""The nearest class by its words: one centroid of weighted terms per category, which grows with every example.

A text is a vector of its terms, of length 1; a centroid is the sum of the examples of its class. A term of a question
weighs by how few classes have it (inverse class frequency: IDF with classes for documents). Learning one more example
touches the rows of its terms alone, and gives the same as learning all anew. Of two centroids of a class, the one of
examples shipped with us and the one of what was confirmed here, the nearer counts.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from pydantic import Field

from whystall.knowledge_base.classify.rules import UNKNOWN, categories
from whystall.knowledge_base.data import as_model, catalog, read_yaml
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Lang, Model
from whystall.knowledge_base.tokens import terms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 200  # terms of a text that count


class WorkOrder(Model):
    """A labelled work order of the catalogue."""

    text: str = Field(min_length=1)
    category: str


class WorkOrders(Model):
    """What classifies may be tuned on the first half; the second tells how well it works."""

    tuned: list[WorkOrder]
    held_out: list[WorkOrder]


@cache
def work_orders(lang: Lang) -> WorkOrders:
    """The labelled work orders in `lang`."""
    file = catalog("work_orders") / f"{lang}.yaml"
    return as_model(WorkOrders, read_yaml(file), file)


@dataclass
class Likeness:
    """How near a class is: the cosine, 0 to 1, and the words that say most for it."""

    category: str
    cosine: float
    words: list[str]


@dataclass
class _Centroid:
    weights: dict[str, float] = field(default_factory=dict)
    square: float = 0.0

    def add(self, vector: Mapping[str, float]) -> None:
        for term, weight in vector.items():
            before = self.weights.get(term, 0.0)
            self.weights[term] = before + weight
            self.square += (2 * before + weight) * weight


class Centroids:
    """Those of `file`, beside the shipped ones."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def learn(self, text: str, category: str) -> None:
        """One more example, whose category somebody confirmed. Call it in the transaction of what confirms it."""
        vector = _vector(text)
        if not vector or category == UNKNOWN:
            return
        with self._file.write() as db:
            known = dict(
                db.execute(
                    "SELECT term, weight FROM class_terms"
                    " WHERE category = ? AND term IN (SELECT value FROM json_each(?))",
                    [category, json.dumps(list(vector))],
                ).fetchall()
            )
            square = sum((2 * known.get(term, 0.0) + weight) * weight for term, weight in vector.items())
            db.conn.executemany(
                "INSERT INTO class_terms (category, term, weight) VALUES (?, ?, ?)"
                " ON CONFLICT (category, term) DO UPDATE SET weight = weight + excluded.weight",
                [(category, term, weight) for term, weight in vector.items()],
            )
            db.execute(
                "INSERT INTO classes (category, examples, square) VALUES (?, 1, ?)"
                " ON CONFLICT (category) DO UPDATE SET examples = examples + 1, square = square + excluded.square",
                [category, square],
            )

    def examples(self) -> dict[str, int]:
        """How many examples were learnt here, by category."""
        with self._file.read() as db:
            return dict(db.execute("SELECT category, examples FROM classes ORDER BY category").fetchall())

    def nearest(self, text: str) -> Sequence[Likeness]:
        """The classes that share terms with `text`, the nearest first."""
        vector = _vector(text)
        if not vector:
            return []
        with self._file.read() as db:
            rows = db.execute(
                "SELECT category, term, weight FROM class_terms WHERE term IN (SELECT value FROM json_each(?))",
                [json.dumps(list(vector))],
            ).fetchall()
            squares = dict(db.execute("SELECT category, square FROM classes").fetchall())
        learnt: dict[str, _Centroid] = {name: _Centroid(square=square) for name, square in squares.items()}
        for category, term, weight in rows:
            learnt[category].weights[term] = weight
        return nearest(vector, [_shipped(), learnt])


def nearest(vector: Mapping[str, float], sets: Sequence[Mapping[str, _Centroid]]) -> list[Likeness]:
    """The classes of `sets` by the cosine with `vector`; pure."""
    names = {name for centroids in sets for name in centroids}
    holding = {
        term: {name for centroids in sets for name, c in centroids.items() if term in c.weights} for term in vector
    }
    asked = {t: w * math.log(1 + len(names) / len(holding[t])) for t, w in vector.items() if holding[t]}
    unheld = [w * math.log(1 + len(names)) for t, w in vector.items() if not holding[t]]
    length = math.sqrt(sum(w * w for w in (*asked.values(), *unheld)))
    found: dict[str, Likeness] = {}
    for centroids in sets:
        for name, centroid in centroids.items():
            parts = {t: w * centroid.weights[t] for t, w in asked.items() if t in centroid.weights}
            if not parts or centroid.square <= 0:
                continue
            cosine = min(1.0, sum(parts.values()) / math.sqrt(centroid.square) / length)
            if name not in found or cosine > found[name].cosine:
                found[name] = Likeness(name, cosine, sorted(parts, key=lambda t: (-parts[t], t))[:4])
    return sorted(found.values(), key=lambda like: (-like.cosine, like.category))


def _vector(text: str) -> dict[str, float]:
    found = terms(text)
    kept = [*found.words, *found.grams][:_MOST]
    return dict.fromkeys(kept, 1 / math.sqrt(len(kept))) if kept else {}


@cache
def _shipped() -> dict[str, _Centroid]:
    """Centroids of the tuned half of the labelled work orders."""
    made = {name: _Centroid() for name in categories()}
    for lang in ("en", "zh"):
        for order in work_orders(lang).tuned:
            if order.category in made:
                made[order.category].add(_vector(order.text))
    return made
