"""What `whystall doctor` says, in both languages (``words/doctor.LANG.yaml``). Values are inert already, and stay as
they are: a command must be pasted as it stands."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from whystall.prompts.render import LANGS

_HERE = Path(__file__).parent


def doctor_words(lang: str) -> dict[str, Any]:
    """The words of `lang`, nested by check and code; a KeyError for another language."""
    if lang not in LANGS:
        raise KeyError(lang)
    return _words(lang)


def say(lang: str, code: str, **named: object) -> str:
    """The words of `code` (``btf.means``) with `named` filled in; a KeyError for what nobody wrote."""
    text: Any = doctor_words(lang)
    for part in code.split("."):
        text = text[part]
    return str(text).format(**named)


@cache
def _words(lang: str) -> dict[str, Any]:
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Any] = yaml.load((_HERE / "words" / f"doctor.{lang}.yaml").read_text("utf-8"), Loader=loader)  # noqa: S506
    return found
