"""Answer a chat message with a language model that calls read-only functions.

Commands are handled by rules before the model is asked. The answer is what its functions found, in the plain words of
the rules; the model's own words follow, with values that code fills in. If the model fails, the rules answer.
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
from whystall.agent_server.integrations.chat.intents import Intent
from whystall.agent_server.integrations.chat.look_up import look_up
from whystall.agent_server.integrations.chat.message_texts import outgoing
from whystall.agent_server.integrations.chat.model_words import ModelWords, read
from whystall.agent_server.integrations.chat.turn import Turn
from whystall.agent_server.integrations.messages import Outgoing
from whystall.agent_server.llm.wire import LanguageModel, LlmError, Message, Reply
from whystall.agent_server.settings.load import load_llm
from whystall.knowledge_base.models import Lang
from whystall.prompts.chat import chat_words, say
from whystall.prompts.errors import error_text, stopped_text
from whystall.prompts.escape import Safe
from whystall.prompts.fence import Fence
from whystall.prompts.render import render
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.extras import extra
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.integrations.chat.conversation import Conversation

STEPS = 8
SECONDS = 60.0
TOKENS = 60_000
"""Limits per message, since somebody waits for the answer."""
_CALLS = 4  # per reply of the model
_RESULT = 6000  # characters of a function's result
_CONTENT = 4000
_TURNS = 4  # earlier questions and answers shown to the model
_EARLIER = 400


async def answer_with_model(
    conversation: Conversation, intent: Intent, author: Author, now: float, context: dict[str, Any]
) -> Turn:
    """Return the answer of the configured model, or the plain answer with a note if the model fails."""
    try:
        with extra("llm"):
            from whystall.agent_server.llm.client import ChatClient
        settings = load_llm()
    except ToolError as error:
        why = error_text(author.lang, error.code.value, error.message, error.remedy)
        return await _answer_by_rules(conversation, intent, author, now, context, why)
    limits = Limits(
        steps=min(STEPS, settings.max_steps),
        seconds=min(SECONDS, settings.max_seconds),
        tokens=min(TOKENS, settings.max_tokens),
        money=settings.max_money,
        price_in=settings.price_in,
        price_out=settings.price_out,
    )
    async with ChatClient(settings) as model:
        return await run_model(conversation, model, limits, intent, author, now, context)


async def run_model(
    conversation: Conversation,
    model: LanguageModel,
    limits: Limits,
    intent: Intent,
    author: Author,
    now: float,
    context: dict[str, Any],
) -> Turn:
    """Return the answer of `model`, within `limits`."""
    local = datetime.fromtimestamp(now, author.zone)
    earlier = list(context.get("turns", []))[-_TURNS:]
    person_text = " ".join([author.incoming.text, *(text for turn in earlier for text in turn.values())])
    functions = Functions(
        Answers(conversation.app.kb(), conversation.settings, judge=False), author.lang, local, person_text
    )
    exchange = _Exchange(model, Budget(limits), functions, author, earlier)
    try:
        await exchange.run()
    except LlmError as error:
        exchange.stopped = error.code
    if exchange.stopped and not functions.plain:
        return await _answer_by_rules(
            conversation, intent, author, now, context, stopped_text(author.lang, exchange.stopped)
        )
    return _turn(conversation, exchange, author, now, context)


@dataclass
class _Exchange:
    """The exchange with the model about one message. `words`: its last answer; `stopped`: why none is usable."""

    model: LanguageModel
    budget: Budget
    functions: Functions
    author: Author
    earlier: list[dict[str, str]]
    results: list[dict[str, Any]] = field(default_factory=list)
    words: ModelWords = field(default_factory=ModelWords)
    stopped: str = ""
    _messages: list[Message] = field(default_factory=list)
    _retried: bool = False

    async def run(self) -> None:
        """Ask until there is a usable answer or a reason to stop. Raises `LlmError`."""
        fence = Fence()
        lang = self.author.lang
        system = render("model/chat.txt", lang, opening=fence.opening, closing=fence.closing)
        question = {"earlier": self.earlier, "message": self.author.incoming.text}
        self._messages = [Message(role="system", content=system), Message(role="user", content=fence.put(question))]
        offered = self.functions.offered()
        while not self.stopped:
            reply = await self._ask(offered)
            if reply is None:
                return
            if reply.calls:
                await self._call(reply, fence)
            elif self._accept(reply, fence, lang):
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
                found = await self.functions.call(call)
                self.results.append(found)
                result = {"result": len(self.results), **found}
            except ToolError as error:
                result = {"error": error.code.value, "message": error.message, "remedy": error.remedy}
            text = json.dumps(result, ensure_ascii=False)
            shown: Any = result if len(text) <= _RESULT else {"cut": text[:_RESULT]}
            self._messages.append(Message(role="tool", content=fence.put(shown), call_id=call.id))

    def _accept(self, reply: Reply, fence: Fence, lang: Lang) -> bool:
        """Read an answer; return whether the exchange is over."""
        content = reply.content.strip()[:_CONTENT]
        self.words = read(content, self.results)
        if content and not self.words.rejected:
            return True
        if self._retried:
            self.stopped = "struck" if content else "empty"
            return True
        self._retried = True
        texts = chat_words(lang)["model"]
        question = f"{texts['again']}\n{fence.put(self.words.rejected)}" if content else texts["empty"]
        self._messages.append(Message(role="assistant", content=content or "-", reasoning=reply.reasoning))
        self._messages.append(Message(role="user", content=question))
        return False


def _turn(conversation: Conversation, exchange: _Exchange, author: Author, now: float, context: dict[str, Any]) -> Turn:
    """Return what the functions found and the model's words about it, and start a requested investigation."""
    lang, functions, words = author.lang, exchange.functions, exchange.words
    stands = bool(words.kept) and not exchange.stopped
    lines: list[str] = list(dict.fromkeys(message.text for message in functions.plain))
    if stands:
        lines += [say(lang, "model.words"), *words.kept]
    if not lines:
        answers, local = functions.answers, datetime.fromtimestamp(now, author.zone)
        first = [say(lang, "look_up.not_understood")]
        found = look_up(answers, author.incoming.text, lang, local, first=first)
        lines = [found.message.text] if found is not None else [say(lang, "unknown")]
    if exchange.stopped in ("struck", "empty"):
        lines.append(say(lang, "model.struck"))
    elif exchange.stopped:
        lines.append(say(lang, "model.stopped", stopped_text(lang, exchange.stopped)))
    if functions.target is not None:
        started = conversation.investigate(functions.target, author, author.incoming.text)

        def act_with_answer() -> Outgoing:
            message = started.act()
            return message.model_copy(update={"text": "\n".join([*(lines if stands else []), message.text])})

        return Turn(act_with_answer, started.request)
    if functions.ambiguous is not None:
        return conversation.ask_which(functions.ambiguous, author, now)
    answer = clean(" ".join(lines), _EARLIER)
    turns = [*context.get("turns", []), {"asked": clean(author.incoming.text, _EARLIER), "answered": answer}][-_TURNS:]

    def act() -> Outgoing:
        kept = {**context, "turns": turns, "lang": lang}
        conversation.app.kb().pending_commands.put_topic(*author.key, kept, now)
        return outgoing(lang, lines)

    return Turn(act)


async def _answer_by_rules(
    conversation: Conversation, intent: Intent, author: Author, now: float, context: dict[str, Any], why: Safe
) -> Turn:
    """Return the answer of the rules with a note why the model gave none."""
    turn = await conversation.answer_query(intent, author, now, context)
    note: Safe = say(author.lang, "model.stopped", why)

    def act() -> Outgoing:
        message = turn.act()
        return message.model_copy(update={"text": f"{message.text}\n{note}"})

    return Turn(act, turn.request)
