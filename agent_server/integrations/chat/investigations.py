"""Investigations requested in chats: start one, report its progress, and send the verdict.

An investigation is a task of its own, which a crash restarts without repeating messages. Requests for a process that is
being investigated join that investigation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import anyio

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat.author import Author
from whystall.agent_server.integrations.chat.message_texts import outgoing, verdict_message
from whystall.agent_server.integrations.chat.sending import queue
from whystall.agent_server.integrations.messages import Outgoing, Place
from whystall.agent_server.integrations.pictures.store import Pictures
from whystall.agent_server.job_lookup import inventory
from whystall.agent_server.job_lookup.models import Resolution
from whystall.agent_server.journal.observation_requests import Listener, ObservationRequest, ObservationRequests
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.models import Diagnosis, Lang
from whystall.knowledge_base.times import moment
from whystall.knowledge_base.times import now as stamp
from whystall.prompts.chat import name, say
from whystall.prompts.errors import error_text
from whystall.prompts.escape import Safe, short
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.integrations.chat.conversation import Conversation

Progress: TypeAlias = "Callable[[float, float, str], None]"

KIND = "look"
HOST = "host"
WAITING = 20
"""Maximum number of queued investigations; with long windows the last takes hours."""
# Progress is reported after 20 s, 40 s, 80 s ..., so as not to flood a chat.
_FIRST_S = 20.0
_TIMES = 2.0
_TICK_S = 1.0
_NAME = 120
_OVERHEAD_S = 5.0  # besides the window: the host snapshot and the analysis


def start(kb: Stores, author: Author, found: Resolution | None, symptom: str, settings: Settings | None) -> Outgoing:
    """Start or join an investigation of the process `found` (None: of the most stalled one of this host).

    Call it in the transaction that completes the chat task.
    """
    lang = author.lang
    process = process_of(found)
    for stale in kb.observation_requests.running():  # its task failed
        task = kb.tasks.by_key(f"{KIND}:{stale.id}")
        if task is None or task.state in ("done", "failed"):
            kb.observation_requests.end(stale.id, "failed")
    waiting = kb.tasks.waiting(KIND)
    known = any(one.process == process for one in kb.observation_requests.running())
    if waiting >= WAITING and not known:
        return outgoing(lang, [say(lang, "looking.full", waiting)])
    request, new = kb.observation_requests.join(request_for(found, symptom), author.listener)
    if not new:
        return outgoing(lang, [say(lang, "looking.joined", what=describe(request, lang))], say(lang, "title.looking"))
    kb.tasks.add(KIND, f"{KIND}:{request.id}", {"inquiry": request.id})
    return started_message(request, found, lang, settings)


def process_of(found: Resolution | None) -> str:
    """Return ``PID:START_TICKS``, which a later process with the same pid does not have, or ``host``."""
    return HOST if found is None else f"{found.pid}:{found.start_ticks}"


def request_for(found: Resolution | None, symptom: str) -> ObservationRequest:
    """Return a request, not yet stored, for the process `found` (None: for this host)."""
    job = found.job if found is not None else None
    return ObservationRequest(
        id=0,
        process=process_of(found),
        state="running",
        created=stamp(),
        pid=found.pid if found is not None else None,
        rank=found.rank if found is not None else None,
        job=job.name if job is not None else "",
        program=job.program if job is not None else "",
        symptom=symptom,
    )


def started_message(
    request: ObservationRequest, found: Resolution | None, lang: Lang, settings: Settings | None
) -> Outgoing:
    """Return the message: what is investigated, for how long, and why this process of the job."""
    seconds = round(duration(settings) + _OVERHEAD_S)
    code = "looking.begun" if request.id else "looking.here"
    text = say(lang, code, what=describe(request, lang), seconds=seconds)
    return outgoing(lang, [Safe(text + _why(found, lang))], say(lang, "title.looking"))


def duration(settings: Settings | None) -> float:
    """Return the observation window in seconds."""
    return settings.triage.duration if settings is not None else 12.0


def describe(request: ObservationRequest, lang: Lang) -> Safe:
    """Return a phrase for the investigated process."""
    if request.process == HOST:
        return say(lang, "looking.host")
    if not request.job:
        return say(lang, "looking.pid", pid=request.pid)
    rank = say(lang, "jobs.rank", request.rank) if request.rank is not None else ""
    program = name(short(request.program, _NAME))
    return say(lang, "looking.job", job=name(short(request.job, _NAME)), pid=request.pid, program=program, rank=rank)


def cancel(observation_requests: ObservationRequests, author: Author) -> Outgoing:
    """Unsubscribe `author` from all investigations; one without listeners stops."""
    left = observation_requests.leave(author.listener)
    return outgoing(author.lang, [say(author.lang, "looking.cancelled" if left else "looking.nothing")])


def status(observation_requests: ObservationRequests, author: Author, now: datetime) -> Outgoing:
    """List the running investigations of `author`."""
    lines: list[str] = []
    for request in observation_requests.running():
        if any(one.same(author.listener) for one in request.listeners):
            begun = moment(request.created)
            seconds = max(0, round((now - begun).total_seconds())) if begun is not None else 0
            what = describe(request, author.lang)
            lines.append(say(author.lang, "looking.running", what=what, seconds=seconds, step=request.step))
    return outgoing(author.lang, lines or [say(author.lang, "looking.nothing")], say(author.lang, "title.looking"))


def _why(found: Resolution | None, lang: Lang) -> str:
    """Return why this process of a job was chosen."""
    if found is None or found.job is None:
        return ""
    text = ""
    if "only_job" in found.how:
        text = say(lang, "looking.why_only")
    if "suffers" in found.how:
        others = len(found.job.ranks or found.job.workers) - 1
        return text + say(lang, "looking.why_suffers", others)
    if any(code.startswith("lowest_rank:") for code in found.how):
        return text + say(lang, "looking.why_lowest")
    if any(code.startswith("first_of:") for code in found.how):
        return text + say(lang, "looking.why_first", len(found.job.workers))
    return text


# --- running ----------------------------------------------------------------------------------------------------------


async def run_task(task: Task, app: App, settings: Settings | None) -> None:
    """Run a task of kind ``look``: diagnose, report progress to listeners, and queue the verdict."""
    kb = app.kb()
    request = await in_thread(lambda: kb.observation_requests.get(int(task.payload["inquiry"])))
    if request is None or request.state != "running":
        await in_thread(lambda: kb.tasks.done(task.id))
        return
    lang = request.listeners[0].lang if request.listeners else "en"
    if request.pid is not None and not await in_thread(lambda: _same_process(request)):
        _report_failure(kb, task, request, "looking.ended")
        return
    reporter = _ProgressReporter(kb, request)

    def then(diagnosis: Diagnosis) -> None:
        # within the transaction that stores the diagnosis and its ticket
        kb.observation_requests.end(request.id, "done")
        kb.tasks.add("chat", f"verdict:{request.id}", {"verdict": diagnosis.id, "inquiry": request.id})
        kb.tasks.done(task.id, diagnosis.id)

    failure: ToolError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reporter.watch, tasks.cancel_scope)
        try:
            await app.diagnose(_params(request, settings), progress=reporter.progress, lang=lang, then=then)
        except ToolError as error:
            failure = error  # handled below: the task group would wrap it
        tasks.cancel_scope.cancel()
    if failure is not None:
        _report_failure(kb, task, request, "looking.failed", failure)
    elif reporter.stopped:
        kb.tasks.done(task.id, "cancelled")


async def run_now(
    conversation: Conversation, request: ObservationRequest, author: Author, progress: Progress | None
) -> Diagnosis:
    """Run `request` now and remember its diagnosis in the conversation's context. Raises as `App.diagnose`."""
    kb = conversation.app.kb()

    def then(diagnosis: Diagnosis) -> None:
        context = {"diagnosis": diagnosis.id, "ticket": diagnosis.ticket or "", "lang": author.lang}
        kb.pending_commands.put_topic(*author.key, context, time.time())

    params = _params(request, conversation.settings)
    return await conversation.app.diagnose(params, progress=progress, lang=author.lang, then=then)


