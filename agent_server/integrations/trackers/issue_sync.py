"""Brings one issue of a tracker up to its ticket, step by step; what each step did is stored before the next begins.

A creation nobody answered is looked for before anything is created; every other request does no more when it is sent
twice, but for comments, which bear a mark and are looked for as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from whystall.agent_server.integrations.trackers.desired import comment_of, issue_of, note_of
from whystall.agent_server.integrations.trackers.gitlab import GitLab
from whystall.agent_server.integrations.trackers.issue import Edit, Issue, Memory, Seen, point
from whystall.agent_server.integrations.trackers.jira import Jira
from whystall.agent_server.integrations.trackers.registry import Board
from whystall.agent_server.integrations.trackers.text import own_comment
from whystall.agent_server.journal.deliveries import Delivery
from whystall.agent_server.outbound.client import Undelivered, refusal
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.tickets.models import Remote, Ticket
from whystall.tools.contract.text import clean

Send = Callable[..., Awaitable[Response]]
PAGES = 20
"""Pages of a listing that are looked through for an issue that may have been created."""
_BEFORE = timedelta(days=1)  # our clock may have jumped meanwhile
_LOOKS = 2
_EVENTS = 1000


class Lost(Exception):
    """Another has the delivery now: nothing more may be sent."""


class Wait(Exception):
    """It is to be gone on with later; nothing failed."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until


