"""Judge a run by a stored baseline: which operators of which ranks take longer than in the stored runs, since when, and
longer than on other ranks."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.text import clean
from whystall.tools.ranks.compare_runs.latency import compared
from whystall.tools.ranks.compare_runs.tables import CheckRow, CompareData, Effect, LatencyRow
from whystall.tools.ranks.job import Job
from whystall.tools.ranks.statistics.probability import median
from whystall.tools.stacks.alignment import align, renaming, rows_of
from whystall.tools.timeline.rank_data.rank_list import rank_list

_NAMED = 10
_FEW = 5
"""Most operators changed alike if so many did, and the middle one of all by the minimum."""
_CRITICAL_PCT, _MAJOR_PCT = 20.0, 10.0  # of the rank's time, as for a slow rank
_DEVICE = "device"
_TWICE = 2.0
_LIMIT = 200


@dataclass(frozen=True)
class Baseline:
    """Tables of the collector ``baseline`` (`rank_data.tables.BASELINE`)."""

    runs: pl.DataFrame
    latencies: pl.DataFrame
    environment: pl.DataFrame


def judge_baseline(job: Job, baseline: Baseline, min_pct: float, window_ns: int) -> tuple[CompareData, list[Finding]]:
    """Return the comparison, whose verdict is about single operators, and its findings."""
    rows, runs = _checks(job, baseline)
    data = CompareData(checks=rows, stored_runs=runs.height)
    data.reasons = list(dict.fromkeys(row.code for row in rows if row.code))
    if runs.is_empty():
        return data, []
    stored = baseline.latencies.join(runs.select("run"), on="run", how="semi", maintain_order="left")
    stored = stored.join(runs.sort("run").select("run").with_row_index("place"), on="run").with_columns(
        run=pl.col("place").cast(pl.Int32)
    )
    now = job.table("latencies")
    known = align(set(stored["name"].to_list()), set(now["name"].to_list()))
    name = pl.col("name").replace(renaming(known))
    labels = [clean(at) for at in runs.sort("run")["at"].to_list()]
    data.aligned = rows_of(known)
    data.latencies = compared(now.with_columns(name), stored.sort("place").with_columns(name), labels, min_pct)
    _conclude(data, now, min_pct)
    return data, [*_of_baseline(data, window_ns), *_of_peers(data, job, window_ns)]


def _conclude(data: CompareData, now: pl.DataFrame, min_pct: float) -> None:
    rows = data.latencies
    tested = [row for row in rows if row.q_value is not None]
    data.listed, data.tested = len(rows), len(tested)
    changed = {state: sum(row.state == state for row in tested) for state in ("slower", "faster")}
    if not tested:
        data.reasons.append("nothing_comparable")
        return
    data.verdict = "slower" if changed["slower"] else "faster" if changed["faster"] else "none"
    if data.stored_runs == 1:
        data.reasons.append("one_run")
    if (now["shape"] == "").all():
        data.reasons.append("shapes_unknown")
    if abs(median(row.change_pct or 0.0 for row in tested)) >= min_pct and max(changed.values()) >= _FEW:
        data.reasons.append("most_operators")


def _checks(job: Job, baseline: Baseline) -> tuple[list[CheckRow], pl.DataFrame]:
    """Return the checks, and the stored runs that may be compared."""
    heads = job.table("ranks")
    source, device = ", ".join(sorted(set(heads["source"].to_list()))), bool(heads["device"].any())
    own = _environment(job.table("environment"))
    kept, rows = [], []
    for run in baseline.runs.sort("run").iter_rows(named=True):
        theirs = _environment(baseline.environment.filter(pl.col("run") == run["run"]))
        refused = [
            ("format", "other_format", run["source"], source),
            ("device", "other_device", "device" if run["device"] else "host", "device" if device else "host"),
            ("hardware", "other_hardware", theirs.get(_DEVICE, ""), own.get(_DEVICE, "")),
        ]
        wrong = [_row(what, code, a, b, "refused") for what, code, a, b in refused if a and b and a != b]
        rows += wrong
        if wrong:
            continue
        kept.append(run["run"])
        for what in sorted(theirs.keys() & own.keys() - {_DEVICE}):
            if theirs[what] != own[what]:
                rows.append(_row(what, "other_versions", theirs[what], own[what], "said"))
        if not own or not theirs:
            rows.append(_row("hardware", "environment_unknown", theirs.get(_DEVICE, ""), own.get(_DEVICE, ""), "said"))
        if run["world_size"] > 0 and job.world_size > 0 and run["world_size"] != job.world_size:
            texts = str(run["world_size"]), str(job.world_size)
            rows.append(_row("world_size", "world_sizes_differ", *texts, "said"))
    unique = {(row.what, row.code, row.before): row for row in rows}
    order: list[Effect] = ["refused", "limited", "said", "same"]
    return (
        sorted(unique.values(), key=lambda row: order.index(row.effect)),
        baseline.runs.filter(pl.col("run").is_in(kept)),
    )


def _row(what: str, code: str, before: str, after: str, effect: Effect) -> CheckRow:
    return CheckRow(what=what, before=before[:_LIMIT], after=after[:_LIMIT], effect=effect, code=code)


def _environment(frame: pl.DataFrame) -> dict[str, str]:
    found = frame.group_by("what").agg(pl.col("value").unique().sort()).iter_rows()
    return {what: ", ".join(values) for what, values in found}


def _of_baseline(data: CompareData, window_ns: int) -> list[Finding]:
    """Return a finding per operator and shape that takes longer or shorter, with its ranks; one that is normal if none
    does."""
    groups: dict[tuple[str, str, str, str], list[LatencyRow]] = {}
    tested: dict[tuple[str, str], set[int]] = {}
    for row in data.latencies:
        if row.q_value is not None:
            tested.setdefault((row.name, row.shape), set()).add(row.rank)
        if row.state in ("slower", "faster"):
            groups.setdefault((row.state, row.kind, row.name, row.shape), []).append(row)
    whole = Interval(start_ns=0, end_ns=window_ns)
    if not groups:
        if data.verdict != "none":
            return []
        return [
            Finding(
                kind="run.operator_latency",
                subject=Subject(type="job"),
                interval=whole,
                metrics={"count": sum(row.q_value is not None for row in data.latencies)},
                polarity=Polarity.NORMAL,
            )
        ]
    found = []
    for (state, _, name, shape), rows in list(groups.items())[:_NAMED]:
        worst = max(rows, key=lambda row: abs(row.cost_pct or 0.0))
        words = {"name": _name(name, shape), "ranks": rank_list({row.rank for row in rows}), "state": worst.since}
        metrics = {
            "before_us": worst.before_us,
            "after_us": worst.after_us,
            "change_pct": worst.change_pct,
            "low_pct": worst.low_pct,
            "high_pct": worst.high_pct,
            "p_value": worst.q_value,
            "count": sum(row.count_after for row in rows),
            "peers_us": worst.peers_us,
            "ranks_pct": 100 * len({row.rank for row in rows}) / max(len(tested[name, shape]), 1),
        }
        if state == "slower":
            metrics["window_pct"] = max(median(row.cost_pct or 0.0 for row in rows), 0.0)
        found.append(
            Finding(
                kind="run.operator_latency",
                subject=Subject(type="job"),
                interval=whole,
                metrics={key: value for key, value in metrics.items() if value is not None},
                attributes={key: word for key, word in words.items() if word},
                severity=_severity(worst.cost_pct) if state == "slower" else Severity.INFO,
                polarity=Polarity.ABNORMAL,
            )
        )
    return found


def _of_peers(data: CompareData, job: Job, window_ns: int) -> list[Finding]:
    """Return a finding per rank and operator that takes longer there than on the other ranks."""
    hosts = dict(job.table("ranks").select("rank", "host").iter_rows())
    found = []
    for row in [row for row in data.latencies if row.peers_slower][:_NAMED]:
        metrics = {
            "p50_us": row.after_us,
            "peers_us": row.peers_us,
            "change_pct": row.peers_change_pct,
            "low_pct": row.peers_low_pct,
            "high_pct": row.peers_high_pct,
            "p_value": row.peers_q_value,
            "count": row.count_after,
        }
        change = 1 + (row.peers_change_pct or 0.0) / 100
        found.append(
            Finding(
                kind="rank.operator_slow",
                subject=Subject(type="rank", rank=row.rank, host=clean(hosts.get(row.rank, "")) or None),
                interval=Interval(start_ns=0, end_ns=window_ns),
                metrics={key: value for key, value in metrics.items() if value is not None},
                attributes={"name": _name(row.name, row.shape)},
                severity=Severity.MAJOR if change >= _TWICE else Severity.MINOR,
                polarity=Polarity.ABNORMAL,
            )
        )
    return found


def _name(name: str, shape: str) -> str:
    return clean(f"{name} {shape}" if shape and shape != "-" else name)


def _severity(cost_pct: float | None) -> Severity:
    if (cost_pct or 0.0) >= _CRITICAL_PCT:
        return Severity.CRITICAL
    return Severity.MAJOR if (cost_pct or 0.0) >= _MAJOR_PCT else Severity.MINOR
