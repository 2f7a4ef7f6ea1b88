"""Reads the settings, and says in one line what is wrong with them: file or variable, table, field, never a value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from whystall.agent_server.settings.sources import Given, given
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from whystall.agent_server.settings.model import Settings

SECTIONS = frozenset({"server", "triage", "tickets", "alerts", "oncall", "users", "sinks", "chat", "llm"})
_SHOWN = 3
_REMEDY = "correct it; `whystall config check` tells more"


def load() -> Settings:
    """The settings of this process: file and environment as they are now.

    Costs some 0.2 s of imports the first time: a command that needs none should not ask. Raises `ToolError`
    (bad_argument), which names file or variable, table and field, and holds no value.
    """
    return made(given(SECTIONS))


def made(values: Given) -> Settings:
    """`values` as settings; `ToolError` (bad_argument) says what is wrong."""
    faults, settings = judged(values)
    if settings is None:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise ToolError(ErrorCode.BAD_ARGUMENT, "; ".join([*faults[:_SHOWN], *more]), _REMEDY)
    return settings


def judged(values: Given) -> tuple[list[str], Settings | None]:
    """Everything that is wrong with `values`, a line each; and the settings, where nothing is."""
    from pydantic import ValidationError

    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.settings.paths import beside

    try:
        with beside(values.path):
            settings = Settings(**values.values)
    except ValidationError as error:
        return [_said(values, fault) for fault in error.errors(include_input=False, include_url=False)], None
    settings._given = values
    return [], settings


def _said(values: Given, fault: ErrorDetails) -> str:
    place = _place(values.values, fault["loc"])
    message = _why(fault)
    names = tuple(str(part) for part in place)
    source = values.origin(names)
    if source in values.variables.values():
        return f"{source}: {message}"
    return f"{source}: {_told(place)}: {message}"


def _why(fault: ErrorDetails) -> str:
    """What is wrong, as one who writes the file would say it; pydantic's own words where there are no better ones."""
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
        told = f"{86_400 * int(span[1] or 0) + int(span[2] or 0)}s" if span is not None else bound.removesuffix(".0")
        return f"give at {'least' if kind == 'greater_than_equal' else 'most'} {told}"
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
    """The setting of any section that is spelled nearly like `name`."""
    import difflib

    from whystall.agent_server.settings.section import Section

    known, left = set(SECTIONS), [Section]
    while left:
        section = left.pop()
        left += section.__subclasses__()
        known |= {field.alias or key for key, field in section.model_fields.items()}
    close = [] if name in known else difflib.get_close_matches(name, sorted(known), 1)
    return f"; is {close[0]} meant?" if close else ""


def _told(place: list[str | int]) -> str:
    """``[table.of.it] field``; entries of lists are counted from 1."""
    last = max((n for n, part in enumerate(place) if isinstance(part, str)), default=0)
    table, field = place[:last], place[last:]
    if not table:
        return f"[{_dotted(field)}]"
    return f"[{_dotted(table)}] {_dotted(field)}"


def _dotted(parts: list[str | int]) -> str:
    text = ""
    for part in parts:
        text += f" no. {part + 1}" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


def _place(values: Any, loc: tuple[str | int, ...]) -> list[str | int]:
    """Where a fault is, in the terms of the file: pydantic names also the branches of unions that it tried."""
    place: list[str | int] = []
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
        place.append(part)
    return place
