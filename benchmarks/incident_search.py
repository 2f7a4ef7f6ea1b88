"""Search of past incidents by public reports: is the right card first, and is nothing named where none fits?

    python -m benchmarks.incident_search REPORTS LABELS [--cards FILE] [--leave-out] [--pad DIR] [--misses]
        [--name NAME] [--note TEXT] [--out FILE]

REPORTS, LABELS: JSON lines. A report has an ``id``, ``title`` and ``symptom`` (or ``ask``), ``evidence`` and
``source_url``, any of which may be missing; ``paraphrase_en`` and ``paraphrase_zh`` are asked by themselves, and a
``category`` (see `benchmarks.incident_categories`) is compared with that of the classifier. A label has the ``id`` of
a report and the ids of the cards of which any is right (``card_ids``, ``cards``, ``card`` or ``labels``: a list or one
id; empty or null for a report without counterpart); one file can be both. Reports without a label are skipped.
``--cards``: reports to be imported as cards first; ``--leave-out``: cards from the same source as the report are taken
out for it. Long texts are reports after, or before, text that is not about them: sources of Python's standard library,
or the files below DIR.

FTS5 (bm25, any word), plain BM25 and TF-IDF over character n-grams answer the same queries in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import incident_categories
from benchmarks.common import Report, Row, publish
from benchmarks.incident_baselines import Baseline, n_grams, words
from whystall.knowledge_base import text_search
from whystall.knowledge_base.baselines import PlainFts
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evaluation import without_cards
from whystall.knowledge_base.indexing import put_incident, stored_cards
from whystall.knowledge_base.models import Incident, Match, Words
from whystall.knowledge_base.shares import share
from whystall.knowledge_base.store import KnowledgeBase

TITLE = "Public incident reports: is the right card found, and nothing named where none fits"
_LABELS = ("card_ids", "cards", "card", "labels")
_LONG = (2_000, 5_000, 12_000)  # characters of unrelated text
_BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.01)
_MEASURED = {
    "symptom": "title and symptom",
    "evidence": "with all evidence",
    "before": "title and symptom before long unrelated text",
    "after": "title and symptom after long unrelated text",
    "paraphrase_en": "in other words",
    "paraphrase_zh": "in other words, Chinese",
}
_NOTES = (
    "hit@1: a right card is named first, also as a weak match; answered right, wrong: the first card is likely enough "
    "to answer, and right or not; abstains: of the reports without counterpart, those for which nothing is named but "
    "weak matches; in parentheses the 95 % Wilson interval",
    "peers: SQLite's FTS5 (unicode61, any word, bm25) / BM25 (k1 1.2, b 0.75) / TF-IDF over n-grams of 3 to 5 "
    "characters, over the same texts of the cards; they abstain where no card shares a term",
)


@dataclass(frozen=True)
class Query:
    """`text` is a `kind` of query; `right`: cards of which any answers it; `hidden`: cards taken out for it."""

    id: str
    kind: str
    text: str
    right: frozenset[str]
    hidden: tuple[str, ...] = ()


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read JSON lines; raise `SystemExit` with file and line for a malformed one."""
    found = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise SystemExit(f"{file}:{number}: {error}") from None
        if not isinstance(value, dict) or "id" not in value:
            raise SystemExit(f"{file}:{number}: an object with an id is required")
        found.append(value)
    return found


def labels(file: Path) -> dict[str, frozenset[str]]:
    """Return the right cards by report."""
    found = {}
    for line in read_lines(file):
        value = next((line[name] for name in _LABELS if name in line), None)
        ids = [value] if isinstance(value, str) else value or []
        found[str(line["id"])] = frozenset(id for id in ids if id and id != "none")
    return found


def queries(
    reports: Sequence[Mapping[str, Any]],
    right: Mapping[str, frozenset[str]],
    sources: Mapping[str, Sequence[str]],
    pad: Callable[[int], str],
) -> Iterator[Query]:
    """Yield each labelled report as a query of each kind; `sources`: cards to hide, by source."""
    for number, report in enumerate(reports):
        id = str(report["id"])
        if id not in right:
            continue
        hidden = tuple(sources.get(report.get("source_url", ""), ()))
        its = right[id] - set(hidden)
        told = "\n".join(str(report[name]) for name in ("title", "symptom", "ask") if report.get(name))
        texts = {
            "symptom": told,
            "evidence": "\n".join([told, str(report["evidence"])]) if report.get("evidence") else told,
            "before": f"{told}\n{pad(number)}",
            "after": f"{pad(-1 - number)}\n{told}",
        }
        texts |= {kind: str(report[kind]) for kind in ("paraphrase_en", "paraphrase_zh") if report.get(kind)}
        for kind, text in texts.items():
            yield Query(id, kind, text, its, hidden)


