"""Triage: finds the process that an alert is about, diagnoses it, and attaches the result to the ticket.

If the labels match no process of this host, or several, nothing is diagnosed and the ticket states why: also that the
alert is about another host, or a part of a host and no process. Another host of the fleet is asked if the alert has an
exact id of its job there. If the alert names hardware and no process, gpu_health's findings are attached: of this host,
or of another one of the fleet.
Crash-safe: the diagnosis, its ticket, the notification and the end of the task are stored in
one transaction; a host may be asked again.
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

from pydantic import ValidationError

from whystall.agent_server.diagnosis.causes import HARDWARE_TOOL
from whystall.agent_server.diagnosis.hardware import hardware_diagnosis
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.store_diagnosis import store_diagnosis
from whystall.agent_server.integrations.alerts.checks import check_of
from whystall.agent_server.integrations.alerts.related import names_this_host, things_of
from whystall.agent_server.job_lookup.find import find
from whystall.agent_server.job_lookup.models import Resolution, Wanted
from whystall.agent_server.job_lookup.search_terms import words_for_host
from whystall.agent_server.job_lookup.subject import part_of_host
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.ticketing.host_reports import diagnosis_of
from whystall.agent_server.worker.other_host import RunOnHost, hardware_of
from whystall.agent_server.worker.task_runner import PASSES
from whystall.knowledge_base.classify.severities import xids
from whystall.knowledge_base.models import Diagnosis
from whystall.knowledge_base.ticket_models import LIVE, Ticket
from whystall.knowledge_base.times import moment, rfc3339
from whystall.prompts.escape import short
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.node.vantage import host_name

if TYPE_CHECKING:
    from whystall.agent_server.app import App
    from whystall.agent_server.fleet.answers import Answer
    from whystall.agent_server.settings.sections.server import TriageSettings
    from whystall.agent_server.ticketing.ticket_service import TicketService
    from whystall.knowledge_base.models import Lang

AskHost = Callable[[str, str, DiagnoseParams], "Awaitable[Answer | None]"]
"""Gets a host, words of its job and the parameters; returns its answer, None if it may not be asked."""

KIND, NOTIFY = "triage", "tell"
DIAGNOSED = "diagnosed"
_HOUR_S = 3600.0
_SKEW = timedelta(minutes=1)  # between the sender's clock and ours
_SYMPTOM = 300  # characters
_HARDWARE_S = 10.0
"""Longest window in which counters of hardware are compared."""
_log = logging.getLogger("whystall.work")


@dataclass(frozen=True)
class TriageResult:
    """The result of a triage, stored with its task. `process`: the one diagnosed, ``PID:START``; of the job on another
    host ``HOST WORDS``.
    """

    code: str
    ticket: str
    process: str = ""
    diagnosis: str = ""

    def text(self) -> str:
        """Return it as stored in `Task.result`."""
        return json.dumps(self.__dict__)

    @classmethod
    def read(cls, text: str) -> TriageResult | None:
        """Parse ``{"code": "diagnosed", "ticket": "12", ...}``; None for anything else."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


