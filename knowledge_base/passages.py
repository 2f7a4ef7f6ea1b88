"""Cuts a long text into passages: a pasted log shares some words with every card, a passage about the fault many with
the right one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from whystall.knowledge_base.background import informativeness
from whystall.knowledge_base.references import is_code, references
from whystall.knowledge_base.tokens import cjk, stem, terms

_READ = 100_000  # characters read of a text
_SHORT = 700  # characters of a text that is one passage; a Chinese one counts twice
_PASSAGE = 400
_MOST = 4  # passages searched
_SENTENCE = re.compile(r"\n+|(?<=[.!?;])\s+|(?<=[。！？；])")
_COMPLAINT = re.compile(
    r"error|fail|fatal|abort|killed|timeout|timed out|hang|stuck|refused|denied|panic|oom|xid|exception"
    r"|错误|失败|超时|卡住|异常",
    re.I,
)
_MANY = 3.0  # informative words that a code, or a complaint, is worth
_SEEN = 60  # passages weighed: those with a complaint first


class Passage(NamedTuple):
    text: str
    references: list[str]


def passages(text: str) -> list[Passage]:
    """Return the passages of `text` to search for: all of a short text; of a long one the first, which mostly says what
    is wrong, and those with codes, complaints and the most informative words.
    """
    read = text[:_READ]
    if _length(read) <= _SHORT:
        return [Passage(read, references(read))]
    parts = list(_cut(read))
    first, rest = parts[0], parts[1:]
    weighed = sorted(rest, key=lambda part: not _COMPLAINT.search(part))[:_SEEN]
    found = [Passage(first, references(first))]
    others = [Passage(part, references(part)) for part in weighed]
    found += sorted(others, key=_salience, reverse=True)[: _MOST - 1]
    return found


def _length(text: str) -> int:
    return len(text) + cjk(text)


def _cut(text: str) -> list[str]:
    """Return consecutive sentences or lines of `text`, joined to passages."""
    found: list[str] = []
    current: list[str] = []
    size = 0
    for sentence in _SENTENCE.split(text):
        for begin in range(0, len(sentence), _PASSAGE):
            piece = sentence[begin : begin + _PASSAGE]
            if size + _length(piece) > _PASSAGE and current:
                found.append("\n".join(current))
                current, size = [], 0
            current.append(piece)
            size += _length(piece)
    return [*found, "\n".join(current)]


def _salience(passage: Passage) -> float:
    words = {stem(word) for word in terms(passage.text).words}
    codes = sum(is_code(reference) for reference in passage.references)
    complains = bool(_COMPLAINT.search(passage.text))
    return _MANY * (codes + complains) + sum(informativeness(word) for word in words) / max(len(words), 1)
