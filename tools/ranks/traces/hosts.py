"""Windows of one job that several hosts observed at about the same time: what a host sends, and one window of all.

What comes from a host is foreign: a table that contradicts itself is refused, rows of impossible processes are left
out, and of a rank that several hosts claim nothing is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.ranks.traces.window import PIDS, Window, with_ranks
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.timeline.collectives import OPS
from whystall.tools.timeline.profile_reading.groups import RANK_LIMIT
from whystall.tools.timeline.recorded import UNKNOWN_START

_CALLS = ("collectives.calls", "collectives.processes")
_OBJECTS = ("objects.process_groups", "objects.threads", "objects.stacks")
_MOST_CALLS = 500_000
_STACKS = 1 << 32


@dataclass(frozen=True)
class Hosts:
    """A window of several hosts. Each has its own clock, in which the window ends at the same instant for all; really
    at most `apart_ns` apart. The processes of the host at place i of `names` are numbered from ``i * PIDS``."""

    recording: Recording
    names: tuple[str, ...] = ("",)
    apart_ns: int = 0

    def place(self, pid: int) -> tuple[str, int]:
        """Return the host of a process in `recording`, and its number there."""
        number, own = divmod(pid, PIDS)
        return self.names[number], own


# --- what a host sends ----------------------------------------------------------------------------------------------


def calls_of(recording: Recording) -> Recording:
    """Return the part of a window that `joined` needs: calls, groups, and the stacks of ranks without a call."""
    tables = {name: recording.table(name) for name in _CALLS}
    if recording.has("objects"):
        quiet = ~pl.col("pid").is_in(tables["collectives.calls"]["pid"].unique().to_list())
        threads = recording.table("objects.threads").filter(quiet)
        stacks = recording.table("objects.stacks").filter(pl.col("stack").is_in(threads["pystack"].unique().to_list()))
        groups = recording.table("objects.process_groups")
        tables |= dict(zip(_OBJECTS, (groups, threads, stacks), strict=True))
    return _part(recording, tables)


def ranks_of(recording: Recording) -> Recording:
    """Return the ranks of a window, on the clock of the calendar, as `gather.regather` joins those of many hosts.

    Raises `ToolError` as `with_ranks` does."""
    ranks = with_ranks(recording)
    tables = {name: frame for name, frame in ranks.tables().items() if name.startswith("ranks.")}
    tables["ranks.ranks"] = tables["ranks.ranks"].with_columns(clock=pl.lit("real"))
    found = _part(ranks, tables)
    start = datetime.fromisoformat(ranks.manifest.started.replace("Z", "+00:00"))
    found.manifest.clock, found.manifest.start_ns = "CLOCK_REALTIME", int(start.timestamp() * 1000) * 1_000_000
    found.manifest.window_ns += 1  # `with_ranks` counts instants from 1
    return found


def _part(recording: Recording, tables: Mapping[str, pl.DataFrame]) -> Recording:
    manifest = recording.manifest.model_copy(deep=True)
    named = {name.partition(".")[0] for name in tables}
    manifest.collectors = {name: one for name, one in manifest.collectors.items() if name in named}
    for one in manifest.collectors.values():
        one.rows = {}
    manifest.containers = []
    return Recording.in_memory(manifest, tables)


# --- one window of all ----------------------------------------------------------------------------------------------


def checked(recording: Recording, longest_ns: int) -> Recording:
    """Return what a host sent (`calls_of`), without rows of impossible processes, ranks or groups.

    Raises `ToolError` (bad_recording, missing_collector): a window longer than `longest_ns`, too many calls, a missing
    table.
    """
    if recording.manifest.window_ns > longest_ns:
        raise _bad("its window is longer than was asked for")
    tables = {name: recording.table(name) for name in (*_CALLS, *(_OBJECTS if recording.has("objects") else ()))}
    if tables["collectives.calls"].height > _MOST_CALLS:
        raise _bad(f"it has more than {_MOST_CALLS} calls")
    pid, rank = pl.col("pid").is_between(1, PIDS - 1), pl.col("rank").is_between(-1, RANK_LIMIT - 1)
    queued = pl.col("queued_ns").is_between(0, recording.manifest.window_ns)
    world, size = pl.col("world_size"), pl.col("size")
    of_world = world.is_between(-1, RANK_LIMIT) & ((world < 0) | (pl.col("rank") < world))
    peer = pl.col("peer").is_between(-1, RANK_LIMIT - 1)
    wanted = {
        "collectives.calls": pid & queued & peer & pl.col("op").is_in(sorted(OPS)),
        "collectives.processes": pid & rank & of_world & (pl.col("cost_ns") >= 0),
        "objects.process_groups": pid & rank & size.is_between(1, RANK_LIMIT) & (pl.col("rank") < size),
        "objects.threads": pid,
        "objects.stacks": pl.col("stack").is_between(0, _STACKS - 1),
    }
    tables = {name: frame.filter(wanted[name]) for name, frame in tables.items()}
    if tables["collectives.processes"]["pid"].is_duplicated().any():
        raise _bad("it has a process twice")
    return _part(recording, tables)


def claims(windows: Mapping[str, Window]) -> dict[int, list[str]]:
    """Return the ranks that several hosts claim, with these hosts."""
    hosts: dict[int, list[str]] = defaultdict(list)
    for host, window in windows.items():
        for one in window.members:
            hosts[one.rank].append(host)
    return {rank: sorted(of) for rank, of in sorted(hosts.items()) if len(of) > 1}


def joined(found: Mapping[str, tuple[Recording, Window]], without: Collection[int] = (), apart_ns: int = 0) -> Hosts:
    """Return the windows of hosts (`checked`, by name, with their ranks) as one, `without` some ranks."""
    recordings = {host: recording for host, (recording, _) in found.items()}
    window_ns = max(one.manifest.window_ns for one in recordings.values())
    parts: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for number, (recording, window) in enumerate(found.values()):
        left_out = [one.pid for one in window.members if one.rank in without]
        later_ns = window_ns - recording.manifest.window_ns
        for name, frame in recording.tables().items():
            parts[name].append(_moved(frame, number, later_ns, left_out))
    tables = {name: pl.concat(frames) for name, frames in parts.items()}
    entries = [one.manifest.collectors for one in recordings.values()]
    collectors = {
        name: _together([(host, one[name]) for host, one in zip(recordings, entries, strict=True) if name in one])
        for name in {name.partition(".")[0] for name in tables}
    }
    manifest = Manifest(
        id="fleet", host="", kernel="", machine="", cpus=1, target=Target(everything=True), started=UNKNOWN_START,
        start_ns=0, window_ns=window_ns, requested_ns=window_ns, collectors=collectors,
    )  # fmt: skip
    return Hosts(Recording.in_memory(manifest, tables), tuple(recordings), apart_ns)


def of_common_time(recording: Recording) -> Recording:
    """Return the ranks in `recording` (of `regather`) without numbered operations that only some of the ranks of their
    group observed, because windows began and ended at different times."""
    rows = recording.table("ranks.collectives")
    numbered = rows.filter((pl.col("seq") >= 0) & (pl.col("group") != ""))
    ends = numbered.group_by("group", "rank").agg(first=pl.col("seq").min(), last=pl.col("seq").max())
    ends = ends.group_by("group").agg(pl.col("first").max(), pl.col("last").min())
    kept = rows.join(ends, on="group", how="left", maintain_order="left").filter(
        (pl.col("seq") < 0) | pl.col("first").is_null() | pl.col("seq").is_between("first", "last")
    )
    tables = recording.tables() | {"ranks.collectives": kept.select(rows.columns)}
    return Recording.in_memory(recording.manifest.model_copy(deep=True), tables)


def _moved(frame: pl.DataFrame, number: int, later_ns: int, left_out: Sequence[int]) -> pl.DataFrame:
    if "pid" in frame.columns:
        frame = frame.filter(~pl.col("pid").is_in(list(left_out))).with_columns(pl.col("pid") + number * PIDS)
    instants = [name for name in ("start_ns", "end_ns", "at_ns") if name in frame.columns]
    stacks = [name for name in ("stack", "pystack") if name in frame.columns]
    return frame.with_columns(
        *(pl.col(name) + later_ns for name in instants),
        *(pl.when(pl.col(name) >= 0).then(pl.col(name) + number * _STACKS).otherwise(-1) for name in stacks),
        *(pl.when(pl.col(n) > 0).then(pl.col(n) + later_ns).otherwise(0) for n in ("queued_ns",) if n in frame.columns),
    )


def _together(entries: Sequence[tuple[str, CollectorManifest]]) -> CollectorManifest:
    spots = [
        BlindSpot(code=spot.code, detail=f"{host}: {spot.detail}" if spot.detail else host)
        for host, one in entries
        for spot in one.not_seen
    ]
    return CollectorManifest(
        engine="+".join(sorted({one.engine for _, one in entries})),
        seen=sum(one.seen for _, one in entries),
        kept=sum(one.kept for _, one in entries),
        lost=sum(one.lost for _, one in entries),
        proven=all(one.proven for _, one in entries),
        not_seen=spots,
    )


def _bad(why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_RECORDING, why, "observe again")
