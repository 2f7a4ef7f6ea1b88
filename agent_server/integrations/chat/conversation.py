"""The conversation: what somebody said becomes what is answered, and what is done about it.

The handler of a task answers at once and in one transaction: the answer, what it changes, and that the task is done are
stored together, so that a message is answered once, whenever the process is killed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat import alert_overview, answers, investigations
from whystall.agent_server.integrations.chat.answers import Answers
from whystall.agent_server.integrations.chat.author import Author, author_of
from whystall.agent_server.integrations.chat.commands import CHANGE, Commands, PendingCommand, expires
from whystall.agent_server.integrations.chat.intents import Intent, parts_of, subject_of, understand, wanted_of
from whystall.agent_server.integrations.chat.message_texts import outgoing, similar_message
from whystall.agent_server.integrations.chat.sending import queue
from whystall.agent_server.integrations.chat.turn import Act, Turn
from whystall.agent_server.integrations.job_lookup.find import closer, find, running_jobs
from whystall.agent_server.integrations.job_lookup.models import LISTED, Resolution, Wanted
from whystall.agent_server.integrations.messages import Incoming, Outgoing
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.task_handler import RetryLater
from whystall.knowledge_base.models import Lang
from whystall.prompts.chat import say
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.app import App
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.ticketing.ticket_service import TicketService

KIND = "chat"
CHOOSE = "choose"
_SPOKEN_S = 3600.0  # what was spoken of longer ago is not meant by "that"
_SYMPTOM = 1000
_PASSES = (ErrorCode.DATABASE, ErrorCode.DISK_FULL)
_AGAIN_S = 5.0
_log = logging.getLogger("whystall.chat")


@dataclass(frozen=True)
class Conversation:
    """Answers what is said, with the knowledge base of `app`. `settings`: None where there are none. `alone`: nobody
    works in the background, and looks are left to the caller (`Turn.look`).
    """

    app: App
    ticket_service: TicketService
    settings: Settings | None
    alone: bool = False

    async def turn(
        self, incoming: Incoming, now: float, lang: Lang | None = None, llm: bool | None = None
    ) -> tuple[Turn, Author]:
        """What is answered to `incoming` at `now` (seconds since the epoch). `lang` and `llm`: instead of what the
        settings say of its chat. Raises `ToolError` where it cannot be looked up.
        """
        kb = self.app.kb()
        place = incoming.place
        key = (place.channel, place.conversation, incoming.sender)
        spoken = await in_thread(lambda: kb.pending_commands.topic(*key, now - _SPOKEN_S))
        waiting = await in_thread(lambda: kb.pending_commands.get(*key, now))
        author = author_of(incoming, self.settings, (waiting or spoken).get("lang"))
        author = replace(author, lang=lang or author.lang, llm=author.llm if llm is None else llm)
        intent = understand(incoming.text)
        turn = await self._turn(intent, author, now, waiting, spoken)
        return turn, author

    async def _turn(
        self, intent: Intent, author: Author, now: float, waiting: dict[str, Any] | None, spoken: dict[str, Any]
    ) -> Turn:
        if waiting is not None and waiting.get("kind") == CHOOSE and (chosen := _choice(author.incoming.text, waiting)):
            return await self._chosen(chosen, author, now, waiting)
        if intent.name in ("yes", "no"):
            return self._decided(intent.name == "yes", author, now)
        if intent.changes:
            return await self._wished(intent, author, now)
        if author.llm and intent.name not in _PLAIN:
            from whystall.agent_server.integrations.chat.assistant import assisted

            answer = await assisted(self, intent, author, now, spoken)
            if answer is not None:
                return answer
        parts = parts_of(author.incoming.text)
        if not parts:
            return await self.looked_up(intent, author, now, spoken)
        turns = [await self.looked_up(part, author, now, spoken) for part in parts]
        look = next((turn.look for turn in turns if turn.look is not None), None)
        return Turn(lambda: together([turn.act() for turn in turns]), look)

    async def looked_up(self, intent: Intent, author: Author, now: float, spoken: dict[str, Any]) -> Turn:
        """The answer to what changes nothing, by the rules alone."""
        kb, lang = self.app.kb(), author.lang
        local = datetime.fromtimestamp(now, author.zone)
        known = Answers(kb, self.settings)
        name = intent.name
        if name == "why":
            return await self._why(intent, author, now)
        if name == "jobs":
            return await self._jobs(intent, author, now)
        if name == "on_call":
            return said(await in_thread(lambda: known.on_call(intent, lang, local, author.user)))
        if name in ("ticket", "spoken", "chosen"):
            id = _ticket_of(intent, spoken)
            if id is None:
                return said(outgoing(lang, [say(lang, "ticket.which")]))
            message = await in_thread(lambda: known.ticket(id, lang))
            return self._remembering(message, author, now, spoken, ticket=id)
        if name == "tickets":
            message, ids = await in_thread(lambda: known.tickets(intent, lang, author.user))
            return self._remembering(message, author, now, spoken, listed=ids)
        if name == "similar":
            return said(await in_thread(lambda: self._similar(known, intent, lang, spoken)))
        if name in ("alerts", "silences"):
            return said(await in_thread(lambda: alert_overview.told(kb, name, lang, local)))
        if name == "undeletable":
            return said(outgoing(lang, [say(lang, "undeletable")]))
        if name == "cancel":
            return Turn(lambda: self._cancelled(author))
        if name == "status":
            return Turn(lambda: investigations.status(kb, author, local))
        if name == "help":
            rest = say(lang, "help_change" if author.may_change else "help_no_change")
            return said(outgoing(lang, [say(lang, "help"), rest], say(lang, "title.help")))
        if name == "thanks":
            return said(outgoing(lang, [say(lang, "thanks")]))
        return said(outgoing(lang, [say(lang, "unknown")]))

    # --- looks ------------------------------------------------------------------------------------------------------

    async def _why(self, intent: Intent, author: Author, now: float) -> Turn:
        wanted, sure = subject_of(intent.text)
        found = await find(wanted)
        if found.status == "none" and not sure:
            found = await find(Wanted(rank=wanted.rank))
        if found.status == "several":
            return self.asked_back(found, author, now)
        if found.status == "none":
            if any(code != "words" for code in found.tried):
                return said(answers.not_found(found, author.lang))
            return self.look(None, author, intent.text)  # nobody was named: whoever suffers most
        return self.look(found, author, intent.text)

    def look(self, found: Resolution | None, author: Author, symptom: str) -> Turn:
        """Begin to look at what was `found`; None: at this machine."""
        symptom = symptom[:_SYMPTOM]
        if self.alone:
            inquiry = investigations.inquiry_of(found, symptom)
            return Turn(lambda: investigations.begun_message(inquiry, found, author.lang, self.settings), inquiry)
        return Turn(lambda: investigations.begin(self.app.kb(), author, found, symptom, self.settings))

    def asked_back(self, found: Resolution, author: Author, now: float) -> Turn:
        """Ask which of several is meant, and wait for a number."""
        command = {
            "kind": CHOOSE,
            "jobs": [[job.id, job.pid] for job in found.jobs],
            "symptom": author.incoming.text[:_SYMPTOM],
            "lang": author.lang,
        }

        def act() -> Outgoing:
            self.app.kb().pending_commands.put(*author.key, command, expires(_moment(now)))
            return answers.question(found, author.lang)

        return Turn(act)

    async def _chosen(self, chosen: int, author: Author, now: float, waiting: dict[str, Any]) -> Turn:
        """Look at the one that was chosen, if it is still there."""
        id, pid = waiting["jobs"][chosen - 1]
        found = await find(Wanted(pid=int(pid)), look_s=0)
        if found.job is None or found.job.id != id:
            return said(
                outgoing(author.lang, [say(author.lang, "looking.ended", say(author.lang, "looking.pid", pid=pid))])
            )
        several = len(found.job.ranks) > 1
        found = await closer(found.model_copy(update={"how": [f"lowest_rank:{found.rank}"] if several else found.how}))
        turn = self.look(found, author, str(waiting.get("symptom", "")))

        def act() -> Outgoing:
            self.app.kb().pending_commands.drop(*author.key)
            return turn.act()

        return Turn(act, turn.look)

    async def _jobs(self, intent: Intent, author: Author, now: float) -> Turn:
        text = intent.get("job")
        if text:
            return said(
                answers.found_message(await find(wanted_of(text) if " " in text else Wanted(text=text), 0), author.lang)
            )
        seen, shown = await in_thread(running_jobs)
        return said(answers.jobs_message(shown[:LISTED], len(shown) - LISTED, seen.missed, author.lang))

    def _cancelled(self, author: Author) -> Outgoing:
        kb = self.app.kb()
        waited = kb.pending_commands.get(*author.key, datetime.now(timezone.utc).timestamp())
        kb.pending_commands.drop(*author.key)
        message = investigations.leave(kb, author)
        if waited is not None and waited.get("kind") == CHANGE:
            return outgoing(author.lang, [say(author.lang, "dropped")])
        return message

    # --- what changes something -------------------------------------------------------------------------------------

    async def _wished(self, intent: Intent, author: Author, now: float) -> Turn:
        kb, local = self.app.kb(), datetime.fromtimestamp(now, author.zone)
        commands = Commands(kb, self.ticket_service, self.settings)
        command, message = await in_thread(lambda: commands.prepare(intent, author, local))
        target = f"ticket:{intent.get('id')}" if intent.get("id") else "silence"

        def act() -> Outgoing:
            detail = {
                "command": intent.name,
                "sender": author.incoming.sender,
                "channel": author.incoming.place.channel,
            }
            if command is not None:
                kb.pending_commands.put(*author.key, {**command.body(), "lang": author.lang}, expires(_moment(now)))
                kb.audit.put(author.name, "chat.asked", target, "to_confirm", {**detail, "slots": command.slots})
            elif not author.may_change:
                kb.audit.put(author.name, "chat.asked", target, "not_allowed", detail)
            return message

        return Turn(act)

    def _decided(self, yes: bool, author: Author, now: float) -> Turn:
        """Grant what waits, or drop it."""
        kb = self.app.kb()
        commands = Commands(kb, self.ticket_service, self.settings)

        def act() -> Outgoing:
            body = kb.pending_commands.take(*author.key, now)
            command = PendingCommand.read(body) if body is not None else None
            if command is None:
                return outgoing(author.lang, [say(author.lang, "dropped" if body is not None else "nothing_waits")])
            detail = {
                "command": command.command,
                "sender": author.incoming.sender,
                "channel": author.incoming.place.channel,
            }
            target = f"ticket:{command.slots['id']}" if "id" in command.slots else "silence"
            if not yes:
                kb.audit.put(author.name, "chat.confirmed", target, "dropped", detail)
                return outgoing(author.lang, [say(author.lang, "dropped")])
            try:
                with kb.transaction():
                    message = commands.execute(command, author, datetime.fromtimestamp(now, author.zone))
                    kb.audit.put(
                        author.name, "chat.confirmed", target, "ok" if author.may_change else "not_allowed", detail
                    )
            except ToolError as error:
                if error.code in _PASSES:
                    raise
                kb.audit.put(author.name, "chat.confirmed", target, error.code.value, detail)
                return _failed(error, author.lang)
            return message

        return Turn(act)

    # --- within -----------------------------------------------------------------------------------------------------

    def _similar(self, known: Answers, intent: Intent, lang: Lang, spoken: dict[str, Any]) -> Outgoing:
        if id := intent.get("id").lstrip("0"):
            return known.similar_to(id, lang)
        if text := intent.get("text"):
            return known.similar(text, lang)
        if diagnosis := spoken.get("diagnosis"):
            return similar_message(known.matches(str(diagnosis)), lang)
        if spoken.get("ticket"):
            return known.similar_to(str(spoken["ticket"]), lang)
        return outgoing(lang, [say(lang, "lacks.similar")])

    def _remembering(
        self, message: Outgoing, author: Author, now: float, spoken: dict[str, Any], **what: object
    ) -> Turn:
        def act() -> Outgoing:
            self.app.kb().pending_commands.put_topic(*author.key, {**spoken, **what, "lang": author.lang}, now)
            return message

        return Turn(act)


# What a model is not needed for.
_PLAIN = frozenset(
    {"cancel", "status", "help", "thanks", "ticket", "chosen", "alerts", "silences", "undeletable"},
)


def together(messages: Sequence[Outgoing]) -> Outgoing:
    """Several answers as one message."""
    return messages[0].model_copy(update={"text": "\n\n".join(message.text for message in messages)})


def _ticket_of(intent: Intent, spoken: dict[str, Any]) -> str | None:
    """The number of the ticket that is meant: as it is said, by its place in the list that was shown, or the one that
    was spoken of last.
    """
    if intent.name == "spoken":
        found = spoken.get("ticket")
        return str(found) if found else None
    if intent.name == "ticket":
        return intent.get("id").lstrip("0") or "0"
    shown = [str(id) for id in spoken.get("listed") or []]
    said = intent.get("nth").lower()
    place = int(said) if said.isdigit() else _PLACES.get(said, 0)
    return shown[place - 1] if 0 < place <= len(shown) else shown[-1] if place < 0 and shown else None


_PLACES = {word: n for n, word in enumerate(("first", "second", "third", "fourth", "fifth"), 1)}
_PLACES |= {word: n for n, word in enumerate("一二三四五六七八九十", 1)} | {"last": -1, "最后": -1}


def said(message: Outgoing) -> Turn:
    """A turn that only says something."""
    return Turn(lambda: message)


async def handle(task: Task, app: App, ticket_service: TicketService, settings: Settings | None) -> None:
    """Do a task of the kind ``chat``: answer a message (payload ``incoming``), or tell what a look found (``verdict``).

    Raises `RetryLater` where the knowledge base cannot be written now; every other fault is told to who asked.
    """
    if "verdict" in task.payload:
        await investigations.queue_verdict(task, app, settings)
        return
    incoming = Incoming.model_validate(task.payload["incoming"])
    lang: Lang = "en"
    try:
        turn, author = await Conversation(app, ticket_service, settings).turn(incoming, _now())
        lang = author.lang
        await in_thread(lambda: _answer(app, task, incoming, turn.act))
    except ToolError as error:
        if error.code in _PASSES:
            raise RetryLater(_AGAIN_S, str(error)) from None
        failed = _failed(error, author_of(incoming, settings).lang)
        await in_thread(lambda: _answer(app, task, incoming, lambda: failed))
    except Exception:
        # What it says may hold anything: it stays in the log, and who asked is not left without an answer.
        _log.exception("a message in %s could not be answered", incoming.place.channel)
        failed = outgoing(lang, [say(lang, "unexpected")])
        await in_thread(lambda: _answer(app, task, incoming, lambda: failed))


def _answer(app: App, task: Task, incoming: Incoming, act: Act) -> None:
    kb = app.kb()
    with kb.transaction():
        message = act()
        queue(kb, f"answer:{task.key}", incoming.place, message)
        kb.tasks.done(task.id)


def _failed(error: ToolError, lang: Lang) -> Outgoing:
    return outgoing(lang, [say(lang, "failed", message=error.message, remedy=error.remedy)])


def _choice(text: str, waiting: dict[str, Any]) -> int | None:
    """The number of the one that is chosen, from 1: by its place, or by its pid."""
    found = re.fullmatch(r"\s*(?:#|no\.?|number|第|选)?\s*([0-9]{1,7})\s*(?:个|号|\.)?\s*", text, re.I)
    if found is None:
        return None
    number = int(found[1])
    pids = [int(pid) for _, pid in waiting["jobs"]]
    if 1 <= number <= len(pids):
        return number
    return pids.index(number) + 1 if number in pids else None


def _moment(now: float) -> datetime:
    return datetime.fromtimestamp(now, timezone.utc)


def _now() -> float:
    return datetime.now(timezone.utc).timestamp()
