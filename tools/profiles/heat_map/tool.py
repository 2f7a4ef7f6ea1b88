"""heat_map: activity within each second, and the periods in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from whystall.tools.collect.options import SampleOptions, SwitchOptions
from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.profiles.heat_map.activity import Activity
from whystall.tools.profiles.heat_map.cells import CELL_NS, Grid, extent_of, grid_of
from whystall.tools.profiles.heat_map.period import Period, What, periods
from whystall.tools.profiles.heat_map.series import Series, series_of
from whystall.tools.profiles.heat_map.waits import WaitRow, on_cpu, usable, waits_in
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.recorded import NOW, stacks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = -1
"""In place of a thread: all threads together."""
# Least share of all activity of a thread that is searched singly, and most such threads.
_LEAST_SHARE, _MOST_THREADS = 0.02, 12
_ABNORMAL_PCT = 5.0
_MAJOR_PCT, _CRITICAL_PCT = 10.0, 40.0
_LISTED_BANDS = 50
# A rhythm faster than the sampling appears slower (alias); shorter periods, in sampling intervals, may be aliases.
_ALIAS_INTERVALS = 200
_SWITCHES_NS = 1_000_000
_SAME = 0.12
# Periods of switches below this many cells are threads taking turns on a CPU, not stalls.
_LEAST_CELLS = 2


class Params(LiveParams):
    """Parameters of heat_map."""

    duration: Annotated[float, Field(ge=0.1, le=600, description="seconds to observe")] = 20.0
    hz: Annotated[int, Field(ge=1, le=999, description="samples per second and CPU")] = 99
    event: Annotated[str, Field(max_length=256, description="event of the file, where it has several")] = ""
    rank: Annotated[int | None, Field(ge=0, le=1_000_000, description="rank, of a directory of traces")] = None
    step: Annotated[int | None, Field(ge=0, description="only the profiler step of this number")] = None


class PeriodRow(Model):
    """Bands that recur. `what`: quiet or busy. `tid`, `comm`: the thread; -1 and empty for all together. `basis`:
    samples, spans, or switches (exact). `band_ms`: median length; `jitter_pct`: scatter of single periods. `starts_ms`:
    of the first bands. `waits`: what threads waited for in quiet bands, where switches were recorded.
    """

    what: What
    tid: int
    comm: str
    basis: Literal["samples", "spans", "switches"]
    period_s: float
    jitter_pct: float
    band_ms: float
    max_ms: float
    count: int
    total_ms: float
    window_pct: float
    p_value: float
    starts_ms: list[float]
    waits: list[WaitRow] = Field(default_factory=list)


class Data(Model):
    """`verdict`: stall (recurring quiet bands with a relevant share), rhythm (something recurs), none.

    `columns` of `column_s` seconds with cells of `cell_ms` show `span_s`; `lanes`: most threads busy at once;
    `busy_pct`: mean of all observed cells. Periods with the longest bands first.
    """

    verdict: Literal["stall", "rhythm", "none"] = "none"
    event: str = ""
    columns: int = 0
    column_s: float = 1.0
    span_s: float = 0.0
    cell_ms: float = 20.0
    lanes: int = 1
    busy_pct: float = 0.0
    periods: list[PeriodRow] = Field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """A period of a thread (row of threads, or `ALL`), and its source."""

    thread: int
    basis: Literal["samples", "spans", "switches"]
    period: Period


@dataclass(frozen=True)
class HeatMap:
    """The series, its cells and its periods, as the page draws them."""

    series: Series
    grid: Grid
    found: tuple[Found, ...]


def _needs(params: Params) -> list[Need]:
    return [
        Need(NOW, SampleOptions(1_000_000_000 // params.hz, python=True)),
        Need("switches", SwitchOptions(min_ns=_SWITCHES_NS), optional=True),
    ]


def heat_map_of(recording: Recording, event: str = "") -> HeatMap:
    """Return the heat map of the samples in `recording`. Raises `ToolError` as `series_of` does."""
    entry = recording.manifest.collectors.get(NOW)
    options = entry.options if entry is not None else {}
    series = series_of(stacks_of(recording), event, options.get("period_ns", 0))
    # a file has the times of samples, but no window
    window = (0, recording.manifest.window_ns) if recording.manifest.host else None
    extent = extent_of(series.presence, window)
    grid = grid_of(series.presence, extent, series.holes, series.interval if series.points else 0.0)
    found = tuple(_search(series, grid, recording)) if grid.last > grid.first else ()
    return HeatMap(series, grid, found)


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return cells and periods of the samples in `recording`."""
    import numpy as np

    seen = heat_map_of(recording, params.event)
    series, grid = seen.series, seen.grid
    rows = period_rows(seen, recording, params.top)
    findings = [_finding(row, series) for row in rows]
    stalls = any(finding.polarity is Polarity.ABNORMAL for finding in findings)
    known = grid.value[~np.isnan(grid.value)]
    not_seen = []
    if series.untimed:
        not_seen.append(("samples_untimed", str(series.untimed)))
    if grid.outliers:
        not_seen.append(("samples_outside", str(grid.outliers)))
    if any(_may_be_alias(one, series) for one in seen.found):
        not_seen.append(("may_alias", f"{1e9 / series.interval:.0f} Hz"))
    return Judgement(
        findings=findings,
        data=Data(
            verdict="stall" if stalls else "rhythm" if rows else "none",
            event=series.name,
            columns=len(grid.columns),
            column_s=grid.column_ns / 1e9,
            span_s=min(len(grid.columns) * grid.column_ns, grid.last - grid.first) / 1e9,
            cell_ms=grid.cell_ns / 1e6,
            lanes=grid.lanes,
            busy_pct=min(float(100 * known.mean()), 100.0) if len(known) else 0.0,
            periods=rows[: params.top],
        ),
        seen=series.samples.height,
        totals={"periods": len(rows)},
        not_seen=not_seen,
        basis=seen,
    )


