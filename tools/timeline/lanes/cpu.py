"""The thread on each CPU: statements of the events, broken chains between them, tenures."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from whystall.tools.timeline.sched import SchedTrace

SKEW_NS = 100_000
"""Tolerated difference between the clocks of two CPUs, or between the scheduler's accounting and the tracer's clock.
Far above that of synchronised clocks (under 1 us), below what the unsynchronised `local` clock may reach: those cases
come out inexact, not wrong."""

_CONTEXTS = (
    # tables whose events state which thread is on the CPU, and the column that holds it
    ("interrupts", "tid"),
    ("syscalls", "tid"),
    ("wakeups", "waker_tid"),
    ("block", "tid"),
    ("tasks", "tid"),
)


class Tenures(NamedTuple):
    """`slices`: columns of `lanes.CPU_SLICES` without rows for unknown threads, and `start_soft`, `end_soft` (the event
    at the bound is missing), `gone_ns` (from when on it had certainly left), `left_unrecorded` (and no tracer reports a
    loss), `preempted`, `next_tid` (its successor, -1 unknown). `broken`: start_ns, end_ns, cpu of broken chains.
    `holes`: start_ns, end_ns, cpu of the reported holes, merged per CPU."""

    slices: pl.DataFrame
    broken: pl.DataFrame
    holes: pl.DataFrame


def tenures(trace: SchedTrace) -> Tenures:
    """Return every tenure of a CPU by a known thread, sorted by CPU and start."""
    holes = reported_holes(trace)
    gaps = _gaps(_statements(trace, holes), holes)
    gaps = _earliest_arrival(trace, gaps)
    slices = _settle(_between(_boundaries(gaps)))
    broken = gaps.filter("is_broken").select(start_ns="at", end_ns="next_at", cpu="cpu")
    return Tenures(slices, broken, holes)


def fill_gaps(trace: SchedTrace, slices: pl.DataFrame) -> pl.DataFrame:
    """Return `slices` with a row for an unknown thread (-1) wherever a CPU is not covered over the span."""
    start, end = pl.lit(trace.start_ns, pl.Int64), pl.lit(trace.end_ns, pl.Int64)
    edges = [_cpus(trace).select(start_ns=at, end_ns=at, cpu="cpu") for at in (start, end)]
    columns = edges[0].columns
    covered = pl.concat([edges[0], slices.select(columns), edges[1]]).sort("cpu", maintain_order=True)
    same = pl.col("cpu").shift(-1) == pl.col("cpu")
    gaps = covered.select(start_ns="end_ns", end_ns=pl.when(same).then(pl.col("start_ns").shift(-1)), cpu="cpu")
    gaps = gaps.filter(pl.col("end_ns") > pl.col("start_ns")).with_columns(
        tid=pl.lit(-1, pl.Int32),
        prio=pl.lit(-1, pl.Int32),
        end_state=pl.lit("?"),
        open_start=pl.col("start_ns") == start,
        open_end=pl.col("end_ns") == end,
        inexact=pl.lit(True),
    )
    return pl.concat([slices.select(gaps.columns), gaps]).sort("cpu", "start_ns", "end_ns", maintain_order=True)


def reported_holes(trace: SchedTrace) -> pl.DataFrame:
    """Return start_ns, end_ns, cpu of the holes the tracer reports, within the span, merged and sorted per CPU."""
    holes = trace.table("holes").filter(pl.col("why") != "unseen")
    every = holes.filter(pl.col("cpu") < 0).drop("cpu").join(_cpus(trace), how="cross")
    holes = pl.concat([holes.select("start_ns", "end_ns", "cpu"), every.select("start_ns", "end_ns", "cpu")])
    holes = holes.filter(pl.col("cpu") >= 0).with_columns(
        pl.col("start_ns", "end_ns").clip(trace.start_ns, trace.end_ns)
    )
    return merge(holes.filter(pl.col("end_ns") > pl.col("start_ns")), "cpu")


def merge(spans: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return spans (start_ns, end_ns, `key`) with overlapping and adjacent ones merged, sorted by key and start."""
    spans = spans.sort(key, "start_ns")
    reached = pl.col("end_ns").cum_max().shift(1).over(key)
    spans = spans.with_columns(group=(reached.is_null() | (pl.col("start_ns") > reached)).cum_sum())
    merged = spans.group_by("group", maintain_order=True).agg(
        pl.col("start_ns").first(), pl.col("end_ns").max(), pl.col(key).first()
    )
    return merged.select("start_ns", "end_ns", key)


def _cpus(trace: SchedTrace) -> pl.DataFrame:
    cpus = set(trace.cpus) | set(trace.table("switches")["cpu"].unique())
    return pl.DataFrame({"cpu": sorted(cpus)}, schema={"cpu": pl.Int32})