class IssueSync:
    """One delivery of one ticket to a tracker of issues, held by `owner`."""

    def __init__(
        self,
        kb: Stores,
        board: Board,
        users: Any,
        lang: Lang,
        send: Send,
        delivery: Delivery,
        owner: str,
        clock: Callable[[], float],
        ids: dict[str, str],
    ) -> None:
        """`ids`: numbers of people in this tracker, as far as they are known; more are put in."""
        self._kb = kb
        self._board = board
        self._users = users
        self._lang: Lang = lang
        self._send = send
        self._delivery = delivery
        self._owner = owner
        self._clock = clock
        self._key = (delivery.sink, delivery.ticket, owner)
        self._memory = Memory.model_validate(delivery.memory)
        self._ids = ids

    async def run(self) -> None:
        """Do all that is to be done. Raises `Undelivered`, `Wait`, `Lost`, `ToolError`."""
        ticket = self._kb.tickets.get(self._delivery.ticket)
        if not self._delivery.remote:
            if self._delivery.underway is not None:
                ticket = await self._found(ticket, self._delivery.underway)
            if not self._delivery.remote:
                ticket = await self._create(ticket)
        if not self._memory.nonce:  # it was there before us
            self._keep(nonce=secrets.token_hex(8))
        await self._update(ticket)
        await self._tell(ticket)
        self._check(self._kb.deliveries.delivered(*self._key, ticket.revision, {}))

    # --- once -----------------------------------------------------------------------------------------------------

    async def _create(self, ticket: Ticket) -> Ticket:
        nonce = self._memory.nonce or secrets.token_hex(8)
        self._remember(nonce=nonce)
        issue = await self._issue(ticket)
        while True:
            left_out = set(self._memory.left_out)
            request = creation(self._board, issue, note_of(ticket, self._lang), left_out)
            self._check(self._kb.deliveries.begin(*self._key, self._clock(), self._memory.model_dump()))
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
        seen = self._board.made(response)
        return self._made(ticket, seen, issue, "sink.created")

    async def _found(self, ticket: Ticket, since: float) -> Ticket:
        """The issue whose creation nobody answered, where it is there."""
        settle, now = self._board.settings.settle, self._clock()
        if now < since:  # the clock was set back: how long ago it was is not known
            self._check(self._kb.deliveries.begin(*self._key, now, {}))
            raise Wait(now + settle)
        if now < since + settle:
            raise Wait(since + settle)
        issue = await self._issue(ticket)
        seen = await self._look(issue.marker, now - since)
        if seen is not None:
            return self._made(ticket, seen, issue, "sink.found")
        looks = self._memory.looks + 1
        if self._board.index_lags and looks < _LOOKS:
            self._keep(looks=looks)
            raise Wait(now + settle)
        self._keep(looks=0)
        self._check(self._kb.deliveries.not_created(*self._key))
        return ticket

    async def _look(self, marker: str, elapsed: float) -> Seen | None:
        """The oldest issue with `marker` that was created within `elapsed` seconds, by the tracker's own clock."""
        found, page, horizon = None, "", None
        for _ in range(PAGES):
            response = await self._send(self._board.newest(page))
            listed = self._board.listed(response, page)
            found = next((i for i in reversed(listed.issues) if self._board.format.holds(i.text, marker)), found)
            horizon = horizon or _ago(response, elapsed)
            last = point(listed.issues[-1].created) if listed.issues else None
            if listed.more is None or (last is not None and horizon is not None and last < horizon):
                return found
            page = listed.more
        if found is None:
            message = (
                f"whether the issue was created cannot be told: it is not in the {PAGES} newest pages; look for it"
            )
            raise Undelivered("unclear", message)
        return found

    def _made(self, ticket: Ticket, seen: Seen, issue: Issue, what: str) -> Ticket:
        """Store that the issue is there, and what of it we know to have told."""
        name = self._board.name
        with self._kb.transaction():
            remote = Remote(sink=name, ref=clean(seen.ref, 200), url=clean(seen.url, 2000))
            others = [r for r in self._kb.tickets.get(ticket.id).remotes if r.sink != name]
            after = self._kb.tickets.change(
                ticket.id, "delivered", f"sink:{name}", detail=remote.ref, remotes=[*others, remote]
            )
            # What changed by this alone is nothing to tell.
            known = after if after.revision == ticket.revision + 1 else ticket
            told = self._issue_of(known, issue.assignees)
            fields = {
                "title": issue.title,
                "generated": told.digest if known is after else issue.digest,
                "labels": list(issue.labels),
                "assignees": list(issue.assignees),
                "severity": issue.severity.value,
                "phase": "acknowledged"
                if issue.phase == "acknowledged" and not isinstance(self._board, Jira)
                else "open",
                "events": max((e.n for e in self._kb.tickets.events(ticket.id, limit=1)), default=0),
                "comments": 0,
                "stamp": seen.changed,
            }
            if what == "sink.found":  # made of an earlier revision: all of it is told again
                fields |= {"generated": "", "title": seen.title, "labels": list(seen.labels), "phase": seen.phase}
                fields["assignees"] = list(seen.assignees)
            self._remember(**fields)
            self._check(self._kb.deliveries.created(*self._key, remote.ref, remote.url, self._memory.model_dump()))
            self._audit(what, {"ref": remote.ref})
        self._delivery = self._delivery.model_copy(update={"remote": remote.ref, "underway": None})
        return known

    # --- each time ------------------------------------------------------------------------------------------------

    async def _update(self, ticket: Ticket) -> None:
        issue = await self._issue(ticket)
        memory, ref = self._memory, self._delivery.remote
        if not _differs(issue, memory):
            return
        seen = self._board.parsed(await self._send(self._board.read(ref)))
        merged = None
        if issue.digest != memory.generated and not memory.hands_off:
            merged = self._board.format.merged(seen.text, issue.generated, issue.marker, note_of(ticket, self._lang))
        fields: dict[str, Any] = {
            "hands_off": memory.hands_off or (merged is None and issue.digest != memory.generated),
            "title": issue.title,
            "generated": issue.digest,
            "labels": list(issue.labels),
            "assignees": list(issue.assignees),
            "severity": issue.severity.value,
            "phase": issue.phase,
        }
        edit = changes(issue, memory, seen, merged)
        if seen.phase == issue.phase:  # else people changed it, of which we are still to hear
            fields["stamp"] = seen.changed
        while True:
            for request in self._board.edit(ref, edit, seen, set(self._memory.left_out)):
                response = await self._send(request, allowed=(400, 422))
                if response.status >= 300:
                    self._leave_out(request, response)
                    break
                if edit.phase is not None:
                    fields["stamp"] = self._board.stamp(response) or memory.stamp
            else:
                break
        if isinstance(self._board, Jira) and edit.phase is not None:
            fields["phase"] = await self._walk(self._board, ref, issue, seen)
            fields["stamp"] = self._board.parsed(await self._send(self._board.read(ref))).changed
        with self._kb.transaction():
            self._keep(**fields)
            if not edit.empty:
                self._audit("sink.updated", {"ref": ref, "changed": _named(edit)})

    async def _walk(self, jira: Jira, ref: str, issue: Issue, seen: Seen) -> str:
        """Take the step of Jira's workflow to the issue's phase; the phase it has then."""
        request = jira.step(ref, issue.phase, await self._send(jira.transitions(ref)))
        if request is None and issue.phase == "acknowledged":
            return seen.phase  # a workflow need not have a state for that
        if request is None:
            message = (
                f"{ref} has no transition to {'done' if issue.phase == 'over' else 'open'}: name it in the settings"
            )
            raise Undelivered("rejected", message)
        await self._send(request)
        return issue.phase

    async def _tell(self, ticket: Ticket) -> None:
        """Say as one comment what happened since the last one."""
        if self._memory.saying is not None:
            told = self._memory.saying
            there = await self._said(told)
            fields = {"events": told, "comments": self._memory.saying_comments} if there else {}
            self._keep(**fields, saying=None)
        memory = self._memory
        events = self._kb.tickets.events(ticket.id, after=memory.events, limit=_EVENTS)
        events = [event for event in events if event.revision <= ticket.revision]
        said = ticket.human.comments[memory.comments :]
        if not events and not said:
            return
        number = events[-1].n if events else memory.events
        progress = {"events": number, "comments": len(ticket.human.comments), "saying": None}
        text = comment_of(ticket, events, said, self._board.name, self._lang) if self._board.settings.comments else None
        if text is None:
            self._keep(**progress)
            return
        note = note_of(ticket, self._lang)
        made = self._board.format.comment(text, memory.nonce, number, self._board.comment_limit, note)
        self._keep(saying=number, saying_comments=len(ticket.human.comments))
        await self._send(self._board.say(self._delivery.remote, made))
        with self._kb.transaction():
            self._keep(**progress)
            self._audit("sink.commented", {"ref": self._delivery.remote})

    async def _said(self, number: int) -> bool:
        """Whether our comment `number` is there."""
        page = ""
        for _ in range(PAGES):
            request = self._board.comments(self._delivery.remote, "", page)
            listed = self._board.said(await self._send(request), page)
            if any(own_comment(comment.text) == (self._memory.nonce, number) for comment in listed.comments):
                return True
            if listed.more is None:
                return False
            page = listed.more
        return False

    # --- within ---------------------------------------------------------------------------------------------------

    async def _issue(self, ticket: Ticket) -> Issue:
        issue = self._issue_of(ticket)
        if not isinstance(self._board, GitLab):
            return issue
        return replace(
            issue, assignees=tuple([i for i in [await self._id(self._board, a) for a in issue.assignees] if i])
        )

    def _issue_of(self, ticket: Ticket, assignees: tuple[str, ...] | None = None) -> Issue:
        board = self._board
        issue = issue_of(
            ticket, board.name, board.settings, self._users, self._lang, self._memory.nonce, board.title_limit
        )
        return issue if assignees is None else replace(issue, assignees=assignees)

    async def _id(self, gitlab: GitLab, name: str) -> str:
        """GitLab names people by numbers; one that it does not know is nobody."""
        if name.isascii() and name.isdigit():
            return name
        if name not in self._ids:
            id = gitlab.user_id(await self._send(gitlab.user(name)))
            if not id:
                return ""
            self._ids[name] = id
        return self._ids[name]

    def _leave_out(self, request: Request, response: Response) -> None:
        """Do without the optional field that the tracker refused; raises where that is not what was wrong."""
        field = self._board.refused(response)
        if field is None or field in self._memory.left_out:
            raise refusal(request, response)
        self._keep(left_out=[*self._memory.left_out, field])

    def _remember(self, **fields: Any) -> None:
        self._memory = self._memory.model_copy(update=fields)

    def _keep(self, **fields: Any) -> None:
        self._remember(**fields)
        self._check(self._kb.deliveries.save_memory(*self._key, fields))

    def _audit(self, what: str, detail: dict[str, Any]) -> None:
        self._kb.audit.put(f"sink:{self._board.name}", what, f"ticket:{self._delivery.ticket}", detail=detail)

    @staticmethod
    def _check(mine: bool) -> None:
        if not mine:
            raise Lost


