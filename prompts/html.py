"""Renders the templates of web pages, ``templates/console/NAME.html.j2``, in English and Chinese.

Jinja escapes everything that a template prints, our own texts too, and control characters are made visible. Lines that
exist as Markdown (of diagnoses and tickets, in which foreign text is escaped) are shown by the filter ``md``, which
knows code and emphasis only: no HTML, link or picture can come from a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from whystall.prompts.escape import printable
from whystall.prompts.files import texts_of
from whystall.prompts.quantities import quantity
from whystall.prompts.reasons import in_words
from whystall.prompts.render import words

_HERE = Path(__file__).parent
_LINE = MarkdownIt("zero").enable(["backticks", "emphasis", "escape", "entity"])


def render_page(name: str, lang: str, /, **context: Any) -> str:
    """Render the page `name` in `lang` (``en``, ``zh``); KeyError for an unknown language."""
    return _environment(lang).get_template(f"{name}.html.j2").render(**context)


def markdown_line(text: object) -> Markup:
    """Return one line of Markdown as HTML."""
    return Markup(_LINE.renderInline(str(text)))  # noqa: S704 - the renderer escapes what is no code or emphasis


def _inert(value: object) -> object:
    """Return a text with control characters, also those that turn the direction of what follows, as escapes."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return value if value.isprintable() else "\n".join(printable(line) for line in value.split("\n"))


@cache
def _environment(lang: str) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates/console"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"t": words(lang), "c": texts_of("console", lang), "lang": lang}
    environment.filters |= {
        "md": markdown_line,
        "q": quantity,
        "reason": lambda text: in_words(lang, text),
        "fill": lambda text, *values, **named: str(text).format(*values, **named),
        "listed": lambda parts: str(words(lang)["marks"]["comma"]).join(map(str, _texts(parts))),
    }
    return environment


def _texts(parts: Iterable[object]) -> Iterable[str]:
    return (str(part) for part in parts if str(part))
