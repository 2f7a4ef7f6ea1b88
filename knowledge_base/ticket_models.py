"""Data of a ticket; `life` changes it, `ticket_store` stores it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from whystall.knowledge_base.models import Diagnosis, Match, Model
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity

TICKET_VERSION = "2"
LESSON = "ticket-"
"""Prefix of the ids of cards made from resolved tickets."""

State = Literal["open", "acknowledged", "resolved", "closed"]
"""``open``: new; ``acknowledged``: being worked on; ``resolved``: the stall is over; ``closed``: see `ClosedAs`."""
LIVE: tuple[State, ...] = ("open", "acknowledged")
"""States in which a recurrence counts in the ticket instead of opening another."""
ClosedAs = Literal["fixed", "duplicate", "no_fault", "wont_fix", "cannot_reproduce", "stale"]
Origin = Literal["diagnosis", "alert", "work_order", "person"]
LinkKind = Literal["duplicate", "duplicated_by", "related"]
What = Literal[
    "opened",
    "seen_again",
    "acknowledged",
    "resolved",
    "closed",
    "reopened",
    "assigned",
    "escalated",
    "diagnosed",
    "triaged",
    "classified",
    "linked",
    "unlinked",
    "commented",
    "edited",
    "verified",
    "delivered",
]
"""Kinds of history entries. ``delivered``: created in a tracker (`Ticket.remotes`)."""


class Check(Model):
    """A finding before and after a fix, by fingerprint. `after`: None if it was not found again."""

    fingerprint: str
    kind: str
    subject: str
    metric: str
    unit: str
    before: float
    after: float | None
    improved: bool


class Verification(Model):
    """Result of running the same tools again. `solved`: the findings of the cause are gone or at most half; None:
    undecided, for the codes in `missing`.
    """

    at: str
    checks: list[Check]
    solved: bool | None
    missing: list[str] = Field(default_factory=list)


class Decision(Model):
    """One field of a ticket, and what decided it.

    `by`: ``diagnosis``, ``rule:ID``, ``label:NAME`` (given by the sender), ``incidents`` (vote of the nearest confirmed
    ones), ``words`` (nearest class by words), ``model`` (chosen among `rivals`), ``person:WHO``, or ``default``.
    `confidence`: 0 to 1, the share of evidence in favour; 0 for ``default``. `because`: codes of that evidence
    (``word:nccl``, ``incident:ID``, ``finding:F3``). `rivals`: the other candidates, best first.
    """

    value: str
    by: str
    confidence: float = Field(default=1.0, ge=0, le=1)
    because: list[str] = Field(default_factory=list)
    rivals: list[str] = Field(default_factory=list)


class Classification(Model):
    """What a ticket is about. `cause`: catalogue cause that its words suggest, which is no diagnosis; None without one.
    `source_severity`: the sender's own value.
    """

    category: Decision
    component: Decision
    severity: Decision
    cause: Decision | None = None
    source_severity: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of `Ticket` that follow from it."""
        severity = Severity(self.severity.value)
        values = {"category": self.category.value, "component": self.component.value, "severity": severity}
        return {"classification": self, **values}


class Assignment(Model):
    """Who is responsible. `users`: names in the settings, the first is notified first; empty: no one is on call.

    `rule`: what decided: ``person:WHO``, ``rule:ID``, ``receiver:NAME``, ``category:NAME``, ``default``, ``none``.
    `why`: part of the schedule, ``rotation:NAME``, ``override:ID``, ``temporary:ID``, ``fallback``. `level`: escalation
    step, from 0. `at`, `until` (end of the shift): RFC 3339.
    """

    users: list[str] = Field(default_factory=list)
    schedule: str | None = None
    rule: str
    why: str = ""
    level: int = Field(default=0, ge=0)
    at: str
    until: str | None = None


class Comment(Model):
    """A person's comment. `source`: interface it came through (``cli``, ``mcp``, ``web``, ``chat:NAME``,
    ``sink:NAME``); `key`: unique within the ticket, for deduplication.
    """

    by: str
    at: str
    text: str
    source: str = "cli"
    key: str = ""


