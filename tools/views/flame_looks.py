"""Looks of frames: by kind, or in a difference by change; and the width of text.

Colours are in ``assets/flame_colours.css``; each kind has a letter and some a pattern too, so that colours need not be
distinguished.
"""

from __future__ import annotations

import unicodedata

import numpy as np

from whystall.tools.views.flame_layout import REST_KIND, ROOT_KIND, Floats, Layout

LETTERS = {
    "python": "P",
    "native": "N",
    "kernel": "K",
    "operator": "O",
    "annotation": "A",
    "launch": "L",
    "device": "D",
    "idle": "I",
    "thread": "T",
    "other": "?",
    ROOT_KIND: "*",
    REST_KIND: "…",
}
"""Letter of each kind, in the order of the legend."""
PATTERNS = {
    "kernel": "stripes",
    "operator": "bars",
    "device": "cross",
    "idle": "dots",
    REST_KIND: "stripes",
}
"""Patterns in addition to colours; the script in ``assets/flame_parts.js`` draws the same."""
STEPS = 4
"""Grades of a change in each direction."""
ADVANCE = 0.602
"""Width of a character in a monospaced font, as a share of its size."""


def kinds_in(layout: Layout) -> list[str]:
    """Return the kinds that are shown, for a legend."""
    shown = set(layout.kinds) - {ROOT_KIND}
    return [kind for kind in LETTERS if kind in shown]


def scale_of(layout: Layout) -> float:
    """Return, of a difference, the percentage points of the strongest colour: the largest significant change."""
    change = np.abs(layout.change)
    if layout.proven is not None:
        change = change[layout.proven]
    return float(change.max(initial=0.0))


def change_looks(layout: Layout) -> list[str]:
    """Return, of a difference, the look of each node; grey if a change is not significant or there is none."""
    scale, change = scale_of(layout), layout.change
    grade = grades(change, scale)
    looks = [f"up{g}" if g > 0 else f"down{-g}" if g < 0 else "same" for g in grade.astype(int).tolist()]
    if layout.proven is None:
        return looks
    changed = np.abs(change) > 1e-9
    return [
        look if sure else "unproven" if differs else "same"
        for look, sure, differs in zip(looks, layout.proven.tolist(), changed.tolist(), strict=True)
    ]


def grades(change: Floats, scale: float) -> Floats:
    """Return -STEPS to STEPS: the strength of each change relative to `scale`; 0 only for none."""
    if scale <= 0:
        return np.zeros_like(change)
    strength = np.clip(np.ceil(np.abs(change) / scale * STEPS - 1e-9), 0, STEPS)
    found: Floats = np.sign(change) * strength
    return found


def columns(text: str) -> int:
    """Return how many characters of a monospaced font `text` takes; those of East Asia take two."""
    return len(text) if text.isascii() else sum(map(_wide, text))


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, with a final ``…`` when cut; empty below three columns."""
    if columns(text) <= width:
        return text
    if width < 3:
        return ""
    if text.isascii():
        return text[: width - 1] + "…"
    taken, used = [], 1
    for character in text:
        used += _wide(character)
        if used > width:
            break
        taken.append(character)
    return "".join(taken) + "…"


def _wide(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
