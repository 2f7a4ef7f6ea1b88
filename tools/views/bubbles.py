"""The page of the worst moments of a dispatch thread, one panel each: the device, the thread and its CPUs.

A moment is a gap in the device's work, or without a device a late wake. The page shows it without an explanation: the
attribution, like every other word, is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whystall.tools.views.bubble_data import Bubble, Timeline
from whystall.tools.views.bubble_lanes import LOOKS, Panel, panel
from whystall.tools.views.page import escape, page

MOST_BUBBLES = 50
"""Limit of bubbles; a person reads about ten."""
MOST_SLICES = 60_000
"""Limit of slices on the whole page, about: then it has 3 MB."""
WORDS = (
    frozenset(LOOKS)
    | {"bubble", "start", "length", "during", "legend", "search", "search_hint", "matches", "no_match"}
    | {"theme", "help", "close", "zoom_in", "zoom_out", "fit", "needs_script", "moments_left_out", "nothing"}
    | {"lane_device", "lane_launches", "lane_thread", "lane_cpu", "lane_interrupts", "merged", "lanes_left_out"}
    | {"on_cpu", "queued_on_cpu", "left_cpu", "from_cpu", "woken_by", "woken_by_interrupt", "waker_unknown"}
    | {"preempted_by", "began_before", "not_ended", "inexact", "own_time", "lost", "correlation", "at", "lasted"}
    | {"key_zoom", "key_pan", "key_fit", "key_slice", "key_panel", "key_search", "key_theme", "key_help", "mouse"}
)
"""The words the caller passes. ``{}`` in them stands for a name or number: in lane_device (two), lane_thread (two),
lane_cpu, lane_interrupts, merged, lanes_left_out, moments_left_out, on_cpu, queued_on_cpu, left_cpu, from_cpu,
woken_by, preempted_by, own_time, lost, correlation, matches (two)."""
SCRIPT_WORDS = ("matches", "no_match", "fit", "zoom_in", "zoom_out", "at", "lasted", "bubble")
"""The words used by ``assets/bubbles.js``."""


def bubbles_page(
    timeline: Timeline,
    bubbles: Sequence[Bubble],
    words: Mapping[str, str],
    *,
    lang: str,
    heading: str,
    notes: Sequence[str] = (),
) -> str:
    """Return the HTML of one offline page, a panel per bubble in the given order, at most `MOST_BUBBLES`.

    `heading` and `notes` (lines below it) are shown on top; `words` holds all of `WORDS`. Its size is bounded, and
    omissions are stated. Raises KeyError for a word that is missing.
    """
    texts = {key: words[key] for key in sorted(WORDS)}
    shown = bubbles[:MOST_BUBBLES]
    drawn = [(panel(timeline, bubble, texts, MOST_SLICES // len(shown)), bubble) for bubble in shown]
    body = _body(drawn, len(bubbles) - len(shown), texts, heading, notes)
    data = {
        "words": {key: texts[key] for key in SCRIPT_WORDS},
        "looks": {look: texts[look] for look in LOOKS},
        "panels": [one.data() for one, _ in drawn],
    }
    return page(lang=lang, title=heading, body=body, data=data, name="bubbles")


def _body(
    drawn: Sequence[tuple[Panel, Bubble]], cut: int, words: Mapping[str, str], heading: str, notes: Sequence[str]
) -> str:
    lines = [*notes, *([words["moments_left_out"].format(cut)] if cut else []), *([] if drawn else [words["nothing"]])]
    rows = "".join(_row(number, bubble) for number, (_, bubble) in enumerate(drawn, 1))
    panels = "".join(_panel(number, *one, words) for number, one in enumerate(drawn, 1))
    table = f"""<table><thead><tr><th>#</th>
<th class="number">{_word(words, "start")}</th><th class="number">{_word(words, "length")}</th>
<th>{_word(words, "during")}</th></tr></thead><tbody>{rows}</tbody></table>"""
    return lanes_body(f"{table if drawn else ''}{legend(words)}{panels}", words, heading, lines)


def legend(words: Mapping[str, str]) -> str:
    """Return the place of the legend, which the script fills with the looks that occur."""
    return f'<section aria-label="{_word(words, "legend")}" id="legend"></section>'


def lanes_body(main: str, words: Mapping[str, str], heading: str, lines: Sequence[str]) -> str:
    """Return the body of a page of lanes: heading, search, `main` (markup) and the list of keys."""
    return f"""<header>
