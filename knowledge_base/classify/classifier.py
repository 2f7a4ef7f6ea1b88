"""Classification of a report: given values, rules, votes of confirmed incidents, words; else unknown.

Every field has what decided it, its confidence, the evidence, and the rivals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whystall.knowledge_base import text_search
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.classify.centroids import Centroids, Similarity
from whystall.knowledge_base.classify.incident_votes import Vote, counted, votes
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.classify.rules import UNKNOWN, RuleScore, judge
from whystall.knowledge_base.classify.severities import severity_of
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Diagnosis, Match, Verdict
from whystall.knowledge_base.ticket_models import Classification, Decision, Ticket
from whystall.knowledge_base.tickets import drafting

_ENOUGH, _LEAD = 2.0, 1.0
"""Minimum weight of the rules for a category (a place, or two hints), and lead over any other."""
# NodeFilesystemAlmostOutOfSpace, GPUXidError
_JOINED = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MAJORITY = 0.5  # share of the votes
_MUCH = 5
"""Terms that a single voting incident must share. Of the tuned questions and 58 titles of public issues, lone votes
with so many were right 6 times of 7, those with fewer 12 of 19.
"""
_NEAR, _NEARER, _SHARED = 0.2, 1.5, 3
"""Minimum cosine of the nearest class, ratio to the second, and shared terms."""
_READ = 4000  # characters read of a text
_SHOWN, _SEARCHED = 3, 8
_SURE = {Verdict.CONFIRMED: 1.0, Verdict.LIKELY: 0.7, Verdict.INCONCLUSIVE: 0.3}


@dataclass(frozen=True)
class Classified:
    """A classification, the past incidents that answer the text, and the tools to run next."""

    classification: Classification
    matches: list[Match]
    checks: list[str]


class Classifier:
    """Classifies with the incidents and the examples in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file
        self.centroids = Centroids(file)

    def classify(self, report: Report, memory: text_search.Memory | None = None) -> Classified:
        """Classify `report`; deterministic. `memory`: of preceding calls, while no card changes."""
        text = read(report)
        matches = text_search.search(self._file, text, _SEARCHED, weak=False, memory=memory)
        cast = votes(matches, self._causes(matches))
        scores = judge(text)
        category = report.given.get("category") or _category(scores, cast, lambda: self.centroids.nearest(text))
        component = report.given.get("component") or _component(category, scores, cast)
        cause = _cause(category, scores, cast)
        classification = Classification(
            category=category,
            component=component,
            severity=self.severity(report),
            cause=cause,
            source_severity=report.source_severity,
        )
        known = load_causes().get(cause.value) if cause else None
        return Classified(classification, matches[:_SHOWN], list(known.examined_by) if known else [])

    def memory(self) -> text_search.Memory:
        """Return a cache to share between successive calls."""
        return text_search.Memory(self._file)

    def severity(self, report: Report) -> Decision:
        given = report.given.get("severity")
        return given or severity_of(report.source_severity, f"{report.title}\n{report.description[:_READ]}")

    def learn(self, ticket: Ticket) -> bool:
        """Learn from `ticket` if a person or a diagnosis decided its category; return whether it did."""
        given = ticket.classification
        if given is None or ticket.origin == "diagnosis" or not given.category.by.startswith(("person:", "diagnosis")):
            return False
        self.centroids.learn(f"{ticket.human.title}\n{ticket.human.description}"[:_READ], ticket.category)
        return True

    def _causes(self, matches: Sequence[Match]) -> Mapping[str, str | None]:
        with self._file.read() as db:
            asked = "SELECT id, cause FROM incidents WHERE id IN (SELECT value FROM json_each(?))"
            return dict(db.execute(asked, [json.dumps([match.incident for match in matches])]).fetchall())


def read(report: Report) -> str:
    """Return the text to classify: title and text, with compound names split into words."""
    title = "\n".join(part for part in (report.labels.get("alertname", ""), report.title) if part)
    apart = _JOINED.sub(" ", title)
    return "\n".join(
        part for part in (title if apart == title else f"{title}\n{apart}", report.description[:_READ]) if part
    )


