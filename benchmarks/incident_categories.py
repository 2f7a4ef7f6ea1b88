"""Categories of public reports, beside the category of the most alike labelled work order.

A report has a ``category``, further right ones in ``also``, and a title and symptom, with or without its evidence. The
peers answer with the category of the work order of the first half that FTS5, BM25 or TF-IDF over character n-grams
ranks first; they name `unknown` where no work order shares a term.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from benchmarks.common import Row
from benchmarks.incident_baselines import Baseline, n_grams, words
from whystall.knowledge_base.baselines import PlainFts
from whystall.knowledge_base.classify.centroids import work_orders
from whystall.knowledge_base.classify.classifier import Classifier
from whystall.knowledge_base.classify.report import Report as Described
from whystall.knowledge_base.classify.rules import UNKNOWN
from whystall.knowledge_base.models import Incident, Words
from whystall.knowledge_base.shares import share

_TEXTS = {"title and symptom": ("symptom",), "with all evidence": ("symptom", "evidence")}


def rows(reports: Sequence[Mapping[str, Any]], classifier: Classifier, misses: list[str]) -> Iterator[Row]:
    """Yield how often the category of `reports` is right and wrong; what is not right is appended to `misses`."""
    known = [report for report in reports if report.get("category")]
    if not known:
        return
    labelled = [(order.text, order.category) for lang in ("en", "zh") for order in work_orders(lang).tuned]
    cards = [_card(str(number), text) for number, (text, _) in enumerate(labelled)]
    with closing(PlainFts(cards)) as fts:
        peers: list[Callable[[str, Collection[str], int], list[str]]] = [
            fts.find,
            Baseline(cards, words, bm25=True).find,
            Baseline(cards, n_grams, bm25=False).find,
        ]
        for what, names in _TEXTS.items():
            ours: list[tuple[str, frozenset[str]]] = []
            theirs: list[list[tuple[str, frozenset[str]]]] = [[] for _ in peers]
            for report in known:
                right = frozenset([str(report["category"]), *report.get("also", [])])
                text = "\n".join(str(report[name]) for name in names if report.get(name))
                given = _classify(classifier, str(report.get("title", "")), text)
                ours.append((given, right))
                if given not in right:
                    misses.append(f"{report['id']} [category, {what}]: {given} for {'/'.join(sorted(right))}")
                for peer, answers in zip(peers, theirs, strict=True):
                    first = peer(f"{report.get('title', '')}\n{text}", (), 1)
                    answers.append((labelled[int(first[0])][1] if first else UNKNOWN, right))
            title = f"{what}, {len(known)} reports: category"
            yield Row(f"{title} right", _right(ours), " / ".join(_right(answers) for answers in theirs))
            yield Row(f"{title} wrong", _wrong(ours), " / ".join(_wrong(answers) for answers in theirs))


def _classify(classifier: Classifier, title: str, text: str) -> str:
    described = Described(origin="work_order", title=title[:300], description=text, created="2026-01-01T00:00:00Z")
    return str(classifier.classify(described).classification.category.value)


def _right(answers: Sequence[tuple[str, frozenset[str]]]) -> str:
    return _share(sum(given in right for given, right in answers), len(answers))


def _wrong(answers: Sequence[tuple[str, frozenset[str]]]) -> str:
    return _share(sum(given not in right and given != UNKNOWN for given, right in answers), len(answers))


def _share(hits: int, of: int) -> str:
    found = share(hits, of)
    return "-" if found is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _card(id: str, text: str) -> Incident:
    empty, said = Words(en="", zh=""), Words(en=text, zh="")
    return Incident(id=id, title=empty, symptom=said, cause=None, root_cause=empty, fix=empty, source="-")
