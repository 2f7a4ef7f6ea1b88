"""The first lines of tool results: the verdict, and the accused rank, thread or file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from whystall.agent_server.presentation.account_lines import critical_path_lines
from whystall.agent_server.presentation.collective_lines import collective_lines
from whystall.agent_server.presentation.comparison_lines import compare_runs_lines
from whystall.agent_server.presentation.crash_lines import crash_analyse_lines
from whystall.agent_server.presentation.defect_lines import known_fix_lines
from whystall.agent_server.presentation.hang_lines import hang_lines
from whystall.agent_server.presentation.profile_lines import (
    cpu_profile_lines,
    flame_graph_lines,
    flamegraph_diff_lines,
    heat_map_lines,
)
from whystall.agent_server.presentation.serving_lines import inference_latency_lines
from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, printable, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, words
from whystall.tools.contract.result import ToolResult
from whystall.tools.timeline.rank_data.rank_list import rank_list

if TYPE_CHECKING:
    from whystall.tools.host.page_cache.data import Data as PageCache
    from whystall.tools.ranks.slow_node_check.tables import AccusedRow, Data, EvidenceRow, NextCall, SlowSteps

_TEXT = FORMATS["txt"]
_ACCUSED = 5
_EVIDENCE = 5
_NEXT = 2
_TRACES = "TRACES"
_LONG = 120
_STEPS_LONG = 60


def headline(result: ToolResult[Any], lang: Lang) -> list[Safe]:
    """Return the first lines of the text of `result`; empty for tools without a verdict."""
    if result.tool == "critical_path":
        return critical_path_lines(result.data, lang, result.findings)
    return headline_of(result.tool, result.data, lang)


def headline_of(tool: str, data: Any, lang: Lang) -> list[Safe]:
    """Return the first lines for the tables `data` of `tool`."""
    make = _HEADLINES.get(tool)
    return make(data, lang) if make else []


def _slow_node(data: Data, lang: Lang) -> list[Safe]:
    texts = words(lang)
    ranks, marks = texts["ranks"], texts["marks"]
    lines = [Safe(f"{texts['labels']['verdict']}{marks['colon']}{ranks['verdicts'][data.verdict]}")]
    if data.reasons:
        why = marks["semicolon"].join(ranks["reasons"].get(code) or _TEXT.running(code) for code in data.reasons)
        # for other verdicts the reasons are limitations
        lines.append(Safe("  " + ranks["because" if data.verdict == "cannot_tell" else "note"].format(why)))
    if data.step_ms is not None:
        known = {"steps": quantity(data.steps, "count"), "step": quantity(data.step_ms, "ms")}
        if data.lost_pct is not None:
            lines.append(Safe("  " + ranks["steps_lost"].format(**known, lost=quantity(data.lost_pct, "pct"))))
        else:
            lines.append(Safe("  " + ranks["steps"].format(**known)))
    if data.detectable_pct is not None:
        lines.append(Safe("  " + ranks["detectable"].format(quantity(data.detectable_pct, "pct"))))
    for row in data.accused[:_ACCUSED]:
        lines += _accused(row, lang)
    if len(data.accused) > _ACCUSED:
        lines.append(Safe("  " + texts["labels"]["left_out"].format(len(data.accused) - _ACCUSED)))
    return lines + [_next(call, lang) for call in data.next[:_NEXT]]


def _next(call: NextCall, lang: Lang) -> Safe:
    """Return the command that compares a slow rank with its median peer, or diagnoses its process; unknown traces are
    a placeholder."""
    texts = words(lang)["ranks"]
    if call.peer is None:
        pid = Safe(call.arguments["pid"])
        return Safe("  " + fill(_TEXT.running, texts["next_live"], rank=Safe(call.rank), pid=pid))
    named = {**dict.fromkeys(("before", "after"), _TRACES), **call.arguments}
    given = [part for name, value in named.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = Safe(printable(shlex.join(["whystall", "run", call.tool, *given])))
    return Safe("  " + fill(_TEXT.running, texts["next"], rank=Safe(call.rank), peer=Safe(call.peer), command=command))


def _accused(row: AccusedRow, lang: Lang) -> list[Safe]:
    """Return who is slow in what, the cost and certainty; on a second line the evidence."""
    texts = words(lang)
    ranks, marks = texts["ranks"], texts["marks"]
    who = ranks["rank"].format(row.rank)
    where = [*([_name(row.host)] if row.host else []), *([Safe(f"pid {row.pid}")] if row.pid is not None else [])]
    if where:
        who += f" ({marks['comma'].join(where)})"
    facts = []
    if loss := loss_of(row, lang):
        facts.append(loss)
    if row.votes is not None and row.steps is not None and row.p_value is not None:
        if row.slow_steps is None:
            facts.append(ranks["voted"].format(votes=row.votes, steps=row.steps))
        facts.append(ranks["by_chance"].format(quantity(row.p_value, "ratio")))
    if row.began_step is not None and row.slow_steps is None:
        facts.append(ranks["began"].format(row.began_step))
    facts.append(ranks["confidence"][row.confidence])
    first = f"- {who} {ranks['is']}{ranks['classes'][row.slow_class]}{marks['semicolon']}{marks['comma'].join(facts)}"
    evidence = _evidence(row.evidence[:_EVIDENCE], lang)
    return [Safe(first), *([Safe("    " + evidence)] if evidence else [])]


def loss_of(row: AccusedRow, lang: Lang) -> str:
    """Return in which steps an accused rank is slow, if in some only, and what it costs; empty for a hang."""
    if row.lost_ms_per_step is None or row.of_step_pct is None:
        return ""
    texts = words(lang)
    costs = {"lost": quantity(row.lost_ms_per_step, "ms"), "of_step": quantity(row.of_step_pct, "pct")}
    costs["job"] = quantity(row.job_pct, "pct")
    if row.slow_steps is None:
        return str(texts["ranks"]["costs"].format(**costs))
    cost = texts["ranks"]["costs_slow"].format(**costs, total=quantity(row.slow_steps.lost_ms, "ms"))
    return f"{_slow_steps(row.slow_steps, lang)}{texts['marks']['comma']}{cost}"


def _slow_steps(found: SlowSteps, lang: Lang) -> str:
    texts = words(lang)["ranks"]
    listed = rank_list(found.steps)
    if len(listed) > _STEPS_LONG:
        listed = listed[:_STEPS_LONG].rpartition(",")[0] + ", ..."
    blanks = {"steps": listed, "count": found.count, "period": found.period}
    growth = quantity(found.growth_pct or 0.0, "pct")
    return str(texts["slow_steps"][found.shape].format(**blanks, growth=growth))


def _evidence(rows: Sequence[EvidenceRow], lang: Lang) -> str:
    texts = words(lang)
    evidence = texts["ranks"]["evidence"]
    parts = [
        fill(
            _TEXT.running,
            evidence[row.what],
            name=_name(row.name) if row.name else Safe(""),
            mine=Safe(quantity(row.mine, row.unit)),
            peers=Safe(quantity(row.peers, row.unit)),
        )
        for row in rows
        if row.what in evidence
    ]
    return str(texts["marks"]["semicolon"]).join(" ".join(part.split()) for part in parts)


def _name(text: str) -> Safe:
    return _TEXT.name(short(text, _LONG))


def _page_cache(data: PageCache, lang: Lang) -> list[Safe]:
    texts = words(lang)
    found = [texts["page_cache"]["verdicts"][code] for code in data.verdicts]
    if not found:
        return []
    return [Safe(texts["labels"]["verdict"] + texts["marks"]["colon"] + texts["marks"]["semicolon"].join(found))]


_HEADLINES: dict[str, Callable[[Any, Lang], list[Safe]]] = {
    "crash_analyse": crash_analyse_lines,
    "collective_live": collective_lines,
    "critical_path": critical_path_lines,
    "slow_node_check": _slow_node,
    "compare_runs": compare_runs_lines,
    "cpu_profile": cpu_profile_lines,
    "flame_graph": flame_graph_lines,
    "flamegraph_diff": flamegraph_diff_lines,
    "hang": hang_lines,
    "heat_map": heat_map_lines,
    "known_fix": known_fix_lines,
    "inference_latency": inference_latency_lines,
    "page_cache": _page_cache,
}
