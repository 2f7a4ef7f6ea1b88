"""Fit the confidence of the search of incidents on reports with a known answer: prints ``catalog/confidence.yaml``.

    python -m benchmarks.incident_confidence REPORTS LABELS [--pad DIR]

REPORTS, LABELS and DIR as for `benchmarks.incident_search`. Each report is asked with all cards and once more without
the cards from its own source, which is what a new incident finds; with title and symptom, with evidence, and before
and after long unrelated text. Added are the first half of the shipped questions, with all cards and without any of
the right cause, and the unrelated texts alone. An example is the best card of a passage, and whether it is right.

The model is a logistic regression with a normal prior. The effect of codes has a prior from reasoning (a code that
only other cards have, or none, speaks against a card), since few examples have one; other weights have a weak prior
around 0.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.incident_search import Query, by_source, labels, padding, queries, read_lines
from whystall.knowledge_base import text_search
from whystall.knowledge_base.confidence import Signals
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evaluation import without_cards
from whystall.knowledge_base.indexing import stored_cards
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.questions import questions
from whystall.knowledge_base.store import KnowledgeBase

NAMES = [field.name for field in fields(Signals)]
_PRIOR = {"code_held": 1.0, "code_missed": -1.0, "code_unknown": -2.5, "names_unknown": -0.5}
_STRONG, _WEAK = 8.0, 0.1  # precisions of the priors
# The rule of the threshold: of the texts without an answer, this share abstains, of each group.
_ABSTAINS = 0.85
_ROUNDS = 50
_FOREIGN = 60  # unrelated texts


@dataclass(frozen=True)
class Example:
    """A text and the best card of each of its passages. `group`: of texts that abstain at the same rate."""

    group: str
    answerable: bool
    firsts: list[tuple[list[float], bool]]


def examples(file: Database, asked: Sequence[tuple[str, Query]]) -> Iterator[Example]:
    for group, query in asked:
        with without_cards(file, query.hidden), file.read() as db:
            found = text_search.by_passage(db, query.text, 5, text_search.Memory(file))
        firsts = [
            ([float(value) for value in astuple(cards[0].signals)], cards[0].card.id in query.right) for cards in found
        ]
        yield Example(group, bool(query.right), firsts)


def texts(file: Database, reports: Sequence[Mapping[str, Any]], right: Any, pad: Any) -> Iterator[tuple[str, Query]]:
    """Yield the texts to fit on, with their group."""
    sources = by_source(file)
    for out in ({}, sources):
        for query in queries(reports, right, out, pad):
            yield f"reports, {query.kind}", query
    causes = {card.id: card.cause for card in stored_cards(file)}
    for lang in get_args(Lang):
        for question in questions(lang)["tune"]:
            its = {causes.get(id) for id in question.cards} - {None}
            alike = tuple(id for id, cause in causes.items() if id in question.cards or cause in its)
            yield "questions", Query(question.ask, "symptom", question.ask, frozenset(question.cards))
            if question.cards:
                yield "questions", Query(question.ask, "symptom", question.ask, frozenset(), alike)
    for number in range(_FOREIGN):
        yield "unrelated", Query(str(number), "foreign", pad(10_000 + number), frozenset())


def fit(rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return weights and intercept with the highest posterior probability, by Newton's method."""
    design = np.hstack([rows, np.ones((len(rows), 1))])
    prior = np.array([*(_PRIOR.get(name, 0.0) for name in NAMES), 0.0])
    precision = np.array([*(_STRONG if name in _PRIOR else _WEAK for name in NAMES), 0.001])
    weights = prior.copy()
    for _ in range(_ROUNDS):
        p = 1 / (1 + np.exp(-design @ weights))
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag(precision)
        weights = weights + np.linalg.solve(hessian, design.T @ (right - p) - precision * (weights - prior))
    return weights


def threshold(found: Sequence[Example], weights: np.ndarray) -> tuple[float, dict[str, float]]:
    """Return the least confidence at which enough texts of each group without an answer abstain, and their shares."""
    sure: dict[str, list[float]] = {}
    for example in found:
        if not example.answerable:
            values = [1 / (1 + math.exp(-float(np.dot([*row, 1.0], weights)))) for row, _ in example.firsts]
            sure.setdefault(example.group, []).append(max(values, default=0.0))
    least = max(sorted(values)[math.ceil(_ABSTAINS * len(values)) - 1] for values in sure.values())
    chosen = math.ceil(least * 100 + 1e-9) / 100
    return chosen, {group: sum(v < chosen for v in values) / len(values) for group, values in sure.items()}


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--pad", type=Path, help="folder with unrelated text")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
        path = Path(directory, "k.db")
        KnowledgeBase(path).close()
        with closing(Database(path)) as file:
            reports = read_lines(options.reports)
            asked = list(texts(file, reports, labels(options.labels), padding(options.pad)))
            found = list(examples(file, asked))
    rows = [row for example in found for row, _ in example.firsts]
    right = [is_right for example in found for _, is_right in example.firsts]
    weights = fit(np.array(rows), np.array(right, dtype=float))
    chosen, shares = threshold(found, weights)
    counts = f"{len(found)} texts, {len(rows)} passages, {sum(right)} with the right card first"
    print(f"# {counts}; abstain without an answer:")
    print("# " + ", ".join(f"{group} {value:.2f}" for group, value in sorted(shares.items())))
    print(f"answer_from: {chosen:.2f}\nintercept: {weights[-1]:.2f}\nweights:")
    for name, weight in zip(NAMES, weights, strict=False):
        print(f"  {name}: {weight:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
