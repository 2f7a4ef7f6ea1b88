"""How long single calls of a rank's operators and kernels take, by name and input shape.

Calls of one run depend on each other, so quantiles alone do not show how certain a difference is: the calls of a name
are also cut, in the order of time, into blocks of equal numbers, of which the medians are kept (batches; R. W. Conway
1963, "Some tactical problems in digital simulation").
"""

from __future__ import annotations

import polars as pl

from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.rank_data import work as rank_work
from whystall.tools.timeline.rank_data.tables import LATENCIES

KEPT = 200
"""Pairs of name and shape kept per rank, those with the most time."""
BLOCKS = 20
_FILES = 3
"""A rank of several files keeps at most so many times `BLOCKS`."""
_KEY = ("kind", "name", "shape")
_THREAD = ("pid", "tid")
_QUANTILES = {"p10_ns": 0.1, "p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99}
_WARM_STEPS, _WARM_CALLS = 3, 10


def latencies(profile: Profile) -> pl.DataFrame:
    """Return `LATENCIES` without the rank: work of the device, and operators of the host without the time of operators
    that they call. Collectives and data loading are left out: they wait.

    The first step is left out from three steps on, as are calls outside of steps; without steps the first call of ten:
    caches are filled and kernels chosen then.
    """
    shape = profile.shapes if len(profile.shapes) == profile.activities.height else pl.lit("")
    rows = profile.activities.with_columns(shape.alias("shape"))
    device = rank_work.on_device(profile)
    parts = [_own_times(rows)]
    if device.height:
        ran = rows.filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"]) & (pl.col("device") >= 0))
        parts.append(ran.select(*_KEY, "start_ns", "step", ns=(pl.col("end_ns") - pl.col("start_ns")).clip(0)))
    calls, steps = _warm(pl.concat(parts).sort("start_ns", maintain_order=True), profile)
    if calls.is_empty():
        return _empty()
    calls = calls.with_columns(at=pl.int_range(pl.len()).over(_KEY), count=pl.len().over(_KEY))
    calls = calls.with_columns(block=pl.col("at") * pl.min_horizontal("count", BLOCKS) // pl.col("count"))
    blocks = (
        calls.group_by(*_KEY, "block")
        .agg(pl.col("ns").median().round().cast(pl.Int64), pl.col("step").first())
        .sort("block")
        .group_by(_KEY)
        .agg(blocks=pl.col("ns"), block_steps=pl.col("step"))
    )
    quantiles = {name: pl.col("ns").quantile(q, "linear").round().cast(pl.Int64) for name, q in _QUANTILES.items()}
    found = calls.group_by(_KEY).agg(
        count=pl.len().cast(pl.Int64),
        per_step=pl.len() / steps if steps else pl.lit(-1.0),
        total_ns=pl.col("ns").sum(),
        **quantiles,
    )
    found = found.join(blocks, on=_KEY).sort("total_ns", *_KEY, descending=[True, False, False, False]).head(KEPT)
    return found.select(name for name in LATENCIES if name != "rank").cast({k: LATENCIES[k] for k in ("per_step",)})


def joined_latencies(parts: pl.DataFrame) -> pl.DataFrame:
    """Return `LATENCIES` of one rank from those of its files, in the order of time: the quantiles are those of the file
    with the most calls."""
    longest = pl.col("count").arg_max()
    most = BLOCKS * _FILES
    thin = pl.int_range(pl.len()) % ((pl.len() + most - 1) // most) == 0
    of_key = ["rank", *_KEY]
    spread = parts.select(*of_key, "blocks", "block_steps").explode("blocks", "block_steps")
    spread = spread.group_by(of_key, maintain_order=True).agg(pl.col("blocks", "block_steps").filter(thin))
    sums = parts.group_by(of_key, maintain_order=True).agg(
        pl.col("count", "total_ns").sum(),
        pl.col("per_step").mean(),
        *(pl.col(name).get(longest) for name in _QUANTILES),
    )
    found = sums.join(spread, on=of_key, maintain_order="left").sort("total_ns", descending=True, maintain_order=True)
    return found.head(KEPT).select(LATENCIES.names())


def _empty() -> pl.DataFrame:
    return LATENCIES.to_frame().drop("rank")


def _warm(calls: pl.DataFrame, profile: Profile) -> tuple[pl.DataFrame, int]:
    """Return the calls after warming up, and the number of their steps; 0 without steps."""
    if profile.steps.is_empty():
        early = pl.int_range(pl.len()).over(_KEY) * _WARM_CALLS < pl.len().over(_KEY)
        return calls.filter(~early | (pl.len().over(_KEY) < _WARM_CALLS)), 0
    calls = calls.filter(pl.col("step") >= 0)
    numbers = sorted(set(profile.steps["step"].to_list()) - {-1})
    if len(numbers) >= _WARM_STEPS:
        calls, numbers = calls.filter(pl.col("step") != numbers[0]), numbers[1:]
    return calls, len(numbers)


def _own_times(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each operator of the host with the time in which it, and none that it called, ran.

    The edges of a thread's operators are swept in order; the time behind one belongs to the operator last opened at the
    depth that is then reached.
    """
    ranges = rows.filter((pl.col("kind") == "operator") & (pl.col("device") < 0))
    ranges = ranges.select(*_KEY, *_THREAD, "start_ns", "end_ns", "step").with_row_index("row")
    # at one instant the longer opens first, and an empty one is left out of the sweep: it has no time
    swept = ranges.filter(pl.col("end_ns") > pl.col("start_ns"))
    length = pl.col("end_ns") - pl.col("start_ns")
    opens = swept.select(*_THREAD, "row", at="start_ns", sign=pl.lit(1, pl.Int32), order=-length)
    shuts = swept.select(*_THREAD, "row", at="end_ns", sign=pl.lit(-1, pl.Int32), order=length)
    edges = pl.concat([opens, shuts]).sort(*_THREAD, "at", "sign", "order", maintain_order=True)
    edges = edges.with_columns(depth=pl.col("sign").cum_sum().over(_THREAD), until=pl.col("at").shift(-1).over(_THREAD))
    opened = pl.when(pl.col("sign") > 0).then("row")
    edges = edges.with_columns(owner=opened.forward_fill().over(*_THREAD, "depth"))
    edges = edges.filter(pl.col("depth") > 0).drop_nulls(["owner", "until"])
    inner = _same_call(edges, ranges)
    owners = edges.join(inner, on="owner", how="left").with_columns(row=pl.coalesce("caller", "owner"))
    own = owners.group_by("row").agg(ns=(pl.col("until") - pl.col("at")).sum())
    found = ranges.join(own, on="row", how="left", maintain_order="left").with_columns(pl.col("ns").fill_null(0))
    waits = pl.col("name").str.contains(rank_work.TALKS) | rank_work.loading()
    found = found.join(inner.select(row="owner"), on="row", how="anti", maintain_order="left")
    return found.filter(~waits).select(*_KEY, "start_ns", "step", "ns")


def _same_call(edges: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return operators (owner) that are called by one (caller) of the same name: an overload that redirects to another
    one, as aten::sort does. Both are one call."""
    opens = edges.filter(pl.col("sign") > 0).select(*_THREAD, "depth", "at", "owner").sort("at", maintain_order=True)
    outer = opens.select(*_THREAD, "at", depth=pl.col("depth") + 1, caller="owner")
    pairs = opens.join_asof(outer, on="at", by=[*_THREAD, "depth"], check_sortedness=False).drop_nulls("caller")
    names = ranges.select("row", "name")
    pairs = pairs.join(names.rename({"row": "owner"}), on="owner").join(
        names.rename({"row": "caller", "name": "of"}), on="caller"
    )
    return pairs.filter(pl.col("name") == pl.col("of")).select("owner", "caller")
