"""The data exchanged with trackers: the issue as it should be, as it is, and events received from there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.knowledge_base.ticket_models import ClosedAs
from whystall.tools.contract.findings import Severity

Phase = Literal["open", "acknowledged", "over"]
"""State of a ticket in trackers: resolved and closed are both ``over``, distinguished by `closed_as`."""

LIST_LIMIT = 64 << 20
"""Bytes of one page of a listing: fifty issues, of which each may be a megabyte at GitLab."""


@dataclass(frozen=True)
class Issue:
    """An issue as it should be.

    `generated`: our Markdown, with all foreign text in it inert; `digest`: a hash of its content without the time of
    the last change. `marker`: unguessable, the issue is found by it. `assignees`: names of users in this tracker.
    """

    title: str
    generated: str
    digest: str
    marker: str
    labels: tuple[str, ...]
    assignees: tuple[str, ...]
    severity: Severity
    phase: Phase
    closed_as: ClosedAs | None = None


@dataclass(frozen=True)
class IssueState:
    """An issue as the tracker returns it. `created`, `changed`: by its clock; `by`: who closed it, if known."""

    ref: str
    url: str
    title: str
    text: str
    phase: Phase
    labels: tuple[str, ...] = ()
    assignees: tuple[str, ...] = ()
    created: str = ""
    changed: str = ""
    closed_as: ClosedAs | None = None
    by: str = ""


@dataclass(frozen=True)
class Edit:
    """The fields of an issue to change; None: unchanged."""

    title: str | None = None
    text: str | None = None
    add_labels: tuple[str, ...] = ()
    remove_labels: tuple[str, ...] = ()
    assignees: tuple[str, ...] | None = None
    severity: Severity | None = None
    phase: Phase | None = None
    closed_as: ClosedAs | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to change."""
        return replace(self, closed_as=None) == Edit()


@dataclass(frozen=True)
class IssueComment:
    """A comment in the tracker."""

    id: str
    by: str
    text: str
    at: str


@dataclass(frozen=True)
class Page:
    """One page of a listing. `more`: token of the next page; None: this is the last."""

    issues: list[IssueState] = field(default_factory=list)
    comments: list[IssueComment] = field(default_factory=list)
    more: str | None = None


class SyncState(BaseModel):
    """What a sink received of a ticket so far, so that only differences are sent and changes by people are kept.

    Stored as JSON with the delivery: the field names are the keys.
    """

    model_config = ConfigDict(extra="ignore")

    nonce: str = ""  # unguessable; stored before anything is sent
    title: str = ""
    generated: str = ""  # digest of the generated text
    hands_off: bool = False  # people removed the marks around the generated text: leave the text alone
    labels: list[str] = Field(default_factory=list)
    assignees: list[str] = Field(default_factory=list)
    severity: str = ""
    phase: Phase | None = None
    events: int = 0  # number of the last event sent
    comments: int = 0  # count of ticket comments sent
    saying: int | None = None  # number of a comment that may not have arrived ...
    saying_comments: int = 0  # ... and the count of ticket comments it includes
    stamp: str = ""  # tracker's time at which the state was last as wanted
    heard: str = ""  # tracker's time of the last state change received
    looks: int = 0  # unsuccessful searches for an issue whose creation may have been lost
    left_out: list[str] = Field(default_factory=list)  # optional fields that the tracker rejects


class TrackerEvent(BaseModel):
    """A change made in a tracker. `key`: deduplication key. `remote`: the issue, or `ticket`: ours, if the sender knows
    it. `phase`: the state now. `text`: of a comment, or the reason of a state change.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    remote: str = ""
    ticket: str = ""
    by: str = ""
    phase: Phase | None = None
    closed_as: ClosedAs | None = None
    changed: str = ""
    comment: str = ""
    text: str = ""


def state_event(key: str, issue: IssueState, by: str) -> TrackerEvent | None:
    """Return the event that `issue` changed its state; None without an id."""
    if not issue.ref or not key:
        return None
    return TrackerEvent(
        key=key[:200], remote=issue.ref, by=by, phase=issue.phase, closed_as=issue.closed_as, changed=issue.changed
    )


def comment_event(key: str, issue: IssueState, by: str, id: str, text: str) -> TrackerEvent | None:
    """Return the event of a comment on `issue`; None without an id."""
    if not issue.ref or not id or not key:
        return None
    return TrackerEvent(key=key[:200], remote=issue.ref, by=by, comment=id, text=text)
