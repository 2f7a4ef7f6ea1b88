"""The settings that count, and where each came from; of secrets only where they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from whystall.agent_server.settings.secret import Secret

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.settings.sources import Given

HIDDEN = "(hidden)"
_KEY = re.compile(r"key|token$|secret|password", re.IGNORECASE)


class Shown(BaseModel):
    """One setting. `place`: its tables and its name, with dots. `value`: as in JSON; a secret is where it is. `origin`:
    the file, the variable, or ``default``.
    """

    model_config = ConfigDict(extra="forbid")

    place: str
    value: Any
    origin: str


def shown(settings: Settings) -> list[Shown]:
    """Every setting, those that were not given included."""
    found = list(_model(settings, (), settings.given, settings.given.values))
    return [each for each in found if not each.place.startswith("llm.")] + list(_llm(settings.given))


def _model(model: BaseModel, place: tuple[str, ...], given: Given, values: Any) -> Iterator[Shown]:
    plain = model.model_dump(mode="json", by_alias=True)
    for name, field in type(model).model_fields.items():
        called = field.alias or name
        inner = values.get(called) if isinstance(values, dict) else None
        yield from _value(getattr(model, name), plain[called], (*place, called), given, inner)


def _value(value: Any, plain: Any, place: tuple[str, ...], given: Given, values: Any) -> Iterator[Shown]:
    """`value`, as JSON has it in `plain`, and what was given for it in `values`."""
    if isinstance(value, BaseModel) and not isinstance(value, Secret):
        yield from _model(value, place, given, values)
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            below = values.get(name) if isinstance(values, dict) else None
            yield from _value(inner, plain[str(name)], (*place, str(name)), given, below)
    elif isinstance(value, list) and any(isinstance(each, BaseModel) for each in value):
        for n, each in enumerate(value):
            below = values[n] if isinstance(values, list) and n < len(values) else None
            yield from _value(each, plain[n], (*place[:-1], f"{place[-1]}[{n}]"), given, below)
    elif not (isinstance(value, dict) and len(place) == 1):  # an empty section says nothing
        origin = "default" if values is None else given.origin(_bare(place))
        if isinstance(value, Secret):
            plain = {kind: where for kind, where in plain.items() if where is not None}
        yield Shown(place=".".join(place), value=plain, origin=origin)


def _bare(place: tuple[str, ...]) -> tuple[str, ...]:
    """Lists are given as a whole."""
    return tuple(part.partition("[")[0] for part in place)


def _llm(given: Given) -> Iterator[Shown]:
    """What is said of the model, in either way, without a key that should not stand there."""
    from whystall.agent_server.settings.llm_environment import PREFIX, variables

    names = {name.upper().removeprefix(PREFIX).lower(): name for name in variables()}
    table = given.values.get("llm", {})
    for name in sorted({*names, *(table if isinstance(table, dict) else {})}):
        variable = names.get(name)
        value = os.environ[variable] if variable else table[name]
        if _KEY.search(name) and isinstance(value, str) and name != "api_key_file":
            value = HIDDEN  # also under a name that there is not: it stands where it should not
        origin = variable or given.origin(("llm", name))
        yield Shown(place=f"llm.{name}", value=to_jsonable_python(value), origin=origin)
