"""Judge flamegraph_diff: comparability, rows, findings, and both profiles folded in one file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.profiles.flamegraph_diff.comparison import Difference, compare
from whystall.tools.profiles.flamegraph_diff.data import ChangeRow, CheckRow, DiffData, Effect, Params, PathCall
from whystall.tools.profiles.flamegraph_diff.interrupts import without_interrupts
from whystall.tools.profiles.flamegraph_diff.rows import rows_of, share_of_common
from whystall.tools.profiles.flamegraph_diff.side import DURATIONS
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.alignment import rows_of as aligned_rows
from whystall.tools.stacks.events import choose_event
from whystall.tools.stacks.model import NO_TIME, StackProfile
from whystall.tools.stacks.recorded import BEFORE, NOW, stacks_of
from whystall.tools.stacks.tree import CallTree, Part

_CPU = frozenset({"cpu-clock", "task-clock", "cpu", "cycles", "cpu-cycles", "samples", ""})
"""Events that measure CPU time: profiles of two of them have the same shares."""
_IN_COMMON_PCT = 50.0
_TOTAL_SAME = 0.05
_INTERRUPTS_PCT = 1.0
_MAJOR_PCT, _MINOR_PCT = 20.0, 5.0
_PATH = 4
_FOLDED = 20_000
_KINDS = ("python", "operator", "device")
_RECORDER = "ebpf"
"""Source of the samples of a recording that also has waits."""


def judged(recording: Recording, params: Params) -> Judgement[DiffData]:
    """Compare the profile ``samples`` with the profile ``samples_before``."""
    profiles = stacks_of(recording, BEFORE), stacks_of(recording, NOW)
    empty = [profile.samples.is_empty() for profile in profiles]
    if all(empty):
        return Judgement(findings=[], data=DiffData(reasons=["nothing_there"]), seen=0)
    for which, none in zip(("before", "after"), empty, strict=True):
        if none:
            message = f"the profile {which} is empty: it has no samples"
            raise ToolError(ErrorCode.BAD_TRACE, message, "profile for longer, or while the program runs")
    parts = [
        Part(profile, _event(profile, params.event, which))
        for profile, which in zip(profiles, ("before", "after"), strict=True)
    ]
    checks = _checks(*parts)
    (before, *interrupted), (after, *others) = (without_interrupts(part) for part in parts)
    checks.append(_interrupts(*interrupted, *others))
    found = compare(before, after, min_pct=params.min_pct, top=params.top)
    rows = rows_of(found, before, after)
    data = _data(found, rows, checks, before, after)
    findings = [_finding(row, data.event, recording.manifest.window_ns) for row in rows if row.role == "proven"]
    if data.verdict == "alike" and data.bound_pct is not None:
        findings.append(_alike(data, data.bound_pct, params.min_pct, recording.manifest.window_ns))
    data.rows = rows[: params.top]
    data.aligned = aligned_rows(found.aligned)[: params.top]
    if params.before and params.after and all(profile.source == _RECORDER for profile in profiles):
        data.next = [PathCall(arguments={"recording": params.after, "before": params.before})]
    return Judgement(
        findings=findings,
        data=data,
        seen=found.before.samples + found.after.samples,
        totals={"rows": len(rows), "checks": len(checks), "aligned": len(found.aligned)},
        artifacts=[_folded(found.tree)],
        basis=found,
    )


def _event(profile: StackProfile, name: str, which: str) -> int:
    try:
        return choose_event(profile, name)
    except ToolError as error:
        raise ToolError(error.code, f"{which}: {error.message}", error.remedy) from None


def _checks(before: Part, after: Part) -> list[CheckRow]:
    """Compare the conditions of both. Raises `ToolError` (bad_argument) if they measured different things."""
    names, units, periods = zip(*(_measure(part) for part in (before, after)), strict=True)
    kinds = ["time" if unit in DURATIONS else unit for unit in units]
    plain = [name.split(":")[0].strip("/") for name in names]
    if kinds[0] != kinds[1] or (plain[0] != plain[1] and not _CPU.issuperset(plain)):
        measured = [f"{name} in {unit}" for name, unit in zip(names, units, strict=True)]
        message = f"the profiles measured different things: before {measured[0]}, after {measured[1]}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "compare profiles of one event, or choose it with event")
    sources = [part.profile.source for part in (before, after)]
    rates = [_amount(period, unit) if period else "" for period, unit in zip(periods, units, strict=True)]
    sums = [float(_samples(part)["weight"].sum()) for part in (before, after)]
    other = abs(sums[1] - sums[0]) > _TOTAL_SAME * sums[0]
    return [
        _check("source", sources, "other_source", "said"),
        _check("event", names, "other_event", "said"),
        _check("period", rates, "other_period", "said"),
        _check("kinds", [", ".join(_kinds(part)) for part in (before, after)], "other_kinds", "limited"),
        CheckRow(
            what="weight",
            before=_amount(sums[0], units[0]),
            after=_amount(sums[1], units[1]),
            effect="said" if other else "same",
            code="other_weight" if other else "",
        ),
    ]


def _amount(weight: float, unit: str) -> str:
    """Format a weight without exponent; durations in seconds, short ones in milliseconds."""
    if unit != "ns":
        return f"{weight:.15g} {unit}"
    return f"{weight / 1e9:.4g} s" if weight >= 1e9 else f"{weight / 1e6:.4g} ms"


def _check(what: str, found: Sequence[str], code: str, effect: Effect) -> CheckRow:
    same = found[0] == found[1]
    return CheckRow(
        what=what, before=found[0], after=found[1], effect="same" if same else effect, code="" if same else code
    )


def _interrupts(before: float, after: float) -> CheckRow:
    """Compare the shares of the excluded interrupts."""
    other = abs(after - before) >= _INTERRUPTS_PCT
    return CheckRow(
        what="interrupts",
        before=f"{before:.2g} %",
        after=f"{after:.2g} %",
        effect="said" if other else "same",
        code="other_interrupts" if other else "",
    )


def _measure(part: Part) -> tuple[str, str, float]:
    name, unit, period = part.profile.events.select("name", "unit", "period").row(part.event)
    return name, unit, period


def _samples(part: Part) -> pl.DataFrame:
    return part.profile.samples.filter(pl.col("event") == part.event)


def _kinds(part: Part) -> list[str]:
    kinds = set(part.profile.frames["kind"].unique())
    return [kind for kind in _KINDS if kind in kinds]


def _data(found: Difference, rows: list[ChangeRow], checks: list[CheckRow], before: Part, after: Part) -> DiffData:
    common = share_of_common(found.tree)
    few = ["little_in_common"] if common < _IN_COMMON_PCT else []
    name, unit, _ = _measure(after)
    return DiffData(
        verdict=found.verdict,
        reasons=[*found.reasons, *few],
        event=name,
        unit=unit,
        samples_before=found.before.samples,
        samples=found.after.samples,
        total_before=float(found.tree.sums[0]),
        total=float(found.tree.sums[1]),
        span_before_s=_span_s(before),
        span_s=_span_s(after),
        blocks=found.after.how if found.after.how == found.before.how else f"{found.before.how}, {found.after.how}",
        burst_factor=found.bursts.factor if "counts" in (found.before.how, found.after.how) else None,
        burst_functions=found.bursts.functions,
        bound_pct=found.bound,
        scale=found.scale.ratio,
        unchanged_pct=100 * found.scale.share if found.scale.found else None,
        common_pct=common,
        rows=rows,
        checks=checks,
    )


def _span_s(part: Part) -> float | None:
    samples = _samples(part)
    if (samples["at_ns"] == NO_TIME).any():
        return None
    first, last = samples.select(first=pl.col("at_ns").min(), last=(pl.col("at_ns") + pl.col("span_ns")).max()).row(0)
    return float(last - first) / 1e9


def _finding(row: ChangeRow, event: str, window_ns: int) -> Finding:
    metrics = {
        "before_pct": row.before_pct,
        "after_pct": row.after_pct,
        "change_pct": row.change_pct,
        "low_pct": row.low_pct,
        "high_pct": row.high_pct,
        "ratio": row.ratio,
        "p_value": row.p_value,
    }
    words = {
        "name": row.name,
        "callee": row.callee,
        "code": row.code,
        "path": " < ".join(row.path[::-1][:_PATH]),
        "event": event,
        "direction": row.direction,
    }
    worse = row.direction in ("grew", "appeared")
    size = Severity.MAJOR if row.cost_pct >= _MAJOR_PCT else Severity.MINOR
    return Finding(
        kind="profile.change",
        subject=Subject(type="profile"),
        interval=Interval(start_ns=0, end_ns=window_ns),
        metrics={name: value for name, value in metrics.items() if value is not None},
        attributes={name: value for name, value in words.items() if value},
        severity=size if worse and row.cost_pct >= _MINOR_PCT else Severity.INFO,
        polarity=Polarity.ABNORMAL if worse else Polarity.NORMAL,
    )


def _alike(data: DiffData, bound_pct: float, min_pct: float, window_ns: int) -> Finding:
    return Finding(
        kind="profile.alike",
        subject=Subject(type="profile"),
        interval=Interval(start_ns=0, end_ns=window_ns),
        metrics={
            "bound_pct": max(bound_pct, min_pct),
            "samples_before": data.samples_before,
            "samples": data.samples,
        },
        attributes={"event": data.event} if data.event else {},
        polarity=Polarity.NORMAL,
    )


def _folded(tree: CallTree) -> ArtifactContent:
    """Return both profiles as lines ``main;step;save BEFORE AFTER`` for flamegraph.pl, the earlier one scaled to the
    later one's weight; at most the heaviest `_FOLDED` stacks."""
    before = tree.own[0] * (tree.sums[1] / tree.sums[0])
    after = tree.own[1]
    here = np.nonzero((before > 0) | (after > 0))[0]
    kept = np.sort(here[np.argsort(-(before + after)[here], kind="stable")[:_FOLDED]])
    safe = [label.replace(";", ":") for label in tree.labels]
    lines = []
    for node in kept:
        names = ";".join(safe[int(tree.frame[one])] for one in tree.path(int(node)))
        lines.append(f"{names} {before[node]:.6g} {after[node]:.6g}\n")
    return ArtifactContent("difference.folded", "Stacks before and after, folded", "text/plain", "".join(lines))
