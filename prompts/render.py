"""Renders the templates of this package. Everything a template prints is escaped for its format unless it
is `Safe`.

A name ends in ``.md`` (Markdown) or ``.txt`` (terminal, and the text of MCP results). ``NAME.en.md.j2`` is
taken for English if there is one, else ``NAME.md.j2``, which finds its words in ``words/``. A name or value
that is missing is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from whystall.prompts import escape
from whystall.prompts.escape import Safe
from whystall.prompts.quantities import quantity
from whystall.prompts.reasons import in_words
from whystall.prompts.sentences import Voice

LANGS = ("en", "zh")
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Format:
    """How one format escapes running text and names, and how long a name may get in a list."""

    running: Callable[[object], Safe]
    name: Callable[[object], Safe]
    name_limit: int


FORMATS = {
    "md": Format(escape.markdown, escape.markdown_code, 4096),
    "txt": Format(escape.plain, escape.plain_code, 300),
}


def render(name: str, lang: str, **context: Any) -> str:
    """The template `name` in `lang` (``en``, ``zh``) with `context`; a KeyError for another language or
    format.
    """
    stem, _, suffix = name.rpartition(".")
    template = _environment(suffix, lang).select_template([f"{stem}.{lang}.{suffix}.j2", f"{name}.j2"])
    return template.render(**context).strip() + "\n"


def words(lang: str) -> dict[str, Any]:
    """The words of `lang`: nested by group and code, every text `Safe`; a KeyError for another language."""
    if lang not in LANGS:
        raise KeyError(lang)
    return _words(lang)


@cache
def voice(suffix: str, lang: str) -> Voice:
    """What puts findings and codes into words, in the format `suffix` (``md``, ``txt``)."""
    form = FORMATS[suffix]
    return Voice(words(lang), lang, form.name, form.running, form.name_limit)


@cache
def _words(lang: str) -> dict[str, Any]:
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (_HERE / "words" / f"{lang}.yaml").read_text("utf-8")
    found: dict[str, Any] = _trusted(yaml.load(text, Loader=loader))  # noqa: S506 - both loaders are safe
    return found


def _trusted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _trusted(inner) for key, inner in value.items()}
    return Safe(value)


@cache
def _environment(suffix: str, lang: str) -> Environment:
    form, speaks = FORMATS[suffix], voice(suffix, lang)
    environment = Environment(  # noqa: S701 - `finalize` escapes, for formats that Jinja's HTML escaping does not know
        loader=FileSystemLoader(_HERE / "templates"),
        undefined=StrictUndefined,
        finalize=form.running,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"t": words(lang), "say": speaks, "lang": lang}
    environment.filters |= {
        "code": form.name,
        "q": lambda value, unit: Safe(quantity(value, unit)),
        "fill": lambda text, *values, **named: fill(form.running, text, *values, **named),
        "reason": lambda text: in_words(lang, text),
        "trusted": Safe,
        "join_safe": lambda parts, by: Safe(by).join(form.running(part) for part in parts),
    }
    return environment


def fill(running: Callable[[object], Safe], text: str, *values: object, **named: object) -> Safe:
    """`text` with its ``{}`` and ``{name}`` replaced by escaped values; braces in values mean nothing."""
    return Safe(text.format(*map(running, values), **{key: running(value) for key, value in named.items()}))


def fit(lines: list[Safe], budget: int) -> tuple[list[Safe], int]:
    """As many of `lines`, in order, as `budget` characters hold, and how many were left out."""
    kept: list[Safe] = []
    for line in lines:
        budget -= len(line) + 1
        if budget < 0:
            break
        kept.append(line)
    return kept, len(lines) - len(kept)
