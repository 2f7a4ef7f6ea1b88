"""Replay a diagnosis from its transcript: on recorded answers and results, the driver must conclude the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from whystall.agent_server.diagnosis.budget import Limits
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.causes import HARDWARE_TOOL
from whystall.agent_server.diagnosis.model_driver import drive
from whystall.agent_server.diagnosis.observer import Options
from whystall.agent_server.diagnosis.old_conclusions import reader
from whystall.agent_server.diagnosis.ranks import rank_diagnosis, with_blind_spot, with_host
from whystall.agent_server.diagnosis.transcript import (
    AnswerFailed,
    CaseOpened,
    End,
    ObservationFailed,
    StruckClaim,
    causes_hash,
    ending,
    tools_hash,
)
from whystall.agent_server.diagnosis.transcript_reader import TranscriptContent, read
from whystall.agent_server.llm.wire import Function, LlmError, Message, Reply
from whystall.agent_server.version import version
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Lang, Reasoning
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import ToolResult
from whystall.tools.recording.store import Recording

_COMPARED = ("verdict", "cause", "chain", "missing", "remedies", "stopped")
# What older versions judged by other rules: there it is taken from the transcript.
_COMPARED_TOO = ("claims", "unverified", "struck")


class Difference(BaseModel):
    """The first difference of a replay from its transcript, both sides as text.

    `where`: a field of the end (``verdict``, ``cause``, ...), ``look N``, ``answer N``, or ``results``, which this
    version cannot read.
    """

    model_config = ConfigDict(extra="forbid")

    where: str
    recorded: str
    replayed: str


class Replay(BaseModel):
    """The outcome of a replay. `looks`, `answers`: numbers of windows and answers in the transcript; `claims`: those
    that were struck; `others`: which of ``whystall``, ``causes`` and ``tools`` have another version here.
    """

    model_config = ConfigDict(extra="forbid")

    diagnosis: str
    created: str
    target: str
    model: str | None
    looks: int
    answers: int
    same: bool
    difference: Difference | None
    others: list[str]
    made_with: str
    end: End
    claims: list[StruckClaim]


class ReplayDiffers(Exception):
    """The driver deviates from the transcript. Drivers do not catch it."""

    def __init__(self, where: str, recorded: str, replayed: str) -> None:
        super().__init__(where)
        self.difference = Difference(where=where, recorded=_short(recorded), replayed=_short(replayed))


async def replay(path: Path, tools: Mapping[str, Tool[Any, Any]]) -> Replay:
    """Replay the transcript at `path` with this version's driver, causes and `tools`; observe and store nothing.

    Raises `ToolError` (io_error, bad_recording) for a file that cannot be used.
    """
    content, end = read(path)
    difference = None
    try:
        _compare(end, ending(await _diagnose(content, tools)), _is_old(content))
    except ReplayDiffers as differs:
        difference = differs.difference
    return Replay(
        diagnosis=content.header.id,
        created=content.header.created,
        target=content.case.target if content.case else content.ranks.recording if content.ranks else "",
        model=content.case.model if content.case else None,
        looks=len(content.windows),
        answers=len(content.answers),
        same=difference is None,
        difference=difference,
        others=_other_versions(content, tools),
        made_with=content.header.whystall,
        end=end,
        claims=[claim for struck in content.struck for claim in struck.claims],
    )


class _RecordedWindows:
    """The observer of a replay: returns the results of the transcript's windows."""

    recording: Recording | None = None

    def __init__(self, content: TranscriptContent, opened: CaseOpened, tools: Mapping[str, Tool[Any, Any]]) -> None:
        self.live = opened.live
        self.profiled = opened.profiled
        self._able = frozenset(opened.able)
        self._left = list(content.windows)
        self._tools = tools
        self._count = 0

    async def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        return [tool for tool in tools if tool.name in self._able]

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        """Return the results of the next window, or raise its error. Raises `ReplayDiffers` for another request."""
        return self._next([tool.name for tool in tools], options, None)

    async def observe_process(
        self, pid: int, named_in: str, tools: Sequence[Tool[Any, Any]], seconds: float
    ) -> list[ToolResult[Any]]:
        """As `observe`, for a window on the process `pid`."""
        return self._next([tool.name for tool in tools], {}, pid)

    def _next(self, tools: Sequence[str], options: Options, process: int | None) -> list[ToolResult[Any]]:
        self._count += 1
        where, asked = f"look {self._count}", _request_text(tools, options, process)
        if not self._left:
            raise ReplayDiffers(where, "none", asked)
        window = self._left.pop(0)
        if (then := _request_text(window.tools, window.options, window.process)) != asked:
            raise ReplayDiffers(where, then, asked)
        if isinstance(window, ObservationFailed):
            raise ToolError(window.code, window.message, window.remedy)
        return [_result(raw, self._tools, where) for raw in window.results]

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        """Return the results of the last window if there is one: trials that were impossible made none."""
        return await self.observe([tool], 0.0, options) if self._left else []

    def finished(self) -> None:
        """Raise `ReplayDiffers` if the transcript holds further windows."""
        if self._left:
            window = self._left[0]
            raise ReplayDiffers(
                f"look {self._count + 1}", _request_text(window.tools, window.options, window.process), "none"
            )


