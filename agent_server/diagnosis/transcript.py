"""Write the transcript of a diagnosis: all results and answers that it rests on, so that it can be replayed.

JSON lines, one record per line with its `type`, each written at once, so that a killed process leaves all before it. A
request to a model is stored as its difference from the one before. Text is ASCII with JSON's escapes. A line is::

    {"type": "blind_spot", "code": "looked_later", "detail": ""}
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, BinaryIO, Literal, Union

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.llm.wire import Function, LanguageModel, LlmError, Message, Reply
from whystall.knowledge_base.models import Cause, Concluded, Diagnosis, Match, Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import ToolResult

SCHEMA = "4"
"""Version 1: conclusions of models were sentences with citations (`old_conclusions`). Version 2: a model observed the
target only. Version 3: records had no times."""
MAX_BYTES = 16 << 20
"""The largest transcript: a result has about 50 KB, a conversation 200 KB, and there are tens of windows."""


class Record(BaseModel):
    """Base of all records. `at_s`: when it was written, seconds since the header; None in older versions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_s: float | None = None


class Header(Record):
    """The first line. `created` is RFC 3339; `causes` and `tools` are hashes (`causes_hash`, `tools_hash`)."""

    type: Literal["header"] = "header"
    schema_version: str = SCHEMA
    whystall: str
    id: str
    created: str
    symptom: str
    causes: str
    tools: str


class RanksJudged(Record):
    """The traces of a job's ranks were judged. `result`: of slow_node_check; `recording`: its id; `comparison`: of
    compare_runs with a stored baseline, and `topology`: of cluster_topology, if these were named."""

    type: Literal["ranks"] = "ranks"
    result: dict[str, Any]
    recording: str
    ranks: int
    comparison: dict[str, Any] | None = None
    topology: dict[str, Any] | None = None


class HostNotObserved(Record):
    """The slow rank's host was not observed, or not at the same time; a code of `BLIND_SPOTS`."""

    type: Literal["blind_spot"] = "blind_spot"
    code: str
    detail: str


class CaseOpened(Record):
    """A case of a host starts. `duration` in seconds; `able`: the tools that can be served; `calibrate`: direct I/O is
    tried at the end; `wanted`: tools that run in any case; `options`: arguments given for tools; `excluded`: causes
    that do not explain the symptom; `model`: None for the rules alone; `settings`: of the model's driver; `nonce`: of
    the fences around untrusted text; `similar`: the past incidents in the briefing.
    """

    type: Literal["case"] = "case"
    target: str
    duration: float
    live: bool
    profiled: bool
    calibrate: bool = False
    wanted: list[str] = Field(default_factory=list)
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    excluded: list[str] = Field(default_factory=list)
    numbered: int = 0
    able: list[str] = Field(default_factory=list)
    model: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    nonce: str | None = None
    similar: list[Match] = Field(default_factory=list)


class Request(Record):
    """A request to the model: the first `kept` messages of the previous request, then `messages`. `functions`: None if
    the same as before.
    """

    type: Literal["request"] = "request"
    kept: int = Field(ge=0)
    messages: list[Message]
    functions: list[Function] | None = None


class Answered(Record):
    """The model's answer to the previous request."""

    type: Literal["reply"] = "reply"
    reply: Reply


class AnswerFailed(Record):
    """A request without an answer: code and message of the `LlmError`."""

    type: Literal["failure"] = "failure"
    code: str
    message: str


class Observed(Record):
    """One window. `tools`: all that ran; `results`: complete, with findings numbered as in the case. `process`: the one
    that was observed instead of the target.
    """

    type: Literal["look"] = "look"
    tools: list[str]
    duration: float
    why: str
    options: dict[str, dict[str, Any]]
    results: list[dict[str, Any]]
    process: int | None = None


