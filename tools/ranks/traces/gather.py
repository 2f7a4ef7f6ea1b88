"""Gather the traces of a job's ranks into a recording: small, sufficient to judge the job, comparable with other runs.

Ranks are read in parallel, in processes of this machine or on a cluster; a rank that cannot be read is reported and
does not stop the others.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import PurePath

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean
from whystall.tools.ranks.traces.one_job import of_one_job
from whystall.tools.ranks.traces.parallel import in_parallel
from whystall.tools.ranks.traces.read import Trace, Unread, read, traces_at, unread
from whystall.tools.ranks.traces.remote import OF_PROCESS, RemoteTrace, is_url, local_path, read_remote, remote_traces
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.timeline.rank_data.rank_list import rank_list
from whystall.tools.timeline.rank_data.summary import Summary
from whystall.tools.timeline.rank_data.tables import TABLES
from whystall.tools.timeline.recorded import UNKNOWN_START

NOW, BEFORE = "ranks", "ranks_before"
"""The collectors of a run and of an earlier one it is compared with."""

_NAMED = 8
_CLOCKS = {"real": "CLOCK_REALTIME", "mono": "CLOCK_MONOTONIC", "mono_raw": "CLOCK_MONOTONIC_RAW"}
_INSTANTS = ("start_ns", "end_ns", "launch_ns")
_IDENTITY = ("rank", "source", "pid", "start_ns", "end_ns")
"""What is the same in copies of a trace, wherever they are."""
_OF_ALL = frozenset({"ranks_missing", "ranks_guessed"})
"""Blind spots of a host that are not those of the whole job."""


def gather(place: str | os.PathLike[str], *, scheduler: str | None = None, jobs: int | None = None) -> Recording:
    """Return the ranks at or below `place`, a path or an fsspec URL, as a recording in memory with the collector
    ``ranks``.

    `scheduler`: of a dask cluster (``tcp://host:8786``) whose workers read them; else at most `jobs` processes of this
    machine (None: one per CPU). Instants count from the earliest of all ranks, each on its own clock.

    Raises `ToolError`: bad_trace when there is no trace, or fewer than two ranks are left beside traces that cannot be
    read; bad_argument when the traces are not those of one run (`one_job`); io_error.
    """
    found = _read(os.fspath(place), scheduler, jobs)
    failed = [one for one in found if isinstance(one, Unread)]
    kept, left_out = _of_one_kind([one for one in found if isinstance(one, Summary)])
    ranks, spots = of_one_job(kept)
    if failed and len(ranks) < 2:
        names = "; ".join(f"{one.shown}: {one.why}" for one in failed[:_NAMED])
        remedies = dict.fromkeys(one.remedy for one in failed[:_NAMED])
        raise ToolError(
            ErrorCode.BAD_TRACE,
            f"{len(failed)} of {len(found)} traces below {os.fspath(place)} cannot be read: {names}",
            "; ".join(remedies),
        )
    return _recording(_name(os.fspath(place)), ranks, failed, spots + left_out)


def with_before(
    recording: Recording,
    place: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    jobs: int | None = None,
) -> Recording:
    """Return a copy of `recording` that also holds the ranks at `place`, of an earlier run, as the collector
    ``ranks_before``; their instants count from that run's own start. Raises what `gather` raises."""
    earlier = gather(place, scheduler=scheduler, jobs=jobs)
    manifest = recording.manifest.model_copy(deep=True)
    manifest.collectors[BEFORE] = earlier.manifest.collectors[NOW]
    manifest.window_ns = manifest.requested_ns = max(manifest.window_ns, earlier.manifest.window_ns)
    tables = {name.replace(NOW, BEFORE, 1): frame for name, frame in earlier.tables().items()}
    return Recording.in_memory(manifest, recording.tables() | tables)


@dataclass(frozen=True)
class HostRanks:
    """The ranks that one host read or observed. `spots`: what it could not see of them, as (code, detail)."""

    ranks: tuple[Summary, ...]
    spots: tuple[tuple[str, str], ...]


def host_ranks(host: str, recording: Recording) -> HostRanks:
    """Return the ranks of a recording of `host`, with absolute instants; a trace that names no host gets that one.

    Raises `ToolError` (bad_recording) if its start is absurd.
    """
    if recording.manifest.start_ns >= 1 << 62:
        raise ToolError(ErrorCode.BAD_RECORDING, f"the ranks of {host} have no possible time", "record again")
    # recordings of earlier versions lack tables
    found_tables = recording.tables()
    tables = {name: found_tables.get(f"{NOW}.{name}", schema.to_frame()) for name, schema in TABLES.items()}
    start, clock = recording.manifest.start_ns, recording.manifest.clock
    heads = tables["ranks"].with_columns(
        path=pl.lit(f"{host}:") + pl.col("path"),
        host=pl.when(pl.col("host") == "").then(pl.lit(host)).otherwise("host"),
    )
    found = []
    for head in heads.iter_rows(named=True):
        rank = head["rank"]
        shift = -start if _CLOCKS.get(head["clock"], head["clock"]) == clock else 0
        of_rank = {name: frame.filter(pl.col("rank") == rank) for name, frame in {**tables, "ranks": heads}.items()}
        of_rank = {name: _relative(frame, shift) for name, frame in of_rank.items()}
        found.append(Summary(of_rank, rank, sum(frame.height for frame in of_rank.values())))
    spots = tuple((spot.code, spot.detail) for spot in recording.manifest.collectors[NOW].not_seen)
    return HostRanks(tuple(found), spots)


def disputed(hosts: Mapping[str, HostRanks]) -> dict[int, list[str]]:
    """Return the ranks of which several `hosts` have different traces, with the names of these hosts."""
    heads = [(host, one.head) for host, of in hosts.items() for one in of.ranks]
    if all(head["world_size"] == 1 for _, head in heads):  # replicas, which `one_job` numbers
        return {}
    claims: dict[int, set[str]] = defaultdict(set)
    traces: dict[int, set[tuple[object, ...]]] = defaultdict(set)
    for host, head in heads:
        rank = int(str(head["rank"]))
        claims[rank].add(host)
        traces[rank].add(tuple(head[name] for name in _IDENTITY))
    return {rank: sorted(claims[rank]) for rank in sorted(traces) if len(traces[rank]) > 1}


def regather(hosts: Mapping[str, HostRanks], without: Collection[int] = ()) -> Recording:
    """Return the ranks of many hosts, by name of the host, `without` some, as `gather` returns those of one directory.
    The same trace from several hosts, which share a directory, counts once.

    Raises `ToolError` (bad_argument): no rank is left, or they are not of one run (`one_job`).
    """
    found: dict[tuple[object, ...], Summary] = {}
    spots: list[tuple[str, str]] = []
    for host, of in hosts.items():
        for one in of.ranks:
            if one.rank not in without:
                found[tuple(one.head[name] for name in _IDENTITY)] = one
        noted = [(code, detail) for code, detail in of.spots if code not in _OF_ALL]
        spots += [(code, f"{host}: {detail}" if detail else host) for code, detail in noted]
    if not found:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "no rank is left", "ask hosts that have traces of different ranks")
    kept, left_out = _of_one_kind(list(found.values()))
    ranks, assumed = of_one_job(kept)
    return _recording("fleet", ranks, [], [*spots, *left_out, *assumed])


