"""The ranks of one job as they were recorded, and what is derived from them step by step: the tables all judges share.

Order of derivation: `Job` (recorded) -> `matching` (`MATCHED`) -> `offsets` (`Clocks`) -> `waits` (`WAITS`, `OWN`) ->
`peers` (`Peers`) -> `verdict`. Every instant stays on its own rank's clock; only `Clocks` tells the differences.
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
        # the step most of its ranks count it to
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
        # ranks the group has, and ranks of it that were matched here
        "size": _N,
        "present": _N,
        # seq, order or time
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
        # the shortest duration: an upper bound of what the transfer itself took
        "transfer_ns": _I,
        # the rank with the shortest duration: whom the others waited for
        "last": _N,
    }
)
"""Of synchronising operations, among the ranks that were matched (where some are absent a wait is at least so long,
and another may have been the last), and of receives (``last``: the sender)."""

OWN = pl.Schema(
    {
        "rank": _N,
        "step": _N,
        "step_ns": _I,
        # waiting for others: the union of its waits in the step
        "wait_ns": _I,
        # the rest of the step: what it took itself, transfers included
        "own_ns": _I,
        "compute_ns": _I,
        "gap_ns": _I,
        "loader_ns": _I,
        "exposed_comm_ns": _I,
        "launch_delay_ns": _I,
    }
)
"""One row per rank and step that all ranks have; steps in which nobody meets are part of the next in which ranks do;
without steps, equal runs of operations stand in for them."""


@dataclass(frozen=True)
class Job:
    """The recorded tables of a run (`rank_tables.TABLES`), the ranks present, and those that should be and are not."""

    tables: Mapping[str, pl.DataFrame]
    present: tuple[int, ...]
    missing: tuple[int, ...]
    world_size: int

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of `rank_tables.TABLES`."""
        return self.tables[name]


@dataclass(frozen=True)
class Clocks:
    """`offset_ns` by rank: what to subtract from its instants to bring them onto the median rank's clock, from the ends
    of synchronising operations; `residual_ns` by rank: the median absolute deviation that is left. Ranks that share no
    operation are absent. No claim about arrival below the residual is allowed.

    A clock that runs at another speed: `drift` by rank (ns per ns, where it was seen); the offset holds at `origin_ns`.
    `matched`: operations that were used.
    """

    offset_ns: Mapping[int, int]
    residual_ns: Mapping[int, int]
    matched: int
    drift: Mapping[int, float] = field(default_factory=dict)
    origin_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def spread_ns(self) -> int:
        """How far apart the clocks are."""
        return max(self.offset_ns.values(), default=0) - min(self.offset_ns.values(), default=0)

    def common(self, instant: str, rank: str = "rank") -> pl.Expr:
        """Return the column `instant` of the clock of `rank`, on the common clock; null where the rank is absent."""
        of = pl.col(rank)
        offset = of.replace_strict(dict(self.offset_ns), default=None, return_dtype=_I)
        since = pl.col(instant) - of.replace_strict(dict(self.origin_ns), default=0, return_dtype=_I)
        drift = of.replace_strict(dict(self.drift), default=0.0, return_dtype=pl.Float64)
        return pl.col(instant) - offset - (since * drift).round().cast(_I)

    def local(self, instant: str, rank: str = "rank") -> pl.Expr:
        """Return the inverse of `common`: what the clock of `rank` shows at the common `instant`."""
        of = pl.col(rank)
        offset = of.replace_strict(dict(self.offset_ns), default=None, return_dtype=_I)
        since = pl.col(instant) + offset - of.replace_strict(dict(self.origin_ns), default=0, return_dtype=_I)
        drift = of.replace_strict(dict(self.drift), default=0.0, return_dtype=pl.Float64)
        return pl.col(instant) + offset + (since * drift / (1 - drift)).round().cast(_I)


@dataclass(frozen=True)
class Peers:
    """Ranks that do the same work and may be compared. `label`: as the program names them (``dp``), or a number;
    `how`: groups, pipeline, asked or all.
    """

    label: str
    ranks: tuple[int, ...]
    how: str


def job_of(recording: Recording, collector: str = "ranks") -> Job:
    """Return the job in `recording`. Raises `ToolError` (missing_collector) when it holds none."""
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
