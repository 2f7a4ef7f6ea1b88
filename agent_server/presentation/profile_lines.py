"""What the tools that judge stack samples say first: the verdict, what it rests on, and who launched or waited."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import points, quantity
from whystall.prompts.render import FORMATS, fill, voice, words

if TYPE_CHECKING:
    from whystall.tools.profiles.cpu_profile import tool as cpu_profile
    from whystall.tools.profiles.flame_graph.data import Data as FlameData
    from whystall.tools.profiles.flame_graph.data import DeviceRow, LaunchRow
    from whystall.tools.profiles.flamegraph_diff.data import ChangeRow, DiffData
    from whystall.tools.profiles.heat_map import tool as heat_map

_TEXT = FORMATS["txt"]
_LONG = 120
_DEVICES, _LAUNCHERS, _CHANGES, _PERIODS, _WAITS = 3, 2, 3, 3, 2
_CPU_EVENTS = ("cpu-clock", "task-clock", "cpu", "cycles", "py-spy")
_DURATIONS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

COLUMNS = MappingProxyType(
    {
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
        ("heat_map", "periods"): (
            *("what", "tid", "comm", "basis", "period_s", "jitter_pct", "band_ms", "max_ms", "count", "window_pct"),
        ),
    }
)
"""Of tables with more columns than a line holds, by tool and table: those that are shown as text; none where the
first lines say it."""


def cpu_profiled(data: cpu_profile.Data, lang: Lang) -> list[Safe]:
    """The first lines of cpu_profile."""
    mine = words(lang)["profiled"]
    other = data.samples and data.event not in _CPU_EVENTS  # a file may hold what says nothing of CPUs
    lines = [_verdict(mine["cpu_other"] if other else mine["cpu"][data.verdict], lang)]
    if data.samples:
        known = {"samples": _count(data.samples), "event": _event(data.event, lang)}
        counted = data.event in ("", "samples")
        facts = [_filled(mine["samples"], known["samples"]) if counted else _filled(mine["sampled"], **known)]
        if data.unit == "samples" and all(row.samples is None for row in data.frames):
            facts = [Safe(mine["unit_unknown"])]
        if data.hz is not None:
            facts.append(_filled(mine["rate"], Safe(quantity(data.hz, "count"))))
        if data.cpus is not None:
            facts.append(_filled(mine["cpus_busy"], Safe(quantity(data.cpus, "ratio"))))
        lines += [_line(facts, lang), *_kinds([(row.kind, row.self_pct) for row in data.kinds], lang)]
    return lines


def flame_graphed(data: FlameData, lang: Lang) -> list[Safe]:
    """The first lines of flame_graph; of a device's work also who launches it."""
    mine = words(lang)["profiled"]
    lines = [_verdict(mine["flame"][data.verdict], lang), *_because(data.reasons, lang)]
    if not data.stacks:
        return lines
    facts = []
    if data.unit != "samples":
        facts.append(_filled(mine["weighed"], weight=_weight(data.weight, data.unit), event=_event(data.event, lang)))
    if data.samples is not None:
        facts.append(_filled(mine["samples"], _count(data.samples)))
    elif data.unit == "samples":  # folded stacks say so of whatever they hold
        facts.append(Safe(mine["unit_unknown"]))
    if data.idle_pct is not None:
        facts.append(_filled(mine["idle"], _pct(data.idle_pct)))
    lines += [_line(facts, lang), *_kinds([(row.kind, row.self_pct) for row in data.kinds], lang)]
    return lines + [_launched(row, data.unit, lang) for row in data.devices[:_DEVICES]]


def differed(data: DiffData, lang: Lang) -> list[Safe]:
    """The first lines of flamegraph_diff."""
    said = words(lang)
    mine = said["profiled"]
    lines = [_verdict(mine["difference"][data.verdict], lang), *_because(data.reasons, lang)]
    if not data.samples:
        return lines
    facts = [_filled(mine["both"], before=_count(data.samples_before), after=_count(data.samples))]
    if data.event not in ("", "samples"):
        facts.append(_filled(mine["counted"], _event(data.event, lang)))
    if data.verdict == "differs" and data.unchanged_pct is not None:
        facts.append(_filled(mine["against"], _pct(data.unchanged_pct)))
    lines.append(_line(facts, lang))
    lines += [_changed(row, lang) for row in data.rows if row.role == "proven"][:_CHANGES]
    for row in data.checks:
        if row.code:
            known = {"before": _name(row.before or "-"), "after": _name(row.after or "-")}
            lines.append(Safe("  " + said["ranks"]["note"].format(_filled(mine["checks"][row.code], **known))))
    return lines