def _category(scores: Sequence[RuleScore], cast: Sequence[Vote], words: Any) -> Decision:
    best = scores[0] if scores else None
    total = sum(score.weight for score in scores)
    leads = best is not None and (len(scores) == 1 or best.weight >= scores[1].weight + _LEAD)
    if best is not None and best.weight >= _ENOUGH and leads:
        rule = best.hits[0].rule
        because = list(dict.fromkeys(f"word:{word}" for hit in best.hits for word in hit.words))[:6]
        rivals = [score.category for score in scores[1:4]]
        return Decision(
            value=best.category,
            by=f"rule:{rule.id}",
            confidence=round(best.weight / total, 2),
            because=because,
            rivals=rivals,
        )
    # If rules tie, the later stages choose among their categories.
    even = {s.category for s in scores if best is not None and s.weight > best.weight - _LEAD and s.weight >= _ENOUGH}
    sums = {name: weight for name, weight in counted(cast).items() if not even or name in even}
    all_votes = sum(counted(cast).values())
    if sums:
        first = next(iter(sums))
        because = [f"incident:{vote.incident}" for vote in cast if vote.category == first]
        # A single similar incident may be a coincidence, unless it shares many terms or a rule agrees.
        much = max(vote.shared for vote in cast if vote.category == first) >= _MUCH
        seconded = len(because) > 1 or much or any(score.category == first for score in scores)
        if sums[first] / all_votes > _MAJORITY and seconded:
            rivals = [name for name in (*counted(cast), *(s.category for s in scores)) if name != first]
            return Decision(
                value=first,
                by="incidents",
                confidence=round(sums[first] / all_votes * (1 - 0.5 ** len(because)), 2),
                because=because,
                rivals=list(dict.fromkeys(rivals))[:4],
            )
    near: list[Similarity] = [like for like in words() if not even or like.category in even]
    alone = bool(near) and (len(near) == 1 or near[0].cosine >= _NEARER * near[1].cosine)
    if alone and near[0].cosine >= _NEAR and len({word.removeprefix("c_") for word in near[0].words}) >= _SHARED:
        return Decision(
            value=near[0].category,
            by="words",
            confidence=round(min(near[0].cosine * 2, 0.6), 2),
            because=[f"word:{word.removeprefix('c_')}" for word in near[0].words],
            rivals=[like.category for like in near[1:3]],
        )
    rivals = list(dict.fromkeys([*(score.category for score in scores[:3]), *counted(cast)]))[:4]
    return Decision(value=UNKNOWN, by="default", confidence=0.0, rivals=rivals)


def _component(category: Decision, scores: Sequence[RuleScore], cast: Sequence[Vote]) -> Decision:
    """Return the component of the heaviest rule of the category, else of its nearest incident."""
    score = next((s for s in scores if s.category == category.value), None)
    if score is not None:
        hit = score.hits[0]
        rivals = [h.rule.component for h in score.hits[1:] if h.rule.component != hit.rule.component]
        share = hit.rule.weight / sum(h.rule.weight for h in score.hits)
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


def _cause(category: Decision, scores: Sequence[RuleScore], cast: Sequence[Vote]) -> Decision | None:
    """Return the suspected cause: that of the nearest incidents if it is of the category, else a rule's."""
    if category.value == UNKNOWN:
        return None
    score = next((s for s in scores if s.category == category.value), None)
    named = [hit for hit in score.hits if hit.rule.cause] if score else []
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
    """Return the fields of `ticket` that follow from `diagnosis`, none if it found no cause. Values set by a person
    stay, and severity does not fall below the sender's.
    """
    cause = load_causes().get(diagnosis.cause or "")
    if cause is None or diagnosis.verdict.no_fault:
        return {}
    because = [f"finding:{id}" for id in diagnosis.chain[:3]]
    sure = _SURE[diagnosis.verdict]

    def decided(value: str, before: Decision | None) -> Decision:
        if before is not None and before.by.startswith("person:"):
            return before
        rivals = [before.value] if before is not None and before.value not in (value, UNKNOWN) else []
        return Decision(value=value, by="diagnosis", confidence=sure, because=because, rivals=rivals)

    earlier = ticket.classification
    severity = drafting.severity(diagnosis)
    if (
        earlier is not None
        and earlier.severity.by.startswith(("person:", "label:"))
        and ticket.severity.rank >= severity.rank
    ):
        graded = earlier.severity
    else:
        graded = decided(severity.value, earlier.severity if earlier else None)
    category = cause.category if cause.category != "none" else UNKNOWN
    found = Classification(
        category=decided(category, earlier.category if earlier else None),
        component=decided(cause.component, earlier.component if earlier else None),
        severity=graded,
        cause=decided(cause.id, None),
        source_severity=earlier.source_severity if earlier else "",
    )
    return found.fields()
