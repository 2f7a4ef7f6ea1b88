"""The first lines of crash_analyse: which process of a job failed first, or why that is left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, words

if TYPE_CHECKING:
    from whystall.tools.host.crash_analyse.tool import Data

_TEXT = FORMATS["txt"]
_LONG = 200


def crash_analyse_lines(data: Data, lang: Lang) -> list[Safe]:
    """Return the first failure and why it is known, or why it is left open; none without a failure."""
    first = data.first
    if first is None:
        return []
    all_texts = words(lang)
    texts, marks = all_texts["crashes"], all_texts["marks"]
    verdict = f"{all_texts['labels']['verdict']}{marks['colon']}"
    if not first.who:
        names = marks["comma"].join(_TEXT.name(short(who, _LONG)) for who in first.candidates)
        return [Safe(f"{verdict}{texts['open']}"), Safe("  " + texts["because"][first.reason].format(who=names))]
    who, title = (_TEXT.name(short(text, _LONG)) for text in (first.who, first.title))
    why = texts["why"][first.reason].format(lead=quantity(first.lead_ms, "ms"))
    log = texts["log"].format(log=_TEXT.name(short(first.log, _LONG)))
    return [Safe(verdict + texts["found"].format(who=who, title=title)), Safe(f"  {why}{marks['semicolon']}{log}")]
