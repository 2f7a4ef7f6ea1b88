"""Classification of a report: given values, else what rules, similar incidents and words together make probable.

Every field has what decided it, its confidence, the evidence, and the rivals. The confidence of a category is its
calibrated probability; below `Calibration.answer_from` it is `UNKNOWN`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whystall.knowledge_base import text_search
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.classify.centroids import Centroids, Similarity
from whystall.knowledge_base.classify.incident_votes import Source, Vote, counted, votes
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.classify.rules import UNKNOWN, RuleScore, judge
from whystall.knowledge_base.classify.severities import severity_of
from whystall.knowledge_base.classify.weighing import calibration, strengths, weigh
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Diagnosis, Incident, Match, Verdict
from whystall.knowledge_base.ticket_models import Classification, Decision, Ticket
from whystall.knowledge_base.tickets import drafting

# NodeFilesystemAlmostOutOfSpace, GPUXidError
_JOINED = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_READ = 4000  # characters read of a text
_SHOWN, _SEARCHED = 3, 8
_BECAUSE, _RIVALS = 6, 4
_POSSIBLE = 0.05  # least probability of a rival
_XID_LABEL = re.compile(r"xid(?:_code|_error|_errors|_number)?", re.I)
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
        sources = self._sources(matches)
        cast = votes(matches, sources)
        scores = judge(text)
        given = report.given.get("category")
        category = given or _category(scores, cast, self.centroids.nearest(text))
        component = report.given.get("component") or _component(category, scores, cast)
        nearest = next((sources[m.incident] for m in matches if m.incident in sources), None)
        cause = report.given.get("cause") or _cause(category, scores, cast, nearest)
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
        """Return the given severity, else what the sender's value, its Xid label and the text tell."""
        given = report.given.get("severity")
        xids = [f"xid {value}" for name, value in report.labels.items() if _XID_LABEL.fullmatch(name)]
        text = "\n".join([report.title, *xids, report.description[:_READ]])
        return given or severity_of(report.source_severity, text)

    def learn(self, ticket: Ticket) -> bool:
        """Learn from `ticket` if a person or a diagnosis decided its category; return whether it did."""
        given = ticket.classification
        if given is None or ticket.origin == "diagnosis" or not given.category.by.startswith(("person:", "diagnosis")):
            return False
        self.centroids.learn(f"{ticket.human.title}\n{ticket.human.description}"[:_READ], ticket.category)
        return True

    def _sources(self, matches: Sequence[Match]) -> dict[str, Source]:
        wanted = json.dumps([match.incident for match in matches if match.state == "reviewed"])
        with self._file.read() as db:
            asked = "SELECT body FROM incidents WHERE id IN (SELECT value FROM json_each(?))"
            cards = [self._file.record(Incident, body) for (body,) in db.execute(asked, [wanted]).fetchall()]
        return {card.id: Source(card.cause, card.components) for card in cards}


def read(report: Report) -> str:
    """Return the text to classify: title and text, with compound names split into words."""
    title = "\n".join(part for part in (report.labels.get("alertname", ""), report.title) if part)
    apart = _JOINED.sub(" ", title)
    return "\n".join(
        part for part in (title if apart == title else f"{title}\n{apart}", report.description[:_READ]) if part
    )


def _category(scores: Sequence[RuleScore], cast: Sequence[Vote], near: Sequence[Similarity]) -> Decision:
    standings = weigh(strengths(scores, cast, near))
    best = standings[0]
    others = [one.category for one in standings if one.category != UNKNOWN]
    if best.category == UNKNOWN or best.probability < calibration().answer_from:
        hinted = {*(score.category for score in scores), *counted(cast), *(like.category for like in near[:1])}
        rivals = [name for name in others if name in hinted][:_RIVALS]
        return Decision(value=UNKNOWN, by="default", confidence=0.0, rivals=rivals)
    score = next((s for s in scores if s.category == best.category), None)
    like = next((one for one in near if one.category == best.category), None)
    by_word = [word for hit in score.hits for word in hit.words] if score is not None else []
    if not by_word and like is not None:
        by_word = [word.removeprefix("c_") for word in like.words]
    because = list(dict.fromkeys(f"word:{word}" for word in by_word))[:_BECAUSE]
    because += [f"incident:{vote.incident}" for vote in cast if vote.category == best.category]
    by = {"votes": "incidents", "words": "words", "rules": f"rule:{score.hits[0].rule.id}" if score else "words"}
    possible = {one.category for one in standings[1:] if one.probability >= _POSSIBLE}
    return Decision(
        value=best.category,
        by=by[best.kind],
        confidence=round(best.probability, 2),
        because=because,
        rivals=[name for name in others[1:] if name in possible][:_RIVALS],
    )


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


def _cause(
    category: Decision, scores: Sequence[RuleScore], cast: Sequence[Vote], nearest: Source | None
) -> Decision | None:
    """Return the suspected cause: that of the nearest incident if it is of the category, else a rule's.

    None if the nearest incident has no catalogued cause: what is like it needs no other incident's.
    """
    if category.value == UNKNOWN or (nearest is not None and nearest.cause is None):
        return None
    score = next((s for s in scores if s.category == category.value), None)
    named = [hit for hit in score.hits if hit.rule.cause] if score else []
    rivals = [hit.rule.cause for hit in named if hit.rule.cause]
    vote = cast[0] if cast and cast[0].rank == 1 and cast[0].category == category.value else None
    if vote is not None and vote.cause is not None:
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
