"""Validate the settings; each fault is one line with file or variable, table and field, never a value.

`model` is imported late: it loads pydantic-settings, which commands without settings do not need.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from whystall.agent_server.settings.paths import relative_to
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sources import LLM_PREFIX, RawSettings, read_section, read_settings
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from whystall.agent_server.settings.model import Settings, SettingsBase
    from whystall.agent_server.settings.sections.embeddings import EmbeddingsSettings
    from whystall.agent_server.settings.sections.llm import LlmSettings

    SettingsT = TypeVar("SettingsT", bound=SettingsBase)

SECTIONS = frozenset(
    (
        *("server", "access", "triage", "tickets", "alerts", "oncall", "users", "sinks", "chat", "fleet", "reports"),
        *("watch", "metrics", "otlp", "profiles", "llm", "embeddings"),
    )
)
_SHOWN = 3
_REMEDY = "correct it; `whystall config check` lists all faults"
_SET_UP_MODEL = (
    f"set {LLM_PREFIX}BASE_URL (http://127.0.0.1:8000/v1) and {LLM_PREFIX}MODEL,"
    f" and for a hosted model {LLM_PREFIX}API_KEY_FILE"
)
_CORRECT_MODEL = "correct it and call again; `whystall doctor` reports whether the model answers"


def load() -> Settings:
    """Return the settings from file and environment as they are now. Raises `ToolError` (bad_argument)."""
    faults, settings = validate(read_settings(SECTIONS))
    if settings is None:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise ToolError(ErrorCode.BAD_ARGUMENT, "; ".join([*faults[:_SHOWN], *more]), _REMEDY)
    return settings


def load_llm() -> LlmSettings:
    """Return the settings of the language model, independent of all others.

    Raises `ToolError`: no_model when none are set, they are wrong, or the key cannot be read; bad_argument when the
    file cannot be read.
    """
    from whystall.agent_server.settings.model import LlmTable

    raw = read_section("llm")
    table = raw.values["llm"]
    if not table:
        raise ToolError(ErrorCode.NO_MODEL, "no language model is set up", _SET_UP_MODEL)
    keys = {"api_key", "api_key_file"}
    by_variable = {name for name in keys if ("llm", name) in raw.variables}
    for name in keys - by_variable if by_variable else ():
        table.pop(name, None)  # a variable's key replaces the file's in either form
    faults, settings = _validated(LlmTable, raw)
    if settings is None:
        unset = [f"{LLM_PREFIX}{name.upper()} is not set" for name in ("base_url", "model") if name not in table]
        faults = unset + [fault for fault in faults if not fault.endswith(_WRITE["missing"])]
        raise ToolError(ErrorCode.NO_MODEL, "; ".join(faults), _SET_UP_MODEL if unset else _CORRECT_MODEL)
    settings.llm.key()
    return settings.llm


def load_embeddings() -> EmbeddingsSettings | None:
    """Return the settings of the embedding model, independent of all others; None if there are none.

    Raises `ToolError`: no_model when they are wrong, or the key cannot be read; bad_argument when the file cannot be
    read.
    """
    raw = read_section("embeddings")
    if not raw.values["embeddings"]:
        return None
    from whystall.agent_server.settings.model import EmbeddingsTable

    faults, settings = _validated(EmbeddingsTable, raw)
    if settings is None:
        raise ToolError(ErrorCode.NO_MODEL, "; ".join(faults[:_SHOWN]), _REMEDY)
    settings.embeddings.key()
    return settings.embeddings


def validate(raw: RawSettings) -> tuple[list[str], Settings | None]:
    """Return all faults of `raw`, one line each, and the settings if there are none."""
    from whystall.agent_server.settings.model import Settings

    return _validated(Settings, raw)


def model_faults(raw: RawSettings) -> list[str]:
    """Return the faults of the section ``llm``, one line each; none without the section."""
    if not raw.values.get("llm"):
        return []
    from whystall.agent_server.settings.model import LlmTable

    return _validated(LlmTable, RawSettings(raw.path, {"llm": raw.values["llm"]}, raw.variables))[0]


def _validated(model: type[SettingsT], raw: RawSettings) -> tuple[list[str], SettingsT | None]:
    try:
        with relative_to(raw.path):
            settings = model(**raw.values)
    except ValidationError as error:
        return [_fault(raw, fault) for fault in error.errors(include_input=False, include_url=False)], None
    settings._raw = raw
    return [], settings


def _fault(raw: RawSettings, fault: ErrorDetails) -> str:
    key = _key(raw.values, fault["loc"])
    source = raw.origin(tuple(str(part) for part in key))
    if source in raw.variables.values():
        return f"{source}: {_why(fault)}"
    return f"{source}: {_written(key)}: {_why(fault)}"


def _why(fault: ErrorDetails) -> str:
    """Return what is wrong in terms of the settings file; pydantic's message for rare faults."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        return "there is no such setting" + _meant(str(fault["loc"][-1]))
    if kind in _WRITE:
        return _WRITE[kind]
    if kind == "literal_error":
        return f"give one of {str(context['expected']).replace(' or ', ', ')}"
    if kind == "union_tag_invalid":
        return f"kind: give one of {context['expected_tags']}"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = str(context["ge" if kind == "greater_than_equal" else "le"])
        span = re.fullmatch(r"datetime\.timedelta\((?:days=(\d+))?(?:, )?(?:seconds=(\d+))?\)", bound)
        limit = f"{86_400 * int(span[1] or 0) + int(span[2] or 0)}s" if span is not None else bound.removesuffix(".0")
        return f"give at {'least' if kind == 'greater_than_equal' else 'most'} {limit}"
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message[:1].lower() + message[1:]