def _statements(trace: SchedTrace, holes: pl.DataFrame) -> pl.DataFrame:
    """Return the thread on the CPU just before and just after `at`: for each switch, the ends of the span (unknown),
    and the events in a thread's context that are needed to judge a gap between switches. Sorted by CPU and instant."""
    switches = trace.table("switches").select(
        "cpu",
        at="at_ns",
        before="prev_tid",
        after="next_tid",
        before_prio="prev_prio",
        after_prio="next_prio",
        state="prev_state",
        preempted="preempted",
        arrived="prev_arrived_ns",
        kind=pl.lit(1, pl.Int8),
    )
    cpus = _cpus(trace)
    start, end = (
        _statement(cpus.with_columns(at=pl.lit(at)), kind) for at, kind in ((trace.start_ns, 0), (trace.end_ns, 2))
    )
    rows = pl.concat([start, switches, end]).sort("cpu", maintain_order=True)
    # `switches` are sorted by instant, so sorting stably by CPU is enough
    evidence = _evidence(trace, rows, holes)
    if evidence.is_empty():
        return rows
    stated = _statement(evidence, 3, "tid")
    stated = stated.with_columns(order=pl.lit(0, pl.get_index_type()))
    rows = pl.concat([rows.with_row_index("order"), stated], how="diagonal")
    # evidence never ties with a switch; the end of the span comes last
    return rows.sort("cpu", "at", pl.col("kind") == 2, "order", maintain_order=True).drop("order")


def _statement(at: pl.DataFrame, kind: int, tid: str = "") -> pl.DataFrame:
    """Return statements other than switches, at `cpu` and `at`: thread `tid` before and after, or -1 unknown."""
    none = pl.lit(-1, pl.Int32)
    return at.select(
        "cpu",
        pl.col("at").cast(pl.Int64),
        before=pl.col(tid) if tid else none,
        after=pl.col(tid) if tid else none,
        before_prio=none,
        after_prio=none,
        state=pl.lit("?"),
        preempted=pl.lit(False),
        arrived=pl.lit(0, pl.Int64),
        kind=pl.lit(kind, pl.Int8),
    )


