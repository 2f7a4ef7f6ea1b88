"""Sends the result of a triage to chats: the verdict with a picture, or why nothing was diagnosed; who is on call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat.message_texts import no_look_message, responsible_line, verdict_message
from whystall.agent_server.integrations.chat.sending import queue
from whystall.agent_server.integrations.messages import Outgoing, Place
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.worker.triage import DIAGNOSED
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.models import Diagnosis, Lang
    from whystall.knowledge_base.ticket_models import Ticket


class TriageNotifier:
    """Handles tasks of the kind ``tell``; see `Triage`. `picture`: draws a diagnosis and returns the uri;
    `responsible`: returns the assignees of a ticket with their contacts.
    """

    def __init__(
        self,
        kb: Stores,
        picture: Callable[[Diagnosis, Lang], str | None] | None,
        responsible: Callable[[Ticket], Sequence[str]] | None = None,
    ) -> None:
        self._kb = kb
        self._picture = picture
        self._responsible = responsible

    async def handle(self, task: Task) -> None:
        """Queue one message per chat and complete the task in the same transaction."""
        about = task.payload
        places = about["places"]
        given = about.get("langs") or [about.get("lang")] * len(places)  # a language per place
        langs: list[Lang] = ["zh" if lang == "zh" else "en" for lang in given]
        messages = {lang: await self._message(about, lang) for lang in dict.fromkeys(langs)}
        with self._kb.transaction():
            for n, (place, lang) in enumerate(zip(places, langs, strict=True)):
                queue(self._kb.messages, f"{task.key}:{n}", _place(place), messages[lang])
            self._kb.tasks.done(task.id)

    async def _message(self, about: Mapping[str, Any], lang: Lang) -> Outgoing:
        """Return the message about a triage, with the people responsible."""
        ticket = self._kb.tickets.get(about["ticket"])
        if about["code"] == DIAGNOSED:
            diagnosis = self._kb.get_diagnosis(about["diagnosis"])
            message = verdict_message(diagnosis, lang, ticket, await self._pictured(diagnosis, lang))
        else:
            message = no_look_message(ticket, about["code"], about.get("why") or [], lang)
        people = self._responsible(ticket) if self._responsible is not None else []
        if people:
            text = f"{message.text}\n\n{responsible_line(people, lang)}"
            message = message.model_copy(update={"text": text})
        return message

    async def _pictured(self, diagnosis: Diagnosis, lang: Lang) -> str | None:
        """Return the uri of a picture; None if it cannot be stored, since the message matters more."""
        make = self._picture
        if make is None:
            return None
        try:
            return await in_thread(lambda: make(diagnosis, lang))
        except ToolError:
            return None


def _place(given: object) -> Place:
    try:
        return Place.model_validate(given)
    except ValidationError as error:
        message = f"the task has no valid chat conversation: {error.errors()[0]['msg']}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "queue it again") from None
