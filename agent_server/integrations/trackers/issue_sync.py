"""Synchronises one issue with its ticket, step by step; the result of each step is stored before the next begins.

A creation without a response is searched for before another is sent. All other requests are idempotent except for
comments, which carry a mark and are searched for as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from whystall.agent_server.integrations.trackers.desired import comment_of, issue_of, note_of
from whystall.agent_server.integrations.trackers.issue import Edit, Issue, IssueState, SyncState
from whystall.agent_server.integrations.trackers.json_values import tracker_time
from whystall.agent_server.integrations.trackers.text import own_comment
from whystall.agent_server.integrations.trackers.tracker import Tracker
from whystall.agent_server.journal.deliveries import Delivery
from whystall.agent_server.outbound.client import Undelivered, refusal
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import Remote, Ticket
from whystall.knowledge_base.tickets.ticket_store import TicketStore
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.settings.sections.oncall import Person

Send = Callable[..., Awaitable[Response]]
PAGES = 20
"""Pages of a listing that are searched for an issue or a comment."""
_CLOCK_MARGIN = timedelta(days=1)  # our clock may have jumped meanwhile
_SEARCHES = 2  # before an issue is created again, if the tracker's index lags
_EVENTS = 1000


class LeaseLost(Exception):
    """Another process has taken the delivery: send nothing more."""


class RetryLater(Exception):
    """Continue at `until` (seconds since the epoch); not an error."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until


