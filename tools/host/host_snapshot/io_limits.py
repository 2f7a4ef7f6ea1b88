"""Judge limits of block I/O: whether what the cgroup moved reaches them, while the disk itself has time left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from whystall.tools.contract.findings import Finding, Subject
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.recording.store import Recording

# A limit counts as reached if 90 % of what it allows was moved within a time of at least three slices of blk-throttle
# (100 ms on disks that rotate, 20 ms on others): in one slice a large request alone exceeds it.
_REACHED_PCT = 90.0
_SPAN_NS = 300_000_000
# Below this share it certainly holds nobody back; in between it is unknown.
_FREE_PCT = 80.0
_FINDINGS = 8
# A column of proc.io_limits, its counter in proc.io_use, the operation, whether bytes, its names in versions 1 and 2.
_FIELDS = (
    ("read_rate", "read_bytes", "read", True, "blkio.throttle.read_bps_device", "io.max rbps"),
    ("write_rate", "write_bytes", "write", True, "blkio.throttle.write_bps_device", "io.max wbps"),
    ("read_iops", "reads", "read", False, "blkio.throttle.read_iops_device", "io.max riops"),
    ("write_iops", "writes", "write", False, "blkio.throttle.write_iops_device", "io.max wiops"),
)


@dataclass(frozen=True)
class _Limit:
    """A limit per second, and its use. `window_pct`: the time that the limit takes for what was moved; `used_pct`: of
    what it allows, at most within `_SPAN_NS`; both None if unknown."""

    cgroup: str
    dev: str
    operation: str
    file: str
    is_bytes: bool
    limit: float
    rate: float | None = None
    window_pct: float | None = None
    used_pct: float | None = None


def findings(recording: Recording, saturated: Collection[str]) -> list[Finding]:
    """Return the limits that are reached on disks other than the `saturated` ones, and the processes of the target that
    no limit holds back.

    A finding names a process unless it is about all of them.
    """
    table = recording.find("proc.io_limits")
    if table is None or table.is_empty():
        return []
    disks = recording.table("proc.disks")
    names = dict(disks.select("dev", "device").iter_rows())
    latest = table.filter(pl.col("at_ns") == pl.col("at_ns").max().over("pid"))
    binding: dict[_Limit, list[int]] = {}
    whole: dict[int, str] = {}
    limits: dict[tuple[object, ...], _Limit] = {}
    for row in latest.iter_rows(named=True):
        if not row["dev"]:
            whole[row["pid"]] = row["cgroup"]
            continue
        for fields in _FIELDS:
            key = (row["cgroup"], row["dev"], fields[0])
            if row[fields[0]] > 0:
                if key not in limits:
                    limits[key] = _measured(recording, row, fields)
                binding.setdefault(limits[key], []).append(row["pid"])
    pids = sorted(set(latest["pid"].to_list()))
    reached = [
        limit
        for limit in binding
        if (limit.used_pct or 0.0) >= _REACHED_PCT and names.get(limit.dev, "") not in ("", *saturated)
    ]
    found: list[tuple[float, Finding]] = []
    for limit in reached:
        alone: list[int | None] = [None] if sorted(binding[limit]) == pids else [*binding[limit]]
        for pid in alone:
            found.append((limit.window_pct or 0.0, _reached(recording, limit, names[limit.dev], pid)))
    found.sort(key=lambda pair: -pair[0])
    return [one for _, one in found][:_FINDINGS] + _free(recording, pids, whole, binding)


def _measured(recording: Recording, row: dict[str, object], fields: tuple[str, str, str, bool, str, str]) -> _Limit:
    name, counter, operation, is_bytes, v1, v2 = fields
    limit = float(str(row[name]))
    plain = _Limit(str(row["cgroup"]), str(row["dev"]), operation, v1 if row["version"] == 1 else v2, is_bytes, limit)
    # readings before and after the window have the instants of its ends
    inside = (pl.col("at_ns") > 0) & (pl.col("at_ns") < recording.manifest.window_ns)
    own = (pl.col("cgroup") == row["cgroup"]) & (pl.col("dev") == row["dev"])
    use = recording.find("proc.io_use")
    readings = use.filter(inside & own).sort("at_ns").select("at_ns", counter).rows() if use is not None else []
    if len(readings) < 2 or any(b[1] < a[1] for a, b in pairwise(readings)):
        return plain  # unknown, or reset meanwhile
    (start, before), (end, after) = readings[0], readings[-1]
    peak = _peak(readings)
    if end - start < _SPAN_NS or peak is None:
        return plain
    rate = (after - before) / ((end - start) / 1e9)
    return _Limit(
        *(plain.cgroup, plain.dev, plain.operation, plain.file, plain.is_bytes, limit, rate),
        window_pct=min(100.0, 100 * rate / limit),
        used_pct=100 * peak / limit,
    )


def _peak(readings: Sequence[tuple[int, int]]) -> float | None:
    """Return the highest rate per second between two readings at least `_SPAN_NS` apart; None if there are none."""
    best, first = None, 0
    for at_ns, moved in readings:
        while first + 1 < len(readings) and at_ns - readings[first + 1][0] >= _SPAN_NS:
            first += 1
        span = at_ns - readings[first][0]
        if span >= _SPAN_NS:
            rate = (moved - readings[first][1]) / (span / 1e9)
            best = rate if best is None else max(best, rate)
    return best


def _reached(recording: Recording, limit: _Limit, device: str, pid: int | None) -> Finding:
    share = limit.window_pct or 0.0
    amounts = {"rate": limit.rate, "limit_rate": limit.limit}
    if not limit.is_bytes:
        amounts = {"iops": limit.rate, "limit_iops": limit.limit}
    return finding(
        "cgroup.io_limit",
        Subject(type="cgroup", pid=pid, cgroup=limit.cgroup, device=device),
        window(recording.manifest.window_ns),
        {"window_pct": share, "used_pct": min(limit.used_pct or 0.0, 100.0), **amounts},
        severity(share),
        {"operation": limit.operation, "limit_of": limit.cgroup, "limit_file": limit.file},
    )


def _free(
    recording: Recording, pids: Sequence[int], whole: dict[int, str], binding: dict[_Limit, list[int]]
) -> list[Finding]:
    """Return normal findings about the processes all of whose limits are known and far from reached."""
    free: dict[int, list[float]] = {}
    for pid in whole:
        used = [limit.used_pct for limit, bound in binding.items() if pid in bound]
        known = [share for share in used if share is not None and share < _FREE_PCT]
        if len(known) == len(used):
            free[pid] = known
    alone: list[int | None] = [*free]
    if free and sorted(free) == list(pids) and len(set(whole.values())) == 1:
        alone = [None]
    found = []
    for who in alone[:_FINDINGS]:
        used_pct = [share for one, shares in free.items() if who in (one, None) for share in shares]
        found.append(
            finding(
                "cgroup.io_limit",
                Subject(type="cgroup", pid=who, cgroup=whole[who] if who is not None else next(iter(whole.values()))),
                window(recording.manifest.window_ns),
                {"used_pct": max(used_pct, default=0.0)},
            )
        )
    return found
