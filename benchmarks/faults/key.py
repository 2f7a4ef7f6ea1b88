"""What a case's random parameters resolved to, stored with its results so that answers can be scored again later."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from benchmarks.faults.case import Case
from benchmarks.faults.scenario import Scenario
from benchmarks.faults.source import Place


class Key(BaseModel):
    """The facts that a score compares with: pids by role, processes by thread, lines by mark, and facts by name."""

    model_config = ConfigDict(extra="ignore")

    pids: dict[str, int]
    threads: dict[int, int]
    places: dict[str, Place]
    facts: dict[str, str]

    @classmethod
    def of(cls, case: Case) -> Key:
        """Return the key of a case that runs."""
        facts = {name: str(value) for name, value in case.facts.items()}
        return cls(pids=dict(case.pids), threads=dict(case.threads), places=dict(case.places), facts=facts)


@dataclass(frozen=True)
class PastCase:
    """A case that ended: what `score` needs of it."""

    scenario: Scenario
    key: Key

    @property
    def pids(self) -> dict[str, int]:
        return self.key.pids

    @property
    def threads(self) -> dict[int, int]:
        return self.key.threads

    @property
    def places(self) -> dict[str, Place]:
        return self.key.places

    @property
    def facts(self) -> dict[str, str]:
        return self.key.facts
