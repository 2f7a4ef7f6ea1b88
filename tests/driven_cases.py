"""Cases that a model drives, over HTTP and on recordings, for tests of the driver alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import model_server
from model_http import Answer, Call, Policy, Request, Turn
from model_reading import payloads
from solving import new_case

from whystall.agent_server.diagnosis.budget import Limits
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.model_driver import drive
from whystall.agent_server.diagnosis.observer import Observer, Options, RecordedObserver
from whystall.agent_server.diagnosis.past_incidents import PastIncidents
from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.settings.sections.llm import LlmSettings
from whystall.knowledge_base.models import Diagnosis, Lang, Reasoning
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import ToolResult
from whystall.tools.recording.store import Recording


@dataclass(frozen=True)
class Asked:
    """What an observer was asked to look at."""

    tools: list[str]
    duration: float
    options: dict[str, dict[str, Any]]
    pid: int | None = None


class Watching:
    """An observer that notes what it is asked, and finds in every window what `recording` holds.

    `live`: as if it watched a running job. `window` is awaited while a window is open; `open` counts those that are.
    `other`: what is found of every other process; without it they have ended.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        live: bool = True,
        window: Callable[[int], Any] | None = None,
        other: Recording | None = None,
    ) -> None:
        self._inner = RecordedObserver(recording)
        self._other = RecordedObserver(other) if other is not None else None
        self._window = window
        self.live = live
        self.profiled = False
        self.recording: Recording | None = recording
        self.asked: list[Asked] = []
        self.open = 0

    async def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        return await self._inner.able(tools)

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        given = {name: dict(values) for name, values in options.items()}
        self.asked.append(Asked([tool.name for tool in tools], seconds, given))
        self.open += 1
        try:
            if self._window is not None:
                await self._window(len(self.asked))
            return await self._inner.observe(tools, seconds, options)
        finally:
            self.open -= 1

    async def observe_process(
        self, pid: int, named_in: str, tools: Sequence[Tool[Any, Any]], seconds: float
    ) -> list[ToolResult[Any]]:
        assert self.recording is not None
        assert named_in == self.recording.manifest.id
        self.asked.append(Asked([tool.name for tool in tools], seconds, {}, pid))
        if self._other is None:
            raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"process {pid} has ended", "observe another")
        return await self._other.observe(tools, seconds, {})

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        return []


@dataclass
class Outcome:
    """A case at its end, and what the model was sent."""

    case: Case
    diagnosis: Diagnosis
    chats: list[Request]

    @property
    def reasoning(self) -> Reasoning:
        """How the model drove."""
        assert self.diagnosis.reasoning is not None
        return self.diagnosis.reasoning

    @property
    def answers(self) -> list[str]:
        """What the model was told by functions, in order, as its last request repeats it."""
        return [m["content"] for m in self.chats[-1].messages if m["role"] == "tool"]

    @property
    def kinds(self) -> list[str]:
        """The chain, by kinds of findings."""
        return kinds(self.diagnosis)


def kinds(diagnosis: Diagnosis) -> list[str]:
    """The chain of `diagnosis`, by kinds of findings."""
    by_id = {finding.id: finding.kind for finding in diagnosis.findings}
    return [by_id[id] for id in diagnosis.chain]


def driven(
    observer: Observer,
    answers: Policy | Iterable[Answer],
    *,
    limits: Limits | None = None,
    memory: PastIncidents | None = None,
    lang: Lang = "en",
    symptom: str = "slow",
    protocol: str = "openai",
    prepare: Callable[[Case], object] = lambda case: None,
) -> Outcome:
    """A new case driven by a model that answers so."""
    case = new_case(observer, symptom)
    prepare(case)
    with model_server.serve(answers) as server:
        settings = LlmSettings(base_url=server.base_url, model=model_server.MODEL, retries=0, protocol=protocol)

        async def run() -> None:
            async with ChatClient(settings) as model:
                await drive(case, model, limits, memory=memory, lang=lang)

        anyio.run(run)
        return Outcome(case, case.diagnosis(), server.chats)


def say(*calls: tuple[str, dict[str, Any] | str], usage: tuple[int, int] = (100, 20)) -> Turn:
    """One answer that calls functions."""
    return Turn(calls=[Call(name, arguments) for name, arguments in calls], usage=usage)


def concluding(cause: str = "unknown", *claims: tuple[str, str, str], **more: Any) -> Turn:
    """One answer that concludes; each claim: relation, subject, object."""
    made = [{"relation": relation, "subject": subject, "object": of} for relation, subject, of in claims]
    return say(("conclude", {"cause": cause, "claims": made, **more}))


def data(text: str) -> list[Any]:
    """The JSON of the fences in `text`."""
    return list(payloads(text))
