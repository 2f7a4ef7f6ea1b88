"""Command-line options generated from pydantic parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Optional, TypeVar, Union, get_args, get_origin

import annotated_types
import typer
from pydantic.fields import FieldInfo

from whystall.agent_server.settings.engines import Engine
from whystall.tools.contract.params import Params, parse_params

ParamsT = TypeVar("ParamsT", bound=Params)
Lang = Literal["en", "zh"]

FromOption = Annotated[
    Optional[Path],  # noqa: UP045  typer reads this at run time, also on Python 3.10
    typer.Option("--from", metavar="PATH", help="judge this recording, trace or profile instead of observing now"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print the structured result (errors too, as an object)")]
LangOption = Annotated[Lang, typer.Option("--lang", help="language of the text")]
EngineOption = Annotated[Engine, typer.Option("--engine", help="how to observe; auto takes the best that works")]


def command(
    run: Callable[..., Any], params: type[Params], *, doc: str, skip: Iterable[str] = (), required: Iterable[str] = ()
) -> Callable[..., Any]:
    """Return a function typer can read: the options of `run` after one per field of `params`.

    `run` is called with its own arguments, and with `given`: those of `params` that the user gave. Fields in `skip` get
    no option; those in `required` must be given.
    """
    fields = {n: f for n, f in params.model_fields.items() if n not in set(skip)}
    own = {n: p for n, p in inspect.signature(run, eval_str=True).parameters.items() if n != "given"}
    options = [_option(n, f, n in set(required) or f.is_required()) for n, f in fields.items() if n not in own]

    def function(**values: Any) -> Any:
        given = {n: values[n] for n in fields if n not in own and values.get(n) is not None}
        return run(given=given, **{n: values[n] for n in own})

    function.__doc__ = doc
    made = sorted([*options, *own.values()], key=lambda p: (p.default is not p.empty, p.name in own))
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY) for p in made]
    )
    return function


def checked(model: type[ParamsT], given: dict[str, Any]) -> ParamsT:
    """Validate `given` as `model`. Raises `ToolError` (bad_argument)."""
    parse_params(model, given)
    return model.model_validate(given)


def _option(name: str, field: FieldInfo, required: bool) -> inspect.Parameter:
    kind = _plain(field.annotation)
    low, high = _bounds(field)
    declaration = "--" + name.replace("_", "-")
    if kind is bool and field.default is True:
        declaration += "/--no-" + name.replace("_", "-")
    numeric = kind in (int, float)
    option = typer.Option(
        declaration,
        help=" ".join(text for text in (field.description or "", _default(field, kind)) if text) or None,
        min=low if numeric else None,
        max=high if numeric else None,
        show_default=False,
    )
    wanted = kind if required else Optional[kind]  # noqa: UP045  a value, not an annotation
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[wanted, option],
    )


def _default(field: FieldInfo, kind: Any) -> str:
    """Return a default worth showing; the option itself has none, so that only given values are passed on."""
    if field.is_required() or field.default in (None, "") or kind is bool:
        return ""
    return f"(default: {field.default:g})" if kind in (int, float) else f"(default: {field.default})"


def _plain(annotation: Any) -> Any:
    """Return ``X`` of ``X | None``."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [a for a in get_args(annotation) if a is not type(None)]
        if len(kinds) != 1:
            raise TypeError(f"a parameter must be flat, not {annotation}")
        return kinds[0]
    return annotation


def _bounds(field: FieldInfo) -> tuple[Any, Any]:
    low = next((m.ge for m in field.metadata if isinstance(m, annotated_types.Ge)), None)
    high = next((m.le for m in field.metadata if isinstance(m, annotated_types.Le)), None)
    return low, high


def underscores(name: str) -> str:
    """Replace hyphens: option and tool names may be written with either, tools are registered with underscores."""
    return name.replace("-", "_")