class ObservationFailed(Record):
    """A window that failed with a `ToolError`. `process` as in `Observed`."""

    type: Literal["look_failed"] = "look_failed"
    tools: list[str]
    options: dict[str, dict[str, Any]]
    code: ErrorCode
    message: str
    remedy: str
    process: int | None = None


class StruckClaim(Record):
    """An unsupported claim of the model: the code of its fault, and its text."""

    code: str
    text: str


class Struck(Record):
    """The claims that were removed from a conclusion of the model."""

    type: Literal["struck"] = "struck"
    claims: list[StruckClaim]


class Stopped(Record):
    """The model was stopped, and the rules finished; `why` is a code."""

    type: Literal["stopped"] = "stopped"
    why: str


class End(Concluded, Record):
    """The result of the diagnosis. `chain`: ids of findings; the rest as in `Reasoning`."""

    type: Literal["end"] = "end"
    diagnosis: str
    verdict: Verdict
    cause: str | None
    chain: list[str]
    missing: list[str]


class Cut(Record):
    """The transcript reached `MAX_BYTES` and ends before the diagnosis did."""

    type: Literal["cut"] = "cut"
    bytes: int


Line = Annotated[
    Union[  # noqa: UP007  evaluated by pydantic, also on Python 3.10
        Header,
        RanksJudged,
        HostNotObserved,
        CaseOpened,
        Request,
        Answered,
        AnswerFailed,
        Observed,
        ObservationFailed,
        Struck,
        Stopped,
        End,
        Cut,
    ],
    Field(discriminator="type"),
]


class Transcript:
    """A transcript that stores nothing; `TranscriptFile` writes one. No method raises.

    `id` of the diagnosis; `uri` of the transcript, None if nothing is stored.
    """

    uri: str | None = None

    def __init__(self, id: str = "") -> None:
        self.id = id

    def _put(self, record: Record) -> None:
        """Store `record`."""

    def ranks(
        self,
        result: ToolResult[Any],
        recording: str,
        ranks: int,
        comparison: ToolResult[Any] | None = None,
        topology: ToolResult[Any] | None = None,
    ) -> None:
        self._put(
            RanksJudged(
                result=_plain(result),
                recording=recording,
                ranks=ranks,
                comparison=_plain(comparison) if comparison is not None else None,
                topology=_plain(topology) if topology is not None else None,
            )
        )

    def blind_spot(self, code: str, detail: str) -> None:
        self._put(HostNotObserved(code=code, detail=detail))

    def case(self, opened: CaseOpened) -> None:
        self._put(opened)

    def request(self, messages: Sequence[Message], functions: Sequence[Function]) -> None:
        """Record a request to the model; `messages`: the whole conversation so far."""

    def reply(self, reply: Reply) -> None:
        self._put(Answered(reply=reply))

    def failure(self, error: LlmError) -> None:
        self._put(AnswerFailed(code=error.code, message=str(error).removeprefix(f"{error.code}: ")[:500]))

    def observed(
        self,
        tools: Iterable[str],
        duration: float,
        why: str,
        options: Mapping[str, Mapping[str, Any]],
        results: Iterable[ToolResult[Any]],
        process: int | None = None,
    ) -> None:
        """Record a window. `tools`: all that ran, also those again; the findings of `results` are numbered. `process`:
        the one that was observed instead of the target."""
        found = [_plain(result) for result in results]
        self._put(
            Observed(
                tools=list(tools), duration=duration, why=why, options=_copied(options), results=found, process=process
            )
        )

    def observation_failed(
        self,
        tools: Iterable[str],
        options: Mapping[str, Mapping[str, Any]],
        error: ToolError,
        process: int | None = None,
    ) -> None:
        self._put(
            ObservationFailed(
                tools=list(tools),
                options=_copied(options),
                code=error.code,
                message=error.message,
                remedy=error.remedy,
                process=process,
            )
        )

    def struck(self, claims: Iterable[tuple[str, str]]) -> None:
        """Record claims that were removed from a conclusion, each (code, text)."""
        self._put(Struck(claims=[StruckClaim(code=code, text=text) for code, text in claims]))

    def stopped(self, why: str) -> None:
        self._put(Stopped(why=why))

    def end(self, diagnosis: Diagnosis) -> None:
        self._put(ending(diagnosis))

    def close(self) -> None:
        """Close the transcript; idempotent."""


