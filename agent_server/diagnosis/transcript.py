"""The transcript of a diagnosis: everything that its outcome rests on, so that it can be followed again.

JSON lines, one record per line with its `type`, each flushed as it is made: a process that is killed leaves what it had
done. Messages to a model are written once, by what each request adds to the one before, so that a file grows with the
conversation and not with its square. Text is ASCII (JSON's escapes), and inert on a terminal.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, BinaryIO, Literal, Union

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.llm.wire import Function, LanguageModel, LlmError, Message, Reply
from whystall.knowledge_base.models import Cause, Claim, Diagnosis, Match, Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import ToolResult

SCHEMA = "1"
MAX_BYTES = 16 << 20
"""What a transcript may hold: a result is some 50 KB and a conversation some 200 KB; looks are counted in tens."""


class Record(BaseModel):
    """Base of all records."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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
    """The traces of a job's ranks were judged: the whole `result` of slow_node_check on the recording called so."""

    type: Literal["ranks"] = "ranks"
    result: dict[str, Any]
    recording: str
    ranks: int


class Blind(Record):
    """What a case of ranks could not see of the slow rank's host; a code of `BLIND_SPOTS`."""

    type: Literal["blind_spot"] = "blind_spot"
    code: str
    detail: str


class CaseOpened(Record):
    """A case of a host begins. `duration` in seconds; `able`: the tools that its observer can serve; `calibrate`:
    direct I/O is tried at its end; `wanted`: tools that look in any case; `model`: None for the rules alone;
    `settings`: what bounds the model's driver, as it names them; `nonce`: of the fences around text of the host;
    `similar`: the past incidents that its briefing names.
    """

    type: Literal["case"] = "case"
    target: str
    duration: float
    live: bool
    profiled: bool
    calibrate: bool = False
    wanted: list[str] = Field(default_factory=list)
    numbered: int = 0
    able: list[str] = Field(default_factory=list)
    model: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    nonce: str | None = None
    similar: list[Match] = Field(default_factory=list)


class Request(Record):
    """What the model was sent: the first `kept` messages of the request before, then `messages`. `functions` where they
    differ from those before.
    """

    type: Literal["request"] = "request"
    kept: int = Field(ge=0)
    messages: list[Message]
    functions: list[Function] | None = None


class Replied(Record):
    """What the model answered to the request before."""

    type: Literal["reply"] = "reply"
    reply: Reply


class Failed(Record):
    """No answer was to be had: the code of the `LlmError` and its message."""

    type: Literal["failure"] = "failure"
    code: str
    message: str


class Observed(Record):
    """One window. `tools`: all that looked, by name; `results`: whole, their findings numbered as the case has them."""

    type: Literal["look"] = "look"
    tools: list[str]
    duration: float
    why: str
    options: dict[str, dict[str, Any]]
    results: list[dict[str, Any]]


class ObservationFailed(Record):
    """A window that could not be had: its `ToolError`."""

    type: Literal["look_failed"] = "look_failed"
    tools: list[str]
    options: dict[str, dict[str, Any]]
    code: ErrorCode
    message: str
    remedy: str


class StruckClaim(Record):
    """A claim of the model that nothing supports: what is wrong with it (a code of grounding), and its words."""

    code: str
    text: str


class Struck(Record):
    """What was taken out of a conclusion of the model."""

    type: Literal["struck"] = "struck"
    claims: list[StruckClaim]


class Stopped(Record):
    """The model's part ended, and the rules finished; `why` is a code."""

    type: Literal["stopped"] = "stopped"
    why: str


class End(Record):
    """What came out; `chain` and `story` cite findings by their ids. `struck`: codes, as in `Reasoning`."""

    type: Literal["end"] = "end"
    diagnosis: str
    verdict: Verdict
    cause: str | None
    chain: list[str]
    missing: list[str]
    story: list[Claim] = Field(default_factory=list)
    remedies: list[str] = Field(default_factory=list)
    struck: list[str] = Field(default_factory=list)
    stopped: str | None = None


class Cut(Record):
    """The transcript ends here, though the diagnosis went on: it had reached `MAX_BYTES`."""

    type: Literal["cut"] = "cut"
    bytes: int


