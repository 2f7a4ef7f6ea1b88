"""The model driver: a language model chooses what to look at next, and explains what was found.

It is offered the tools as functions and ends with ``conclude``. What it says is held against the evidence
(`grounding`); the verdict is always computed. Whatever stops it, the rules finish from where the case then stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from whystall.agent_server.diagnosis import rules
from whystall.agent_server.diagnosis.briefing import (
    AGAIN_CHARS,
    RESULT_CHARS,
    briefing_data,
    error_data,
    result_data,
    state_data,
)
from whystall.agent_server.diagnosis.budget import Budget, Limits
from whystall.agent_server.diagnosis.functions import CONCLUDE, Functions, IncidentSearch, ToolRequest, request_key
from whystall.agent_server.diagnosis.grounding.ground import Grounded, ground, settle, told
from whystall.agent_server.llm.wire import LanguageModel, LlmError, Message, Reply, ToolCall
from whystall.knowledge_base.models import Lang, Reasoning
from whystall.prompts.fence import Fence
from whystall.prompts.model import briefing, said, system_prompt
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.diagnosis.case import Case
    from whystall.agent_server.diagnosis.grounding.model_conclusion import ModelConclusion
    from whystall.agent_server.diagnosis.past_incidents import PastIncidents

_CALLS = 8  # in one message: as many tools as there are
_CONTENT = 20_000  # characters of an answer that are kept in the conversation
# A live job may be sampled again; what three windows do not show, a fourth will not either.
_SAMPLES = 3
# So many messages in a row of which nothing could be used (or that showed nothing new), and it will not become better.
_USELESS = 3


class _Stopped(Exception):
    """The model's part ends; `code` says why."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


async def drive(
    case: Case,
    model: LanguageModel | None,
    limits: Limits | None = None,
    *,
    memory: PastIncidents | None = None,
    lang: Lang = "en",
    nonce: str | None = None,
) -> None:
    """Bring `case` to its end with `model`, or with the rules where there is none; `case.diagnosis()` is then final.

    Never ends with less than the rules alone: what they would still look at is looked at before a conclusion is judged.
    `memory`: past incidents that the model may look up. `nonce`: of the fences, to repeat an earlier conversation.
    Raises `ToolError` where nothing could be looked at; whatever else than an `LlmError` the model raises.
    """
    if model is None:
        await rules.finish(case)
        return
    await rules.first_observation(case)
    conversation = _Conversation(case, model, Budget(limits or Limits()), memory, lang, Fence(nonce))
    stopped: str | None = None
    try:
        await conversation.run()
    except _Stopped as stop:
        stopped = stop.code
    except LlmError as error:
        stopped = error.code
    if stopped is not None:
        case.transcript.stopped(stopped)
        stopped = await _finished(case, stopped)
    reasoning = Reasoning(
        model=clean(model.name, 200),
        stopped=stopped,
        usage=conversation.budget.usage(),
        transcript=case.transcript.uri,
    )
    grounded = conversation.grounded()
    case.reasoning = reasoning if grounded is None else _settled(case, grounded, reasoning)


def _settled(case: Case, grounded: Grounded, reasoning: Reasoning) -> Reasoning:
    """Settle `case` by what is left of a conclusion; returns `reasoning` with that.

    A model that was stopped lowers nothing, since it could not answer for what was struck; nor does its cause stand,
    and what it says of another than the evidence names is left out.
    """
    settled = settle(case, grounded)
    if reasoning.stopped is None:
        case.settled = settled.conclusion
    kept: dict[str, Any] = {"struck": settled.struck}
    if reasoning.stopped is None or settled.conclusion.cause == case.conclude().cause:
        kept |= {"story": settled.story, "remedies": settled.remedies}
    return reasoning.model_copy(update=kept)


async def _finished(case: Case, stopped: str) -> str:
    """Finish by the rules; returns why that became necessary. A look that fails leaves what those before it found."""
    try:
        await rules.finish(case)
    except ToolError:
        if len(case.steps) < 2:
            raise
        return "look_failed"
    return stopped


@dataclass
class _Round:
    """The answers to the calls of one message, by their place; and what of it was of use."""

    calls: Sequence[ToolCall]
    answers: dict[int, str] = field(default_factory=dict)
    looks: dict[int, ToolRequest] = field(default_factory=dict)
    useful: bool = False
    repeated: bool = False


