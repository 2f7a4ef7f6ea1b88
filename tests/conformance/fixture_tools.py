"""The tools, prompts and resources that the scenarios of the conformance runner call by name.

What the server offers itself (texts, failures, progress, questions to the user, tasks) is an `Entry`, like its tools.
`RESULTS` has what no tool of it returns: pictures, sounds, embedded resources; `CLIENT_CALLS` what it never asks of a
client: sampling, roots, log messages.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.interfaces.mcp.asking import Answers, Arguments, Prepare, Questions
from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.entry import Answer, Entry
from whystall.agent_server.interfaces.mcp.schemas import Schema
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params

Context = ServerRequestContext[Any, Any]
ClientCall = Callable[[Context, types.CallToolRequestParams], Awaitable[Any]]


class Text(BaseModel):
    """What a fixture tool returns."""

    model_config = ConfigDict(extra="forbid")

    text: str


class Plain(Params):
    """No arguments but `answers`, which the server asks for."""

    answers: Annotated[dict[str, Any], Field(description="asked of the user")] = Field(default_factory=dict)


class Named(Plain):
    """A name, a text, a file: what tools with one argument take."""

    name: Annotated[str, Field(description="a name")] = "World"
    message: Annotated[str, Field(description="a text")] = ""
    filename: Annotated[str, Field(description="a file")] = ""


class Timed(Plain):
    """How long to work, s."""

    seconds: Annotated[float, Field(ge=0, description="seconds")] = 0.0
    label: Annotated[str, Field(description="a text")] = ""


@dataclass(frozen=True)
class SchemaEntry(Entry):
    """A tool with an input schema of its own."""

    schema: Schema | None = None

    @property
    def arguments(self) -> Schema:
        """Return the schema."""
        return self.schema or {}


Work = Callable[[Arguments, Progress], Awaitable[str]]


def entry(name: str, work: Work, params: type[Params] = Plain, prepare: Prepare | None = None, **more: Any) -> Entry:
    """A tool that returns the text of `work`."""

    async def call(given: Arguments, progress: Progress) -> Answer:
        text = await work(given, progress)
        return Text(text=text), text

    more.setdefault("scope", "observe")
    return Entry(name, name, f"Fixture {name}.", params, call, prepare=prepare, **more)


def returns(text: str) -> Work:
    """Work that is done at once."""

    async def work(_given: Arguments, _progress: Progress) -> str:
        return text

    return work


def asks(*rounds: Mapping[str, tuple[str, dict[str, Any]]]) -> Prepare:
    """Ask the forms of one round after the other; the tool gets all answers as ``answers``."""

    async def prepare(given: Arguments, answers: Answers | None) -> Arguments | Questions:
        state = json.loads(answers.state) if answers is not None and answers.state else {"round": 0, "answers": {}}
        forms = rounds[state["round"]]
        results = answers.results if answers is not None else {}
        if not set(forms) <= set(results):
            return Questions(forms, json.dumps(state))
        content = {
            key: results[key].model_dump(mode="json", include={"action", "content"}, exclude_none=True) for key in forms
        }
        state = {"round": state["round"] + 1, "answers": state["answers"] | content}
        if state["round"] == len(rounds):
            return given | {"answers": state["answers"]}
        return Questions(rounds[state["round"]], json.dumps(state))

    return prepare


def form(**fields: dict[str, Any]) -> dict[str, Any]:
    """A form with required fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


