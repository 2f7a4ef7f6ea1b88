"""The first lines of crash_analyse: which process of a job failed first, or why that is left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, words

if TYPE_CHECKING:
    from whystall.tools.host.crash_analyse.tool import Data

_LONG = 200


def crash_analyse_lines(data: Data, lang: Lang) -> list[Safe]:
    """Return the first failure and why it is known, or why it is left open; none without a failure."""
    lines = first_failure_lines(data, "txt", lang)
    return [lines[0], *(Safe(f"  {line}") for line in lines[1:])] if lines else []


def first_failure_lines(data: Data, suffix: str, lang: Lang) -> list[Safe]:
    """Return `crash_analyse_lines` for the format `suffix` (``txt``, ``md``), without indentation and without the log's
    name in Markdown.
    """
    first = data.first
    if first is None:
        return []
    form, all_texts = FORMATS[suffix], words(lang)
    texts, marks = all_texts["crashes"], all_texts["marks"]
    verdict = f"{all_texts['labels']['verdict']}{marks['colon']}"
    if not first.who:
        names = marks["comma"].join(form.name(short(who, _LONG)) for who in first.candidates)
        return [Safe(f"{verdict}{texts['open']}"), Safe(texts["because"][first.reason].format(who=names))]
    who, title = (form.name(short(text, _LONG)) for text in (first.who, first.title))
    why = texts["why"][first.reason].format(lead=quantity(first.lead_ms, "ms"))
    found = Safe(verdict + texts["found"].format(who=who, title=title))
    if suffix == "md":  # the log is what was pasted
        return [found, Safe(why)]
    log = texts["log"].format(log=form.name(short(first.log, _LONG)))
    return [found, Safe(f"{why}{marks['semicolon']}{log}")]
