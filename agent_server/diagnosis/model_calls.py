"""Answer the calls of one message of a model: run tools in windows, search, check claims, read pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from whystall.agent_server.diagnosis.artifact_pages import page
from whystall.agent_server.diagnosis.briefing import (
    AGAIN_CHARS,
    assessed,
    error_data,
    other_process_data,
    result_data,
    state_data,
)
from whystall.agent_server.diagnosis.budget import Budget
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.functions import (
    PROCESS,
    ROLES,
    ClaimsCheck,
    EarlierDiagnoses,
    Functions,
    IncidentSearch,
    PageRequest,
    ProcessRequest,
    ToolRequest,
    request_key,
)
from whystall.agent_server.diagnosis.grounded_conclusion import checked
from whystall.agent_server.diagnosis.grounding.links import named_processes
from whystall.agent_server.diagnosis.past_incidents import PastIncidents
from whystall.agent_server.llm.wire import ToolCall
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang
from whystall.prompts.fence import Fence
from whystall.prompts.model import reply_text
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.text import clean

_MAX_SAMPLES = 3  # windows of a live job with the same call: a fourth shows nothing new


@dataclass
class Turn:
    """The calls of one message. `answers` and `requests` by position of the call.

    `useful`: some call had a new result; `repeated`: some call asked again for what is known.
    """

    answers: dict[int, str] = field(default_factory=dict)
    requests: dict[int, ToolRequest] = field(default_factory=dict)
    processes: dict[int, ProcessRequest] = field(default_factory=dict)
    useful: bool = False
    repeated: bool = False


class CallAnswers:
    """Answers the calls of the model that drives `case`."""

    def __init__(
        self,
        case: Case,
        functions: Functions,
        able: Sequence[Tool[Any, Any]],
        budget: Budget,
        memory: PastIncidents | None,
        lang: Lang,
        fence: Fence,
    ) -> None:
        """`able`: the tools that can be served; `memory`: past incidents that may be searched."""
        self._case = case
        self._functions = functions
        self._able = able
        self._budget = budget
        self._memory = memory
        self._lang = lang
        self._fence = fence
        self._times_asked: dict[str, int] = {}

    async def answer(self, calls: Sequence[ToolCall]) -> Turn:
        """Return the answers to `calls`; their tools share one window, and each further process has one of its own."""
        turn = Turn()
        for place, call in enumerate(calls):
            turn.answers[place] = self._read(turn, place, call)
        if turn.requests:
            await self._observe(turn)
        for place, request in turn.processes.items():
            turn.answers[place] = await self._observe_process(turn, request)
        if turn.useful:
            turn.answers[len(calls) - 1] += "\n" + self._state_after(turn)
        return turn

    def state(self) -> dict[str, Any]:
        """Return the state of the case and of the budget as data."""
        return {**state_data(self._case, self._able, self._lang), **self._budget.left()}

    def _read(self, turn: Turn, place: int, call: ToolCall) -> str:
        """Return the answer to `call`; empty if it requests a window, which is added to `turn`."""
        try:
            request = self._functions.read(call)
            if request is None:
                return reply_text(self._lang, "alone")
            if isinstance(request, ToolRequest):
                return self._tool(turn, place, request)
            if isinstance(request, ProcessRequest):
                return self._process(turn, place, request)
            if isinstance(request, IncidentSearch):
                memory, query = self._memory, request.query
                return self._once(
                    turn, request, "searched", lambda: {"incidents": memory.search(query) if memory else []}
                )
            if isinstance(request, ClaimsCheck):
                return self._once(turn, request, "checked", self._checked(request), new=True)
            if isinstance(request, EarlierDiagnoses):
                earlier = self._memory.earlier if self._memory else lambda case: []
                return self._once(turn, request, "searched", lambda: {"diagnoses": earlier(self._case)})
            return self._page(turn, request)
        except ToolError as error:
            return self._fence.put(error_data(error))

    def _tool(self, turn: Turn, place: int, request: ToolRequest) -> str:
        if any(other.tool == request.tool for other in turn.requests.values()):
            return reply_text(self._lang, "twice", request.tool)
        if request.duration is not None and request.duration > self._case.duration:
            self._check_time(request.duration)
        times = self._times_asked.get(request_key(request), 0)
        live = self._case.observer.live
        if live and times >= _MAX_SAMPLES:
            turn.repeated = True
            return reply_text(self._lang, "enough", request.tool, times)
        known = request.tool in self._case.results and dict(self._case.options(request.tool)) == request.options
        if not live and (times or known):
            turn.repeated = True
            return reply_text(self._lang, "again", request.tool)
        turn.requests[place] = request
        return ""

    def _process(self, turn: Turn, place: int, request: ProcessRequest) -> str:
        _, pid = self._named(request)
        key = f"{PROCESS} {pid} {', '.join(request.tools)}"
        times = self._times_asked.get(key, 0)
        if times >= _MAX_SAMPLES:
            turn.repeated = True
            return reply_text(self._lang, "enough", ", ".join(request.tools), times)
        self._times_asked[key] = times + 1
        turn.processes[place] = request
        return ""

    def _named(self, request: ProcessRequest) -> tuple[Finding, int]:
        """Return the finding of a request, and the process that it names. Raises `ToolError` (not_found)."""
        id = self._case.current(request.finding)
        finding = next((f for f in self._case.findings if f.id == id), None)
        if finding is None:
            message = f"there is no finding {clean(request.finding, 80)!r} of this case"
            raise ToolError(ErrorCode.NOT_FOUND, message, "give the id of a present one, such as F3")
        pids = named_processes(finding)
        if request.role not in pids:
            known = ", ".join(role for role in ROLES if role in pids) or "none"
            message = f"{finding.id} names no process as {request.role}"
            raise ToolError(ErrorCode.NOT_FOUND, message, f"it names: {known}")
        if finding.subject.host is not None:
            raise ToolError(ErrorCode.NOT_FOUND, f"{finding.id} is about another host", "observe one of this host")
        return finding, pids[request.role]

    def _check_time(self, duration: float) -> None:
        """Raise `ToolError` (bad_argument) for a window that is longer than the rest of the budget."""
        left = self._budget.seconds_left
        if duration > left:
            message = f"a window of {duration:g} s is longer than the {int(left)} s that are left of the budget"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "choose a shorter one, or conclude")

    def _once(
        self,
        turn: Turn,
        request: IncidentSearch | ClaimsCheck | PageRequest | EarlierDiagnoses,
        known: str,
        data: Callable[[], dict[str, Any]],
        *,
        new: bool = False,
    ) -> str:
        """Return `data` in a fence, or if the same was asked before the reply `known`. `new`: findings of a new window
        make it another question."""
        key = f"{len(self._case.steps) if new else ''} {request_key(request)}"
        if key in self._times_asked:
            turn.repeated = True
            return reply_text(self._lang, known)
        self._times_asked[key] = 1
        turn.useful = True
        return self._fence.put(data())

    def _checked(self, request: ClaimsCheck) -> Callable[[], dict[str, Any]]:
        """Return a function that checks the claims and causes. Raises `ToolError` (not_found) for an unknown cause."""
        case, every = self._case, load_causes()
        for cause in request.causes:
            if cause not in every:
                message = f"there is no cause {clean(cause, 80)!r}"
                raise ToolError(ErrorCode.NOT_FOUND, message, "give ids of the catalogue, as in the state")
        causes = {"causes": assessed(request.causes, case, self._able, self._lang)} if request.causes else {}
        return lambda: {"claims": checked(request.claims, case, self._lang), **causes}

    def _page(self, turn: Turn, request: PageRequest) -> str:
        artifact = next((a for a in self._case.artifacts if a.uri == request.uri), None)
        if artifact is None:
            message = f"there is no artifact {clean(request.uri, 80)!r} of this case"
            raise ToolError(ErrorCode.NOT_FOUND, message, "give the uri of a result's artifact")
        if request.offset >= max(artifact.bytes, 1):
            message = f"offset: the artifact has {artifact.bytes} bytes"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give an offset below that")
        return self._once(turn, request, "read", lambda: page(artifact, request.offset))

    # --- windows --------------------------------------------------------------------------------------------------

    async def _observe(self, turn: Turn) -> None:
        """Run the requested tools in one window, and add their answers: results, or why there are none."""
        case = self._case
        requests = turn.requests
        given = [request.duration for request in requests.values() if request.duration is not None]
        duration = max(given, default=case.duration)
        options = {request.tool: request.options for request in requests.values()}
        if case.observer.live:
            self._budget.add_window(duration)
        try:
            results = await case.observe(list(options), duration, "model_asked", options)
        except ToolError as error:
            turn.answers.update(dict.fromkeys(requests, self._fence.put(error_data(error))))
            return
        by_tool = {result.tool: result for result in results}
        for place, request in requests.items():
            result = by_tool.get(request.tool)
            if result is None:
                turn.answers[place] = reply_text(self._lang, "unserved", request.tool)
                continue
            turn.useful = True
            turn.answers[place] = self._fence.put(result_data(result))
            key = request_key(request)
            self._times_asked[key] = self._times_asked.get(key, 0) + 1

    async def _observe_process(self, turn: Turn, request: ProcessRequest) -> str:
        """Observe another process in a window of its own; return the results, or why there are none."""
        duration = request.duration or self._case.duration
        try:
            finding, pid = self._named(request)  # the window before may have measured anew what named it
            self._check_time(duration)
            self._budget.add_window(duration)
            results = await self._case.observe_process(finding, request.role, pid, request.tools, duration)
        except ToolError as error:
            return self._fence.put(error_data(error))
        turn.useful = True
        return self._fence.put(other_process_data(self._case.others[-1], results))

    def _state_after(self, turn: Turn) -> str:
        """Return the state of the case, with the results of the tools that ran again, whose findings have new ids."""
        requested = {request.tool for request in turn.requests.values()}
        again: list[dict[str, Any]] = []
        if turn.requests and self._case.observer.live:
            others = [r for name, r in self._case.results.items() if name not in requested]
            again = [result_data(r, AGAIN_CHARS // len(others)) for r in others]
        return self._fence.put({"state": self.state(), **({"again": again} if again else {})})
