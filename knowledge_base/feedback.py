"""Feedback on the matches of a card, and when it triggers a review."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Feedback, Record

if TYPE_CHECKING:
    from sqlite3 import Connection

# Published retrieval of past incidents is wrong in about one match of four (micro-F1 0.766 on a year of incidents of
# one cloud; RCACopilot, EuroSys 2024). A card is flagged if a card of that quality would be rejected so often with a
# probability below 5 %: 3 of 3, 4 of 6, 5 of 9, 9 of 20.
_USUAL_WRONG = 0.25
_CHANCE = 0.05


def flagged(helped: int, wrong: int) -> bool:
    """Return whether a card with these counts of feedback needs a review."""
    return wrong > 0 and _at_least(wrong, helped + wrong) < _CHANCE


def put(db: Connection, given: Feedback) -> None:
    """Store `given`, replacing earlier feedback on the same match, within the open transaction."""
    db.execute(
        "INSERT OR REPLACE INTO feedback (incident, diagnosis, verdict, comment, at) VALUES (?, ?, ?, ?, ?)",
        [given.incident, given.diagnosis, given.verdict, given.comment, given.at],
    )


def records(db: Connection, ids: Iterable[str]) -> dict[str, Record]:
    """Return the record of each card of `ids`. Feedback before a review does not count for the flag."""
    wanted = list(ids)
    rows = db.execute(
        "SELECT incident, sum(verdict = 'helped'), sum(verdict = 'wrong'), sum(verdict = 'helped' AND NOT settled),"
        " sum(verdict = 'wrong' AND NOT settled) FROM feedback"
        " WHERE incident IN (SELECT value FROM json_each(?)) GROUP BY incident",
        [json.dumps(wanted)],
    )
    found = {id: Record(helped=h, wrong=w, flagged=flagged(new_h, new_w)) for id, h, w, new_h, new_w in rows}
    return {id: found.get(id, Record()) for id in wanted}


def rated(db: Connection) -> dict[str, Record]:
    ids = [id for (id,) in db.execute("SELECT DISTINCT incident FROM feedback ORDER BY incident")]
    found: dict[str, Record] = {}
    for start in range(0, len(ids), 500):
        found |= records(db, ids[start : start + 500])
    return found


def feedback_on(db: Connection, incident: str, limit: int = 20) -> list[Feedback]:
    """Return the feedback on the card, latest first."""
    rows = db.execute(
        "SELECT incident, diagnosis, verdict, comment, at FROM feedback WHERE incident = ? ORDER BY at DESC LIMIT ?",
        [incident, limit],
    )
    names = ("incident", "diagnosis", "verdict", "comment", "at")
    return [Feedback.model_validate(dict(zip(names, row, strict=True))) for row in rows]


def settle(db: Connection, incident: str) -> None:
    """Exclude the feedback given so far from the flag, after a review."""
    db.execute("UPDATE feedback SET settled = 1 WHERE incident = ?", [incident])


def _at_least(wrong: int, total: int) -> float:
    """Probability of `wrong` or more rejections of `total` at the usual rate of rejection."""
    odds, rest = math.log(_USUAL_WRONG), math.log1p(-_USUAL_WRONG)
    whole = math.lgamma(total + 1)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(total - k + 1) + k * odds + (total - k) * rest)
        for k in range(wrong, total + 1)
    )