<h1>{escape(heading)}</h1>
{"".join(f"<p>{escape(line)}</p>" for line in lines)}
<noscript><p class="warning">{_word(words, "needs_script")}</p></noscript>
</header>
<nav>
<label>{_word(words, "search")} <input id="search" type="search" placeholder="{_word(words, "search_hint")}"
 autocomplete="off" spellcheck="false"></label>
<output id="found" aria-live="polite"></output>
<span class="space"></span>
<button id="theme" type="button">{_word(words, "theme")}</button>
<button id="help" type="button" aria-haspopup="dialog">{_word(words, "help")}</button>
</nav>
<main>
{main}
</main>
<div id="tip" role="tooltip" hidden></div>
<div id="live" class="unseen" aria-live="polite"></div>
{_help(words)}"""


def _row(number: int, bubble: Bubble) -> str:
    start, length = bubble.start_ns / 1e9, (bubble.end_ns - bubble.start_ns) / 1e6
    return f"""<tr><td><a href="#b{number}">{number}</a></td><td class="number">{start:.6f} s</td>
<td class="number">{length:.3f} ms</td><td>{escape(bubble.title)}{_bar(bubble)}</td></tr>"""


def _bar(bubble: Bubble) -> str:
    """Return its parts as one bar, widths in thousandths (SVG: the page's policy forbids style attributes)."""
    total = sum(max(part.ns, 0) for part in bubble.parts)
    if total <= 0:
        return ""
    pieces, at = [], 0.0
    for part in bubble.parts:
        if part.look not in LOOKS:
            raise KeyError(part.look)
        width = 1000 * max(part.ns, 0) / total
        tip = escape(f"{part.label} {100 * part.ns / total:.0f} %")
        pieces.append(
            f'<rect class="{part.look}" x="{at:.1f}" width="{width:.1f}" height="10"><title>{tip}</title></rect>'
        )
        at += width
    label = escape("; ".join(f"{part.label} {100 * part.ns / total:.0f} %" for part in bubble.parts))
    return (
        f'<svg class="bar" role="img" aria-label="{label}" viewBox="0 0 1000 10" preserveAspectRatio="none">'
        f"{''.join(pieces)}</svg>"
    )


def _panel(number: int, drawn: Panel, bubble: Bubble, words: Mapping[str, str]) -> str:
    length = (bubble.end_ns - bubble.start_ns) / 1e6
    title = f"""<a href="#b{number}">{number}</a> <span class="number">{length:.3f} ms</span> {escape(bubble.title)}"""
    return panel_section(number, title, f"{number}: {bubble.title}", drawn.notes, words)


def panel_section(number: int, title: str, label: str, lines: Sequence[str], words: Mapping[str, str]) -> str:
    """Return the place of the panel `number`, which the script draws. `title`: markup; `label` and `lines`: text."""
    notes = "".join(f"<p class='note'>{escape(line)}</p>" for line in lines)
    buttons = "".join(
        f'<button type="button" data-do="{key}" title="{word}" aria-label="{word}">{sign}</button>'
        for key, sign in (("zoom_in", "+"), ("zoom_out", "−"), ("fit", "↔"))
        for word in [_word(words, key)]
    )
    return f"""<section class="panel" id="b{number}">
<h2>{title}</h2>
<div class="tools">{buttons}</div>
<canvas tabindex="0" role="img" aria-label="{escape(label)}"></canvas>{notes}
</section>"""


def _help(words: Mapping[str, str]) -> str:
    keys = (
        ("W S + −", "key_zoom"),
        ("A D ← →", "key_pan"),
        ("0", "key_fit"),
        (", .", "key_slice"),
        ("J K", "key_panel"),
        ("/ N ⇧N", "key_search"),
        ("T", "key_theme"),
        ("?", "key_help"),
    )
    rows = "".join(f"<dt><kbd>{sign}</kbd></dt><dd>{_word(words, key)}</dd>" for sign, key in keys)
    return f"""<dialog id="keys" aria-label="{_word(words, "help")}"><dl>{rows}</dl><p>{_word(words, "mouse")}</p>
<button>{_word(words, "close")}</button></dialog>"""


def _word(words: Mapping[str, str], key: str) -> str:
    return escape(words[key])