class Human(Model):
    """Text written by people. Untrusted: never formatted as markup."""

    title: str = ""
    description: str = ""
    comments: list[Comment] = Field(default_factory=list)


class Sentence(Model):
    """A sentence of a model, with the ids of the findings that it cites."""

    text: str
    findings: list[str] = Field(min_length=1)


class Analysis(Model):
    """Generated triage before a diagnosis. `matches`: similar past incidents. `checks`: tools to run next, in order.
    `prose`: a model's text. `at`: RFC 3339.
    """

    at: str
    matches: list[Match] = Field(default_factory=list)
    checks: list[str] = Field(default_factory=list)
    prose: list[Sentence] = Field(default_factory=list)
    model: str = ""
    triage: str = ""  # code of why there is no diagnosis yet: ``queued``, ``no_process``, ``ambiguous`` ...


class Link(Model):
    """Link to another ticket, stored at both ends. ``duplicate``: this ticket counts in `ticket`; ``duplicated_by``:
    the reverse. `why`: codes.
    """

    kind: LinkKind
    ticket: str
    why: list[str] = Field(default_factory=list)
    by: str = ""
    at: str


class Remote(Model):
    """The same ticket in a tracker. `sink`: its name in the settings; `ref`: id in the tracker."""

    sink: str
    ref: str
    url: str = ""


class Ticket(Model):
    """A ticket. `dedup_key` is versioned: ``1:<sha256>`` of a diagnosis's cause and stable subjects, ``2:...`` of the
    stable words of an alert or work order. A fault of a job has one live ticket; `occurrences` counts its reports.

    `revision`: grows with every change. `fault`: `faults.dedup_key` of a `diagnosis` that found one. `labels`: of the
    alert or work order, unchanged; of a stall that the watcher found, its job and host. `ended`: when it was resolved
    or closed (RFC 3339), None while live. `resolution`: what ended it, in a person's words. `card`: the card it was
    added to.
    """

    schema_version: str = TICKET_VERSION
    id: str
    created: str
    updated: str
    revision: int = 1
    origin: Origin = "diagnosis"
    state: State = "open"
    closed_as: ClosedAs | None = None
    ended: str | None = None
    dedup_key: str
    fault: str | None = None
    occurrences: int = 1
    severity: Severity
    category: str
    component: str
    classification: Classification | None = None
    assignment: Assignment | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    human: Human = Field(default_factory=Human)
    analysis: Analysis | None = None
    diagnosis: Diagnosis | None = None
    resolution: str = ""
    card: str | None = None
    links: list[Link] = Field(default_factory=list)
    remotes: list[Remote] = Field(default_factory=list)
    verifications: list[Verification] = Field(default_factory=list)

    def diagnosed(self) -> Diagnosis:
        """Return its diagnosis; raise `ToolError` (bad_argument) if there is none."""
        if self.diagnosis is None:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"ticket {self.id} has no diagnosis",
                f"run `whystall diagnose` on its process, then `whystall tickets attach {self.id} DIAGNOSIS`",
            )
        return self.diagnosis


class Event(Model):
    """An entry of a ticket's history. `detail`: start of a foreign text; ``KIND:TICKET`` of a link; ``AS: REASON`` of a
    closing; id of a diagnosis; code of a triage.
    """

    n: int
    ticket: str
    revision: int
    what: What
    by: str
    at: str
    detail: str = ""


class Line(Model):
    """A ticket in a list. `title`: given by a person, else empty; `target`, `cause`, `verdict`: of its diagnosis, else
    empty. `assignee`: first assigned user, else empty.
    """

    id: str
    state: State
    severity: Severity
    category: str
    component: str
    origin: Origin
    created: str
    updated: str
    revision: int
    occurrences: int
    title: str = ""
    target: str = ""
    cause: str = ""
    verdict: str = ""
    assignee: str = ""
    closed_as: ClosedAs | None = None