def _params(request: ObservationRequest, settings: Settings | None) -> DiagnoseParams:
    triage = settings.triage if settings is not None else None
    return DiagnoseParams(
        pid=request.pid,
        duration=max(1.0, duration(settings)),
        symptom=request.symptom,
        ticket=True,
        llm=triage.llm if triage is not None else False,
        engine=triage.engine if triage is not None else "auto",
    )


class _ProgressReporter:
    """Reports the progress of one investigation, and stops it when its last listener leaves."""

    def __init__(self, kb: Stores, request: ObservationRequest) -> None:
        self._kb = kb
        self._id = request.id
        self._started = time.monotonic()
        self._next = _FIRST_S
        self._step = ""
        self._reported = ""
        self.stopped = False

    def progress(self, done: float, total: float, message: str) -> None:
        """Keep the step that the diagnosis reports."""
        self._step = message

    async def watch(self, scope: anyio.CancelScope) -> None:
        """Report every second; cancel `scope` when nobody listens any more."""
        while True:
            await anyio.sleep(_TICK_S)
            if not await in_thread(self._report):
                self.stopped = True
                scope.cancel()
                return

    def _report(self) -> bool:
        """Store the step, send it if due, and return whether anybody still listens."""
        now, step = self._kb.observation_requests.get(self._id), self._step
        if now is None or now.state == "cancelled":
            return False
        if step != self._reported:
            self._kb.observation_requests.set_step(self._id, step)
            self._reported = step
        seconds = time.monotonic() - self._started
        if seconds >= self._next and step:
            self._send_progress(now, round(seconds))
            self._next *= _TIMES
        return True

    def _send_progress(self, request: ObservationRequest, seconds: int) -> None:
        with self._kb.transaction():
            for n, listener in enumerate(request.listeners):
                step = short(self._step, _NAME)
                message = outgoing(listener.lang, [say(listener.lang, "looking.progress", seconds=seconds, step=step)])
                _put(self._kb, f"look:{self._id}:{round(self._next)}:{n}", listener, message)


