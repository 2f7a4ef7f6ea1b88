"""Collectives and links of an Ascend profile: from its timeline and from the profiler's own measures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import polars as pl

from whystall.tools.contract.text import clean
from whystall.tools.timeline.ascend.groups import Communicators, number_of
from whystall.tools.timeline.ascend.info import Info
from whystall.tools.timeline.ascend.measured import Measured
from whystall.tools.timeline.collectives import COLLECTIVES, LINKS, POINT_TO_POINT, canonical_op
from whystall.tools.timeline.profile import Profile, Run
from whystall.tools.timeline.profile_reading.build import process_of

DETAILS = pl.Schema(
    {"start_ns": pl.Int64, "name": pl.String, "group_name": pl.String, "count": pl.Int64, "dtype": pl.String}
)
"""What the timeline has of an operation beside its times; `name` escaped, `count` of elements, -1 unknown."""

# The profilers convert the device's clock separately for timeline and measures: tens of us between them.
_TOLERANCE_NS = 1_000_000
_MOST = 2**63 - 1
_SIZES = {
    1: ("INT8", "UINT8"),
    2: ("FP16", "BFP16", "INT16", "UINT16"),
    4: ("FP32", "INT32", "UINT32"),
    8: ("FP64", "INT64", "UINT64"),
    16: ("INT128",),
}
_SIZE_OF = {name: size for size, names in _SIZES.items() for name in names}


def with_collectives(
    profile: Profile, details: pl.DataFrame, measured: Measured, groups: Communicators, info: Info, *, listed: bool
) -> Profile:
    """Return the profile with its communication. `listed`: the timeline lists collectives, not only the kernels they
    consist of; else the kernels count as collectives where nothing was measured."""
    frame = _rows(profile, details, measured, listed=listed)
    keys = [groups.of(group, name) for group, name in frame.select("group_name", "name").iter_rows()]
    ops = [canonical_op(name) for name in frame["name"]]
    sizes = [
        count * _SIZE_OF[dtype] if count >= 0 and dtype in _SIZE_OF else -1
        for count, dtype in frame.select("count", "dtype").iter_rows()
    ]
    rank = profile.rank if profile.rank >= 0 else info.rank
    peers = [_peer(op, key, groups, rank) for op, key in zip(ops, keys, strict=True)]
    frame = frame.with_columns(
        pl.Series("op", ops, dtype=pl.String),
        pl.Series("group", keys, dtype=pl.String),
        pl.Series("seq", [number_of(name) for name in frame["name"]], dtype=pl.Int64),
        pl.Series("bytes", sizes, dtype=pl.Int64),
        pl.Series("peer", peers, dtype=pl.Int32),
        pl.lit("completed").alias("state"),
    )
    odd, links = measured.odd + groups.odd, _links(measured, groups, rank)
    # Without metadata: the job has at least the ranks it exchanged data with.
    named = [*links["source"], *links["target"]]
    world = groups.world_size if groups.world_size > 0 or not named else max(named) + 1
    return replace(
        profile,
        collectives=frame.select(COLLECTIVES.names()).cast(COLLECTIVES).sort("start_ns", maintain_order=True),
        groups=groups.frame(keys),
        links=links,
        run=Run(world, "hccl", info.host, info.pid if info.pid > 0 else process_of(profile)),
        notes=_noted(profile.notes, odd),
    )


def _rows(profile: Profile, details: pl.DataFrame, measured: Measured, *, listed: bool) -> pl.DataFrame:
    """Return the operations of the timeline with their measures; those that were only measured, too."""
    found = profile.activities.filter(pl.col("kind") == "collective").select(
        "start_ns", "end_ns", "name", "device", "correlation", "step", lane="stream"
    )
    times = pl.DataFrame(
        [(clean(t.name), t.group, t.start_ns, t.elapse_ns, t.wait_ns, t.step) for t in measured.times],
        schema={
            "name": pl.String, "measured_group": pl.String, "at_ns": pl.Int64, "elapse_ns": pl.Int64,
            "vendor_wait_ns": pl.Int64, "measured_step": pl.Int32,
        },
        orient="row",
    ).sort("at_ns").with_row_index("measure")  # fmt: skip
    if not listed and times.height:
        found = found.clear()
    launches = profile.activities.filter(pl.col("kind") == "launch").select("correlation", launch_ns="start_ns")
    found = (
        found.join(
            launches.filter(pl.col("correlation") >= 0).unique("correlation", keep="first", maintain_order=True),
            on="correlation",
            how="left",
            maintain_order="left",
        )
        .join(
            details.unique(["start_ns", "name"], keep="first", maintain_order=True),
            on=["start_ns", "name"],
            how="left",
            maintain_order="left",
        )
        .join_asof(
            times,
            left_on="start_ns",
            right_on="at_ns",
            by="name",
            strategy="nearest",
            tolerance=_TOLERANCE_NS,
            check_sortedness=False,
        )
    )
    devices = found["device"].unique()
    unseen = times.filter(~pl.col("measure").is_in(found["measure"].drop_nulls().implode())).select(
        pl.lit(devices[0] if len(devices) == 1 else -1, pl.Int32).alias("device"),
        "name",
        "measured_group",
        "vendor_wait_ns",
        "measured_step",
        start_ns="at_ns",
        end_ns=pl.col("at_ns") + pl.col("elapse_ns"),
    )
    return pl.concat([found, unseen], how="diagonal").select(
        "start_ns",
        "end_ns",
        "name",
        pl.col("device").fill_null(-1),
        pl.col("lane").fill_null(-1),
        pl.when(pl.col("step") >= 0).then("step").otherwise(pl.coalesce("measured_step", -1)).alias("step"),
        pl.col("launch_ns").fill_null(0),
        pl.col("vendor_wait_ns").fill_null(-1),
        pl.when(pl.col("group_name") != "").then("group_name").otherwise(pl.col("measured_group").fill_null(""))
        .alias("group_name"),
        pl.col("count").fill_null(-1),
        pl.col("dtype").fill_null(""),
    )  # fmt: skip


def _peer(op: str, key: str, groups: Communicators, rank: int) -> int:
    """Return the other rank of a group of two."""
    group = groups.group(key) if op in POINT_TO_POINT else None
    if group is None or len(group.ranks) != 2 or rank not in group.ranks:
        return -1
    return group.ranks[0] if group.ranks[1] == rank else group.ranks[1]


def _links(measured: Measured, groups: Communicators, rank: int) -> pl.DataFrame:
    """Return links in groups whose ranks are known. If there is only one group, its ranks are the job's."""
    single = len({pair.group for pair in measured.pairs}) == 1
    own = {pair.source for pair in measured.pairs} == {rank}
    bytes_of: Counter[tuple[int, int, int, str]] = Counter()
    time_of: Counter[tuple[int, int, int, str]] = Counter()
    for pair in measured.of_links():
        group = groups.group(groups.of(pair.group))
        ranks = group.ranks if group is not None else ()
        if ranks and max(pair.source, pair.target) < len(ranks):
            source, target = ranks[pair.source], ranks[pair.target]
        elif not ranks and single and own:
            source, target = pair.source, pair.target
        else:
            continue
        if source != target:
            key = (pair.step, source, target, clean(pair.transport))
            bytes_of[key] += pair.bytes
            time_of[key] += pair.transit_ns
    rows = [(*key, min(bytes_of[key], _MOST), min(time_of[key], _MOST)) for key in sorted(bytes_of)]
    return pl.DataFrame(rows, schema=LINKS, orient="row")


def _noted(notes: tuple[tuple[str, str], ...], odd: int) -> tuple[tuple[str, str], ...]:
    if not odd:
        return notes
    before = sum(int(detail) for code, detail in notes if code == "odd_events")
    return (("odd_events", str(before + odd)), *(note for note in notes if note[0] != "odd_events"))
