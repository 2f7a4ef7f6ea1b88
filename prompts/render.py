"""Renders the templates of this package. Everything printed is escaped for the format unless it is `Safe`.

Names end in ``.md`` (Markdown) or ``.txt`` (terminal, and the text of MCP results). ``NAME.en.md.j2`` is used for
English if it exists, else ``NAME.md.j2`` with texts of ``words/``. A missing name or value is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from whystall.prompts import escape
from whystall.prompts.escape import Safe, short
from whystall.prompts.files import LANGS, groups_of
from whystall.prompts.quantities import quantity
from whystall.prompts.reasons import in_words
from whystall.prompts.sentences import Voice

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Format:
    """Escaping of running text and of names in a format, and the maximum length of a name in a list."""

    running: Callable[[object], Safe]
    name: Callable[[object], Safe]
    name_limit: int


FORMATS = {
    "md": Format(escape.markdown, escape.markdown_code, 4096),
    "txt": Format(escape.plain, escape.plain_code, 300),
}


def render(name: str, lang: str, **context: Any) -> str:
    """Render the template `name` in `lang` (``en``, ``zh``); KeyError for an unknown language or format."""
    stem, _, suffix = name.rpartition(".")
    template = _environment(suffix, lang).select_template([f"{stem}.{lang}.{suffix}.j2", f"{name}.j2"])
    return template.render(**context).strip() + "\n"


def words(lang: str) -> Mapping[str, Any]:
    """Return the texts in `lang`, nested by group and code, all `Safe`; KeyError for an unknown language."""
    if lang not in LANGS:
        raise KeyError(lang)
    return _words(lang)


@cache
def voice(suffix: str, lang: str) -> Voice:
    """Return the `Voice` of the format `suffix` (``md``, ``txt``) and language."""
    form = FORMATS[suffix]
    return Voice(words(lang), lang, form.name, form.running, form.name_limit)


@cache
def _words(lang: str) -> Mapping[str, Any]:
    return groups_of(f"{lang}.yaml", _trusted)


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
        "short": lambda text, limit: text if isinstance(text, Safe) else short(text, limit),
        "reason": lambda text: in_words(lang, text),
        "trusted": Safe,
        "join_safe": lambda parts, by: Safe(by.join(form.running(part) for part in parts)),
    }
    return environment


def fill(running: Callable[[object], Safe], text: str, *values: object, **named: object) -> Safe:
    """Replace ``{}`` and ``{name}`` in `text` by escaped values; braces in values have no meaning."""
    return Safe(text.format(*map(running, values), **{key: running(value) for key, value in named.items()}))


def fit(lines: list[Safe], budget: int) -> tuple[list[Safe], int]:
    """Return the first of `lines` that fit in `budget` characters, and the number of the others."""
    kept: list[Safe] = []
    for line in lines:
        budget -= len(line) + 1
        if budget < 0:
            break
        kept.append(line)
    return kept, len(lines) - len(kept)
