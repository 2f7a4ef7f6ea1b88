"""Why an engine was not taken, in the reader's language.

Reasons are composed where engines are asked and chosen, in English, and stored so (``manifest.json``). As with
gettext the English text, with blanks for what is filled in, is the key of its translation
(``words/reasons.LANG.yaml``); a reason that nobody translated is shown as it is.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml

_HERE = Path(__file__).parent
_BLANK = re.compile(r"{(\w+)}")
# ``bcc: ``, ``no_privilege: ``, ``trace-cmd: ``: an engine, a code or a tool before its reason
_HEAD = re.compile(r"([a-z][a-z0-9_.-]*): (.+)", re.DOTALL)
_FIX = re.compile(r"(.+) \(fix: (.+)\)", re.DOTALL)
# Of a language that is not English: its marks, and how it says what mends a reason.
_MARKS = {"zh": ("：", "；", "{}（修复：{}）")}


def in_words(lang: str, text: str) -> str:
    """`text`, one reason or several with ``; `` between, in `lang`; as it is where no words are known. The result
    must be escaped like the text: what was filled in stays.
    """
    if lang not in _MARKS:
        return text
    said = [_one(lang, piece) for piece in text.split("; ")]
    return _MARKS[lang][1].join(said) if said != text.split("; ") else text


def _one(lang: str, text: str) -> str:
    colon, _, fix = _MARKS[lang]
    if (mended := _FIX.fullmatch(text)) is not None and (said := _one(lang, mended[1])) != mended[1]:
        return fix.format(said, mended[2])
    for pattern, words in _catalog(lang):
        if (found := pattern.fullmatch(text)) is not None:
            return words.format(**{name: _one(lang, value) for name, value in found.groupdict().items()})
    headed = _HEAD.fullmatch(text)
    if headed is None or (said := _one(lang, headed[2])) == headed[2]:
        return text
    return f"{headed[1]}{colon}{said}"


@cache
def _catalog(lang: str) -> list[tuple[re.Pattern[str], str]]:
    """Patterns of the English texts, those that say most first, and what they are in `lang`."""
    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (_HERE / "words" / f"reasons.{lang}.yaml").read_text("utf-8")
    found: dict[str, str] = yaml.load(text, Loader=loader)  # noqa: S506 - both loaders are safe
    return [(_pattern(key), found[key]) for key in sorted(found, key=lambda key: -len(_BLANK.sub("", key)))]


def _pattern(key: str) -> re.Pattern[str]:
    """Matches `key` with something in its blanks. A text that begins with a blank begins with one word there: before
    it may stand an engine and a colon, which are no part of it.
    """
    parts = _BLANK.split(key)
    made = []
    for at, part in enumerate(parts):
        begins = at == 1 and not parts[0]
        made.append(re.escape(part) if at % 2 == 0 else rf"(?P<{part}>\S+)" if begins else f"(?P<{part}>.+?)")
    return re.compile("".join(made), re.DOTALL)
