"""JSON schemas small enough for a model to read with every request.

`tools/list` stays in a model's context, so that it declares how to call a tool only; the schemas of results are
resources.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]
_PATH = "path of "
_MOST_PIDS = 1 << 22
"""PID_MAX_LIMIT (include/linux/threads.h)."""


def input_schema(model: type[BaseModel], without: Collection[str] = ()) -> Schema:
    """Return the schema of a call's arguments: flat, with bounds and defaults; unknown names are refused.

    Arguments in `without` are left out. Bounds of numbers are also in their descriptions, since many clients drop
    those keywords; those of process and thread ids are not, as nobody makes ids up.
    """
    schema = model.model_json_schema()
    properties = {}
    for name, field in schema["properties"].items():
        if name in without:
            continue
        kinds = [k for k in field.pop("anyOf", []) if k != {"type": "null"}]
        if len(kinds) == 1:
            field = {**kinds[0], **field}
        for noise in ("title", "minLength", "maxLength", "pattern"):
            field.pop(noise, None)
        if not field.get("default", True):  # the value of an omitted argument
            field.pop("default")
        for keyword in ("minimum", "maximum", "default"):
            if isinstance(field.get(keyword), float):
                field[keyword] = _plain(field[keyword])
        if field.get("description", "").startswith(_PATH):  # a client has another working directory
            field["description"] = f"absolute {field['description']}"
        if bounds := _bounds(field):
            field["description"] = f"{field.get('description', name)}; {bounds}"
        properties[name] = field
    return _without_empty(
        {
            "type": "object",
            "properties": properties,
            "required": schema.get("required", []),
            "additionalProperties": False,
            "$defs": schema.get("$defs", {}),
        }
    )


def _bounds(field: Schema) -> str:
    low, high = (field.get(name) for name in ("minimum", "maximum"))
    if low is None or high == _MOST_PIDS:
        return ""
    return f"{low} to {high}" if high is not None else f"at least {low}"


def _plain(value: float) -> float:
    """Return 10 for 10.0, which is shorter."""
    return int(value) if value.is_integer() else value


@lru_cache(maxsize=256)
def full_schema(model: type[BaseModel]) -> Schema:
    """Return the whole schema of a result, not to be changed: making it takes long."""
    return model.model_json_schema(mode="serialization", by_alias=True)


def _without_empty(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if value not in ({}, [])}
