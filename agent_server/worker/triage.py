"""Triage: the process that an alert is about is found and looked at, and what was found out goes onto its ticket.

Nobody is accused for want of anybody better: where the labels name no process of this host, or several, the ticket says
so. All of it may be killed anywhere and begun again: the diagnosis, its ticket, what is to be told, and the end of the
task are stored in one transaction.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.integrations.job_lookup.find import find
from whystall.agent_server.integrations.job_lookup.models import Resolution, Wanted
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.worker.task_runner import PASSES
from whystall.knowledge_base.tickets.models import LIVE, Ticket
from whystall.knowledge_base.times import moment, rfc3339
from whystall.prompts.escape import short
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.app import App
    from whystall.agent_server.settings.sections.server import TriageSettings
    from whystall.agent_server.ticketing.ticket_service import TicketService
    from whystall.knowledge_base.models import Diagnosis, Lang

KIND, TELL = "triage", "tell"
DIAGNOSED = "diagnosed"
_HOUR_S = 3600.0
_SKEW = timedelta(minutes=1)  # between the sender's clock and ours
_SYMPTOM = 300  # characters
_log = logging.getLogger("whystall.work")


@dataclass(frozen=True)
class Look:
    """What became of one triage, as its task keeps it. `process`: what was looked at, ``PID:START``."""

    code: str
    ticket: str
    process: str = ""
    diagnosis: str = ""

    def text(self) -> str:
        """For `Task.result`."""
        return json.dumps(self.__dict__)

    @classmethod
    def read(cls, text: str) -> Look | None:
        """What `text` says; None for another result."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


class Triage:
    """Does tasks of the kind `KIND`. Payload: ``ticket``, and who is told of it: ``places``, ``lang``."""

    def __init__(
        self,
        app: App,
        ticket_service: TicketService,
        settings: TriageSettings,
        find: Callable[[Wanted], Awaitable[Resolution]] = find,
    ) -> None:
        """`find`: what turns labels into a process of this host."""
        self._app = app
        self._kb = app.kb()
        self._ticket_service = ticket_service
        self._settings = settings
        self._find = find

    async def handle(self, task: Task) -> None:
        """Look at the process of the ticket's alert, if it is to be told which and there is room for it."""
        ticket = self._kb.tickets.get(str(task.payload.get("ticket", "")))
        if ticket.state not in LIVE:
            self._kb.tasks.done(task.id, Look("over", ticket.id).text())
            return
        looks = self._looks()
        if (full := self._full(looks)) is not None:
            self._say(task, ticket, full)
            return
        found = await self._find(Wanted(labels=ticket.labels, text=ticket.human.title))
        if found.status != "found" or found.pid is None or found.start_ticks is None:
            self._say(task, ticket, _unfound(found), [*found.how, *found.tried, *(job.id for job in found.jobs)])
            return
        if f"pid:{found.pid}" in found.how and _younger(found.start_ticks, moment(ticket.created)):
            self._say(task, ticket, "vanished", [f"pid:{found.pid}", "reused"])
            return
        process = f"{found.pid}:{found.start_ticks}"
        before = self._before(looks, process)
        if before is not None:
            self._say(task, ticket, "cooldown", [f"ticket:{before.ticket}"], before.ticket, process)
            return
        await self._look(task, ticket, found.pid, process)

    def given_up(self, task: Task) -> None:
        """The task failed for good, in the transaction that stores so: its ticket says that nobody looked."""
        self._ticket_service.triaged(str(task.payload.get("ticket", "")), "failed:internal", now=_now())

    async def _look(self, task: Task, ticket: Ticket, pid: int, process: str) -> None:
        params = DiagnoseParams(
            pid=pid,
            duration=self._settings.duration,
            engine=self._settings.engine,
            llm=self._settings.llm,
            symptom=short(ticket.human.title, _SYMPTOM),
        )

        def then(diagnosis: Diagnosis) -> None:
            has = self._ticket_service.attach(ticket.id, diagnosis, now=_now())
            self._end(task, Look(DIAGNOSED, has.id, process, diagnosis.id))

        try:
            await self._app.diagnose(params, lang=_lang(task.payload), then=then)
        except ToolError as error:
            if error.code in PASSES:
                raise
            gone = error.code is ErrorCode.NO_SUCH_PROCESS
            _log.warning("ticket %s: no diagnosis: %s", ticket.id, error)
            self._say(task, ticket, "vanished" if gone else f"failed:{error.code.value}", [f"pid:{pid}"])

    def _say(
        self, task: Task, ticket: Ticket, code: str, why: Sequence[str] = (), other: str = "", process: str = ""
    ) -> None:
        """The ticket says by `code` why it has no diagnosis of its own; `other`: the one to look at instead."""
        with self._kb.transaction():
            self._ticket_service.triaged(ticket.id, code, why, now=_now())
            if other and other != ticket.id and all(link.ticket != other for link in ticket.links):
                self._ticket_service.link(ticket.id, other, "related", by="engine", source="triage", now=_now())
            self._end(task, Look(code, ticket.id, process), why)

    def _end(self, task: Task, look: Look, why: Sequence[str] = ()) -> None:
        """The task is done, and whoever is to be told of it will be."""
        places = task.payload.get("places") or []
        with self._kb.transaction():
            if places:
                about = {**look.__dict__, "why": list(why), "places": places, "lang": _lang(task.payload)}
                self._kb.tasks.add(TELL, f"{TELL}:{task.key}", about)
            self._kb.tasks.done(task.id, look.text())

    def _looks(self) -> list[tuple[datetime, Look]]:
        """The triages of the last hour, or of the cooldown where that is longer, and when they ended."""
        span = max(_HOUR_S, self._settings.cooldown_s)
        ended = self._kb.tasks.ended(KIND, rfc3339(_now() - timedelta(seconds=span)))
        looks = [(moment(task.updated), Look.read(task.result)) for task in ended]
        return [(at, look) for at, look in looks if at is not None and look is not None and look.code == DIAGNOSED]

    def _full(self, looks: Sequence[tuple[datetime, Look]]) -> str | None:
        """A code where too much is asked for."""
        hour = _now() - timedelta(seconds=_HOUR_S)
        if sum(at >= hour for at, _ in looks) >= self._settings.per_hour:
            return "too_many"
        return "too_many" if self._kb.tasks.waiting(KIND) >= self._settings.waiting else None

    def _before(self, looks: Sequence[tuple[datetime, Look]], process: str) -> Look | None:
        """The look at `process` that is too recent for another one."""
        since = _now() - timedelta(seconds=self._settings.cooldown_s)
        return next((look for at, look in reversed(looks) if look.process == process and since <= at), None)


def _younger(start_ticks: int, began: datetime | None) -> bool:
    """Whether a process was started after `began`: its number is that of another one, which the alert meant."""
    if began is None:
        return False
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    age = timedelta(seconds=uptime - start_ticks / os.sysconf("SC_CLK_TCK"))
    return _now() - age > began + _SKEW


def _unfound(found: Resolution) -> str:
    if found.status == "several":
        return "ambiguous"
    return "elsewhere" if any(word.startswith("elsewhere:") for word in found.tried) else "no_process"


def _lang(payload: dict[str, Any]) -> Lang:
    return "zh" if payload.get("lang") == "zh" else "en"


def _now() -> datetime:
    return datetime.now(timezone.utc)
