"""All parts of one server that the settings enable; the web interfaces store what its worker processes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat_vendors import vendors
from whystall.agent_server.integrations.pictures.store import Pictures
from whystall.agent_server.outbound.client import Client
from whystall.agent_server.task_handler import Handler
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.agent_server.worker.work_loop import Step, every
from whystall.agent_server.worker.worker import Work, Worker

if TYPE_CHECKING:
    from whystall.agent_server.app import App
    from whystall.agent_server.journal.tasks import Task
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.worker.other_host import RunOnHost
    from whystall.agent_server.worker.triage import AskHost, Triage
    from whystall.knowledge_base.ticket_models import Ticket

_CHATS_AT_ONCE = 8
_OBSERVATIONS_AT_ONCE = 2
_NOTIFICATIONS_AT_ONCE = 2
_STRAYS_S = 60.0
_FAILING = 5  # times in a row


class Service:
    """The parts of one server. Raises `ToolError` (bad_argument) if a file named in the settings is invalid."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app = app
        self.kb = app.kb()
        self.settings = settings
        self.ticket_service = TicketService(self.kb, settings)
        self.vendors = vendors(settings.chat)
        self.pictures = Pictures(settings.server.public_url)
        self.worker: Worker | None = None
        self.intake = None
        if settings.alerts.token is not None:
            from whystall.agent_server.integrations.alerts.intake import Intake

            self.intake = Intake(self.kb, settings)

    async def run(self) -> None:
        """Work until cancelled. Raises `ToolError` (io_error) if the knowledge base cannot be locked."""
        from whystall.agent_server.worker.triage import KIND, Triage

        asks = self._ask_host(), self._run_on()
        triage = Triage(self.app, self.ticket_service, self.settings.triage, ask_host=asks[0], run_on=asks[1])
        async with Client() as client:
            work = Work(self._tasks(triage), self._steps(client), self._begin, {KIND: triage.given_up})
            self.worker = Worker(self.kb, work)
            await self.worker.run()

    @property
    def failing(self) -> bool:
        """Whether the worker has stopped or one of its lanes keeps failing."""
        worker = self.worker
        if worker is None:
            return False
        return worker.state == "stopped" or any(lane.failures >= _FAILING for lane in worker.lanes)

    def _responsible(self, ticket: Ticket) -> list[str]:
        """Return the assignees of `ticket` with their contacts."""
        from whystall.agent_server.presentation.oncall import contacts

        return contacts(ticket.assignment.users, self.settings) if ticket.assignment is not None else []

    def _ask_host(self) -> AskHost | None:
        """Return what asks another host to diagnose its job; None if no fleet is configured."""
        fleet = self.settings.fleet
        if not fleet.configured:
            return None
        from whystall.agent_server.fleet.ask import diagnose_on

        return lambda host, words, params: diagnose_on(host, words, params, fleet)

    def _run_on(self) -> RunOnHost | None:
        """Return what runs a tool on another host; None if no fleet is configured."""
        fleet = self.settings.fleet
        if not fleet.configured:
            return None
        from whystall.agent_server.fleet.ask import run_on

        return lambda host, tool, arguments, seconds: run_on(host, tool, arguments, seconds, fleet)

    def _begin(self) -> None:
        """Release what a worker that ended had taken."""
        self.kb.messages.release(time.time())
        self.kb.deliveries.release()

    def _tasks(self, triage: Triage) -> dict[str, tuple[int, Mapping[str, Handler]]]:
        from whystall.agent_server.worker.triage import KIND, NOTIFY
        from whystall.agent_server.worker.triage_notifier import TriageNotifier

        lanes: dict[str, tuple[int, Mapping[str, Handler]]] = {
            "triage": (1, {KIND: triage.handle}),
            "tell": (
                _NOTIFICATIONS_AT_ONCE,
                {NOTIFY: TriageNotifier(self.kb, self.pictures.make, self._responsible).handle},
            ),
        }
        if self.vendors:
            from whystall.agent_server.integrations.chat import chat_task, investigations

            async def chat(task: Task) -> None:
                await chat_task.handle(task, self.app, self.ticket_service, self.settings)

            async def observe(task: Task) -> None:
                await investigations.run_task(task, self.app, self.settings)

            lanes["chat"] = (_CHATS_AT_ONCE, {chat_task.KIND: chat})
            lanes["look"] = (_OBSERVATIONS_AT_ONCE, {investigations.KIND: observe})
        return lanes

    def _steps(self, client: Client) -> dict[str, Step]:
        from whystall.agent_server.worker import clock_watch, escalation, retention

        also: list[Callable[[float], int]] = []
        steps = self._sending(client)
        if self.intake is not None:
            from whystall.agent_server.integrations.alerts.groups import Groups
            from whystall.agent_server.worker.alert_groups import AlertGroupStep

            groups = Groups(self.kb, self.settings)
            steps["groups"] = AlertGroupStep(groups).step
            also.append(groups.forget)
        if self.settings.oncall.schedules:
            steps["escalations"] = every(escalation.EVERY_S, escalation.Escalation(self.kb, self.settings).step)
        steps["clock"] = every(clock_watch.EVERY_S, clock_watch.ClockWatch(self.kb).step)
        days = self.settings.server.keep_days
        steps["forgetting"] = every(retention.EVERY_S, retention.Retention(self.kb, days, also).step)
        return steps

    def _sending(self, client: Client) -> dict[str, Step]:
        """Return a lane for each chat and each tracker, so that one that does not answer blocks no other."""
        steps: dict[str, Step] = {}
        if self.vendors:
            from whystall.agent_server.integrations.chat.sending import Sender

            sender = Sender(self.kb, self.vendors, client, time.time, self.pictures)
            for name in self.vendors:
                steps[f"chat:{name}"] = _step(sender.due, name)
            steps["strays"] = every(_STRAYS_S, lambda _now: in_thread(sender.give_up_removed))
        if self.settings.sinks:
            from whystall.agent_server.integrations.trackers.delivery_worker import DeliveryWorker
            from whystall.agent_server.integrations.trackers.polling import TrackerPoller

            deliveries = DeliveryWorker(self.kb, self.settings, client, time.time)
            poller = TrackerPoller(self.kb, self.settings, self.ticket_service, client, time.time)
            for name in self.settings.sinks:
                steps[f"sink:{name}"] = _step(deliveries.due, name)
                steps[f"news:{name}"] = _step(poller.due, name)
        return steps


def _step(due: Callable[..., Awaitable[float | None]], *given: str) -> Step:
    """Return `due`, which reads the clock itself, as a step of a lane."""

    async def step(_now: float) -> float | None:
        return await due(*given)

    return step
