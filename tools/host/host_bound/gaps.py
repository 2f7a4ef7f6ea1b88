"""Find idle gaps of the accelerator ("bubbles"), and what the next launching thread did in each.

A gap is time in which a device does nothing on any stream: no kernel, copy or collective. The host causes it only if
the work that ended it was launched after the gap began ("host wait" in Holistic Trace Analysis), and only until the end
of that launch; the rest is launch delay. If the work had been launched before (and waited for an event or another
stream), the host was ahead and is not the cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from whystall.tools.host.common.latency import quantile
from whystall.tools.host.host_bound.data import Device, Gap, Reason
from whystall.tools.host.host_bound.intervals import conform, overlay

WORK = ("kernel", "memcpy", "memset", "collective")
HOST_WORK = ("operator", "python", "launch", "sync", "annotation", "other")
OFF_HOST = ("ahead", "launch", "unlinked")
"""Reasons that are not the host's: work was enqueued; a launch is in progress; the launch is not in the profile."""

_LENGTH = pl.col("end_ns") - pl.col("start_ns")
# Within a call that waits for the device, the reason is that call, whether the thread sleeps or spins.
_WAITING = ("running", "sleep", "poll", "driver", "call", "colleague", "lock", "io")


@dataclass(frozen=True)
class Bubbles:
    """Gaps of all devices. `gaps`: one row each, with the launch that ended it; `parts`: gaps cut by `reason` (a code
    of `activity`, ``sync``, or one of `OFF_HOST`) and `by`. `spans`: per device, from its first to its last work.
    `queued`: per device, ns from the end of a launch to the start of its work.
    """

    gaps: pl.DataFrame
    parts: pl.DataFrame
    spans: Mapping[int, tuple[int, int]]
    queued: Mapping[int, list[int]]
    activities: pl.DataFrame


def bubbles(activities: pl.DataFrame, histories: Mapping[int, pl.DataFrame], residual_ns: int) -> Bubbles:
    """Return the gaps of `activities` (`profile.ACTIVITIES`), explained by the `histories` of threads by tid.

    `residual_ns`: error of aligning profile and trace; if the host's part of a gap is no longer than twice that, its
    reason is ``unknown``.
    """
    work = activities.filter(pl.col("kind").is_in(WORK) & (pl.col("device") >= 0)).sort("device", "start_ns")
    launches = (
        activities.filter((pl.col("kind") == "launch") & (pl.col("correlation") >= 0))
        .sort("start_ns")
        .unique("correlation", keep="first")
        .select("correlation", launch_tid="tid", launched_ns="end_ns")
    )
    work = work.join(launches, on="correlation", how="left", maintain_order="left")
    reached = pl.col("end_ns").cum_max().over("device").shift(1).over("device")
    gaps = (
        work.with_columns(idle_from=reached)
        .filter(pl.col("start_ns") > pl.col("idle_from"))
        .select(
            "device",
            start_ns="idle_from",
            end_ns="start_ns",
            step="step",
            next_work="name",
            tid=pl.col("launch_tid").fill_null(-1),
            launched_ns="launched_ns",
        )
        .with_row_index("gap")
    )
    spans = work.group_by("device").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("device")
    linked = work.filter(pl.col("launched_ns").is_not_null())
    waits = linked.with_columns(ns=(pl.col("start_ns") - pl.col("launched_ns")).clip(0)).group_by("device").agg("ns")
    return Bubbles(
        gaps=gaps,
        parts=_parts(gaps, histories, _sync(activities), residual_ns),
        spans={d: (a, b) for d, a, b in spans.iter_rows()},
        queued=dict(waits.iter_rows()),
        activities=activities,
    )


_PART = pl.Schema(
    {
        "gap": pl.get_index_type(),
        "device": pl.Int32,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "tid": pl.Int32,
        "reason": pl.String,
        "by": pl.String,
        "by_tid": pl.Int32,
    }
)


def _parts(
    gaps: pl.DataFrame, histories: Mapping[int, pl.DataFrame], sync: pl.DataFrame, residual_ns: int
) -> pl.DataFrame:
    linked = pl.col("launched_ns").is_not_null()
    ahead = linked & (pl.col("launched_ns") <= pl.col("start_ns"))
    whole = gaps.filter(~linked | ahead).with_columns(
        reason=pl.when(ahead).then(pl.lit("ahead")).otherwise(pl.lit("unlinked"))
    )
    late = gaps.filter(linked & ~ahead).with_columns(launched_ns=pl.min_horizontal("launched_ns", "end_ns"))
    launch = late.with_columns(start_ns="launched_ns", reason=pl.lit("launch"))
    host = late.with_columns(end_ns="launched_ns")
    sure = 2 * residual_ns < _LENGTH
    pieces = [whole, launch, host.filter(~sure).with_columns(reason=pl.lit("unknown"))]
    for (tid,), own in host.filter(sure).group_by("tid", maintain_order=True):
        pieces.append(_explained(own, histories.get(int(str(tid))), sync.filter(pl.col("tid") == tid)))
    parts = [conform(piece, _PART, {"by": "", "by_tid": -1}) for piece in pieces]
    return pl.concat(parts).filter(_LENGTH > 0).sort("device", "start_ns")