class Triage:
    """Handles tasks of the kind `KIND`. Payload: ``ticket``; ``places`` and ``lang`` of the notification."""

    def __init__(
        self,
        app: App,
        ticket_service: TicketService,
        settings: TriageSettings,
        find: Callable[[Wanted], Awaitable[Resolution]] = find,
        ask_host: AskHost | None = None,
        run_on: RunOnHost | None = None,
    ) -> None:
        """`find`: finds a process of this host by labels; `ask_host`, `run_on`: ask another one to diagnose its job,
        and to run a tool; None: without a fleet.
        """
        self._app = app
        self._kb = app.kb()
        self._ticket_service = ticket_service
        self._settings = settings
        self._find = find
        self._ask_host = ask_host
        self._run_on = run_on

    async def handle(self, task: Task) -> None:
        """Diagnose the process of the ticket's alert, unless none is found or a limit is reached."""
        ticket = self._kb.tickets.get(str(task.payload.get("ticket", "")))
        if ticket.state not in LIVE:
            self._kb.tasks.done(task.id, TriageResult("over", ticket.id).text())
            return
        recent = self._recent()
        if (full := self._full(recent)) is not None:
            self._end_without(task, ticket, full)
            return
        wanted = Wanted(labels=ticket.labels, text=ticket.human.title)
        found = await self._find(wanted)
        if found.status != "found" or found.pid is None or found.start_ticks is None:
            host = _other_host(found) if found.status == "none" else None
            words = words_for_host(wanted) if host is not None else None
            if host is not None and words is not None and await self._asked(task, ticket, host, words, recent):
                return
            if host is not None and await self._examined_there(task, ticket, host, recent):
                return
            if await self._examined(task, ticket, recent):
                return
            why = [*found.how, *found.tried, *(job.id for job in found.jobs)]
            self._end_without(task, ticket, _unfound(found, wanted), why)
            return
        if f"pid:{found.pid}" in found.how and _started_after(found.start_ticks, moment(ticket.created)):
            self._end_without(task, ticket, "vanished", [f"pid:{found.pid}", "reused"])
            return
        process = f"{found.pid}:{found.start_ticks}"
        before = self._before(recent, process)
        if before is not None:
            self._end_without(task, ticket, "cooldown", [f"ticket:{before.ticket}"], before.ticket, process)
            return
        await self._diagnose(task, ticket, found.pid, process)

    def given_up(self, task: Task) -> None:
        """Note on the ticket that the task failed for good; called in the transaction that stores that."""
        self._ticket_service.triaged(str(task.payload.get("ticket", "")), "failed:internal", now=_now())

    async def _asked(
        self, task: Task, ticket: Ticket, host: str, words: str, recent: Sequence[tuple[datetime, TriageResult]]
    ) -> bool:
        """Attach what `host` diagnoses of the job that `words` name, or note why not; False if it may not be asked."""
        if self._ask_host is None:
            return False
        process = f"{host} {words}"
        before = self._before(recent, process)
        if before is not None:
            self._end_without(task, ticket, "cooldown", [f"ticket:{before.ticket}"], before.ticket, process)
            return True
        try:
            answer = await self._ask_host(host, words, self._params(ticket, None))
        except ToolError as error:  # the list of hosts is unreadable
            _log.warning("ticket %s: host %s is not asked: %s", ticket.id, host, error)
            return False
        if answer is None:
            return False
        diagnosis = _read(answer, host)
        if diagnosis is None:
            code = "absent" if answer.status == "absent" else "unanswered"
            self._end_without(task, ticket, f"{code}:{host}", [f"host:{host}", f"{answer.status}:{answer.detail}"])
            return True

        self._attach(task, ticket, diagnosis, process)
        return True

    async def _examined(self, task: Task, ticket: Ticket, recent: Sequence[tuple[datetime, TriageResult]]) -> bool:
        """Attach what `HARDWARE_TOOL` reads of this host if the alert names it and its hardware; False if it does not,
        or if nothing could be read."""
        if not _names_hardware(ticket) or not names_this_host(things_of(ticket.labels)):
            return False
        before = self._before(recent, HARDWARE_TOOL)
        if before is not None:
            self._end_without(task, ticket, "cooldown", [f"ticket:{before.ticket}"], before.ticket, HARDWARE_TOOL)
            return True
        try:
            seconds = min(self._settings.duration, _HARDWARE_S)
            result = await self._app.run_tool(HARDWARE_TOOL, {"duration": seconds}, engine=self._settings.engine)
        except ToolError as error:
            if error.code in PASSES:
                raise
            _log.warning("ticket %s: %s: %s", ticket.id, HARDWARE_TOOL, error)
            return False
        diagnosis = hardware_diagnosis(result, host_name(), short(ticket.human.title, _SYMPTOM))

        self._attach(task, ticket, diagnosis, HARDWARE_TOOL)
        return True

    async def _examined_there(
        self, task: Task, ticket: Ticket, host: str, recent: Sequence[tuple[datetime, TriageResult]]
    ) -> bool:
        """Attach what `HARDWARE_TOOL` reads of `host` if the alert names hardware of it, or note why not; False if it
        does not, or if the host may not be asked."""
        if self._run_on is None or not _names_hardware(ticket):
            return False
        process = f"{host} {HARDWARE_TOOL}"
        before = self._before(recent, process)
        if before is not None:
            self._end_without(task, ticket, "cooldown", [f"ticket:{before.ticket}"], before.ticket, process)
            return True
        codes, symptom = list(xids(_texts(ticket).lower())), short(ticket.human.title, _SYMPTOM)
        seconds = min(self._settings.duration, _HARDWARE_S)
        try:
            diagnosis, answer = await hardware_of(host, codes, symptom, seconds, self._run_on)
        except ToolError as error:  # the list of hosts is unreadable
            _log.warning("ticket %s: host %s is not asked: %s", ticket.id, host, error)
            return False
        if answer is None:
            return False
        if diagnosis is None:
            why = [f"host:{host}", f"{answer.status}:{answer.detail}"]
            self._end_without(task, ticket, f"unanswered:{host}", why)
            return True

        self._attach(task, ticket, diagnosis, process)
        return True

    def _attach(self, task: Task, ticket: Ticket, diagnosis: Diagnosis, process: str) -> None:
        """Store `diagnosis` of `process`, attach it to `ticket`, and end the task."""

        def then(stored: Diagnosis) -> None:
            has = self._ticket_service.attach(ticket.id, stored, now=_now())
            self._end(task, TriageResult(DIAGNOSED, has.id, process, stored.id))

        store_diagnosis(self._kb, diagnosis, then=then)

    def _params(self, ticket: Ticket, pid: int | None) -> DiagnoseParams:
        return DiagnoseParams(
            pid=pid,
            duration=self._settings.duration,
            engine=self._settings.engine,
            llm=self._settings.llm,
            symptom=short(ticket.human.title, _SYMPTOM),
        )

    async def _diagnose(self, task: Task, ticket: Ticket, pid: int, process: str) -> None:
        params = self._params(ticket, pid)

        def then(diagnosis: Diagnosis) -> None:
            has = self._ticket_service.attach(ticket.id, diagnosis, now=_now())
            self._end(task, TriageResult(DIAGNOSED, has.id, process, diagnosis.id))

        try:
            await self._app.diagnose(params, lang=_lang(task.payload), then=then)
        except ToolError as error:
            if error.code in PASSES:
                raise
            gone = error.code is ErrorCode.NO_SUCH_PROCESS
            _log.warning("ticket %s: no diagnosis: %s", ticket.id, error)
            self._end_without(task, ticket, "vanished" if gone else f"failed:{error.code.value}", [f"pid:{pid}"])

    def _end_without(
        self, task: Task, ticket: Ticket, code: str, why: Sequence[str] = (), other: str = "", process: str = ""
    ) -> None:
        """End the task without a diagnosis for the reason `code`; `other`: a ticket with one of the same process."""
        with self._kb.transaction():
            self._ticket_service.triaged(ticket.id, code, why, now=_now())
            if other and other != ticket.id and all(link.ticket != other for link in ticket.links):
                self._ticket_service.link(ticket.id, other, "related", by="engine", source="triage", now=_now())
            self._end(task, TriageResult(code, ticket.id, process), why)

    def _end(self, task: Task, result: TriageResult, why: Sequence[str] = ()) -> None:
        """Complete the task and queue its notification."""
        places = task.payload.get("places") or []
        with self._kb.transaction():
            if places:
                lang, langs = _lang(task.payload), task.payload.get("langs") or []
                about = {**result.__dict__, "why": list(why), "places": places, "lang": lang, "langs": langs}
                self._kb.tasks.add(NOTIFY, f"{NOTIFY}:{task.key}", about)
            self._kb.tasks.done(task.id, result.text())

    def _recent(self) -> list[tuple[datetime, TriageResult]]:
        """Return the diagnoses of the last hour (or the cooldown, if longer) and when they ended."""
        span = max(_HOUR_S, self._settings.cooldown_s)
        ended = self._kb.tasks.ended(KIND, rfc3339(_now() - timedelta(seconds=span)))
        found = [(moment(task.updated), TriageResult.read(task.result)) for task in ended]
        return [(at, r) for at, r in found if at is not None and r is not None and r.code == DIAGNOSED]

    def _full(self, recent: Sequence[tuple[datetime, TriageResult]]) -> str | None:
        """Return a code if a limit is reached."""
        hour = _now() - timedelta(seconds=_HOUR_S)
        if sum(at >= hour for at, _ in recent) >= self._settings.per_hour:
            return "too_many"
        return "too_many" if self._kb.tasks.waiting(KIND) >= self._settings.waiting else None

    def _before(self, recent: Sequence[tuple[datetime, TriageResult]], process: str) -> TriageResult | None:
        """Return the diagnosis of `process` within the cooldown."""
        since = _now() - timedelta(seconds=self._settings.cooldown_s)
        return next((result for at, result in reversed(recent) if result.process == process and since <= at), None)


