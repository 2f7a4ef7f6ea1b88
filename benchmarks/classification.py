"""Measure and calibrate the classification of foreign reports, and the suggestions "possibly the same".

    python -m benchmarks.classification [--incidents FILE] [--write] [--out FILE]

`--incidents`: JSON lines with ``source_url``, ``title``, ``symptom`` and ``evidence``; those with a label in
``benchmarks/incidents/categories.yaml`` are used. `--write`: fit the weights and store the calibration.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import Report, Row, publish
from whystall.knowledge_base import text_search
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.classify import paraphrases
from whystall.knowledge_base.classify.centroids import Centroids, work_orders
from whystall.knowledge_base.classify.classifier import read
from whystall.knowledge_base.classify.incident_votes import Source, votes
from whystall.knowledge_base.classify.report import Report as Described
from whystall.knowledge_base.classify.rules import UNKNOWN, judge
from whystall.knowledge_base.classify.weighing import Calibration, Reliability, Strength, Weights, strengths, weigh
from whystall.knowledge_base.data import catalog
from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.questions import questions
from whystall.knowledge_base.shares import Share, share
from whystall.knowledge_base.store import KnowledgeBase

TITLE = "Classification of foreign reports, its calibration, and duplicates in other words"
_FILES = Path(__file__).parent / "incidents"
_LANGS = ("en", "zh")
_ANSWER_FROM = 0.55
_EDGES = (0.0, 0.2, 0.4, _ANSWER_FROM, 0.7, 0.85, 0.95, 1.01)
_FOLDS = 5
_SEARCHED, _CARDS = 16, 8
_DECAY = 0.002  # quadratic penalty of the weights
_START, _STEPS, _LEAST = (1.0, 1.0, 3.0, 2.0), (0.5, 0.5, 2.0, 1.0), 0.02
_NOTES = (
    "right: share of all texts with one of their categories, `unknown` where the text does not tell; wrong: with "
    "another one; the rest get `unknown`. 95 % Wilson intervals",
    "incidents and reports: accounts of others, whose categories we gave by reading them. The words of the rules were "
    "written with the incidents at hand, and with the reports' topics, not their texts: on other texts results will be "
    "worse. Cards made from one of these sources are left out, and those that answer a question when it is classified",
    "fitted: four weights, to incidents, reports and the questions of the first half. Reliability: each text was "
    "judged with weights fitted to the other four fifths",
)


@dataclass(frozen=True)
class Case:
    """A text as evidence, and its right categories. `group`: texts of one account, which are not split."""

    part: str
    group: str
    right: frozenset[str]
    evidence: dict[str, Strength]


class _Reader:
    """Reads texts as evidence, with the shipped cards."""

    def __init__(self, kb: KnowledgeBase) -> None:
        self._kb = kb
        self._memory = text_search.Memory(kb._file)
        self._centroids = Centroids(kb._file)
        with kb._file.read() as db:
            rows = db.execute("SELECT body FROM incidents").fetchall()
        cards = [kb._file.record(Incident, body) for (body,) in rows]
        self._sources = {card.id: Source(card.cause, card.components) for card in cards}
        self.urls = {card.id: card.source_url for card in cards}

    def evidence(self, text: str, without: Iterable[str]) -> dict[str, Strength]:
        left_out = set(without)
        found = text_search.search(self._kb._file, text, _SEARCHED, weak=False, memory=self._memory)
        matches = [match for match in found if match.incident not in left_out][:_CARDS]
        return strengths(judge(text), votes(matches, self._sources), self._centroids.nearest(text))


def cases(kb: KnowledgeBase, incidents: Path | None) -> Iterator[Case]:
    """Yield the labelled texts."""
    reader = _Reader(kb)
    file: dict[str, Any] = yaml.safe_load((_FILES / "categories.yaml").read_text("utf-8"))
    labels = {row["source_url"]: _right(row) for row in file["labels"]}
    known = {*labels, *(row["source_url"] for row in file["reports"])}
    ours = [card for card, url in reader.urls.items() if url in known]
    for row in file["reports"]:
        title, _, text = row["text"].partition("\n")
        yield Case("reports", row["source_url"], _right(row), reader.evidence(_read(title, text), ours))
    for line in incidents.read_text("utf-8").splitlines() if incidents is not None else []:
        one = json.loads(line)
        url = one["source_url"]
        if url in labels:
            for part, text in (("symptom", one["symptom"]), ("evidence", f"{one['symptom']}\n{one['evidence']}")):
                evidence = reader.evidence(_read(one["title"], text), ours)
                yield Case(f"incidents, {part}", url, labels[url], evidence)
    causes = load_causes()
    for half in ("tune", "held_out"):
        for lang in _LANGS:
            for question in questions(lang)[half]:
                named = [causes.get(kb.cards.get(card).cause or "") for card in question.cards]
                right = frozenset(cause.category for cause in named if cause is not None) - {"none"}
                if right:
                    evidence = reader.evidence(question.ask, question.cards)
                    yield Case(f"questions, {lang}, {half}", question.ask, right, evidence)
    for lang in _LANGS:
        for order in work_orders(lang).held_out:
            evidence = reader.evidence(order.text, ())
            yield Case(f"work orders, {lang}, held_out", order.text, frozenset({order.category}), evidence)


def _right(row: dict[str, Any]) -> frozenset[str]:
    return frozenset([row["category"], *row.get("also", [])])


def _read(title: str, text: str) -> str:
    return read(Described(origin="work_order", title=title[:300], description=text, created="2026-01-01T00:00:00Z"))


def _fitted_to(case: Case) -> bool:
    return case.part.startswith(("incidents", "reports")) or case.part.endswith("tune")


def fit(some: Sequence[Case]) -> Weights:
    """Return the weights with the highest likelihood of the right categories of `some`, by coordinate search."""
    best = list(_START)
    steps = list(_STEPS)
    least = _loss(some, best)
    while max(steps) >= _LEAST:
        moved = False
        for at in range(len(best)):
            for sign in (1, -1):
                tried = [*best[:at], best[at] + sign * steps[at], *best[at + 1 :]]
                if (loss := _loss(some, tried)) < least:
                    best, least, moved = tried, loss, True
        if not moved:
            steps = [step / 2 for step in steps]
    rules, by_votes, words, none = (round(value, 3) for value in best)
    return Weights(rules=rules, votes=by_votes, words=words, none=none)


def _loss(some: Sequence[Case], values: Sequence[float]) -> float:
    rules, by_votes, words, none = values
    total = 0.0
    for case in some:
        odds = {
            name: math.exp(rules * one.rules + by_votes * one.votes + words * one.words)
            for name, one in case.evidence.items()
        } | {UNKNOWN: math.exp(none)}
        total -= math.log(max(sum(odds[name] for name in case.right) / sum(odds.values()), 1e-9))
    return total / len(some) + _DECAY * sum(value * value for value in values)


def reliability(some: Sequence[Case]) -> list[Reliability]:
    """Return how often which probability was right, each text judged with weights fitted to the other folds."""
    folds: dict[str, int] = {group: n % _FOLDS for n, group in enumerate(sorted({case.group for case in some}))}
    judged: list[tuple[float, bool]] = []
    for fold in range(_FOLDS):
        weights = fit([case for case in some if folds[case.group] != fold])
        for case in some:
            if folds[case.group] == fold:
                best = next(one for one in weigh(case.evidence, weights) if one.category != UNKNOWN)
                judged.append((best.probability, best.category in case.right))
    rows = []
    for start, end in pairwise(_EDGES):
        inside = [(p, ok) for p, ok in judged if start <= p < end]
        if inside:
            mean, right = sum(p for p, _ in inside) / len(inside), sum(ok for _, ok in inside) / len(inside)
            rows.append(
                Reliability(start=start, end=end, texts=len(inside), mean=round(mean, 3), right=round(right, 3))
            )
    return rows


def run(incidents: Path | None, write: bool) -> Report:
    """Measure the classification and the suggestions; with `write` fit and store the calibration first."""
    report = Report(TITLE, [], list(_NOTES))
    with tempfile.TemporaryDirectory() as directory, KnowledgeBase(Path(directory) / "k.db") as kb:
        known = list(cases(kb, incidents))
    trained = [case for case in known if _fitted_to(case)]
    weights = fit(trained)
    table = reliability(trained)
    if write:
        _store(weights, table, trained)
    for part in dict.fromkeys(case.part for case in known):
        some = [case for case in known if case.part == part]
        report.rows.append(Row(f"{part} ({len(some)})", _quality(some, weights)))
    for row in table:
        name = f"probability {row.start:.2f} to {min(row.end, 1.0):.2f} ({row.texts})"
        report.rows.append(Row(name, f"mean {row.mean:.2f}, right {row.right:.2f}"))
    report.rows += list(_duplicates())
    return report


def _quality(some: Sequence[Case], weights: Weights) -> str:
    right = wrong = 0
    for case in some:
        best = weigh(case.evidence, weights)[0]
        given = best.category if best.probability >= _ANSWER_FROM else UNKNOWN
        right += given in case.right
        wrong += given not in case.right and given != UNKNOWN
    return f"right {_interval(share(right, len(some)))}, wrong {_interval(share(wrong, len(some)))}"


def _interval(found: Share | None) -> str:
    return "-" if found is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _store(weights: Weights, table: list[Reliability], some: Sequence[Case]) -> None:
    """Write ``catalog/calibration.yaml``."""
    counts = {part: sum(case.part.startswith(part) for case in some) for part in ("incidents", "reports", "questions")}
    source = f"benchmarks/classification.py --write, {', '.join(f'{count} {part}' for part, count in counts.items())}"
    made = Calibration(source=source, weights=weights, answer_from=_ANSWER_FROM, reliability=table).model_dump()
    lines = [
        "# Weights of the evidence for a category (classify/weighing.py), and how often which probability was right,",
        "# each text judged with weights fitted to four fifths of the others. Written by benchmarks/classification.py.",
        f"source: {json.dumps(made['source'])}",
        f"weights: {_flow(made['weights'])}",
        f"answer_from: {made['answer_from']}",
        "reliability:",
        *(f"  - {_flow(row)}" for row in made["reliability"]),
    ]
    catalog("calibration.yaml").write_text("\n".join(lines) + "\n", "utf-8")


def _flow(values: dict[str, Any]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in values.items())}}}"


def _duplicates() -> Iterator[Row]:
    file: dict[str, Any] = yaml.safe_load((_FILES / "duplicates.yaml").read_text("utf-8"))
    for name, what in (("same", "one fault in other words"), ("different", "alike, but different")):
        pairs = [(paraphrases.traits(pair["one"]), paraphrases.traits(pair["other"])) for pair in file[name]]
        found = sum(paraphrases.likeness(one, other) >= paraphrases.ALIKE for one, other in pairs)
        yield Row(f"{what} ({len(pairs)})", f"suggested {_interval(share(found, len(pairs)))}")


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--incidents", type=Path, help="JSON lines of labelled incidents")
    parser.add_argument("--write", action="store_true", help="store the calibration")
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    return publish(run(options.incidents, options.write), options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
