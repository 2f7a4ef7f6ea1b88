"""What compare_runs says first: is the run slower, by how much and how surely, in which steps, what else differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, words

if TYPE_CHECKING:
    from whystall.tools.ranks.compare_runs.tables import CompareData

_TEXT = FORMATS["txt"]
_LONG = 120
_SAID_ELSEWHERE = frozenset({"collectives", "operators"})  # their rows are tables


def compared(data: CompareData, lang: Lang) -> list[Safe]:
    """The first lines of compare_runs."""
    said = words(lang)
    mine, marks = said["compared"], said["marks"]
    lines = [Safe(f"{said['labels']['verdict']}{marks['colon']}{mine['verdicts'][data.verdict]}")]
    if data.reasons:
        why = marks["semicolon"].join(mine["reasons"][code] for code in data.reasons)
        lead = said["ranks"]["because" if data.verdict == "cannot_tell" else "note"]
        lines.append(Safe("  " + lead.format(why)))
    if data.step_before_ms is not None and data.step_after_ms is not None:
        lines.append(Safe("  " + _step(data, lang)))
    if data.shape:
        lines.append(Safe("  " + mine["shapes"][data.shape].format(data.began_step)))
    for row in data.checks:
        if row.code and row.what not in _SAID_ELSEWHERE:
            texts = {"before": _name(row.before), "after": _name(row.after), "what": Safe(mine["whats"][row.what])}
            lines.append(Safe("  " + fill(_TEXT.running, mine["differs"], **texts)))
    return lines


def _step(data: CompareData, lang: Lang) -> str:
    mine = words(lang)["compared"]
    sign = "+" if (data.change_ms or 0.0) >= 0 else "-"
    known = {
        "before": quantity(data.step_before_ms or 0.0, "ms"),
        "after": quantity(data.step_after_ms or 0.0, "ms"),
        "change": f"{sign}{quantity(abs(data.change_pct or 0.0), 'pct')}",
        "steps_before": quantity(data.steps_before, "count"),
        "steps_after": quantity(data.steps_after, "count"),
    }
    if data.p_value is None or data.low_ms is None or data.high_ms is None:
        return str(mine["step_untested"].format(**known))
    bounds = {"low": quantity(data.low_ms, "ms"), "high": quantity(data.high_ms, "ms")}
    return str(mine["step"].format(**known, **bounds, p=quantity(data.p_value, "ratio")))


def _name(text: str) -> Safe:
    return _TEXT.name(short(text, _LONG))
