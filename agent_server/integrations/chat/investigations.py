"""A look at a process because somebody in a chat asked: begun at once, told of on the way, its verdict told in the end.

A process is looked at once at a time, whoever asks. The look is a task of its own, so that no chat waits for it; killed
anywhere, it is begun again, and what was told is not told twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import anyio

from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat.author import Author
from whystall.agent_server.integrations.chat.message_texts import outgoing, verdict_message
from whystall.agent_server.integrations.chat.sending import queue
from whystall.agent_server.integrations.job_lookup import inventory
from whystall.agent_server.integrations.messages import Outgoing, Place
from whystall.agent_server.journal.observation_requests import Listener, ObservationRequest
from whystall.agent_server.journal.tasks import Task
from whystall.knowledge_base.models import Lang
from whystall.knowledge_base.times import moment
from whystall.knowledge_base.times import now as stamp
from whystall.prompts.chat import name, say
from whystall.prompts.escape import Safe, short
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from whystall.agent_server.app import App
    from whystall.agent_server.integrations.chat.conversation import Conversation
    from whystall.agent_server.integrations.job_lookup.models import Resolution
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.models import Diagnosis

Progress: TypeAlias = "Callable[[float, float, str], None]"

KIND = "look"
HOST = "host"
WAITING = 20
"""Looks that may wait at once: with the longest windows the last would be told of after hours."""
# Told first after so many seconds, then each time after twice as many: a chat is not to be flooded.
_FIRST_S = 20.0
_TIMES = 2.0
_TICK_S = 1.0
_NAME = 120
_OVERHEAD_S = 5.0  # the first look, and what is computed


def begin(kb: Stores, author: Author, found: Resolution | None, symptom: str, settings: Settings | None) -> Outgoing:
    """Begin to look at what was `found` (None: at whoever of this machine is held up most), or listen to a look that is
    under way. Call it in the transaction that ends the question.
    """
    lang = author.lang
    process = process_of(found)
    for stale in kb.observation_requests.running():  # its task was given up
        task = kb.tasks.by_key(f"{KIND}:{stale.id}")
        if task is None or task.state in ("done", "failed"):
            kb.observation_requests.end(stale.id, "failed")
    waiting = kb.tasks.waiting(KIND)
    known = any(one.process == process for one in kb.observation_requests.running())
    if waiting >= WAITING and not known:
        return outgoing(lang, [say(lang, "looking.full", waiting)])
    inquiry, new = kb.observation_requests.join(inquiry_of(found, symptom), author.listener)
    if not new:
        return outgoing(lang, [say(lang, "looking.joined", what=described(inquiry, lang))], say(lang, "title.looking"))
    kb.tasks.add(KIND, f"{KIND}:{inquiry.id}", {"inquiry": inquiry.id})
    return begun_message(inquiry, found, lang, settings)


def process_of(found: Resolution | None) -> str:
    """What tells the process that was `found` from a later one of the same number."""
    return HOST if found is None else f"{found.pid}:{found.start_ticks}"


def inquiry_of(found: Resolution | None, symptom: str) -> ObservationRequest:
    """A look at what was `found` (None: at this machine), not yet stored."""
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


def begun_message(
    inquiry: ObservationRequest, found: Resolution | None, lang: Lang, settings: Settings | None
) -> Outgoing:
    """What is looked at, why at that of several, and for how long."""
    seconds = round(duration(settings) + _OVERHEAD_S)
    code = "looking.begun" if inquiry.id else "looking.here"
    text = say(lang, code, what=described(inquiry, lang), seconds=seconds)
    return outgoing(lang, [Safe(text + _why(found, lang))], say(lang, "title.looking"))


def duration(settings: Settings | None) -> float:
    """Seconds that a look observes."""
    return settings.triage.duration if settings is not None else 12.0


def described(inquiry: ObservationRequest, lang: Lang) -> Safe:
    """What is looked at."""
    if inquiry.process == HOST:
        return say(lang, "looking.host")
    if not inquiry.job:
        return say(lang, "looking.pid", pid=inquiry.pid)
    rank = say(lang, "jobs.rank", inquiry.rank) if inquiry.rank is not None else ""
    program = name(short(inquiry.program, _NAME))
    return say(lang, "looking.job", job=name(short(inquiry.job, _NAME)), pid=inquiry.pid, program=program, rank=rank)


def leave(kb: Stores, author: Author) -> Outgoing:
    """`author` wants to know nothing more; a look that nobody listens to is stopped."""
    left = kb.observation_requests.leave(author.listener)
    return outgoing(author.lang, [say(author.lang, "looking.cancelled" if left else "looking.nothing")])


def status(kb: Stores, author: Author, now: datetime) -> Outgoing:
    """What is being looked at for `author`."""
    lines: list[str] = []
    for inquiry in kb.observation_requests.running():
        if any(one.same(author.listener) for one in inquiry.listeners):
            begun = moment(inquiry.created)
            seconds = max(0, round((now - begun).total_seconds())) if begun is not None else 0
            what = described(inquiry, author.lang)
            lines.append(say(author.lang, "looking.running", what=what, seconds=seconds, step=inquiry.step))
    return outgoing(author.lang, lines or [say(author.lang, "looking.nothing")], say(author.lang, "title.looking"))


def _why(found: Resolution | None, lang: Lang) -> str:
    """Why this one, where a job has several."""
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


# --- the look itself --------------------------------------------------------------------------------------------------


async def run_task(task: Task, app: App, settings: Settings | None) -> None:
    """Do a task of the kind ``look``: diagnose, tell progress to who listens, and queue what tells the verdict."""
    kb = app.kb()
    inquiry = await in_thread(lambda: kb.observation_requests.get(int(task.payload["inquiry"])))
    if inquiry is None or inquiry.state != "running":
        await in_thread(lambda: kb.tasks.done(task.id))
        return
    lang = inquiry.listeners[0].lang if inquiry.listeners else "en"
    if inquiry.pid is not None and not await in_thread(lambda: _same_process(inquiry)):
        _failed(kb, task, inquiry, "looking.ended")
        return
    look = _Look(kb, task, inquiry)

    def then(diagnosis: Diagnosis) -> None:
        """In the transaction that stores the diagnosis and its ticket."""
        kb.observation_requests.end(inquiry.id, "done")
        kb.tasks.add("chat", f"verdict:{inquiry.id}", {"verdict": diagnosis.id, "inquiry": inquiry.id})
        kb.tasks.done(task.id, diagnosis.id)

    failure: ToolError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look.watch, tasks.cancel_scope)
        try:
            await app.diagnose(_params(inquiry, settings), progress=look.progress, lang=lang, then=then)
        except ToolError as error:
            failure = error  # told below: the task group would wrap it
        tasks.cancel_scope.cancel()
    if failure is not None:
        _failed(kb, task, inquiry, "looking.failed", failure)
    elif look.stopped:
        kb.tasks.done(task.id, "cancelled")


async def run_now(
    conversation: Conversation, inquiry: ObservationRequest, author: Author, progress: Progress | None
) -> Diagnosis:
    """Look at `inquiry` at once, for somebody who waits for it, and keep what was found. Raises as `App.diagnose`."""
    kb = conversation.app.kb()

    def then(diagnosis: Diagnosis) -> None:
        talk = {"diagnosis": diagnosis.id, "ticket": diagnosis.ticket or "", "lang": author.lang}
        kb.pending_commands.put_topic(*author.key, talk, time.time())

    params = _params(inquiry, conversation.settings)
    return await conversation.app.diagnose(params, progress=progress, lang=author.lang, then=then)


def _params(inquiry: ObservationRequest, settings: Settings | None) -> DiagnoseParams:
    triage = settings.triage if settings is not None else None
    return DiagnoseParams(
        pid=inquiry.pid,
        duration=max(1.0, duration(settings)),
        symptom=inquiry.symptom,
        ticket=True,
        llm=triage.llm if triage is not None else False,
        engine=triage.engine if triage is not None else "auto",
    )


class _Look:
    """Tells of the progress of one look, and stops it when nobody listens any more."""

    def __init__(self, kb: Stores, task: Task, inquiry: ObservationRequest) -> None:
        self._kb = kb
        self._id = inquiry.id
        self._began = time.monotonic()
        self._next = _FIRST_S
        self._step = ""
        self._told = ""
        self.stopped = False

    def progress(self, done: float, total: float, message: str) -> None:
        """As a diagnosis reports it."""
        self._step = message

    async def watch(self, scope: anyio.CancelScope) -> None:
        """Look every second whether somebody still listens, and tell them how far it is."""
        while True:
            await anyio.sleep(_TICK_S)
            if not await in_thread(self._told_of):
                self.stopped = True
                scope.cancel()
                return

    def _told_of(self) -> bool:
        """Keep and tell how far it is, where that is due; whether somebody still listens."""
        now, step = self._kb.observation_requests.get(self._id), self._step
        if now is None or now.state == "cancelled":
            return False
        if step != self._told:
            self._kb.observation_requests.set_step(self._id, step)
            self._told = step
        seconds = time.monotonic() - self._began
        if seconds >= self._next and step:
            self._tell(now, round(seconds))
            self._next *= _TIMES
        return True

    def _tell(self, inquiry: ObservationRequest, seconds: int) -> None:
        with self._kb.transaction():
            for n, listener in enumerate(inquiry.listeners):
                step = short(self._step, _NAME)
                message = outgoing(listener.lang, [say(listener.lang, "looking.progress", seconds=seconds, step=step)])
                _put(self._kb, f"look:{self._id}:{round(self._next)}:{n}", listener, message)


def _same_process(inquiry: ObservationRequest) -> bool:
    pid = inquiry.pid
    assert pid is not None  # noqa: S101 - the caller looked
    return inquiry.process == f"{pid}:{inventory.start_ticks(pid)}" and pid != os.getpid()


def _failed(kb: Stores, task: Task, inquiry: ObservationRequest, code: str, error: ToolError | None = None) -> None:
    """Tell all who listen that there is no verdict, and why."""
    if error is not None and error.code is ErrorCode.NO_SUCH_PROCESS:
        code = "looking.ended"
    with kb.transaction():
        now = kb.observation_requests.get(inquiry.id) or inquiry
        for n, listener in enumerate(now.listeners):
            lang = listener.lang
            if code == "looking.ended" or error is None:
                line = say(lang, "looking.ended", described(inquiry, lang))
            else:
                line = say(lang, code, message=error.message, remedy=error.remedy)
            _put(kb, f"look:{inquiry.id}:failed:{n}", listener, outgoing(lang, [line], say(lang, "title.none")))
        kb.observation_requests.end(inquiry.id, "failed")
        kb.tasks.done(task.id, error.code.value if error is not None else "ended")


async def queue_verdict(task: Task, app: App, settings: Settings | None) -> None:
    """Tell all who listened what was found out, in the language of each, with a picture where one can be made."""
    kb = app.kb()
    url = settings.server.public_url if settings is not None else None
    inquiry = await in_thread(lambda: kb.observation_requests.get(int(task.payload["inquiry"])))
    diagnosis = await in_thread(lambda: kb.get_diagnosis(str(task.payload["verdict"])))
    listeners: Sequence[Listener] = inquiry.listeners if inquiry is not None else []
    pictures = await in_thread(lambda: {lang: picture_of(diagnosis, lang, url) for lang in _langs(listeners)})
    with kb.transaction():
        for n, listener in enumerate(listeners):
            message = verdict_message(diagnosis, listener.lang, None, pictures[listener.lang])
            _put(kb, f"{task.key}:{n}", listener, message)
            place = listener.place
            talk = {"diagnosis": diagnosis.id, "ticket": diagnosis.ticket or ""}
            kb.pending_commands.put_topic(place["channel"], place["conversation"], listener.sender, talk, time.time())
        kb.tasks.done(task.id)


def picture_of(diagnosis: Diagnosis, lang: Lang, public_url: str | None = None) -> str | None:
    """The uri of a picture of `diagnosis`; None where there is no room, or nothing to draw with: the text tells it."""
    from whystall.agent_server.integrations.pictures.store import Pictures

    try:
        return Pictures(public_url).make(diagnosis, lang)
    except ToolError:
        return None


def _langs(listeners: Sequence[Listener]) -> list[Lang]:
    return list(dict.fromkeys(listener.lang for listener in listeners))


def _put(kb: Stores, key: str, listener: Listener, message: Outgoing) -> None:
    queue(kb, key, Place.model_validate(listener.place), message)
