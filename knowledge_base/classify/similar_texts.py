"""Earlier tickets with nearly the same text, and recent ones that may be about the same fault in other words.

Near duplicates: candidates by MinHash over words, then by shared words (Broder, On the resemblance and containment of
documents, 1997; bands as in Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4). Paraphrases: the latest
tickets by `paraphrases.likeness`. Results are only linked as related: similar texts do not prove the same fault.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from pydantic import Field

from whystall.knowledge_base.classify import paraphrases
from whystall.knowledge_base.classify.dedup_keys import stable
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.classify.rules import rule_weights
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Model

if TYPE_CHECKING:
    from typing import Any

# 8 bands of 3 rows: texts that share 0.7 of their words are candidates with 97 %, 0.5 with 66 %, 0.2 with 6 %.
_BANDS, _ROWS = 8, 3
_ALIKE = 0.6  # minimum Jaccard index of near duplicates
_TRAITS = "\n"  # between the words and the traits of a ticket in `texts`; older rows have no traits
_FEWEST = 4  # words: shorter texts match by accident
_MOST = 200  # words of a text that count
_CANDIDATES = 20  # latest tickets per band: one template for thousands of hosts has one band
_SHOWN = 3
_LATEST = 120  # tickets compared as paraphrases: duplicates come within days
# The nearest paraphrase must be that much nearer than the second, unless these are alike too.
_MARGIN = 0.05
_PRIME = (1 << 31) - 1


class SimilarTicket(Model):
    """A ticket with a similar text. `alike`: Jaccard index of the words, 0.6 to 1; of a `paraphrase` its likeness,
    which orders candidates and is no probability.
    """

    ticket: str
    alike: float = Field(ge=0, le=1)
    paraphrase: bool = False


class TextIndex:
    """The words of the tickets in `file` that came as text."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def find(self, report: Report) -> Sequence[SimilarTicket]:
        """Return at most three tickets with a text like `report`, most similar first, then latest; after those with
        nearly the same words at most one of the latest that may be a paraphrase.
        """
        near = self._near(report)
        known = {one.ticket for one in near}
        return [*near, *(one for one in self._paraphrase(report) if one.ticket not in known)][:_SHOWN]

    def _near(self, report: Report) -> list[SimilarTicket]:
        words = _words(report)
        if len(words) < _FEWEST:
            return []
        with self._file.read() as db:
            candidates: set[int] = set()
            for band in _bands(words):
                rows = db.execute(
                    "SELECT ticket FROM text_bands WHERE band = ? ORDER BY ticket DESC LIMIT ?", [band, _CANDIDATES]
                )
                candidates.update(ticket for (ticket,) in rows.fetchall())
            asked = "SELECT ticket, words FROM texts WHERE ticket IN (SELECT value FROM json_each(?))"
            texts = db.execute(asked, [json.dumps(sorted(candidates))]).fetchall() if candidates else []
        own, found = frozenset(words), []
        for ticket, text in texts:
            other = frozenset(text.partition(_TRAITS)[0].split(" "))
            alike = len(own & other) / len(own | other)
            if alike >= _ALIKE:
                found.append((alike, ticket))
        best = sorted(found, reverse=True)[:_SHOWN]
        return [SimilarTicket(ticket=str(ticket), alike=round(alike, 2)) for alike, ticket in best]

    def _paraphrase(self, report: Report) -> list[SimilarTicket]:
        own = _traits(report)
        rules = frozenset(trait for trait in own if trait[0] == "~" and rule_weights().get(trait[1:], 0) > 1)
        if not rules:
            return []  # nothing names a fault
        with self._file.read() as db:
            rows = db.execute("SELECT ticket, words FROM texts ORDER BY ticket DESC LIMIT ?", [_LATEST]).fetchall()
        found = []
        for ticket, text in rows:
            other = frozenset(text.partition(_TRAITS)[2].split(" "))
            if not rules.isdisjoint(other) and (like := paraphrases.likeness(own, other)) >= paraphrases.ALIKE:
                found.append((like, ticket, other))
        found.sort(key=lambda one: (-one[0], -one[1]))
        if not found:
            return []
        like, ticket, its = found[0]
        if (
            len(found) > 1
            and like - found[1][0] < _MARGIN
            and paraphrases.likeness(its, found[1][2]) < paraphrases.ALIKE
        ):
            return []  # it is as near to two different faults
        return [SimilarTicket(ticket=str(ticket), alike=round(min(like, 1.0), 2), paraphrase=True)]

    def put(self, ticket: str, report: Report) -> None:
        """Store words and traits of the report of `ticket`. Call it in the transaction that creates the ticket."""
        words = _words(report)
        traits = _traits(report)
        number = int(ticket)
        with self._file.write() as db:
            text = f"{' '.join(words)}{_TRAITS}{' '.join(sorted(traits))}"
            db.execute("INSERT OR REPLACE INTO texts (ticket, words) VALUES (?, ?)", [number, text])
            rows = [(band, number) for band in _bands(words)] if len(words) >= _FEWEST else []
            db.executemany("INSERT OR IGNORE INTO text_bands (band, ticket) VALUES (?, ?)", rows)


def _traits(report: Report) -> frozenset[str]:
    return _traits_of(f"{report.title}\n{report.description}", tuple(sorted(report.labels.items())))


@lru_cache(maxsize=8)
def _traits_of(text: str, labels: tuple[tuple[str, str], ...]) -> frozenset[str]:
    return paraphrases.traits(text, dict(labels))


def _words(report: Report) -> tuple[str, ...]:
    return _words_of(f"{report.title}\n{report.description}")


@lru_cache(maxsize=8)  # a text searched for is mostly stored next
def _words_of(text: str) -> tuple[str, ...]:
    """Return the distinct stable words of `text`; of Chinese text, pairs of characters."""
    found: dict[str, None] = {}
    for word in stable(text):
        if "\u3400" <= word[0] <= "\u9fff":
            found.update(dict.fromkeys(word[i : i + 2] for i in range(max(len(word) - 1, 1))))
        else:
            found[word] = None
        if len(found) >= _MOST:
            break
    return tuple(found)[:_MOST]


@lru_cache(maxsize=8)
def _bands(words: tuple[str, ...]) -> list[int]:
    import numpy as np  # 0.1 s, only needed to compare texts

    a, b = _hashes()
    codes = np.fromiter((zlib.crc32(word.encode()) & 0x7FFFFFFF for word in words), dtype=np.int64, count=len(words))
    least = ((codes[:, None] * a + b) % _PRIME).min(axis=0).reshape(_BANDS, _ROWS)
    # Zlib's checksum is the same on every machine and version; the band's number separates bands.
    return [zlib.crc32(band.tobytes(), at) for at, band in enumerate(least)]


@cache
def _hashes() -> tuple[Any, Any]:
    """Coefficients of the hash functions; constant, since signatures are stored."""
    import numpy as np

    made = np.random.Generator(np.random.PCG64(1997)).integers(1, _PRIME, size=(2, _BANDS * _ROWS), dtype=np.int64)
    return made[0], made[1]
