"""The states of each thread between its tenures of a CPU: waits, their wakers, absences."""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.lanes import holes as lanes_holes
from whystall.tools.timeline.lanes.cpu import SKEW_NS, Tenures
from whystall.tools.timeline.sched import SchedTrace

_STATES = {
    "R": "runnable",
    "S": "sleeping",
    "D": "uninterruptible",
    "I": "idle",
    "T": "stopped",
    "t": "stopped",
    "P": "stopped",
    "X": "dead",
    "x": "dead",
    "Z": "dead",
}
"""State of a thread after it left a CPU, by the first letter of its state in the table ``switches``."""
# More absences than this share prove that a switch is missing, and none of its waits is trusted.
_SECRET = 0.02


def slices(trace: SchedTrace, tenures: Tenures) -> pl.DataFrame:
    """Return the columns of `lanes.THREAD_SLICES`, sorted by thread and start."""
    rows = _rows(trace, tenures.slices)
    waits = _waits(trace, rows)
    pieces = lanes_holes.cut(_pieces(waits), tenures.holes)
    pieces = lanes_holes.doubt_queues(pieces, tenures.broken).filter(pl.col("end_ns") > pl.col("start_ns"))
    running = _running(rows).select(pieces.columns)
    # at one instant: first what ended there, then a tenure without length, then what begins
    return pl.concat([pieces, running]).sort("tid", "start_ns", "end_ns", maintain_order=True)


def _rows(trace: SchedTrace, tenures: pl.DataFrame) -> pl.DataFrame:
    """Return each thread's tenures in order, after one row (`head`) for its state before them."""
    running = tenures.filter(pl.col("tid") > 0).select(
        "tid",
        "cpu",
        "start_ns",
        "end_ns",
        "end_state",
        "preempted",
        "next_tid",
        "open_start",
        "open_end",
        "start_soft",
        "inexact",
        "gone_ns",
        "left_unrecorded",
        head=pl.lit(False),
    )
    tasks = trace.table("tasks").filter(kind="fork").select(tid="other_tid")
    tids = [running.select("tid"), tasks, *(trace.table(name).select("tid") for name in ("wakeups", "migrations"))]
    start = pl.lit(trace.start_ns, pl.Int64)
    no = pl.lit(False)
    heads = (
        pl.concat(tids)
        .unique()
        .filter(pl.col("tid") > 0)
        .select(
            "tid",
            cpu=pl.lit(-1, pl.Int32),
            start_ns=start,
            end_ns=start,
            end_state=pl.lit("?"),
            preempted=no,
            next_tid=pl.lit(-1, pl.Int32),
            open_start=no,
            open_end=no,
            start_soft=no,
            inexact=no,
            gone_ns=start,
            left_unrecorded=no,
            head=pl.lit(True),
        )
    )
    rows = pl.concat([heads, running]).sort("tid", ~pl.col("head"), "start_ns", "end_ns", maintain_order=True)
    # different clocks of CPUs may make tenures overlap: the later one is cut
    reached = pl.col("end_ns").cum_max().over("tid").shift(1)
    late = ~pl.col("head") & (pl.col("start_ns") < reached)
    rows = rows.with_columns(
        start_ns=pl.when(late).then(pl.min_horizontal(reached, "end_ns")).otherwise("start_ns"),
        inexact=pl.col("inexact") | late,
    )
    # one wholly inside another is dropped
    rows = rows.with_columns(end_ns=pl.when(late).then(pl.max_horizontal(reached, "end_ns")).otherwise("end_ns"))
    rows = rows.with_columns(start_ns=pl.when(late).then(pl.max_horizontal(reached, "start_ns")).otherwise("start_ns"))
    same = (pl.col("tid").shift(-1) == pl.col("tid")).fill_null(False)
    return rows.with_row_index("row").with_columns(
        next_start=pl.when(same).then(pl.col("start_ns").shift(-1)).otherwise(trace.end_ns),
        next_cpu=pl.when(same).then(pl.col("cpu").shift(-1)).otherwise(-1),
        next_soft=same & pl.col("start_soft").shift(-1),
        is_last=~same,
    )


def _left_in() -> pl.Expr:
    return pl.col("end_state").str.slice(0, 1).replace_strict(_STATES, default="unknown")


