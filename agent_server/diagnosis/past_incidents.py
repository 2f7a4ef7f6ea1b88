"""Past incidents, and past diagnoses of the same program, for the model that drives a case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from whystall.knowledge_base.models import Diagnosis, Lang, Match
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.diagnosis.case import Case
    from whystall.agent_server.stores import Stores

Card = dict[str, Any]
_SHOWN = 3
_EARLIER = 5
_TEXT = 600
_CULPRIT = ("comm", "path", "device", "mount", "syscall", "code", "latency_ms", "max_ms", "window_pct")


class PastIncidents(Protocol):
    """A source of past incidents, as plain data. Their texts are untrusted."""

    def similar(self, case: Case) -> list[Card]:
        """Return the incidents that share evidence with `case`, best first."""

    def search(self, text: str) -> list[Card]:
        """Return the incidents that share words with `text`, best first."""

    def earlier(self, case: Case) -> list[Card]:
        """Return the latest diagnoses whose victim has the name of this case's, the newest first."""


class KnownIncidents:
    """The incidents of `kb`, in `lang`, without weak matches. Methods raise `ToolError` (database)."""

    def __init__(self, kb: Stores, lang: Lang) -> None:
        self._kb = kb
        self._lang = lang

    def similar(self, case: Case) -> list[Card]:
        return [self._card(match) for match in self._kb.match(case.diagnosis())[:_SHOWN] if not match.weak]

    def search(self, text: str) -> list[Card]:
        return [self._card(match) for match in self._kb.search(text, _SHOWN) if not match.weak]

    def earlier(self, case: Case) -> list[Card]:
        victim = case.victim()
        return (
            []
            if victim is None or not victim.comm
            else [_diagnosis(d) for d in self._kb.diagnoses_of(victim.comm, _EARLIER)]
        )

    def _card(self, match: Match) -> Card:
        incident = self._kb.cards.get(match.incident)
        texts = {"symptom": incident.symptom, "root_cause": incident.root_cause, "fix": incident.fix}
        return {
            "incident": incident.id,
            "title": clean(incident.title.get(self._lang), _TEXT),
            "known": match.known,
            "why": match.shared,
            "cause": incident.cause,
            **{name: clean(text.get(self._lang), _TEXT) for name, text in texts.items()},
            "checks_not_made_here": match.unchecked,
        }


def _diagnosis(diagnosis: Diagnosis) -> Card:
    """Return a past diagnosis as data, without findings: their ids would be taken for those of this case."""
    culprit = diagnosis.culprit.model_dump(mode="json", exclude_none=True) if diagnosis.culprit else {}
    return {
        "diagnosis": diagnosis.id,
        "created": diagnosis.created,
        "target": clean(diagnosis.target, _TEXT),
        "symptom": clean(diagnosis.symptom, _TEXT),
        "verdict": diagnosis.verdict.value,
        "cause": diagnosis.cause,
        "explained_pct": round(diagnosis.explained_pct, 1),
        "missing": diagnosis.missing,
        "culprit": {name: value for name, value in culprit.items() if name in _CULPRIT},
        "incidents": [match.incident for match in diagnosis.matches if not match.weak][:_SHOWN],
        "ticket": diagnosis.ticket,
    }
