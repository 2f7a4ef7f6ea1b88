"""The knowledge base: past incidents, diagnoses and tickets in one SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.knowledge_base import matching, occurrences
from whystall.knowledge_base.card_store import CardStore
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.diagnoses import put_diagnosis
from whystall.knowledge_base.evidence import Evidence, evidence_of
from whystall.knowledge_base.models import Diagnosis, Incident, Match, Verdict
from whystall.knowledge_base.seeding import seed
from whystall.knowledge_base.tickets.ticket_store import TicketStore
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.home import home

if TYPE_CHECKING:
    from typing_extensions import Self

    from whystall.knowledge_base.classify.classifier import Classifier
    from whystall.knowledge_base.classify.near import Texts


def default_path() -> Path:
    """The knowledge base of this host and user; see `home`."""
    return home() / "knowledge.db"


class KnowledgeBase:
    """An open knowledge base. Writing is refused with `ToolError` (database) where `read_only` is true.

    Every method may raise `ToolError`: database (damaged, locked), disk_full; what a method has returned
    from is stored.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file `path`, and bring the curated incidents in it up to those of this version."""
        self._file = Database(Path(path))
        try:
            seed(self._file)
        except BaseException:
            self._file.close()
            raise

    @property
    def read_only(self) -> bool:
        """Whether the file may only be read."""
        return self._file.read_only

    def close(self) -> None:
        """Close the file; may be called more than once."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything that is changed in the block, by whatever method, is stored together or not at all.

        Another thread waits meanwhile: nothing slow belongs inside, and no ``await``.
        """
        with self._file.write():
            yield

    def after_commit(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `callback` after each of our transactions within the block; see `Database.after_commit`."""
        return self._file.after_commit(callback)

    def version(self) -> int:
        """A number that is another one once another process has stored something."""
        return self._file.version()

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @cached_property
    def classifier(self) -> Classifier:
        """What a report is about."""
        from whystall.knowledge_base.classify.classifier import Classifier

        return Classifier(self._file)

    @cached_property
    def texts(self) -> Texts:
        """Which tickets read alike."""
        from whystall.knowledge_base.classify.near import Texts

        return Texts(self._file)

    # --- incidents ------------------------------------------------------------------------------------------------

    @cached_property
    def cards(self) -> CardStore:
        """The incidents as cards, and their life."""
        return CardStore(self._file)

    def add_incident(self, incident: Incident, by: str = "") -> Incident:
        """Store `incident` as the user's own; see `CardStore.add`."""
        return self.cards.add(incident, by)

    def get_incident(self, id: str) -> Incident:
        """The incident `id`; `ToolError` (not_found) when there is none."""
        return self.cards.get(id)

    def search(self, text: str, limit: int = 5) -> list[Match]:
        """Incidents ranked by their words in common with `text`; see `matching.search`."""
        return matching.search(self._file, text, limit)

    def match(self, diagnosis: Diagnosis) -> list[Match]:
        """Past incidents that resemble `diagnosis`; see `matching.similar`."""
        return matching.similar(self._file, evidence_of(diagnosis))

    def similar(self, evidence: Evidence, limit: int = 5) -> list[Match]:
        """Past incidents that resemble a case of which `evidence` is known; see `matching.similar`."""
        return matching.similar(self._file, evidence, limit)

    # --- tickets --------------------------------------------------------------------------------------------------

    @cached_property
    def tickets(self) -> TicketStore:
        """The tickets, and their life."""
        return TicketStore(self._file, self.cards)

    # --- diagnoses ------------------------------------------------------------------------------------------------

    def remember(self, diagnosis: Diagnosis, ticket: bool) -> Diagnosis:
        """Store `diagnosis` with the past incidents it resembles, counted as an occurrence of the one whose fault it
        shows, and with a drafted ticket where `ticket` asks for one; returns it so completed. Nothing of this is done
        for a healthy job but to store it.

        The match of the incident it is counted for says how often that was seen with this time, and when before.
        """
        if diagnosis.verdict is Verdict.HEALTHY:
            self.save_diagnosis(diagnosis)
            return diagnosis
        matches = self.match(diagnosis)
        with self._file.write() as db:
            again = occurrences.recur(db, diagnosis)
            counted = [
                m.model_copy(update={"occurrences": m.occurrences + 1}) if m.incident == again else m for m in matches
            ]
            diagnosis = diagnosis.model_copy(update={"matches": counted})
            if ticket:
                diagnosis = diagnosis.model_copy(update={"ticket": self.tickets.draft(diagnosis).id})
            put_diagnosis(db, diagnosis)
        return diagnosis

    def save_diagnosis(self, diagnosis: Diagnosis) -> None:
        """Store `diagnosis`, in place of an earlier one with its id."""
        with self._file.write() as db:
            put_diagnosis(db, diagnosis)

    def get_diagnosis(self, id: str) -> Diagnosis:
        """The diagnosis `id`; `ToolError` (not_found) when there is none."""
        with self._file.read() as db:
            row = db.execute("SELECT body FROM diagnoses WHERE id = ?", [_plain(id)]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"no diagnosis is called {id!r}", "run `whystall diagnose` first")
        return self._file.record(Diagnosis, row[0])


def _plain(id: str) -> str:
    """`id` as SQLite can bind it (it has no lone surrogates, which an argument of a command may)."""
    return clean(id, 200)