class IssueSync:
    """One delivery of a ticket to a tracker of issues, leased by `owner`."""

    def __init__(
        self,
        kb: Stores,
        tracker: Tracker,
        users: Mapping[str, Person],
        lang: Lang,
        send: Send,
        delivery: Delivery,
        owner: str,
        clock: Callable[[], float],
        user_ids: dict[str, str],
    ) -> None:
        """`user_ids`: a cache of ids of users in this tracker, by name."""
        self._kb = kb
        self._tracker = tracker
        self._users = users
        self._lang: Lang = lang
        self._send = send
        self._delivery = delivery
        self._owner = owner
        self._clock = clock
        self._key = (delivery.sink, delivery.ticket, owner)
        self._sent = SyncState.model_validate(delivery.memory)
        self._user_ids = user_ids

    async def run(self) -> None:
        """Bring the issue up to date. Raises `Undelivered`, `RetryLater`, `LeaseLost`, `ToolError`."""
        ticket = self._kb.tickets.get(self._delivery.ticket)
        if not self._delivery.remote:
            if self._delivery.underway is not None:
                ticket = await self._find_created(ticket, self._delivery.underway)
            if not self._delivery.remote:
                ticket = await self._create(ticket)
        if not self._sent.nonce:  # the issue existed before our first delivery
            self._store(nonce=secrets.token_hex(8))
        await self._update(ticket)
        await self._comment(ticket)
        self._require_lease(self._kb.deliveries.delivered(*self._key, ticket.revision, {}))

    # --- creation -------------------------------------------------------------------------------------------------

    async def _create(self, ticket: Ticket) -> Ticket:
        self._set(nonce=self._sent.nonce or secrets.token_hex(8))
        issue = await self._issue(ticket)
        while True:
            request = creation(self._tracker, issue, note_of(ticket, self._lang), set(self._sent.left_out))
            self._require_lease(self._kb.deliveries.begin(*self._key, self._clock(), self._sent.model_dump()))
            try:
                response = await self._send(request, allowed=(400, 422))
            except Undelivered as error:
                if not error.unknown:
                    self._kb.deliveries.not_created(*self._key)
                raise
            if response.status < 300:
                break
            self._kb.deliveries.not_created(*self._key)
            self._leave_out(request, response)
        return self._store_created(ticket, self._tracker.created(response), issue, "sink.created")

    async def _find_created(self, ticket: Ticket, since: float) -> Ticket:
        """Search for the issue whose creation began at `since` and had no response."""
        settle, now = self._tracker.settings.settle, self._clock()
        if now < since:  # the clock was set back: the time elapsed is unknown
            self._require_lease(self._kb.deliveries.begin(*self._key, now, {}))
            raise RetryLater(now + settle)
        if now < since + settle:
            raise RetryLater(since + settle)
        issue = await self._issue(ticket)
        state = await self._search(issue.marker, now - since)
        if state is not None:
            return self._store_created(ticket, state, issue, "sink.found")
        searches = self._sent.looks + 1
        if self._tracker.index_lags and searches < _SEARCHES:
            self._store(looks=searches)
            raise RetryLater(now + settle)
        self._store(looks=0)
        self._require_lease(self._kb.deliveries.not_created(*self._key))
        return ticket

    async def _search(self, marker: str, elapsed: float) -> IssueState | None:
        """Return the oldest issue with `marker` created within `elapsed` seconds, by the tracker's clock."""
        found, page, horizon = None, "", None
        for _ in range(PAGES):
            response = await self._send(self._tracker.list_newest(page))
            listed = self._tracker.parse_issues(response, page)
            found = next((i for i in reversed(listed.issues) if self._tracker.format.holds(i.text, marker)), found)
            horizon = horizon or _before(response, elapsed)
            last = tracker_time(listed.issues[-1].created) if listed.issues else None
            if listed.more is None or (last is not None and horizon is not None and last < horizon):
                return found
            page = listed.more
        if found is None:
            where = f"it is not in the {PAGES} newest pages; search for it"
            raise Undelivered("unclear", f"it is unknown whether the issue was created: {where}")
        return found

    def _store_created(self, ticket: Ticket, state: IssueState, issue: Issue, what: str) -> Ticket:
        """Store that the issue exists, and what it shows."""
        name = self._tracker.name
        with self._kb.transaction():
            remote = Remote(sink=name, ref=clean(state.ref, 200), url=clean(state.url, 2000))
            after = store_remote(self._kb.tickets, ticket, remote)
            acknowledged = issue.phase == "acknowledged" and self._tracker.acknowledged_label is not None
            fields: dict[str, Any] = {
                **_shown(issue),
                "generated": self._issue_of(after).digest if after is not ticket else issue.digest,
                "phase": "acknowledged" if acknowledged else "open",
                "events": last_event(self._kb.tickets, ticket.id),
                "comments": 0,
                "stamp": state.changed,
            }
            if what == "sink.found":  # created from an earlier revision: everything is compared again
                fields |= {"generated": "", "title": state.title, "labels": list(state.labels), "phase": state.phase}
                fields["assignees"] = list(state.assignees)
            self._set(**fields)
            created = self._kb.deliveries.created(*self._key, remote.ref, remote.url, self._sent.model_dump())
            self._require_lease(created)
            self._audit(what, {"ref": remote.ref})
        self._delivery = self._delivery.model_copy(update={"remote": remote.ref, "underway": None})
        return after

    # --- updates --------------------------------------------------------------------------------------------------

    async def _update(self, ticket: Ticket) -> None:
        issue = await self._issue(ticket)
        sent, ref, tracker = self._sent, self._delivery.remote, self._tracker
        if not _differs(issue, sent):
            return
        state = tracker.parse_issue(await self._send(tracker.read(ref)))
        merged = None
        if issue.digest != sent.generated and not sent.hands_off:
            merged = tracker.format.merged(state.text, issue.generated, issue.marker, note_of(ticket, self._lang))
        fields = _shown(issue)
        fields["hands_off"] = sent.hands_off or (merged is None and issue.digest != sent.generated)
        edit = changes(issue, sent, state, merged)
        if state.phase == issue.phase:  # else people changed it, and the event has not arrived yet
            fields["stamp"] = state.changed
        while True:
            for request in tracker.edit(ref, edit, state, set(self._sent.left_out)):
                response = await self._send(request, allowed=(400, 422))
                if response.status >= 300:
                    self._leave_out(request, response)
                    break
                if edit.phase is not None:
                    fields["stamp"] = tracker.change_time(response) or sent.stamp
            else:
                break
        transitions = tracker.list_transitions(ref)
        if transitions is not None and edit.phase is not None:
            fields["phase"] = await self._transition(transitions, issue, state)
            fields["stamp"] = tracker.parse_issue(await self._send(tracker.read(ref))).changed
        with self._kb.transaction():
            self._store(**fields)
            if not edit.empty:
                self._audit("sink.updated", {"ref": ref, "changed": _changed_fields(edit)})

    async def _transition(self, transitions: Request, issue: Issue, state: IssueState) -> str:
        """Move the issue to its phase by the tracker's workflow. Return the phase it then has."""
        ref = self._delivery.remote
        request = self._tracker.transition(ref, issue.phase, await self._send(transitions))
        if request is None and issue.phase == "acknowledged":
            return state.phase  # a workflow need not have such a state
        if request is None:
            target = "done" if issue.phase == "over" else "open"
            raise Undelivered("rejected", f"{ref} has no transition to {target}: name it in the settings")
        await self._send(request)
        return issue.phase

    async def _comment(self, ticket: Ticket) -> None:
        """Report what happened since the last comment."""
        if self._sent.saying is not None:
            number = self._sent.saying
            arrived = await self._has_comment(number)
            self._store(**({"events": number, "comments": self._sent.saying_comments} if arrived else {}), saying=None)
        sent, tracker = self._sent, self._tracker
        events = self._kb.tickets.events(ticket.id, after=sent.events, limit=_EVENTS)
        events = [event for event in events if event.revision <= ticket.revision]
        comments = ticket.human.comments[sent.comments :]
        if not events and not comments:
            return
        number = events[-1].n if events else sent.events
        progress = {"events": number, "comments": len(ticket.human.comments), "saying": None}
        text = comment_of(ticket, events, comments, tracker.name, self._lang) if tracker.settings.comments else None
        if text is None:
            self._store(**progress)
            return
        note = note_of(ticket, self._lang)
        comment = tracker.format.comment(text, sent.nonce, number, tracker.comment_limit, note)
        self._store(saying=number, saying_comments=len(ticket.human.comments))
        await self._send(tracker.comment(self._delivery.remote, comment))
        with self._kb.transaction():
            self._store(**progress)
            self._audit("sink.commented", {"ref": self._delivery.remote})

    async def _has_comment(self, number: int) -> bool:
        """Return whether our comment `number` exists."""
        page = ""
        for _ in range(PAGES):
            response = await self._send(self._tracker.list_comments(self._delivery.remote, page))
            listed = self._tracker.parse_comments(response, page)
            if any(own_comment(comment.text) == (self._sent.nonce, number) for comment in listed.comments):
                return True
            if listed.more is None:
                return False
            page = listed.more
        return False

    # --- helpers --------------------------------------------------------------------------------------------------

    async def _issue(self, ticket: Ticket) -> Issue:
        """Return the issue with the ids of its assignees; users unknown to the tracker are left out."""
        issue = self._issue_of(ticket)
        ids = [await self._user_id(name) for name in issue.assignees]
        return replace(issue, assignees=tuple(id for id in ids if id))

    def _issue_of(self, ticket: Ticket) -> Issue:
        return issue_of(ticket, self._tracker, self._users, self._lang, self._sent.nonce)

    async def _user_id(self, name: str) -> str:
        if name in self._user_ids:
            return self._user_ids[name]
        lookup = self._tracker.user_lookup(name)
        if lookup is None:
            return name
        id = self._tracker.parse_user_id(await self._send(lookup))
        if id:
            self._user_ids[name] = id
        return id

    def _leave_out(self, request: Request, response: Response) -> None:
        """Leave out the optional field that the tracker rejected; raise `Undelivered` if something else is wrong."""
        field = self._tracker.rejected_field(response)
        if field is None or field in self._sent.left_out:
            raise refusal(request, response)
        self._store(left_out=[*self._sent.left_out, field])

    def _set(self, **fields: Any) -> None:
        self._sent = self._sent.model_copy(update=fields)

    def _store(self, **fields: Any) -> None:
        self._set(**fields)
        self._require_lease(self._kb.deliveries.save_memory(*self._key, fields))

    def _audit(self, what: str, detail: dict[str, Any]) -> None:
        self._kb.audit.put(f"sink:{self._tracker.name}", what, f"ticket:{self._delivery.ticket}", detail=detail)

    @staticmethod
    def _require_lease(leased: bool) -> None:
        if not leased:
            raise LeaseLost


