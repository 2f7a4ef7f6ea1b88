"""Measure matching among 1,000, 10,000 and 100,000 past incidents, compared with its full-text query alone.

    python -m benchmarks.kb_match [--cards N,N,...] [--queries N] [--out FILE]

Cards are generated with a seed: words of a Zipf distribution over 60,000, half of the cards in Chinese too, features
with a few common values and a long tail of rare ones, one card in five a recurrence of a fault. Half of the cases
resemble a stored card (some of its words and features, others added), half none. The peer is the FTS5 query on the
case's words, as `by_words` makes it (its rarest words), in the same process on the same file. A search by the text of
the case alone is compared with an FTS5 query for all its words. ``--out`` replaces this benchmark's section in a
report.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import Report, Row, publish, spread
from whystall.knowledge_base import matching, text_search
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.evidence import Evidence
from whystall.knowledge_base.indexing import put_incident
from whystall.knowledge_base.models import Incident, Words
from whystall.knowledge_base.retrieval import by_words, query_of
from whystall.tools.contract.kinds import KINDS

TITLE = "Past incidents: matching a case, beside its full-text query alone"
SIZES = (1_000, 10_000, 100_000)
GOAL = 2.0
_BATCH = 1_000
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u")]
_CAUSES = sorted(load_causes())


class Zipf:
    """Draw ranks 0 .. n-1 with frequencies proportional to 1 / (rank + 2.7) ** s, like words of a language."""

    def __init__(self, n: int, s: float = 1.07) -> None:
        self._sums = list(itertools.accumulate(1 / (rank + 2.7) ** s for rank in range(n)))

    def draw(self, dice: random.Random) -> int:
        return bisect(self._sums, dice.random() * self._sums[-1])


_WORD, _HAN, _RARE, _COMMON = Zipf(60_000), Zipf(4_000), Zipf(3_000), Zipf(12)


def word(rank: int) -> str:
    """Return the word of a rank; common ones are short, as in a language."""
    parts = []
    rank += len(_SYLLABLES)
    while rank:
        rank, part = divmod(rank, len(_SYLLABLES))
        parts.append(_SYLLABLES[part])
    return "".join(parts)


def text(dice: random.Random, words: int) -> str:
    return " ".join(word(_WORD.draw(dice)) for _ in range(words))


def han(dice: random.Random, characters: int) -> str:
    return "".join(chr(0x4E00 + _HAN.draw(dice)) for _ in range(characters))


def features(dice: random.Random) -> list[str]:
    """Return features as a diagnosis has: some common, some rare."""
    found = [f"op:{word(_RARE.draw(dice))}" for _ in range(2)]
    found += [f"frame:{word(_RARE.draw(dice))}_{word(_COMMON.draw(dice))}" for _ in range(3)]
    found += [f"{kind}:{word(_COMMON.draw(dice))}" for kind in ("fs", "device", "file")]
    if dice.random() < 0.5:
        found.append(f"code:{word(_RARE.draw(dice))}@{word(_RARE.draw(dice))}.py")
    return list(dict.fromkeys(found))


def card(dice: random.Random, number: int) -> Incident:
    """Return a card of about 150 words."""
    chinese = dice.random() < 0.5

    def words(count: int) -> Words:
        return Words(en=text(dice, count), zh=han(dice, count) if chinese else "")

    fault = number - dice.randrange(1, 50) if dice.random() < 0.2 else number
    return Incident(
        id=f"card-{number}",
        title=words(8),
        symptom=words(40),
        cause=_CAUSES[_COMMON.draw(dice) % len(_CAUSES)],
        root_cause=words(50),
        fix=words(50),
        signatures=[f"fault:1:{fault}", f"finding:{fault}"],
        kinds=dice.sample(sorted(KINDS), 2),
        features=features(dice),
        checks=["fileslower", "offcputime"],
        source="generated",
        origin="user",
        created=f"2025-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}T00:00:00Z",
    )


def case(dice: random.Random, cards: int) -> Evidence:
    """Return the evidence of a case to match."""
    own = [f"kind:{kind}" for kind in dice.sample(sorted(KINDS), 2)] + features(dice)
    if dice.random() < 0.5:
        return Evidence(symptom=text(dice, 15), cause=dice.choice(_CAUSES), features=tuple(own))
    like = card(random.Random(dice.randrange(cards)), 0)
    kept = [*dice.sample(like.features, len(like.features) // 2), f"kind:{like.kinds[0]}"]
    shared = dice.sample(like.symptom.en.split(), 8)
    return Evidence(
        symptom=" ".join(shared) + " " + text(dice, 7),
        cause=like.cause,
        features=tuple(dict.fromkeys([*kept, *own[:3]])),
    )


def fill(file: Database, have: int, want: int) -> float:
    """Insert the cards from number `have` on; return how many per CPU second, without the time to generate them."""
    spent = 0.0
    for batch in _batches(have, want):
        begin = time.thread_time()
        with file.write() as db:
            for incident in batch:
                put_incident(db, incident)
        spent += time.thread_time() - begin
    return (want - have) / spent


def _batches(have: int, want: int) -> Iterator[list[Incident]]:
    for begin in range(have, want, _BATCH):
        yield [card(random.Random(number), number) for number in range(begin, min(begin + _BATCH, want))]


def measure(file: Database, cases: Sequence[Evidence]) -> tuple[list[float], list[float], int]:
    """Return milliseconds per case of the whole match and of the words alone, and how many cases had a match."""
    whole: list[float] = []
    words: list[float] = []
    matched = 0

    def match(evidence: Evidence) -> None:
        nonlocal matched
        begin = time.thread_time()
        found = matching.similar(file, evidence)
        whole.append(1e3 * (time.thread_time() - begin))
        matched += bool(found)

    def query(evidence: Evidence) -> None:
        begin = time.thread_time()
        with file.read() as db:
            by_words(db, matching.words_of(evidence), matching.CANDIDATES)
        words.append(1e3 * (time.thread_time() - begin))

    for number, evidence in enumerate(cases):
        for turn in (match, query) if number % 2 else (query, match):
            turn(evidence)
    return whole, words, matched


def run(sizes: Sequence[int], queries: int) -> Report:
    report = Report(TITLE)
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
        path = Path(directory, "k.db")
        file = Database(path)
        have = 0
        for size in sizes:
            rate = fill(file, have, size)
            have = size
            cases = [case(random.Random(-1 - number), size) for number in range(queries)]
            measure(file, cases[: max(queries // 10, 1)])  # the file's pages come into memory
            whole, words, matched = measure(file, cases)
            report.rows += _rows(size, whole, words)
            bytes_ = path.stat().st_size
            report.rows.append(
                Row(
                    f"{size:,} cards: insert",
                    f"{rate:,.0f} cards/s; file {bytes_ / 2**20:.0f} MiB, {bytes_ / size:,.0f} B a card",
                )
            )
            few = cases[: max(queries // 4, 1)]
            report.rows += _rows(size, *searches(file, few), what="search by text")
            report.notes.append(f"{size:,} cards: {matched} of {queries} cases had a match")
        file.close()
    report.notes.append(f"{queries} cases a size, each matched and queried in turns; CPU time of one thread, warm file")
    return report


def searches(file: Database, cases: Sequence[Evidence]) -> tuple[list[float], list[float]]:
    """Return milliseconds of a search by the text of each case, and of a full-text query for all its words."""
    ours: list[float] = []
    plain: list[float] = []

    def search(evidence: Evidence) -> None:
        begin = time.thread_time()
        text_search.search(file, evidence.symptom)
        ours.append(1e3 * (time.thread_time() - begin))

    def query(evidence: Evidence) -> None:
        found = query_of(evidence.symptom)
        expression = " OR ".join(f'"{term}"' for term in (*found.words, *found.grams))
        begin = time.thread_time()
        with file.read() as db:
            asked = "SELECT rowid FROM incidents_fts WHERE incidents_fts MATCH ? ORDER BY rank LIMIT ?"
            db.execute(asked, [expression, matching.CANDIDATES]).fetchall()
        plain.append(1e3 * (time.thread_time() - begin))

    for number, evidence in enumerate(cases):
        for turn in (search, query) if number % 2 else (query, search):
            turn(evidence)
    return ours, plain


def _rows(size: int, whole: Sequence[float], words: Sequence[float], what: str = "") -> list[Row]:
    rows = []
    title = f"{size:,} cards, {what}" if what else f"{size:,} cards"
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        ours, peer = (sorted(times)[int(share * (len(times) - 1))] for times in (whole, words))
        goal = size == max(SIZES) and name == "p50"
        rows.append(
            Row(
                f"{title}: {name}",
                f"{ours:.2f} ms",
                f"{peer:.2f} ms",
                f"{ours / peer:.2f}",
                f"<= {GOAL:g}" if goal else "",
                ours / peer <= GOAL if goal else None,
            )
        )
    within = spread(own / theirs for own, theirs in zip(whole, words, strict=True))
    rows.append(Row(f"{title}: case by case", "", "", within.text(digits=2)))
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0 if every goal was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--cards", default=sizes, help="sizes, growing (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=400, help="cases a size (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    return publish(run([int(size) for size in options.cards.split(",")], options.queries), options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
