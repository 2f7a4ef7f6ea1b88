"""The page of a critical path in time: a lane for each thread of it, with what it ran and waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whystall.tools.views.bubble_lanes import Panel
from whystall.tools.views.bubbles import SCRIPT_WORDS, lanes_body, legend, panel_section
from whystall.tools.views.page import page

LOOKS = (
    *("running", "runnable", "lock", "handover", "network", "uninterruptible", "sync", "sleeping", "stopped"),
    *("unknown", "dead"),
)
"""Looks of slices: keys of the colours in assets/path_lanes.css and bubbles.css, and of the words."""
WORDS = (
    frozenset(LOOKS)
    | frozenset(SCRIPT_WORDS)
    | {"legend", "search", "search_hint", "theme", "help", "close", "needs_script", "lanes"}
    | {"key_zoom", "key_pan", "key_fit", "key_slice", "key_panel", "key_search", "key_theme", "key_help", "mouse"}
)
"""The words the caller passes."""


def path_lanes_page(
    drawn: Panel, words: Mapping[str, str], *, lang: str, heading: str, notes: Sequence[str] = ()
) -> str:
    """Return the HTML of one offline page with the lanes of `drawn`, whose looks are of `LOOKS`.

    `heading` and `notes` (lines below it) are shown on top; `words` holds all of `WORDS`. Raises KeyError for a word
    that is missing.
    """
    texts = {key: words[key] for key in sorted(WORDS)}
    main = legend(texts) + panel_section(1, "", texts["lanes"], drawn.notes, texts)
    data = {
        "words": {key: texts[key] for key in SCRIPT_WORDS},
        "looks": {look: texts[look] for look in LOOKS},
        "panels": [drawn.data(LOOKS)],
    }
    body = lanes_body(main, texts, heading, notes)
    return page(lang=lang, title=heading, body=body, data=data, name="bubbles", also=("path_lanes",))