def _running(rows: pl.DataFrame) -> pl.DataFrame:
    unknown = pl.lit(-1, pl.Int32)
    before = pl.col("cpu").shift(1)  # a head row has CPU -1
    reborn = (_left_in() == "dead").shift(1)
    moved = (before != pl.col("cpu")) & ~reborn
    return (
        rows.with_columns(from_cpu=pl.when(moved).then(before).otherwise(unknown))
        .filter(~pl.col("head"))
        .select(
            "start_ns",
            "end_ns",
            "tid",
            "cpu",
            "from_cpu",
            "open_start",
            "open_end",
            "inexact",
            state=pl.lit("running"),
            waker_tid=unknown,
            waker_context=pl.lit(""),
            woken_ns=pl.lit(0, pl.Int64),
            preempted=pl.lit(False),
            preemptor_tid=unknown,
        )
    )


def _waits(trace: SchedTrace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return each row with the events of the absence after it: `acts_*` (waking, new), `queued_*` (wakeup), `born_ns`,
    `near_*` (a waking just on the wrong side of a switch), `yielded`, `roaming` (it was on CPUs that were not traced).
    """
    wakes = _placed(trace.table("wakeups").filter(pl.col("tid") > 0), rows)
    wakes = wakes.sort("row", maintain_order=True).with_columns(
        followed=(pl.col("row").shift(-1) == pl.col("row"))
        .and_(pl.col("kind").shift(-1) == "wakeup", pl.col("at_ns").shift(-1) < pl.col("end_ns"))
        .fill_null(False)
    )
    inside = wakes.filter(pl.col("at_ns") >= pl.col("end_ns"))
    acts = inside.filter(pl.col("kind") != "wakeup")
    queued = inside.filter(pl.col("kind") == "wakeup")
    # while it runs: a waking without a queueing may belong to the absence on either side
    near = wakes.filter((pl.col("at_ns") < pl.col("end_ns")) & (pl.col("kind") == "waking") & ~pl.col("followed"))
    near = near.filter(pl.col("cpu") != pl.col("on_cpu"))
    early = near.filter(pl.col("at_ns") >= pl.col("end_ns") - SKEW_NS).with_columns(early=pl.lit(True))
    late = near.filter((pl.col("at_ns") <= pl.col("start_ns") + SKEW_NS) & (pl.col("row") > 0))
    late = late.with_columns(pl.col("row") - 1, early=pl.lit(False))
    births = trace.table("tasks").filter(kind="fork").select("at_ns", tid="other_tid")
    births = _placed(births.filter(pl.col("tid") > 0), rows).filter(pl.col("at_ns") >= pl.col("end_ns"))
    recorded = pl.col("at_ns").first()
    waker = {"waker": pl.col("waker_tid").first(), "context": pl.col("context").first()}
    found = (
        acts.group_by("row").agg(
            acts_ns=recorded,
            acts_last=pl.col("at_ns").last(),
            acts=pl.len(),
            acts_new=pl.col("kind").first() == "new",
            acts_target=pl.col("target_cpu").first(),
            **{f"acts_{name}": value for name, value in waker.items()},
        ),
        queued.group_by("row").agg(
            queued_ns=recorded,
            queued_last=pl.col("at_ns").last(),
            queued=pl.len(),
            queued_target=pl.col("target_cpu").first(),
            **{f"queued_{name}": value for name, value in waker.items()},
        ),
        pl.concat([early, late])
        .group_by("row")
        .agg(
            near_ns=recorded,
            near_early=pl.col("early").first(),
            **{f"near_{name}": value for name, value in waker.items()},
        ),
        births.group_by("row").agg(born_ns=recorded),
    )
    for frame in found:
        keyed = frame.with_columns(pl.col("row").cast(pl.get_index_type()))
        rows = rows.join(keyed, on="row", how="left", maintain_order="left")
    kinds = set(trace.table("wakeups")["kind"].unique())
    elsewhere = _elsewhere(trace)
    return rows.with_columns(
        has_waking=pl.lit("waking" in kinds),
        # asleep or dead to the end: on a CPU that was not traced it may have been woken, or born again
        all_cpus=pl.lit(elsewhere.is_empty()),
        all_wakeups=pl.lit(bool(kinds) and elsewhere.is_empty()),
        yielded=_yielded(trace, rows),
        roaming=pl.col("tid").is_in(elsewhere.implode()),
    )


def _placed(events: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return `events` (at_ns, tid) with the row whose tenure or absence they fall in, its bounds and its CPU. An event
    at the very instant a tenure begins belongs to the absence before."""
    key = rows.select(
        "row", "tid", "start_ns", "end_ns", on_cpu="cpu", key=pl.col("start_ns") - pl.col("head").cast(pl.Int64)
    ).sort("key", maintain_order=True)
    return events.join_asof(
        key, left_on="at_ns", right_on="key", by="tid", allow_exact_matches=False, check_sortedness=False
    ).filter(pl.col("row").is_not_null())


def _yielded(trace: SchedTrace, rows: pl.DataFrame) -> pl.Series:
    """Return whether the thread left its CPU within the system call sched_yield."""
    calls = trace.table("syscalls").filter(name="sched_yield").select("at_ns", "tid", "entry")
    if calls.is_empty():
        return pl.repeat(False, rows.height, dtype=pl.Boolean, eager=True)
    left = rows.select("row", "tid", "end_ns").sort("end_ns")
    left = left.join_asof(calls, left_on="end_ns", right_on="at_ns", by="tid", check_sortedness=False)
    return left.sort("row")["entry"].fill_null(False)


def _elsewhere(trace: SchedTrace) -> pl.Series:
    """Return the threads with an event on a CPU that was not traced."""
    mentioned = [
        trace.table("wakeups").select("tid", cpu="target_cpu"),
        trace.table("migrations").select("tid", cpu="from_cpu"),
        trace.table("migrations").select("tid", cpu="to_cpu"),
    ]
    abroad = (pl.col("cpu") >= 0) & ~pl.col("cpu").is_in(list(trace.cpus))
    return pl.concat([frame.filter(abroad).select("tid") for frame in mentioned])["tid"].unique()


def _pieces(waits: pl.DataFrame) -> pl.DataFrame:
    """Return the absences as slices: a wait, perhaps an unknown time, then the queue of a CPU."""
    state = _left_in()
    ready = state == "runnable"
    # a waking stamped just after the switch, of a thread that was still runnable, ended no wait
    stale = ready & (pl.max_horizontal("acts_last", "queued_last") <= pl.col("end_ns") + SKEW_NS)
    waits = waits.with_columns(
        pl.when(~stale.fill_null(False)).then(name).alias(name)
        for name in waits.columns
        if name.startswith(("acts", "queued"))
    )
    born = pl.col("born_ns").is_not_null() | pl.col("acts_new").fill_null(False)
    before_birth = pl.when(pl.col("head") | (state == "dead")).then(pl.lit("dead")).otherwise(pl.lit("unknown"))
    early = pl.col("near_early").fill_null(False) & pl.col("queued_ns").is_not_null()
    early &= (pl.col("queued_ns") < pl.col("acts_ns")).fill_null(True)
    lone = pl.col("acts_ns").is_null() & pl.col("queued_ns").is_null()
    asleep = ~state.is_in(["runnable", "dead", "unknown"])
    near = (lone & asleep & (~pl.col("is_last") | pl.col("near_early")) | early) & pl.col("near_ns").is_not_null()
    waits = waits.with_columns(
        state=pl.when(born).then(before_birth).otherwise(state),
        first=pl.coalesce(
            pl.when(near).then(pl.col("near_ns").clip(pl.col("end_ns"), pl.col("next_start"))),
            pl.min_horizontal("acts_ns", "queued_ns"),
            "born_ns",
        ),
        last=pl.when(pl.col("acts") > 1).then("acts_last").when(pl.col("queued") > 1).then("queued_last"),
        near=near,
        early=early,
        born=born,
    )
    swapped = (pl.col("queued_ns") + SKEW_NS < pl.col("acts_ns")).fill_null(False)
    half = pl.col("first") < pl.col("gone_ns")  # it may still have been running
    half |= pl.col("acts_ns").is_null() & ~pl.col("early") & pl.col("has_waking") & pl.col("first").is_not_null()
    waits = waits.with_columns(
        last=pl.coalesce("last", pl.when(swapped).then("acts_ns"), "first"),
        half=half | (pl.col("near") & ~pl.col("early")) | (pl.col("born") & ~pl.col("acts_new").fill_null(False)),
        waker=pl.when("near").then("near_waker").otherwise(pl.coalesce("acts_waker", "queued_waker")),
        context=pl.when("near").then("near_context").otherwise(pl.coalesce("acts_context", "queued_context")),
    )
    # a kernel may omit the switches of some threads entirely, and now and then one of any thread
    unrecorded = pl.col("left_unrecorded") | (pl.col("last") > pl.col("first")).fill_null(False)
    secret = unrecorded.mean().over("tid") > _SECRET
    waits = waits.with_columns(secret=secret)
    return pl.concat([_first(waits), _between(waits), _queue(waits)])


def _piece(waits: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
    """Return rows of `waits` in the shape of a slice, and `recorded`: its end has an event."""
    unknown = pl.lit(-1, pl.Int32)
    common = {
        "tid": pl.col("tid"),
        "cpu": pl.col("cpu"),
        "waker_tid": unknown,
        "waker_context": pl.lit(""),
        "woken_ns": pl.lit(0, pl.Int64),
        "preempted": pl.lit(False),
        "preemptor_tid": unknown,
        "from_cpu": unknown,
        "open_start": pl.lit(False),
        "open_end": pl.lit(False),
        "recorded": pl.lit(True),
    }
    return waits.select(**{**common, **columns}).select("start_ns", "end_ns", *common, "state", "inexact")


def _waker() -> dict[str, pl.Expr]:
    # a lone wakeup recorded by the idle thread is only the queueing after another thread's waking
    recorded = pl.col("context").is_in(["task", ""]) & ~(
        pl.col("acts_ns").is_null() & ~pl.col("near") & (pl.col("waker") == 0)
    )
    return {
        "waker_tid": pl.when(recorded).then("waker").otherwise(-1).fill_null(-1).cast(pl.Int32),
        "waker_context": pl.col("context").fill_null(""),
        "woken_ns": pl.col("first").fill_null(0),
    }


def _first(waits: pl.DataFrame) -> pl.DataFrame:
    woken = pl.col("first").is_not_null()
    known = ~pl.col("state").is_in(["unknown", "runnable"])
    by_preemption = (pl.col("state") == "runnable") & pl.col("preempted") & ~pl.col("yielded")
    # it cannot have become ready or run without an event
    unrecorded = (
        known
        & ~woken
        & ~(pl.col("is_last") & (pl.col("all_wakeups") | pl.col("all_cpus") & (pl.col("state") == "dead")))
    )
    revived = (pl.col("state") == "dead") & woken & ~pl.col("born")
    doubt = unrecorded | revived | (woken & pl.col("half")) | pl.col("next_soft") & ~woken | pl.col("roaming")
    ready = pl.col("state") == "runnable"
    doubt |= ready & pl.col("secret")
    lost = ready & pl.col("secret") & pl.col("is_last") & ~woken
    return _piece(
        waits,
        start_ns=pl.col("end_ns"),
        end_ns=pl.when(ready & woken).then("end_ns").otherwise(pl.coalesce("first", "next_start")),
        state=pl.when(lost).then(pl.lit("unknown")).otherwise("state"),
        **_waker(),
        preempted=by_preemption,
        preemptor_tid=pl.when(by_preemption).then("next_tid").otherwise(-1),
        open_start=pl.col("head"),
        open_end=pl.col("is_last") & ~woken,
        inexact=doubt & (pl.col("state") != "unknown") & ~lost,
        recorded=~unrecorded,
    )


def _between(waits: pl.DataFrame) -> pl.DataFrame:
    """Mark threads that were woken again without having run: they ran without an event."""
    waits = waits.filter(pl.col("first").is_not_null())
    start = pl.when(pl.col("state") == "runnable").then("end_ns").otherwise("first")
    return _piece(waits, start_ns=start, end_ns=pl.col("last"), state=pl.lit("unknown"), inexact=pl.lit(False))


def _queue(waits: pl.DataFrame) -> pl.DataFrame:
    waits = waits.filter(pl.col("first").is_not_null())
    target = pl.when(pl.col("acts_new").fill_null(False)).then("acts_target")
    known = pl.when(pl.col("next_cpu") >= 0).then("next_cpu")
    again = pl.col("last") > pl.col("first")
    waker = {
        name: pl.when(again).then(pl.lit(none)).otherwise(_waker()[name])
        for name, none in (("waker_tid", -1), ("waker_context", ""))
    }
    doubt = pl.col("half") | pl.col("next_soft") | pl.col("roaming") | (again & pl.col("acts_ns").is_null())
    lost = pl.col("secret") & pl.col("is_last")  # it may have run since
    return _piece(
        waits,
        start_ns=pl.col("last"),
        end_ns=pl.col("next_start"),
        state=pl.when(lost).then(pl.lit("unknown")).otherwise(pl.lit("runnable")),
        cpu=pl.coalesce(pl.when(~again).then(pl.coalesce("queued_target", target)), known, pl.lit(-1)),
        **waker,
        woken_ns=pl.col("last"),
        open_end=pl.col("is_last"),
        inexact=(doubt | pl.col("secret")) & ~lost,
    )
