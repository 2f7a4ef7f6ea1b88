"""Measure whether a knowledge base learns: past incidents are replayed as tickets, one after the other.

    python -m benchmarks.learning [--orders N] [--visits N] [--out FILE]

The store begins without a card. Each curated incident is then a ticket: a diagnosis without a cause, made of the
symptom, the kinds of findings and the features of the incident, is stored with its suggestions and a drafted ticket;
then its cause is found, the ticket is resolved, and the card that this drafts is reviewed. One ticket in ten is
resolved with a wrong cause. Afterwards each incident returns, on other hosts and in the other language: whoever gets a
suggestion says whether it helped. Every step is a call of the stores, as the commands and the server make it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import Report, Row, publish
from benchmarks.reported_incidents import Reported, carried, diagnosis_of
from whystall.knowledge_base.baselines import PlainFts
from whystall.knowledge_base.incidents import curated
from whystall.knowledge_base.models import Incident, Match
from whystall.knowledge_base.questions import questions
from whystall.knowledge_base.shares import share
from whystall.knowledge_base.store import KnowledgeBase

TITLE = "Learning: are suggestions better with more tickets, and wrong cards found"
_PARTS = 4  # of a replay
_WRONG = 0.1  # share of tickets resolved with a wrong cause
_METHODS = ("ours", "fts", "constant")
_NOTES = (
    "hit@1: the card of the right cause is suggested first, weak suggestions included, among the tickets with an "
    "earlier one of their cause; abstains: weak suggestions or none, among the others; in parentheses the 95 % Wilson "
    "interval for the mean number of hits of an order, as orders of the same incidents are not independent",
    "peer: FTS5 (unicode61, any word, bm25) over the cards so far, with the same words and features / the latest card "
    "of the most frequent cause so far",
    "cards have no date of their incident, so that the orders are drawn with a seed; the causes are as rare as in the "
    "curated cards, two or three incidents each, which a site with recurring faults exceeds",
    "a person rates the first suggestion of each return, unless it is weak; a card is flagged by "
    "`whystall.knowledge_base.feedback` at 3 rejections of 3, 4 of 6, 5 of 9; a reviewer then corrects its cause",
    "the same fault again: same cause, job and file, on another host; same features: another job on another host, no "
    "cause yet; in other words: the shipped questions of that card, written from the source's account, as text alone",
)


@dataclass
class _Part:
    """Counts of one part of a replay, summed over the orders."""

    tickets: int = 0
    answerable: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    abstained: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    answered_right: int = 0


@dataclass
class _Review:
    """Feedback on the cards after a replay. `rejections`: until a wrong card was flagged. `wrong`, `first`: returns
    whose first suggestion was a wrong card, or any, by visit.
    """

    cards: Counter[str] = field(default_factory=Counter)
    flagged: Counter[str] = field(default_factory=Counter)
    rejections: list[int] = field(default_factory=list)
    helped: Counter[int] = field(default_factory=Counter)
    wrong: Counter[int] = field(default_factory=Counter)
    silent: Counter[int] = field(default_factory=Counter)


@dataclass
class _Again:
    """Repeated faults recognized, and asked, by kind of repetition."""

    hits: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)


class Replay:
    """One order of incidents in a store of its own at `path`."""

    def __init__(self, path: Path, incidents: Sequence[Incident], seed: int) -> None:
        self.kb = KnowledgeBase(path)
        with self.kb._file.read() as db:
            db.execute("PRAGMA synchronous = OFF")  # durability is not needed
        with self.kb.transaction():
            for card in curated():
                self.kb.cards.retire(card.id, "the store begins empty")
        self._dice = random.Random(seed)
        self.incidents = list(incidents)
        self._dice.shuffle(self.incidents)
        self.causes = sorted({one.cause for one in incidents if one.cause})
        self.named: dict[str, str | None] = {}  # cause that a card names, and the incident it is of
        self.of: dict[str, Incident] = {}
        self.wrong: set[str] = set()

    def learn(self, parts: Sequence[_Part]) -> None:
        """Replay the incidents; count each ticket in its part."""
        for number, incident in enumerate(self.incidents):
            part = parts[number * len(parts) // len(self.incidents)]
            reported = Reported(number, host=f"node{number}")
            opened = self.kb.remember(diagnosis_of(incident, reported), ticket=True)
            assert opened.ticket is not None
            self._count(part, incident, opened.matches)
            cause = incident.cause
            wrong = cause is not None and self._dice.random() < _WRONG
            if wrong:
                cause = self._dice.choice([other for other in self.causes if other != cause])
            self.kb.tickets.attach(opened.ticket, diagnosis_of(incident, reported, cause=cause), "engine")
            card = self.kb.tickets.resolve(opened.ticket, incident.fix.en, "ann").card
            assert card is not None
            self.kb.cards.accept(card, "ann")
            self.named[card], self.of[card] = cause, incident
            if wrong:
                self.wrong.add(card)

    def _count(self, part: _Part, incident: Incident, matches: Sequence[Match]) -> None:
        right = {id for id, cause in self.named.items() if cause == incident.cause and incident.cause is not None}
        words = "\n".join([incident.symptom.en, *carried(incident)])
        with closing(PlainFts(self.kb.cards.get(id) for id in self.named)) as fts:
            plain = fts.find(words, (), 1)
        counts = Counter(cause for cause in self.named.values() if cause is not None)
        usual = max(counts, key=lambda cause: (counts[cause], cause), default=None)
        guess = [id for id, cause in self.named.items() if cause == usual and usual is not None][-1:]
        first = {"ours": [m.incident for m in matches[:1]], "fts": plain, "constant": guess}
        strong = bool(matches) and not matches[0].weak
        silent = {"ours": not strong, "fts": not plain, "constant": not guess}
        part.tickets += 1
        part.answerable += bool(right)
        part.answered += strong
        part.answered_right += strong and matches[0].incident in right
        for method in _METHODS:
            if right:
                part.hits[method] += bool(right.intersection(first[method]))
            else:
                part.abstained[method] += silent[method]

    def recognize(self, again: _Again) -> None:
        """Ask for the fault of each card once more."""
        asked = [question for half in questions("en").values() for question in half]
        for number, (card, incident) in enumerate(self.of.items()):
            cause = self.named[card]
            if cause is not None:
                same = Reported(number, host=f"spare{number}", visit=1)
                found = self.kb.match(diagnosis_of(incident, same, cause=cause))
                self._recognized(again, "known", found, {card}, found[:1] != [] and found[0].known)
            other = Reported(len(self.of) + number, host=f"other{number}", visit=1)
            found = self.kb.match(diagnosis_of(incident, other))
            self._recognized(again, "features", found, {card}, True)
            other = Reported(len(self.of) + number, host=f"other{number}", visit=1, lang="zh")
            found = self.kb.match(diagnosis_of(incident, other))
            self._recognized(again, "paraphrased", found, {card}, True)
        cards = {incident.id: card for card, incident in self.of.items()}
        with closing(PlainFts(self.kb.cards.get(id) for id in self.named)) as fts:
            for question in (one for one in asked if one.cards):
                right = {cards[id] for id in question.cards}
                found = self.kb.search(question.ask)
                again.asked["text"] += 1
                again.hits["text"] += bool(found) and found[0].incident in right
                again.hits["fts"] += bool(right.intersection(fts.find(question.ask, (), 1)))
                answered = bool(found) and not found[0].weak
                again.asked["answered"] += answered
                again.hits["answered"] += answered and found[0].incident in right

    def _recognized(self, again: _Again, how: str, found: Sequence[Match], right: set[str], sure: bool) -> None:
        again.asked[how] += 1
        again.hits[how] += sure and bool(found) and not found[0].weak and found[0].incident in right

    def review(self, review: _Review, visits: int) -> None:
        """Let each incident return `visits` times; rate what is suggested, and correct the cards that are flagged."""
        rejected = Counter[str]()
        flagged: set[str] = set()
        wrong = set(self.wrong)
        review.cards.update({"wrong": len(wrong), "right": len(self.named) - len(wrong)})
        for visit in range(visits):
            for number, incident in enumerate(self.incidents):
                if incident.cause is None:
                    continue
                job = (visit + 2) * len(self.incidents) + number
                reported = Reported(job, host=f"host{job}", visit=visit + 2, lang="zh" if visit % 2 else "en")
                seen = self.kb.remember(diagnosis_of(incident, reported), ticket=False)
                if not seen.matches or seen.matches[0].weak:
                    review.silent[visit] += 1
                    continue
                card = seen.matches[0].incident
                helped = self.named[card] == incident.cause
                (review.helped if helped else review.wrong)[visit] += 1
                rejected[card] += not helped
                verdict = self.kb.cards.feedback(card, "helped" if helped else "wrong", diagnosis=seen.id)
                if verdict.flagged and card not in flagged:
                    flagged.add(card)
                    review.flagged["wrong" if card in wrong else "right"] += 1
                    if card in wrong:
                        review.rejections.append(rejected[card])
                        self._correct(card)

    def _correct(self, card: str) -> None:
        cause = self.of[card].cause
        self.kb.cards.edit(card, {"cause": cause}, "ann")
        self.kb.cards.accept(card, "ann")
        self.named[card] = cause
        self.wrong.discard(card)


def run(orders: int, visits: int) -> Report:
    incidents = list(curated())
    parts = [_Part() for _ in range(_PARTS)]
    review, again = _Review(), _Again()
    for seed in range(orders):
        with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
            replay = Replay(Path(directory, "k.db"), incidents, seed)
            with closing(replay.kb):
                replay.learn(parts)
                replay.recognize(again)
                replay.review(review, visits)
    report = Report(TITLE, notes=list(_NOTES))
    kept = sum(len(carried(one)) for one in incidents) / max(sum(len(one.features) for one in incidents), 1)
    report.notes.insert(
        0,
        f"{len(incidents)} curated incidents, {sum(one.cause is not None for one in incidents)} with a cause of the "
        f"catalogue, in {orders} random orders; their findings carry {kept:.0%} of the features of the cards",
    )
    report.rows += [*_curve(parts, orders), *_repeated(again, orders), *_reviewed(review, orders)]
    return report


def _curve(parts: Sequence[_Part], orders: int) -> Iterator[Row]:
    begin = 0
    for part in parts:
        end = begin + round(part.tickets / orders)
        title = f"tickets {begin + 1} to {end}"
        without = part.tickets - part.answerable
        yield Row(
            f"{title}: hit@1 of {part.answerable / orders:.0f} with an earlier counterpart",
            _share(part.hits["ours"], part.answerable, orders),
            " / ".join(_share(part.hits[name], part.answerable, orders) for name in _METHODS[1:]),
        )
        yield Row(
            f"{title}: abstains, {without / orders:.0f} without",
            _share(part.abstained["ours"], without, orders),
            " / ".join(_share(part.abstained[name], without, orders) for name in _METHODS[1:]),
        )
        yield Row(f"{title}: right card first, of all", _share(part.hits["ours"], part.tickets, orders))
        yield Row(f"{title}: right, of those answered", _share(part.answered_right, part.answered, orders))
        begin = end


def _repeated(again: _Again, orders: int) -> Iterator[Row]:
    names = {
        "known": "the same fault again, on another host: known, own card first",
        "features": "same features, another job and host: own card first",
        "paraphrased": "same features, reported in the other language: own card first",
    }
    for how, what in names.items():
        yield Row(what, _share(again.hits[how], again.asked[how], orders))
    asked = again.asked["text"]
    title = f"reported in other words, text alone, {asked / orders:.0f} questions: hit@1"
    yield Row(title, _share(again.hits["text"], asked, orders), _share(again.hits["fts"], asked, orders))
    yield Row(
        "reported in other words: answered, of these right",
        _share(again.hits["answered"], again.asked["answered"], orders),
    )


def _reviewed(review: _Review, orders: int) -> Iterator[Row]:
    wrong, right = review.cards["wrong"], review.cards["right"]
    yield Row(f"wrong cards flagged, of {wrong / orders:.0f}", _share(review.flagged["wrong"], wrong, orders))
    yield Row(f"right cards flagged, of {right / orders:.0f}", _share(review.flagged["right"], right, orders))
    if review.rejections:
        many = f"{statistics.median(review.rejections):.0f} (most {max(review.rejections)})"
        yield Row("rejections until a wrong card is flagged, median", many)
    for visit in sorted({*review.helped, *review.wrong}):
        first = review.helped[visit] + review.wrong[visit]
        yield Row(f"return {visit + 1}: wrong cause suggested", _share(review.wrong[visit], first, orders))


def _share(hits: int, of: int, orders: int) -> str:
    found = share(round(hits / orders), round(of / orders))
    return "-" if found is None else f"{hits / of:.2f} ({found.low:.2f} to {found.high:.2f})"


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0, as there are no goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=5, help="random orders of the incidents (default: %(default)s)")
    parser.add_argument("--visits", type=int, default=6, help="returns of each incident (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    return publish(run(options.orders, options.visits), options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
