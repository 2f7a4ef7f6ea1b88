"""Finds words of the catalogue in a text, in either language, and which of them are negated.

The words are the concepts of the glossary, and those that only distinguish classes (``catalog/classes.yaml``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from whystall.knowledge_base.classify.wording import wording
from whystall.knowledge_base.tokens import plain

_LATIN = re.compile(r"[a-z0-9_]+")
_WITHIN = 48  # characters around a word searched for a negation


class Vocabulary:
    """Names with their phrases in both languages. `english`: phrase (words separated by blanks, as `terms` splits a
    text) to names; `chinese`: substring to names.
    """

    def __init__(self, english: Mapping[str, Iterable[str]], chinese: Mapping[str, Iterable[str]]) -> None:
        self._phrases: dict[str, list[tuple[list[str], str]]] = {}
        for phrase, names in english.items():
            first, *rest = phrase.split()
            self._phrases.setdefault(first, []).extend((rest, name) for name in names)
        self._runs: dict[str, list[tuple[str, str]]] = {}
        for run, names in chinese.items():
            self._runs.setdefault(run[0], []).extend((run, name) for name in names)
        self._begins = re.compile("|".join(map(re.escape, self._runs)) or "(?!)")

    def find(self, text: str) -> dict[str, str]:
        """Return the names that `text` contains and does not negate, each with the first matching words."""
        lower = plain(text)
        found: dict[str, str] = {}
        latin = list(_LATIN.finditer(lower))
        for at, word in enumerate(latin):
            for rest, name in self._phrases.get(word[0], ()):
                last = at + len(rest)
                if name in found or last >= len(latin) or any(latin[at + 1 + i][0] != w for i, w in enumerate(rest)):
                    continue
                if not _negated(lower, word.start(), latin[last].end()):
                    found[name] = " ".join([word[0], *rest])
        for begin in self._begins.finditer(lower):
            for run, name in self._runs[begin[0]]:
                here = name not in found and lower.startswith(run, begin.start())
                if here and not _negated(lower, begin.start(), begin.start() + len(run)):
                    found[name] = run
        return found


def _negated(text: str, start: int, end: int) -> bool:
    """Return whether the words from `start` to `end` are negated, or reported as fine, in their clause."""
    breaks, denied, well = _negation()
    before = breaks.split(text[max(0, start - _WITHIN) : start])[-1]
    after = breaks.split(text[end : end + _WITHIN])[0]
    return denied.search(before) is not None or well.match(after) is not None


@cache
def _negation() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    words = wording().negation
    denied, well = "|".join(words.before), "|".join(words.after)
    return re.compile(words.breaks), re.compile(f"(?:{denied})$"), re.compile(f"(?:{well})")
