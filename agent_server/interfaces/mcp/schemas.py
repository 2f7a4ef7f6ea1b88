"""JSON schemas small enough for a model to read with every request.

`tools/list` stays in a model's context, so it declares how to call a tool and the outline of its result: titles, empty
defaults, repeated descriptions and nested schemas are dropped. The declared part is exact: a result validates against
it. The whole schema is a resource.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]


def input_schema(model: type[BaseModel], explained: Collection[str] = (), without: Collection[str] = ()) -> Schema:
    """Return the schema of a call's arguments: flat, with bounds and defaults; unknown names are refused.

    Arguments in `without` are left out. For those in `explained` only types are declared, since they are explained
    elsewhere; then bounds are left to the error messages.
    """
    schema = model.model_json_schema()
    properties = {}
    for name, field in schema["properties"].items():
        if name in without:
            continue
        kinds = [k for k in field.pop("anyOf", []) if k != {"type": "null"}]
        if len(kinds) == 1:
            field = {**kinds[0], **field}
        if name in explained:
            field = {"type": field["type"]}
        for noise in ("title", "minLength", "maxLength", *(("minimum", "maximum") if explained else ())):
            field.pop(noise, None)
        if not field.get("default", True):  # the value of an omitted argument
            field.pop("default")
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


def output_schema(model: type[BaseModel]) -> Schema:
    """Return the outline of a result: the common fields; of nested ones, or plain text, only the names (see
    `full_schema`).
    """
    schema = full_schema(model)
    required = schema.get("required", [])
    fields = {name: _plain(schema["properties"][name], schema.get("$defs", {})) for name in required}
    flat = {name: field for name, field in fields.items() if field.get("type") not in ("object", "array", "string")}
    return _without_empty({"type": "object", "properties": flat, "required": required})


@lru_cache(maxsize=256)
def full_schema(model: type[BaseModel]) -> Schema:
    """Return the whole schema of a result, not to be changed: making it takes long."""
    return model.model_json_schema(mode="serialization", by_alias=True)


def _plain(field: Schema, definitions: Schema) -> Schema:
    """Return `field` without nested content: its type or its description."""
    if "$ref" in field:
        return _plain(definitions[field["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in field:
        kinds = [_plain(kind, definitions)["type"] for kind in field["anyOf"]]
        return {"type": "object" if "object" in kinds else kinds}
    return {"enum": field["enum"]} if "enum" in field else {"type": field["type"]}


def _without_empty(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if value not in ({}, [])}
