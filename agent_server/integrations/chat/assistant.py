"""A model that holds the conversation: it calls functions that look things up, and says what they returned.

It never changes anything: commands are taken by the rules before it is asked. Its words are held against what the
functions returned; what they do not carry is struck and told once, and then the plain answers of the rules are given in
their place. Whatever stops it, the rules answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import anyio

from whystall.agent_server.diagnosis.budget import Budget, Limits
from whystall.agent_server.integrations.chat.answers import Answers
from whystall.agent_server.integrations.chat.author import Author
from whystall.agent_server.integrations.chat.functions import Functions
from whystall.agent_server.integrations.chat.grounding import Grounded, ground
from whystall.agent_server.integrations.chat.intents import Intent
from whystall.agent_server.integrations.chat.message_texts import outgoing
from whystall.agent_server.integrations.chat.turn import Turn
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.llm.wire import LanguageModel, LlmError, Message, Reply
from whystall.knowledge_base.models import Lang
from whystall.prompts.chat import chat_words, name, say
from whystall.prompts.escape import Safe
from whystall.prompts.fence import Fence
from whystall.prompts.render import render
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.integrations.chat.conversation import Conversation

STEPS = 8
SECONDS = 60.0
TOKENS = 60_000
"""Of one message: somebody waits for it."""
_CALLS = 4  # of one answer of the model
_RESULT = 6000  # characters of what a function returned
_CONTENT = 4000
_TURNS = 4  # earlier questions and answers that the model is shown
_EARLIER = 400


async def assisted(
    conversation: Conversation, intent: Intent, author: Author, now: float, spoken: dict[str, Any]
) -> Turn | None:
    """The answer of the model that is set up to what `author` said; None where the rules are to answer alone.

    Where it does not answer, or says what nothing carries, the plain answer is given with a line that says so.
    """
    from whystall.agent_server.llm.client import ChatClient
    from whystall.agent_server.settings.load import load_llm

    try:
        settings = load_llm()
    except ToolError as error:
        return await _plainly(conversation, intent, author, now, spoken, error.message)
    limits = Limits(
        steps=min(STEPS, settings.max_steps),
        seconds=min(SECONDS, settings.max_seconds),
        tokens=min(TOKENS, settings.max_tokens),
        money=settings.max_money,
        price_in=settings.price_in,
        price_out=settings.price_out,
    )
    async with ChatClient(settings) as model:
        return await talk(conversation, model, limits, intent, author, now, spoken)


async def talk(
    conversation: Conversation,
    model: LanguageModel,
    limits: Limits,
    intent: Intent,
    author: Author,
    now: float,
    spoken: dict[str, Any],
) -> Turn:
    """The answer of `model`, within `limits`."""
    local = datetime.fromtimestamp(now, author.zone)
    earlier = list(spoken.get("turns", []))[-_TURNS:]
    said = " ".join([author.incoming.text, *(text for turn in earlier for text in turn.values())])
    functions = Functions(Answers(conversation.app.kb(), conversation.settings), author.lang, local, said)
    exchange = _Exchange(model, Budget(limits), functions, author, earlier)
    try:
        await exchange.run()
    except LlmError as error:
        exchange.stopped = error.code
    if exchange.stopped and not functions.plain:
        return await _plainly(conversation, intent, author, now, spoken, exchange.stopped)
    return _turn(conversation, exchange, author, now, spoken)


@dataclass
class _Exchange:
    """One message of a person, and what the model makes of it. `grounded`: its latest answer; `stopped`: why there is
    none that stands.
    """

    model: LanguageModel
    budget: Budget
    functions: Functions
    author: Author
    earlier: list[dict[str, str]]
    results: list[dict[str, Any]] = field(default_factory=list)
    grounded: Grounded = field(default_factory=Grounded)
    stopped: str = ""
    _messages: list[Message] = field(default_factory=list)
    _told: bool = False

    async def run(self) -> None:
        """Talk until an answer stands, or none will. Raises `LlmError`."""
        fence = Fence()
        lang = self.author.lang
        system = render("model/chat.txt", lang, opening=fence.opening, closing=fence.closing)
        search_terms = {"earlier": self.earlier, "message": self.author.incoming.text}
        self._messages = [Message(role="system", content=system), Message(role="user", content=fence.put(search_terms))]
        offered = self.functions.offered()
        while not self.stopped:
            reply = await self._ask(offered)
            if reply is None:
                return
            if reply.calls:
                await self._call(reply, fence)
            elif self._answered(reply, fence, lang):
                return

    async def _ask(self, offered: list[Any]) -> Reply | None:
        if (code := self.budget.exhausted) is not None:
            self.stopped = code
            return None
        reply: Reply | None = None
        with anyio.move_on_after(self.budget.seconds_left):
            reply = await self.model.complete(self._messages, offered)
        if reply is None:
            self.stopped = "budget_seconds"
            return None
        self.budget.add_answer(reply)
        if reply.refusal or reply.finish == "content_filter":
            self.stopped = "refusal"
            return None
        return reply

    async def _call(self, reply: Reply, fence: Fence) -> None:
        calls = reply.calls[:_CALLS]
        content = reply.content[:_CONTENT]
        self._messages.append(Message(role="assistant", content=content, calls=calls, reasoning=reply.reasoning))
        for call in calls:
            try:
                result = await self.functions.call(call)
                self.results.append(result)
            except ToolError as error:
                result = {"error": error.code.value, "message": error.message, "remedy": error.remedy}
            text = json.dumps(result, ensure_ascii=False)
            shown: Any = result if len(text) <= _RESULT else {"cut": text[:_RESULT]}
            self._messages.append(Message(role="tool", content=fence.put(shown), call_id=call.id))

    def _answered(self, reply: Reply, fence: Fence, lang: Lang) -> bool:
        """Hold an answer against what was returned; whether it stands, or is all that will come."""
        content = reply.content.strip()[:_CONTENT]
        self.grounded = ground(content, self.results, self.functions.said)
        if content and not self.grounded.struck:
            return True
        if self._told:
            self.stopped = "struck" if content else "empty"
            return True
        self._told = True
        told = chat_words(lang)["model"]
        search_terms = f"{told['again']}\n{fence.put(self.grounded.struck)}" if content else told["empty"]
        self._messages.append(Message(role="assistant", content=content or "-", reasoning=reply.reasoning))
        self._messages.append(Message(role="user", content=search_terms))
        return False


def _turn(conversation: Conversation, exchange: _Exchange, author: Author, now: float, spoken: dict[str, Any]) -> Turn:
    """What is said: the words that stand, else the plain answers; and the look that was asked for."""
    lang, functions = author.lang, exchange.functions
    stands = bool(exchange.grounded.kept) and not exchange.stopped
    lines: list[str] = list(exchange.grounded.kept) if stands else _plain_lines(functions.plain, lang)
    if exchange.stopped in ("struck", "empty"):
        lines.append(say(lang, "model.struck"))
    elif exchange.stopped:
        lines.append(say(lang, "model.stopped", name(exchange.stopped)))
    if functions.look is not None:
        begun = conversation.look(functions.look, author, author.incoming.text)
        return Turn(lambda: _joined(begun.act(), lines if stands else [], lang), begun.look)
    if functions.ask is not None:
        return conversation.asked_back(functions.ask, author, now)
    said = clean(" ".join(lines), _EARLIER)
    turns = [*spoken.get("turns", []), {"asked": clean(author.incoming.text, _EARLIER), "answered": said}][-_TURNS:]

    def act() -> Outgoing:
        talk = {**spoken, "turns": turns, "lang": lang}
        conversation.app.kb().pending_commands.put_topic(*author.key, talk, now)
        return outgoing(lang, lines)

    return Turn(act)


def _joined(message: Outgoing, lines: list[str], lang: Lang) -> Outgoing:
    return message.model_copy(update={"text": "\n".join([*lines, message.text])})


def _plain_lines(plain: list[Outgoing], lang: Lang) -> list[str]:
    texts = list(dict.fromkeys(message.text for message in plain))
    return [*texts] if texts else [say(lang, "unknown")]


async def _plainly(
    conversation: Conversation, intent: Intent, author: Author, now: float, spoken: dict[str, Any], why: str
) -> Turn:
    """The answer of the rules, and a line that says why the model gave none."""
    turn = await conversation.looked_up(intent, author, now, spoken)
    note: Safe = say(author.lang, "model.stopped", name(clean(why, 200)))

    def act() -> Outgoing:
        message = turn.act()
        return message.model_copy(update={"text": f"{message.text}\n{note}"})

    return Turn(act, turn.look)
