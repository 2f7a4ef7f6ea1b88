"""The background task that answers one chat message.

The answer, its changes and the end of the task are stored in one transaction, so a crash causes no second answer.
"""

from __future__ import annotations

import logging
import time

from whystall.agent_server.app import App
from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.integrations.chat import investigations
from whystall.agent_server.integrations.chat.author import author_of
from whystall.agent_server.integrations.chat.confirming import TRANSIENT, error_message
from whystall.agent_server.integrations.chat.conversation import Conversation
from whystall.agent_server.integrations.chat.message_texts import outgoing
from whystall.agent_server.integrations.chat.sending import queue
from whystall.agent_server.integrations.chat.turn import Act
from whystall.agent_server.integrations.messages import Incoming
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.task_handler import RetryLater
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.prompts.chat import say
from whystall.tools.contract.errors import ToolError

KIND = "chat"
_RETRY_S = 5.0
_log = logging.getLogger("whystall.chat")


async def handle(task: Task, app: App, ticket_service: TicketService, settings: Settings | None) -> None:
    """Run a task of kind ``chat``: answer a message (payload ``incoming``) or send a verdict (payload ``verdict``).

    Raises `RetryLater` if the knowledge base cannot be written now; the author is informed of every other error.
    """
    if "verdict" in task.payload:
        await investigations.queue_verdict(task, app, settings)
        return
    incoming = Incoming.model_validate(task.payload["incoming"])
    conversation = Conversation(app, ticket_service, settings)
    lang = author_of(incoming, settings).lang
    try:
        lang = await in_thread(lambda: conversation.language(incoming, time.time()))
        turn, _ = await conversation.turn(incoming, time.time())
        await in_thread(lambda: _answer(app, task, incoming, turn.act))
    except ToolError as error:
        if error.code in TRANSIENT:
            raise RetryLater(_RETRY_S, str(error)) from None
        failed = error_message(error, lang)
        await in_thread(lambda: _answer(app, task, incoming, lambda: failed))
    except Exception:
        # Its text may contain anything, so it goes to the log only.
        _log.exception("a message in %s could not be answered", incoming.place.channel)
        failed = outgoing(lang, [say(lang, "unexpected")])
        await in_thread(lambda: _answer(app, task, incoming, lambda: failed))


def _answer(app: App, task: Task, incoming: Incoming, act: Act) -> None:
    kb = app.kb()
    with kb.transaction():
        message = act()
        queue(kb.messages, f"answer:{task.key}", incoming.place, message)
        kb.tasks.done(task.id)
