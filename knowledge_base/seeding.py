"""Updates a file to this version: curated cards, index, cards of resolved tickets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.card_store import put_card
from whystall.knowledge_base.cards import draft_card
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.incidents import curated, curated_hash
from whystall.knowledge_base.indexing import compact, index_hash, reindex
from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.occurrences import record_sighting
from whystall.knowledge_base.ticket_models import LESSON, Ticket

if TYPE_CHECKING:
    from sqlite3 import Connection

_CARDS = "2"  # since version 2 a ticket's card is a draft, and its outage an occurrence


def seed(file: Database) -> None:
    """Replace the curated incidents of another version by those of this one, and renew what an older version wrote, in
    one transaction. The user's cards, and changed curated ones, are kept.
    """
    if file.read_only:
        return
    wanted = {"curated": curated_hash(), "index": index_hash(), "cards": _CARDS}
    with file.read() as db:
        had = dict(db.execute("SELECT key, value FROM state WHERE key IN ('curated', 'index', 'cards')").fetchall())
    if had == wanted:
        return
    with file.write() as db:
        if had.get("cards") != _CARDS:
            _renew(file, db)
        changed = _delete_curated(file, db)
        renewed = had.get("index") != wanted["index"]
        if renewed:
            reindex(file, db)
        taken = {id for (id,) in db.execute("SELECT id FROM incidents")}
        fresh = curated()
        for incident in fresh:
            if incident.id not in taken:
                before = changed.get(incident.id)
                kept = ("state", "updated", "notes", "history")
                update = {name: getattr(before, name) for name in kept} if before is not None else {}
                put_card(db, incident.model_copy(update=update))
        compact(db, len(fresh) + (len(taken) if renewed else 0))
        for key, value in wanted.items():
            db.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", [key, value])


def _delete_curated(file: Database, db: Connection) -> dict[str, Incident]:
    """Delete the curated cards; return those changed here."""
    changed = "SELECT body FROM incidents WHERE origin = 'curated' AND body LIKE '%\"history\":[{%'"
    cards = [file.record(Incident, body) for (body,) in db.execute(changed).fetchall()]
    db.execute("DELETE FROM incidents WHERE origin = 'curated'")
    return {card.id: card for card in cards}


def _renew(file: Database, db: Connection) -> None:
    """Rewrite the cards of resolved tickets as unreviewed drafts; add hashes of the user's cards."""
    rows = db.execute("SELECT body FROM incidents WHERE origin = 'user'").fetchall()
    for (body,) in rows:
        put_card(db, file.record(Incident, body))
    causes = load_causes()
    numbers = [n for (n,) in db.execute("SELECT id FROM tickets WHERE state = 'resolved' ORDER BY id").fetchall()]
    for number in numbers:
        row = db.execute(
            "SELECT t.body FROM tickets t JOIN incidents i ON i.id = ? || t.id WHERE t.id = ?", [LESSON, number]
        ).fetchone()
        if row is None:
            continue
        ticket = file.record(Ticket, row[0])
        card = draft_card(ticket, causes)
        put_card(db, card)
        record_sighting(db, card.id, ticket.diagnosed(), number)
