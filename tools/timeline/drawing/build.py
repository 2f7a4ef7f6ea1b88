"""Build what a viewer draws of a trace, in columns, independent of the viewer's format.

Two groups of lanes, as in MindStudio Insight: ``CPU Scheduling`` with a lane ``CPU 003`` per CPU (its threads, with
interrupts nested in them) and ``Process Scheduling`` with a lane ``comm:tid`` per thread (its states); a group
``Holes`` for lost events; and the lanes of a profile (`drawing.profile`). A thread's lane is keyed by its id and
labelled with its last name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import polars as pl

from whystall.tools.timeline.drawing import flows as arrows
from whystall.tools.timeline.drawing import holes as hole_lanes
from whystall.tools.timeline.drawing import markers as drawing_markers
from whystall.tools.timeline.drawing import profile as drawing_profile
from whystall.tools.timeline.drawing.lanes import (
    CPU_GROUP,
    CPU_LANES,
    LANES,
    SLICES,
    THREAD_GROUP,
    THREAD_LANES,
    cpu_key,
    shape,
)
from whystall.tools.timeline.drawing.names import Names, json_object, json_text, microseconds
from whystall.tools.timeline.lanes import build as lanes
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.sched import SchedTrace

STATE_NAMES = {
    "running": "Running",
    "runnable": "Runnable",
    "sleeping": "Sleeping",
    "uninterruptible": "Uninterruptible",
    "stopped": "Stopped",
    "idle": "Idle",
    "unknown": "Unknown",
}
"""Labels of the states of `lanes.STATES`; dead threads are not drawn. The first three are MindStudio's."""


Make = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True)
class Drawing:
    """`lanes`: `LANES`, in display order. `sources`: (frame with `start_ns` and `end_ns`, function that makes its
    slices); within a lane, slices of earlier sources enclose those of later ones. `instants`: `SLICES` without length,
    marks. `flows`: `FLOWS`. `counters`: `COUNTERS`. `notes`: remarks per group."""

    lanes: pl.DataFrame
    sources: tuple[tuple[pl.DataFrame, Make], ...]
    instants: pl.DataFrame
    flows: pl.DataFrame
    counters: pl.DataFrame
    notes: Mapping[str, str]

    def batches(self, rows: int = 200_000) -> Iterator[pl.DataFrame]:
        """Yield the slices (`SLICES`) in frames of at most `rows`, so that their texts are made batch by batch."""
        for source, make in self.sources:
            for part in source.iter_slices(rows):
                yield make(part)


def draw(
    trace: SchedTrace,
    *,
    cpus: Collection[int] | None = None,
    profile: Profile | None = None,
    numbers: Mapping[int, int] | None = None,
) -> Drawing:
    """Return the drawing of `trace`, if given only of `cpus` and the threads that ran on them. `profile`: on the
    trace's clock. `numbers`: ids to show instead of the host's thread ids (see `alignment.pid_mapping`)."""
    names = Names(trace, numbers or {})
    on_cpu, of_thread = lanes.cpu_slices(trace), lanes.thread_slices(trace)
    interrupts, holes, markers = lanes.interrupt_slices(trace), trace.table("holes"), trace.table("markers")
    if cpus is not None:
        chosen = pl.col("cpu").is_in(list(cpus))
        on_cpu, interrupts = on_cpu.filter(chosen), interrupts.filter(chosen)
        holes = holes.filter(chosen | (pl.col("cpu") < 0))
        markers = markers.filter(pl.col("tid").is_in(markers.filter(chosen)["tid"].unique().implode()))
        ran = of_thread.filter(chosen & (pl.col("state") == "running"))["tid"].unique()
        of_thread = of_thread.filter(pl.col("tid").is_in(ran.implode()))
    lasting = pl.col("end_ns") > pl.col("start_ns")
    on_cpu, of_thread = on_cpu.filter(lasting), of_thread.filter(lasting & (pl.col("state") != "dead"))
    interrupts = _within_tenures(interrupts, on_cpu)
    threads = names.threads(of_thread["tid"].unique())
    marked = drawing_markers.draw(markers, names, trace.end_ns)
    table = [_thread_lanes(threads), _cpu_lanes(on_cpu), marked.lanes, hole_lanes.lanes(holes)]
    sources: list[tuple[pl.DataFrame, Make]] = [
        (on_cpu.filter(pl.col("tid") != 0), partial(_cpu_slices, names=names)),
        (interrupts, partial(_interrupt_slices, names=names)),
        (of_thread, partial(_thread_slices, names=names)),
        (marked.slices, _as_they_are),
        (hole_lanes.slices(holes), _as_they_are),
    ]
    flows = [arrows.wakeups(trace, of_thread, interrupts), arrows.migrations(of_thread, on_cpu)]
    if profile is not None:
        picture = drawing_profile.draw(profile, names)
        sources.append((picture.slices, _as_they_are))
        table, flows = [picture.lanes, *table], [*flows, picture.flows]
    return Drawing(
        lanes=pl.concat(table),
        sources=tuple(sources),
        instants=pl.concat([_instants(trace, threads, names), marked.instants]),
        flows=pl.concat(flows),
        counters=marked.counters,
        notes=dict.fromkeys((CPU_GROUP, THREAD_GROUP), f"clock: {trace.clock or 'unknown'}"),
    )


