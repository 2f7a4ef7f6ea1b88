"""List the effective settings and their origins; of a secret only its file or variable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from whystall.agent_server.settings.secret import Secret

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings
    from whystall.agent_server.settings.sources import RawSettings

HIDDEN = "(hidden)"
_KEY = re.compile(r"key|token$|secret|password", re.IGNORECASE)


class Shown(BaseModel):
    """One setting. `place`: its tables and its name, with dots. `value`: as in JSON; of a secret its file or variable.
    `origin`: the file, the variable, or ``default``.
    """

    model_config = ConfigDict(extra="forbid")

    place: str
    value: Any
    origin: str


def list_settings(settings: Settings) -> list[Shown]:
    """Return every setting, defaults included."""
    found = list(_model(settings, (), settings.raw, settings.raw.values))
    return [each for each in found if not each.place.startswith("llm.")] + list(_llm(settings.raw))


def _model(model: BaseModel, place: tuple[str, ...], raw: RawSettings, values: Any) -> Iterator[Shown]:
    plain = model.model_dump(mode="json", by_alias=True)
    for name, field in type(model).model_fields.items():
        called = field.alias or name
        inner = values.get(called) if isinstance(values, dict) else None
        yield from _value(getattr(model, name), plain[called], (*place, called), raw, inner)


def _value(value: Any, plain: Any, place: tuple[str, ...], raw: RawSettings, values: Any) -> Iterator[Shown]:
    """Yield the settings in `value`; `plain` is `value` as JSON, `values` its raw value."""
    if isinstance(value, BaseModel) and not isinstance(value, Secret):
        yield from _model(value, place, raw, values)
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            below = values.get(name) if isinstance(values, dict) else None
            yield from _value(inner, plain[str(name)], (*place, str(name)), raw, below)
    elif isinstance(value, list) and any(isinstance(each, BaseModel) for each in value):
        for n, each in enumerate(value):
            below = values[n] if isinstance(values, list) and n < len(values) else None
            yield from _value(each, plain[n], (*place[:-1], f"{place[-1]}[{n}]"), raw, below)
    elif not (isinstance(value, dict) and len(place) == 1):  # not an empty section
        origin = "default" if values is None else raw.origin(_bare(place))
        if isinstance(value, Secret):
            plain = {kind: where for kind, where in plain.items() if where is not None}
        yield Shown(place=".".join(place), value=plain, origin=origin)


def _bare(place: tuple[str, ...]) -> tuple[str, ...]:
    """Return `place` without indices: lists are set as a whole."""
    return tuple(part.partition("[")[0] for part in place)


def _llm(raw: RawSettings) -> Iterator[Shown]:
    """Yield what is set for the model, valid or not, without a key that is written in the file itself."""
    table = raw.values.get("llm", {})
    for name, value in sorted(table.items()) if isinstance(table, dict) else ():
        if _KEY.search(name) and isinstance(value, str) and name != "api_key_file":
            value = HIDDEN  # also under an unknown name
        yield Shown(place=f"llm.{name}", value=to_jsonable_python(value), origin=raw.origin(("llm", name)))