def creation(tracker: Tracker, issue: Issue, note: str, left_out: set[str]) -> Request:
    """Return the request that creates `issue`; `note` replaces what is cut from a text that is too long."""
    text = tracker.format.part(issue.generated, issue.marker, tracker.format.limit, note)
    return tracker.create(issue, text, left_out)


def store_remote(tickets: TicketStore, ticket: Ticket, remote: Remote) -> Ticket:
    """Add `remote` to `ticket`. Return the new revision; `ticket` itself if others have changed it meanwhile, so that
    their changes are still sent.
    """
    others = [r for r in tickets.get(ticket.id).remotes if r.sink != remote.sink]
    source = f"sink:{remote.sink}"
    after = tickets.change(ticket.id, "delivered", source, detail=remote.ref, remotes=[*others, remote])
    return after if after.revision == ticket.revision + 1 else ticket


def last_event(tickets: TicketStore, ticket: str) -> int:
    """Return the number of the last event of `ticket`."""
    return max((event.n for event in tickets.events(ticket, limit=1)), default=0)


def changes(issue: Issue, sent: SyncState, state: IssueState, merged: str | None) -> Edit:
    """Return what changed on our side; what people changed in the tracker stays."""
    new = [label for label in issue.labels if label not in sent.labels]
    old = [label for label in sent.labels if label not in issue.labels]
    return Edit(
        title=issue.title if issue.title != sent.title and state.title in (sent.title, "") else None,
        text=merged if merged != state.text else None,
        add_labels=tuple(label for label in new if label not in state.labels),
        remove_labels=tuple(label for label in old if label in state.labels),
        assignees=_assignees(issue, sent, state),
        severity=issue.severity if issue.severity.value != sent.severity else None,
        phase=issue.phase if issue.phase != sent.phase and state.phase != issue.phase else None,
        closed_as=issue.closed_as,
    )


