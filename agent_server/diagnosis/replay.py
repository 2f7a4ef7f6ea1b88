"""A diagnosis once more, from its transcript: the same driver, without model and host, must come to the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from whystall.agent_server.diagnosis.budget import Limits
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.model_driver import drive
from whystall.agent_server.diagnosis.observer import Options
from whystall.agent_server.diagnosis.ranks import rank_diagnosis, with_blind_spot, with_host
from whystall.agent_server.diagnosis.transcript import (
    CaseOpened,
    End,
    Failed,
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

_COMPARED = ("verdict", "cause", "chain", "missing", "story", "remedies", "struck", "stopped")


class Difference(BaseModel):
    """Where a replay first leaves its transcript. `where` is a code: a field of the end (``verdict``, ``cause``, ...),
    ``look N`` or ``answer N``, or ``results`` that this version does not take; both sides as text.
    """

    model_config = ConfigDict(extra="forbid")

    where: str
    recorded: str
    replayed: str


class Replay(BaseModel):
    """What came of a replay. `others`: what the transcript was made with that is another version here (``whystall``,
    ``causes``, ``tools``); `looks`, `answers`: how many the transcript holds; `claims`: those that were struck.
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
    """The driver does something else than the transcript tells; no driver catches it."""

    def __init__(self, where: str, recorded: str, replayed: str) -> None:
        super().__init__(where)
        self.difference = Difference(where=where, recorded=_short(recorded), replayed=_short(replayed))


async def replay(path: Path, tools: Mapping[str, Tool[Any, Any]]) -> Replay:
    """Follow the transcript at `path` with this version's driver, causes and `tools`. Nothing is observed or stored.

    Raises `ToolError` (io_error, bad_recording) for a file that cannot be used; a replay that ends otherwise is an
    answer.
    """
    told, end = read(path)
    difference = None
    try:
        _compare(end, ending(await _again(told, tools)))
    except ReplayDiffers as differs:
        difference = differs.difference
    return Replay(
        diagnosis=told.header.id,
        created=told.header.created,
        target=told.case.target if told.case else told.ranks.recording if told.ranks else "",
        model=told.case.model if told.case else None,
        looks=len(told.looks),
        answers=len(told.answers),
        same=difference is None,
        difference=difference,
        others=_others(told, tools),
        made_with=told.header.whystall,
        end=end,
        claims=[claim for struck in told.struck for claim in struck.claims],
    )


class _Looks:
    """The observer of a transcript: every look gives what it gave then."""

    recording: Recording | None = None

    def __init__(self, told: TranscriptContent, opened: CaseOpened, tools: Mapping[str, Tool[Any, Any]]) -> None:
        self.live = opened.live
        self.profiled = opened.profiled
        self._able = frozenset(opened.able)
        self._left = list(told.looks)
        self._tools = tools
        self._count = 0

    async def able(self, tools: Sequence[Tool[Any, Any]]) -> list[Tool[Any, Any]]:
        """Those of `tools` that the observer of then could serve."""
        return [tool for tool in tools if tool.name in self._able]

    async def observe(self, tools: Sequence[Tool[Any, Any]], seconds: float, options: Options) -> list[ToolResult[Any]]:
        """The results of the next look. Raises what it raised, and `ReplayDiffers` when it was another."""
        self._count += 1
        where, asked = f"look {self._count}", _asked([tool.name for tool in tools], options)
        if not self._left:
            raise ReplayDiffers(where, "none", asked)
        look = self._left.pop(0)
        if (then := _asked(look.tools, look.options)) != asked:
            raise ReplayDiffers(where, then, asked)
        if isinstance(look, ObservationFailed):
            raise ToolError(look.code, look.message, look.remedy)
        return [_result(raw, self._tools, where) for raw in look.results]

    async def calibrate(self, tool: Tool[Any, Any], options: Options) -> list[ToolResult[Any]]:
        """The last look, where there was one for it: what could not be tried then was no look."""
        return await self.observe([tool], 0.0, options) if self._left else []

    def finished(self) -> None:
        """Nothing more is asked; raises `ReplayDiffers` when more was looked at then."""
        if self._left:
            look = self._left[0]
            raise ReplayDiffers(f"look {self._count + 1}", _asked(look.tools, look.options), "none")