def period_rows(seen: HeatMap, recording: Recording, top: int) -> list[PeriodRow]:
    """Return a row per period, each with at most `top` waits."""
    return [_row(one, seen.series, seen.grid, recording, top) for one in seen.found]


def _search(series: Series, grid: Grid, recording: Recording) -> Iterator[Found]:
    """Yield the periods of all threads together, then those that only single threads have."""
    threads = series.busiest(_MOST_THREADS, _LEAST_SHARE)
    searches = 1 + len(threads)
    exact = usable(recording)
    kept: list[Found] = []
    for thread in [ALL, *threads] if len(threads) != 1 else threads:
        activity, basis = _activity(series, grid, recording if exact else None, thread)
        for period in periods(activity, searches):
            if basis == "switches" and period.period_ns < _LEAST_CELLS * max(grid.cell_ns, CELL_NS):
                continue
            found = Found(thread, basis, period)
            if not any(_alike(found.period, other.period) for other in kept):
                kept.append(found)
    kept.sort(key=lambda one: (one.period.what != "quiet", -one.period.band_ns))
    yield from kept


def _activity(
    series: Series, grid: Grid, recording: Recording | None, thread: int
) -> tuple[Activity, Literal["samples", "spans", "switches"]]:
    """Return the activity of a thread by its switches if recorded (exact, without aliases), else by its samples."""
    if thread == ALL:
        return series.activity(grid.first, grid.last), "samples" if series.points else "spans"
    if recording is not None and series.points and thread >= 0:
        tid = int(series.profile.threads["tid"][thread])
        if (exact := on_cpu(recording, tid, grid.first, grid.last)) is not None:
            return exact, "switches"
    return series.activity(grid.first, grid.last, thread), "samples" if series.points else "spans"


def _alike(one: Period, other: Period) -> bool:
    longer = max(one.period_ns, other.period_ns)
    return one.what == other.what and abs(one.period_ns - other.period_ns) <= _SAME * longer


def _may_be_alias(found: Found, series: Series) -> bool:
    return found.basis == "samples" and found.period.period_ns < _ALIAS_INTERVALS * series.interval


def _row(found: Found, series: Series, grid: Grid, recording: Recording, top: int) -> PeriodRow:
    period, threads = found.period, series.profile.threads
    tid, comm = -1, ""
    if found.thread >= 0:
        tid, comm = threads.select("tid", "comm").row(found.thread)
    waits: list[WaitRow] = []
    if period.what == "quiet" and usable(recording):
        tids = (
            [tid]
            if tid >= 0
            else [int(threads["tid"][t]) for t in series.busiest(_MOST_THREADS, _LEAST_SHARE) if t >= 0]
        )
        waits = waits_in(recording, period.bands, grid.first, grid.last, tids, top)
    return PeriodRow(
        what=period.what,
        tid=tid,
        comm=comm,
        basis=found.basis,
        period_s=period.period_ns / 1e9,
        jitter_pct=100 * period.jitter,
        band_ms=period.band_ns / 1e6,
        max_ms=float(period.bands.lengths.max()) / 1e6,
        count=len(period.bands),
        total_ms=period.total_ns / 1e6,
        window_pct=min(100 * period.share, 100.0),
        p_value=period.p_value,
        starts_ms=[round(at / 1e6, 3) for at in period.bands.starts[:_LISTED_BANDS].tolist()],
        waits=waits,
    )


def _finding(row: PeriodRow, series: Series) -> Finding:
    bad = row.what == "quiet" and row.window_pct >= _ABNORMAL_PCT
    threads = series.profile.threads
    rows = threads.filter(threads["tid"] == row.tid) if row.tid >= 0 else threads.clear()
    pid = int(rows["pid"][0]) if rows.height and rows["pid"][0] >= 0 else None
    first = max(int(row.starts_ms[0] * 1e6), 0)
    return Finding(
        kind="profile.period",
        subject=Subject(type="profile", pid=pid, tid=row.tid if row.tid >= 0 else None, comm=row.comm or None),
        interval=Interval(start_ns=first, end_ns=first + int(row.period_s * 1e9 * (row.count - 1) + row.max_ms * 1e6)),
        metrics={
            "period_s": row.period_s,
            "max_ms": row.max_ms,
            "total_ms": row.total_ms,
            "count": float(row.count),
            "window_pct": row.window_pct,
            "p_value": row.p_value,
        },
        attributes={"what": row.what, "event": series.name},
        severity=_severity(row.window_pct) if bad else Severity.INFO,
        polarity=Polarity.ABNORMAL if bad else Polarity.NORMAL,
    )


def _severity(window_pct: float) -> Severity:
    if window_pct >= _CRITICAL_PCT:
        return Severity.CRITICAL
    return Severity.MAJOR if window_pct >= _MAJOR_PCT else Severity.MINOR


TOOL = Tool(
    name="heat_map",
    title="Activity within each second",
    description=(
        "Activity over time, a column per second (less in short windows) with 50 cells, from samples or a profile; "
        "periods of quiet bands (recurring stalls) and bursts, and what is waited for in them."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"profile.period"}),
    cost=4.0,
    reads="stacks",
)
