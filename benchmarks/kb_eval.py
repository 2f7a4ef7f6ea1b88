"""Evaluate the search for past incidents: `whystall kb eval --curated` as a section of the report.

python -m benchmarks.kb_eval [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import Report, Row, publish
from whystall.knowledge_base import evaluation
from whystall.knowledge_base.evaluation import Evaluation, evaluate
from whystall.knowledge_base.shares import Share

TITLE = "Knowledge base: is the right incident found, beside plain FTS5 and a constant guess"
_LANGS = {"en": "English", "zh": "Chinese"}
_SETS = {
    "symptom": "a card's symptom, the card taken out",
    "evidence": "symptom and features, the card taken out",
    "unseen": "symptom and features, all cards of the cause taken out",
    "questions": "questions",
}
_Key = tuple[str, str | None, str, str]
_HALVES = {"tune": " (tuned on)", "held_out": " (held out)", None: ""}
_NOTES = (
    "hit@1, hit@3: a right card (of the same cause, or one named with the question) at the first place, among the "
    "first three; MRR: mean reciprocal rank; in parentheses the 95 % Wilson interval",
    "abstains: of the queries without an answer, those for which nothing is named but weak matches; precision: of all "
    "queries for which nothing else is named (with features: of both sets), those without an answer. FTS5 abstains "
    "where no card has any word of it",
    "peer: SQLite's FTS5 (unicode61, any word of the query, bm25) over the same texts / a card of each cause, the most "
    "frequent cause first, whatever is asked",
    "symptoms contain nothing that was known only later (enforced by a test), so that another card of the same cause "
    "is hard to find by words alone; the evidence decides. It is queried without cause and signatures; with too little "
    "in common, the nearest are named as weak, which counts for the ranks and as abstaining",
    "one person wrote cards, glossary and questions, the questions before the cards, from the sources' accounts; those "
    "of accounts without a card are all held out. Matching was tuned on the first half of the questions and on all "
    "cards (symptom, evidence, unseen)",
)


def run() -> Report:
    """Evaluate the curated incidents of this version in a temporary knowledge base."""
    with tempfile.TemporaryDirectory() as directory:
        found = evaluate(Path(directory) / "k.db")
    report = Report(TITLE, _rows(found), list(_NOTES))
    report.notes.insert(0, f"{found.cards} curated incidents")
    return report


def _rows(found: Evaluation) -> list[Row]:
    by = {(row.set, row.half, row.lang, row.method): row for row in found.rows}
    rows = []
    for name, half, lang, method in by:
        if method != "ours":
            continue
        ours, fts, constant = (by[name, half, lang, of] for of in ("ours", "fts", "constant"))
        what = f"{_SETS[name]}{_HALVES[half]}, {_LANGS[lang]}"
        if ours.hit1 is not None:
            asked = f"{what}, {ours.hit1.of} queries"
            for measure in ("hit1", "hit3"):
                own, words, guess = (getattr(row, measure) for row in (ours, fts, constant))
                title = f"{asked}: hit@{measure[-1]}"
                rows.append(Row(title, _share(own), f"{_share(words)} / {_share(guess)}"))
            rows.append(Row(f"{asked}: MRR", f"{ours.mrr:.2f}", f"{fts.mrr:.2f} / {constant.mrr:.2f}"))
        if ours.abstained is not None and ours.abstained.of > 2:
            text = f"{_share(ours.abstained)}, precision {_share(_precision(ours, by))}"
            title = f"{what}, {ours.abstained.of} queries without an answer: abstains"
            rows.append(Row(title, text, f"{_share(fts.abstained)} / 0.00"))
    return rows


def _precision(row: evaluation.Row, by: Mapping[_Key, evaluation.Row]) -> Share | None:
    """Return the share of right abstentions; for queries with evidence, over both sets."""
    if row.set != "unseen" or row.abstained is None:
        return row.right_to_abstain
    other = by["evidence", None, row.lang, row.method].right_to_abstain
    hits, of = (other.hits, other.of) if other is not None else (0, 0)
    return evaluation.share(row.abstained.hits + hits, row.abstained.hits + of)


def _share(share: Share | None) -> str:
    return "-" if share is None else f"{share.value:.2f} ({share.low:.2f} to {share.high:.2f})"


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0, as there are no goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    return publish(run(), options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
