"""Put a profile onto the clock of a scheduling trace through clocks that both recorded, or refuse.

Pairs of readings lead from the profile's clock to the trace's: the profiler's own (`ClockBridge`), and the trace's
readings of all host clocks at its start and end (`ClockPoint`). Two pairs give offset and drift, more give a residual.
Integer arithmetic throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.alignment import check as align_check
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.sched import SchedTrace

HOST_CLOCKS = ("mono_raw", "mono", "boot", "real")
DRIFT_LIMIT_PPM = 500
"""Largest drift between two clocks of a host: the kernel's discipline never slews faster (adjtimex(2), ``MAXFREQ``)."""
RESIDUAL_LIMIT_NS = 10_000_000
"""An alignment with a larger residual is refused: it would attribute work to wrong slices."""
BRIDGE_ERROR_NS = 5_000
"""Assumed time between a profiler's two readings of a bridge; profilers do not record it."""

_PPT = 10**12
_MICRO = 10**6
_Reading = dict[str, int]
_SAME_RATE = frozenset({"mono", "boot", "real"})
# Sources that stamp with a counter at the rate of mono_raw (see `ascend_info`).
_COUNTED = frozenset({"ascend_text", "ascend_db", "msprof"})
_RECORD = "record the trace again with --clock mono_raw or mono"