def creation(board: Board, issue: Issue, note: str, left_out: set[str]) -> Request:
    """The request that makes `issue`; `note` stands where its text is too long."""
    text = board.format.part(issue.generated, issue.marker, board.format.limit, note)
    return board.create(issue, text, left_out)


def _ago(response: Response, seconds: float) -> datetime | None:
    """A day and `seconds` before the tracker answered, as its clock shows; None where it does not say."""
    try:
        now = parsedate_to_datetime(response.headers.get("date", ""))
        return now.astimezone(timezone.utc) - _BEFORE - timedelta(seconds=max(0.0, seconds))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _differs(issue: Issue, memory: Memory) -> bool:
    """Whether the tracker shows something else of `issue` than it shall, as far as we are to tell it."""
    told = (memory.title, set(memory.labels), memory.assignees, memory.severity, memory.phase)
    shall = (issue.title, set(issue.labels), list(issue.assignees), issue.severity.value, issue.phase)
    return told != shall or (issue.digest != memory.generated and not memory.hands_off)


def changes(issue: Issue, memory: Memory, seen: Seen, merged: str | None) -> Edit:
    """What to change: only what changed on our side, so that what people changed there stays."""
    new = [label for label in issue.labels if label not in memory.labels]
    old = [label for label in memory.labels if label not in issue.labels]
    return Edit(
        title=issue.title if issue.title != memory.title and seen.title in (memory.title, "") else None,
        text=merged if merged != seen.text else None,
        add_labels=tuple(label for label in new if label not in seen.labels),
        remove_labels=tuple(label for label in old if label in seen.labels),
        assignees=_assignees(issue, memory, seen),
        severity=issue.severity if issue.severity.value != memory.severity else None,
        phase=issue.phase if issue.phase != memory.phase and seen.phase != issue.phase else None,
        closed_as=issue.closed_as,
    )


def _assignees(issue: Issue, memory: Memory, seen: Seen) -> tuple[str, ...] | None:
    """Ours, then whom people have added there; None where ours are as they were."""
    if list(issue.assignees) == memory.assignees:
        return None
    theirs = [who for who in seen.assignees if who not in memory.assignees]
    return tuple(dict.fromkeys([*issue.assignees, *theirs]))


def _named(edit: Edit) -> list[str]:
    return [name for name in ("title", "text", "assignees", "severity", "phase") if getattr(edit, name) is not None]