def _shown(issue: Issue) -> dict[str, Any]:
    """Return the fields of `SyncState` that describe `issue`."""
    return {
        "title": issue.title,
        "generated": issue.digest,
        "labels": list(issue.labels),
        "assignees": list(issue.assignees),
        "severity": issue.severity.value,
        "phase": issue.phase,
    }


def _differs(issue: Issue, sent: SyncState) -> bool:
    shown = (sent.title, set(sent.labels), sent.assignees, sent.severity, sent.phase)
    wanted = (issue.title, set(issue.labels), list(issue.assignees), issue.severity.value, issue.phase)
    return shown != wanted or (issue.digest != sent.generated and not sent.hands_off)


def _assignees(issue: Issue, sent: SyncState, state: IssueState) -> tuple[str, ...] | None:
    """Return our assignees, then those that people added; None if ours have not changed."""
    if list(issue.assignees) == sent.assignees:
        return None
    added = [name for name in state.assignees if name not in sent.assignees]
    return tuple(dict.fromkeys([*issue.assignees, *added]))


def _before(response: Response, seconds: float) -> datetime | None:
    """Return the time `seconds` and a day before `response`, by the server's clock; None without a ``Date``."""
    try:
        now = parsedate_to_datetime(response.headers.get("date", ""))
        return now.astimezone(timezone.utc) - _CLOCK_MARGIN - timedelta(seconds=max(0.0, seconds))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _changed_fields(edit: Edit) -> list[str]:
    return [name for name in ("title", "text", "assignees", "severity", "phase") if getattr(edit, name) is not None]