@dataclass(frozen=True)
class Alignment:
    """A linear map from the profile's clock to the trace's, through (`profile_ns`, `trace_ns`).

    `drift_ppt`: how much faster the trace's clock runs, in 1e-12. `residual_ns`: bound of the error of the clocks:
    reading errors, and the disagreement of more than two pairs; the profiler's own stamping error comes on top (10 us
    measured for Kineto on a CPU). `method`: the clocks of the path, ``a > b``. `notes`: (blind spot code, detail).
    """

    profile_ns: int
    trace_ns: int
    drift_ppt: int
    method: str
    residual_ns: int
    notes: tuple[tuple[str, str], ...] = ()

    def at(self, profile_ns: int) -> int:
        """Return an instant of the profile on the trace's clock."""
        passed = profile_ns - self.profile_ns
        # in two steps: 1e13 ns (three hours) times the drift overflows 64 bits
        whole, part = divmod(passed, _MICRO)
        return self.trace_ns + passed + (whole * self.drift_ppt + part * self.drift_ppt // _MICRO) // _MICRO

    def expression(self, column: str) -> pl.Expr:
        """Return `at` of a column."""
        passed = pl.col(column) - self.profile_ns
        whole = passed // _MICRO
        part = passed - whole * _MICRO
        slewed = (whole * self.drift_ppt + part * self.drift_ppt // _MICRO) // _MICRO
        return (self.trace_ns + passed + slewed).alias(column)


def align(trace: SchedTrace, profile: Profile) -> Alignment:
    """Return the alignment of `profile` with `trace`, whose instants are absolute.

    Raises `ToolError`: clock_mismatch when they share no clock, when the clock was set meanwhile, or when the profile's
    threads did not run while they recorded; no_overlap when they share a clock but no time.
    """
    if trace.clock not in HOST_CLOCKS:
        raise ToolError(
            ErrorCode.CLOCK_MISMATCH,
            f"the trace's clock {trace.clock or 'unknown'!r} is none that profilers know",
            _RECORD,
        )
    points = _readings(trace)
    ways = [*_by_bridges(trace.clock, points, profile), *_by_own_clock(trace.clock, points, profile)]
    if not ways:
        raise ToolError(
            ErrorCode.CLOCK_MISMATCH,
            f"nothing ties the profile's clock ({profile.clock or 'unknown'}) to the trace's ({trace.clock})",
            "record the trace with whystall, which notes all clocks, or keep the profiler's PROF_* directory",
        )
    chosen = min(ways, key=lambda way: way.residual_ns)
    _check_overlap(trace, profile, chosen)
    if chosen.residual_ns > RESIDUAL_LIMIT_NS:
        raise ToolError(
            ErrorCode.CLOCK_MISMATCH,
            f"profile and trace fit together only within {chosen.residual_ns / 1e6:.1f} ms ({chosen.method}): a clock "
            "was set meanwhile, or read too far away",
            "record both again, the trace with whystall, which reads all clocks at both ends",
        )
    notes = align_check.notes(trace, apply(profile, chosen), chosen.residual_ns)
    return replace(chosen, notes=(*chosen.notes, *notes))


def apply(profile: Profile, alignment: Alignment) -> Profile:
    """Return the profile with all instants on the trace's clock; `Profile.clock` is empty then."""
    moved = [alignment.expression("start_ns"), alignment.expression("end_ns")]
    tables = {name: frame.with_columns(moved) for name, frame in profile.tables.items()}
    owners = profile.owners.with_columns(alignment.expression("at_ns"))
    notes = (*profile.notes, *alignment.notes)
    return replace(profile, tables=tables, owners=owners, clock="", bridges=(), notes=notes)


def _readings(trace: SchedTrace) -> list[_Reading]:
    """Return the trace's readings of the clocks, without damaged ones, oldest first."""
    rows = trace.table("clocks").sort("mono").to_dicts()
    return [row for row in rows if all(row[clock] > 0 for clock in HOST_CLOCKS) and row["error_ns"] >= 0]


def _by_own_clock(target: str, points: Sequence[_Reading], profile: Profile) -> list[Alignment]:
    """Align by the clock that the profile's instants are on."""
    clock = profile.clock
    if clock not in HOST_CLOCKS:
        return []
    begin, end = _span(profile)
    # An Ascend profile is on mono_raw plus a constant: it equals the wall clock only when collection begins.
    unlike = (end - begin) * DRIFT_LIMIT_PPM // _MICRO if profile.source in _COUNTED else 0
    if clock == target:
        return [Alignment(begin, begin, 0, target, unlike)]
    pairs = [(point[clock], point[target], point["error_ns"]) for point in points]
    ways = _line(pairs, profile, {clock, target} <= _SAME_RATE, f"{clock} > {target}")
    return [replace(way, residual_ns=way.residual_ns + unlike) for way in ways]


def _by_bridges(target: str, points: Sequence[_Reading], profile: Profile) -> list[Alignment]:
    """Align through each clock of the profiler's bridges; such a profiler counts at the rate of mono_raw."""
    ways = []
    for clock in HOST_CLOCKS:
        pairs = [(b.profile_ns, b.host_ns, BRIDGE_ERROR_NS) for b in profile.bridges if b.host_clock == clock]
        for way in _line(pairs, profile, clock == "mono_raw", f"profile > {clock}"):
            if clock == target:
                ways.append(way)
                continue
            readings = [(point[clock], point[target], point["error_ns"]) for point in points]
            rate = {clock, target} <= _SAME_RATE
            ways += [_chain(way, on) for on in _line(readings, apply(profile, way), rate, f"{way.method} > {target}")]
    return ways


def _line(pairs: Sequence[tuple[int, int, int]], profile: Profile, same_rate: bool, method: str) -> list[Alignment]:
    """Fit a line through (from, to, reading error): the offset; the drift by the first and the last pair unless the
    clocks run at the `same_rate`; as residual the pairs' disagreement, their errors, and the uncertainty at the
    profile's ends."""
    if not pairs:
        return []
    (x0, y0, error0), (x1, y1, error1) = pairs[0], pairs[-1]
    span, slip, error = x1 - x0, (y1 - y0) - (x1 - x0), max(pair[2] for pair in pairs)
    drift = slip * _PPT // span if span > 0 and not same_rate else 0
    if abs(slip) > max(span, 0) * DRIFT_LIMIT_PPM // _MICRO + error0 + error1:
        drift = 0  # faster than any discipline: a clock was set at an unknown time
    x, y, _ = min(pairs, key=lambda pair: pair[2])
    drawn = Alignment(x, y, drift, method, 0)
    off = max(abs(drawn.at(x) - y) for x, y, _ in pairs)
    begin, end = _span(profile)
    outside = max(x0 - begin, end - x1, 0)
    rate = 0 if same_rate else abs(drift) if drift else DRIFT_LIMIT_PPM * _MICRO
    return [replace(drawn, residual_ns=error + off + outside * rate // _PPT)]


def _chain(first: Alignment, second: Alignment) -> Alignment:
    """Return `second` after `first`; the product of their drifts is negligible."""
    return Alignment(
        profile_ns=first.profile_ns,
        trace_ns=second.at(first.trace_ns),
        drift_ppt=first.drift_ppt + second.drift_ppt,
        method=second.method,
        residual_ns=first.residual_ns + second.residual_ns,
    )


def _span(profile: Profile) -> tuple[int, int]:
    frames = [frame for frame in profile.tables.values() if frame.height]
    begin = [int(frame["start_ns"][0]) for frame in frames]
    ends = [frame.select(pl.max("end_ns")).item() for frame in frames]
    return min(begin, default=0), max(ends, default=0)


def _check_overlap(trace: SchedTrace, profile: Profile, alignment: Alignment) -> None:
    begin, end = map(alignment.at, _span(profile))
    if begin <= trace.end_ns and end >= trace.start_ns:
        return
    apart = begin - trace.end_ns if begin > trace.end_ns else trace.start_ns - end
    side = "after" if begin > trace.end_ns else "before"
    raise ToolError(
        ErrorCode.NO_OVERLAP,
        f"the profile ({_seconds(begin)} to {_seconds(end)} s of {trace.clock}) lies {_seconds(apart)} s {side} the "
        f"trace ({_seconds(trace.start_ns)} to {_seconds(trace.end_ns)} s)",
        "give a profile and a trace of the same time, host and boot",
    )


def _seconds(instant_ns: int) -> str:
    return f"{instant_ns / 1e9:.3f}"
