"""Summarise one rank's profile as the tables of `whystall.tools.timeline.rank_data.tables`, on its own clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean, clean_path
from whystall.tools.timeline.collectives import SYNCHRONISING
from whystall.tools.timeline.intervals import Cover
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.rank_data import work as rank_work
from whystall.tools.timeline.rank_data.latencies import joined_latencies, latencies
from whystall.tools.timeline.rank_data.tables import ENVIRONMENT, OPERATORS, RANK_COLLECTIVES, RANKS, STEPS, TABLES

_CALLS = ("launch", "sync")


@dataclass(frozen=True)
class Summary:
    """One rank: the tables of `rank_data.tables.TABLES`, instants absolute on the clock of its file.

    `rank` -1: unknown. `seen`: number of activities and collectives read. `notes` as in `Profile`.
    """

    tables: Mapping[str, pl.DataFrame]
    rank: int
    seen: int
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def head(self) -> dict[str, object]:
        """The rank's row of the table ``ranks``."""
        return self.tables["ranks"].row(0, named=True)

    @property
    def path(self) -> str:
        """Its file or directory."""
        return str(self.head["path"])

    @property
    def has_work(self) -> bool:
        """Whether it has work between collectives."""
        return bool((self.tables["steps"]["compute_ns"] >= 0).any())

    @property
    def span(self) -> tuple[int, int]:
        """First and last instant, ns."""
        first, last = self.tables["ranks"].select("start_ns", "end_ns").row(0)
        return int(first), int(last)

    @property
    def timed(self) -> bool:
        """Whether any instant of it is known: an empty dump has none."""
        return self.span[1] > 0

    def numbered(self, rank: int, path: str | None = None) -> Summary:
        """Return it as `rank`, found at `path` (None: unchanged)."""
        tables = {name: frame.with_columns(pl.lit(rank, pl.Int32).alias("rank")) for name, frame in self.tables.items()}
        if path is not None:
            tables["ranks"] = tables["ranks"].with_columns(path=pl.lit(clean_path(path)))
        return Summary(tables, rank, self.seen, self.notes)


def summarise(profile: Profile, path: str) -> Summary:
    """Return the summary of `profile`, which was read from `path`.

    Times of a step are unions: work that ran side by side counts once. Where a source has no work at all (a Flight
    Recorder), compute_ns, gap_ns, before_compute_ns and before_gap_ns are -1: unknown.
    """
    device = rank_work.on_device(profile)
    activities = profile.activities
    if device.is_empty():
        work, worked = rank_work.of_host(activities)
    else:
        work, worked = device.with_columns(busy_ns=pl.col("end_ns") - pl.col("start_ns")), Cover.of(device)
    talks = activities.filter((pl.col("kind") == "collective") & (pl.col("device") >= 0))
    ended = profile.collectives.filter((pl.col("start_ns") > 0) & (pl.col("end_ns") > pl.col("start_ns")))
    talked = Cover.of(ended, talks)
    busy = worked | talked
    calls = activities.filter(pl.col("kind").is_in(_CALLS) & (pl.col("device") < 0))
    spans = rank_work.steps_of(profile)
    if spans.height and device.height:
        spans = rank_work.device_steps(spans, device, ended, calls)
    known = not work.is_empty()
    if profile.sums.height:
        spans = profile.sums.select("start_ns", "end_ns", "step")
    first, last = _extent(profile)
    if spans.is_empty():
        spans = pl.DataFrame({"step": [-1], "start_ns": [first], "end_ns": [last]}, schema_overrides={"step": pl.Int32})
        work = work.with_columns(step=pl.lit(-1, pl.Int32))
    loads = activities.filter(rank_work.loading() & (pl.col("device") < 0))
    steps = _steps(spans, worked, talked, Cover.of(loads) if loads.height else None, known)
    if profile.sums.height:
        steps = profile.sums
    steps = _with_counts(steps, work, device, pl.concat([device, talks]), calls)
    run = profile.run
    head = {
        "rank": profile.rank,
        "source": profile.source,
        "path": clean_path(path),
        "files": 1,
        "host": clean(run.host),
        "pid": run.pid,
        "world_size": run.world_size,
        "backend": clean(run.backend),
        "clock": profile.clock,
        "start_ns": min(first, _least(spans, "start_ns", first)),
        "end_ns": max(last, _most(spans, "end_ns", last)),
        "device": not device.is_empty(),
    }
    tables = {
        "ranks": pl.DataFrame([head], schema=RANKS),
        "steps": steps,
        "collectives": _collectives(profile.collectives, spans, worked, busy, first, known),
        "groups": profile.groups,
        "links": profile.links,
        "progress": profile.progress,
        "operators": _operators(work, loads, bool(profile.steps.height)),
        "latencies": latencies(profile),
        "environment": pl.DataFrame(
            [(clean(what), clean(value)) for what, value in run.environment],
            schema={name: ENVIRONMENT[name] for name in ("what", "value")},
            orient="row",
        ),
    }
    rank = pl.lit(profile.rank, pl.Int32).alias("rank")
    return Summary(
        {name: tables[name].with_columns(rank).select(schema.names()) for name, schema in TABLES.items()},
        profile.rank,
        activities.height + profile.collectives.height,
        profile.notes,
    )


