"""What a ticket holds. Plain data; how it changes is in `life`, stored by `ticket_store`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from whystall.knowledge_base.models import Claim, Diagnosis, Match, Model
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Severity

TICKET_VERSION = "2"
LESSON = "ticket-"
"""Ids of cards that were made of resolved tickets begin so."""

State = Literal["open", "acknowledged", "resolved", "closed"]
"""``open``: nobody has said a word; ``acknowledged``: somebody works on it; ``resolved``: the stall is over, as
somebody or its source says; ``closed``: nothing more will happen, and `Ticket.closed_as` says why.
"""
LIVE: tuple[State, ...] = ("open", "acknowledged")
"""States in which the same fault is counted here and does not open another ticket."""
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
"""What a change of a ticket is called in its history. ``delivered``: a tracker has it now (`Ticket.remotes`)."""


class Check(Model):
    """A finding before and after a fix, by fingerprint. `after` is None when it was no longer found."""

    fingerprint: str
    kind: str
    subject: str
    metric: str
    unit: str
    before: float
    after: float | None
    improved: bool


class Verification(Model):
    """The same tools run again. `solved`: the findings of the cause are gone or at most half; None: could
    not tell, and `missing` says by codes why.
    """

    at: str
    checks: list[Check]
    solved: bool | None
    missing: list[str] = Field(default_factory=list)


class Decision(Model):
    """One field of a ticket, and how it got its value.

    `by`: ``diagnosis``, ``rule:ID``, ``label:NAME`` (the sender said so), ``incidents`` (nearest confirmed ones voted),
    ``words`` (nearest class by its words), ``model`` (it chose among `rivals`), ``person:WHO``, or ``default`` when
    nothing decided. `confidence`: 0 to 1, the share that spoke for it; 0 for ``default``. `because`: codes of what
    spoke for it (``word:nccl``, ``incident:ID``, ``finding:F3``). `rivals`: the other candidates, best first.
    """

    value: str
    by: str
    confidence: float = Field(default=1.0, ge=0, le=1)
    because: list[str] = Field(default_factory=list)
    rivals: list[str] = Field(default_factory=list)


class Classification(Model):
    """What a ticket is about. `cause`: a cause of the catalogue that its words point at, which is no diagnosis; None
    where nothing does. `source_severity`: what the sender called it, as it came.
    """

    category: Decision
    component: Decision
    severity: Decision
    cause: Decision | None = None
    source_severity: str = ""


class Assignment(Model):
    """Who has it. `users`: names in the settings, the first one is asked first; none: nobody is on call.

    `rule`: what decided: ``person:WHO``, ``rule:ID``, ``receiver:NAME``, ``category:NAME``, ``default``, ``none``.
    `why`: of the schedule, ``rotation:NAME``, ``override:ID``, ``temporary:ID``, ``fallback``. `level`: step of
    escalation, from 0. `at`, `until` (its shift ends): RFC 3339.
    """

    users: list[str] = Field(default_factory=list)
    schedule: str | None = None
    rule: str
    why: str = ""
    level: int = Field(default=0, ge=0)
    at: str
    until: str | None = None


class Comment(Model):
    """What somebody said of it. `source`: the door it came through (``cli``, ``mcp``, ``chat:NAME``, ``sink:NAME``);
    `key` is unique within the ticket, so that what is told twice stands once.
    """

    by: str
    at: str
    text: str
    source: str = "cli"
    key: str = ""


class Human(Model):
    """Text that people wrote, and nothing else does. Data of strangers: never formatted as markup."""

    title: str = ""
    description: str = ""
    comments: list[Comment] = Field(default_factory=list)


class Analysis(Model):
    """What was made out before anybody looked; generated. `matches`: similar past incidents. `checks`: tools that would
    tell more, in order. `prose`: what a model wrote of it, each sentence with what it cites. `at`: RFC 3339.
    """

    at: str
    matches: list[Match] = Field(default_factory=list)
    checks: list[str] = Field(default_factory=list)
    prose: list[Claim] = Field(default_factory=list)
    model: str = ""
    triage: str = ""  # code of why no diagnosis was made, or none yet: ``queued``, ``no_process``, ``ambiguous`` ...


class Link(Model):
    """To another ticket; both ends hold one. ``duplicate``: this one is of the fault that `ticket` is about and is
    counted there, ``duplicated_by``: the other end of it. `why`: codes.
    """

    kind: LinkKind
    ticket: str
    why: list[str] = Field(default_factory=list)
    by: str = ""
    at: str


class Remote(Model):
    """The same ticket in a tracker. `sink`: its name in the settings, `ref` what the tracker calls it."""

    sink: str
    ref: str
    url: str = ""


class Ticket(Model):
    """A ticket. `dedup_key` is versioned: ``1:<sha256>`` of a diagnosis's cause and stable subjects, ``2:...`` of an
    alert's or work order's stable words: the same fault of the same job gets one live ticket, and `occurrences` counts.

    `revision` grows with every change. `fault`: `faults.dedup_key` of `diagnosis`, where that found one. `labels`: of
    the alert or work order it came from, as they came. `ended`: when it was resolved or closed (RFC 3339), None while
    it is live. `resolution`: what ended it, as somebody says. `card`: that the resolved ticket became, or was added to.
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
        """Its diagnosis; `ToolError` (bad_argument) where nobody has looked yet."""
        if self.diagnosis is None:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"ticket {self.id} has no diagnosis",
                f"run `whystall diagnose` on its process, then `whystall tickets attach {self.id} DIAGNOSIS`",
            )
        return self.diagnosis


class Event(Model):
    """One change of a ticket, as its history tells it. `detail`: short: of a stranger's text its start; a link as
    ``KIND:TICKET``; what it was closed as, with the reason as ``AS: REASON``; id of a diagnosis; code of a triage.
    """

    n: int
    ticket: str
    revision: int
    what: What
    by: str
    at: str
    detail: str = ""


class Line(Model):
    """What a list says of a ticket. `title`: of a person's, else empty; `target`, `cause`, `verdict`: of its diagnosis,
    empty without one. `assignee`: who is asked first, empty for nobody.
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