STRING, BOOLEAN = {"type": "string"}, {"type": "boolean"}
ASK_NAME = {"user_name": ("What is your name?", form(name=STRING))}
CONFIRM = {"confirm": ("Please confirm", form(ok=BOOLEAN))}
STEPS = (
    {"step1": ("Step 1: What is your name?", form(name=STRING))},
    {"step2": ("Step 2: What is your favorite color?", form(color=STRING))},
)
DEFAULTS: dict[str, Any] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
_OPTIONS = ["option1", "option2", "option3"]
CHOICES: dict[str, Any] = {
    "untitledSingle": {"type": "string", "enum": _OPTIONS},
    "titledSingle": {
        "type": "string",
        "oneOf": [{"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}],
    },
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
    "titledMulti": {
        "type": "array",
        "items": {
            "anyOf": [{"const": "value1", "title": "First Choice"}, {"const": "value2", "title": "Second Choice"}]
        },
    },
}


async def _fails(_given: Arguments, _progress: Progress) -> str:
    raise ToolError(ErrorCode.BAD_ARGUMENT, "this tool intentionally returns an error for testing", "none")


async def _fails_later(given: Arguments, progress: Progress) -> str:
    await anyio.sleep(1)
    return await _fails(given, progress)


async def _works_on_a_file(given: Arguments, _progress: Progress) -> str:
    """Without asking: no task of the server does."""
    await anyio.sleep(1)
    return f"kept {given.get('filename', '')}"


async def _breaks_protocol(_given: Arguments, _progress: Progress) -> str:
    await anyio.sleep(1)
    raise MCPError(code=types.INTERNAL_ERROR, message="fixture: an error of the protocol")


async def _progresses(_given: Arguments, progress: Progress) -> str:
    for step in (1.0, 50.0, 100.0):
        progress(step, 100.0, f"at {step:.0f}")
        await anyio.sleep(0.05)
    return "finished"


async def _greets(given: Arguments, _progress: Progress) -> str:
    return f"Hello, {given.get('name', 'World')}!"


async def _computes(given: Arguments, _progress: Progress) -> str:
    await anyio.sleep(given.get("seconds", 0.0))
    return f"computed {given.get('label', '')}"


async def _answered(given: Arguments, _progress: Progress) -> str:
    return f"state-ok: {json.dumps(given.get('answers', {}))}"


async def _greets_answered(given: Arguments, _progress: Progress) -> str:
    answers = given.get("answers", {})
    name = (answers.get("user_name", {}).get("content") or {}).get("name", "nobody")
    return f"Hello, {name}!"


async def _greets_answered_later(given: Arguments, progress: Progress) -> str:
    await anyio.sleep(1)
    return await _greets_answered(given, progress)


async def _asked_message(given: Arguments, answers: Answers | None) -> Arguments | Questions:
    """Show the message that the caller gives."""
    return await asks({"reply": (given.get("message", ""), form(username=STRING, email=STRING))})(given, answers)


ENTRIES: list[Entry] = [
    entry("test_simple_text", returns("This is a simple text response for testing.")),
    entry("test_error_handling", _fails),
    entry("test_tool_with_progress", _progresses),
    entry("test_elicitation", _answered, Named, _asked_message),
    entry("test_elicitation_sep1034_defaults", _answered, Plain, asks({"form": ("Fill in", form(**DEFAULTS))})),
    entry("test_elicitation_sep1330_enums", _answered, Plain, asks({"form": ("Choose", form(**CHOICES))})),
    entry("test_input_required_result_elicitation", _greets_answered, Plain, asks(ASK_NAME)),
    entry("test_input_required_result_request_state", _answered, Plain, asks(CONFIRM)),
    entry("test_input_required_result_tampered_state", _answered, Plain, asks(CONFIRM)),
    entry("test_input_required_result_multi_round", _answered, Plain, asks(*STEPS)),
    entry("test_streaming_elicitation", _answered, Plain, asks(ASK_NAME)),
    entry("greet", _greets, Named, task=False),
    entry("slow_compute", _computes, Timed),
    entry("failing_job", _fails_later),
    entry("confirm_delete", _works_on_a_file, Named),
    entry("protocol_error_job", _breaks_protocol),
    entry("test_tool_with_task", _greets_answered_later, Plain, asks(ASK_NAME)),
]
REQUIRES_TASKS = frozenset({"failing_job"})


def _png() -> bytes:
    """One red pixel."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def _wav() -> bytes:
    """One silent sample."""
    form_at = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
    body = b"WAVE" + form_at + struct.pack("<4sI", b"data", 1) + b"\x80"
    return struct.pack("<4sI", b"RIFF", len(body)) + body


PNG, WAV = (base64.b64encode(content).decode() for content in (_png(), _wav()))


def embedded(uri: str, text: str, media_type: str = "text/plain") -> types.EmbeddedResource:
    """A resource inside a result."""
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=media_type, text=text)
    )


_PICTURE = types.ImageContent(type="image", data=PNG, mime_type="image/png")
_MIXED = [
    types.TextContent(type="text", text="Multiple content types test:"),
    _PICTURE,
    embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
]
RESULTS: dict[str, list[Any]] = {
    "test_image_content": [_PICTURE],
    "test_audio_content": [types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")],
    "test_embedded_resource": [embedded("test://embedded-resource", "This is an embedded resource content.")],
    "test_multiple_content_types": _MIXED,
}
PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
READABLE: dict[str, tuple[str, str]] = {
    "test://static-text": ("text/plain", "This is the content of the static text resource."),
    "test://static-binary": ("image/png", PNG),
    "test://watched-resource": ("text/plain", "Nothing changes here."),
}
TEMPLATE = "test://template/{id}/data"


def prompt_messages(name: str, arguments: Mapping[str, str]) -> list[Any]:
    """The contents of a prompt."""
    if name == "test_prompt_with_arguments":
        return [f"Prompt with arguments: arg1={arguments.get('arg1')!r}, arg2={arguments.get('arg2')!r}"]
    if name == "test_prompt_with_embedded_resource":
        resource = embedded(arguments.get("resourceUri", ""), "Embedded resource content for testing.")
        return [resource, "Please process the embedded resource above."]
    if name == "test_prompt_with_image":
        return [_PICTURE, "Please analyze the image above."]
    return ["This is a simple prompt for testing."]


def text_result(text: str) -> types.CallToolResult:
    """A result of one text."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


def sampling(text: str, tokens: int) -> types.CreateMessageRequest:
    """A question to the model of the client."""
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=tokens))


