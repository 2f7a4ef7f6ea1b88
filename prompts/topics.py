"""Explanations of terms and faults (``words/topics.yaml``), found by the words of a message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from whystall.prompts.escape import Safe
from whystall.prompts.files import LANGS, read_file

# Between the words of a name in CamelCase: "GPUThermalThrottle" has three, "NFSServerDown" too.
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Topic:
    """A term or a fault. `means`, `first`, `normal`: what it is, what to examine first, what is usual; by language,
    the latter two may be empty; `run`: commands to run on the host concerned; `term`: only defines a word.
    """

    id: str
    pattern: re.Pattern[str]
    means: dict[str, Safe]
    first: dict[str, Safe]
    normal: dict[str, Safe]
    run: tuple[str, ...] = ()
    term: bool = False


@cache
def topics() -> tuple[Topic, ...]:
    """Return all topics, compiled once; KeyError for one without a text in both languages."""
    return tuple(
        Topic(
            id=entry["id"],
            pattern=re.compile(entry["match"], re.IGNORECASE | re.ASCII),
            means={lang: Safe(entry["means"][lang]) for lang in LANGS},
            first={lang: Safe(text[lang]) for lang in LANGS if (text := entry.get("first"))},
            normal={lang: Safe(text[lang]) for lang in LANGS if (text := entry.get("normal"))},
            run=tuple(entry.get("run", ())),
            term=entry.get("term", False),
        )
        for entry in read_file("topics.yaml")
    )


def divided(text: str) -> str:
    """Return `text` with the words of CamelCase and snake_case names separated by blanks."""
    return _CAMEL.sub(" ", text).replace("_", " ")


def topics_of(text: str, most: int = 2) -> list[Topic]:
    """Return the topics of `text`, at most `most`: faults before mere terms, the longest match first, without those
    within the match of another one.
    """
    text = divided(text)
    found = [(one, match.span()) for one in topics() for match in one.pattern.finditer(text) if match[0]]
    found.sort(key=lambda item: (item[0].term, item[1][0] - item[1][1]))
    chosen: dict[str, tuple[Topic, tuple[int, int]]] = {}
    for one, (begin, end) in found:
        if all(end <= other[0] or begin >= other[1] for _, other in chosen.values()):
            chosen.setdefault(one.id, (one, (begin, end)))
    return [one for one, _ in chosen.values()][:most]
