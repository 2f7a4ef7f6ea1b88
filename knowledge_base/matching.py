"""Which past incidents a text or a case resembles, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whystall.knowledge_base import signatures as keys
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Diagnosis, Incident, Match
from whystall.knowledge_base.retrieval import common, ranked
from whystall.knowledge_base.tokens import Terms, terms

_MATCHES = 5


def search(file: Database, text: str, limit: int = 5) -> list[Match]:
    """Incidents ranked by their words in common with `text`, in either language; empty when there are
    none.

    Any text is allowed: it is never read as a query language. `Match.shared` lists the words.
    """
    query = terms(text)
    found = _ranked(file, query, max(1, min(limit, 100)))
    return [
        Match(
            incident=incident.id,
            title=incident.title,
            how="text",
            shared=[f"word:{word.removeprefix('c_')}" for word in common(query, incident)[:12]],
            rank=rank,
        )
        for rank, incident in enumerate(found, 1)
    ]


def match(file: Database, diagnosis: Diagnosis) -> list[Match]:
    """Past incidents that resemble `diagnosis`, best first; empty when nothing discriminating is shared.

    Exact signatures come first. An incident found by text is accepted only if it shares a kind of
    finding that says to what time was lost, and does not contradict the cause. Scores decide the order,
    never whether to accept.
    """
    mine = keys.signatures(diagnosis)
    shared = _by_signature(file, mine)
    kinds = keys.discriminating_kinds(diagnosis)
    order = {incident.id: i for i, incident in enumerate(_ranked(file, _query(diagnosis), 50))}
    found: list[tuple[tuple[float, int], Match]] = []
    for incident in _incidents(file, [*shared, *(i for i in order if i not in shared)]):
        exact = [key for key in mine if key in shared.get(incident.id, ())]
        contradicts = diagnosis.cause is not None and incident.cause not in (None, diagnosis.cause)
        common = sorted(kinds & set(incident.kinds))
        if not exact and (contradicts or not common):
            continue
        match = Match(
            incident=incident.id,
            title=incident.title,
            how="signature" if exact else "text",
            shared=exact + [f"kind:{kind}" for kind in common],
            rank=1,
        )
        points = sum(10 ** keys.weight(key) for key in exact) + len(common)
        found.append(((-points, order.get(incident.id, len(order))), match))
    best = [match for _, match in sorted(found, key=lambda pair: pair[0])[:_MATCHES]]
    return [match.model_copy(update={"rank": rank}) for rank, match in enumerate(best, 1)]


def _by_signature(file: Database, values: Sequence[str]) -> dict[str, set[str]]:
    """Incidents that hold any of `values`, with those they hold."""
    found: dict[str, set[str]] = {}
    with file.read() as db:
        for value in values:
            for (incident,) in db.execute("SELECT incident FROM signatures WHERE value = ?", [value]):
                found.setdefault(incident, set()).add(value)
    return found


def _incidents(file: Database, ids: Iterable[str]) -> list[Incident]:
    with file.read() as db:
        rows = [db.execute("SELECT body FROM incidents WHERE id = ?", [id]).fetchone() for id in ids]
    return [file.record(Incident, row[0]) for row in rows if row is not None]


def _ranked(file: Database, query: Terms, limit: int) -> list[Incident]:
    with file.read() as db:
        return [file.record(Incident, body) for body in ranked(db, query, limit)]


def _query(diagnosis: Diagnosis) -> Terms:
    """What a case is looked up by: the symptom as told, the cause's name, and what the evidence is about."""
    cause = load_causes().get(diagnosis.cause or "")
    words = [cause.title.en, cause.title.zh] if cause else []
    return terms(
        "\n".join([diagnosis.symptom, *words, *keys.operations(diagnosis), *keys.discriminating_kinds(diagnosis)])
    )
