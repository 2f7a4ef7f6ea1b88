"""Nearest-centroid classification by words: one centroid of weighted terms per category, updated with every example.

A text is a vector of its terms, of length 1; a centroid is the sum of its examples. A term is weighted by the number of
classes that have it (inverse class frequency: IDF with classes for documents). Learning an example updates the rows of
its terms only, with the same result as learning all again. A class has two centroids, from shipped examples and from
confirmed tickets here; the nearer counts.
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

_MOST = 200  # terms per text


class WorkOrder(Model):
    text: str = Field(min_length=1)
    category: str


class WorkOrders(Model):
    """`tune`: for tuning the classifiers; `held_out`: for measuring them."""

    tuned: list[WorkOrder]
    held_out: list[WorkOrder]


@cache
def work_orders(lang: Lang) -> WorkOrders:
    file = catalog("work_orders") / f"{lang}.yaml"
    return as_model(WorkOrders, read_yaml(file), file)


@dataclass
class Similarity:
    """Similarity to a class: the cosine, 0 to 1, and the words that contribute most. `confirmed`: to examples that were
    confirmed here, and not to shipped ones.
    """

    category: str
    cosine: float
    words: list[str]
    confirmed: bool = False


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
    """The centroids in `file`, in addition to the shipped ones."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def learn(self, text: str, category: str) -> None:
        """Add an example with a confirmed category. Call it in the transaction of the confirmation."""
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
            db.executemany(
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
        """Return how many examples were learned here, by category."""
        with self._file.read() as db:
            return dict(db.execute("SELECT category, examples FROM classes ORDER BY category").fetchall())

    def nearest(self, text: str) -> Sequence[Similarity]:
        """Return the classes that share terms with `text`, nearest first."""
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


def nearest(vector: Mapping[str, float], sets: Sequence[Mapping[str, _Centroid]]) -> list[Similarity]:
    """Return the classes of `sets` by their cosine with `vector`; the sets after the first were confirmed here."""
    names = {name for centroids in sets for name in centroids}
    holding = {
        term: {name for centroids in sets for name, c in centroids.items() if term in c.weights} for term in vector
    }
    asked = {t: w * math.log(1 + len(names) / len(holding[t])) for t, w in vector.items() if holding[t]}
    unheld = [w * math.log(1 + len(names)) for t, w in vector.items() if not holding[t]]
    length = math.sqrt(sum(w * w for w in (*asked.values(), *unheld)))
    found: dict[str, Similarity] = {}
    for at, centroids in enumerate(sets):
        for name, centroid in centroids.items():
            parts = {t: w * centroid.weights[t] for t, w in asked.items() if t in centroid.weights}
            if not parts or centroid.square <= 0:
                continue
            cosine = min(1.0, sum(parts.values()) / math.sqrt(centroid.square) / length)
            if name not in found or cosine > found[name].cosine:
                found[name] = Similarity(name, cosine, sorted(parts, key=lambda t: (-parts[t], t))[:4], at > 0)
    return sorted(found.values(), key=lambda like: (-like.cosine, like.category))


def _vector(text: str) -> dict[str, float]:
    found = terms(text)
    kept = [*found.words, *found.grams][:_MOST]
    return dict.fromkeys(kept, 1 / math.sqrt(len(kept))) if kept else {}


@cache
def _shipped() -> dict[str, _Centroid]:
    made = {name: _Centroid() for name in categories()}
    for lang in ("en", "zh"):
        for order in work_orders(lang).tuned:
            if order.category in made:
                made[order.category].add(_vector(order.text))
    return made
