"""Checks that a card's symptom does not contain its cause or remedy: new cases, which lack those words, would not
match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystall.knowledge_base.models import Cause, Incident

_WORD = re.compile(r"[a-z0-9][a-z0-9'-]*")
_CJK = re.compile(r"[\u4e00-\u9fff]+")
# Words of an explanation.
_EXPLAINING_EN = frozenset(
    ("because", "caused", "causes", "due", "fix", "fixed", "fixes", "solved", "solution", "workaround", "culprit")
)
_EXPLAINING_ZH = ("因为", "由于", "根因", "原因是", "修复", "解决办法", "罪魁", "元凶")
_STOP_WORDS = (
    "a an the of in on at by to for from with and or but as is are was were be been it its that than this these those "
    "no not into over per each other others own"
)
_STOP = frozenset(_STOP_WORDS.split())
# Settings and options, as remedies name them.
_SETTING = re.compile(r"--[a-z][\w-]+|\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b|\b[a-z]\w*(?:\.\w+)+=|\b\w+=\w+")
_COPIED_EN = 5  # words in a row
_COPIED_ZH = 9  # characters in a row
_TITLE_ZH = 5


def explanatory_phrases(incident: Incident, cause: Cause | None) -> list[str]:
    """Return the parts of the symptom of `incident` that belong to its explanation, as written there.

    Those are: two consecutive words of the cause's title (five Chinese characters); a word that gives a reason
    (because, due, fixed); five consecutive words (nine characters) shared with root cause or remedy; a setting that the
    remedy names.
    """
    found = list(_english(incident, cause)) + list(_chinese(incident, cause))
    later = f"{incident.root_cause.en}\n{incident.fix.en}"
    settings = set(_SETTING.findall(later))
    found += [name for name in _SETTING.findall(incident.symptom.en) if name in settings]
    return list(dict.fromkeys(found))


def _english(incident: Incident, cause: Cause | None) -> Iterator[str]:
    symptom = _words(incident.symptom.en)
    yield from (word for word in symptom if word in _EXPLAINING_EN)
    if cause is not None:
        title = set(_runs([word for word in _words(cause.title.en) if word not in _STOP], 2))
        yield from (" ".join(pair) for pair in _runs([w for w in symptom if w not in _STOP], 2) if pair in title)
    for later in (incident.root_cause.en, incident.fix.en):
        runs = set(_runs(_words(later), _COPIED_EN))
        yield from (" ".join(run) for run in _runs(symptom, _COPIED_EN) if run in runs)


def _chinese(incident: Incident, cause: Cause | None) -> Iterator[str]:
    symptom = incident.symptom.zh
    yield from (word for word in _EXPLAINING_ZH if word in symptom)
    if cause is not None:
        yield from (run for run in _pieces(cause.title.zh, _TITLE_ZH) if run in symptom)
    for later in (incident.root_cause.zh, incident.fix.zh):
        yield from (run for run in _pieces(later, _COPIED_ZH) if run in symptom)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs(words: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + length]) for i in range(len(words) - length + 1))


def _pieces(text: str, length: int) -> Iterator[str]:
    return (run[i : i + length] for run in _CJK.findall(text) for i in range(len(run) - length + 1))
