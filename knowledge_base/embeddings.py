"""Vectors of cards from an injected embedding model, stored beside the cards, and the cards nearest to a text.

A vector is made again when the text of its card, the model or the dimension has changed. Nearness is the cosine
(vectors are stored with length 1). It orders cards; how likely a card is right is decided by words alone, since no
confidence was calibrated for embeddings.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.ngrams import text_of

if TYPE_CHECKING:
    from sqlite3 import Connection

    import numpy as np
    from numpy.typing import NDArray

    from whystall.knowledge_base.database import Database

    Vector = NDArray[np.float32]

PER_SEARCH = 512
"""Cards that one search embeds at most; `refresh` without a limit embeds all (``whystall kb embed``)."""
BATCH = 64
"""Texts of one request."""
DIMENSIONS = 8_192
"""Most numbers of a vector."""
_CARD, _QUERY = 4_000, 4_000  # characters that are embedded: models read 512 to 8,192 tokens
_BLOCK = 2_000  # vectors in memory at once
_LEAST = 1e-12


class EmbeddingError(Exception):
    """The model gave no usable vectors. The message is one line without secrets."""


class Embedder(Protocol):
    """An embedding model."""

    @property
    def name(self) -> str:
        """The model's name, as its server knows it: vectors of different models are not compared."""

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector for each of `texts`, at most `BATCH`. Raises `EmbeddingError`. Blocks."""


class Near(NamedTuple):
    """A card near a text. `n`: its row; `cosine`: -1 to 1."""

    n: int
    cosine: float


class Nearest(NamedTuple):
    """Cards near a text, nearest first. `missing`: cards without a vector of this model."""

    cards: list[Near]
    missing: int


def nearest(file: Database, embedder: Embedder, text: str, limit: int) -> Nearest:
    """Return the `limit` cards nearest to `text`, after embedding at most `PER_SEARCH` cards that have no vector yet.

    Raises `EmbeddingError`; what was embedded before an error stays stored.
    """
    asked = _vectors(embedder, [text[:_QUERY]])[0]
    if not file.read_only:
        refresh(file, embedder, len(asked), PER_SEARCH)
    with file.read() as db:
        return Nearest(_nearest(db, embedder.name, asked, limit), _missing(db, embedder.name, len(asked)))


def refresh(file: Database, embedder: Embedder, dimension: int | None = None, limit: int | None = None) -> int:
    """Embed cards without a current vector, at most `limit` (None: all); return how many.

    `dimension`: of the vectors to keep, None: what the model returns. No transaction is open while the model is asked.
    Raises `EmbeddingError`; `ToolError` (database) if the file cannot be written.
    """
    if dimension is None:
        dimension = len(_vectors(embedder, ["dimension"])[0])
    done, last = 0, -1
    while limit is None or done < limit:
        size = BATCH if limit is None else min(BATCH, limit - done)
        rows = _outdated(file, embedder.name, dimension, last, size)
        if not rows:
            break
        last = rows[-1].n
        changed = [row for row in rows if not row.same]
        vectors = _vectors(embedder, [row.text for row in changed], dimension) if changed else []
        with file.write() as db:
            kept = [row.n for row in rows if row.same]
            db.executemany("UPDATE card_vectors SET stale = 0 WHERE n = ?", [(n,) for n in kept])
            db.executemany(
                "INSERT OR REPLACE INTO card_vectors (n, model, dimension, hash, stale, vector)"
                " SELECT n, ?, ?, ?, 0, ? FROM incidents WHERE n = ?",  # it may have been deleted meanwhile
                [
                    (embedder.name, dimension, row.hash, vector.tobytes(), row.n)
                    for row, vector in zip(changed, vectors, strict=True)
                ],
            )
        done += len(changed)
    return done


class _Row(NamedTuple):
    n: int
    text: str
    hash: str
    same: bool


def _outdated(file: Database, model: str, dimension: int, after: int, limit: int) -> list[_Row]:
    """Return cards after row `after` without a current vector. `same`: only other parts of the card were changed."""
    with file.read() as db:
        found = db.execute(
            "SELECT i.n, i.body, old.hash, old.model, old.dimension FROM incidents i"
            " LEFT JOIN card_vectors v ON v.n = i.n AND v.model = ? AND v.dimension = ? AND v.stale = 0"
            " LEFT JOIN card_vectors old ON old.n = i.n"
            " WHERE i.n > ? AND i.state != 'retired' AND v.n IS NULL ORDER BY i.n LIMIT ?",
            [model, dimension, after, limit],
        ).fetchall()
    rows = []
    for n, body, hash_, its_model, its_dimension in found:
        text = text_of(file.record(Incident, body))[:_CARD]
        now = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        rows.append(_Row(n, text, now, (hash_, its_model, its_dimension) == (now, model, dimension)))
    return rows


def _missing(db: Connection, model: str, dimension: int) -> int:
    asked = (
        "SELECT count(*) FROM incidents i LEFT JOIN card_vectors v ON v.n = i.n"
        " AND v.model = ? AND v.dimension = ? AND v.stale = 0 WHERE i.state != 'retired' AND v.n IS NULL"
    )
    return int(db.execute(asked, [model, dimension]).fetchone()[0])


def _nearest(db: Connection, model: str, asked: Vector, limit: int) -> list[Near]:
    import heapq

    import numpy as np

    best: list[Near] = []
    for rows, vectors in _blocks(db, model, len(asked)):
        cosines = vectors @ asked
        chosen = np.argsort(-cosines, kind="stable")[:limit]
        best = heapq.nlargest(
            limit,
            [*best, *(Near(rows[at], float(cosines[at])) for at in chosen)],
            key=lambda near: (near.cosine, -near.n),
        )
    return best


def _blocks(db: Connection, model: str, dimension: int) -> Iterator[tuple[list[int], Vector]]:
    """Yield the rows and vectors of current cards; vectors of another length in a damaged file are left out.

    Retiring a card makes its vector stale, and no retired card is embedded, so that its state need not be read.
    """
    import numpy as np

    last = -1
    while True:
        found = db.execute(
            "SELECT n, vector FROM card_vectors WHERE n > ? AND model = ? AND dimension = ? AND stale = 0"
            " ORDER BY n LIMIT ?",
            [last, model, dimension, _BLOCK],
        ).fetchall()
        if not found:
            return
        last = found[-1][0]
        whole = [(n, vector) for n, vector in found if len(vector) == 4 * dimension]
        if whole:
            joined = np.frombuffer(b"".join(vector for _, vector in whole), "<f4").reshape(len(whole), dimension)
            yield [n for n, _ in whole], joined


def _vectors(embedder: Embedder, texts: Sequence[str], dimension: int | None = None) -> list[Vector]:
    """Return the vectors of `texts` with length 1, all of the same dimension. Raises `EmbeddingError` for others."""
    import numpy as np

    given = embedder.embed(texts)
    if len(given) != len(texts):
        raise EmbeddingError(f"{len(given)} vectors for {len(texts)} texts")
    found: list[Vector] = []
    for numbers in given:
        wanted = dimension or len(found[0] if found else numbers)
        if not 0 < len(numbers) <= DIMENSIONS or len(numbers) != wanted:
            raise EmbeddingError(f"a vector has {len(numbers)} numbers, {wanted} were expected")
        if not all(math.isfinite(number) for number in numbers):
            raise EmbeddingError("a vector holds a number that is not finite")
        vector = np.asarray(numbers, np.float64)
        largest = float(np.abs(vector).max())
        if largest < _LEAST:
            raise EmbeddingError("a vector is zero")
        vector /= largest  # squares of large numbers would overflow
        found.append((vector / np.linalg.norm(vector)).astype("<f4"))
    return found
