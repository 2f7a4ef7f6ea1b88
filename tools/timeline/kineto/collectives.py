"""Collectives in a Kineto trace, one row each.

On a device a collective is a kernel. Its operation is in the kernel's own arguments (since 2024), else in those of the
``record_param_comms`` it was launched under, else only in its name (``ncclDevKernel_AllReduce_...``). Without a device
a library's threads execute it: see `kineto.gloo`. Other events of the host make no row: a call or range of NCCL ends
when the work is enqueued.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from whystall.tools.timeline.collectives import COLLECTIVES, POINT_TO_POINT, canonical_op
from whystall.tools.timeline.kineto.event_args import (
    CollectiveArgs,
    Part,
    Place,
    Shaped,
    bytes_of,
    described,
    shaped,
    unread,
)
from whystall.tools.timeline.kineto.gloo import host_rows, is_host_range
from whystall.tools.timeline.kineto.groups import Groups
from whystall.tools.timeline.profile import Profile, Run
from whystall.tools.timeline.profile_reading.build import process_of, step_at
from whystall.tools.timeline.profile_reading.groups import text
from whystall.tools.timeline.profile_reading.numbers import small

NO_PART, KERNEL, RECORD, ASK, RANGE = range(5)
"""Role of an event in a collective: none, its kernel, its description, its operator, its range on the host."""

_RECORD = "record_param_comms"
# Records of no collective: a wait for one.
_NO_COLLECTIVE = frozenset({"wait", "init", "end_coalescing", "start_coalescing"})
_PARTS = pl.Schema(
    {
        **dict.fromkeys(("start_ns", "end_ns", "pid", "tid", "device", "stream", "correlation"), pl.Int64),
        "name": pl.String,
        "external": pl.Int64,
        "collective": pl.String,
        "dtype": pl.String,
        "elements": pl.Int64,
        "group": pl.String,
        "seq": pl.Int64,
        "peer": pl.Int64,
    }
)
_RECORDED = ("collective", "dtype", "elements", "group", "seq", "peer")


def part_of(kind: str, name: str) -> int:
    """Return the role of an activity of this kind and name: `NO_PART`, `KERNEL`, `RECORD`, `ASK` or `RANGE`."""
    if kind == "collective":
        return KERNEL
    if kind == "operator" and name == _RECORD:
        return RECORD
    if kind == "operator" and name.startswith("c10d::"):
        return ASK
    return RANGE if kind in ("annotation", "operator") and is_host_range(name) else NO_PART


@dataclass
class CollectiveEvents:
    """The events of a trace that are part of a collective; `odd`: how many of them have invalid arguments."""

    described: dict[int, list[Part]] = field(default_factory=lambda: {KERNEL: [], RECORD: []})
    shaped: dict[int, list[Shaped]] = field(default_factory=lambda: {ASK: [], RANGE: []})
    odd: int = 0

    def take(self, what: Sequence[int], events: Iterable[tuple[str, CollectiveArgs]], places: pl.DataFrame) -> None:
        """Add events: roles, names and arguments, and places (`Place`). Times not read are left out."""
        for kind, (name, fields), row in zip(what, events, places.select(Place._fields).iter_rows(), strict=True):
            if row[0] is None or row[1] is None:
                continue
            if kind in self.shaped:
                self.shaped[kind].append(unread(Place._make(row), name, fields))
                continue
            part, odd = described(Place._make(row), name, fields)
            self.odd += odd
            self.described[kind].append(part)

    def of_host(self) -> tuple[list[Part], list[Part]]:
        """Return ranges on the host, and the operators that requested a collective. NCCL's ranges enclose a record."""
        if not self.shaped[RANGE]:
            return [], []
        records: dict[int, list[int]] = {}
        for part in self.described[RECORD]:
            records.setdefault(part.place.tid, []).append(part.place.start_ns)
        for starts in records.values():
            starts.sort()

        def holds_none(ask: Shaped) -> bool:
            starts = records.get(ask.place.tid, [])
            at = bisect_left(starts, ask.place.start_ns)
            return at == len(starts) or starts[at] > ask.place.end_ns

        ranges = [shaped(event) for event in self.shaped[RANGE]]
        asks = [shaped(event) for event in self.shaped[ASK] if holds_none(event)]
        self.odd += sum(odd for _, odd in ranges + asks)
        return [part for part, _ in ranges], [part for part, _ in asks]


def with_collectives(
    profile: Profile,
    events: CollectiveEvents,
    on_host: tuple[Sequence[Part], Sequence[Part]],
    groups: Groups,
    host: object,
    shift_ns: int,
) -> Profile:
    """Return the profile with its communication. `on_host`: `CollectiveEvents.of_host`; `host`: its name, of any type;
    `shift_ns`: what was added to the profile's instants since the events were collected."""
    kernels = _on_device(profile, events, groups, shift_ns)
    rows, inferred = host_rows(*on_host, groups)
    hosts = pl.DataFrame(
        rows,
        schema={
            "start_ns": pl.Int64, "end_ns": pl.Int64, "op": pl.String, "group": pl.String, "bytes": pl.Int64,
            "dtype": pl.String, "peer": pl.Int64, "launch_ns": pl.Int64, "lane": pl.Int64,
        },
        orient="row",
    ).with_columns(
        pl.col("start_ns", "end_ns") + shift_ns,
        pl.when(pl.col("launch_ns") != 0).then(pl.col("launch_ns") + shift_ns).otherwise(0).alias("launch_ns"),
        pl.lit(-1, pl.Int64).alias("seq"),
        pl.lit(-1, pl.Int64).alias("device"),
    )  # fmt: skip
    found = pl.concat([kernels, hosts.select(kernels.columns)]).sort("start_ns", maintain_order=True)
    asked = pl.select(pl.when(found["launch_ns"] > 0).then(found["launch_ns"]).otherwise(found["start_ns"])).to_series()
    found = found.with_columns(
        small(step_at(asked, profile.steps)).alias("step"),
        small(found["peer"]),
        small(found["device"]),
        pl.lit("completed").alias("state"),
        pl.lit(-1, pl.Int64).alias("vendor_wait_ns"),
    )
    return replace(
        profile,
        notes=profile.notes + ((("group_guessed", inferred),) if inferred else ()),
        collectives=found.select(COLLECTIVES.names()),
        groups=groups.frame(found["group"].unique().sort().to_list()),
        run=Run(groups.world_size, groups.backend, text(host), process_of(profile)),
    )


