"""What a report is about: as it is given, then by rules, by the votes of confirmed incidents, by words; else unknown.

Every field says by what it was decided, how sure that is, what spoke for it, and what else it might have been.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whystall.knowledge_base import matching
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.classify.centroids import Centroids, Likeness
from whystall.knowledge_base.classify.neighbours import Vote, counted, votes
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.classify.rules import UNKNOWN, Standing, judge
from whystall.knowledge_base.classify.severities import severity_of
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Diagnosis, Match, Verdict
from whystall.knowledge_base.tickets import drafting
from whystall.knowledge_base.tickets.models import Classification, Decision, Ticket
from whystall.tools.contract.findings import Severity

_ENOUGH, _LEAD = 2.0, 1.0
"""Rules decide where they weigh so much for a category (a place, or two hints), and so much more than for any other."""
# NodeFilesystemAlmostOutOfSpace, GPUXidError
_JOINED = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MAJORITY = 0.5  # share of the votes
_MUCH = 5
"""Terms that one incident must share if it alone votes. Of the tuned questions and 58 titles of public issues, lone
votes of so many were right 6 times and wrong once, those of fewer 12 and 7 times."""
_NEAR, _NEARER, _SHARED = 0.2, 1.5, 3
"""Cosine from where on the nearest class counts, how many times the second's it must be, and by how many terms."""
_READ = 4000  # characters of a text that are read
_SHOWN, _SEARCHED = 3, 8
_SURE = {Verdict.CONFIRMED: 1.0, Verdict.LIKELY: 0.7, Verdict.INCONCLUSIVE: 0.3, Verdict.HEALTHY: 0.0}


@dataclass(frozen=True)
class Found:
    """A classification, the past incidents that answer the text, and the tools that would tell more."""

    classification: Classification
    matches: list[Match]
    checks: list[str]