def _started_after(start_ticks: int, began: datetime | None) -> bool:
    """Return whether a process started after the alert `began`: then its pid was reused by another process."""
    if began is None:
        return False
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    age = timedelta(seconds=uptime - start_ticks / os.sysconf("SC_CLK_TCK"))
    return _now() - age > began + _SKEW


def _unfound(found: Resolution, wanted: Wanted) -> str:
    """Return the code of why no process is diagnosed, with what the alert is about."""
    if found.status == "several":
        return "ambiguous"
    if (host := _other_host(found)) is not None:
        return f"elsewhere:{host}"
    part = part_of_host(wanted.labels, wanted.text)
    named = any(code.partition(":")[0] in _OF_JOB for code in found.tried)
    return f"part:{part}" if part and not named else "no_process"


# Codes of `Resolution.tried` that name a job or process.
_OF_JOB = frozenset({"pid", "container", "pod_uid", "slurm_job", "pod", "run", "rank"})


def _other_host(found: Resolution) -> str | None:
    """Return the other host that the alert is about."""
    codes = (code.partition(":") for code in found.tried)
    return next((host for kind, _, host in codes if kind == "elsewhere"), None)


def _read(answer: Answer, host: str) -> Diagnosis | None:
    """Return the diagnosis in the answer of `host`; None without one."""
    if answer.status != "answered" or answer.reply is None:
        return None
    try:
        return diagnosis_of(Diagnosis.model_validate(answer.reply), host)
    except ValidationError:
        _log.warning("host %s: its diagnosis is malformed", host)
        return None


def _names_hardware(ticket: Ticket) -> bool:
    """Return whether `HARDWARE_TOOL` examines what the ticket's alert is about."""
    check = check_of([ticket.labels.get("alertname", ticket.human.title)], _texts(ticket))
    return check is not None and check.tool == HARDWARE_TOOL


def _texts(ticket: Ticket) -> str:
    """Return the texts of a ticket's alert."""
    labels = "; ".join(f"{name}={value}" for name, value in ticket.labels.items())
    return f"{ticket.human.title}\n{ticket.human.description}\n{labels}"


def _lang(payload: dict[str, Any]) -> Lang:
    return "zh" if payload.get("lang") == "zh" else "en"


def _now() -> datetime:
    return datetime.now(timezone.utc)
