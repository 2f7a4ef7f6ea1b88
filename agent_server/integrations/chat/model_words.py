"""A model's own words in a chat: its values are placeholders for what its functions returned. Pure.

A sentence is shown if it rests on at least one value, or asks something. Its wording is not checked, so it is shown as
such, below the plain answers of the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whystall.prompts import placeholders
from whystall.prompts.escape import Safe, markdown, short
from whystall.prompts.quantities import quantity

LIMIT = 1500
"""Maximum characters of an answer."""
_VALUE = 300
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")
_BULLET = re.compile(r"^\s*(?:[-*•+]|\d{1,2}[.)、])\s+")
_UNITS = ("s", "ms", "pct", "bytes")
_LINK = re.compile(r"://|www\.|\]\(", re.I)


@dataclass(frozen=True)
class ModelWords:
    """The sentences of an answer: `kept`, escaped, with values; and `rejected`."""

    kept: list[Safe] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)


def read(answer: str, results: Sequence[Mapping[str, Any]]) -> ModelWords:
    """Split `answer` into sentences to show and others; ``{2.tickets.0.state}`` is a value of the second result."""

    def value(name: str) -> Safe | None:
        number, _, path = name.partition(".")
        known = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 0
        return _value(results[known - 1], path) if 0 < known <= len(results) else None

    kept: list[Safe] = []
    rejected: list[str] = []
    for sentence in _sentences(answer[:LIMIT]):
        names, question = placeholders.names(sentence), sentence.endswith(("?", "？"))
        written = placeholders.numbers(sentence) or _LINK.search(sentence)
        if written or not (names or question) or any(value(name) is None for name in names):
            rejected.append(sentence)
            continue
        kept.append(placeholders.filled(sentence, value, markdown))
    return ModelWords(kept, rejected)


def _sentences(answer: str) -> Iterator[str]:
    for line in answer.splitlines():
        for part in _SENTENCE.split(_BULLET.sub("", line)):
            if plain := part.strip():
                yield plain


def _value(result: Any, path: str) -> Safe | None:
    """Return the text of the value at `path` (names and indexes with dots between them); None if there is none."""
    *outer, last = path.split(".")
    for part in (*outer, last):
        if isinstance(result, Mapping):
            result = result.get(part)
        elif isinstance(result, (list, tuple)) and part.isascii() and part.isdigit() and int(part[:4]) < len(result):
            result = result[int(part[:4])]
        else:
            return None
    if isinstance(result, bool) or result is None or not isinstance(result, (str, int, float)):
        return None
    unit = last.rpartition("_")[2] if "_" in last else ""
    if isinstance(result, (int, float)):
        return Safe(quantity(result, unit) if unit in _UNITS else result)
    return markdown(short(result, _VALUE)) if result else None
