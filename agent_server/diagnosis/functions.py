"""The functions offered to a model, made from the tool registry, and the validation of their arguments.

The model chooses the tools and their sensitivity. The target, the engine and all paths are the user's choice; another
process is only observed if a finding of the case names it. Evidence cannot be hidden: thresholds can only be lowered,
tables only lengthened, and windows at most halved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ValidationError

from whystall.agent_server.diagnosis.grounding import model_conclusion
from whystall.agent_server.diagnosis.grounding.model_conclusion import ModelConclusion
from whystall.agent_server.llm.wire import Function, ToolCall
from whystall.knowledge_base.models import Claim
from whystall.prompts.model import function_text
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params, TargetParams, parse_params
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.text import clean

CONCLUDE, SEARCH, CHECK = "conclude", "kb_search", "check_claims"
PROCESS, PAGE, EARLIER = "observe_process", "read_artifact", "past_diagnoses"
ROLES = ("subject", "waker", "holder", "peer", "neighbour")
"""What a process is to a finding that names it: the one that it is about, or as in `links.ROLES`."""
ARGUMENTS_LIMIT = 20_000
"""Characters of the arguments of one call: a conclusion at all its bounds has about 6,000."""
TOOLS_LIMIT = 8
"""Tools of one window on another process."""
_QUERY_LIMIT = 500
_CAUSES = {"type": "array", "items": {"type": "string"}, "maxItems": 8, "description": "ids of causes"}
# Parameters that the model may not choose. Names and paths are never offered: only numbers and switches.
_NOT_OFFERED = frozenset(
    {*TargetParams.model_fields, "profile", "tid", "rank", "step", "buffer_mb", "only_target", "hz", "calibrate"}
    | {"connections"}
)
_PLAIN = ("number", "integer", "boolean")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# Lower thresholds give more evidence.
_THRESHOLDS = ("min_ms", "min_pct", "gap_us", "late_ms", "max_ttft_ms", "max_itl_ms")
_LENGTH, _DURATION = "top", "duration"


@dataclass(frozen=True)
class ToolRequest:
    """A request to run a tool. `options`: the validated arguments; `duration` in seconds, None: any."""

    tool: str
    options: dict[str, Any]
    duration: float | None


@dataclass(frozen=True)
class IncidentSearch:
    """A search for past incidents by words."""

    query: str


@dataclass(frozen=True)
class ClaimsCheck:
    """A question which claims the findings support, and what supports and refutes the `causes`, given by id."""

    claims: Sequence[Claim]
    causes: Sequence[str] = ()


@dataclass(frozen=True)
class ProcessRequest:
    """A request to run `tools` on the process that the finding with the id `finding` names as `role` (`ROLES`).
    `duration` in seconds, None: any."""

    finding: str
    role: str
    tools: tuple[str, ...]
    duration: float | None


@dataclass(frozen=True)
class PageRequest:
    """A request for the part of the artifact `uri` that starts at byte `offset`."""

    uri: str
    offset: int


@dataclass(frozen=True)
class EarlierDiagnoses:
    """A request for past diagnoses of the same program."""


Request = ToolRequest | IncidentSearch | ClaimsCheck | ProcessRequest | PageRequest | EarlierDiagnoses


class Functions:
    """The functions of one case. `tools`: those that can be served; `duration`: seconds of a window, None for a
    recording; `longest`: of the longest window; `causes`: ids that may be concluded; `searchable`: past incidents can
    be searched; `extended`: functions that transcripts before version 3 lack are offered; `old`: reads the conclusions
    of older transcripts.
    """

    def __init__(
        self,
        tools: Sequence[Tool[Any, Any]],
        causes: Sequence[str],
        *,
        duration: float | None,
        searchable: bool,
        longest: float | None = None,
        extended: bool = False,
        lang: str = "en",
        old: Callable[[Mapping[str, Any]], ModelConclusion] | None = None,
    ) -> None:
        self._tools = {tool.name: tool for tool in tools if tool.kinds}  # without finding kinds it decides nothing
        self._causes = list(causes)
        self._duration = duration
        self._longest = max(duration or 0.0, longest or 0.0)
        self._searchable = searchable
        self._lang = lang
        self._old = old
        self._properties = {name: self._offered(tool) for name, tool in self._tools.items()}
        self._extended = extended
        self._others = self._other_functions()

    @property
    def names(self) -> list[str]:
        return [*self._tools, *([SEARCH] if self._searchable else []), *self._others, CHECK, CONCLUDE]

    def offered(self) -> list[Function]:
        """Return the declarations of the functions."""
        functions = [
            Function(name=name, description=tool.description, parameters=_object(self._properties[name]))
            for name, tool in self._tools.items()
        ]
        if self._searchable:
            query = _object({"query": {"type": "string", "maxLength": _QUERY_LIMIT}}, ["query"])
            functions.append(self._declared(SEARCH, query))
        functions += [self._declared(name, parameters) for name, parameters in self._others.items()]
        concluding = model_conclusion.parameters(self._causes)
        claims = _object({"claims": concluding["properties"]["claims"]}, ["claims"])
        if self._extended:
            claims = _object({"claims": concluding["properties"]["claims"], "causes": _CAUSES})
        return [*functions, self._declared(CHECK, claims), self._declared(CONCLUDE, concluding)]

    def _other_functions(self) -> dict[str, dict[str, Any]]:
        """Return the schemas of the parameters of further functions, by name."""
        text = {"type": "string"}
        found: dict[str, dict[str, Any]] = {}
        if not self._extended:
            return found
        if self._duration is not None and self._tools:
            tools = {"type": "array", "items": {**text, "enum": [*self._tools]}, "minItems": 1, "maxItems": TOOLS_LIMIT}
            properties = {
                "finding": {**text, "description": "Id of a finding, such as F3."},
                "role": {**text, "enum": [*ROLES]},
                "tools": tools,
                "duration": self._window({"description": "seconds to observe"}),
            }
            found[PROCESS] = _object(properties, ["finding", "role", "tools"])
        start = {"type": "integer", "minimum": 0, "default": 0, "description": "first byte of the page"}
        found[PAGE] = _object({"uri": text, "offset": start}, ["uri"])
        if self._searchable:
            found[EARLIER] = _object({})
        return found

    def _declared(self, name: str, parameters: dict[str, Any]) -> Function:
        return Function(name=name, description=function_text(name, self._lang), parameters=parameters)

    def conclusion(self, call: ToolCall) -> ModelConclusion:
        """Return the conclusion that `call` of ``conclude`` passes. Raises `ToolError` (bad_argument, not_found), also
        for a check that this model could not call."""
        given = _arguments(call.arguments)
        if self._old is not None and "chain" in given:
            return self._old(given)
        concluded = _concluded(given)
        for check in concluded.checks:
            if check.tool not in self._tools:
                message = f"checks: no function is called {clean(check.tool, 80)!r}"
                raise ToolError(ErrorCode.NOT_FOUND, message, f"valid: {', '.join(self._tools)}")
            self._request(self._tools[check.tool], check.arguments)
        return concluded

    def read(self, call: ToolCall) -> Request | None:
        """Return the request of `call`; None for ``conclude``. Raises `ToolError` (not_found, bad_argument)."""
        if call.name not in self.names:
            message = f"no function is called {clean(call.name, 80)!r}"
            raise ToolError(ErrorCode.NOT_FOUND, message, f"valid: {', '.join(self.names)}")
        if call.name == CONCLUDE:
            return None
        given = _arguments(call.arguments)
        if call.name == SEARCH:
            return IncidentSearch(_query(given))
        if call.name == CHECK:
            valid = ["claims", "causes"] if self._extended else ["claims"]
            for name in given.keys() - set(valid):
                message = f"unknown argument {clean(name, 80)!r}"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"valid: {', '.join(valid)}")
            causes = _fitting({"causes": given.pop("causes", None)}, {"properties": {"causes": _CAUSES}})
            return ClaimsCheck(_concluded(given).claims, tuple(causes.get("causes", ())))
        if call.name in self._others:
            return self._other_request(call.name, given)
        return self._request(self._tools[call.name], given)

    def _other_request(self, name: str, given: Mapping[str, Any]) -> ProcessRequest | PageRequest | EarlierDiagnoses:
        given = _fitting(given, self._others[name])
        if name == EARLIER:
            return EarlierDiagnoses()
        if name == PAGE:
            return PageRequest(given["uri"], given.get("offset", 0))
        return ProcessRequest(
            given["finding"], given["role"], tuple(dict.fromkeys(given["tools"])), given.get(_DURATION)
        )

    def _request(self, tool: Tool[Any, Any], given: Mapping[str, Any]) -> ToolRequest:
        properties = self._properties[tool.name]
        for name in given:
            if name not in properties:
                valid = ", ".join(properties) or "none"
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"unknown argument {clean(name, 80)!r}", f"valid: {valid}")
        given = {name: value for name, value in given.items() if value is not None}
        params = parse_params(tool.params, dict(given))
        values = {name: getattr(params, name) for name in given}
        for name, value in values.items():
            _within(name, value, properties[name])
        duration = values.pop(_DURATION, None)
        return ToolRequest(tool.name, values, None if duration is None else float(duration))

    def _offered(self, tool: Tool[Any, Any]) -> dict[str, Any]:
        """Return the schemas of the parameters of `tool` that a model may choose."""
        found: dict[str, Any] = {}
        params: type[Params] = tool.params
        for name, field in _properties(params).items():
            if name in _NOT_OFFERED or field.get("type") not in _PLAIN:
                continue
            if name == _DURATION:
                if self._duration is not None:
                    found[name] = self._window(field)
                continue
            keys = ("type", "description", "default", *_BOUNDS)
            schema = {key: field[key] for key in keys if key in field}
            if name in _THRESHOLDS:
                schema["maximum"] = field["default"]
            elif name == _LENGTH:
                schema["minimum"] = field["default"]
            found[name] = schema
        return found

    def _window(self, field: Mapping[str, Any]) -> dict[str, Any]:
        most = float(field.get("maximum", self._longest))
        usual = min(self._duration or 0.0, most)
        return {
            "type": "number",
            "description": field["description"],
            "default": usual,
            "minimum": usual / 2,
            "maximum": min(self._longest, most),
        }


def request_key(asked: ToolRequest | IncidentSearch | ClaimsCheck | PageRequest | EarlierDiagnoses) -> str:
    """Return a key that is equal for equal requests, whatever their durations."""
    if isinstance(asked, PageRequest):
        return json.dumps([PAGE, asked.uri, asked.offset])
    if isinstance(asked, EarlierDiagnoses):
        return json.dumps([EARLIER])
    if isinstance(asked, ClaimsCheck):
        return json.dumps([CHECK, [claim.model_dump() for claim in asked.claims], asked.causes])
    if isinstance(asked, IncidentSearch):
        return json.dumps([SEARCH, asked.query])
    return json.dumps([asked.tool, asked.options], sort_keys=True)


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _arguments(text: str) -> dict[str, Any]:
    """Parse the JSON object `text`; an empty text is an empty object."""
    if len(text) > ARGUMENTS_LIMIT:
        message = f"arguments of {len(text)} characters"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"at most {ARGUMENTS_LIMIT}")
    try:
        given = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        message = "the arguments are no JSON"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give one JSON object, and nothing after it") from None
    if not isinstance(given, dict):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "the arguments are no JSON object", "give one, {} for none")
    return given


@cache
def _properties(params: type[Params]) -> Mapping[str, dict[str, Any]]:
    """Return the JSON schemas of the fields of `params`."""
    properties: dict[str, dict[str, Any]] = params.model_json_schema()["properties"]
    return properties


def _query(given: Mapping[str, Any]) -> str:
    for name in given:
        if name != "query":
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"unknown argument {clean(name, 80)!r}", "valid: query")
    query = given.get("query")
    if not isinstance(query, str) or not query.strip():
        raise ToolError(ErrorCode.BAD_ARGUMENT, "query: a text is needed", "give words of a symptom")
    return clean(query.strip(), _QUERY_LIMIT)


def _concluded(given: Mapping[str, Any]) -> ModelConclusion:
    try:
        return ModelConclusion.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = clean(".".join(str(part) for part in first["loc"]), 80)
        valid = f"valid: {', '.join(ModelConclusion.model_fields)}"
        remedy = valid if first["type"] == "extra_forbidden" else "correct the value and call again"
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{place}: {first['msg']}", remedy) from None


_TYPES: Mapping[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "array": (list,)}


def _fitting(given: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given` without nulls, if it fits the flat `schema`. Raises `ToolError` (bad_argument)."""
    properties = schema["properties"]
    valid = f"valid: {', '.join(properties) or 'none'}"
    given = {name: value for name, value in given.items() if value is not None}
    for name in (*given, *schema.get("required", ())):
        if name not in properties:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"unknown argument {clean(name, 80)!r}", valid)
        if name not in given:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: needed", valid)
        field, value = properties[name], given[name]
        if not isinstance(value, _TYPES[field["type"]]) or isinstance(value, bool) or value != value:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: give a value of type {field['type']}", valid)
        entries, allowed = (value, field["items"]) if isinstance(value, list) else ([value], field)
        if any(not isinstance(entry, _TYPES[allowed["type"]]) for entry in entries):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: give values of type {allowed['type']}", valid)
        if "enum" in allowed and (not entries or any(entry not in allowed["enum"] for entry in entries)):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: no such value", f"valid: {', '.join(allowed['enum'])}")
        if isinstance(value, (int, float)):
            _within(name, value, field)
        if isinstance(value, list) and len(value) > field["maxItems"]:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: {len(value)} values", f"give at most {field['maxItems']}")
    return given


def _within(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    """Raise `ToolError` (bad_argument) if `value` is outside the bounds of `schema`."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if high is not None and value > high:
        message = f"{name}: Input should be less than or equal to {high:g}"
    elif low is not None and value < low:
        message = f"{name}: Input should be greater than or equal to {low:g}"
    else:
        return
    raise ToolError(ErrorCode.BAD_ARGUMENT, message, "correct the value and call again")