class Classifier:
    """Classifies with the incidents and the examples in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file
        self.centroids = Centroids(file)

    def classify(self, report: Report, memory: matching.Memory | None = None) -> Found:
        """What `report` is about; the same text, incidents and examples give the same. `memory`: of those just before,
        while no card changes.
        """
        text = read(report)
        matches = matching.search(self._file, text, _SEARCHED, weak=False, memory=memory)
        cast = votes(matches, self._causes(matches))
        standings = judge(text)
        category = report.given.get("category") or _category(standings, cast, lambda: self.centroids.nearest(text))
        component = report.given.get("component") or _component(category, standings, cast)
        cause = _cause(category, standings, cast)
        told = Classification(
            category=category,
            component=component,
            severity=self.severity(report),
            cause=cause,
            source_severity=report.source_severity,
        )
        known = load_causes().get(cause.value) if cause else None
        return Found(told, matches[:_SHOWN], list(known.examined_by) if known else [])

    def memory(self) -> matching.Memory:
        """What many that are classified one after the other have in common."""
        return matching.Memory(self._file)

    def severity(self, report: Report) -> Decision:
        """How bad `report` is."""
        given = report.given.get("severity")
        return given or severity_of(report.source_severity, f"{report.title}\n{report.description[:_READ]}")

    def learn(self, ticket: Ticket) -> bool:
        """Take `ticket` for an example, where a person or a diagnosis decided its category; whether that is so."""
        told = ticket.classification
        if told is None or ticket.origin == "diagnosis" or not told.category.by.startswith(("person:", "diagnosis")):
            return False
        self.centroids.learn(f"{ticket.human.title}\n{ticket.human.description}"[:_READ], ticket.category)
        return True

    def _causes(self, matches: Sequence[Match]) -> Mapping[str, str | None]:
        with self._file.read() as db:
            asked = "SELECT id, cause FROM incidents WHERE id IN (SELECT value FROM json_each(?))"
            return dict(db.execute(asked, [json.dumps([match.incident for match in matches])]).fetchall())


def read(report: Report) -> str:
    """What of `report` is read: its title and text, and the names in them that are words written together."""
    told = "\n".join(part for part in (report.labels.get("alertname", ""), report.title) if part)
    apart = _JOINED.sub(" ", told)
    return "\n".join(
        part for part in (told if apart == told else f"{told}\n{apart}", report.description[:_READ]) if part
    )


def _category(standings: Sequence[Standing], cast: Sequence[Vote], words: Any) -> Decision:
    best = standings[0] if standings else None
    total = sum(standing.weight for standing in standings)
    if (
        best is not None
        and best.weight >= _ENOUGH
        and (len(standings) == 1 or best.weight >= standings[1].weight + _LEAD)
    ):
        rule = best.hits[0].rule
        because = list(dict.fromkeys(f"word:{word}" for hit in best.hits for word in hit.words))[:6]
        rivals = [standing.category for standing in standings[1:4]]
        return Decision(
            value=best.category,
            by=f"rule:{rule.id}",
            confidence=round(best.weight / total, 2),
            because=because,
            rivals=rivals,
        )
    # Where rules are even, the others choose among what these name.
    even = {
        s.category for s in standings if best is not None and s.weight > best.weight - _LEAD and s.weight >= _ENOUGH
    }
    sums = {name: weight for name, weight in counted(cast).items() if not even or name in even}
    all_votes = sum(counted(cast).values())
    if sums:
        first = next(iter(sums))
        because = [f"incident:{vote.incident}" for vote in cast if vote.category == first]
        # What resembles one incident alone may be about anything else, unless it does so in much, or a rule seconds it.
        much = max(vote.shared for vote in cast if vote.category == first) >= _MUCH
        seconded = len(because) > 1 or much or any(standing.category == first for standing in standings)
        if sums[first] / all_votes > _MAJORITY and seconded:
            rivals = [name for name in (*counted(cast), *(s.category for s in standings)) if name != first]
            return Decision(
                value=first,
                by="incidents",
                confidence=round(sums[first] / all_votes * (1 - 0.5 ** len(because)), 2),
                because=because,
                rivals=list(dict.fromkeys(rivals))[:4],
            )
    near: list[Likeness] = [like for like in words() if not even or like.category in even]
    alone = bool(near) and (len(near) == 1 or near[0].cosine >= _NEARER * near[1].cosine)
    if alone and near[0].cosine >= _NEAR and len({word.removeprefix("c_") for word in near[0].words}) >= _SHARED:
        return Decision(
            value=near[0].category,
            by="words",
            confidence=round(min(near[0].cosine * 2, 0.6), 2),
            because=[f"word:{word.removeprefix('c_')}" for word in near[0].words],
            rivals=[like.category for like in near[1:3]],
        )
    rivals = list(dict.fromkeys([*(standing.category for standing in standings[:3]), *counted(cast)]))[:4]
    return Decision(value=UNKNOWN, by="default", confidence=0.0, rivals=rivals)


def _component(category: Decision, standings: Sequence[Standing], cast: Sequence[Vote]) -> Decision:
    """The component of what decided the category: of its weightiest rule, else of its nearest incident."""
    standing = next((s for s in standings if s.category == category.value), None)
    if standing is not None:
        hit = standing.hits[0]
        rivals = [h.rule.component for h in standing.hits[1:] if h.rule.component != hit.rule.component]
        share = hit.rule.weight / sum(h.rule.weight for h in standing.hits)
        because = [f"word:{word}" for word in hit.words]
        return Decision(
            value=hit.rule.component,
            by=f"rule:{hit.rule.id}",
            confidence=round(share, 2),
            because=because,
            rivals=list(dict.fromkeys(rivals))[:3],
        )
    vote = next((v for v in cast if v.category == category.value), None)
    if vote is not None:
        because = [f"incident:{vote.incident}"]
        return Decision(value=vote.component, by="incidents", confidence=round(vote.weight / 2, 2), because=because)
    return Decision(value=UNKNOWN, by="default", confidence=0.0)


def _cause(category: Decision, standings: Sequence[Standing], cast: Sequence[Vote]) -> Decision | None:
    """The cause that the words point at: what the nearest incidents had, where it is of the category; else a rule's."""
    if category.value == UNKNOWN:
        return None
    standing = next((s for s in standings if s.category == category.value), None)
    named = [hit for hit in standing.hits if hit.rule.cause] if standing else []
    rivals = [hit.rule.cause for hit in named if hit.rule.cause]
    vote = cast[0] if cast and cast[0].category == category.value else None
    if vote is not None:
        both = vote.cause in rivals
        return Decision(
            value=vote.cause,
            by="incidents",
            confidence=0.6 if both else 0.4,
            because=[f"incident:{vote.incident}"],
            rivals=[name for name in dict.fromkeys(rivals) if name != vote.cause],
        )
    if named:
        first = named[0]
        return Decision(
            value=rivals[0],
            by=f"rule:{first.rule.id}",
            confidence=0.4,
            because=[f"word:{word}" for word in first.words],
            rivals=[name for name in dict.fromkeys(rivals[1:]) if name != rivals[0]],
        )
    return None


def reclassified(ticket: Ticket, diagnosis: Diagnosis) -> dict[str, Any]:
    """The fields of `ticket` that follow from `diagnosis`; none where that found no cause. What a person set stays, and
    a ticket gets no milder than its sender called it.
    """
    cause = load_causes().get(diagnosis.cause or "")
    if cause is None or diagnosis.verdict is Verdict.HEALTHY:
        return {}
    because = [f"finding:{id}" for id in diagnosis.chain[:3]]
    sure = _SURE[diagnosis.verdict]

    def decided(value: str, before: Decision | None) -> Decision:
        if before is not None and before.by.startswith("person:"):
            return before
        rivals = [before.value] if before is not None and before.value not in (value, UNKNOWN) else []
        return Decision(value=value, by="diagnosis", confidence=sure, because=because, rivals=rivals)

    told = ticket.classification
    severity = drafting.severity(diagnosis)
    if (
        told is not None
        and told.severity.by.startswith(("person:", "label:"))
        and ticket.severity.rank >= severity.rank
    ):
        graded = told.severity
    else:
        graded = decided(severity.value, told.severity if told else None)
    found = Classification(
        category=decided(cause.category if cause.category != "none" else UNKNOWN, told.category if told else None),
        component=decided(cause.component, told.component if told else None),
        severity=graded,
        cause=decided(cause.id, None),
        source_severity=told.source_severity if told else "",
    )
    return {
        "classification": found,
        "category": found.category.value,
        "component": found.component.value,
        "severity": Severity(found.severity.value),
    }
