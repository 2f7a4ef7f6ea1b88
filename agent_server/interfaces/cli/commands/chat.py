"""``whystall chat``."""

from __future__ import annotations

import getpass
import sys
import time
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from whystall.agent_server.app import App
from whystall.agent_server.integrations.chat.author import TERMINAL
from whystall.agent_server.integrations.chat.confirming import error_message
from whystall.agent_server.integrations.chat.conversation import Conversation
from whystall.agent_server.integrations.chat.investigations import run_now
from whystall.agent_server.integrations.chat.message_texts import verdict_message
from whystall.agent_server.integrations.chat_vendors.callback_checks import message_lines, message_text
from whystall.agent_server.integrations.messages import Incoming, Place
from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.commands.jobs import plain_text
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.settings.load import load
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.knowledge_base.models import Diagnosis, Lang

_PROMPT = "> "
_LONGEST = 4000  # characters read of a line, as in any chat


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("chat")(chat)


def chat(
    text: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[TEXT]...", help="what to ask; none: read lines of standard input"),
    ] = None,
    lang: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--lang", metavar="en|zh", help="language of the answers (that of each question)"),
    ] = None,
    llm: Annotated[bool, typer.Option("--llm", help="let the language model of WHYSTALL_LLM_* answer")] = False,
) -> None:
    """Answer questions: why a job is slow, who is on call, tickets, past incidents; as in the configured chats."""
    if lang not in (None, "en", "zh"):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"--lang: {lang!r} is neither en nor zh", "leave it out")
    settings = load()
    with App().closing() as app:
        conversation = Conversation(app, TicketService(app.kb(), settings), settings, no_worker=True)
        talk = _Talk(conversation, "zh" if lang == "zh" else "en" if lang else None, llm)
        if text:
            talk.say(" ".join(text))
            return
        talk.listen()


class _Talk:
    """A conversation in a terminal."""

    def __init__(self, conversation: Conversation, lang: Lang | None, llm: bool) -> None:
        self._conversation = conversation
        self._lang: Lang | None = lang
        self._llm = llm
        self._count = 0

    def listen(self) -> None:
        """Answer line by line until the end of the input."""
        terminal = sys.stdin.isatty()
        if terminal:
            _write("whystall: help, Ctrl-D")
        while True:
            if terminal:
                sys.stdout.write(_PROMPT)
                sys.stdout.flush()
            line = sys.stdin.readline(_LONGEST)
            if not line:
                return
            if line.strip():
                self.say(line.strip())

    def say(self, line: str) -> None:
        """Answer one message and run the observation it asks for; an error ends only this answer."""
        self._count += 1
        place = Place(channel=TERMINAL, conversation=TERMINAL)
        event = f"{time.time_ns()}:{self._count}"
        text, lines = message_text(line[:_LONGEST]), message_lines(line)
        message_in = Incoming(event=event, place=place, sender=_user(), text=text, lines=lines, direct=True)
        try:
            self._answer(message_in)
        except ToolError as error:
            lang = self._lang or self._conversation.language(message_in, time.time())
            if lang == "en":
                console.note(f"error: {error.code.value}: {error.message}; {error.remedy}")
                return
            console.note(f"error: {error.code.value}: {plain_text(error_message(error, lang))}")

    def _answer(self, message_in: Incoming) -> None:
        kb = self._conversation.app.kb()
        turn, author = signals.run(self._conversation.turn(message_in, time.time(), self._lang, self._llm))
        with kb.transaction():
            message = turn.act()
        _write(plain_text(message))
        if turn.request is None:
            return

        with console.progress() as progress:
            diagnosis: Diagnosis = signals.run(run_now(self._conversation, turn.request, author, progress))
        _write(plain_text(verdict_message(diagnosis, author.lang)))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "terminal"


def _write(text: str) -> None:
    sys.stdout.write(wire.inert(text) + "\n")
    sys.stdout.flush()
