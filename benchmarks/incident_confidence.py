"""Fit the confidence of the search of incidents on reports with a known answer: prints ``catalog/confidence.yaml``.

    python -m benchmarks.incident_confidence REPORTS LABELS [--pad DIR]

REPORTS, LABELS and DIR as for `benchmarks.incident_search`. Each report is asked with all cards, without the cards from
its own source, and without the right cards and all others of their cause, when it should abstain; with title and
symptom, with evidence, in other words, and before and after long unrelated text. Added are the first half of the
shipped questions, with all cards and without any of the right cause, and the unrelated texts alone. An example is the
best card of a passage, and whether it is right.

Printed beside it are the shares of a cross-validation over reports and questions.

The model is a logistic regression with a normal prior. The effect of codes has a prior from reasoning (a code that
only other cards have, or none, speaks against a card), since few examples have one; that of phrasings too (they state
no fact), since those of the shipped cards were written by somebody who knew the reports. Other weights have a weak
prior around 0.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields, replace
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
_PRIOR = {"code_held": 1.0, "code_missed": -1.0, "code_unknown": -2.5, "names_unknown": -0.5, "phrased": -2.0}
_STRONG, _WEAK = 30.0, 0.1  # precisions of the priors
# The rule of the threshold: of the texts without an answer, this share abstains, of each kind of text.
_ABSTAINS = 0.88
_ROUNDS = 50
_FOLDS = 5
_FOREIGN = 60  # unrelated texts


@dataclass(frozen=True)
class Example:
    """A text and the best card of each of its passages. `id`: of its report or question; `group`: of texts that abstain
    at the same rate.
    """

    id: str
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
        yield Example(query.id, group, bool(query.right), firsts)


def texts(file: Database, reports: Sequence[Mapping[str, Any]], right: Any, pad: Any) -> Iterator[tuple[str, Query]]:
    """Yield the texts to fit on, with their group."""
    sources = by_source(file)
    causes = {card.id: card.cause for card in stored_cards(file)}

    def alike(right: Collection[str]) -> tuple[str, ...]:
        its = {causes.get(id) for id in right} - {None}
        return tuple(id for id, cause in causes.items() if id in right or cause in its)

    written = {str(report["id"]): sources.get(report.get("source_url", ""), ()) for report in reports}
    for query in queries(reports, right, {}, pad):
        its = query.right.union(written[query.id])  # a card from the same source is right, too
        yield f"reports, {query.kind}", replace(query, right=its)
        if its:
            without = replace(query, right=frozenset(), hidden=alike(its))
            yield f"reports without their cards, {query.kind}", without
    for query in queries(reports, right, sources, pad):
        if query.hidden:
            yield f"reports, {query.kind}", query
    for lang in get_args(Lang):
        for question in questions(lang)["tune"]:
            yield "questions", Query(question.ask, "symptom", question.ask, frozenset(question.cards))
            if question.cards:
                yield "questions", Query(question.ask, "symptom", question.ask, frozenset(), alike(question.cards))
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
    """Return the least confidence at which enough texts of each kind without an answer abstain, and their shares.

    Reports that no card fits and those whose cards were taken out are one kind: each group alone is too small.
    """
    silent: dict[str, list[float]] = {}
    for example in found:
        if not example.answerable:
            values = [sure(row, weights) for row, _ in example.firsts]
            silent.setdefault(example.group.rpartition(", ")[2], []).append(max(values, default=0.0))
    least = max(sorted(values)[math.ceil(_ABSTAINS * len(values)) - 1] for values in silent.values())
    chosen = math.ceil(least * 100 + 1e-9) / 100
    return chosen, {group: sum(v < chosen for v in values) / len(values) for group, values in silent.items()}


def crossed(found: Sequence[Example]) -> dict[str, dict[str, float]]:
    """Return, for each group, the share of texts that abstain, and that are answered right and wrong, by confidence and
    threshold fitted without any text of the same report or question: one fold of five after the other.
    """
    counted: dict[str, dict[str, list[float]]] = {}
    for fold in range(_FOLDS):
        inside = [zlib.crc32(example.id.encode()) % _FOLDS == fold for example in found]
        weights, chosen = fitted([example for example, out in zip(found, inside, strict=True) if not out])
        for example in (example for example, out in zip(found, inside, strict=True) if out):
            values = sorted(((sure(row, weights), right) for row, right in example.firsts), reverse=True)
            answered = bool(values) and values[0][0] >= chosen
            group = counted.setdefault(f"{example.group}{'' if example.answerable else ', no answer'}", {})
            group.setdefault("abstains", []).append(not answered)
            group.setdefault("right", []).append(answered and values[0][1])
            group.setdefault("wrong", []).append(answered and not values[0][1])
    return {group: {name: sum(v) / len(v) for name, v in shares.items()} for group, shares in sorted(counted.items())}


def fitted(found: Sequence[Example]) -> tuple[np.ndarray, float]:
    """Return weights and threshold fitted on `found`."""
    rows = [row for example in found for row, _ in example.firsts]
    right = [is_right for example in found for _, is_right in example.firsts]
    weights = fit(np.array(rows), np.array(right, dtype=float))
    return weights, threshold(found, weights)[0]


def sure(row: Sequence[float], weights: np.ndarray) -> float:
    return 1 / (1 + math.exp(-float(np.dot([*row, 1.0], weights))))


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
    for group, values in crossed(found).items():
        print(f"# cross-validated, {group}: " + ", ".join(f"{name} {value:.2f}" for name, value in values.items()))
    print(f"answer_from: {chosen:.2f}\nintercept: {weights[-1]:.2f}\nweights:")
    for name, weight in zip(NAMES, weights, strict=False):
        print(f"  {name}: {weight:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
