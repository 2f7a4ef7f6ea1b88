"""The knowledge base: past incidents, diagnoses and tickets in one SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.knowledge_base import matching, occurrences, text_search
from whystall.knowledge_base.card_store import CardStore
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.diagnoses import DiagnosisLine, diagnoses_of, get_diagnosis, latest_lines, put_diagnosis
from whystall.knowledge_base.embeddings import Embedder, nearest, refresh
from whystall.knowledge_base.evidence import Evidence, evidence_of
from whystall.knowledge_base.models import Diagnosis, Match
from whystall.knowledge_base.operator_baselines import OperatorBaselines
from whystall.knowledge_base.seeding import seed
from whystall.knowledge_base.tickets.ticket_store import TicketStore
from whystall.tools.recording.home import home

if TYPE_CHECKING:
    from typing_extensions import Self

    from whystall.knowledge_base.classify.classifier import Classifier
    from whystall.knowledge_base.classify.similar_texts import TextIndex


def default_path() -> Path:
    """Return the path of this user's knowledge base; see `home`."""
    return home() / "knowledge.db"


class KnowledgeBase:
    """An open knowledge base.

    Every method may raise `ToolError`: database (damaged, locked, read-only), disk_full. Changes are stored when a
    method returns.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file `path`, and update its curated incidents to this version."""
        self._file = Database(Path(path))
        try:
            seed(self._file)
        except BaseException:
            self._file.close()
            raise

    @property
    def read_only(self) -> bool:
        return self._file.read_only

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one transaction: all changes are stored, or none.

        Other threads wait meanwhile: do nothing slow in the block, and no ``await``.
        """
        with self._file.write():
            yield

    def after_commit(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `callback` after each of our transactions within the block; see `Database.after_commit`."""
        return self._file.after_commit(callback)

    def version(self) -> int:
        return self._file.version()

    @property
    def path(self) -> Path:
        return self._file.path

    @cached_property
    def classifier(self) -> Classifier:
        from whystall.knowledge_base.classify.classifier import Classifier

        return Classifier(self._file)

    @cached_property
    def similar_texts(self) -> TextIndex:
        from whystall.knowledge_base.classify.similar_texts import TextIndex

        return TextIndex(self._file)

    @cached_property
    def operator_baselines(self) -> OperatorBaselines:
        """Stored runs with latencies of their operators."""
        return OperatorBaselines(self._file)

    @cached_property
    def cards(self) -> CardStore:
        return CardStore(self._file)

    def search(self, text: str, limit: int = 5) -> list[Match]:
        """Return incidents ranked by words in common with `text`; see `text_search.search`."""
        return text_search.search(self._file, text, limit)

    def search_with(self, embedder: Embedder, text: str, limit: int = 5) -> tuple[list[Match], int]:
        """Return incidents ranked by words in common with `text` and by meaning, and how many cards have no vector yet.

        Raises `EmbeddingError` if the model gives no usable vectors; then nothing was searched.
        """
        found = nearest(self._file, embedder, text, text_search.CANDIDATES)
        return text_search.search(self._file, text, limit, near=found.cards), found.missing

    def embed_cards(self, embedder: Embedder) -> int:
        """Embed all cards without a current vector; return how many. Raises `EmbeddingError`."""
        return refresh(self._file, embedder)

    def match(self, diagnosis: Diagnosis) -> list[Match]:
        """Return past incidents similar to `diagnosis`; see `matching.similar`. If there are none, those of a
        similar symptom; see `matching.similar_by_text`.
        """
        evidence = evidence_of(diagnosis)
        return matching.similar(self._file, evidence) or matching.similar_by_text(self._file, evidence)

    def similar(self, evidence: Evidence, limit: int = 5) -> list[Match]:
        """Return past incidents similar to the case described by `evidence`; see `matching.similar`."""
        return matching.similar(self._file, evidence, limit)

    @cached_property
    def tickets(self) -> TicketStore:
        return TicketStore(self._file, self.cards)

    def remember(self, diagnosis: Diagnosis, ticket: bool) -> Diagnosis:
        """Store `diagnosis` with its similar incidents, and with a drafted ticket if `ticket`; return it completed.

        Counts it as a recurrence of the incident with the same fault; that match then shows the count including this
        one and the previous time. A diagnosis without a fault is only stored.
        """
        if diagnosis.verdict.no_fault:
            self.save_diagnosis(diagnosis)
            return diagnosis
        matches = self.match(diagnosis)
        with self._file.write() as db:
            again = occurrences.count_recurrence(db, diagnosis)
            counted = [
                m.model_copy(update={"occurrences": m.occurrences + 1}) if m.incident == again else m for m in matches
            ]
            diagnosis = diagnosis.model_copy(update={"matches": counted})
            if ticket:
                diagnosis = diagnosis.model_copy(update={"ticket": self.tickets.draft(diagnosis).id})
            put_diagnosis(db, diagnosis)
        return diagnosis

    def save_diagnosis(self, diagnosis: Diagnosis) -> None:
        with self._file.write() as db:
            put_diagnosis(db, diagnosis)

    def get_diagnosis(self, id: str) -> Diagnosis:
        with self._file.read() as db:
            return get_diagnosis(self._file, db, id)

    def latest_diagnoses(self, limit: int, offset: int = 0) -> list[DiagnosisLine]:
        """Return lines of diagnoses after the first `offset`, the newest first."""
        with self._file.read() as db:
            return latest_lines(db, limit, offset)

    def diagnoses_of(self, comm: str, limit: int) -> list[Diagnosis]:
        """Return the latest `limit` diagnoses whose victim is called `comm`, the newest first."""
        with self._file.read() as db:
            return diagnoses_of(self._file, db, comm, limit)
