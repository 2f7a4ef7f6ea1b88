"""Texts of chat messages (``words/chat.LANG.yaml``), as Markdown with foreign values escaped."""

from __future__ import annotations

from typing import Any

from whystall.prompts.escape import Safe
from whystall.prompts.files import text_of, texts_of
from whystall.prompts.render import FORMATS, fill

_MARKDOWN = FORMATS["md"]


def chat_words(lang: str) -> dict[str, Any]:
    """Return the texts in `lang`, nested by group and code; KeyError for an unknown language."""
    return texts_of("chat", lang)


def say(lang: str, code: str, *values: object, **named: object) -> Safe:
    """Return the text of `code` (``wish.resolve``) with escaped `values`; KeyError for an unknown code."""
    return fill(_MARKDOWN.running, text_of("chat", lang, code), *values, **named)


def name(value: object) -> Safe:
    """Return a foreign name as code, in which nothing is markup."""
    return _MARKDOWN.name(value)
