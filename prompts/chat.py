"""What the chat says, in both languages (``words/chat.LANG.yaml``): Markdown, with all that is strangers' escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from whystall.prompts.escape import Safe
from whystall.prompts.render import FORMATS, LANGS, fill

_HERE = Path(__file__).parent
_MARKDOWN = FORMATS["md"]


def chat_words(lang: str) -> dict[str, Any]:
    """The words of `lang`, nested by group and code; a KeyError for another language."""
    if lang not in LANGS:
        raise KeyError(lang)
    return _words(lang)


def say(lang: str, code: str, *values: object, **named: object) -> Safe:
    """The words of `code` (``wish.resolve``) with `values` filled in, escaped; a KeyError for what nobody wrote."""
    text: Any = chat_words(lang)
    for part in code.split("."):
        text = text[part]
    return fill(_MARKDOWN.running, text, *values, **named)


def name(value: object) -> Safe:
    """A stranger's name as code, in which nothing is markup."""
    return _MARKDOWN.name(value)


@cache
def _words(lang: str) -> dict[str, Any]:
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Any] = yaml.load((_HERE / "words" / f"chat.{lang}.yaml").read_text("utf-8"), Loader=loader)  # noqa: S506
    return found
