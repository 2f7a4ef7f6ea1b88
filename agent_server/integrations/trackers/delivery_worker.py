"""Makes the deliveries that are due, each sink by itself: one that is down holds up no other.

What failed and may pass is tried again, later each time; what a person has to mend is parked, with what is wrong
(``whystall sinks list``), and tried again when somebody asks (``whystall sinks deliver``).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.trackers.desired import phase_of, text_of
from whystall.agent_server.integrations.trackers.issue import LIST_LIMIT, Memory
from whystall.agent_server.integrations.trackers.issue_sync import IssueSync, Lost, Wait
from whystall.agent_server.integrations.trackers.pagerduty import dedup_key, event, rings
from whystall.agent_server.integrations.trackers.registry import board
from whystall.agent_server.integrations.trackers.webhook import notice
from whystall.agent_server.journal.deliveries import Delivery
from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.outbound.retry import later
from whystall.agent_server.settings.sections.trackers import PagerDutySink, SinkSettings, WebhookSink
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.tickets.models import Remote, Ticket
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores

LEASE_S = 600.0
_LIMIT_S = 300.0
"""Seconds that one delivery may take, all its requests together; well within its lease."""
_ODD = 5
"""So often an answer that nobody understands is asked for again."""
_LONGEST_PAUSE_S = 300.0


class DeliveryWorker:
    """Delivers for the sinks of `settings`. One per process; `clock` tells seconds since the epoch."""

    def __init__(self, kb: Stores, settings: Settings, client: Client, clock: Callable[[], float]) -> None:
        self._kb = kb
        self._settings = settings
        self._client = client
        self._clock = clock
        self._owner = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._paused: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._ids: dict[str, dict[str, str]] = {}

    async def due(self, sink: str) -> float | None:
        """Make all deliveries to `sink` that are due; when the next is (seconds since the epoch), None: none waits.

        A sink that answers nobody is left alone for a while; others are not held up by it.
        """
        now = self._clock()
        until = self._paused.get(sink, now)
        if now < until <= now + _LONGEST_PAUSE_S:
            return until
        await self._all_of(sink)
        waiting = await in_thread(lambda: self._kb.deliveries.next_due([sink]))
        return None if waiting is None else max(waiting, self._paused.get(sink, waiting))

    async def deliver(self, sink: str, ticket: str | None = None) -> int:
        """Make what is due to `sink` (of `ticket` alone, where one is named); how many deliveries were gone about."""
        return await self._all_of(sink, ticket)

    async def _all_of(self, sink: str, ticket: str | None = None) -> int:
        made = 0
        while True:
            delivery = await in_thread(
                lambda: self._kb.deliveries.take([sink], self._owner, self._clock(), LEASE_S, ticket)
            )
            if delivery is None:
                return made
            made += 1
            if not await self._make(delivery, self._settings.sinks[sink]):
                return made

    async def _make(self, delivery: Delivery, settings: SinkSettings) -> bool:
        """One delivery; whether the sink may be spoken to at once again."""
        key = (delivery.sink, delivery.ticket, self._owner)
        try:
            with anyio.fail_after(_LIMIT_S):
                await self._bring(delivery, settings)
        except Lost:
            return True
        except Wait as wait:
            self._kb.deliveries.wait_until(*key, wait.until)
            return True
        except ToolError as error:
            if error.code in (ErrorCode.DATABASE, ErrorCode.DISK_FULL):
                raise
            self._park(delivery, error.code.value, f"{error.code.value}: {error.message}; {error.remedy}")
            return True
        except TimeoutError:
            slow = Undelivered("timeout", f"not done within {_LIMIT_S:g} s", again=True)
            return self._failed(delivery, slow)
        except Undelivered as error:
            return self._failed(delivery, error)
        except anyio.get_cancelled_exc_class():
            with suppress(ToolError):  # we are told to stop; whoever comes next need not wait
                self._kb.deliveries.wait_until(*key, delivery.due)
            raise
        except Exception:
            # A mistake of ours: the delivery waits its turn again, and whoever runs us hears of it.
            self._kb.deliveries.retry_at(*key, self._clock() + later(delivery.attempts, None), "internal error")
            raise
        self._failures.pop(delivery.sink, None)
        return True

    async def _bring(self, delivery: Delivery, settings: SinkSettings) -> None:
        async def send(request: Request, allowed: Collection[int] = ()) -> Response:
            limit = LIST_LIMIT if request.method == "GET" else None
            return await self._client.send(request, allowed, settings.timeout, limit)

        lang: Lang = settings.lang or self._settings.tickets.lang
        if isinstance(settings, PagerDutySink | WebhookSink):
            await self._notify(delivery, settings, lang, send)
            return
        ready = board(delivery.sink, settings)
        users, owner = self._settings.users, self._owner
        ids = self._ids.setdefault(delivery.sink, {})
        await IssueSync(self._kb, ready, users, lang, send, delivery, owner, self._clock, ids).run()

    async def _notify(
        self, delivery: Delivery, settings: PagerDutySink | WebhookSink, lang: Lang, send: Callable[..., Any]
    ) -> None:
        """Tell a sink that keeps track of what it was told by itself."""
        key = (delivery.sink, delivery.ticket, self._owner)
        ticket = self._kb.tickets.get(delivery.ticket)
        memory = Memory.model_validate(delivery.memory)
        memory = memory.model_copy(update={"nonce": memory.nonce or secrets.token_hex(8)})
        last = max((e.n for e in self._kb.tickets.events(ticket.id, limit=1)), default=0)
        requests = self.notices(delivery.sink, settings, ticket, memory, lang)
        if requests and not self._kb.deliveries.save_memory(*key, {"nonce": memory.nonce}):
            raise Lost
        for request in requests:
            await send(request)
        title, _ = text_of(ticket, lang)
        told = {"events": last, "title": title, "severity": ticket.severity.value, "phase": memory.phase}
        if requests:
            told["phase"] = phase_of(ticket)
        with self._kb.transaction():
            if not delivery.remote and requests:
                ref = dedup_key(memory.nonce) if isinstance(settings, PagerDutySink) else memory.nonce
                ticket = self._delivered(ticket, delivery.sink, ref)
                told["events"] = max((e.n for e in self._kb.tickets.events(ticket.id, limit=1)), default=last)
                self._kb.deliveries.created(*key, ref, "", {})
            if requests:
                self._kb.audit.put(
                    f"sink:{delivery.sink}",
                    "sink.notified",
                    f"ticket:{ticket.id}",
                    detail={"revision": ticket.revision},
                )
            if not self._kb.deliveries.delivered(*key, ticket.revision, told):
                raise Lost

    def notices(
        self, sink: str, settings: PagerDutySink | WebhookSink, ticket: Ticket, memory: Memory, lang: Lang
    ) -> list[Request]:
        """What is to be sent of `ticket` to a sink that was last told what `memory` holds."""
        title, text = text_of(ticket, lang)
        if isinstance(settings, WebhookSink):
            secret = settings.secret.read(f"sinks.{sink}.secret") if settings.secret else ""
            given = settings.authorization.read(f"sinks.{sink}.authorization") if settings.authorization else ""
            events = list(self._kb.tickets.events(ticket.id, after=memory.events, limit=100))
            return [notice(settings, secret, given, ticket, events, text, memory.nonce, self._clock())]
        phase, before = phase_of(ticket), memory.phase
        rung = before is not None
        if not rung and (phase == "over" or not rings(settings, ticket)):
            return []  # nobody is rung for what is over, or mild
        phases = [phase] if phase != before else []
        if not rung and phase == "acknowledged":
            phases = ["open", "acknowledged"]
        elif phase == before == "open" and (ticket.severity.value, title) != (memory.severity, memory.title):
            phases = ["open"]  # a change of severity
        elif before == "acknowledged" and phase == "open":
            phases = []  # Events know no way back from there
        routing = settings.routing_key.read(f"sinks.{sink}.routing_key")
        return [event(settings, routing, ticket, memory.nonce, p, title, text) for p in phases]

    def _delivered(self, ticket: Ticket, sink: str, ref: str) -> Ticket:
        others = [remote for remote in self._kb.tickets.get(ticket.id).remotes if remote.sink != sink]
        after = self._kb.tickets.change(
            ticket.id, "delivered", f"sink:{sink}", detail=ref, remotes=[*others, Remote(sink=sink, ref=ref)]
        )
        return after if after.revision == ticket.revision + 1 else ticket

    def _failed(self, delivery: Delivery, error: Undelivered) -> bool:
        sink = delivery.sink
        said = f"{error.code}: {error.message}"
        if error.status in (404, 410) and delivery.remote:
            said = f"{error.code}: {delivery.remote} is gone, or hidden from us: {error.message}"
        odd = error.code in ("bad_answer", "too_large")
        if not error.again and not (odd and delivery.attempts < _ODD):
            self._park(delivery, error.code, said)
            if error.code == "unauthorised":  # nothing else gets in either
                self._kb.deliveries.park_all(sink, said)
            return True
        wait = later(delivery.attempts, error.wait)
        self._kb.deliveries.retry_at(sink, delivery.ticket, self._owner, self._clock() + wait, said)
        if not delivery.error:
            self._kb.audit.put(f"sink:{sink}", "sink.postponed", f"ticket:{delivery.ticket}", error.code)
        if error.code in ("rate_limited", "unreachable", "timeout", "cut_off"):
            # What ails the server ails every delivery to it: one is tried, not all.
            failures = self._failures[sink] = self._failures.get(sink, -1) + 1
            self._paused[sink] = self._clock() + min(later(failures, error.wait), _LONGEST_PAUSE_S)
            return False
        return True

    def _park(self, delivery: Delivery, code: str, said: str) -> None:
        with self._kb.transaction():
            self._kb.deliveries.park(delivery.sink, delivery.ticket, self._owner, said)
            self._kb.audit.put(f"sink:{delivery.sink}", "sink.parked", f"ticket:{delivery.ticket}", code)
