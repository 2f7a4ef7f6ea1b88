"""The first lines of tools that judge stack samples: verdict, facts, and who launched or waited."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, printable, short
from whystall.prompts.quantities import direction, points, quantity
from whystall.prompts.render import FORMATS, fill, voice, words

if TYPE_CHECKING:
    from whystall.tools.profiles.cpu_profile import tool as cpu_profile
    from whystall.tools.profiles.flame_graph.data import Data as FlameData
    from whystall.tools.profiles.flame_graph.data import DeviceRow, LaunchRow
    from whystall.tools.profiles.flamegraph_diff.data import ChangeRow, DiffData
    from whystall.tools.profiles.heat_map import tool as heat_map
    from whystall.tools.stacks.alignment import AlignedRow

_TEXT = FORMATS["txt"]
_LONG = 120
_DEVICES, _LAUNCHERS, _CHANGES, _ALIGNED, _PERIODS, _WAITS = 3, 2, 3, 3, 3, 2
_CPU_EVENTS = ("cpu-clock", "task-clock", "cpu", "cycles", "py-spy")
_DURATIONS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

COLUMNS = MappingProxyType(
    {
        ("critical_path", "rows"): (),
        ("critical_path", "pauses"): (),
        ("known_fix", "relevant"): (),
        ("known_fix", "possible"): (),
        ("known_fix", "affected"): ("defect", "component", "version", "affected", "fixed", "kind", "source"),
        ("known_fix", "fixed"): ("defect", "component", "version", "fixed"),
        ("cpu_profile", "kinds"): (),
        ("flame_graph", "kinds"): (),
        ("flame_graph", "devices"): (),
        ("cpu_profile", "frames"): ("self_pct", "total_pct", "low_pct", "high_pct", "samples", "name", "code", "kind"),
        ("flame_graph", "frames"): ("self_pct", "total_pct", "samples", "name", "code", "kind"),
        ("flame_graph", "inclusive"): ("total_pct", "self_pct", "name", "code"),
        ("flamegraph_diff", "rows"): (
            *("name", "code", "what", "callee", "counterpart", "direction", "role", "before_pct", "after_pct"),
            *("change_pct", "cost_pct"),
        ),
        ("flamegraph_diff", "aligned"): (),
        ("flamegraph_diff", "next"): (),
        ("compare_runs", "aligned"): (),
        ("hang", "rows"): ("rank", "pid", "comm", "doing", "object", "whom", "line", "collective", "still", "late"),
        ("gpu_health", "messages"): (
            *("what", "gpu", "mnemonic", "level", "severity", "count", "last_s", "process", "text"),
        ),
        ("hang", "late"): (),
        ("heat_map", "periods"): (
            *("what", "tid", "comm", "basis", "period_s", "jitter_pct", "band_ms", "max_ms", "count", "window_pct"),
        ),
    }
)
"""Columns shown as text, by tool and table, of tables too wide for a line; empty if the first lines contain them."""


def cpu_profile_lines(data: cpu_profile.Data, lang: Lang) -> list[Safe]:
    texts = words(lang)["profiled"]
    other = data.samples and data.event not in _CPU_EVENTS  # files may have events unrelated to CPUs
    lines = [_verdict(texts["cpu_other"] if other else texts["cpu"][data.verdict], lang)]
    if data.samples:
        known = {"samples": _count(data.samples), "event": _event(data.event, lang)}
        counted = data.event in ("", "samples")
        facts = [_filled(texts["samples"], known["samples"]) if counted else _filled(texts["sampled"], **known)]
        if data.unit == "samples" and all(row.samples is None for row in data.frames):
            facts = [Safe(texts["unit_unknown"])]
        if data.hz is not None:
            facts.append(_filled(texts["rate"], Safe(quantity(data.hz, "count"))))
        if data.cpus is not None:
            facts.append(_filled(texts["cpus_busy"], Safe(quantity(data.cpus, "ratio"))))
        lines += [_line(facts, lang), *_kinds([(row.kind, row.self_pct) for row in data.kinds], lang)]
    return lines


def flame_graph_lines(data: FlameData, lang: Lang) -> list[Safe]:
    """Return the first lines; of device work also who launches it."""
    texts = words(lang)["profiled"]
    lines = [_verdict(texts["flame"][data.verdict], lang), *_because(data.reasons, lang)]
    if not data.stacks:
        return lines
    facts = []
    if data.unit != "samples":
        facts.append(_filled(texts["weighed"], weight=_weight(data.weight, data.unit), event=_event(data.event, lang)))
    if data.samples is not None:
        facts.append(_filled(texts["samples"], _count(data.samples)))
    elif data.unit == "samples":  # folded stacks have no unit
        facts.append(Safe(texts["unit_unknown"]))
    if data.idle_pct is not None:
        facts.append(_filled(texts["idle"], _pct(data.idle_pct)))
    lines += [_line(facts, lang), *_kinds([(row.kind, row.self_pct) for row in data.kinds], lang)]
    return lines + [_launched(row, data.unit, lang) for row in data.devices[:_DEVICES]]


def flamegraph_diff_lines(data: DiffData, lang: Lang) -> list[Safe]:
    all_texts = words(lang)
    texts = all_texts["profiled"]
    lines = [_verdict(texts["difference"][data.verdict], lang), *_because(data.reasons, lang)]
    if not data.samples:
        return lines
    facts = [_filled(texts["both"], before=_count(data.samples_before), after=_count(data.samples))]
    if data.event not in ("", "samples"):
        facts.append(_filled(texts["counted"], _event(data.event, lang)))
    if data.verdict == "differs" and data.unchanged_pct is not None:
        facts.append(_filled(texts["against"], _pct(data.unchanged_pct)))
    lines.append(_line(facts, lang))
    lines += [_changed(row, lang) for row in data.rows if row.role == "proven"][:_CHANGES]
    for row in data.checks:
        if row.code:
            known = {"before": _name(row.before or "-"), "after": _name(row.after or "-")}
            lines.append(Safe("  " + all_texts["ranks"]["note"].format(_filled(texts["checks"][row.code], **known))))
    lines += aligned_lines(data.aligned, lang)
    for call in data.next:
        both = call.arguments["recording"], call.arguments["before"]
        command = shlex.join(["whystall", "run", call.tool, "--from", both[0], "--before", both[1]])
        lines.append(Safe("  " + _filled(texts["waits_compared"], command=Safe(printable(command)))))
    return lines


def aligned_lines(rows: Sequence[AlignedRow], lang: Lang) -> list[Safe]:
    """Return the names that were compared as one, by which rule."""
    texts, note = words(lang)["profiled"], words(lang)["ranks"]["note"]
    lines = []
    for row in rows[:_ALIGNED]:
        single = row.count_before == row.count_after == 1 and row.before != row.after
        names = {
            "name": _name(f"{row.before[0]} = {row.after[0]}" if single else row.name),
            "rule": texts["rules"][row.rule],
        }
        counts = {"before": _count(row.count_before), "after": _count(row.count_after)}
        lines.append(Safe("  " + note.format(_filled(texts["aligned"], **names, **counts))))
    return lines


def heat_map_lines(data: heat_map.Data, lang: Lang) -> list[Safe]:
    """Return the first lines: what recurs, and what threads wait for meanwhile."""
    texts = words(lang)["profiled"]
    lines = [_verdict(texts["heat"][data.verdict], lang)]
    if data.columns:
        facts = [_filled(texts["map"], span=Safe(quantity(data.span_s, "s")), busy=_pct(data.busy_pct))]
        lines.append(_line(facts, lang))
    for row in data.periods[:_PERIODS]:
        known = {
            "what": words(lang)["what_recurs"][row.what],
            "period": Safe(quantity(row.period_s, "s")),
            "band": Safe(quantity(row.band_ms, "ms")),
            "who": _thread(row.comm, row.tid) if row.tid >= 0 else Safe(texts["everybody"]),
            "count": _count(row.count),
        }
        lines.append(Safe("  " + _filled(texts["recurs"], **known)))
        for wait in row.waits[:_WAITS]:
            place = [_name(text) for text in (wait.syscall, wait.path) if text] or [_state(wait.state, lang)]
            wait_values = {
                "who": _thread(wait.comm, wait.tid),
                "place": Safe(" ".join(place)),
                "inside": _pct(wait.band_pct),
                "outside": _pct(wait.outside_pct),
            }
            lines.append(Safe("    " + _filled(texts["waits"], **wait_values)))
    return lines


def _changed(row: ChangeRow, lang: Lang) -> Safe:
    all_texts = words(lang)
    texts = all_texts["profiled"]
    before, after = _pct(row.before_pct), _pct(row.after_pct)
    word = all_texts["directions"][direction(row.direction, before, after, row.after_pct - row.before_pct)]
    known = {
        "name": _placed(row.name, row.code),
        "what": _filled(texts["what"][row.what], callee=_name(row.callee)),
        "direction": Safe(word),
        "before": before,
        "after": after,
        "cost": Safe(points(row.cost_pct)),
    }
    return Safe("  " + _filled(texts["change"], **known))


def _launched(row: DeviceRow, unit: str, lang: Lang) -> Safe:
    """Return work of a device, and the operators and lines that launch most of it."""
    all_texts = words(lang)
    texts = all_texts["profiled"]
    known = {"name": _name(row.name), "pct": _pct(row.pct), "total": _weight(row.weight, unit)}
    counted = row.count is not None  # sources of sums have no counts
    text = _filled(texts["device" if counted else "device_sum"], **known, count=_count(row.count or 0))
    launchers = [
        _filled(texts["launcher"], by=_launcher(one, lang), pct=_pct(one.pct))
        for one in row.launched_by[:_LAUNCHERS]
        if one.operator or one.code
    ]
    if not launchers:
        return Safe("  " + text)
    by = _filled(texts["launched_by"], Safe(all_texts["marks"]["comma"].join(launchers)))
    return Safe(f"  {text}{all_texts['marks']['semicolon']}{by}")


def _launcher(row: LaunchRow, lang: Lang) -> Safe:
    """Return an operator and the line that calls it, as far as known."""
    place = voice("txt", lang).place(row.code) if row.code else Safe("")
    if not row.operator or not row.code:
        return _name(row.operator) if row.operator else place
    return _filled(words(lang)["profiled"]["called_at"], operator=_name(row.operator), place=place)


def _kinds(kinds: Sequence[tuple[str, float]], lang: Lang) -> list[Safe]:
    texts, marks = words(lang)["profiled"], words(lang)["marks"]
    names = texts["kinds"]
    parts = [f"{names.get(kind) or _TEXT.running(kind)} {quantity(pct, 'pct')}" for kind, pct in kinds if pct > 0]
    return [Safe(f"  {texts['in_kinds']}{marks['colon']}{marks['comma'].join(parts)}")] if parts else []


def _because(reasons: Sequence[str], lang: Lang) -> list[Safe]:
    all_texts = words(lang)
    known, note = all_texts["profiled"]["reasons"], all_texts["ranks"]["note"]
    return [Safe("  " + note.format(known.get(code) or _TEXT.running(code))) for code in reasons]


def _verdict(text: str, lang: Lang) -> Safe:
    all_texts = words(lang)
    return Safe(f"{all_texts['labels']['verdict']}{all_texts['marks']['colon']}{text}")


def _line(facts: Sequence[Safe], lang: Lang) -> Safe:
    return Safe("  " + words(lang)["marks"]["semicolon"].join(facts))


def _placed(name: str, code: str) -> Safe:
    return Safe(f"{_name(name)} ({_name(code)})" if code else _name(name))


def _thread(comm: str, tid: int) -> Safe:
    return Safe(f"{_name(comm)} ({tid})")


def _state(state: str, lang: Lang) -> Safe:
    known: Safe | None = words(lang)["heat_page"]["states"].get(state)
    return known if known is not None else _name(state)


def _event(event: str, lang: Lang) -> Safe:
    known: Safe | None = words(lang)["profile_events"].get(event)
    return known if known is not None else _name(event)


def _weight(weight: float, unit: str) -> Safe:
    """Return a weight as time or bytes if its unit allows, else as a number with its unit."""
    if unit in _DURATIONS:
        return Safe(quantity(weight * _DURATIONS[unit], "s"))
    if unit == "bytes":
        return Safe(quantity(weight, "bytes"))
    return Safe(f"{quantity(weight, 'count')} {_name(unit)}" if unit else quantity(weight, "count"))


def _filled(text: str, *values: object, **named: object) -> Safe:
    return fill(_TEXT.running, text, *values, **named)


def _name(text: str) -> Safe:
    return _TEXT.name(short(text, _LONG))


def _pct(value: float) -> Safe:
    return Safe(quantity(value, "pct"))


def _count(value: Any) -> Safe:
    return Safe(quantity(value, "count"))