def joined(summaries: Sequence[Summary]) -> Summary:
    """Join several files of one rank: a profiler that records in cycles writes one per cycle.

    They must be of one format and disjoint in time and steps. Raises `ToolError` (bad_argument) naming the two that are
    not: they are traces of different runs, or one trace twice.
    """
    ordered = sorted(summaries, key=lambda one: (one.span, one.path))
    first = ordered[0]
    for one, other in pairwise(ordered):
        if _in_conflict(one, other):
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"two traces of rank {first.rank}: {one.path} and {other.path}",
                "give a directory with the traces of one run, one per rank and cycle",
            )
    if len(ordered) == 1:
        return first
    tables = {name: pl.concat([one.tables[name] for one in ordered]) for name in TABLES}
    rank = pl.lit(first.rank, pl.Int32).alias("rank")
    tables["groups"] = tables["groups"].unique(maintain_order=True)
    tables["environment"] = tables["environment"].unique(maintain_order=True)
    tables["latencies"] = joined_latencies(tables["latencies"])
    tables["progress"] = ordered[-1].tables["progress"]
    names = rank_work.kept_names(rank_work.merged(tables["operators"].drop("rank")))
    tables["operators"] = names.with_columns(rank).select(OPERATORS.names())
    heads = tables["ranks"]
    ends = {"start_ns": heads["start_ns"].min(), "end_ns": heads["end_ns"].max(), "files": heads["files"].sum()}
    whole = {**first.head, **ends, "device": bool(heads["device"].any())}
    tables["ranks"] = pl.DataFrame([whole], schema=RANKS)
    notes = tuple(dict.fromkeys(note for one in ordered for note in one.notes))
    return Summary(tables, first.rank, sum(one.seen for one in ordered), notes)


def _in_conflict(one: Summary, later: Summary) -> bool:
    if one.head["source"] != later.head["source"] or later.span[0] < one.span[1]:
        return True
    numbers, others = (set(side.tables["steps"]["step"].to_list()) - {-1} for side in (one, later))
    return bool(numbers & others)


def _extent(profile: Profile) -> tuple[int, int]:
    """Return the first and last instant of anything; (0, 0) for nothing."""
    frames = [
        profile.activities.select("start_ns", "end_ns"),
        profile.steps.select("start_ns", "end_ns"),
        profile.sums.select("start_ns", "end_ns"),
        profile.collectives.select("start_ns", "end_ns"),
        profile.collectives.select(start_ns="launch_ns", end_ns="launch_ns"),
    ]
    edges = pl.concat(frames)
    starts, ends = edges.filter(pl.col("start_ns") > 0)["start_ns"], edges["end_ns"]
    first = int(starts.min() or 0)  # type: ignore[arg-type]
    return first, max(int(ends.max() or 0), int(starts.max() or 0), first)  # type: ignore[arg-type]


def _least(frame: pl.DataFrame, column: str, default: int) -> int:
    return int(frame[column].min()) if frame.height else default  # type: ignore[arg-type]