def _explained(own: pl.DataFrame, history: pl.DataFrame | None, sync: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps that one thread ended, cut by what it did in them."""
    if history is None:
        return own.with_columns(reason=pl.lit("unknown"))
    devices = own.select("device").unique()
    marks = history.select("start_ns", "end_ns", "what", "by", "by_tid").join(devices, how="cross")
    pieces = overlay(own, marks, "device")
    inside = sync.select("start_ns", "end_ns", in_sync=pl.lit(True)).join(devices, how="cross")
    pieces = overlay(pieces, inside, "device")
    waits = pl.col("in_sync").is_not_null() & pl.col("what").is_in(_WAITING)
    return pieces.with_columns(
        reason=pl.when(waits).then(pl.lit("sync")).otherwise(pl.col("what").fill_null("unknown")),
        by=pl.when(waits).then(None).otherwise("by"),
    )


def _sync(activities: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that wait for the device, per thread, overlapping ones merged."""
    calls = activities.filter((pl.col("kind") == "sync") & (pl.col("end_ns") > pl.col("start_ns"))).sort(
        "tid", "start_ns"
    )
    reached = pl.col("end_ns").cum_max().over("tid").shift(1).over("tid")
    new = (pl.col("start_ns") > reached).fill_null(True)
    return (
        calls.with_columns(run=new.cum_sum().over("tid"))
        .group_by("tid", "run")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .drop("run")
    )


# --- as rows --------------------------------------------------------------------------------------------------


def device_rows(found: Bubbles) -> list[Device]:
    """Return one row per device."""
    rows = []
    for device, (start, end) in found.spans.items():
        gaps = found.gaps.filter(pl.col("device") == device).select(ns=_LENGTH)["ns"].to_list()
        parts = found.parts.filter(pl.col("device") == device).group_by("reason").agg(_LENGTH.sum().alias("ns"))
        by_reason: dict[str, int] = dict(parts.iter_rows())
        idle = sum(gaps)
        off = {reason: by_reason.get(reason, 0) for reason in OFF_HOST}
        share = 100.0 / idle if idle else 0.0
        queued = found.queued.get(device)
        rows.append(
            Device(
                device=device,
                span_s=(end - start) / 1e9,
                idle_pct=100.0 * idle / max(end - start, 1),
                gaps=len(gaps),
                host_pct=share * (idle - sum(off.values())),
                launch_pct=share * off["launch"],
                ahead_pct=share * off["ahead"],
                unknown_pct=share * off["unlinked"],
                gap_p50_us=quantile(gaps, 0.5) / 1e3,
                gap_max_us=max(gaps, default=0) / 1e3,
                queue_p50_us=quantile(queued, 0.5) / 1e3 if queued else None,
            )
        )
    return rows


def reason_rows(found: Bubbles, window_ns: int) -> list[Reason]:
    """Return the idle time by device, launching thread, reason and cause, longest first."""
    idle: dict[int, int] = dict(found.gaps.group_by("device").agg(_LENGTH.sum()).iter_rows())
    groups = found.parts.group_by("device", "tid", "reason", "by", "by_tid").agg(
        _LENGTH.sum().alias("ns"), pl.col("gap").n_unique().alias("gaps")
    )
    return [
        Reason(
            device=r["device"],
            tid=r["tid"],
            reason=r["reason"],
            who=r["by"],
            who_tid=r["by_tid"],
            idle_pct=100.0 * r["ns"] / max(idle[r["device"]], 1),
            window_pct=100.0 * r["ns"] / max(window_ns, 1),
            total_ms=r["ns"] / 1e6,
            gaps=r["gaps"],
        )
        for r in groups.sort("ns", "reason", "by", descending=[True, False, False]).iter_rows(named=True)
    ]


def gap_rows(found: Bubbles, least_ns: int, most: int) -> tuple[list[Gap], int]:
    """Return the `most` longest gaps the host caused of at least `least_ns`, and the number of all such gaps."""
    parts = found.parts.with_columns(ns=_LENGTH)
    host = parts.filter(~pl.col("reason").is_in(OFF_HOST)).group_by("gap").agg(pl.col("ns").sum().alias("host_ns"))
    reasons = parts.group_by("gap", "reason", "by").agg(pl.col("ns").sum()).sort("ns", descending=True)
    main = reasons.group_by("gap", maintain_order=True).first()
    long = found.gaps.join(host, on="gap").join(main, on="gap").filter(pl.col("host_ns") >= least_ns)
    worst = long.sort("host_ns", "gap", descending=[True, False])
    rows = [
        Gap(
            device=r["device"],
            start_ms=r["start_ns"] / 1e6,
            idle_us=(r["end_ns"] - r["start_ns"]) / 1e3,
            step=r["step"],
            tid=r["tid"],
            next_work=r["next_work"],
            reason=r["reason"],
            who=r["by"],
            reason_pct=100.0 * r["ns"] / (r["end_ns"] - r["start_ns"]),
            host_work=_host_work(found.activities, r["tid"], r["start_ns"], r["end_ns"]),
        )
        for r in worst.head(most).iter_rows(named=True)
    ]
    return rows, long.height


def _host_work(activities: pl.DataFrame, tid: int, start_ns: int, end_ns: int) -> str:
    """Return the innermost activity of the host's profile that takes most of the span; empty if none takes half of it.

    A user's range counts only if there is nothing else.
    """
    inside = activities.filter(
        (pl.col("tid") == tid)
        & pl.col("kind").is_in(HOST_WORK)
        & (pl.col("start_ns") < end_ns)
        & (pl.col("end_ns") > start_ns)
    )
    shared = pl.min_horizontal("end_ns", pl.lit(end_ns)) - pl.max_horizontal("start_ns", pl.lit(start_ns))
    most = inside.filter(2 * shared >= end_ns - start_ns).with_columns(ns=_LENGTH, named=pl.col("kind") == "annotation")
    top = most.sort("named", "ns").head(1)
    return str(top["name"][0]) if top.height else ""
