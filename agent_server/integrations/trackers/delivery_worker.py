"""Sends the deliveries that are due, each sink by itself: one that is down does not block the others.

Temporary failures are retried with growing delays. What a person must correct is parked with its error
(``whystall sinks list``) until it is retried by command (``whystall sinks deliver``).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.trackers.desired import phase_of, text_of
from whystall.agent_server.integrations.trackers.issue import LIST_LIMIT, SyncState
from whystall.agent_server.integrations.trackers.issue_sync import (
    IssueSync,
    LeaseLost,
    RetryLater,
    Send,
    last_event,
    store_remote,
)
from whystall.agent_server.integrations.trackers.registry import open_notifier, open_tracker
from whystall.agent_server.integrations.trackers.tracker import Notification, Notifier
from whystall.agent_server.journal.deliveries import Delivery
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.outbound.retry import queue_backoff_s
from whystall.agent_server.settings.sections.trackers import SinkSettings, TrackerSettings
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.ticket_models import Remote, Ticket
from whystall.knowledge_base.tickets.ticket_store import TicketStore
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores

LEASE_S = 600.0
_LIMIT_S = 300.0
"""Seconds for all requests of one delivery; well within its lease."""
_MALFORMED_ATTEMPTS = 5
"""Attempts before a delivery with malformed responses is parked."""
_LONGEST_PAUSE_S = 300.0


class DeliveryWorker:
    """Delivers to the sinks of `settings`. One per process; `clock` returns seconds since the epoch."""

    def __init__(self, kb: Stores, settings: Settings, client: Client, clock: Callable[[], float]) -> None:
        self._kb = kb
        self._settings = settings
        self._client = client
        self._clock = clock
        self._owner = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._paused: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._user_ids: dict[str, dict[str, str]] = {}

    async def due(self, sink: str) -> float | None:
        """Send all due deliveries to `sink`. Return when the next is due (seconds since the epoch); None: none waits.

        A sink that does not answer is paused.
        """
        now = self._clock()
        until = self._paused.get(sink, now)
        if now < until <= now + _LONGEST_PAUSE_S:
            return until
        await self.deliver(sink)
        next_due = await in_thread(lambda: self._kb.deliveries.next_due([sink]))
        return None if next_due is None else max(next_due, self._paused.get(sink, next_due))

    async def deliver(self, sink: str, ticket: str | None = None) -> int:
        """Send what is due to `sink` (only of `ticket`, if given). Return the number of deliveries attempted."""
        attempted = 0
        while True:
            delivery = await in_thread(
                lambda: self._kb.deliveries.take([sink], self._owner, self._clock(), LEASE_S, ticket)
            )
            if delivery is None:
                return attempted
            attempted += 1
            if not await self._attempt(delivery, self._settings.sinks[sink]):
                return attempted

    async def _attempt(self, delivery: Delivery, settings: SinkSettings) -> bool:
        """Attempt one delivery. Return whether the sink's next one may follow at once."""
        key = (delivery.sink, delivery.ticket, self._owner)
        try:
            with anyio.fail_after(_LIMIT_S):
                await self._deliver(delivery, settings)
        except LeaseLost:
            return True
        except RetryLater as retry:
            self._kb.deliveries.wait_until(*key, retry.until)
            return True
        except ToolError as error:
            if error.code in (ErrorCode.DATABASE, ErrorCode.DISK_FULL):
                raise
            self._park(delivery, error.code.value, f"{error.code.value}: {error.message}; {error.remedy}")
            return True
        except TimeoutError:
            return self._failed(delivery, Undelivered("timeout", f"not done within {_LIMIT_S:g} s", again=True))
        except Undelivered as error:
            return self._failed(delivery, error)
        except anyio.get_cancelled_exc_class():
            with suppress(ToolError):  # return the lease: the next process need not wait for its end
                self._kb.deliveries.wait_until(*key, delivery.due)
            raise
        except Exception:
            # Our own fault: retry later, and let the caller report it.
            self._kb.deliveries.retry_at(
                *key, self._clock() + queue_backoff_s(delivery.attempts, None), "internal error"
            )
            raise
        self._failures.pop(delivery.sink, None)
        return True

    async def _deliver(self, delivery: Delivery, settings: SinkSettings) -> None:
        async def send(request: Request, allowed: Collection[int] = ()) -> Response:
            limit = LIST_LIMIT if request.method == "GET" else None
            return await self._client.send(request, allowed, settings.timeout, limit)

        lang: Lang = settings.lang or self._settings.tickets.lang
        if not isinstance(settings, TrackerSettings):
            await self._notify(delivery, open_notifier(delivery.sink, settings), lang, send)
            return
        tracker = open_tracker(delivery.sink, settings)
        user_ids = self._user_ids.setdefault(delivery.sink, {})
        users, owner = self._settings.users, self._owner
        await IssueSync(self._kb, tracker, users, lang, send, delivery, owner, self._clock, user_ids).run()

    async def _notify(self, delivery: Delivery, notifier: Notifier, lang: Lang, send: Send) -> None:
        key = (delivery.sink, delivery.ticket, self._owner)
        ticket = self._kb.tickets.get(delivery.ticket)
        sent = SyncState.model_validate(delivery.memory)
        sent = sent.model_copy(update={"nonce": sent.nonce or secrets.token_hex(8)})
        last = last_event(self._kb.tickets, ticket.id)
        notification = notification_of(self._kb.tickets, ticket, sent, lang, self._clock())
        requests = notifier.requests(notification)
        if requests and not self._kb.deliveries.save_memory(*key, {"nonce": sent.nonce}):
            raise LeaseLost
        for request in requests:
            await send(request)
        fields = {
            "events": last,
            "title": notification.title,
            "severity": ticket.severity.value,
            "phase": phase_of(ticket) if requests else sent.phase,
        }
        with self._kb.transaction():
            if not delivery.remote and requests:
                ref = notifier.remote_ref(sent.nonce)
                ticket = store_remote(self._kb.tickets, ticket, Remote(sink=delivery.sink, ref=ref))
                fields["events"] = last_event(self._kb.tickets, ticket.id)
                self._kb.deliveries.created(*key, ref, "", {})
            if requests:
                subject, detail = f"ticket:{ticket.id}", {"revision": ticket.revision}
                self._kb.audit.put(f"sink:{delivery.sink}", "sink.notified", subject, detail=detail)
            if not self._kb.deliveries.delivered(*key, ticket.revision, fields):
                raise LeaseLost

    def _failed(self, delivery: Delivery, error: Undelivered) -> bool:
        """Retry or park a failed delivery. Return whether the sink's next one may follow at once."""
        sink = delivery.sink
        message = f"{error.code}: {error.message}"
        if error.status in (404, 410) and delivery.remote:
            message = f"{error.code}: {delivery.remote} is gone, or hidden from us: {error.message}"
        malformed = error.code in ("bad_answer", "too_large")
        if not error.again and not (malformed and delivery.attempts < _MALFORMED_ATTEMPTS):
            self._park(delivery, error.code, message)
            if error.code == "unauthorised":  # all others would fail too
                self._kb.deliveries.park_all(sink, message)
            return True
        wait = queue_backoff_s(delivery.attempts, error.wait)
        self._kb.deliveries.retry_at(sink, delivery.ticket, self._owner, self._clock() + wait, message)
        if not delivery.error:
            self._kb.audit.put(f"sink:{sink}", "sink.postponed", f"ticket:{delivery.ticket}", error.code)
        if error.code in ("rate_limited", "unreachable", "timeout", "cut_off"):
            # All deliveries to this server would fail: do not try them one by one.
            failures = self._failures[sink] = self._failures.get(sink, -1) + 1
            self._paused[sink] = self._clock() + min(queue_backoff_s(failures, error.wait), _LONGEST_PAUSE_S)
            return False
        return True

    def _park(self, delivery: Delivery, code: str, message: str) -> None:
        with self._kb.transaction():
            self._kb.deliveries.park(delivery.sink, delivery.ticket, self._owner, message)
            self._kb.audit.put(f"sink:{delivery.sink}", "sink.parked", f"ticket:{delivery.ticket}", code)


def notification_of(tickets: TicketStore, ticket: Ticket, sent: SyncState, lang: Lang, now: float) -> Notification:
    """Return `ticket` as notifiers receive it, with at most 100 events since the last notification."""
    title, text = text_of(ticket, lang)
    return Notification(ticket, title, text, tickets.events(ticket.id, after=sent.events, limit=100), sent, now)