_WRITE = {
    "missing": "it is missing",
    "union_tag_not_found": "kind: it is missing",
    "list_type": 'write a list: ["..."]',
    "tuple_type": 'write a list: ["..."]',
    "dict_type": "write a table: {name = ...}",
    "model_type": "write a table: {name = ...}",
    "string_type": 'write it in quotes: "..."',
    **dict.fromkeys(("float_parsing", "float_type"), "write a number"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "write a whole number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "write true or false"),
    **dict.fromkeys(
        ("datetime_parsing", "datetime_type", "datetime_from_date_parsing", "datetime_object_invalid"),
        "write a time as 2026-01-05T09:00:00",
    ),
}


def _meant(name: str) -> str:
    """Return a hint at the setting of any section that is spelled nearly like `name`; empty if there is none."""
    known, left = set(SECTIONS), [Section]
    while left:
        section = left.pop()
        left += section.__subclasses__()
        known |= {field.alias or key for key, field in section.model_fields.items()}
    close = [] if name in known else difflib.get_close_matches(name, sorted(known), 1)
    return f"; is {close[0]} meant?" if close else ""


def _written(key: list[str | int]) -> str:
    """Return ``[table.of.it] field``; entries of lists are counted from 1."""
    last = max((n for n, part in enumerate(key) if isinstance(part, str)), default=0)
    table, field = key[:last], key[last:]
    if not table:
        return f"[{_dotted(field)}]"
    return f"[{_dotted(table)}] {_dotted(field)}"


def _dotted(parts: list[str | int]) -> str:
    text = ""
    for part in parts:
        text += f" no. {part + 1}" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


def _key(values: Any, loc: tuple[str | int, ...]) -> list[str | int]:
    """Return the key of a fault in the file, without the branches of unions that pydantic adds to `loc`."""
    key: list[str | int] = []
    for n, part in enumerate(loc):
        last = n == len(loc) - 1
        if isinstance(values, dict):
            if part == "[key]":
                continue
            if part in values:
                values = values[part]
            elif not last or part == values.get("kind") or "[" in str(part):
                continue
        elif isinstance(values, list):
            if not isinstance(part, int) or part >= len(values):
                continue
            values = values[part]
        else:
            continue
        key.append(part)
    return key
