"""What a tracker implements. Each is one module, listed in `registry.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whystall.agent_server.integrations.trackers.issue import (
    Edit,
    Issue,
    IssueState,
    Page,
    Phase,
    SyncState,
    TrackerEvent,
)
from whystall.agent_server.integrations.trackers.text import TextFormat
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.settings.sections.trackers import TrackerSettings
from whystall.knowledge_base.ticket_models import Event, Ticket


@dataclass(frozen=True)
class WebhookRequest:
    """A webhook as received. `headers`: names in lower case; `now`: seconds since the epoch."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    now: float

    @property
    def digest(self) -> str:
        """A deduplication key for senders that give no id."""
        return hashlib.sha256(self.body).hexdigest()


class Sink(Protocol):
    """Anything that tickets are sent to, and that may send webhooks back."""

    name: str

    def verify(self, webhook: WebhookRequest) -> None:
        """Raise `Refused` unless the sender knows our secret; `ToolError` (bad_argument) if that cannot be read."""

    def parse(self, webhook: WebhookRequest, body: dict[str, Any]) -> TrackerEvent | None:
        """Return the event in the JSON `body`; None if it concerns no ticket. Raises `Refused` (400)."""


@dataclass(frozen=True)
class Notification:
    """The ticket to report to a notifier, with what it received before. `now`: seconds since the epoch."""

    ticket: Ticket
    title: str
    text: str
    events: Sequence[Event]
    sent: SyncState
    now: float


class Notifier(Sink, Protocol):
    """A service that receives notifications and deduplicates them itself, so that nothing is searched there."""

    def requests(self, notification: Notification) -> list[Request]:
        """Return the requests to send, all idempotent; empty: nothing to report."""

    def remote_ref(self, nonce: str) -> str:
        """Return the id of a ticket there."""

    def read_secrets(self) -> None:
        """Raise `ToolError` (bad_argument) if a configured secret cannot be read."""


class Tracker(Sink, Protocol):
    """A tracker of issues. Methods build requests and parse responses; none sends, stores or waits.

    Capabilities: `index_lags`: a listing may miss recent issues, so that a lost creation is searched for twice;
    `acknowledged_label`: label that marks acknowledged issues, None if the workflow has a state for it; a method that
    returns None where the tracker needs no such request (`user_lookup`, `list_transitions`).
    """

    title_limit: int
    comment_limit: int
    format: TextFormat
    index_lags: bool

    @property
    def settings(self) -> TrackerSettings:
        """The settings of the sink."""

    @property
    def acknowledged_label(self) -> str | None:
        """See above."""

    def create(self, issue: Issue, text: str, left_out: set[str]) -> Request:
        """Create `issue` with the description `text`, without the optional fields `left_out`."""

    def created(self, response: Response) -> IssueState:
        """Parse the response to `create`. Raises `Undelivered`, as all parsers do."""

    def read(self, ref: str) -> Request:
        """Read an issue."""

    def parse_issue(self, response: Response) -> IssueState:
        """Parse the response to `read`."""

    def edit(self, ref: str, edit: Edit, state: IssueState, left_out: set[str]) -> list[Request]:
        """Change an issue that is in `state`; labels of others are kept."""

    def change_time(self, response: Response) -> str:
        """Return the tracker's time in the response to `edit`; empty if it gives none."""

    def rejected_field(self, response: Response) -> str | None:
        """Return the optional field that a response 400 or 422 rejects; None: something else is wrong."""

    def comment(self, ref: str, text: str) -> Request:
        """Comment on an issue."""

    def list_comments(self, ref: str, page: str) -> Request:
        """List comments on an issue."""

    def parse_comments(self, response: Response, page: str) -> Page:
        """Parse the response to `list_comments`."""

    def list_newest(self, page: str) -> Request:
        """List issues, the newest first."""

    def list_changed(self, since: str, page: str) -> Request:
        """List issues changed since the time `since` (empty: all), the oldest change first."""

    def parse_issues(self, response: Response, page: str) -> Page:
        """Parse the response to `list_newest` or `list_changed`."""

    def user_lookup(self, name: str) -> Request | None:
        """Look up the id by which issues name the user `name`; None: they use the name itself."""

    def parse_user_id(self, response: Response) -> str:
        """Parse the response to `user_lookup`; empty: no such user."""

    def list_transitions(self, ref: str) -> Request | None:
        """List the workflow's transitions of an issue; None: `edit` changes the state."""

    def transition(self, ref: str, phase: Phase, response: Response) -> Request | None:
        """Return the transition to `phase` among those that `list_transitions` returned; None: there is none."""

    def check(self) -> Request:
        """Check the address and the credentials; changes nothing."""