def _on_device(profile: Profile, events: CollectiveEvents, groups: Groups, shift_ns: int) -> pl.DataFrame:
    kernels = _frame(events.described[KERNEL], groups, shift_ns).with_row_index()
    records = _frame(
        [part for part in events.described[RECORD] if part.collective not in _NO_COLLECTIVE], groups, shift_ns
    ).select("external", "pid", "tid", "start_ns", "end_ns", *_RECORDED)
    kernels = _launched(kernels, profile)
    kernels = _recorded(kernels, records)
    op = {pair: _op(*pair) for pair in kernels.select("collective", "name").unique().iter_rows()}
    ops = [op[pair] for pair in kernels.select("collective", "name").iter_rows()]
    size = {pair: bytes_of(*pair) for pair in kernels.select("elements", "dtype").unique().iter_rows()}
    sizes = [size[pair] for pair in kernels.select("elements", "dtype").iter_rows()]
    kernels = kernels.with_columns(
        pl.Series("op", ops, dtype=pl.String), pl.Series("bytes", sizes, dtype=pl.Int64), lane="stream"
    )
    # A send's number is that of the next collective, and the same for all sends until then.
    counted = ~pl.col("op").is_in(list(POINT_TO_POINT))
    return kernels.select(
        "start_ns", "end_ns", "op", "group", pl.when(counted).then("seq").otherwise(-1).alias("seq"), "bytes",
        "dtype", "peer", "launch_ns", "device", "lane",
    )  # fmt: skip


def _frame(parts: Sequence[Part], groups: Groups, shift_ns: int) -> pl.DataFrame:
    rows = [
        (*p.place, p.name, p.external, p.collective, p.dtype, p.elements, groups.of(p.mentioned), p.seq, p.peer)
        for p in parts
    ]
    return pl.DataFrame(rows, schema=_PARTS, orient="row").with_columns(pl.col("start_ns", "end_ns") + shift_ns)


def _launched(kernels: pl.DataFrame, profile: Profile) -> pl.DataFrame:
    """Add the instant and thread of the call that enqueued it: `launch_ns` 0 when it is not in the trace."""
    wanted = kernels.filter(pl.col("correlation") > 0)["correlation"].unique()
    calls = (
        profile.activities.filter((pl.col("kind") == "launch") & pl.col("correlation").is_in(wanted.implode()))
        .unique("correlation", keep="first", maintain_order=True)
        .select("correlation", launch_ns="start_ns", by_tid=pl.col("tid").cast(pl.Int64))
    )
    return kernels.join(calls, on="correlation", how="left", maintain_order="left").with_columns(
        pl.col("launch_ns").fill_null(0), pl.col("by_tid").fill_null(-1)
    )


def _recorded(kernels: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Add the fields of the record it was launched under; kernels of one record are one collective."""
    fields = [pl.col(column).alias(f"record_{column}") for column in _RECORDED]
    by_id = records.filter(pl.col("external") > 0).unique("external", keep="first", maintain_order=True)
    found = kernels.join(
        by_id.select("external", *fields, record=pl.col("external")), on="external", how="left", maintain_order="left"
    )
    # Older profilers give a kernel no id: its launch lies within the record, on the same thread.
    within = records.sort("start_ns").select(*fields, by_tid="tid", record_ns="start_ns", record_end_ns="end_ns")
    late = (
        found.filter(pl.col("record").is_null() & (pl.col("collective") == "") & (pl.col("launch_ns") > 0))
        .select("index", "launch_ns", "by_tid")
        .sort("launch_ns")
        .join_asof(within, left_on="launch_ns", right_on="record_ns", by="by_tid", check_sortedness=False)
        .filter(pl.col("launch_ns") <= pl.col("record_end_ns"))
        .select("index", *(pl.col(f"record_{column}").alias(f"within_{column}") for column in _RECORDED))
    )
    found = found.join(late, on="index", how="left", maintain_order="left")
    own = pl.col("collective") != ""
    found = found.with_columns(
        pl.when(own)
        .then(pl.col(column))
        .otherwise(pl.coalesce(f"record_{column}", f"within_{column}", column))
        .alias(column)
        for column in _RECORDED
    )
    return _merged(found)


def _merged(kernels: pl.DataFrame) -> pl.DataFrame:
    of_one = pl.col("record").is_not_null()
    single = kernels.filter(~of_one)
    merged = (
        kernels.filter(of_one)
        .sort("start_ns", maintain_order=True)
        .group_by("record", "device", maintain_order=True)
        .agg(
            pl.col("end_ns").max(),
            pl.all().exclude("record", "device", "end_ns", "launch_ns").first(),
            pl.col("launch_ns").min(),
        )
    )
    return pl.concat([single, merged.select(single.columns)])


def _op(collective: str, name: str) -> str:
    """Return the operation by the library's name for it, else (coalesced) by the kernel's name."""
    op = canonical_op(collective)
    return op if op != "other" else canonical_op(name)
