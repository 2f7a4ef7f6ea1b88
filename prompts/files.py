"""Reads the YAML files of texts in ``words/``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

LANGS = ("en", "zh")
_WORDS = Path(__file__).parent / "words"
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# verdict_lines:
_GROUP = re.compile(r"^(?=(\w+):)", re.MULTILINE)


class Groups(Mapping[str, Any]):
    """The groups at the top of a YAML file, each parsed when it is first read: a command needs few of many.

    `convert` is applied to the content of a group. Raises KeyError for an unknown one.
    """

    def __init__(self, text: str, convert: Callable[[Any], Any]) -> None:
        starts = list(_GROUP.finditer(text))
        ends = [start.start() for start in starts[1:]] + [len(text)]
        self._texts = {start[1]: text[start.start() : end] for start, end in zip(starts, ends, strict=True)}
        self._convert = convert
        self._parsed: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._parsed:
            self._parsed[name] = self._convert(_load(self._texts[name])[name])
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def groups_of(name: str, convert: Callable[[Any], Any]) -> Groups:
    """Return the groups of the file ``words/NAME``."""
    return Groups((_WORDS / name).read_text("utf-8"), convert)


def read_file(name: str) -> Any:
    """Return the content of the file ``words/NAME``."""
    return _load((_WORDS / name).read_text("utf-8"))


def _load(text: str) -> Any:
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both loaders are safe


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
