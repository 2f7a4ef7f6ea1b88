"""Check an alignment by content: a thread that records an operator must be running at that moment.

A profile's host instants were read by their threads, so each must fall into a slice in which the trace shows that
thread running. The share expected by chance is that thread's running time. The share beyond chance is Cohen's kappa
(Cohen 1960): 1 is full agreement, 0 is chance. A periodic job also agrees with itself one period later: content can
refute or support a clock, not replace it.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.lanes.build import thread_slices
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.sched import SchedTrace

CONFIRMED = 0.8
"""Kappa from which the alignment counts as confirmed ("almost perfect", Landis and Koch 1977)."""
REFUSED = 0.2
"""Kappa below which it is refused ("slight")."""
UNINFORMATIVE = 0.9
"""Expected share from which agreement carries no information: the threads ran nearly all the time."""
FEWEST = 50
"""Instants needed for a judgement."""

_MOST = 20_000
_TOLERANCE_NS = 50_000
_KINDS = ("operator", "launch", "sync", "annotation", "python")


@dataclass(frozen=True)
class Evidence:
    """Of `points` instants the share `agreeing` fell where their thread ran; `by_chance` is the expected share."""

    points: int
    agreeing: float
    by_chance: float

    @property
    def kappa(self) -> float:
        """The share of agreement beyond chance."""
        return (self.agreeing - self.by_chance) / max(1 - self.by_chance, 1e-9)


def evidence(trace: SchedTrace, profile: Profile, residual_ns: int = 0) -> Evidence:
    """Return how far `profile`, already on the trace's clock, agrees with the running threads within `residual_ns`."""
    points = _points(trace, profile)
    slices = thread_slices(trace).select("tid", "start_ns", "end_ns", "state")
    hidden = slices.filter(pl.col("state") == "unknown").select("tid", "start_ns", "end_ns")
    points = points.filter(~_inside(points, hidden, 0))
    if points.is_empty():
        return Evidence(0, 0.0, 0.0)
    running = slices.filter(pl.col("state") == "running").select("tid", "start_ns", "end_ns")
    tolerance = _TOLERANCE_NS + residual_ns
    agreeing = int(_inside(points, running, tolerance).sum()) / points.height
    return Evidence(points.height, agreeing, _chance(points, running, tolerance))


def notes(trace: SchedTrace, profile: Profile, residual_ns: int) -> tuple[tuple[str, str], ...]:
    """Return the blind spots of an alignment. Raises `ToolError` (clock_mismatch) when the content contradicts it."""
    found = evidence(trace, profile, residual_ns)
    share = f"{found.agreeing:.0%} of {found.points}, {found.by_chance:.0%} by chance"
    if found.points < FEWEST:
        return (("alignment_unproven", f"{found.points} instants of known threads"),)
    if found.by_chance >= UNINFORMATIVE and found.agreeing >= UNINFORMATIVE:
        return (("alignment_unproven", share),)
    if found.kappa < REFUSED and not _partial(trace):
        raise ToolError(
            ErrorCode.CLOCK_MISMATCH,
            f"the profile's threads did not run in the trace while they recorded ({share})",
            "give a profile and a trace of the same run, and check the trace's clock",
        )
    return () if found.kappa >= CONFIRMED else (("alignment_doubtful", share),)


def _partial(trace: SchedTrace) -> bool:
    """Return whether some CPUs were not traced: a thread may have run there."""
    used = pl.concat([trace.table("wakeups")["target_cpu"], trace.table("migrations")["to_cpu"]]).unique().to_list()
    return any(cpu >= 0 and cpu not in trace.cpus for cpu in used)


def _points(trace: SchedTrace, profile: Profile) -> pl.DataFrame:
    """Return instants at which known threads recorded something, evenly thinned out. Where process ids are known on
    both sides they must agree: a profile from a container has ids of its own."""
    names = trace.table("names").filter(pl.col("pid") >= 0).select("tid", "pid").unique()
    rows = profile.activities.filter(
        (pl.col("device") < 0) & pl.col("kind").is_in(_KINDS) & (pl.col("tid") > 0) & (pl.col("pid") > 0)
    ).select("tid", "pid", "start_ns", "end_ns")
    known = rows.join(names, on=["tid", "pid"], how="semi")
    unknown = rows.join(names, on="tid", how="anti")
    rows = pl.concat([known, unknown])
    points = pl.concat([rows.select("tid", at_ns=column) for column in ("start_ns", "end_ns")])
    traced = pl.concat([trace.table("switches")[column] for column in ("prev_tid", "next_tid")]).unique()
    points = points.filter(
        pl.col("at_ns").is_between(trace.start_ns, trace.end_ns) & pl.col("tid").is_in(traced.implode())
    ).sort("at_ns")
    return points.gather_every(max(points.height // _MOST, 1))


def _chance(points: pl.DataFrame, running: pl.DataFrame, tolerance_ns: int) -> float:
    """Return the share of points expected in or near slices if the profile lay anywhere else in their time."""
    begin, end = points["at_ns"][0], points["at_ns"][-1]
    if end <= begin:
        return 0.0
    near = running.sort("tid", "start_ns").select(
        "tid",
        start=(pl.col("start_ns") - tolerance_ns).clip(begin, end),
        end=(pl.col("end_ns") + tolerance_ns).clip(begin, end),
    )
    # running sum over the slices
    before = pl.col("end").cum_max().shift(1).over("tid").fill_null(begin)
    added = (pl.col("end") - pl.max_horizontal("start", before)).clip(0)
    shares = near.with_columns(added=added).group_by("tid").agg(share=pl.col("added").sum() / (end - begin))
    found = points.join(shares, on="tid", how="left").select(pl.col("share").fill_null(0.0).mean())
    return float(found.item() or 0.0)


def _inside(points: pl.DataFrame, slices: pl.DataFrame, tolerance_ns: int) -> pl.Series:
    """Return whether each point lies in a slice of its thread, or within the tolerance."""
    if points.is_empty() or slices.is_empty():
        return pl.Series([False] * points.height, dtype=pl.Boolean)
    at = points.with_row_index("row").with_columns(until=pl.col("at_ns") + tolerance_ns).sort("until")
    found = at.join_asof(
        slices.sort("start_ns"), left_on="until", right_on="start_ns", by="tid", check_sortedness=False
    ).sort("row")
    inside = pl.col("end_ns") >= pl.col("at_ns") - tolerance_ns
    return found.select(inside.fill_null(False)).to_series()
