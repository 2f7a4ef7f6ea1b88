"""The model driver: a language model chooses the next tools and explains the findings.

The model is offered the tools as functions. Tools called in one message share one window; ``conclude`` ends the
conversation. Its claims are checked against the evidence (`grounded_conclusion`), and the verdict is always computed.
If the model fails or runs out of budget, the rules finish the case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio

from whystall.agent_server.diagnosis import rules
from whystall.agent_server.diagnosis.briefing import AGAIN_CHARS, RESULT_CHARS, briefing_data, error_data, result_data
from whystall.agent_server.diagnosis.budget import Budget, Limits
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.functions import CONCLUDE, Functions
from whystall.agent_server.diagnosis.grounded_conclusion import Grounded, feedback, ground, settle
from whystall.agent_server.diagnosis.grounding.model_conclusion import ModelConclusion
from whystall.agent_server.diagnosis.model_calls import CallAnswers
from whystall.agent_server.diagnosis.past_incidents import PastIncidents
from whystall.agent_server.llm.wire import LanguageModel, LlmError, Message, Reply, ToolCall
from whystall.knowledge_base.models import Lang, Reasoning
from whystall.prompts.fence import Fence
from whystall.prompts.model import briefing, reply_text, system_prompt
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.text import clean

_MAX_CALLS = 8  # per message: as many as there are tools
_MAX_CONTENT = 20_000  # characters of an answer that are kept in the conversation
_WINDOW_SHARE = 1 / 4  # of the seconds of the budget: the longest window
_MAX_USELESS = 3  # messages in a row with only wrong or repeated calls
_HOLE = re.compile(r"\{ *(F\d+)")

OldConclusions = Callable[[Mapping[str, Any]], ModelConclusion]


class _Stopped(Exception):
    """The conversation ends without a conclusion; `code` is the reason."""

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
    old: OldConclusions | None = None,
    extended: bool = True,
) -> None:
    """Investigate `case` with `model`, or with the rules if it is None; `case.diagnosis()` is then final.

    No less is observed than by the rules alone: they finish before a conclusion is judged. `memory`: past incidents
    that the model may search. `nonce` of the fences: repeats an earlier conversation; `old` reads conclusions of an
    older version; `extended` as in `Functions`. Raises `ToolError` if nothing could be observed, and what the model
    raises besides `LlmError`.
    """
    if model is None:
        await rules.finish(case)
        return
    await rules.first_observation(case)
    able = await case.observer.able(list(case.tools.values()))
    conversation = _Conversation(
        case, model, able, Budget(limits or Limits()), memory, lang, Fence(nonce), old, extended
    )
    stopped: str | None = None
    try:
        await conversation.run()
    except _Stopped as stop:
        stopped = stop.code
    except LlmError as error:
        stopped = error.code
    if stopped is not None:
        case.transcript.stopped(stopped)
        stopped = await _finish_by_rules(case, stopped)
    reasoning = Reasoning(
        model=clean(model.name, 200),
        stopped=stopped,
        usage=conversation.budget.usage(),
        others=[o.model_copy(update={"finding": case.current(o.finding) or o.finding}) for o in case.others],
        transcript=case.transcript.uri,
    )
    grounded = conversation.grounded()
    case.reasoning = reasoning if grounded is None else _settled(case, grounded, reasoning)


async def _finish_by_rules(case: Case, stopped: str) -> str:
    """Finish `case` by the rules; return the reason why the model did not, or ``look_failed`` if a window failed."""
    try:
        await rules.finish(case)
    except ToolError:
        if len(case.steps) < 2:
            raise
        return "look_failed"
    return stopped


def _settled(case: Case, grounded: Grounded, reasoning: Reasoning) -> Reasoning:
    """Settle `case` by the checked conclusion, and return `reasoning` with its supported part.

    A model that was stopped could not correct what was struck, so it does not change the verdict; its explanation is
    kept only if it names the cause of the evidence.
    """
    conclusion = settle(case, grounded)
    if reasoning.stopped is None:
        case.settled = conclusion
    kept: dict[str, Any] = {"struck": grounded.codes}
    if reasoning.stopped is None or conclusion.cause == case.conclude().cause:
        kept |= {"claims": grounded.claims, "remedies": grounded.remedies}
        # Words of a model that insists on what the evidence does not support stay in the transcript.
        kept |= {} if grounded.lowers else {"unverified": grounded.unverified}
    return reasoning.model_copy(update=kept)


class _Conversation:
    """The conversation of one model about one case."""

    def __init__(
        self,
        case: Case,
        model: LanguageModel,
        able: Sequence[Tool[Any, Any]],
        budget: Budget,
        memory: PastIncidents | None,
        lang: Lang,
        fence: Fence,
        old: OldConclusions | None,
        extended: bool,
    ) -> None:
        self.case = case
        self.budget = budget
        self._model = model
        self._able = able
        self._memory = memory
        self._lang = lang
        self._fence = fence
        self._functions = Functions(
            able,
            list(case.causes),
            duration=case.duration if case.observer.live else None,
            searchable=memory is not None,
            longest=budget.limits.seconds * _WINDOW_SHARE if extended and case.observer.live else None,
            extended=extended,
            lang=lang,
            old=old,
        )
        self._offered = self._functions.offered()
        self._calls = CallAnswers(case, self._functions, able, budget, memory, lang, self._fence)
        self._messages: list[Message] = []
        self._conclusion: ModelConclusion | None = None
        self._corrected = False  # the model was shown once what was struck
        self._nudged = False  # the model was asked once to call a function
        self._useless = 0
        self._repeats = 0
        self._requests = 0

    async def run(self) -> None:
        """Ask the model and run the tools it calls, until a conclusion stands. Raises `_Stopped`, `LlmError`."""
        system = system_prompt(self._lang, opening=self._fence.opening, closing=self._fence.closing)
        self._messages = [Message(role="system", content=system), Message(role="user", content=self._briefing())]
        while True:
            reply = await self._ask()
            if reply.refusal or (reply.finish == "content_filter" and not reply.calls):
                raise _Stopped("refusal")
            if not reply.calls:
                self._nudge(reply)
                continue
            self._nudged = False
            calls = reply.calls[:_MAX_CALLS]
            content = reply.content[:_MAX_CONTENT]
            self._messages.append(Message(role="assistant", content=content, calls=calls, reasoning=reply.reasoning))
            if len(reply.calls) == 1 and calls[0].name == CONCLUDE:
                if await self._conclude(calls[0]):
                    return
            else:
                await self._answer_calls(calls, dropped=len(reply.calls) > _MAX_CALLS)

    def grounded(self) -> Grounded | None:
        """Return the model's latest conclusion checked against the case as it is now; None without a conclusion."""
        if self._conclusion is None:
            return None
        # Findings that a later window found anew have new ids.
        claims = [
            claim.model_copy(update={name: self._current(getattr(claim, name)) for name in ("subject", "object")})
            for claim in self._conclusion.claims
        ]
        narrative = _HOLE.sub(lambda m: "{" + self._current(m[1]), self._conclusion.narrative)
        return ground(self._conclusion.model_copy(update={"claims": claims, "narrative": narrative}), self.case)

    def _current(self, id: str) -> str:
        return self.case.current(id) or id

    # --- asking ---------------------------------------------------------------------------------------------------

    def _briefing(self) -> str:
        try:
            similar = self._memory.similar(self.case) if self._memory is not None else []
        except ToolError:  # only a hint; an unusable knowledge base is reported when the diagnosis is stored
            similar = []
        return briefing(
            self._lang,
            data=self._fence.put(briefing_data(self.case, self._able, similar, self._lang)),
            live=self.case.observer.live,
            steps=self.budget.steps_left,
            duration=self.case.duration,
        )

    async def _ask(self) -> Reply:
        """Return the model's next message. Raises `_Stopped` if the budget is exhausted, `LlmError`."""
        if (code := self.budget.exhausted) is not None:
            raise _Stopped(code)
        self._requests += 1
        seconds = self.budget.seconds_left
        reply: Reply | None = None
        async with self.case.progress.waiting(clean(self._model.name, 80), self._requests, seconds):
            with anyio.move_on_after(seconds):
                reply = await self._model.complete(self._messages, self._offered)
        if reply is None:
            error = LlmError("budget_seconds", f"no answer within the {seconds:.0f} s that were left")
            self.case.transcript.failure(error)
            raise error
        self.budget.add_answer(reply)
        return reply

    def _nudge(self, reply: Reply) -> None:
        """After an answer without calls, ask once for a call. Raises `_Stopped` the second time."""
        fault = "length" if reply.finish == "length" else "call" if reply.content.strip() else "empty"
        if self._nudged:
            raise _Stopped("prose" if fault == "call" else fault)
        self._nudged = True
        content = reply.content[:_MAX_CONTENT] or "-"  # strict servers refuse an empty message
        self._messages.append(Message(role="assistant", content=content, reasoning=reply.reasoning))
        self._messages.append(Message(role="user", content=reply_text(self._lang, fault), must_call=True))

    def _answer(self, call: ToolCall, *parts: str) -> None:
        self._messages.append(Message(role="tool", content="\n".join(parts), call_id=call.id))

    def _count_useless(self, useful: bool, repeated: bool = False) -> None:
        """Raise `_Stopped` after several messages in a row with only wrong or repeated calls."""
        self._useless = 0 if useful else self._useless + 1
        self._repeats = self._repeats + 1 if repeated else 0 if useful else self._repeats
        if self._useless >= _MAX_USELESS:
            raise _Stopped("repetition" if self._repeats else "wrong_calls")

    # --- concluding -----------------------------------------------------------------------------------------------

    async def _conclude(self, call: ToolCall) -> bool:
        """Check a conclusion against the evidence. Return whether the conversation ends with it.

        It does not if the call is invalid, if the rules measured anew what it cites, or once if claims were struck.
        """
        try:
            self._conclusion = self._functions.conclusion(call)
        except ToolError as error:
            self._answer(call, self._fence.put(error_data(error)))
            self._count_useless(useful=False)
            return False
        ran = await self._run_remaining_tools()
        if ran and self.case.observer.live:  # all findings were measured anew: the model sees them before it is judged
            results = self._results(list(self.case.results))
            text = reply_text(self._lang, "looked_on")
            self._answer(call, text, self._fence.put({**results, "state": self._calls.state()}))
            return False
        grounded = self.grounded()
        if grounded is None or not grounded.struck:
            return True
        self.case.transcript.struck([(one.code, one.text) for one in grounded.struck])
        if self._corrected:
            return True
        self._corrected = True
        state = {**self._results(ran), "state": self._calls.state()}
        self._answer(call, feedback(grounded, self._lang, self._fence), self._fence.put(state))
        self._useless = 0
        return False

    async def _run_remaining_tools(self) -> list[str]:
        """Run what the rules would still run, so that a conclusion rests on no less evidence. Return those tools."""
        before = len(self.case.steps)
        try:
            await rules.finish(self.case)
        except ToolError:
            if before < 2:
                raise
            raise _Stopped("look_failed") from None
        return [tool for step in self.case.steps[before:] for tool in step.tools]

    def _results(self, tools: Sequence[str]) -> dict[str, Any]:
        """Return the latest results of `tools` as data; empty without any."""
        names = dict.fromkeys(tools)
        if not names:
            return {}
        budget = (RESULT_CHARS + AGAIN_CHARS) // len(names)
        return {"results": [result_data(self.case.results[name], budget) for name in names]}

    # --- calls ----------------------------------------------------------------------------------------------------

    async def _answer_calls(self, calls: Sequence[ToolCall], *, dropped: bool) -> None:
        """Answer the calls of one message. `dropped`: there were too many."""
        turn = await self._calls.answer(calls)
        if dropped:
            turn.answers[len(calls) - 1] += "\n" + reply_text(self._lang, "too_many", _MAX_CALLS)
        for place, call in enumerate(calls):
            self._answer(call, turn.answers[place])
        self._count_useless(turn.useful, turn.repeated)