def elicitation(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    """A form for the user of the client."""
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _needs(**requests: types.InputRequest) -> ClientCall:
    """A tool that is answered once all of `requests` are, for those of them that the client declares."""

    async def call(ctx: Context, params: types.CallToolRequestParams) -> Any:
        declared = ctx.session.client_capabilities or types.ClientCapabilities()
        kinds = {"elicitation/create": declared.elicitation, "sampling/createMessage": declared.sampling}
        kinds["roots/list"] = declared.roots
        answers = params.input_responses or {}
        wanted = {key: one for key, one in requests.items() if kinds[one.method] is not None}
        if set(wanted) <= set(answers):
            return text_result(json.dumps({key: one.model_dump(mode="json") for key, one in answers.items()}))
        return types.InputRequiredResult(input_requests=wanted, request_state="asked")

    return call


async def _samples(ctx: Context, params: types.CallToolRequestParams) -> Any:
    """Ask the model of the client, before 2026-07-28."""
    request = sampling(str((params.arguments or {}).get("prompt", "")), 100)
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    answer = await ctx.session.send_request(request, types.CreateMessageResult, metadata=metadata)
    return text_result(f"LLM response: {answer.content}")


async def _logs(ctx: Context, _params: types.CallToolRequestParams) -> Any:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
        await anyio.sleep(0.05)
    return text_result("logged")


async def _requires_sampling(ctx: Context, _params: types.CallToolRequestParams) -> Any:
    declared = ctx.session.client_capabilities
    if declared is None or declared.sampling is None:
        missing = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", missing)
    return text_result("sampling is declared")


_ROOTS = types.ListRootsRequest(params=types.RequestParams())
CLIENT_CALLS: dict[str, ClientCall] = {
    "test_sampling": _samples,
    "test_tool_with_logging": _logs,
    "test_logging_tool": _logs,
    "test_missing_capability": _requires_sampling,
    "test_input_required_result_sampling": _needs(capital_question=sampling("What is the capital of France?", 100)),
    "test_input_required_result_list_roots": _needs(client_roots=_ROOTS),
    "test_input_required_result_multiple_inputs": _needs(
        user_name=elicitation("What is your name?", form(name=STRING)),
        greeting=sampling("Generate a greeting", 50),
        client_roots=_ROOTS,
    ),
    "test_input_required_result_capabilities": _needs(
        user_name=elicitation("What is your name?", form(name=STRING)), greeting=sampling("Generate a greeting", 50)
    ),
}
# The keywords of JSON Schema 2020-12 that tools/list must not lose (SEP-1613, SEP-2106).
KEYWORDS: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {"$anchor": "addressDef", "type": "object", "properties": {"street": STRING, "city": STRING}},
    },
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
IN_HEADER: Schema = {"type": "object", "properties": {"region": STRING | {"x-mcp-header": "Region"}}}
SCHEMAS = {"json_schema_2020_12_tool": KEYWORDS, "test_x_mcp_header": IN_HEADER}


def all_entries() -> dict[str, Entry]:
    """Every fixture tool by name, also those whose calls `server` answers otherwise."""
    special = [entry(name, returns(""), Named) for name in (*RESULTS, *CLIENT_CALLS)]
    shaped: list[Entry] = []
    for name, schema in SCHEMAS.items():
        plain = entry(name, returns("done"))
        shaped.append(SchemaEntry(plain.name, plain.title, plain.description, plain.params, plain.call, schema=schema))
    return {one.name: one for one in (*ENTRIES, *special, *shaped)}