def _name(place: str) -> str:
    return clean(PurePath(place if is_url(place) else os.path.abspath(local_path(place))).name)


def _read(place: str, scheduler: str | None, jobs: int | None) -> list[Summary | Unread]:
    answers: list[list[Summary | Unread]]
    if is_url(place):
        here = place.startswith(OF_PROCESS)
        answers = in_parallel(read_remote, remote_traces(place), _failed, scheduler=scheduler, jobs=jobs, here=here)
    else:
        answers = in_parallel(read, traces_at(local_path(place)), _failed, scheduler=scheduler, jobs=jobs)
    found = [one for answer in answers for one in answer]
    if not found:
        raise ToolError(
            ErrorCode.BAD_TRACE, f"no profile in {place}", "give the directory with the traces of the ranks"
        )
    return sorted(found, key=lambda one: one.path if isinstance(one, Summary) else one.shown)


def _failed(trace: Trace | RemoteTrace, why: str) -> list[Summary | Unread]:
    return [unread(trace, why) if isinstance(trace, Trace) else Unread(trace.shown, -1, why)]


def _of_one_kind(found: list[Summary]) -> tuple[list[Summary], list[tuple[str, str]]]:
    """Leave out dumps of collectives beside traces of work of the same ranks, and report it."""
    working = [one for one in found if one.has_work]
    sources = {one.head["source"] for one in working}
    others = [one for one in found if not one.has_work and one.head["source"] not in sources]
    if not working or not others:
        return found, []
    formats = ", ".join(sorted({str(one.head["source"]) for one in others}))
    kept = [one for one in found if one.has_work or one.head["source"] in sources]
    return kept, [("ranks_unread", f"{len(others)} of {formats}, beside others: give their directory alone")]


