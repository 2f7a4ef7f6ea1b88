"""Earlier tickets with nearly the same text: candidates by MinHash over words, then by shared words.

Broder, On the resemblance and containment of documents (1997); bands as in Leskovec, Rajaraman, Ullman, Mining of
Massive Datasets, 3.4. Results are only linked as related: similar texts do not prove the same fault.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from pydantic import Field

from whystall.knowledge_base.classify.dedup_keys import stable
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Model

if TYPE_CHECKING:
    from typing import Any

# 8 bands of 3 rows: texts that share 0.7 of their words are candidates with 97 %, 0.5 with 66 %, 0.2 with 6 %.
_BANDS, _ROWS = 8, 3
_ALIKE = 0.6  # minimum Jaccard index of near duplicates
_FEWEST = 4  # words: shorter texts match by accident
_MOST = 200  # words of a text that count
_CANDIDATES = 20  # latest tickets per band: one template for thousands of hosts has one band
_SHOWN = 3
_PRIME = (1 << 31) - 1


class SimilarTicket(Model):
    """A ticket with a similar text. `alike`: Jaccard index of the words, 0.6 to 1."""

    ticket: str
    alike: float = Field(ge=0, le=1)


class TextIndex:
    """The words of the tickets in `file` that came as text."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def find(self, report: Report) -> Sequence[SimilarTicket]:
        """Return at most three tickets with a text like `report`, most similar first, then latest."""
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
            other = frozenset(text.split(" "))
            alike = len(own & other) / len(own | other)
            if alike >= _ALIKE:
                found.append((alike, ticket))
        best = sorted(found, reverse=True)[:_SHOWN]
        return [SimilarTicket(ticket=str(ticket), alike=round(alike, 2)) for alike, ticket in best]

    def put(self, ticket: str, report: Report) -> None:
        """Store the words of the report of `ticket`. Call it in the transaction that creates the ticket."""
        words = _words(report)
        if len(words) < _FEWEST:
            return
        number = int(ticket)
        with self._file.write() as db:
            db.execute("INSERT OR REPLACE INTO texts (ticket, words) VALUES (?, ?)", [number, " ".join(words)])
            rows = [(band, number) for band in _bands(words)]
            db.conn.executemany("INSERT OR IGNORE INTO text_bands (band, ticket) VALUES (?, ?)", rows)


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