class TranscriptFile(Transcript):
    """Writes a transcript to `file` (unbuffered, for appending), and closes it.

    If writing fails, it stops there with `uri` None and the reason in `fault`; the diagnosis continues.
    """

    def __init__(self, file: BinaryIO, uri: str, header: Header) -> None:
        super().__init__(header.id)
        self.uri = uri
        self.fault: str | None = None
        self._file: BinaryIO | None = file
        self._began = time.monotonic()
        self._bytes = 0
        self._messages: list[Message] = []
        self._functions: list[Function] | None = None
        self._put(header)

    def request(self, messages: Sequence[Message], functions: Sequence[Function]) -> None:
        """Record a request to the model; `messages`: the whole conversation so far."""
        kept = 0
        for before, now in zip(self._messages, messages, strict=False):
            if before != now:
                break
            kept += 1
        changed = None if list(functions) == self._functions else list(functions)
        self._messages, self._functions = list(messages), list(functions)
        self._put(Request(kept=kept, messages=list(messages[kept:]), functions=changed))

    def _put(self, record: Record) -> None:
        if self._file is None:
            return
        line = _line(record.model_copy(update={"at_s": round(time.monotonic() - self._began, 6)}))
        if self._bytes + len(line) > MAX_BYTES:
            line = _line(Cut(bytes=self._bytes))
        try:
            _write(self._file, line)
        except OSError as error:
            self.fault, self.uri = error.strerror or str(error), None
            self.close()
            return
        self._bytes += len(line)
        if self._bytes > MAX_BYTES or line.startswith(b'{"type": "cut"'):
            self.close()

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TranscribedModel:
    """A language model whose requests and answers are recorded in a transcript."""

    def __init__(self, model: LanguageModel, transcript: Transcript) -> None:
        self._model = model
        self._transcript = transcript

    @property
    def name(self) -> str:
        return self._model.name

    async def complete(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        self._transcript.request(messages, functions)
        try:
            reply = await self._model.complete(messages, functions)
        except LlmError as error:
            self._transcript.failure(error)
            raise
        self._transcript.reply(reply)
        return reply


def ending(diagnosis: Diagnosis) -> End:
    """Return the last record of the transcript of `diagnosis`."""
    reasoning = diagnosis.reasoning or Concluded()
    return End(
        diagnosis=diagnosis.id,
        verdict=diagnosis.verdict,
        cause=diagnosis.cause,
        chain=diagnosis.chain,
        missing=diagnosis.missing,
        **{name: getattr(reasoning, name) for name in Concluded.model_fields},
    )


def causes_hash(causes: Mapping[str, Cause]) -> str:
    """Return a hash of the definitions of all causes."""
    return _hash([causes[id].model_dump(mode="json") for id in sorted(causes)])


def tools_hash(tools: Iterable[Tool[Any, Any]]) -> str:
    """Return a hash of the declared arguments of all tools."""
    return _hash({tool.name: tool.params.model_json_schema() for tool in tools})


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _plain(result: ToolResult[Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(result.model_dump_json())
    return plain


def _copied(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(given) for name, given in options.items()}


def _line(record: Record) -> bytes:
    value = record.model_dump(mode="json", by_alias=True)
    value["at_s"] = value.pop("at_s")  # at the end: a line begins with its type
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON readers refuse
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return json.dumps(value).encode() + b"\n"


def _write(file: BinaryIO, line: bytes) -> None:
    """Write all of `line`: an unbuffered file may accept only a part."""
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(file.fileno(), rest) :]