def heat_mapped(data: heat_map.Data, lang: Lang) -> list[Safe]:
    """The first lines of heat_map: what recurs, and what is waited for meanwhile."""
    mine = words(lang)["profiled"]
    lines = [_verdict(mine["heat"][data.verdict], lang)]
    if data.columns:
        facts = [_filled(mine["map"], span=Safe(quantity(data.span_s, "s")), busy=_pct(data.busy_pct))]
        lines.append(_line(facts, lang))
    for row in data.periods[:_PERIODS]:
        known = {
            "what": words(lang)["what_recurs"][row.what],
            "period": Safe(quantity(row.period_s, "s")),
            "band": Safe(quantity(row.band_ms, "ms")),
            "who": _thread(row.comm, row.tid) if row.tid >= 0 else Safe(mine["everybody"]),
            "count": _count(row.count),
        }
        lines.append(Safe("  " + _filled(mine["recurs"], **known)))
        for wait in row.waits[:_WAITS]:
            place = [_name(text) for text in (wait.syscall, wait.path) if text] or [_state(wait.state, lang)]
            told = {
                "who": _thread(wait.comm, wait.tid),
                "place": Safe(" ".join(place)),
                "inside": _pct(wait.band_pct),
                "outside": _pct(wait.outside_pct),
            }
            lines.append(Safe("    " + _filled(mine["waits"], **told)))
    return lines


def _changed(row: ChangeRow, lang: Lang) -> Safe:
    """What changed in one function and what that costs."""
    said = words(lang)
    mine = said["profiled"]
    known = {
        "name": _placed(row.name, row.code),
        "what": _filled(mine["what"][row.what], callee=_name(row.callee)),
        "direction": Safe(said["directions"][row.direction]),
        "before": _pct(row.before_pct),
        "after": _pct(row.after_pct),
        "cost": Safe(points(row.cost_pct)),
    }
    return Safe("  " + _filled(mine["change"], **known))


def _launched(row: DeviceRow, unit: str, lang: Lang) -> Safe:
    """Work of a device, and the operators and lines that launch most of it."""
    said = words(lang)
    mine = said["profiled"]
    known = {"name": _name(row.name), "pct": _pct(row.pct), "total": _weight(row.weight, unit)}
    counted = row.count is not None  # a source of sums does not tell how often
    text = _filled(mine["device" if counted else "device_sum"], **known, count=_count(row.count or 0))
    launchers = [
        _filled(mine["launcher"], by=_launcher(one, lang), pct=_pct(one.pct))
        for one in row.launched_by[:_LAUNCHERS]
        if one.operator or one.code
    ]
    if not launchers:
        return Safe("  " + text)
    by = _filled(mine["launched_by"], Safe(said["marks"]["comma"].join(launchers)))
    return Safe(f"  {text}{said['marks']['semicolon']}{by}")


def _launcher(row: LaunchRow, lang: Lang) -> Safe:
    """An operator and the line that calls it, as far as they are known."""
    place = voice("txt", lang).place(row.code) if row.code else Safe("")
    if not row.operator or not row.code:
        return _name(row.operator) if row.operator else place
    return _filled(words(lang)["profiled"]["called_at"], operator=_name(row.operator), place=place)


def _kinds(kinds: Sequence[tuple[str, float]], lang: Lang) -> list[Safe]:
    """The shares of the kinds of code."""
    said = words(lang)
    names = said["profiled"]["kinds"]
    parts = [f"{names.get(kind) or _TEXT.running(kind)} {quantity(pct, 'pct')}" for kind, pct in kinds if pct > 0]
    return [
        Safe(f"  {said['profiled']['in_kinds']}{said['marks']['colon']}{said['marks']['comma'].join(parts)}")
    ] * bool(parts)


def _because(reasons: Sequence[str], lang: Lang) -> list[Safe]:
    said = words(lang)
    told = said["profiled"]["reasons"]
    return [Safe("  " + said["ranks"]["note"].format(told.get(code) or _TEXT.running(code))) for code in reasons]


def _verdict(text: str, lang: Lang) -> Safe:
    said = words(lang)
    return Safe(f"{said['labels']['verdict']}{said['marks']['colon']}{text}")


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
    """A weight as time or bytes where it is some, else as a number with its unit."""
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
