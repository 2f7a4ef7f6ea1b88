"""Text of a model with placeholders (``{F3.window_pct}``) for values that only code may state.

The model writes the words; numbers and names come from measured data. Everything it wrote is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from whystall.prompts.escape import Safe

_HOLE = re.compile(r"\{([^{}]{0,120})\}")
# A number that is no part of a name: 93, 4.7, -3; but not p99, F3, chk_10.
_NUMBER = re.compile(r"(?<![A-Za-z0-9_./])\d[\d.,:]*")
# Splits a text into runs of ASCII, blanks, and other characters; punctuation around a run is separated. Only blanks and
# numbers need no escaping.
_PART = re.compile(r"[!-~]+|\s+|[^\s!-~]+")
_AROUND = re.compile(r"([('\"]*)(.*?)([.,;:!?'\")]*)", re.DOTALL)
_PLAIN = re.compile(r"\s+|\d[\d.,]*%?")


def names(text: str) -> list[str]:
    """Return the placeholders of `text`, each once: ``F3.window_pct``."""
    return list(dict.fromkeys(name.strip() for name in _HOLE.findall(text)))


def numbers(text: str) -> list[str]:
    """Return the numbers that `text` writes itself."""
    return _NUMBER.findall(_HOLE.sub(" ", text))


def filled(text: str, value: Callable[[str], Safe | None], running: Callable[[object], Safe]) -> Safe:
    """Return `text`, escaped by `running`, with the `value` of each placeholder; one without value stays as it is."""
    parts: list[str] = []
    for at, part in enumerate(_HOLE.split(text)):
        known = value(part.strip()) if at % 2 else None
        parts.append(known if known is not None else escaped(f"{{{part}}}" if at % 2 else part, running))
    return Safe("".join(parts))


def escaped(text: str, running: Callable[[object], Safe]) -> Safe:
    """Return `text` with every part that could be markup escaped by `running` as a name."""
    parts = [_AROUND.fullmatch(part) for part in _PART.findall(text)]
    pieces = [piece for part in parts if part for piece in part.groups() if piece]
    return Safe("".join(piece if _PLAIN.fullmatch(piece) else running(piece) for piece in pieces))
