"""Measure matching among 1,000, 10,000 and 100,000 past incidents, compared with plain FTS5.

    python -m benchmarks.kb_match [--cards N,N,...] [--queries N] [--keep DIR] [--out FILE]

Cards and cases are variations of the curated cards (see `generated_cards`); half of the cases resemble a stored card.
Each size is filled as an import does it, and measured in a process of its own. The peer is SQLite's FTS5 on the same
index: a bm25 query for any word of the case, best 50 first; for comparison also for its rarest words only, as our own
first stage makes it. ``--keep`` keeps the filled files in a directory, and uses those that are there.
``--out`` replaces this section in a report.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import Report, Row, publish, spread
from benchmarks.generated_cards import card, case
from whystall.knowledge_base import matching, ngrams, retrieval, text_search
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evidence import Evidence
from whystall.knowledge_base.indexing import compact, put_incident
from whystall.knowledge_base.retrieval import Query, by_words, query_of

TITLE = "Past incidents: matching a case, beside plain FTS5"
SIZES = (1_000, 10_000, 100_000)
GOAL = 2.0
_BATCH = 1_000
_WARM = 10  # cases before the measurement: the file's pages come into memory


class Measured(NamedTuple):
    """Milliseconds per case of each method; `matched`: cases with a match that is not weak; `before`, `peak`: resident
    memory of the process before the first case and at most, MiB.
    """

    times: dict[str, list[float]]
    matched: int
    before: float
    peak: float


def fill(path: Path, have: int, want: int) -> float:
    """Insert the cards from number `have` on as one import does, in batches; return how many per CPU second, without
    the time to generate them.
    """
    file = Database(path)
    with file.read() as db:
        db.execute("PRAGMA synchronous = OFF")  # durability is not measured
    spent = 0.0
    for begin in range(have, want, _BATCH):
        batch = [card(number) for number in range(begin, min(begin + _BATCH, want))]
        started = time.thread_time()
        with file.write() as db:
            for incident in batch:
                put_incident(db, incident)
            if batch[-1].id == f"card-{want - 1}":
                compact(db, want - have)
        spent += time.thread_time() - started
    file.close()
    return (want - have) / spent


def measure(path: Path, size: int, queries: int) -> Measured:
    """Return the cost of `queries` cases in the file at `path`, of which each is asked by every method in turns."""
    file = Database(path)
    cases = [case(number, size) for number in range(queries + _WARM)]
    before = _memory("VmRSS")
    methods: dict[str, Callable[[Evidence], object]] = {
        "match": lambda evidence: matching.similar(file, evidence),
        "words": lambda evidence: _plain(file, matching.words_of(evidence)),
        "rarest": lambda evidence: _rarest(file, matching.words_of(evidence)),
        "search": lambda evidence: text_search.search(file, evidence.symptom),
        "text": lambda evidence: _plain(file, query_of(evidence.symptom)),
    }
    times: dict[str, list[float]] = {name: [] for name in methods}
    matched = 0
    for number, evidence in enumerate(cases):
        order = list(methods)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            retrieval._KNOWN.clear()  # counts that another method read for this case must not help
            ngrams.n_grams.cache_clear()  # nor n-grams of its cards
            begin = time.thread_time()
            found = methods[name](evidence)
            spent = 1e3 * (time.thread_time() - begin)
            if number >= _WARM:
                times[name].append(spent)
                matched += name == "match" and isinstance(found, list) and bool(found) and not found[0].weak
    peak = _memory("VmHWM")
    file.close()
    return Measured(times, matched, before, peak)


def _plain(file: Database, query: Query) -> None:
    expression = " OR ".join(f'"{term}"' for term in (*query.words, *query.grams))
    with file.read() as db:
        asked = "SELECT rowid FROM incidents_fts WHERE incidents_fts MATCH ? ORDER BY rank LIMIT ?"
        db.execute(asked, [expression, matching.CANDIDATES]).fetchall()


def _rarest(file: Database, query: Query) -> None:
    with file.read() as db:
        by_words(db, query, matching.CANDIDATES)


def _memory(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def run(sizes: Sequence[int], queries: int, directory: Path) -> Report:
    """Measure each of `sizes`, which grow, in a file of `directory`; one that is there is not filled again."""
    report = Report(TITLE)
    have, before = 0, directory / "none"
    for size in sizes:
        path = directory / f"{size}.db"
        inserted = ""
        if not path.exists():
            partial = directory / f"{size}.partial"
            if have:
                shutil.copy(before, partial)
            inserted = f"{fill(partial, have, size):,.0f} cards/s; "
            partial.rename(path)
        have, before = size, path
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found = pool.submit(measure, path, size, queries).result()
        report.rows += _rows(f"{size:,} cards, a case", found, "match", "words", goal=size == max(SIZES))
        report.rows += _rows(f"{size:,} cards, a case, beside its rarest words only", found, "match", "rarest")
        report.rows += _rows(f"{size:,} cards, search by text", found, "search", "text")
        memory = f"{found.peak - found.before:.0f} MiB more than before the first case, {found.peak:.0f} MiB in all"
        report.rows.append(Row(f"{size:,} cards: memory at most", memory))
        bytes_ = path.stat().st_size
        report.rows.append(
            Row(f"{size:,} cards: insert", f"{inserted}file {bytes_ / 2**20:.0f} MiB, {bytes_ / size:,.0f} B a card")
        )
        report.notes.append(f"{size:,} cards: {found.matched} of {queries} cases had a match")
    report.notes.append(
        f"{queries} cases a size, asked in turns; CPU time of one thread, warm file, no count of a term kept"
    )
    report.notes.append(
        "cards and cases: the curated ones, phrasings included (mostly five a language), with three words in ten, "
        "Chinese clauses and features replaced "
        "(`benchmarks/generated_cards.py`); peer: bm25 on the same index for any word, best 50"
    )
    return report


def _rows(title: str, found: Measured, own: str, peer: str, goal: bool = False) -> list[Row]:
    ours, theirs = found.times[own], found.times[peer]
    rows = []
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        one, other = (sorted(times)[int(share * (len(times) - 1))] for times in (ours, theirs))
        met = goal and name == "p50"
        rows.append(
            Row(
                f"{title}: {name}",
                f"{one:.1f} ms",
                f"{other:.1f} ms",
                f"{one / other:.2f}",
                f"<= {GOAL:g}" if met else "",
                one / other <= GOAL if met else None,
            )
        )
    within = spread(a / b for a, b in zip(ours, theirs, strict=True))
    rows.append(Row(f"{title}: case by case", "", "", within.text(digits=2)))
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0 if every goal was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--cards", default=sizes, help="sizes, growing (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=200, help="cases a size (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="directory in which the filled files are kept")
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    wanted = [int(size) for size in options.cards.split(",")]
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
        return publish(run(wanted, options.queries, options.keep or Path(directory)), options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
