"""Severity of a report: the words of all senders on one scale of four.

The whole value of a sender's severity field counts; in a text only unambiguous words.
"""

from __future__ import annotations

import re
from functools import cache

from whystall.knowledge_base.classify.wording import wording
from whystall.knowledge_base.ticket_models import Decision
from whystall.knowledge_base.tokens import plain
from whystall.tools.contract.findings import Severity

_PART = re.compile(r"sev-?\d|[a-z]+\d?|\d+|[\u4e00-\u9fff]+")
_BEFORE = 12  # characters before a word searched for a negation
_SHOWN = 40


def severity_of_word(word: str) -> Severity | None:
    """Return the severity of a sender's value (``page``, ``SEV-1``, ``1 - Critical``); None if unknown."""
    lower = plain(word).strip()
    known = _senders()
    if lower in known:
        return known[lower]
    parts = _PART.findall(lower)
    found = [known[part] for part in parts if part in known]
    if found:
        return max(found, key=lambda severity: severity.rank)
    numbers = [part for part in parts if part.isdigit()]
    return wording().severity.ranks.get(numbers[0]) if len(numbers) == 1 and len(parts) <= 2 else None


def severity_of(source: str, text: str) -> Decision:
    """Return the severity of a report with the sender's value `source` and the words `text`."""
    given = severity_of_word(source) if source.strip() else None
    if given is not None:
        because = [f"word:{plain(source).strip()[:_SHOWN]}"]
        return Decision(value=given.value, by="label:severity", because=because)
    lower = plain(text)
    for grade in wording().severity.text:
        for found in grade.pattern.finditer(lower):
            if not _denied().search(lower[max(0, found.start() - _BEFORE) : found.start()]):
                because = [f"word:{' '.join(found[0].split())[:_SHOWN]}"]
                return Decision(value=grade.severity.value, by="rule:severity-words", confidence=0.8, because=because)
    return Decision(value=Severity.MINOR.value, by="default", confidence=0.0)


@cache
def _senders() -> dict[str, Severity]:
    return {word: severity for severity, words in wording().severity.sender.items() for word in words}


@cache
def _denied() -> re.Pattern[str]:
    return re.compile(wording().severity.denied)
