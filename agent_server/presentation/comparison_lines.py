"""The first lines of compare_runs: is the run slower, by how much, how certain, in which steps, what else differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.agent_server.presentation.profile_lines import aligned_lines
from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, words

if TYPE_CHECKING:
    from whystall.tools.ranks.compare_runs.tables import CompareData

_TEXT = FORMATS["txt"]
_LONG = 120
_OPERATORS = 10
_SHOWN_AS_TABLES = frozenset({"collectives", "operators"})


def compare_runs_lines(data: CompareData, lang: Lang) -> list[Safe]:
    all_texts = words(lang)
    texts, marks = all_texts["compared"], all_texts["marks"]
    verdicts = texts["operators_verdicts" if data.latencies or data.stored_runs else "verdicts"]
    lines = [Safe(f"{all_texts['labels']['verdict']}{marks['colon']}{verdicts[data.verdict]}")]
    if data.reasons:
        why = marks["semicolon"].join(texts["reasons"][code] for code in data.reasons)
        lead = all_texts["ranks"]["because" if data.verdict == "cannot_tell" else "note"]
        lines.append(Safe("  " + lead.format(why)))
    if data.step_before_ms is not None and data.step_after_ms is not None:
        lines.append(Safe("  " + _step(data, lang)))
    if data.shape:
        lines.append(Safe("  " + texts["shapes"][data.shape].format(data.began_step)))
    lines += _latencies(data, lang)
    for row in data.checks:
        if row.code and row.what not in _SHOWN_AS_TABLES and (row.before or row.after):
            what = Safe(texts["whats"][row.what]) if row.what in texts["whats"] else _name(row.what)
            names = {"before": _name(row.before), "after": _name(row.after), "what": what}
            lines.append(Safe("  " + fill(_TEXT.running, texts["differs"], **names)))
    return lines + aligned_lines(data.aligned, lang)


def _latencies(data: CompareData, lang: Lang) -> list[Safe]:
    """Return a line per operator that differs from the stored runs, or from the other ranks."""
    texts = words(lang)["compared"]
    shown: list[Safe] = []
    if data.stored_runs:
        shown.append(Safe(texts["stored_runs"].format(runs=data.stored_runs, tested=data.tested, rows=data.listed)))
    for row in data.latencies[:_OPERATORS]:
        known = {"rank": Safe(str(row.rank)), "name": _name(f"{row.name} {row.shape}")}
        known["after"] = Safe(quantity(row.after_us or 0.0, "us"))
        if row.state in ("slower", "faster") and row.q_value is not None:
            known |= {"before": Safe(quantity(row.before_us or 0.0, "us")), "q": Safe(quantity(row.q_value, "ratio"))}
            known |= _bounds(row.change_pct, row.low_pct, row.high_pct)
            line = fill(_TEXT.running, texts["operator"], **known)
            if row.since:
                kind, since = ("since_step", row.since[1:]) if row.since[0] == "#" else ("since_run", row.since)
                line += words(lang)["marks"]["semicolon"] + texts[kind].format(_name(since))
            shown.append(Safe(line))
        if row.peers_slower:
            known |= {"peers": Safe(quantity(row.peers_us or 0.0, "us"))}
            known |= _bounds(row.peers_change_pct, row.peers_low_pct, row.peers_high_pct)
            shown.append(Safe(fill(_TEXT.running, texts["operator_peers"], **known)))
    return [Safe("  " + line) for line in shown]


def _bounds(change: float | None, low: float | None, high: float | None) -> dict[str, Safe]:
    values = {"change": change, "low": low, "high": high}
    return {
        name: Safe(f"{'+' if (value or 0.0) >= 0 else '-'}{quantity(abs(value or 0.0), 'pct')}")
        for name, value in values.items()
    }


def _step(data: CompareData, lang: Lang) -> str:
    texts = words(lang)["compared"]
    sign = "+" if (data.change_ms or 0.0) >= 0 else "-"
    known = {
        "before": quantity(data.step_before_ms or 0.0, "ms"),
        "after": quantity(data.step_after_ms or 0.0, "ms"),
        "change": f"{sign}{quantity(abs(data.change_pct or 0.0), 'pct')}",
        "steps_before": quantity(data.steps_before, "count"),
        "steps_after": quantity(data.steps_after, "count"),
    }
    if data.p_value is None or data.low_ms is None or data.high_ms is None:
        return str(texts["step_untested"].format(**known))
    bounds = {"low": quantity(data.low_ms, "ms"), "high": quantity(data.high_ms, "ms")}
    return str(texts["step"].format(**known, **bounds, p=quantity(data.p_value, "ratio")))


def _name(text: str) -> Safe:
    return _TEXT.name(short(text, _LONG))