class _RecordedAnswers:
    """The model of a replay: returns the transcript's answers."""

    def __init__(self, content: TranscriptContent, name: str) -> None:
        self._name = name
        self._left = list(content.answers)
        self._struck = content.struck_from
        self._count = 0

    def refused(self) -> list[tuple[str, str]]:
        """Return what was struck from the conclusion in the latest answer: codes and texts."""
        struck = self._struck.get(self._count - 1)
        return [(claim.code, claim.text) for claim in struck.claims] if struck is not None else []

    @property
    def name(self) -> str:
        return self._name

    async def complete(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        """Return the next answer, or raise its `LlmError`. Raises `ReplayDiffers` if there was no such request."""
        self._count += 1
        if not self._left:
            raise ReplayDiffers(f"answer {self._count}", "none", "asked for")
        answer = self._left.pop(0)
        if isinstance(answer, AnswerFailed):
            raise LlmError(answer.code, answer.message)
        return answer.reply

    def finished(self) -> None:
        """Raise `ReplayDiffers` if the transcript holds further answers."""
        if self._left:
            raise ReplayDiffers(f"answer {self._count + 1}", "asked for", "none")


async def _diagnose(content: TranscriptContent, tools: Mapping[str, Tool[Any, Any]]) -> Diagnosis:
    """Return the diagnosis of the recorded results and answers."""
    judged, opened = content.ranks, content.case
    if judged is None and opened is not None:
        return await _case(content, opened, tools)
    if judged is None:
        raise ReplayDiffers("case", "none", "none")  # `read` refuses such a transcript
    result = _result(judged.result, tools, "ranks")
    further = [judged.comparison, judged.topology]
    compared, topology = (_result(one, tools, "ranks") if one is not None else None for one in further)
    symptom = content.header.symptom
    found = rank_diagnosis(load_causes(), result, judged.recording, symptom, judged.ranks, compared, topology)
    host: Diagnosis | None = None
    if opened is not None:
        with suppress(ToolError):  # the host could not be observed: a blind spot follows
            host = await _case(content, opened, tools)
            found = with_host(found, host)
    for spot in content.blind:
        found = with_blind_spot(found, spot.code, spot.detail)
    if host is None and content.stopped:  # a model was requested, and had no host to observe
        reasoning = Reasoning(model=opened.model or "" if opened else "", stopped=content.stopped[-1].why)
        found = found.model_copy(update={"reasoning": reasoning})
    return found


async def _case(content: TranscriptContent, opened: CaseOpened, tools: Mapping[str, Tool[Any, Any]]) -> Diagnosis:
    observer = _RecordedWindows(content, opened, tools)
    case = Case(
        load_causes(),
        tools,
        observer,
        duration=opened.duration,
        symptom=content.header.symptom,
        target=opened.target,
        numbered=opened.numbered,
        wanted=opened.wanted,
        hardware_first=not content.windows or HARDWARE_TOOL in content.windows[0].tools,
        options=opened.options,
        excluded=opened.excluded,
    )
    if opened.model is None:
        await drive(case, None)
    else:
        settings = _settings(opened)
        answers = _RecordedAnswers(content, opened.model)
        memory = _NoIncidents() if settings.remembers else None
        old = reader(answers.refused) if _is_old(content) else None
        await drive(
            case,
            answers,
            settings.limits,
            memory=memory,
            lang=settings.lang,
            nonce=opened.nonce,
            old=old,
            extended=settings.extended,
        )
        answers.finished()
    if opened.calibrate:
        await case.calibrate()
    observer.finished()
    return case.diagnosis()


class _Settings(BaseModel):
    """The settings of a model's driver, as `diagnose` records them; `extended` since version 3."""

    limits: Limits
    lang: Lang
    remembers: bool
    extended: bool = False


def _settings(opened: CaseOpened) -> _Settings:
    try:
        return _Settings.model_validate(opened.settings)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors(include_url=False, include_input=False)[0]["loc"])
        raise ReplayDiffers("settings", "as they were", f"another shape ({place})") from None


class _NoIncidents:
    """Past incidents of a replay: none, since they do not affect the verdict."""

    def similar(self, case: Case) -> list[dict[str, Any]]:
        return []

    def search(self, text: str) -> list[dict[str, Any]]:
        return []

    def earlier(self, case: Case) -> list[dict[str, Any]]:
        return []


def _result(raw: dict[str, Any], tools: Mapping[str, Tool[Any, Any]], where: str) -> ToolResult[Any]:
    tool = tools.get(str(raw.get("tool")))
    if tool is None:
        raise ReplayDiffers(f"{where}: results", f"of {raw.get('tool')}", "no such tool here")
    try:
        return ToolResult[tool.data].model_validate(raw)  # type: ignore[name-defined]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ReplayDiffers(f"{where}: results", f"of {tool.name}, as it was", f"another shape ({place})") from None


def _is_old(content: TranscriptContent) -> bool:
    return content.header.schema_version == "1"


def _compare(then: End, now: End, old: bool) -> None:
    for field in (*_COMPARED, *(() if old else _COMPARED_TOO)):
        before, after = getattr(then, field), getattr(now, field)
        if before != after:
            raise ReplayDiffers(field, _as_text(before), _as_text(after))


def _other_versions(content: TranscriptContent, tools: Mapping[str, Tool[Any, Any]]) -> list[str]:
    here = {"whystall": version(), "causes": causes_hash(load_causes()), "tools": tools_hash(tools.values())}
    return [name for name, value in here.items() if getattr(content.header, name) != value]


def _request_text(names: Sequence[str], options: Mapping[str, Mapping[str, Any]], process: int | None) -> str:
    """Return the tools of a window, their arguments, and the process if it was not the target, as text."""
    given = {name: dict(options[name]) for name in sorted(options) if options[name]}
    text = ", ".join(names) + (f" with {json.dumps(given, sort_keys=True)}" if given else "")
    return text if process is None else f"{text} on process {process}"


def _as_text(value: Any) -> str:
    if isinstance(value, BaseModel):
        return value.model_dump_json(exclude_defaults=True)
    if isinstance(value, list):
        return json.dumps([v.model_dump(mode="json") if isinstance(v, BaseModel) else v for v in value])
    return "none" if value is None else str(getattr(value, "value", value))


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"
