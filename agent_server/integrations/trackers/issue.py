"""What passes between the engine and the trackers: what an issue shall be, what it is, and what came from there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.outbound.client import Undelivered
from whystall.agent_server.outbound.request import Response
from whystall.knowledge_base.tickets.models import ClosedAs
from whystall.knowledge_base.times import moment
from whystall.tools.contract.findings import Severity

Phase = Literal["open", "acknowledged", "over"]
"""States of a ticket as trackers know them: resolved and closed are one, and `closed_as` tells them apart."""


@dataclass(frozen=True)
class Issue:
    """What an issue shall be. `generated`: Markdown of our own making, the strangers' text in it inert; `digest`: of
    what it says but for when it was changed. `marker`: what it is found by, and nobody can guess. `assignees`: what
    people are called in this tracker.
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
class Seen:
    """An issue as the tracker shows it. `assignees`: as its API calls them. `created`, `changed`: as it says. `by`: who
    ended it, where that is told.
    """

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
    """What of an issue is to be changed; None: nothing of that."""

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
        """Whether nothing is to be changed."""
        return replace(self, closed_as=None) == Edit()


@dataclass(frozen=True)
class Said:
    """A comment in the tracker."""

    id: str
    by: str
    text: str
    at: str


@dataclass(frozen=True)
class Page:
    """Some of what a tracker lists, and what to ask with for the rest; None: that is all."""

    issues: list[Seen] = field(default_factory=list)
    comments: list[Said] = field(default_factory=list)
    more: str | None = None


class Memory(BaseModel):
    """What a sink keeps of a ticket: what it was last told, so that only what changes is sent, and what people changed
    there is told from what we did. `nonce`: unguessable, made before anything is sent. `generated`: hash of our part of
    the text; `hands_off`: people took the marks of our part away. `events`: number of the last one told, `comments`:
    how many of people's; `saying`: number of the one whose comment may be there already, with so many of
    people's. `stamp`: time of the tracker when the state was last as we wanted it; `heard`: of the last news of the
    state. `looks`: how often it was searched in vain for what may have been created. `left_out`: fields that it does
    not take.
    """

    model_config = ConfigDict(extra="ignore")

    nonce: str = ""
    title: str = ""
    generated: str = ""
    hands_off: bool = False
    labels: list[str] = Field(default_factory=list)
    assignees: list[str] = Field(default_factory=list)
    severity: str = ""
    phase: Phase | None = None
    events: int = 0
    comments: int = 0
    saying: int | None = None
    saying_comments: int = 0
    stamp: str = ""
    heard: str = ""
    looks: int = 0
    left_out: list[str] = Field(default_factory=list)


class Heard(BaseModel):
    """One piece of news of a tracker. `key`: the same when it is told again. `remote`: which issue; `ticket`: where the
    sender knows ours. `phase`: it is so now. `text`: of a comment, or why.
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


_LARGEST = 10**18  # of a number that identifies something
LIST_LIMIT = 64 << 20
"""Bytes of a page of a listing: fifty issues, of which each may be a megabyte at GitLab."""


def malformed(what: str, response: Response) -> Undelivered:
    """An answer of status 2xx that is not what the vendor documents: it may have done what was asked."""
    message = f"{what}: the answer is not what the API documents"
    return Undelivered("bad_answer", message, unknown=True, status=response.status)


def next_page(page: str, found: int, per_page: int) -> str | None:
    """The number of the page after `page` (empty: the first) with `found` entries. We count ourselves: addresses in an
    answer could lead anywhere.
    """
    return str(int(page or "1") + 1) if found >= per_page else None


def table(value: Any) -> dict[str, Any]:
    """`value` where it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[Any]:
    """`value` where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def rows(value: Any) -> list[dict[str, Any]]:
    """The objects in `value`, where it is a list."""
    return [row for row in entries(value) if isinstance(row, dict)]


def string(value: Any, limit: int = 2000) -> str:
    """`value` where it is text or a whole number, as text of at most `limit` characters; else empty. Half of a pair of
    surrogates, which JSON can hold and nothing can store, becomes a question mark.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value)[:limit] if isinstance(value, str) or abs(value) < _LARGEST else ""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def point(text: str) -> datetime | None:
    """The time that a tracker tells; Jira writes ``+0000``, and webhooks of older GitLabs `` UTC``."""
    text = text.replace(" UTC", "Z")
    zoned = len(text) > 5 and text[-5] in "+-" and text[-4:].isdigit()
    return moment(f"{text[:-2]}:{text[-2:]}" if zoned else text)