def _cpu_lanes(on_cpu: pl.DataFrame) -> pl.DataFrame:
    key = cpu_key(pl.col("cpu"))
    cpus = on_cpu.select("cpu").unique().sort("cpu")
    return shape(cpus.select(lane=pl.col("cpu") + CPU_LANES, group=pl.lit(CPU_GROUP), key=key, label=key), LANES)


def _thread_lanes(threads: pl.DataFrame) -> pl.DataFrame:
    member = pl.col("process").is_not_null() & (pl.col("pid") != pl.col("tid"))
    rows = threads.select(
        lane=pl.col("tid").cast(pl.Int64) + THREAD_LANES,
        group=pl.lit(THREAD_GROUP),
        key="label",
        label=pl.when(member).then(pl.format("{} ({})", "label", "process")).otherwise("label"),
    )
    return shape(rows, LANES)


def _within_tenures(interrupts: pl.DataFrame, on_cpu: pl.DataFrame) -> pl.DataFrame:
    """Return interrupts cut where the CPU switched threads: slices must nest, even where events are missing."""
    tenures = on_cpu.select("cpu", since="start_ns", until="end_ns").sort("since")
    rows = interrupts.sort("start_ns", maintain_order=True).join_asof(
        tenures, left_on="start_ns", right_on="since", by="cpu", check_sortedness=False
    )
    end = pl.min_horizontal("end_ns", pl.max_horizontal("until", "start_ns"))
    rows = rows.with_columns(end_ns=end).filter(pl.col("end_ns") > pl.col("start_ns"))
    return rows.sort("cpu", "start_ns", "depth", maintain_order=True)


def _as_they_are(slices: pl.DataFrame) -> pl.DataFrame:
    return slices


def _opened() -> pl.Expr:
    """Return which of its bounds a slice extends beyond, as JSON."""
    both = pl.when(pl.col("open_start") & pl.col("open_end")).then(pl.lit('"both"'))
    return both.when("open_start").then(pl.lit('"start"')).when("open_end").then(pl.lit('"end"'))


def _if(condition: pl.Expr, value: pl.Expr | None = None) -> pl.Expr:
    return pl.when(condition).then(pl.lit("true") if value is None else value)


def _text(number: str) -> pl.Expr:
    """Return numbers as JSON strings, as MindStudio writes and reads arguments."""
    return json_text(pl.col(number).cast(pl.String))