def _most(frame: pl.DataFrame, column: str, default: int) -> int:
    return int(frame[column].max()) if frame.height else default  # type: ignore[arg-type]


def _steps(spans: pl.DataFrame, worked: Cover, talked: Cover, loaded: Cover | None, known: bool) -> pl.DataFrame:
    """Return sums of each span; `known`: whether the source has work at all."""
    begin, end = spans["start_ns"], spans["end_ns"]
    busy = worked | talked
    compute, together = worked.within(begin, end), busy.within(begin, end)
    loader = pl.repeat(-1, spans.height, dtype=pl.Int64, eager=True)
    if loaded is not None:
        loader = (busy | loaded).within(begin, end) - together
    unknown = pl.repeat(-1, spans.height, dtype=pl.Int64, eager=True)
    return spans.with_columns(
        (compute if known else unknown).alias("compute_ns"),
        talked.within(begin, end).alias("comm_ns"),
        (together - compute).alias("exposed_comm_ns"),
        (end - begin - together if known else unknown).alias("gap_ns"),
        loader.alias("loader_ns"),
    )


def _with_counts(
    steps: pl.DataFrame, work: pl.DataFrame, device: pl.DataFrame, ran: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    counts = work.group_by("step").agg(work_count=pl.len().cast(pl.Int64))
    steps = steps.join(counts, on="step", how="left", maintain_order="left")
    if device.is_empty():
        steps = steps.with_columns(launch_delay_ns=pl.lit(-1, pl.Int64))
    else:
        if steps["step"][0] < 0:
            device = device.with_columns(step=pl.lit(-1, pl.Int32))
        delays = rank_work.launch_delays(device, ran, calls)
        steps = steps.join(delays, on="step", how="left", maintain_order="left")
    steps = steps.with_columns(pl.col("work_count").fill_null(0), pl.col("launch_delay_ns").fill_null(-1))
    return steps.select(name for name in STEPS if name != "rank")


def _collectives(
    collectives: pl.DataFrame, spans: pl.DataFrame, worked: Cover, busy: Cover, first: int, known: bool
) -> pl.DataFrame:
    """Add the time before each: since the end of the last synchronising one, else since the start of the step."""
    begins = spans.select("step", begin_ns="start_ns").unique("step", keep="first")
    found = collectives.sort("start_ns", maintain_order=True)
    found = found.join(begins, on="step", how="left", maintain_order="left")
    left = pl.when(pl.col("op").is_in(sorted(SYNCHRONISING)) & (pl.col("end_ns") > 0)).then("end_ns")
    last = left.cum_max().forward_fill().shift(1)
    since = pl.coalesce(last, "begin_ns", pl.lit(first))
    start = pl.col("start_ns")
    found = found.with_columns(
        since=pl.min_horizontal(pl.when(start > 0).then(since).otherwise(start), start),
        entered=pl.when(start > 0).then(pl.max_horizontal(start, last)).otherwise("end_ns"),
    )
    begin, end = found["since"], found["start_ns"]
    unknown = pl.repeat(-1, found.height, dtype=pl.Int64, eager=True)
    found = found.with_columns(
        (end - begin).alias("before_ns"),
        (worked.within(begin, end) if known else unknown).alias("before_compute_ns"),
        (end - begin - busy.within(begin, end) if known else unknown).alias("before_gap_ns"),
        (worked.within(found["entered"], found["end_ns"]) if known else unknown).alias("beside_compute_ns"),
    )
    return found.select(name for name in RANK_COLLECTIVES if name != "rank")


def _operators(work: pl.DataFrame, loads: pl.DataFrame, stepped: bool) -> pl.DataFrame:
    loads = loads.select("step", "name", kind=pl.lit("loader"), busy_ns=(pl.col("end_ns") - pl.col("start_ns")).clip(0))
    columns = ["step", "name", "kind", "busy_ns"]
    both = pl.concat([work.select(columns), loads.select(columns)])
    return rank_work.by_name(both.filter(pl.col("step") >= 0) if stepped else both, "busy_ns")
