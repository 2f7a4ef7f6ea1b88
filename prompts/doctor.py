"""Texts of `whystall doctor` (``words/doctor.LANG.yaml``). Values are inert and not escaped: commands can be pasted."""

from __future__ import annotations

from typing import Any

from whystall.prompts.files import text_of, texts_of


def doctor_words(lang: str) -> dict[str, Any]:
    """Return the texts in `lang`, nested by check and code; KeyError for an unknown language."""
    return texts_of("doctor", lang)


def say(lang: str, code: str, **named: object) -> str:
    """Return the text of `code` (``btf.means``) with `named` filled in; KeyError for an unknown code."""
    return text_of("doctor", lang, code).format(**named)