def _cpu_slices(on_cpu: pl.DataFrame, names: Names) -> pl.DataFrame:
    """Return the threads on the CPU; the idle thread is left blank."""
    rows = names.then(on_cpu, "tid", "start_ns", "label")
    known = pl.col("tid") > 0
    args = json_object(
        host_pid=_if(known, _text("tid")),
        prio=_if(pl.col("prio") >= 0, _text("prio")),
        end_state=_if(known & (pl.col("end_state") != ""), json_text(pl.col("end_state"))),
        open=_opened(),
        inexact=_if(pl.col("inexact")),
    )
    rows = rows.select(
        "start_ns", "end_ns", lane=pl.col("cpu").cast(pl.Int64) + CPU_LANES, args=args,
        name=pl.when(known).then("label").otherwise(pl.lit("unknown")),
        cat=pl.when(known).then(pl.lit("sched")).otherwise(pl.lit("hole")),
    )  # fmt: skip
    return shape(rows, SLICES)


def _interrupt_slices(interrupts: pl.DataFrame, names: Names) -> pl.DataFrame:
    """Return interrupts; MindStudio sums slices called ``irq`` and ``softirq`` by CPU and by `task`."""
    rows = names.last(interrupts, "tid", "label")
    soft, vector = pl.col("soft"), _text("vector")
    named = pl.col("name") != ""
    args = json_object(
        irq=_if(~soft, vector),
        name=_if(~soft & named, json_text(pl.col("name"))),
        vec=_if(soft, vector),
        action=_if(soft & named, json_text(pl.col("name"))),
        task=json_text(pl.col("label")),
        self_us=microseconds(pl.col("self_ns")),
        open=_opened(),
    )
    rows = rows.select(
        "start_ns", "end_ns", lane=pl.col("cpu").cast(pl.Int64) + CPU_LANES, args=args, cat=pl.lit("irq"),
        name=pl.when(soft).then(pl.lit("softirq")).otherwise(pl.lit("irq")),
    )  # fmt: skip
    return shape(rows, SLICES)


def _thread_slices(of_thread: pl.DataFrame, names: Names) -> pl.DataFrame:
    rows = names.last(of_thread, "waker_tid", "waker")
    rows = names.last(rows, "preemptor_tid", "preemptor")
    rows = names.then(rows, "tid", "start_ns", "then")
    rows = names.last(rows, "tid", "label")
    args = json_object(
        cpu=_if(pl.col("cpu") >= 0, _text("cpu")),
        from_cpu=_if(pl.col("from_cpu") >= 0, _text("from_cpu")),
        preempted_by=_if(pl.col("preempted"), json_text(pl.col("preemptor"))),
        woken_by=json_text(pl.coalesce("waker", _if(pl.col("waker_context") != "", pl.col("waker_context")))),
        called=_if(pl.col("then") != pl.col("label"), json_text(pl.col("then"))),
        open=_opened(),
        inexact=_if(pl.col("inexact")),
    )
    rows = rows.select(
        "start_ns", "end_ns", lane=pl.col("tid").cast(pl.Int64) + THREAD_LANES, args=args, cat=pl.lit("sched"),
        name=pl.col("state").replace_strict(STATE_NAMES),
    )  # fmt: skip
    return shape(rows, SLICES)


def _instants(trace: SchedTrace, threads: pl.DataFrame, names: Names) -> pl.DataFrame:
    """Return migrations and new names, in the lane of the thread."""
    moves = trace.table("migrations").select(
        "tid", "at_ns", name=pl.format("migrated: CPU {} to {}", "from_cpu", "to_cpu"), cat=pl.lit("migration"),
        args=json_object(
            from_cpu=_text("from_cpu"), to_cpu=_text("to_cpu"), recorded_on_cpu=_text("cpu"),
        ),
    )  # fmt: skip
    renames = names.renames().select(
        "tid", "at_ns", name=pl.format("renamed: {}", "comm"), cat=pl.lit("rename"),
        args=json_object(comm=json_text(pl.col("comm"))),
    )  # fmt: skip
    rows = pl.concat([moves, renames]).join(threads.select("tid"), on="tid", how="semi")
    lane = pl.col("tid").cast(pl.Int64) + THREAD_LANES
    return shape(rows.with_columns(lane=lane, start_ns="at_ns", end_ns="at_ns"), SLICES).sort("lane", "start_ns")
