"""JSON schemas small enough to be read by a model with every request.

`tools/list` stands in a model's context all the time, so it declares how to call a tool and the outline of its answer:
titles, defaults that say nothing, repeated prose and nested shapes are dropped. What is declared is true: a result
validates against its schema. The whole shape is a resource, for who wants it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]


def input_schema(model: type[BaseModel], told: Collection[str] = (), without: Collection[str] = ()) -> Schema:
    """The arguments of a call: flat, with bounds and defaults; unknown names are declared as refused.

    Those in `without` are not offered. Those in `told` are explained elsewhere, and only their types are declared;
    where any are, bounds are left to the error that names them.
    """
    schema = model.model_json_schema()
    properties = {}
    for name, field in schema["properties"].items():
        if name in without:
            continue
        kinds = [k for k in field.pop("anyOf", []) if k != {"type": "null"}]
        if len(kinds) == 1:
            field = {**kinds[0], **field}
        if name in told:
            field = {"type": field["type"]}
        for noise in ("title", "minLength", "maxLength", *(("minimum", "maximum") if told else ())):
            field.pop(noise, None)
        if not field.get("default", True):  # nothing, zero or no is what leaving out means
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
    """The outline of a result: what every one has; of what is nested, or plain text, only the names (see
    `full_schema`)."""
    schema = full_schema(model)
    required = schema.get("required", [])
    fields = {name: _plain(schema["properties"][name], schema.get("$defs", {})) for name in required}
    flat = {name: field for name, field in fields.items() if field.get("type") not in ("object", "array", "string")}
    return _without_empty({"type": "object", "properties": flat, "required": required})


def full_schema(model: type[BaseModel]) -> Schema:
    """The whole shape of a result, as long as it is."""
    return model.model_json_schema(mode="serialization", by_alias=True)


def _plain(field: Schema, definitions: Schema) -> Schema:
    """`field` without what is inside of it: its type or its words."""
    if "$ref" in field:
        return _plain(definitions[field["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in field:
        kinds = [_plain(kind, definitions)["type"] for kind in field["anyOf"]]
        return {"type": "object" if "object" in kinds else kinds}
    return {"enum": field["enum"]} if "enum" in field else {"type": field["type"]}


def _without_empty(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if value not in ({}, [])}