def _same_process(request: ObservationRequest) -> bool:
    pid = request.pid
    assert pid is not None  # noqa: S101 - the caller checked
    return request.process == f"{pid}:{inventory.start_ticks(pid)}" and pid != os.getpid()


def _report_failure(
    kb: Stores, task: Task, request: ObservationRequest, code: str, error: ToolError | None = None
) -> None:
    """Inform all listeners why there is no verdict, and end the task."""
    if error is not None and error.code is ErrorCode.NO_SUCH_PROCESS:
        code = "looking.ended"
    with kb.transaction():
        now = kb.observation_requests.get(request.id) or request
        for n, listener in enumerate(now.listeners):
            lang = listener.lang
            if code == "looking.ended" or error is None:
                line = say(lang, "looking.ended", describe(request, lang))
            else:
                line = say(lang, code, error_text(lang, error.code.value, error.message, error.remedy))
            _put(kb, f"look:{request.id}:failed:{n}", listener, outgoing(lang, [line], say(lang, "title.none")))
        kb.observation_requests.end(request.id, "failed")
        kb.tasks.done(task.id, error.code.value if error is not None else "ended")


async def queue_verdict(task: Task, app: App, settings: Settings | None) -> None:
    """Queue the verdict for all listeners, each in their language, with a picture if one can be drawn."""
    kb = app.kb()
    url = settings.server.public_url if settings is not None else None
    request = await in_thread(lambda: kb.observation_requests.get(int(task.payload["inquiry"])))
    diagnosis = await in_thread(lambda: kb.get_diagnosis(str(task.payload["verdict"])))
    listeners: Sequence[Listener] = request.listeners if request is not None else []
    pictures = await in_thread(
        lambda: {lang: picture_of(diagnosis, lang, url) for lang in {one.lang for one in listeners}}
    )
    with kb.transaction():
        for n, listener in enumerate(listeners):
            message = verdict_message(diagnosis, listener.lang, None, pictures[listener.lang])
            _put(kb, f"{task.key}:{n}", listener, message)
            place = listener.place
            context = {"diagnosis": diagnosis.id, "ticket": diagnosis.ticket or ""}
            kb.pending_commands.put_topic(
                place["channel"], place["conversation"], listener.sender, context, time.time()
            )
        kb.tasks.done(task.id)


def picture_of(diagnosis: Diagnosis, lang: Lang, public_url: str | None = None) -> str | None:
    """Return the uri of a picture of `diagnosis`, or None if none can be drawn or stored."""
    try:
        return Pictures(public_url).make(diagnosis, lang)
    except ToolError:
        return None


def _put(kb: Stores, key: str, listener: Listener, message: Outgoing) -> None:
    queue(kb.messages, key, Place.model_validate(listener.place), message)
