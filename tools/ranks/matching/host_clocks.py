"""Clocks of the hosts of a job that runs: one clock per host, for all of its ranks.

As `clock_offsets`, from what ranks leave together. A rank may leave an operation later than another one, but hardly by
more than the operation takes, so that the shortest ones are used, and half of their length is in the residual: two
instants on different hosts are in order if they are further apart than the residuals of both.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from whystall.tools.ranks.job import Clocks
from whystall.tools.ranks.matching.clock_offsets import estimate
from whystall.tools.timeline.collectives import SYNCHRONISING

_SHORT = 0.5
"""The share of a group's operations that is used."""


def host_clocks(matched: pl.DataFrame, host: Mapping[int, int]) -> Clocks:
    """Return the clocks of the ranks in `host` (their hosts, by number), all ranks of a host alike. `matched`: the same
    operations on several ranks (`job.MATCHED`, of which ``instance``, ``group``, ``op``, ``rank``, ``start_ns``,
    ``end_ns`` are used). Ranks of hosts that share no operation with the others are absent; one host needs none."""
    if len(set(host.values())) < 2:
        return Clocks(dict.fromkeys(host, 0), dict.fromkeys(host, 0), 0)
    ended = matched.filter(pl.col("op").is_in(sorted(SYNCHRONISING)) & pl.col("rank").is_in(list(host)))
    ended = ended.with_columns(
        host=pl.col("rank").replace_strict(dict(host), return_dtype=pl.Int32),
        took=(pl.col("end_ns") - pl.col("start_ns")).min().over("instance"),
    )
    # the first return on each host: the others may have waited for a CPU
    first = ended.group_by("instance", "group", "op", "took", rank="host").agg(pl.col("start_ns", "end_ns").min())
    first = first.filter(pl.len().over("instance") > 1)
    # the length of each operation once, whatever the number of its hosts
    each = first.unique("instance").group_by("group").agg(short=pl.col("took").quantile(_SHORT))
    short = first.join(each, on="group").filter(pl.col("took") <= pl.col("short"))
    if short.is_empty():
        return Clocks({}, {}, 0)
    found = estimate(short)
    length = dict(short.group_by("rank").agg(pl.col("took").median()).iter_rows())
    residual = {one: round(max(found.residual_ns[one], length[one] / 2)) for one in found.offset_ns}
    placed = {rank: one for rank, one in host.items() if one in found.offset_ns}
    return Clocks(
        {rank: found.offset_ns[one] for rank, one in placed.items()},
        {rank: residual[one] for rank, one in placed.items()},
        found.matched,
        {rank: found.drift[one] for rank, one in placed.items() if one in found.drift},
        {rank: found.origin_ns.get(one, 0) for rank, one in placed.items()},
    )