class _Answers:
    """The model of a transcript."""

    def __init__(self, told: TranscriptContent, name: str) -> None:
        self._name = name
        self._left = list(told.answers)
        self._count = 0

    @property
    def name(self) -> str:
        """What the model is called."""
        return self._name

    async def complete(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        """The next answer. Raises `LlmError` where there was none, and `ReplayDiffers` when none was asked for."""
        self._count += 1
        if not self._left:
            raise ReplayDiffers(f"answer {self._count}", "none", "asked for")
        answer = self._left.pop(0)
        if isinstance(answer, Failed):
            raise LlmError(answer.code, answer.message)
        return answer.reply

    def finished(self) -> None:
        """Nothing more is asked; raises `ReplayDiffers` when more was answered then."""
        if self._left:
            raise ReplayDiffers(f"answer {self._count + 1}", "asked for", "none")


async def _again(told: TranscriptContent, tools: Mapping[str, Tool[Any, Any]]) -> Diagnosis:
    """The diagnosis that the transcript's looks and answers lead to."""
    seen, opened = told.ranks, told.case
    if seen is None and opened is not None:
        return await _case(told, opened, tools)
    if seen is None:
        raise ReplayDiffers("case", "none", "none")  # `read` refuses such a transcript
    result = _result(seen.result, tools, "ranks")
    found = rank_diagnosis(load_causes(), result, seen.recording, told.header.symptom, seen.ranks)
    host: Diagnosis | None = None
    if opened is not None:
        with suppress(ToolError):  # the host could not be looked at: a blind spot, which follows
            host = await _case(told, opened, tools)
            found = with_host(found, host)
    for spot in told.blind:
        found = with_blind_spot(found, spot.code, spot.detail)
    if host is None and told.stopped:  # a model was asked for, and had no host to look at
        reasoning = Reasoning(model=opened.model or "" if opened else "", stopped=told.stopped[-1].why)
        found = found.model_copy(update={"reasoning": reasoning})
    return found


async def _case(told: TranscriptContent, opened: CaseOpened, tools: Mapping[str, Tool[Any, Any]]) -> Diagnosis:
    looks = _Looks(told, opened, tools)
    case = Case(
        load_causes(),
        tools,
        looks,
        duration=opened.duration,
        symptom=told.header.symptom,
        target=opened.target,
        numbered=opened.numbered,
        wanted=opened.wanted,
    )
    if opened.model is None:
        await drive(case, None)
    else:
        how = _settings(opened)
        answers = _Answers(told, opened.model)
        memory = _Forgotten() if how.remembers else None
        await drive(case, answers, how.limits, memory=memory, lang=how.lang, nonce=opened.nonce)
        answers.finished()
    if opened.calibrate:
        await case.calibrate()
    looks.finished()
    return case.diagnosis()


class _Settings(BaseModel):
    """What bounds a model's driver, as `diagnosing` writes it down."""

    limits: Limits
    lang: Lang
    remembers: bool


def _settings(opened: CaseOpened) -> _Settings:
    try:
        return _Settings.model_validate(opened.settings)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors(include_url=False, include_input=False)[0]["loc"])
        raise ReplayDiffers("settings", "as they were", f"another shape ({place})") from None


class _Forgotten:
    """Past incidents, where what was told of them stands in the transcript: nothing of it decides a verdict."""

    def similar(self, case: Case) -> list[dict[str, Any]]:
        """None."""
        return []

    def search(self, text: str) -> list[dict[str, Any]]:
        """None."""
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


def _compare(then: End, now: End) -> None:
    for field in _COMPARED:
        before, after = getattr(then, field), getattr(now, field)
        if before != after:
            raise ReplayDiffers(field, _said(before), _said(after))


def _others(told: TranscriptContent, tools: Mapping[str, Tool[Any, Any]]) -> list[str]:
    here = {"whystall": version(), "causes": causes_hash(load_causes()), "tools": tools_hash(tools.values())}
    return [name for name, value in here.items() if getattr(told.header, name) != value]


def _asked(names: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> str:
    """A look as text: its tools, and their arguments where any were given."""
    given = {name: dict(options[name]) for name in sorted(options) if options[name]}
    return ", ".join(names) + (f" with {json.dumps(given, sort_keys=True)}" if given else "")


def _said(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps([v.model_dump(mode="json") if isinstance(v, BaseModel) else v for v in value])
    return "none" if value is None else str(getattr(value, "value", value))


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"