def padding(folder: Path | None) -> Callable[[int], str]:
    """Return a function that returns a long unrelated text for a number, the same in each run."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in root.glob("**/*" if folder else "*.py") if path.is_file())
    if not files:
        raise SystemExit(f"{root}: no file to take text from")

    def pad(number: int) -> str:
        dice = random.Random(number)
        text = dice.choice(files).read_text("utf-8", "replace")
        size = dice.choice(_LONG)
        begin = dice.randrange(max(1, len(text) - size))
        return text[begin : begin + size]

    return pad


def as_card(report: Mapping[str, Any]) -> Incident:
    """Return a reviewed card with the texts of `report`."""

    def said(*names: str) -> Words:
        text = "\n".join(str(report[name]) for name in names if report.get(name))
        return Words(en=text, zh=text)

    return Incident(
        id=str(report["id"]),
        title=said("title"),
        symptom=said("symptom"),
        cause=None,
        root_cause=said("cause", "evidence"),
        fix=said("fix"),
        source=str(report.get("source") or report["id"]),
        source_url=str(report.get("source_url", "")),
        origin="user",
    )


def ask(file: Database, query: Query) -> list[Match]:
    """Return the matches of `query`, with its hidden cards taken out."""
    with without_cards(file, query.hidden):
        return text_search.search(file, query.text, 5)


def run(asked: Sequence[Query], file: Database, misses: bool) -> Report:
    report = Report(TITLE, notes=list(_NOTES))
    cards = [card for card in stored_cards(file) if card.state != "retired"]
    report.notes.insert(0, f"{len({query.id for query in asked})} labelled reports, {len(cards)} cards")
    sure: list[tuple[float, bool]] = []
    with closing(PlainFts(cards)) as fts:
        finders: list[Callable[[str, Collection[str], int], list[str]]] = [
            fts.find,
            Baseline(cards, words, bm25=True).find,
            Baseline(cards, n_grams, bm25=False).find,
        ]
        for kind, what in _MEASURED.items():
            mine = [query for query in asked if query.kind == kind]
            found = {query.id: ask(file, query) for query in mine}
            peers = [{query.id: find(query.text, query.hidden, 1) for query in mine} for find in finders]
            report.rows += _rows(what, mine, found, peers)
            firsts = [(query, found[query.id][0]) for query in mine if found[query.id]]
            sure += [(first.confidence or 0.0, first.incident in query.right) for query, first in firsts]
            if misses:
                wrong = [
                    f"{q.id} [{kind}]: {m.incident} ({m.confidence})" for q, m in firsts if m.incident not in q.right
                ]
                report.notes += wrong
    report.rows += _reliability(sure)
    return report


def _rows(
    what: str,
    asked: Sequence[Query],
    found: Mapping[str, Sequence[Match]],
    peers: Sequence[Mapping[str, Sequence[str]]],
) -> Iterator[Row]:
    answerable = [query for query in asked if query.right]
    without = [query for query in asked if not query.right]
    strong = {id: bool(matches) and not matches[0].weak for id, matches in found.items()}
    hit = {q.id: bool(found[q.id]) and found[q.id][0].incident in q.right for q in asked}
    if answerable:
        title = f"{what}, {len(answerable)} reports with a card"
        others = [sum(bool(q.right.intersection(peer[q.id])) for q in answerable) for peer in peers]
        yield Row(
            f"{title}: hit@1",
            _share(sum(hit[q.id] for q in answerable), len(answerable)),
            " / ".join(_share(hits, len(answerable)) for hits in others),
        )
        yield Row(
            f"{title}: answered right", _share(sum(hit[q.id] and strong[q.id] for q in answerable), len(answerable))
        )
        yield Row(
            f"{title}: answered wrong", _share(sum(strong[q.id] and not hit[q.id] for q in answerable), len(answerable))
        )
    if without:
        silent = [sum(not peer[q.id] for q in without) for peer in peers]
        yield Row(
            f"{what}, {len(without)} reports without a card: abstains",
            _share(sum(not strong[q.id] for q in without), len(without)),
            " / ".join(_share(hits, len(without)) for hits in silent),
        )


def _reliability(sure: Sequence[tuple[float, bool]]) -> Iterator[Row]:
    """Yield the share of right first cards by confidence."""
    for low, high in itertools.pairwise(_BINS):
        inside = [(value, right) for value, right in sure if low <= value < high]
        if inside:
            mean = sum(value for value, _ in inside) / len(inside)
            yield Row(
                f"confidence {low:.1f} to {min(high, 1):.1f} (mean {mean:.2f}), {len(inside)} first cards: right",
                _share(sum(right for _, right in inside), len(inside)),
            )


def _share(hits: int, of: int) -> str:
    found = share(hits, of)
    return "-" if found is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def by_source(file: Database) -> dict[str, list[str]]:
    """Return the cards by their source."""
    found: dict[str, list[str]] = {}
    for card in stored_cards(file):
        if card.source_url:
            found.setdefault(card.source_url, []).append(card.id)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--cards", type=Path, help="reports to import as cards first")
    parser.add_argument("--leave-out", action="store_true", help="take out cards from the same source")
    parser.add_argument("--pad", type=Path, help="folder with unrelated text")
    parser.add_argument("--misses", action="store_true", help="list wrong first cards and categories")
    parser.add_argument("--name", help="name of the reports, in the title")
    parser.add_argument("--note", action="append", default=[], help="remark about the reports")
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
        path = Path(directory, "k.db")
        KnowledgeBase(path).close()  # the curated cards
        with closing(Database(path)) as file:
            if options.cards:
                with file.write() as db:
                    for report in read_lines(options.cards):
                        put_incident(db, as_card(report))
            sources = by_source(file) if options.leave_out else {}
            reports = read_lines(options.reports)
            asked = list(queries(reports, labels(options.labels), sources, padding(options.pad)))
            found = run(asked, file, options.misses)
        with KnowledgeBase(path) as kb:
            wrong: list[str] = []
            found.rows += incident_categories.rows(reports, kb.classifier, wrong)
            found.notes += wrong if options.misses else []
        found.notes += options.note
    if options.name:
        found.title = f"{TITLE} ({options.name})"
    return publish(found, options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
