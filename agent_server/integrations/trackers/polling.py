"""Looks for news in trackers that cannot reach us: issues changed since the last look, and what was said of them.

Nothing is lost between two looks: each begins a little before the end of the last one, by the tracker's own clock, and
what is heard twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.trackers.apply_events import apply
from whystall.agent_server.integrations.trackers.issue import LIST_LIMIT, Heard, Seen, point
from whystall.agent_server.integrations.trackers.registry import Board, board
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.retry import LONGEST_ASKED_S, later
from whystall.agent_server.settings.sections.trackers import PagerDutySink, TrackerSettings, WebhookSink
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
    """Looks for news for the sinks of `settings` with ``poll``; `clock` tells seconds since the epoch."""

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
        """Look for news of the sink `name` where it is time to; when that is again (seconds since the epoch), None:
        never, since it is not asked for news.
        """
        settings = self._settings.sinks[name]
        if isinstance(settings, PagerDutySink | WebhookSink) or settings.poll is None or not settings.two_way:
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
            self._put_off(name, settings, f"{error.code}: {error.message}", error.wait)
        except ToolError as error:
            if error.code in (ErrorCode.DATABASE, ErrorCode.DISK_FULL):
                raise
            self._put_off(name, settings, error.message, None)
        return self._due[name]

    async def sync(self, name: str) -> int:
        """Look for news of the tracker `name` now; how many changes of ours came of it. Raises `Undelivered`;
        `ToolError` (bad_argument) where it cannot be asked.
        """
        settings = self._settings.sinks[name]
        if isinstance(settings, PagerDutySink | WebhookSink):
            message = f"{name} cannot be asked for news: {settings.kind} tells them by webhook alone"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "set up its webhook")
        ready = board(name, settings)
        cursor = self._kb.deliveries.cursor(name)
        since, newest = str(cursor.get("since", "")) or self._first(name), str(cursor.get("newest", ""))
        changes, page = 0, ""
        for _ in range(_PAGES):
            response = await self._client.send(ready.changed(since, page), (), settings.timeout, LIST_LIMIT)
            listed = ready.listed(response, page)
            for seen in listed.issues:
                changes += await self._news(ready, settings, seen)
                newest = _later(newest, seen.changed)
            if listed.more is None:
                break
            page = listed.more
        last = point(newest)
        if last is not None:
            self._kb.deliveries.read_to(name, {"since": rfc3339(last - _OVERLAP), "newest": newest})
        return changes

    async def _news(self, ready: Board, settings: TrackerSettings, seen: Seen) -> int:
        delivery = self._kb.deliveries.of_remote(ready.name, seen.ref)
        if delivery is None or not settings.two_way:
            return 0
        if delivery.memory.get("synced") == seen.changed:
            return 0
        heard = [
            Heard(
                key=f"state:{seen.ref}:{seen.changed}:{seen.phase}"[:200],
                remote=seen.ref,
                by=seen.by,
                phase=seen.phase,
                closed_as=seen.closed_as,
                changed=seen.changed,
            )
        ]
        page = ""
        for _ in range(_COMMENT_PAGES):
            response = await self._client.send(ready.comments(seen.ref, "", page), (), settings.timeout, LIST_LIMIT)
            listed = ready.said(response, page)
            heard += [
                Heard(key=f"comment:{c.id}"[:200], remote=seen.ref, by=c.by, comment=c.id[:100], text=c.text)
                for c in listed.comments
            ]
            if listed.more is None:
                break
            page = listed.more
        done = apply(heard, ready.name, settings, self._kb, self._ticket_service, self._clock())
        self._kb.deliveries.patch_memory(ready.name, delivery.ticket, {"synced": seen.changed})
        return done

    def _first(self, name: str) -> str:
        """Since when there can be news: a day before the oldest ticket that the tracker has, by its clock or by ours,
        whichever is earlier: ours may be wrong.
        """
        there = self._kb.deliveries.of_sink(name, limit=1)
        known = [self._kb.tickets.get(there[0].ticket).created, str(there[0].memory.get("stamp", ""))] if there else []
        times = [at for at in map(point, known) if at is not None]
        oldest = min(times, default=datetime.fromtimestamp(self._clock(), timezone.utc))
        return rfc3339(oldest - timedelta(days=1))

    def _put_off(self, name: str, settings: TrackerSettings, why: str, wait: float | None) -> None:
        failures = self._failures[name] = self._failures.get(name, -1) + 1
        self._due[name] = self._clock() + max(settings.poll or 0.0, later(failures, wait))
        if failures == 0:
            self._kb.audit.put(f"sink:{name}", "sink.unheard", name, "failed", {"why": why})


def _later(one: str, other: str) -> str:
    first, second = point(one), point(other)
    if first is None or second is None:
        return one if second is None else other
    return one if first >= second else other
