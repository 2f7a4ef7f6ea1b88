"""Severity of a report: the sender's word, words of urgency, then what the text says happened.

All are put on one scale of four. The whole value of a sender's severity field counts; in a text only unambiguous words.
What happened is graded by impact: a panic, lost data or an outage is critical; a job, service or device that stopped is
major, one of many minor; what is slower is minor. An Xid counts by the action that NVIDIA's catalogue asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from whystall.knowledge_base.classify.wording import wording
from whystall.knowledge_base.ticket_models import Decision
from whystall.knowledge_base.tokens import plain
from whystall.tools.contract.findings import Severity
from whystall.tools.node.xid_catalogue import UNUSED, code_of, severity_of_action

_PART = re.compile(r"sev-?\d|[a-z]+\d?|\d+|[\u4e00-\u9fff]+")
_BEFORE = 12  # characters before a word searched for a negation
_SHOWN = 40
_READ = 4000  # characters of a text
_URGENT, _HAPPENED = 0.8, 0.6
"""Confidence in words of urgency, and in what the text says happened; estimates, not calibrated."""
# NVRM: Xid (PCI:0000:9b:00): 94, pid=1234 | Xid 79 | Xid errors 13 and 31 | xid=48 | DCGM_FI_DEV_XID_ERRORS{gpu="3"} 79
_XID = re.compile(
    r"(?<![a-z0-9_])(?:dcgm_fi_dev_)?xid(?:[ _]errors?| codes?)?\s*(?:\([^)]{1,40}\)|\{[^{}]{0,400}\})?"
    r"\s*(?:[:=#]|value\b:?)?\s*"
    r"(?P<codes>\d{1,3}(?!\d)(?:(?:\s*(?:,|/|and|or|和|、)\s*)\d{1,3}(?!\d))*)"
)


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
    """Return the severity of a report with the sender's value `source` and the words `text`; by ``default`` if neither
    tells.
    """
    given = severity_of_word(source) if source.strip() else None
    if given is not None:
        because = [f"word:{plain(source).strip()[:_SHOWN]}"]
        return Decision(value=given.value, by="label:severity", because=because)
    lower = plain(text[:_READ])
    for grade in wording().severity.text:
        if (said := _said(grade.pattern, lower)) is not None:
            because = [f"word:{said}"]
            return Decision(value=grade.severity.value, by="rule:severity-words", confidence=_URGENT, because=because)
    happened = list(_happened(lower))
    if happened:
        severity, rule, said = max(happened, key=lambda one: one[0].rank)
        return Decision(value=severity.value, by=f"rule:{rule}", confidence=_HAPPENED, because=[f"word:{said}"])
    return Decision(value=Severity.MINOR.value, by="default", confidence=0.0)


def xids(text: str) -> Iterator[int]:
    """Yield the codes of Xid messages that `text`, in lower case, names and does not deny."""
    for match in _XID.finditer(text):
        if not _denies(text, match.start()):
            yield from map(int, re.findall(r"\d+", match["codes"]))


def _happened(text: str) -> Iterator[tuple[Severity, str, str]]:
    """Yield severity, rule and words of each event in `text`."""
    rules = wording().severity
    for code in xids(text):
        if (found := xid_action(code)) is not None:
            yield found[1], "xid-catalogue", f"xid {code}"
    few, whole = _patterns()
    lowered = few.search(text) is not None and whole.search(text) is None
    for event in rules.content:
        if (said := _said(event.pattern, text)) is not None:
            severity = Severity.MINOR if lowered and event.severity is Severity.MAJOR else event.severity
            yield severity, event.id, said


def _said(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the first words of `text` that match and are not denied."""
    for found in pattern.finditer(text):
        if not _denies(text, found.start()):
            return " ".join(found[0].split())[:_SHOWN]
    return None


def _denies(text: str, start: int) -> bool:
    return _denied().search(text[max(0, start - _BEFORE) : start]) is not None


@cache
def _senders() -> dict[str, Severity]:
    return {word: severity for severity, words in wording().severity.sender.items() for word in words}


@cache
def _denied() -> re.Pattern[str]:
    return re.compile(wording().severity.denied)


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    return re.compile(wording().severity.few), re.compile(wording().severity.whole)


def xid_action(code: int) -> tuple[str, Severity] | None:
    """Return the action that NVIDIA's catalogue asks for after the Xid `code` (``reset_gpu``), and its severity; None
    for a code that is not in the catalogue, is not used, or is about another error.
    """
    entry = code_of(code)
    if entry is None or entry.meaning == UNUSED:
        return None
    severity = severity_of_action(entry.action)
    return (entry.action, severity) if severity is not None else None
