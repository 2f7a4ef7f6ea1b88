"""Polls trackers whose webhooks cannot reach us, for issues changed since the last poll and their comments.

Nothing is missed: each poll starts a little before the end of the last one, by the tracker's clock, and an event that
is received twice has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.trackers.apply_events import apply
from whystall.agent_server.integrations.trackers.issue import LIST_LIMIT, IssueState, comment_event, state_event
from whystall.agent_server.integrations.trackers.json_values import tracker_time
from whystall.agent_server.integrations.trackers.registry import open_tracker
from whystall.agent_server.integrations.trackers.tracker import Tracker
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.retry import LONGEST_ASKED_S, queue_backoff_s
from whystall.agent_server.settings.sections.trackers import TrackerSettings
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores
    from whystall.agent_server.ticketing.ticket_service import TicketService

_OVERLAP = timedelta(minutes=2)
_PAGES = 50
_COMMENT_PAGES = 10


class TrackerPoller:
    """Polls the sinks of `settings` that have ``poll``. `clock` returns seconds since the epoch."""

    def __init__(
        self, kb: Stores, settings: Settings, ticket_service: TicketService, client: Client, clock: Callable[[], float]
    ) -> None:
        self._kb = kb
        self._settings = settings
        self._ticket_service = ticket_service
        self._client = client
        self._clock = clock
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    async def due(self, name: str) -> float | None:
        """Poll the sink `name` if it is due. Return when it is due next (seconds since the epoch); None: never."""
        settings = self._settings.sinks[name]
        if not isinstance(settings, TrackerSettings) or settings.poll is None or not settings.two_way:
            return None
        now = self._clock()
        due = self._due.get(name, now)
        if now < due <= now + settings.poll + LONGEST_ASKED_S:
            return due
        self._due[name] = now + settings.poll
        try:
            await self.sync(name)
            self._failures.pop(name, None)
        except Undelivered as error:
            self._postpone(name, settings.poll, f"{error.code}: {error.message}", error.wait)
        except ToolError as error:
            if error.code in (ErrorCode.DATABASE, ErrorCode.DISK_FULL):
                raise
            self._postpone(name, settings.poll, error.message, None)
        return self._due[name]

    async def sync(self, name: str) -> int:
        """Poll the tracker `name` now. Return the number of our tickets' changes.

        Raises `Undelivered`; `ToolError` (bad_argument) if it cannot be polled.
        """
        settings = self._settings.sinks[name]
        if not isinstance(settings, TrackerSettings):
            message = f"{name} cannot be polled: {settings.kind} reports changes by webhook only"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "set up its webhook")
        tracker = open_tracker(name, settings)
        cursor = self._kb.deliveries.cursor(name)
        since, newest = str(cursor.get("since", "")) or self._first(name), str(cursor.get("newest", ""))
        changes, page = 0, ""
        for _ in range(_PAGES):
            response = await self._client.send(tracker.list_changed(since, page), (), settings.timeout, LIST_LIMIT)
            listed = tracker.parse_issues(response, page)
            for issue in listed.issues:
                changes += await self._apply(tracker, settings, issue)
                newest = _later(newest, issue.changed)
            if listed.more is None:
                break
            page = listed.more
        last = tracker_time(newest)
        if last is not None:
            self._kb.deliveries.read_to(name, {"since": rfc3339(last - _OVERLAP), "newest": newest})
        return changes

    async def _apply(self, tracker: Tracker, settings: TrackerSettings, issue: IssueState) -> int:
        delivery = self._kb.deliveries.of_remote(tracker.name, issue.ref)
        if delivery is None or not settings.two_way:
            return 0
        if delivery.memory.get("synced") == issue.changed:
            return 0
        events = [state_event(f"state:{issue.ref}:{issue.changed}:{issue.phase}", issue, issue.by)]
        page = ""
        for _ in range(_COMMENT_PAGES):
            request = tracker.list_comments(issue.ref, page)
            response = await self._client.send(request, (), settings.timeout, LIST_LIMIT)
            listed = tracker.parse_comments(response, page)
            events += [comment_event(f"comment:{c.id}", issue, c.by, c.id[:100], c.text) for c in listed.comments]
            if listed.more is None:
                break
            page = listed.more
        known = [event for event in events if event is not None]
        done = apply(known, tracker.name, settings, self._kb, self._ticket_service, self._clock())
        self._kb.deliveries.patch_memory(tracker.name, delivery.ticket, {"synced": issue.changed})
        return done

    def _first(self, name: str) -> str:
        """Return where the first poll starts: a day before the oldest ticket in the tracker, by the earlier of its
        clock and ours, which may be wrong.
        """
        there = self._kb.deliveries.of_sink(name, limit=1)
        known = [self._kb.tickets.get(there[0].ticket).created, str(there[0].memory.get("stamp", ""))] if there else []
        times = [at for at in map(tracker_time, known) if at is not None]
        oldest = min(times, default=datetime.fromtimestamp(self._clock(), timezone.utc))
        return rfc3339(oldest - timedelta(days=1))

    def _postpone(self, name: str, interval: float, why: str, wait: float | None) -> None:
        failures = self._failures[name] = self._failures.get(name, -1) + 1
        self._due[name] = self._clock() + max(interval, queue_backoff_s(failures, wait))
        if failures == 0:
            self._kb.audit.put(f"sink:{name}", "sink.unheard", name, "failed", {"why": why})


def _later(one: str, other: str) -> str:
    first, second = tracker_time(one), tracker_time(other)
    if first is None or second is None:
        return one if second is None else other
    return one if first >= second else other
