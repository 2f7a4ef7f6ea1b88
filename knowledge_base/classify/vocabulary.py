"""Which words of the catalogue a text says, in either language, and which of them it denies.

The words are the concepts of the glossary, and those that only tell classes apart (``catalog/classes.yaml``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from whystall.knowledge_base.tokens import plain

_LATIN = re.compile(r"[a-z0-9_]+")
_BREAK = re.compile(r"[.,;:!?()\n。,;:!?、()]|\bbut\b|但|可是|不过")
# What stands before a word that is denied, and after one that is found well; within the same clause.
_DENIED = re.compile(
    r"(?:\b(?:no|not|never|without|isn|wasn|aren|doesn|didn|don|neither|nor|ruled out|rule out|rather than|instead of|nothing (?:wrong )?(?:with|in))\b"
    r"(?: t)?(?:\W+\w+){0,2}\W*|(?:没有|没出现|没见|未见|未发现|不是|并非|排除了?|无关|而非|从来没有)[^,。;]{0,3})$"
)
_WELL = re.compile(
    r"^(?:\W*\w+){0,2}?\W*\b(?:is|are|was|were|looks?|seems?)\s+(?:all\s+)?(?:fine|ok|okay|good|normal|healthy|idle|clean|not (?:the|a) (?:problem|cause|issue))\b"
    r"|^[^,。;]{0,4}(?:正常|没问题|没有问题|没事|是好的|都好|无异常|很空闲|没满|不高|不忙|无关)"
)
_WITHIN = 48  # characters around a word that are looked at


class Vocabulary:
    """Names with the phrases of both languages that say them. `english`: phrase (words separated by blanks, as
    `terms` splits a text) to names; `chinese`: substring to names.
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

    def said(self, text: str) -> dict[str, str]:
        """The names that `text` says and does not deny, each with the first words that say it."""
        lower = plain(text)
        found: dict[str, str] = {}
        latin = list(_LATIN.finditer(lower))
        for at, word in enumerate(latin):
            for rest, name in self._phrases.get(word[0], ()):
                last = at + len(rest)
                if name in found or last >= len(latin) or any(latin[at + 1 + i][0] != w for i, w in enumerate(rest)):
                    continue
                if not _denied(lower, word.start(), latin[last].end()):
                    found[name] = " ".join([word[0], *rest])
        for begin in self._begins.finditer(lower):
            for run, name in self._runs[begin[0]]:
                if name not in found and lower.startswith(run, begin.start()):
                    if not _denied(lower, begin.start(), begin.start() + len(run)):
                        found[name] = run
        return found


def _denied(text: str, start: int, end: int) -> bool:
    """Whether what stands from `start` to `end` is denied, or said to be well, in its clause."""
    before = _BREAK.split(text[max(0, start - _WITHIN) : start])[-1]
    after = _BREAK.split(text[end : end + _WITHIN])[0]
    return _DENIED.search(before) is not None or _WELL.match(after) is not None