def _evidence(trace: SchedTrace, rows: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Return cpu, at, tid of events in a thread's context that lie in a gap where the switches are inconclusive: they
    disagree, a hole falls in it, or another thread has an event. Not those at the very instant of a switch."""
    following = pl.col("cpu").shift(-1) == pl.col("cpu")
    gaps = rows.with_row_index("gap").with_columns(
        next_at=pl.when(following).then(pl.col("at").shift(-1)),
        is_open=(pl.col("after") != pl.col("before").shift(-1)) & (pl.col("before").shift(-1) >= 0),
    )
    gaps = _with_holes(gaps, holes).with_columns(is_open=pl.col("is_open") | pl.col("hole_start").is_not_null())
    gaps = gaps.select("gap", "cpu", "next_at", "after", "is_open", since="at").sort("since", maintain_order=True)
    found = _events_in_gaps(trace, gaps)
    foreign = found.filter(~pl.col("is_open")).select("gap").unique()
    if not foreign.is_empty():  # such a gap is open as well, so everything in it counts
        gaps = gaps.join(foreign.with_columns(shown=True), on="gap", how="left", maintain_order="left")
        found = _events_in_gaps(trace, gaps.with_columns(pl.col("is_open") | pl.col("shown").fill_null(False)))
    return found.select("cpu", "at", "tid").sort("cpu", "at")


def _events_in_gaps(trace: SchedTrace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return cpu, at, tid, gap, is_open of the events within open gaps, and of those that contradict a closed one."""
    found = []
    for table, column in _CONTEXTS:
        events = trace.table(table)
        if table == "tasks":  # another thread may change a name
            events = events.filter(pl.col("kind").is_in(["fork", "exec", "exit"]))
        events = events.select("cpu", at="at_ns", tid=column).filter(pl.col("tid") >= 0)
        events = events.join_asof(gaps, left_on="at", right_on="since", by="cpu", check_sortedness=False)
        inside = (pl.col("at") > pl.col("since")) & (pl.col("at") < pl.col("next_at"))
        events = events.filter(inside & (pl.col("is_open") | (pl.col("tid") != pl.col("after"))))
        found.append(events.select("cpu", "at", "tid", "gap", "is_open"))
    return pl.concat(found)


def _with_holes(gaps: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Return `gaps` (cpu, at, next_at) with `hole_start`, `hole_end`: start and end of holes in it, or null."""
    if holes.is_empty():
        return gaps.with_columns(hole_start=pl.lit(None, pl.Int64), hole_end=pl.lit(None, pl.Int64))
    gaps = gaps.with_row_index("row")
    ends = holes.select("cpu", hole_start="start_ns", end="end_ns").sort("end")
    starts = holes.select("cpu", start="start_ns", hole_end="end_ns").sort("start")
    first = (
        gaps.select("row", "cpu", "at")
        .sort("at")
        .join_asof(
            ends,
            left_on="at",
            right_on="end",
            by="cpu",
            strategy="forward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
    )
    last = (
        gaps.select("row", "cpu", "next_at")
        .drop_nulls()
        .sort("next_at")
        .join_asof(
            starts, left_on="next_at", right_on="start", by="cpu", allow_exact_matches=False, check_sortedness=False
        )
    )
    gaps = gaps.join(first.select("row", "hole_start"), on="row", how="left", maintain_order="left")
    gaps = gaps.join(last.select("row", "hole_end"), on="row", how="left", maintain_order="left")
    inside = (pl.col("hole_start") < pl.col("next_at")) & (pl.col("hole_end") > pl.col("at"))
    return gaps.with_columns(
        hole_start=pl.when(inside).then(pl.max_horizontal("hole_start", "at")),
        hole_end=pl.when(inside).then(pl.min_horizontal("hole_end", "next_at")),
    ).drop("row")


def _gaps(rows: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Return each statement with the next one on its CPU (`next_*`) and what lies between: nothing, a reported hole, a
    broken chain, or (`is_hidden`) a whole absence that only the scheduler's accounting shows."""
    following = pl.col("cpu").shift(-1) == pl.col("cpu")
    # of the next switch, even beyond other statements; none before the end of the span
    closing = pl.when(pl.col("kind") == 1).then("arrived").when(pl.col("kind") == 2).then(0)
    arrived = closing.backward_fill().shift(-1)
    rows = rows.with_columns(
        next_at=pl.when(following).then(pl.col("at").shift(-1)),
        next_before=pl.when(following).then(pl.col("before").shift(-1)),
        next_prio=pl.when(following).then(pl.col("before_prio").shift(-1)),
        arrived=pl.when(following & (arrived > 0)).then(arrived),  # of the thread at the end of the gap
    )
    rows = _with_holes(rows, holes)
    is_known = pl.col("next_before") >= 0
    same = pl.col("after") == pl.col("next_before")
    stayed = same & (pl.col("arrived") <= pl.col("at") + SKEW_NS).fill_null(False)
    is_hole = pl.col("hole_start").is_not_null() & ~stayed & (pl.col("kind") != 2)
    account = pl.when(pl.col("kind") == 0).then(pl.max_horizontal("arrived", "at")).otherwise("arrived")
    appeared = (pl.col("arrived").is_not_null() & account.is_between("at", "next_at")).fill_null(False)
    return rows.with_columns(
        is_hole=is_hole,
        is_broken=~same & is_known & ~is_hole & (pl.col("kind") != 0),
        is_first=~same & is_known & ~is_hole & (pl.col("kind") == 0),
        is_hidden=same & is_known & ~is_hole & appeared & ~stayed,
        appeared=pl.when(appeared).then(account),
    )


def _earliest_arrival(trace: SchedTrace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return `gaps` with `from_ns` for threads that arrived without an event: the earliest possible instant."""
    gaps = gaps.with_row_index("row")
    asked = gaps.filter(pl.col("is_broken") | pl.col("is_first")).select("row", "at", "next_at", tid="next_before")
    asked = asked.filter(pl.col("tid") > 0).sort("next_at")
    if asked.is_empty():
        return gaps.with_columns(from_ns=pl.coalesce("appeared", "at"))
    wanted = asked.select("tid").unique()
    switches = trace.table("switches")
    out = switches.select("at_ns", tid="prev_tid").join(wanted, on="tid", how="semi")
    into = switches.select("at_ns", tid="next_tid").join(wanted, on="tid", how="semi")
    placed = pl.concat([out, into]).sort("at_ns").with_columns(placed="at_ns")
    # a thread may leave this CPU and come back at once, so its own departure at the start of the gap counts as well
    asked = asked.join_asof(
        placed, left_on="next_at", right_on="at_ns", by="tid", allow_exact_matches=False, check_sortedness=False
    )
    asked = asked.with_columns(since=pl.col("placed").fill_null(trace.start_ns)).sort("since")
    woken = trace.table("wakeups").select("at_ns", "tid").join(wanted, on="tid", how="semi").with_columns(woken="at_ns")
    asked = asked.join_asof(
        woken, left_on="since", right_on="at_ns", by="tid", strategy="forward", check_sortedness=False
    )
    woken_inside = pl.when(pl.col("woken") <= pl.col("next_at")).then("woken")
    asked = asked.select("row", bound=pl.max_horizontal("at", "placed", woken_inside))
    gaps = gaps.join(asked, on="row", how="left", maintain_order="left")
    return gaps.with_columns(from_ns=pl.coalesce("appeared", pl.max_horizontal("at", "bound")))


def _boundaries(gaps: pl.DataFrame) -> pl.DataFrame:
    """Return where a tenure may begin, in order per CPU: `occupant` from `at` on, -1 unknown."""
    unknown = pl.lit(-1, pl.Int32)
    switched = gaps.filter(pl.col("kind") != 3).select(
        "cpu",
        "at",
        "kind",
        "before",
        "state",
        "preempted",
        occupant="after",
        prio="after_prio",
        order=pl.col("row") * 3,
        accounted=pl.lit(False),
        first=pl.lit(False),
        gone_ns=pl.col("at"),
        unrecorded=pl.lit(False),
    )
    # 4: a bound without a switch
    blank = {"kind": pl.lit(4, pl.Int8), "before": unknown, "state": pl.lit("?"), "preempted": pl.lit(False)}
    gone = pl.coalesce("appeared", "next_at")
    lost = gaps.filter(pl.col("is_hole") | pl.col("is_hidden")).select(
        "cpu",
        at=pl.when("is_hole")
        .then(pl.min_horizontal("hole_start", pl.coalesce("appeared", "hole_start")))
        .otherwise("at"),
        **blank,
        occupant=unknown,
        prio=unknown,
        order=pl.col("row") * 3 + 1,
        accounted=pl.lit(False),
        first=pl.lit(False),
        gone_ns=gone,
        unrecorded=pl.col("is_hidden"),
    )
    arrival = pl.when("is_hole").then(pl.coalesce("appeared", "hole_end")).otherwise("from_ns")
    unrecorded = pl.col("is_broken") | pl.col("is_first") | pl.col("is_hidden") | pl.col("is_hole")
    appeared = gaps.filter(unrecorded & (pl.col("next_before") >= 0)).select(
        "cpu",
        at=arrival,
        **blank,
        occupant="next_before",
        prio="next_prio",
        order=pl.col("row") * 3 + 2,
        accounted=pl.col("appeared").is_not_null(),
        first=pl.col("is_first") & (arrival == pl.col("at")),
        gone_ns=gone,
        unrecorded=pl.col("is_broken"),
    )
    columns = switched.columns
    return pl.concat([switched, lost.select(columns), appeared.select(columns)]).sort("order")


def _between(bounds: pl.DataFrame) -> pl.DataFrame:
    """Return the tenures between boundaries (see `Tenures`)."""
    switched_next = pl.col("kind").shift(-1) == 1
    last = pl.col("kind").shift(-1) == 2
    slices = bounds.select(
        "cpu",
        "prio",
        start_ns="at",
        end_ns=pl.col("at").shift(-1),
        tid="occupant",
        end_state=pl.when(last).then(pl.lit("")).otherwise(pl.col("state").shift(-1)),
        preempted=pl.col("preempted").shift(-1) & switched_next,
        next_tid=pl.when(switched_next).then(pl.col("occupant").shift(-1)).otherwise(-1),
        open_start="first",
        open_end=last,
        start_soft=(pl.col("kind") != 1) & ~pl.col("accounted") & ~pl.col("first"),
        end_soft=~switched_next & ~last,
        gone_ns=pl.col("gone_ns").shift(-1),
        left_unrecorded=pl.col("unrecorded").shift(-1),
        kind="kind",
    )
    slices = slices.filter((pl.col("kind") != 2) & (pl.col("kind") != 0))
    return slices.filter(pl.col("tid") >= 0).drop("kind")


def _settle(slices: pl.DataFrame) -> pl.DataFrame:
    """Move bounds without an event where the thread would be on two CPUs at once; `inexact` is set."""
    slices = slices.with_row_index("row")
    for _ in range(8):  # a moved bound may uncover one more; deeper chains do not occur
        threads = slices.filter(pl.col("tid") > 0).sort("tid", "start_ns", "end_ns", maintain_order=True)
        same = pl.col("tid").shift(-1) == pl.col("tid")
        clash = same & (pl.col("start_ns").shift(-1) < pl.col("end_ns"))
        threads = threads.with_columns(
            end=pl.when(clash & pl.col("end_soft")).then(pl.max_horizontal("start_ns", pl.col("start_ns").shift(-1))),
            start=pl.when((clash & ~pl.col("end_soft")).shift(1, fill_value=False) & pl.col("start_soft")).then(
                pl.min_horizontal("end_ns", pl.col("end_ns").shift(1))
            ),
        )
        changed = pl.col("end").is_not_null() | pl.col("start").is_not_null()
        moved = threads.filter(changed).select("row", "start", "end")
        if moved.is_empty():
            break
        slices = slices.join(moved, on="row", how="left", maintain_order="left")
        slices = slices.with_columns(
            start_ns=pl.coalesce("start", "start_ns"), end_ns=pl.coalesce("end", "end_ns")
        ).drop("start", "end")
    return slices.drop("row").with_columns(inexact=pl.col("start_soft") | pl.col("end_soft"))
