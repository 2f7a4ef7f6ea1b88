"""The ranks of one job as recorded, and the tables derived from them that all checks share.

Order of derivation: `Job` (recorded) -> `matching` (`MATCHED`) -> `matching.clock_offsets` (`Clocks`) ->
`analysis.waits` (`WAITS`, `AWAITED`, `OWN`) -> `analysis.peers` (`Peers`) -> verdict. Every instant stays on its own
rank's clock; only `Clocks` has the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.tables import TABLES

_I, _N, _S, _B = pl.Int64, pl.Int32, pl.String, pl.Boolean

MATCHED = pl.Schema(
    {
        # number of the operation in the job, in the order of time
        "instance": _I,
        "group": _S,
        "op": _S,
        # the step that most of its ranks count it to
        "step": _N,
        "rank": _N,
        "start_ns": _I,
        "end_ns": _I,
        "launch_ns": _I,
        "bytes": _I,
        "peer": _N,
        "before_ns": _I,
        "before_compute_ns": _I,
        "before_gap_ns": _I,
        "vendor_wait_ns": _I,
        # ranks in the group, and ranks of it that were matched here
        "size": _N,
        "present": _N,
        # how it was matched: seq, order or time
        "how": _S,
    }
)
"""One row per rank and operation that was found on at least two ranks (both ends, for point-to-point)."""

WAITS = pl.Schema(
    {
        "instance": _I,
        "group": _S,
        "op": _S,
        "step": _N,
        "rank": _N,
        # its duration less the shortest of the same operation: needs no common clock
        "wait_ns": _I,
        # the shortest duration: an upper bound of the transfer itself
        "transfer_ns": _I,
        # the rank with the shortest duration: the one the others waited for
        "last": _N,
    }
)
"""Waits in synchronising operations, among the matched ranks (where some are absent a wait is at least so long, and
another rank may have been the last), and in receives (``last``: the sender)."""

AWAITED = pl.Schema({"rank": _N, "step": _N, "last": _N, "wait_ns": _I})
"""How long `rank` waited for `last` in a step: parts of the union of its waits, which add up to those of `OWN`."""

OWN = pl.Schema(
    {
        "rank": _N,
        "step": _N,
        "step_ns": _I,
        # waiting for others: the union of its waits in the step
        "wait_ns": _I,
        # the rest of the step: its own time, transfers included
        "own_ns": _I,
        "compute_ns": _I,
        "gap_ns": _I,
        "loader_ns": _I,
        "exposed_comm_ns": _I,
        "launch_delay_ns": _I,
    }
)
"""One row per rank and step that all ranks have; steps without an operation between ranks are part of the next with
one; without steps, equal runs of operations are used instead."""


@dataclass(frozen=True)
class Job:
    """The recorded tables of a run (`rank_data.tables.TABLES`), the ranks present, and those that are missing."""

    tables: Mapping[str, pl.DataFrame]
    present: tuple[int, ...]
    missing: tuple[int, ...]
    world_size: int

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of `rank_data.tables.TABLES`."""
        return self.tables[name]


@dataclass(frozen=True)
class Clocks:
    """`offset_ns` by rank: what to subtract from its instants to bring them onto the median rank's clock, from the ends
    of synchronising operations; `residual_ns` by rank: the remaining median absolute deviation. Ranks that share no
    operation are absent. Differences of arrival below the residual are not significant.

    A clock that runs at another speed: `drift` by rank (ns per ns, if any was found); the offset holds at `origin_ns`.
    `matched`: operations that were used.
    """

    offset_ns: Mapping[int, int]
    residual_ns: Mapping[int, int]
    matched: int
    drift: Mapping[int, float] = field(default_factory=dict)
    origin_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def spread_ns(self) -> int:
        """The spread of the offsets."""
        return max(self.offset_ns.values(), default=0) - min(self.offset_ns.values(), default=0)

    def common(self, instant: str, rank: str = "rank") -> pl.Expr:
        """Return the column `instant` of the clock of `rank`, on the common clock; null where the rank is absent."""
        of = pl.col(rank)
        offset = of.replace_strict(dict(self.offset_ns), default=None, return_dtype=_I)
        since = pl.col(instant) - of.replace_strict(dict(self.origin_ns), default=0, return_dtype=_I)
        drift = of.replace_strict(dict(self.drift), default=0.0, return_dtype=pl.Float64)
        return pl.col(instant) - offset - (since * drift).round().cast(_I)

    def local(self, instant: str, rank: str = "rank") -> pl.Expr:
        """Return the inverse of `common`: the clock of `rank` at the common `instant`."""
        of = pl.col(rank)
        offset = of.replace_strict(dict(self.offset_ns), default=None, return_dtype=_I)
        since = pl.col(instant) + offset - of.replace_strict(dict(self.origin_ns), default=0, return_dtype=_I)
        drift = of.replace_strict(dict(self.drift), default=0.0, return_dtype=pl.Float64)
        return pl.col(instant) + offset + (since * drift / (1 - drift)).round().cast(_I)


@dataclass(frozen=True)
class Peers:
    """Ranks that do the same work and may be compared. `label`: the program's name for them (``dp``), or a number;
    `how`: groups, pipeline, asked or all."""

    label: str
    ranks: tuple[int, ...]
    how: str


def job_of(recording: Recording, collector: str = "ranks") -> Job:
    """Return the job in `recording`. Raises `ToolError` (missing_collector) when it has none."""
    if not recording.has(collector):
        raise ToolError(
            ErrorCode.MISSING_COLLECTOR,
            "this recording has no ranks of a job",
            "give the directory with the ranks' traces (--traces DIR)",
        )
    found = recording.tables()
    tables = {name: found.get(f"{collector}.{name}", schema.to_frame()) for name, schema in TABLES.items()}
    ranks = tables["ranks"]
    present = tuple(sorted(ranks["rank"].to_list()))
    world = max([*ranks["world_size"].to_list(), *(rank + 1 for rank in present)], default=0)
    return Job(tables, present, tuple(sorted(set(range(world)) - set(present))), world)
