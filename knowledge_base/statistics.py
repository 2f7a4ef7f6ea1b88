"""Counts over cards, and how well they match."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from whystall.knowledge_base import feedback
from whystall.knowledge_base.models import Model
from whystall.knowledge_base.times import age_days
from whystall.tools.contract.proportion import wilson

if TYPE_CHECKING:
    from sqlite3 import Connection

STATES = ("draft", "reviewed", "retired")


class Stats(Model):
    """Counts over all cards.

    `states`, `origins`: cards by each; `causes`: reviewed and draft cards by cause, ``""`` without one, most frequent
    first. `recurrences`: repeated outages by card, most first; `last_seen`: RFC 3339. `precision`: share of feedback
    that a match helped, with its 95 % interval; None without feedback. `flagged`: cards with too many rejected matches.
    `oldest_draft_days`: age of the oldest draft; None without drafts.
    """

    cards: int
    states: dict[str, int]
    origins: dict[str, int]
    causes: dict[str, int]
    recurrences: int
    recurring: dict[str, int]
    last_seen: str | None = None
    helped: int = 0
    wrong: int = 0
    precision: float | None = None
    interval: tuple[float, float] | None = None
    flagged: list[str] = Field(default_factory=list)
    oldest_draft_days: float | None = None


_TOP = 10


def stats(db: Connection) -> Stats:
    groups = db.execute("SELECT state, origin, cause, count(*) FROM incidents GROUP BY 1, 2, 3").fetchall()
    states, origins, causes = dict.fromkeys(STATES, 0), dict[str, int](), dict[str, int]()
    for state, origin, cause, count in groups:
        states[state] = states.get(state, 0) + count
        origins[origin] = origins.get(origin, 0) + count
        if state != "retired":
            causes[cause or ""] = causes.get(cause or "", 0) + count
    again = "FROM occurrences WHERE key != 'ticket:' || substr(incident, 8)"  # without the first outage
    recurrences, last = db.execute(f"SELECT count(*), max(seen) {again}").fetchone()
    most = db.execute(f"SELECT incident, count(*) {again} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?", [_TOP]).fetchall()
    records = feedback.rated(db)
    helped, wrong = (sum(getattr(r, name) for r in records.values()) for name in ("helped", "wrong"))
    oldest = db.execute("SELECT min(updated) FROM incidents WHERE state = 'draft'").fetchone()[0]
    return Stats(
        cards=sum(states.values()),
        states=states,
        origins=dict(sorted(origins.items())),
        causes=dict(sorted(causes.items(), key=lambda item: (-item[1], item[0]))),
        recurrences=recurrences,
        recurring=dict(most),
        last_seen=last,
        helped=helped,
        wrong=wrong,
        precision=helped / (helped + wrong) if helped + wrong else None,
        interval=wilson(helped, helped + wrong) if helped + wrong else None,
        flagged=[id for id, record in records.items() if record.flagged],
        oldest_draft_days=age_days(oldest) if oldest else None,
    )