def _recording(
    name: str, ranks: Sequence[Summary], failed: Sequence[Unread], spots: Sequence[tuple[str, str]]
) -> Recording:
    clocks = Counter(str(one.head["clock"]) for one in ranks)
    main = clocks.most_common(1)[0][0]
    # different kinds of clock are not comparable: each counts from its own earliest instant; 0 is unknown
    timed = [one for one in ranks if one.timed]
    earliest: dict[str, int] = {}
    for one in timed:
        clock = str(one.head["clock"])
        earliest[clock] = min(earliest.get(clock, one.span[0]), one.span[0])
    starts = {clock: earliest.get(clock, 1) - 1 for clock in clocks}
    frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for one in ranks:
        start = starts[str(one.head["clock"])]
        for table in TABLES:
            frames[table].append(_relative(one.tables[table], start))
    tables = {table: pl.concat(parts) for table, parts in frames.items()}
    window = max((one.span[1] - starts[str(one.head["clock"])] for one in timed), default=0)
    seen = sum(one.seen for one in ranks)
    stepped = bool((tables["steps"]["step"] >= 0).any())
    entry = CollectorManifest(
        engine="+".join(sorted({str(one.head["source"]) for one in ranks})),
        seen=seen,
        kept=seen,
        proven=stepped or tables["collectives"].height > 0,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in _blind(ranks, failed, spots, clocks)],
    )
    hosts = {str(one.head["host"]) for one in ranks}
    manifest = Manifest(
        id=name,
        host=hosts.pop() if len(hosts) == 1 else "",
        kernel="",
        machine="",
        cpus=1,
        target=Target(everything=True),
        started=_wall(starts[main]) if main == "real" else UNKNOWN_START,
        clock=_CLOCKS.get(main, main),
        start_ns=max(starts[main], 0),
        window_ns=window,
        requested_ns=window,
        collectors={NOW: entry},
    )
    return Recording.in_memory(manifest, {f"{NOW}.{table}": frame for table, frame in tables.items()})


def _relative(frame: pl.DataFrame, start_ns: int) -> pl.DataFrame:
    """Convert to instants since `start_ns`; unknown ones stay 0."""
    columns = [name for name in _INSTANTS if name in frame.columns]
    return frame.with_columns(pl.when(pl.col(c) > 0).then(pl.col(c) - start_ns).otherwise(0).alias(c) for c in columns)


def _blind(
    ranks: Sequence[Summary], failed: Sequence[Unread], spots: Sequence[tuple[str, str]], clocks: Counter[str]
) -> list[tuple[str, str]]:
    found = list(spots)
    if failed:
        found.append(("ranks_unread", "; ".join(map(str, failed))))
    here = {one.rank for one in ranks} | {one.rank for one in failed}
    world = max(int(str(one.head["world_size"])) for one in ranks)
    absent = set(range(world)) - here
    if absent:
        found.append(("ranks_missing", rank_list(absent)))
    if len(clocks) > 1:
        found.append(("clock_spread", ", ".join(f"{count} {clock or 'unknown'}" for clock, count in clocks.items())))
    by_note: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in ranks:
        for code, detail in one.notes:
            by_note[code][detail].append(one.rank)
    for code, details in by_note.items():
        if len(details) == 1 and len(next(iter(details.values()))) == len(ranks):
            found.append((code, next(iter(details))))
        else:
            parts = (
                f"rank {rank_list(affected)}" + (f": {detail}" if detail else "")
                for detail, affected in details.items()
            )
            found.append((code, "; ".join(parts)))
    return found


def _wall(real_ns: int) -> str:
    try:
        wall = datetime.fromtimestamp(real_ns / 1e9, timezone.utc)
    except (ValueError, OverflowError, OSError):  # a damaged clock
        return UNKNOWN_START
    return wall.isoformat(timespec="milliseconds").replace("+00:00", "Z")
