"""Translates texts that are composed in English: the reasons why an engine was not chosen, and messages of errors.

As with gettext, the English text with blanks is the key of its translation (``words/reasons.LANG.yaml``, which are
stored in ``manifest.json``, and ``words/errors.LANG.yaml``); an untranslated reason is shown in English.
"""

from __future__ import annotations

import re
from functools import cache

from whystall.prompts.files import read_file

_BLANK = re.compile(r"{(\w+)}")
# ``bcc: ``, ``no_privilege: ``, ``trace-cmd: ``: an engine, code or tool before its reason
_HEAD = re.compile(r"([a-z][a-z0-9_.-]*): (.+)", re.DOTALL)
_FIX = re.compile(r"(.+) \(fix: (.+)\)", re.DOTALL)
# Colon, semicolon and the form of a fix, per language.
_MARKS = {"zh": ("：", "；", "{}（修复：{}）")}


def in_words(lang: str, text: str) -> str:
    """Return `text`, reasons separated by ``; ``, in `lang`, or unchanged if untranslated. The result must be escaped
    like the text.
    """
    if lang not in _MARKS:
        return text
    translated = [_one(lang, piece) for piece in text.split("; ")]
    return _MARKS[lang][1].join(translated) if translated != text.split("; ") else text


def translated(topic: str, lang: str, text: str) -> str | None:
    """Return `text` in `lang` by ``words/TOPIC.LANG.yaml``; None if nothing there matches all of it. The result must be
    escaped like the text.
    """
    for pattern, words in _catalog(topic, lang):
        if (found := pattern.fullmatch(text)) is not None:
            return words.format(**found.groupdict())
    return None


def _one(lang: str, text: str) -> str:
    colon, _, fix = _MARKS[lang]
    if (fixed := _FIX.fullmatch(text)) is not None and (translated := _one(lang, fixed[1])) != fixed[1]:
        return fix.format(translated, fixed[2])
    for pattern, words in _catalog("reasons", lang):
        if (found := pattern.fullmatch(text)) is not None:
            return words.format(**{name: _one(lang, value) for name, value in found.groupdict().items()})
    with_head = _HEAD.fullmatch(text)
    if with_head is None or (translated := _one(lang, with_head[2])) == with_head[2]:
        return text
    return f"{with_head[1]}{colon}{translated}"


@cache
def _catalog(topic: str, lang: str) -> list[tuple[re.Pattern[str], str]]:
    """Return patterns of the English texts, longest first, with the texts in `lang`."""
    found: dict[str, str] = read_file(f"{topic}.{lang}.yaml")
    return [(_pattern(key), found[key]) for key in sorted(found, key=lambda key: -len(_BLANK.sub("", key)))]


def _pattern(key: str) -> re.Pattern[str]:
    """Return a pattern for `key` with any text in its blanks. A blank at the start matches one word, since an engine
    and a colon may precede it.
    """
    parts = _BLANK.split(key)
    made = []
    for at, part in enumerate(parts):
        begins = at == 1 and not parts[0]
        made.append(re.escape(part) if at % 2 == 0 else rf"(?P<{part}>\S+)" if begins else f"(?P<{part}>.+?)")
    return re.compile("".join(made), re.DOTALL)
