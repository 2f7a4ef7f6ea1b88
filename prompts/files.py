"""Reads the YAML files of texts in ``words/``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

LANGS = ("en", "zh")
_WORDS = Path(__file__).parent / "words"


def read_file(name: str) -> Any:
    """Return the content of the file ``words/NAME``."""
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((_WORDS / name).read_text("utf-8"), Loader=loader)  # noqa: S506 - both loaders are safe


@cache
def texts_of(topic: str, lang: str) -> dict[str, Any]:
    """Return the texts of ``words/TOPIC.LANG.yaml``, nested by group and code; KeyError for an unknown language."""
    if lang not in LANGS:
        raise KeyError(lang)
    found: dict[str, Any] = read_file(f"{topic}.{lang}.yaml")
    return found


def text_of(topic: str, lang: str, code: str) -> str:
    """Return the text of `code` (``command.resolve``); KeyError for an unknown one."""
    found: Any = texts_of(topic, lang)
    for part in code.split("."):
        found = found[part]
    return str(found)