class _Conversation:
    """One model and one case."""

    def __init__(
        self, case: Case, model: LanguageModel, budget: Budget, memory: PastIncidents | None, lang: Lang, fence: Fence
    ) -> None:
        self.case = case
        self.budget = budget
        self._model = model
        self._memory = memory
        self._lang = lang
        self._fence = fence
        self._able = case.observer.able(list(case.tools.values()))
        live = case.observer.live
        self._functions = Functions(
            self._able,
            list(case.causes),
            duration=case.duration if live else None,
            searchable=memory is not None,
            lang=lang,
        )
        self._offered = self._functions.offered()
        self._messages: list[Message] = []
        self._asked: dict[str, int] = {}
        self._conclusion: ModelConclusion | None = None
        self._told = False
        self._talked = False
        self._useless = 0
        self._repeats = 0
        self._answer = 0

    async def run(self) -> None:
        """Talk until a conclusion stands. Raises `_Stopped`, `LlmError`."""
        self._messages = [
            Message(role="system", content=self._system()),
            Message(role="user", content=self._briefing()),
        ]
        while True:
            reply = await self._ask()
            if reply.refusal or (reply.finish == "content_filter" and not reply.calls):
                raise _Stopped("refusal")
            if not reply.calls:
                self._nudge(reply)
                continue
            self._talked = False
            kept = reply.calls[:_CALLS]
            content = reply.content[:_CONTENT]
            said_so = Message(role="assistant", content=content, calls=kept, reasoning=reply.reasoning)
            self._messages.append(said_so)
            if len(reply.calls) == 1 and kept[0].name == CONCLUDE:
                if await self._concluded(kept[0]):
                    return
            else:
                await self._looked(kept, dropped=len(reply.calls) > _CALLS)

    def grounded(self) -> Grounded | None:
        """What the case as it stands leaves of the model's latest conclusion; None without one."""
        if self._conclusion is None:
            return None
        return ground(self._with_current_ids(self._conclusion), self.case)

    # --- asking ---------------------------------------------------------------------------------------------------

    def _system(self) -> str:
        return system_prompt(self._lang, opening=self._fence.opening, closing=self._fence.closing)

    def _briefing(self) -> str:
        similar = self._similar()
        data = briefing_data(self.case, self._able, similar, self._lang)
        return briefing(
            self._lang,
            data=self._fence.put(data),
            live=self.case.observer.live,
            steps=self.budget.steps_left,
            duration=self.case.duration,
        )

    def _similar(self) -> list[dict[str, Any]]:
        try:
            return self._memory.similar(self.case) if self._memory is not None else []
        except ToolError:  # a hint less; whether the knowledge base can be written is told in the end
            return []

    async def _ask(self) -> Reply:
        if (code := self.budget.exhausted) is not None:
            raise _Stopped(code)
        self._answer += 1
        seconds = self.budget.seconds_left
        reply: Reply | None = None
        async with self.case.progress.waiting(clean(self._model.name, 80), self._answer, seconds):
            with anyio.move_on_after(seconds):
                reply = await self._model.complete(self._messages, self._offered)
        if reply is None:
            error = LlmError("budget_seconds", f"no answer within the {seconds:.0f} s that were left")
            self.case.transcript.failure(error)
            raise error
        self.budget.add_answer(reply)
        return reply

    def _nudge(self, reply: Reply) -> None:
        """An answer without calls: say once what is wanted."""
        fault = "length" if reply.finish == "length" else "call" if reply.content.strip() else "empty"
        if self._talked:
            raise _Stopped("prose" if fault == "call" else fault)
        self._talked = True
        content = reply.content[:_CONTENT] or "-"  # strict servers refuse a message that holds nothing
        self._messages.append(Message(role="assistant", content=content, reasoning=reply.reasoning))
        self._messages.append(Message(role="user", content=said(self._lang, fault)))

    def _answered(self, call: ToolCall, *parts: str) -> None:
        self._messages.append(Message(role="tool", content="\n".join(parts), call_id=call.id))

    def _judge(self, useful: bool, repeated: bool = False) -> None:
        """Stop who only makes mistakes, or only repeats."""
        self._useless = 0 if useful else self._useless + 1
        self._repeats = self._repeats + 1 if repeated else 0 if useful else self._repeats
        if self._useless >= _USELESS:
            raise _Stopped("repetition" if self._repeats else "wrong_calls")

    # --- concluding -----------------------------------------------------------------------------------------------

    async def _concluded(self, call: ToolCall) -> bool:
        """Hold a conclusion against the evidence; True when it stands, or is all that will come."""
        try:
            self._conclusion = self._functions.conclusion(call)
        except ToolError as error:
            self._answered(call, self._fence.put(error_data(error)))
            self._judge(useful=False)
            return False
        looked = await self._decided()
        if looked and self.case.observer.live:  # what it cited was measured anew: it shall see that before it is judged
            results = self._results(list(self.case.results))
            self._answered(call, said(self._lang, "looked_on"), self._fence.put({**results, "state": self._state()}))
            return False
        grounded = ground(self._with_current_ids(self._conclusion), self.case)
        if not grounded.struck:
            return True
        self.case.transcript.struck([(one.code, one.text) for one in grounded.struck])
        if self._told:
            return True
        self._told = True
        state = {**self._results(looked), "state": self._state()}
        self._answered(call, told(grounded, self._lang, self._fence), self._fence.put(state))
        self._useless = 0
        return False

    async def _decided(self) -> list[str]:
        """Look at what the rules would still look at: a conclusion is judged by no less evidence than theirs. Returns
        the tools that looked for that.
        """
        before = len(self.case.steps)
        try:
            await rules.finish(self.case)
        except ToolError:
            if before < 2:
                raise
            raise _Stopped("look_failed") from None
        return [tool for step in self.case.steps[before:] for tool in step.tools]

    def _results(self, tools: Sequence[str]) -> dict[str, Any]:
        """The latest results of `tools`, to be told; empty without any."""
        names = dict.fromkeys(tools)
        if not names:
            return {}
        budget = (RESULT_CHARS + AGAIN_CHARS) // len(names)
        return {"results": [result_data(self.case.results[name], budget) for name in names]}

    def _with_current_ids(self, read: ModelConclusion) -> ModelConclusion:
        """Findings that a later look found anew are meant by their old ids too."""
        chain = []
        for link in read.chain:
            ids = [self.case.current(id) or id for id in link.findings]
            chain.append(link.model_copy(update={"findings": list(dict.fromkeys(ids))}))
        return read.model_copy(update={"chain": chain})

    # --- looking --------------------------------------------------------------------------------------------------

    async def _looked(self, calls: Sequence[ToolCall], *, dropped: bool) -> None:
        """Answer the calls of one message; those that look share one window."""
        done = _Round(calls)
        for place, call in enumerate(calls):
            done.answers[place] = self._read(done, place, call)
        if done.looks:
            await self._window(done)
        if done.useful:
            done.answers[len(calls) - 1] += "\n" + self._rest(done)
        if dropped:
            done.answers[len(calls) - 1] += "\n" + said(self._lang, "too_many", _CALLS)
        for place, call in enumerate(calls):
            self._answered(call, done.answers[place])
        self._judge(done.useful, done.repeated)

    def _read(self, done: _Round, place: int, call: ToolCall) -> str:
        """The answer to `call`, empty where its window is still to come."""
        try:
            asked = self._functions.read(call)
            if isinstance(asked, IncidentSearch):
                return self._search(done, asked)
        except ToolError as error:
            return self._fence.put(error_data(error))
        if asked is None:
            return said(self._lang, "alone")
        if any(look.tool == asked.tool for look in done.looks.values()):
            return said(self._lang, "twice", asked.tool)
        key = request_key(asked)
        times = self._asked.get(key, 0)
        if self.case.observer.live and times >= _SAMPLES:
            done.repeated = True
            return said(self._lang, "enough", asked.tool, times)
        if not self.case.observer.live and (times or self._known(asked)):
            done.repeated = True
            return said(self._lang, "again", asked.tool)
        done.looks[place] = asked
        return ""

    def _known(self, asked: ToolRequest) -> bool:
        """Whether the tool judged the recording so already, asked by whomever."""
        return asked.tool in self.case.results and dict(self.case.options(asked.tool)) == asked.options

    def _search(self, done: _Round, asked: IncidentSearch) -> str:
        key = request_key(asked)
        if key in self._asked:
            done.repeated = True
            return said(self._lang, "searched")
        self._asked[key] = 1
        done.useful = True
        return self._fence.put({"incidents": self._memory.search(asked.query) if self._memory else []})

    async def _window(self, done: _Round) -> None:
        """One window for all that look. Where it fails, each is told why."""
        case = self.case
        looks = list(done.looks.values())
        given = [look.duration for look in looks if look.duration is not None]
        duration = max(given, default=case.duration)
        options = {look.tool: look.options for look in looks}
        if case.observer.live:
            self.budget.add_window(duration)
        try:
            results = await case.observe([look.tool for look in looks], duration, "model_asked", options)
        except ToolError as error:
            for place in done.looks:
                done.answers[place] = self._fence.put(error_data(error))
            return
        found = {result.tool: result for result in results}
        for place, look in done.looks.items():
            result = found.get(look.tool)
            if result is None:
                done.answers[place] = said(self._lang, "unserved", look.tool)
                continue
            done.useful = True
            done.answers[place] = self._fence.put(result_data(result))
            self._asked[request_key(look)] = self._asked.get(request_key(look), 0) + 1

    def _rest(self, done: _Round) -> str:
        """The state after a round, and what looked again beside it, whose findings have new ids."""
        looked = {look.tool for look in done.looks.values()}
        again: list[dict[str, Any]] = []
        if done.looks and self.case.observer.live:
            others = [r for name, r in self.case.results.items() if name not in looked]
            again = [result_data(r, AGAIN_CHARS // len(others)) for r in others]
        return self._fence.put({"state": self._state(), **({"again": again} if again else {})})

    def _state(self) -> dict[str, Any]:
        return {**state_data(self.case, self._able, self._lang), "answers_left": self.budget.steps_left}