Line = Annotated[
    Union[  # noqa: UP007  evaluated by pydantic, also on Python 3.10
        Header,
        RanksJudged,
        Blind,
        CaseOpened,
        Request,
        Replied,
        Failed,
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
    """Who follows a diagnosis and keeps nothing of it; `TranscriptFile` keeps it. No method raises.

    `id` is that of the diagnosis; `uri` that of the transcript, None where nothing is kept.
    """

    uri: str | None = None

    def __init__(self, id: str = "") -> None:
        self.id = id

    def _put(self, record: Record) -> None:
        """Keep `record`."""

    def ranks(self, result: ToolResult[Any], recording: str, ranks: int) -> None:
        """The traces of `ranks` ranks, the recording called so, were judged."""
        self._put(RanksJudged(result=_plain(result), recording=recording, ranks=ranks))

    def blind_spot(self, code: str, detail: str) -> None:
        """The slow rank's host was not seen, or not at the time."""
        self._put(Blind(code=code, detail=detail))

    def case(self, opened: CaseOpened) -> None:
        """A case begins."""
        self._put(opened)

    def request(self, messages: Sequence[Message], functions: Sequence[Function]) -> None:
        """The model is sent `messages`: the whole conversation so far."""

    def reply(self, reply: Reply) -> None:
        """The model answered."""
        self._put(Replied(reply=reply))

    def failure(self, error: LlmError) -> None:
        """The model did not answer."""
        self._put(Failed(code=error.code, message=str(error).removeprefix(f"{error.code}: ")[:500]))

    def observed(
        self,
        tools: Iterable[str],
        duration: float,
        why: str,
        options: Mapping[str, Mapping[str, Any]],
        results: Iterable[ToolResult[Any]],
    ) -> None:
        """`tools` looked in one window (all of them, also those again), with `options`; `results` are numbered."""
        found = [_plain(result) for result in results]
        self._put(Observed(tools=list(tools), duration=duration, why=why, options=_copied(options), results=found))

    def observation_failed(
        self, tools: Iterable[str], options: Mapping[str, Mapping[str, Any]], error: ToolError
    ) -> None:
        """The window of `tools` could not be had."""
        self._put(
            ObservationFailed(
                tools=list(tools),
                options=_copied(options),
                code=error.code,
                message=error.message,
                remedy=error.remedy,
            )
        )

    def struck(self, claims: Iterable[tuple[str, str]]) -> None:
        """Claims of a conclusion were taken out, each (code, text)."""
        self._put(Struck(claims=[StruckClaim(code=code, text=text) for code, text in claims]))

    def stopped(self, why: str) -> None:
        """The rules finish."""
        self._put(Stopped(why=why))

    def end(self, diagnosis: Diagnosis) -> None:
        """The diagnosis is made."""
        self._put(ending(diagnosis))

    def close(self) -> None:
        """Nothing follows; may be called more than once."""


class TranscriptFile(Transcript):
    """A transcript that is written to `file` (unbuffered, for appending), which this closes; its resource is `uri`.

    When it cannot be written, it ends there, `uri` is None and `fault` says why: no diagnosis fails for it.
    """

    def __init__(self, file: BinaryIO, uri: str, header: Header) -> None:
        super().__init__(header.id)
        self.uri = uri
        self.fault: str | None = None
        self._file: BinaryIO | None = file
        self._bytes = 0
        self._messages: list[Message] = []
        self._functions: list[Function] | None = None
        self._put(header)

    def request(self, messages: Sequence[Message], functions: Sequence[Function]) -> None:
        """The model is sent `messages`: the whole conversation so far."""
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
        line = _line(record)
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
        """Close the file: nothing follows; may be called more than once."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TranscribedModel:
    """A language model whose requests and answers go into a transcript."""

    def __init__(self, model: LanguageModel, transcript: Transcript) -> None:
        self._model = model
        self._transcript = transcript

    @property
    def name(self) -> str:
        """What the model is called."""
        return self._model.name

    async def complete(self, messages: Sequence[Message], functions: Sequence[Function]) -> Reply:
        """The next message. Raises `LlmError` when there is none to be had."""
        self._transcript.request(messages, functions)
        try:
            reply = await self._model.complete(messages, functions)
        except LlmError as error:
            self._transcript.failure(error)
            raise
        self._transcript.reply(reply)
        return reply


def ending(diagnosis: Diagnosis) -> End:
    """What a transcript says of `diagnosis`."""
    reasoning = diagnosis.reasoning
    return End(
        diagnosis=diagnosis.id,
        verdict=diagnosis.verdict,
        cause=diagnosis.cause,
        chain=diagnosis.chain,
        missing=diagnosis.missing,
        story=reasoning.story if reasoning else [],
        remedies=reasoning.remedies if reasoning else [],
        struck=reasoning.struck if reasoning else [],
        stopped=reasoning.stopped if reasoning else None,
    )


def causes_hash(causes: Mapping[str, Cause]) -> str:
    """Of all causes: the same ones judge the same."""
    return _hash([causes[id].model_dump(mode="json") for id in sorted(causes)])


def tools_hash(tools: Iterable[Tool[Any, Any]]) -> str:
    """Of the tools' arguments, as they are declared."""
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
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, which no reader of JSON takes
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return json.dumps(value).encode() + b"\n"


def _write(file: BinaryIO, line: bytes) -> None:
    """All of `line`: an unbuffered file may take a part."""
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(file.fileno(), rest) :]
